"""The benchmark of whole trainings with XLA runs, and counts compilations."""

import json

import pytest

from experiments import bench_fit_xla
from tests import forked, unproven

_TRAINING = f"""
import json, sys
from experiments import bench_fit_xla
from {unproven.__name__} import unproven
shape = {{'event_size': 2, 'num_blocks': 1, 'hidden_units': [4]}}
with unproven():
  times = bench_fit_xla.run(num_examples=400, batch=40, epochs=2, shape=shape)
with open(sys.argv[1], 'w') as file:
  json.dump(times, file)
"""


@pytest.fixture(scope='module')
def training(tmp_path_factory):
  """The times of steps, and the folder of what XLA compiled for them."""
  folder = tmp_path_factory.mktemp('training')
  dumped, times = folder / 'dumped', folder / 'times.json'
  flags = (
    f'--xla_dump_to={dumped} --xla_dump_hlo_as_text '
    '--xla_dump_hlo_module_re=.*run_step.*'
  )
  log = folder / 'log'
  found = forked.run(
    ['-c', _TRAINING, times], log, environment={'XLA_FLAGS': flags}
  )
  assert found == 0, log.read_text()
  return json.loads(times.read_text()), dumped


@pytest.mark.slow
@pytest.mark.full
def test_smoke(training):
  times, _ = training
  assert {name: len(found) for name, found in times.items()} == {
    'plain': 20,
    'XLA': 20,
  }
  found = bench_fit_xla.summarize(times, 1)
  assert found['ratio'] > 0
  assert found['compilation_seconds'] == [round(max(times['XLA']) / 1e3, 2)]


@pytest.mark.slow
def test_a_whole_training_is_compiled_three_times_at_most(training):
  assert 1 <= bench_fit_xla.count_programs(training[1]) <= 3


def test_programs_are_counted_once(tmp_path):
  for name in (
    'module_0001.a_inference_run_step_12__.17.before_optimizations.txt',
    'module_0001.a_inference_run_step_12__.17.cpu_after_optimizations.txt',
    'module_0002.a_inference_run_step_12__.17.before_optimizations.txt',
    'module_0003.cluster.before_optimizations.txt',
  ):
    (tmp_path / name).touch()
  assert bench_fit_xla.count_programs(tmp_path) == 2
