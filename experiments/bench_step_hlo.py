"""Writes compiled training steps for machines without TensorFlow.

`run_hlo.py` times them there. A folder holds, for each step, `NAME.hlo`, a
serialized HLO module, and `NAME.npz`, its inputs in order; `steps.json` names
them, with the shapes of the inputs and a check of the outputs.
"""

from __future__ import annotations

import os
import re

import numpy as np
import tensorflow as tf

from experiments import bench_step_cases as cases
from experiments.run_record import versions, write_json

_LAYOUT = re.compile(r'entry_computation_layout=\{\((.*?)\)->')
_INPUT = re.compile(r'([a-z]+\d*)\[([\d,]*)\]')
# An output that takes the place of an input: a variable after the step.
_UPDATE = re.compile(r'\{(\d+)\}: \((\d+), \{\}, \w+-alias\)')
_DTYPES = {
  'f16': 'float16',
  'f32': 'float32',
  'f64': 'float64',
  'pred': 'bool',
  's32': 'int32',
  's64': 'int64',
  'u32': 'uint32',
  'u64': 'uint64',
}


def export(folder, models=None, variants=None, shapes=None, progress=None):
  """Writes the steps that XLA compiles.

  Args:
    folder: made where it is not there.
    models: which of `bench_step_cases.MODELS`; all by default.
    variants: names of variants; by default all of ours, and without privacy.
    shapes: a dict of model -> what to change in its shape.
    progress: called with a line of words now and then.

  Returns:
    What `steps.json` holds: `versions`, `shapes` by model, and `steps`, a list
    of dicts. In each,
    `inputs` has dtypes and shapes; `updates` pairs of an output and the input
    whose place it takes in the next step; `mean_outputs` one number
    for each of the first outputs, the variables after the first step.
  """
  os.makedirs(folder, exist_ok=True)
  # The library trains at no lower precision on a GPU; what is compiled for one
  # says so in each product of matrices.
  tf.config.experimental.enable_tensor_float_32_execution(False)
  steps = []
  for model in cases.MODELS if models is None else models:
    known = [
      name
      for name in cases.variants(model, tf_privacy=False)
      if name.endswith(cases.XLA)
    ]
    for variant in known if variants is None else variants:
      shape = (shapes or {}).get(model, {})
      step = cases.make_step(model, variant, **shape)
      name = re.sub(r'\W+', '_', f'{model} {variant}')
      written = _write(step, os.path.join(folder, name))
      about = {'model': model, 'variant': variant, 'file': name}
      steps.append({**about, **written})
      if progress:
        progress(f'written: {name}')
  result = {
    'steps': steps,
    'shapes': {
      model: {**shape, **(shapes or {}).get(model, {})}
      for model, shape in cases.MODELS.items()
    },
    'versions': versions(),
  }
  write_json(os.path.join(folder, 'steps.json'), result)
  return result


def _write(step, path):
  """Writes one step; returns the shapes of its inputs and its outputs."""

  @tf.function(jit_compile=True)
  def run(data):
    step.train_step(data)
    return [tf.identity(v) for v in step.variables]

  compiler_ir = run.experimental_get_compiler_ir(*step.data)
  inputs = _inputs(run.get_concrete_function(*step.data), step.data)
  head = compiler_ir(stage='hlo').splitlines()[0]
  inputs = _those_of_hlo(inputs, head)
  with open(path + '.hlo', 'wb') as file:
    file.write(compiler_ir(stage='hlo_serialized'))
  np.savez_compressed(path + '.npz', *inputs)
  outputs = [output.numpy() for output in run(*step.data)]
  return {
    'inputs': [{'dtype': str(x.dtype), 'shape': list(x.shape)} for x in inputs],
    'updates': [[int(n) for n in pair] for pair in _UPDATE.findall(head)],
    'mean_outputs': [float(np.mean(x)) for x in outputs],
  }


def _inputs(function, data):
  """Returns the values of all inputs of a concrete function."""
  values = [x.numpy() for x in tf.nest.flatten(data)]
  for x in function.captured_inputs:
    if x.dtype == tf.resource:
      dtype = x._handle_data.shape_and_type[0].dtype
      x = tf.raw_ops.ReadVariableOp(resource=x, dtype=dtype)
    values.append(x.numpy())
  return values


def _those_of_hlo(inputs, head):
  """Returns the inputs that the module has: constants are compiled in.

  Args:
    inputs: arrays, those of the concrete function.
    head: first line of the module's text, with the types of its inputs.

  Raises:
    ValueError: if the inputs of the module are not among them, in order.
  """
  wanted = [
    (_DTYPES[dtype], tuple(int(n) for n in sizes.split(',') if n))
    for dtype, sizes in _INPUT.findall(_LAYOUT.search(head).group(1))
  ]
  rest = iter(inputs)
  found = []
  for dtype, shape in wanted:
    match = (x for x in rest if (str(x.dtype), x.shape) == (dtype, shape))
    value = next(match, None)
    if value is None:
      raise ValueError(
        f'Input {len(found)} of the module, {dtype} {list(shape)}, is none of '
        'the inputs of the function.'
      )
    found.append(value)
  return found
