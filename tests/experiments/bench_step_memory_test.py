"""Peak memory of a step is that of the step, in a process of its own."""

import subprocess
import sys

import pytest

from experiments import bench_step_memory
from tests import forked

_WIDE = {'event_size': 2, 'num_blocks': 1, 'hidden_units': (512,)}


@pytest.mark.skipif(
  not sys.platform.startswith('linux'), reason='/proc is what tells it'
)
@pytest.mark.full
def test_memory_grows_by_what_the_batch_needs():
  batches = [10_000, 40_000]
  found = bench_step_memory.measure_apart(
    'maf', 'not private', batches, **_WIDE
  )
  # One layer of activations, in MB; a few like it live at the same time.
  layer = 4 * (batches[1] - batches[0]) * 512 / 1e6
  assert layer < found[1] - found[0] < 6 * layer


def test_what_went_wrong_is_told(tmp_path, monkeypatch):
  log = tmp_path / 'log'

  def run(command, *, env, **unused_options):
    """As `subprocess.run`, where TensorFlow is imported."""
    code = forked.run(command[1:], log, environment=env)
    text = log.read_text()
    return subprocess.CompletedProcess(command, code, text, text)

  monkeypatch.setattr(bench_step_memory.subprocess, 'run', run)
  with pytest.raises(RuntimeError, match='no such way'):
    bench_step_memory.measure_apart('maf', 'no such way', [4])
