"""DP-AD: densities on shards, thresholds of their own, streams."""

import functools
import itertools

import numpy as np
import pytest
from sklearn import pipeline, preprocessing
from sklearn.mixture import GaussianMixture

from tests.grids import thinned
from tfdpflows import accounting, flows, models, pate
from tfdpflows._keras import keras
from tfdpflows.randomness import Randomness


def rows(n=500):
  return np.random.default_rng(0).normal(size=[n, 2]).astype('float32')


QUERIES = np.array([[0.0, 0.0], [0.5, -0.5], [8.0, 8.0], [-9.0, 5.0]])
ANOMALIES = [0, 0, 1, 1]


def flow():
  model = models.DensityModel(
    flows.masked_autoregressive_flow(2, num_blocks=1, hidden_units=[8])
  )
  model.compile(optimizer=keras.optimizers.Adam(1e-2))
  return model


DENSITIES = {
  'mixture': (lambda: GaussianMixture(2), 4, {}),
  'flow': (flow, 2, {'fit_options': {'epochs': 2, 'batch_size': 64}}),
}
THRESHOLDS = {'threshold': -9.0}, {'false_positive_rate': 0.01}


@pytest.mark.parametrize(
  ('threshold', 'name'),
  thinned(
    itertools.product(THRESHOLDS, DENSITIES),
    lambda point: point[1] != 'flow',
  ),
  ids=str,
)
def test_densities_vote(threshold, name, tmp_path):
  make, number, options = DENSITIES[name]
  options = {'randomness': Randomness(seed=0), **options, **threshold}
  ensemble = pate.AnomalyEnsemble(make, number, **options)
  folder = tmp_path / 'densities'
  ensemble.fit(rows(), folder=folder, progress=False)
  votes = ensemble.votes(QUERIES.astype('float32'))
  assert np.argmax(votes, 1).tolist() == ANOMALIES
  loaded = pate.AnomalyEnsemble.load(folder, make, number, **options)
  again = loaded.votes(QUERIES.astype('float32'))
  np.testing.assert_array_equal(votes, again)


def test_a_row_changes_one_vote():
  x = rows()
  other = x.copy()
  other[-1] = 1e4
  queries = 3 * rows(300)
  votes = [
    pate.AnomalyEnsemble(
      GaussianMixture,
      10,
      false_positive_rate=0.05,
      randomness=Randomness(seed=1),
    )
    .fit(table, progress=False)
    .votes(queries)
    for table in (x, other, x[:-1])
  ]
  for changed in votes[1:]:
    assert np.abs(votes[0] - changed).max() <= 1


def test_what_has_no_density_is_an_anomaly():
  ensemble = pate.AnomalyEnsemble(GaussianMixture, 2, threshold=0.0)
  found = ensemble._classes(np.array([np.nan, -np.inf, 0.0]), np.zeros(1))
  assert found.tolist() == [1, 1, 0]


def test_a_stream_with_few_anomalies():
  ensemble = pate.AnomalyEnsemble(
    GaussianMixture, 50, false_positive_rate=0.01
  ).fit(rows(2000), progress=False)
  stream = rows(400) * 0.5
  stream[[50, 320]] = 20.0
  ledger = accounting.PrivacyLedger()
  aggregator = pate.SparseVector(25.0, 8.0, 3, num_teachers=50, ledger=ledger)
  found = aggregator.query(ensemble.votes(stream))
  assert np.flatnonzero(found == 1).tolist() == [50, 320]
  assert ledger.epsilon(1e-9) <= 8.0 * (1 + 1e-6)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({}, 'Give one of'),
    ({'threshold': 1.0, 'false_positive_rate': 0.1}, 'Give one of'),
    ({'threshold': np.inf}, 'must be finite'),
    ({'false_positive_rate': 1.0}, r'in \(0, 1\)'),
  ],
)
def test_bad_arguments(options, message):
  with pytest.raises(ValueError, match=message):
    pate.AnomalyEnsemble(GaussianMixture, 4, **options)


def test_bad_rows():
  ensemble = pate.AnomalyEnsemble(GaussianMixture, 4, threshold=0.0)
  with pytest.raises(ValueError, match='rows alone'):
    ensemble.fit(rows(), np.zeros(500, int), progress=False)
  with pytest.raises(ValueError, match='2 rows for 4 shards'):
    ensemble.fit(rows(2), progress=False)


def test_a_density_that_changes_its_input_changes_no_other():
  def make():
    scaler = preprocessing.StandardScaler(copy=False)
    return pipeline.make_pipeline(scaler, GaussianMixture())

  x, queries = rows(), QUERIES.copy()
  found = []
  for value in (None, 1e4):
    table = x.copy()
    if value is not None:
      table[-1] = value
    kept = table.copy()
    ensemble = pate.AnomalyEnsemble(
      make, 5, threshold=-9.0, randomness=Randomness(seed=0)
    ).fit(table, progress=False)
    found.append((ensemble.scores(queries), ensemble.votes(queries)))
    np.testing.assert_array_equal(table, kept)
  np.testing.assert_array_equal(queries, QUERIES)
  (scores, _), (others, _) = found
  assert np.any(scores != others, axis=1).sum() == 1


def test_the_own_threshold_is_of_the_rows_as_they_are():
  def make(copy):
    scaler = preprocessing.StandardScaler(copy=copy)
    return pipeline.make_pipeline(scaler, GaussianMixture())

  votes = []
  for copy in (True, False):
    ensemble = pate.AnomalyEnsemble(
      functools.partial(make, copy),
      5,
      false_positive_rate=0.05,
      randomness=Randomness(seed=0),
    ).fit(3 * rows() + 7, progress=False)
    votes.append(ensemble.votes(3 * rows() + 7))
  np.testing.assert_array_equal(*votes)


class OddShape(GaussianMixture):
  """Answers with one number where its shard has an outlier."""

  def score_samples(self, x):
    scores = super().score_samples(x)
    return scores[:1] if self.means_.max() > 1e2 else scores


def test_scores_of_another_shape_are_none():
  x = rows()
  x[-1] = 1e6
  shards = pate.partition(len(x), 5, randomness=Randomness(seed=0))
  ensemble = pate.AnomalyEnsemble(
    OddShape, 5, threshold=-9.0, randomness=Randomness(seed=0)
  ).fit(x, progress=False)
  scores = ensemble.scores(QUERIES)
  odd = np.arange(5) == shards[-1]
  np.testing.assert_array_equal(np.isnan(scores).all(1), odd)
  assert ensemble.votes(QUERIES)[0].sum() == 5
