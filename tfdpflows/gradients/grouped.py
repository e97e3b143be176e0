"""Convolutions in groups, which the parallel loop of TensorFlow gets wrong.

`tape.jacobian` computes the gradients of all losses at once, by a converter for
each kind of operation (`parallel_for.pfor`). That of `Conv2DBackpropFilter`
puts the losses next to the output channels, as if all of these belonged to one
group: with groups, examples get parts of each other's gradients, and of wrong
channels. It also drops explicit paddings, an error when it runs. And functions
that XLA must compile are taken apart and run without it, where a CPU has no
`Conv3DBackpropFilterV2` in groups.

`mend` puts converters in front of these two that take one loss after another,
in a while loop, for what TensorFlow's cannot do. All else is as fast as before.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

_MUST_COMPILE = '_XlaMustCompile'


@functools.cache
def mend() -> None:
  """Mends the parallel loop, once, in the whole process."""
  known = pfor._pfor_converter_registry
  _put_in_front(known, 'Conv2DBackpropFilter', _in_groups_or_padded)
  for call in ('PartitionedCall', 'StatefulPartitionedCall'):
    _put_in_front(known, call, _compiles_conv3d)


def _put_in_front(known, kind, refused):
  converter = known[kind]

  def convert(pfor_input: Any) -> Any:
    if refused(pfor_input):
      # What this tells TensorFlow to do: a while loop over this operation.
      raise pfor.ConversionNotImplementedError('it would be converted wrongly.')
    return converter(pfor_input)

  known[kind] = convert


def _in_groups_or_padded(pfor_input):
  """Whether a gradient by filters has groups, may have, or own paddings."""
  op = pfor_input.op
  if op.get_attr('padding') == b'EXPLICIT':
    return True
  inputs, filters = op.inputs[0].shape, op.outputs[0].shape
  if inputs.rank is None or filters.rank is None:
    return True
  channels = inputs[1 if op.get_attr('data_format') == b'NCHW' else 3]
  return channels is None or channels != filters[2]


def _compiles_conv3d(pfor_input):
  """Whether XLA must compile a function with convolutions in 3 dimensions.

  With or without groups: they have no converter, so that taking the function
  apart would make nothing faster.
  """
  op = pfor_input.op
  if _MUST_COMPILE not in op.node_def.attr:
    return False
  if not op.get_attr(_MUST_COMPILE):
    return False
  name = tf.compat.as_bytes(op.get_attr('f').name)
  function = op.graph._get_function(name)
  kinds = [inner.type for inner in function.graph.get_operations()]
  return any(kind.startswith('Conv3D') for kind in kinds)
