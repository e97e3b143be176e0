"""Two real worker processes over loopback, and one of them killed."""

import contextlib
import json
import signal
import subprocess

import numpy as np
import pytest
import scipy.stats
import small_training
import tensorflow as tf
import worker

from tests import worker_processes
from tfdpflows import accounting

# Of one pair of workers, most of it TensorFlow's start. On a busy machine that
# is slow; a hang costs this much once.
TIMEOUT = 150

pytestmark = pytest.mark.slow


def _pair(folder, phase):
  """Starts both workers and kills what is left of them in the end."""
  ports = ','.join(map(str, worker_processes.free_ports(2)))
  return worker_processes.started(
    folder,
    phase,
    [[worker.__file__, str(i), ports, str(folder), phase] for i in range(2)],
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Where a training was run whole, and another was killed and resumed."""
  folder = tmp_path_factory.mktemp('workers')
  with _pair(folder, 'begin') as (chief, other):
    assert other.wait(TIMEOUT) == -signal.SIGKILL, _log(folder, 'begin 1')
    # It may notice or wait for ever; a cluster's manager would end it too.
    with contextlib.suppress(subprocess.TimeoutExpired):
      assert chief.wait(5) != 0, _log(folder, 'begin 0')
  with _pair(folder, 'resume') as (chief, other):
    assert other.wait(TIMEOUT) == 0, _log(folder, 'resume 1')
    assert chief.wait(TIMEOUT) == 0, _log(folder, 'resume 0')
  return folder


def _log(folder, name):
  return (folder / f'{name}.log').read_text()[-3000:]


def _read(folder, name):
  return [json.loads((folder / f'{i} {name}').read_text()) for i in range(2)]


def _weights(folder, name):
  return [list(np.load(folder / f'{name}-{i}.npz').values()) for i in range(2)]


def test_two_workers_train_as_one_process(folder):
  model = small_training.flow_model(
    small_training.plan(), tf.distribute.get_strategy()
  )
  model.fit(small_training.table(), verbose=0)
  chief, other = _weights(folder, 'whole')
  for a, b, c in zip(chief, other, small_training.weights_of(model)):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, c, rtol=0, atol=1e-6)


def test_noise_has_the_planned_scale_once(folder):
  expected = small_training.noise_of_one_update(tf.distribute.get_strategy())
  for index in range(2):
    noise = np.load(folder / f'noise-{index}.npy')
    p = scipy.stats.chi2.cdf(np.sum(noise**2), noise.size)
    assert 1e-4 < p < 1 - 1e-4
    np.testing.assert_array_equal(noise, expected)


def test_epsilon_and_charges_are_those_of_one_process(folder):
  plan = small_training.plan()
  for _ in plan.dataset(small_training.table()):
    pass
  expected = [small_training.STEPS, plan.ledger.epsilon(), plan.epsilon()]
  assert _read(folder, 'whole.json') == [expected, expected]
  path = folder / 'whole.jsonl'
  with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
    assert [(e.label, e.event, e.count) for e in ledger.entries] == [
      (e.label, e.event, e.count) for e in plan.ledger.entries
    ]


def test_what_one_worker_does_wrong_stops_both(folder):
  found = _read(folder, 'refusals.json')
  assert [entries for _, entries in found[0]] == [0] * 6
  chief, other = ([words for words, _ in worker] for worker in found)
  assert 'x has 299 rows' in other[0]
  assert 'Worker 1 of 2 could not begin' in chief[0]
  for i, name in ((1, 'table'), (2, 'random numbers'), (3, 'plan')):
    for message in (chief[i], other[i]):
      assert 'Worker 1 of 2 and the chief' in message
      assert f'differ in their {name}' in message
  assert 'to the plan of worker 0 only' in other[4]
  assert 'Worker 1 of 2 could not begin' in chief[4]
  assert "'DP-SGD'" in chief[5]
  assert 'Worker 0 of 2 could not begin' in other[5]


def test_workers_have_the_random_numbers_of_the_chief_s_reservation(folder):
  chief, other = _read(folder, 'secret')
  assert chief == other != worker.SECRET.hex()


def test_killed_worker_resumes_from_checkpoint_and_ledger(folder):
  assert not list(folder.glob('* went on'))
  # Of 12 steps 8 were paid for; 4 of them were saved and 4 are lost. The other
  # worker knows it from the chief: its own account begins anew, and ends with
  # the same.
  assert _read(folder, 'resumed.json') == [[4, 8, 12], [4, 0, 12]]
  path = folder / 'interrupted.jsonl'
  with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
    assert [e.count for e in ledger.entries] == [small_training.STEPS]
  whole, _ = _weights(folder, 'whole')
  for a, b, c in zip(*_weights(folder, 'resumed'), whole):
    np.testing.assert_array_equal(a, b)
    assert np.any(np.abs(a - c) > 1e-3)
