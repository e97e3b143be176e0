"""DP-AD's figure, on few rows."""

import numpy as np
import pytest

from experiments import anomaly_voting
from tests.grids import thinned
from tfdpflows import accounting, pate


@pytest.mark.parametrize('densities', thinned([1, 2], 1))
def test_smoke(densities, tmp_path, monkeypatch):
  """Flows that vote are in `tests/pate/anomaly_ensemble_test.py`."""
  figure = list(anomaly_voting._METHODS['figure'].items())[:densities]
  monkeypatch.setitem(anomaly_voting._METHODS, 'figure', dict(figure))
  plot = tmp_path / 'figure.png'
  results = anomaly_voting.run(
    smoke=True, plot=plot, output=str(tmp_path / 'results.json')
  )
  runs = {(run['part'], run['method']): run for run in results['runs']}
  assert len(runs) == densities + 3
  for run in runs.values():
    assert all(0 <= value <= 1 for value in run['correct'])
  assert plot.stat().st_size > 10_000


def test_probability_is_that_of_the_aggregator():
  votes, labels = np.array([[7, 3], [2, 8], [5, 5]]), np.array([0, 1, 1])
  aggregator = pate.ExponentialVote(
    0.4, num_teachers=10, num_classes=2, ledger=accounting.PrivacyLedger()
  )
  answers = aggregator.query(np.tile(votes, [30_000, 1]))
  assert np.mean(answers == np.tile(labels, 30_000)) == pytest.approx(
    anomaly_voting.probabilities_correct(votes, labels, 0.4), abs=0.01
  )
