"""Times training steps that `bench_step.py --export_hlo=DIR` wrote, under JAX.

On whatever accelerator JAX sees. Needs jax and numpy, and neither TensorFlow
nor this package:

  python experiments/run_hlo.py DIR --peers --output=result.json

With `--peers` the same masked autoregressive flow is also trained in JAX and,
if they are installed, in PyTorch by Opacus.
"""

import argparse
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import time

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client

_COPY = re.compile(r'mhlo\.copy (%\w+) : (tensor<[^>]*>)')
_PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'peers_step')
# JAX rounds matrix products on a GPU to TensorFloat-32 unless told otherwise;
# PyTorch does not.
_PEER_SCRIPTS = {
  'JAX': ('jax_maf.py', {'JAX_DEFAULT_MATMUL_PRECISION': 'highest'}),
  'JAX, TensorFloat-32': ('jax_maf.py', {}),
  'Opacus': ('opacus_maf.py', {}),
}

# How far the mean of an output may be from TensorFlow's: the accelerator rounds
# otherwise. Adam's first step is the learning rate, 1e-3, in the direction of
# the noised gradient, so that other noise would show.
_TOLERANCE = {'rtol': 1e-3, 'atol': 1e-6}


class Step:
  """A module for the first device, and its inputs; to be compiled."""

  def __init__(self, folder, name, updates):
    with open(os.path.join(folder, name + '.hlo'), 'rb') as file:
      computation = xla_client.XlaComputation(file.read())
    module = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    # The compiler for GPUs takes StableHLO alone, which has no copies.
    self._module = _COPY.sub(r'stablehlo.reshape \1 : (\2) -> \2', module)
    device = jax.devices()[0]
    with np.load(os.path.join(folder, name + '.npz')) as arrays:
      values = [arrays[f'arr_{i}'] for i in range(len(arrays))]
    self._inputs = [jax.device_put(value, device) for value in values]
    self._updates = updates
    self._devices = xla_client._xla.DeviceList((device,))
    self._executable = self.compile_s = None

  def compile(self):
    start = time.perf_counter()
    self._executable = xla_bridge.get_backend().compile_and_load(
      self._module, self._devices
    )
    self.compile_s = time.perf_counter() - start

  def __call__(self, count=1):
    """Runs `count` steps; returns the outputs of the last, when it is done."""
    for _ in range(count):
      results = self._executable.execute_sharded(self._inputs)
      outputs = [
        of_one[0] for of_one in results.disassemble_into_single_device_arrays()
      ]
      # The executable has used up the inputs that it updates.
      for output, place in self._updates:
        self._inputs[place] = outputs[output]
    return jax.block_until_ready(outputs)


def run(folder, rounds=30, steps=1, jobs=1, models=None, progress=print):
  """Times the steps of a folder, by turns within each model.

  Args:
    folder: that `bench_step_hlo.export` wrote.
    rounds: how often each is timed.
    steps: how many are run in each round, one after the other, before the
      clock is read.
    jobs: how many are compiled at a time.
    models: which models; all by default.
    progress: called with a line of words now and then.

  Yields:
    For each model, a list of dicts with `model`, `variant` and `batch`, the
    `median_ms` of one step, the `ratio` to the step of the same model without
    privacy, `compile_s`, and whether the outputs of the first step agree with
    those of TensorFlow.
  """
  with open(os.path.join(folder, 'steps.json'), encoding='utf-8') as file:
    listed = json.load(file)['steps']
  known = dict.fromkeys(entry['model'] for entry in listed)
  for model in known if models is None else models:
    of_model = [entry for entry in listed if entry['model'] == model]
    yield _run_model(folder, of_model, rounds, steps, jobs, progress)


def _run_model(folder, listed, rounds, steps, jobs, progress):
  # Threads may compile; to read a module in several of them crashes.
  loaded = [Step(folder, e['file'], e['updates']) for e in listed]

  def compile_one(entry, step):
    step.compile()
    progress(f'compiled in {step.compile_s:.0f} s: {entry["file"]}')

  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    list(pool.map(compile_one, listed, loaded))
  result = []
  for entry, step in zip(listed, loaded):
    means = entry['mean_outputs']
    found = [float(np.mean(x)) for x in step()[: len(means)]]
    result.append(
      {
        'model': entry['model'],
        'variant': entry['variant'],
        'batch': entry['inputs'][0]['shape'][0],
        'compile_s': step.compile_s,
        'agrees': bool(np.allclose(found, means, **_TOLERANCE)),
      }
    )
  times = [[] for _ in loaded]
  for i in range(rounds + 2):
    for step, found in zip(loaded, times):
      start = time.perf_counter()
      step(steps)
      if i >= 2:
        found.append(1e3 * (time.perf_counter() - start) / steps)
  for entry, found in zip(result, times):
    entry['median_ms'] = statistics.median(found)
  floors = [
    entry['median_ms']
    for entry in result
    if entry['variant'].startswith('not private')
  ]
  for entry in result if floors else []:
    entry['ratio'] = entry['median_ms'] / floors[0]
  return result


def run_peers(folder, rounds, steps, timeout_s):
  """Trains the folder's masked autoregressive flow in other frameworks.

  Args:
    folder: as in `run`; its `steps.json` has the `shapes` of the models.
    rounds: as in `run`.
    steps: as in `run`.
    timeout_s: seconds after which a framework is given up.

  Yields:
    Pairs of a framework and a dict of `median_ms`, by way to train, and
    `versions`; or of `skipped`, the reason.
  """
  with open(os.path.join(folder, 'steps.json'), encoding='utf-8') as file:
    shape = json.load(file)['shapes']['maf']
  request = {**shape, 'rounds': rounds, 'slow_rounds': rounds, 'steps': steps}
  for name, (script, environment) in _PEER_SCRIPTS.items():
    try:
      process = subprocess.run(
        [sys.executable, os.path.join(_PEERS, script), json.dumps(request)],
        capture_output=True,
        check=True,
        env={**os.environ, **environment},
        text=True,
        timeout=timeout_s,
      )
    except subprocess.TimeoutExpired:
      yield name, {'skipped': f'not done in {timeout_s} s'}
    except subprocess.CalledProcessError as error:
      last = ''.join(error.stderr.strip().splitlines()[-1:])
      yield name, {'skipped': last}
    else:
      yield name, json.loads(process.stdout.splitlines()[-1])


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('folder')
  parser.add_argument('--output', help='JSON file to write')
  parser.add_argument('--rounds', type=int, default=30)
  parser.add_argument('--steps', type=int, default=1, help='in a round')
  parser.add_argument('--jobs', type=int, default=1, help='compiled at a time')
  parser.add_argument('--models', nargs='*', help='all by default')
  parser.add_argument('--peers', action='store_true')
  parser.add_argument('--peer_timeout_s', type=float, default=600)
  options = parser.parse_args()
  # The state of the noise has 64 bits.
  jax.config.update('jax_enable_x64', True)
  result = {
    'command': ' '.join(sys.argv),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'jax': jax.__version__,
    'rounds': options.rounds,
    'steps_in_a_round': options.steps,
    'peers': {},
    'steps': [],
  }

  def write():
    if options.output:
      with open(options.output, 'w', encoding='utf-8') as file:
        json.dump(result, file, indent=2)
        file.write('\n')

  # JAX takes most of a GPU's memory for itself: peers go first.
  if options.peers:
    timing = options.folder, options.rounds, options.steps
    for name, found in run_peers(*timing, options.peer_timeout_s):
      result['peers'][name] = found
      write()
      print(f'{name}: {found}', flush=True)
  device = jax.devices()[0]
  result['device'] = f'{device.platform}: {device.device_kind}'
  for of_model in run(
    options.folder,
    options.rounds,
    options.steps,
    options.jobs,
    options.models,
    lambda line: print(time.strftime('%H:%M:%S'), line, flush=True),
  ):
    result['steps'] += of_model
    write()
    for entry in of_model:
      name = f'{entry["model"]} {entry["batch"]}, {entry["variant"]}'
      ratio = entry.get('ratio', float('nan'))
      agrees = 'agrees' if entry['agrees'] else 'DIFFERS from TensorFlow'
      print(f'{name:54} {entry["median_ms"]:9.3f} ms  x {ratio:5.2f}  {agrees}')
    sys.stdout.flush()
  print(result['device'])


if __name__ == '__main__':
  main()
