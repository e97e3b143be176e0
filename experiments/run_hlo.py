"""Times training steps that `bench_step.py --export_hlo=DIR` wrote, under JAX.

On whatever accelerator JAX sees. Needs jax and numpy, and neither TensorFlow
nor this package:

  python experiments/run_hlo.py DIR --output=result.json
"""

import argparse
import json
import os
import statistics
import time

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client

# How far the mean of an output may be from TensorFlow's: the accelerator rounds
# otherwise. Adam's first step is the learning rate, 1e-3, in the direction of
# the noised gradient, so that other noise would show.
_TOLERANCE = {'rtol': 1e-3, 'atol': 1e-6}


class Step:
  """A module, compiled for the first device, and its inputs."""

  def __init__(self, folder, name, updates):
    with open(os.path.join(folder, name + '.hlo'), 'rb') as file:
      computation = xla_client.XlaComputation(file.read())
    module = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    device = jax.devices()[0]
    start = time.perf_counter()
    devices = xla_client._xla.DeviceList((device,))
    self._executable = xla_bridge.get_backend().compile_and_load(
      module, devices
    )
    self.compile_s = time.perf_counter() - start
    with np.load(os.path.join(folder, name + '.npz')) as arrays:
      values = [arrays[f'arr_{i}'] for i in range(len(arrays))]
    self._inputs = [jax.device_put(value, device) for value in values]

    self._updates = updates

  def __call__(self):
    results = self._executable.execute_sharded(self._inputs)
    outputs = jax.block_until_ready(
      [of_one[0] for of_one in results.disassemble_into_single_device_arrays()]
    )
    # The executable has used up the inputs that it updates.
    for output, place in self._updates:
      self._inputs[place] = outputs[output]
    return outputs


def run(folder, rounds=30):
  """Times all steps of a folder, by turns.

  Args:
    folder: that `bench_step_hlo.export` wrote.
    rounds: how often each is timed.

  Returns:
    A dict of `device`, `jax`, and `steps`, a list of dicts with `median_ms`,
    the `ratio` to the step of the same model without privacy, `compile_s`,
    and whether the outputs agree with those of TensorFlow.
  """
  # The state of the noise has 64 bits.
  jax.config.update('jax_enable_x64', True)
  with open(os.path.join(folder, 'steps.json'), encoding='utf-8') as file:
    listed = json.load(file)['steps']
  steps = {
    entry['file']: Step(folder, entry['file'], entry['updates'])
    for entry in listed
  }
  result = []
  for entry in listed:
    outputs = steps[entry['file']]()
    means = entry['mean_outputs']
    found = [float(np.mean(x)) for x in outputs[: len(means)]]
    close = np.allclose(found, means, **_TOLERANCE)
    result.append(
      {
        'model': entry['model'],
        'variant': entry['variant'],
        'compile_s': steps[entry['file']].compile_s,
        'agrees': bool(close),
      }
    )
  times = {name: [] for name in steps}
  for i in range(rounds + 2):
    for name, step in steps.items():
      start = time.perf_counter()
      step()
      if i >= 2:
        times[name].append(1e3 * (time.perf_counter() - start))
  for entry, found in zip(result, times.values()):
    entry['median_ms'] = statistics.median(found)
  floors = {
    entry['model']: entry['median_ms']
    for entry in result
    if entry['variant'].startswith('not private')
  }
  for entry in result:
    if entry['model'] in floors:
      entry['ratio'] = entry['median_ms'] / floors[entry['model']]
  device = jax.devices()[0]
  return {
    'device': f'{device.platform}: {device.device_kind}',
    'jax': jax.__version__,
    'rounds': rounds,
    'steps': result,
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('folder')
  parser.add_argument('--output', help='JSON file to write')
  parser.add_argument('--rounds', type=int, default=30)
  options = parser.parse_args()
  result = run(options.folder, options.rounds)
  print(result['device'])
  for entry in result['steps']:
    name = f'{entry["model"]}, {entry["variant"]}'
    ratio = entry.get('ratio', float('nan'))
    agrees = 'agrees' if entry['agrees'] else 'DIFFERS from TensorFlow'
    print(f'{name:46} {entry["median_ms"]:9.3f} ms  x {ratio:5.2f}  {agrees}')
  if options.output:
    with open(options.output, 'w', encoding='utf-8') as file:
      json.dump(result, file, indent=2)
      file.write('\n')


if __name__ == '__main__':
  main()
