"""Compiled steps leave TensorFlow with their inputs, and run under JAX."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments import bench_step_hlo, bench_step_peers

_SCRIPT = os.path.join(os.path.dirname(bench_step_hlo.__file__), 'run_hlo.py')
_BATCH = 16
_SMALL = {
  'maf': {
    'event_size': 3,
    'num_blocks': 1,
    'hidden_units': (8,),
    'batch': _BATCH,
  }
}
_VARIANTS = ['not private, XLA', 'tfdpflows Flat, XLA']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('hlo')
  bench_step_hlo.export(path, ['maf'], _VARIANTS, _SMALL)
  return path


def test_steps_have_their_inputs(folder):
  with open(folder / 'steps.json', encoding='utf-8') as file:
    steps = json.load(file)['steps']
  assert [s['variant'] for s in steps] == _VARIANTS
  for step in steps:
    assert (folder / f'{step["file"]}.hlo').stat().st_size > 0
    assert step['inputs'][0] == {'dtype': 'float32', 'shape': [_BATCH, 3]}
    with np.load(folder / f'{step["file"]}.npz') as arrays:
      shapes = [list(arrays[f'arr_{i}'].shape) for i in range(len(arrays))]
    assert shapes == [x['shape'] for x in step['inputs']]
    # Kernels and biases of two layers.
    assert len(step['mean_outputs']) == 4
    assert np.all(np.isfinite(step['mean_outputs']))
    assert len(step['updates']) >= 3 * 4
  # Only the private step has noise, whose state has 64 bits.
  private = [
    any(x['dtype'] == 'int64' and x['shape'] for x in s['inputs'])
    for s in steps
  ]
  assert private == [False, True]


def test_inputs_that_are_not_there_are_refused():
  head = 'entry_computation_layout={(f32[2]{0}, s32[]{})->(f32[2]{0})}'
  one, two = np.zeros(2, 'float32'), np.zeros([], 'int32')
  constant = np.zeros(3, 'int32')
  found = bench_step_hlo._those_of_hlo([one, constant, two], head)
  assert [x is y for x, y in zip(found, [one, two])] == [True, True]
  with pytest.raises(ValueError, match='Input 1'):
    bench_step_hlo._those_of_hlo([one, constant], head)


def _python_with_jax():
  for python in (sys.executable, bench_step_peers.PYTHON):
    if os.path.exists(python):
      run = subprocess.run(
        [python, '-c', 'import jax'], capture_output=True, check=False
      )
      if run.returncode == 0:
        return python
  return None


def test_they_agree_under_jax(folder, tmp_path):
  python = _python_with_jax()
  if python is None:
    pytest.skip('JAX is not installed: make bench-peers')
  output = tmp_path / 'result.json'
  subprocess.run(
    [python, _SCRIPT, str(folder), f'--output={output}', '--rounds=2'],
    check=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  )
  result = json.loads(output.read_text(encoding='utf-8'))
  assert result['device'].startswith('cpu')
  assert [step['agrees'] for step in result['steps']] == [True, True]
  assert result['steps'][0]['ratio'] == 1
