"""Steps of other frameworks are compared to ours, or skipped with a reason."""

import os

import pytest

from experiments import bench_step_peers

_SMALL = {
  'event_size': 3,
  'num_blocks': 1,
  'hidden_units': (8,),
  'batch': 16,
}


def _run(python):
  return bench_step_peers.run(
    python, turns=1, rounds=2, slow_rounds=1, shape=_SMALL
  )


def test_without_the_environment_all_are_skipped():
  found = _run('/no/python')
  assert set(found['steps']) == {'TensorFlow'}
  assert set(found['skipped']) == {'Opacus', 'JAX'}
  assert 'make bench-peers' in found['skipped']['JAX']


@pytest.mark.skipif(
  not os.path.exists(bench_step_peers.PYTHON),
  reason='the peers are not installed: make bench-peers',
)
def test_peers():
  found = _run(bench_step_peers.PYTHON)
  assert not found['skipped']
  assert set(found['steps']['Opacus']) == {
    'not private',
    'ghost clipping',
    'hooks',
  }
  assert found['steps']['JAX']['not private']['ratio'] == 1
  ours = found['steps']['TensorFlow']['tfdpflows Flat']
  assert ours['ratio_to_ours'] == 1
