"""The benchmark of whole trainings with XLA runs, and counts compilations."""

import pytest

from experiments import bench_fit_xla
from tests import forked

_TRAINING = """
from experiments import bench_fit_xla
shape = {'event_size': 2, 'num_blocks': 1, 'hidden_units': [4]}
bench_fit_xla.run(num_examples=400, batch=40, epochs=2, shape=shape)
"""


def test_smoke():
  times = bench_fit_xla.run(
    num_examples=64,
    batch=16,
    epochs=2,
    shape={'event_size': 2, 'num_blocks': 1, 'hidden_units': [4]},
  )
  assert {name: len(found) for name, found in times.items()} == {
    'plain': 8,
    'XLA': 8,
  }
  found = bench_fit_xla.summarize(times, 1)
  assert found['ratio'] > 0
  assert found['compilation_seconds'] == [round(max(times['XLA']) / 1e3, 2)]


@pytest.mark.slow
def test_a_whole_training_is_compiled_three_times_at_most(tmp_path):
  flags = f'--xla_dump_to={tmp_path} --xla_dump_hlo_as_text'
  log = tmp_path / 'log'
  found = forked.run(['-c', _TRAINING], log, environment={'XLA_FLAGS': flags})
  assert found == 0, log.read_text()
  assert 1 <= bench_fit_xla.count_programs(tmp_path) <= 3


def test_programs_are_counted_once(tmp_path):
  for name in (
    'module_0001.a_inference_run_step_12__.17.before_optimizations.txt',
    'module_0001.a_inference_run_step_12__.17.cpu_after_optimizations.txt',
    'module_0002.a_inference_run_step_12__.17.before_optimizations.txt',
    'module_0003.cluster.before_optimizations.txt',
  ):
    (tmp_path / name).touch()
  assert bench_fit_xla.count_programs(tmp_path) == 2
