"""Replicas of one process: how rows are dealt out, and training on two."""

import pathlib

import numpy as np
import pytest
import small_training
import tensorflow as tf

from tests import forked
from tests.grids import thinned
from tfdpflows.training import replicas


@pytest.mark.core
@pytest.mark.parametrize('number', [1, 2, 3, 7])
def test_shares_of_a_batch_are_all_of_it_once(number):
  rng = np.random.default_rng(0)
  for size in (0, 1, 5, 40):
    drawn = np.sort(rng.choice(100, size, replace=False))
    padding = (0, -size % 16)
    batch = np.pad(drawn, padding), np.pad(np.ones(size, 'float32'), padding)
    found = []
    for replica in range(number):
      workers = replicas.Workers(tf.distribute.get_strategy())
      workers.num_replicas, workers.replicas = number, [replica]
      ((share, weights),) = workers.shares(*batch)
      assert len(share) == len(weights)
      assert weights.dtype == np.float32
      if number > 1:
        assert len(share) >= 8 and len(share) % 8 == 0
        assert np.all(share[weights > 0] % number == replica)
      found.extend(share[weights > 0])
    np.testing.assert_array_equal(np.sort(found), drawn)


@pytest.mark.parametrize('name', ['ParameterServerStrategyV2', 'TPUStrategy'])
def test_strategies_out_of_step_are_refused_by_name(name, monkeypatch):
  strategy = type(name, (), {'num_replicas_in_sync': 1})()
  monkeypatch.setattr(tf.distribute, 'get_strategy', lambda: strategy)
  monkeypatch.setattr(tf.distribute, 'has_strategy', lambda: True)
  plan = small_training.plan()
  with pytest.raises(ValueError, match=f'{name} is not supported'):
    plan.dataset(small_training.table())
  assert plan.ledger.entries == ()


@pytest.mark.slow
@pytest.mark.parametrize('marks', thinned(['not full', 'full'], 1))
def test_two_virtual_cpus(marks, tmp_path):
  """Runs `two_replicas.py`, where the tests are."""
  tests = pathlib.Path(__file__).with_name('two_replicas.py')
  log = tmp_path / 'log.txt'
  status = forked.run(
    ['-m', 'pytest', '-q', '-x', '-n0', '-m', marks, str(tests)],
    log,
    environment={'TFDPFLOWS_TWO_CPUS': '1'},
  )
  said = log.read_text()
  assert status == 0, said[-6000:]
  assert ' passed' in said
