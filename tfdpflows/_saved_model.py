"""SavedModels that are functions of the weights alone."""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2

# Name of the tables of categories, to which TensorFlow adds a counter.
TABLE = 'table_of_categories'
_COUNTED = re.compile(rf'^(\^?{TABLE})\d+')


def write(
  module: tf.Module, path: str | os.PathLike, signatures: dict[str, Any]
) -> None:
  """Writes a SavedModel, the same bytes for the same weights.

  TensorFlow numbers functions, and names tables, by counters and random numbers
  that depend on all that the process did before, such as the trials of a search
  or the batches that were empty. They are numbered anew.

  Args:
    module: what is saved.
    path: the folder.
    signatures: functions by name.
  """
  tf.saved_model.save(module, os.fspath(path), signatures=signatures)
  renumber(path)


def renumber(path: str | os.PathLike) -> None:
  """Numbers anew what a SavedModel numbers, see `write`."""
  file = os.path.join(path, 'saved_model.pb')
  with open(file, 'rb') as opened:
    model = saved_model_pb2.SavedModel.FromString(opened.read())
  (graph,) = model.meta_graphs
  library = graph.graph_def.library.function
  counted = sorted(
    (_counter(f.signature.name), f.signature.name) for f in library
  )
  renamed = {
    name: f'{name.rpartition("_")[0]}_{i}'
    for i, (_, name) in enumerate(counted)
  }
  _replace(model, renamed)
  for function in library:
    _rename_arguments(function)
  _number_attributes(graph.graph_def)
  ordered = sorted(library, key=lambda f: _counter(f.signature.name))
  copies = [type(f).FromString(f.SerializeToString()) for f in ordered]
  del library[:]
  library.extend(copies)
  with open(file, 'wb') as opened:
    opened.write(model.SerializeToString(deterministic=True))
  # It describes the file that was replaced.
  fingerprint = os.path.join(path, 'fingerprint.pb')
  if os.path.exists(fingerprint):
    os.remove(fingerprint)


def _rename_arguments(function):
  """Numbers the arguments whose names have counters.

  These are all of a body or branch, and elsewhere those that are captured: the
  names of others are those by which the functions are called.
  """
  signature = function.signature
  all_of_them = not signature.name.startswith('__')
  inputs, outputs = {}, {}
  for i, arg in enumerate(signature.input_arg):
    named = function.arg_attr[i].attr['_user_specified_name'].s
    if all_of_them or not named or named.isdigit():
      inputs[arg.name] = arg.name = f'argument_{i}'
  for i, arg in enumerate(signature.output_arg):
    if all_of_them:
      outputs[arg.name] = arg.name = f'result_{i}'

  def renamed(reference):
    name, colon, rest = reference.partition(':')
    return inputs.get(name, name) + colon + rest

  for node in function.node_def:
    for i, reference in enumerate(node.input):
      node.input[i] = renamed(reference)
  for name, reference in list(function.ret.items()):
    del function.ret[name]
    function.ret[outputs.get(name, name)] = renamed(reference)


def _number_attributes(graph):
  """Numbers tables and captured tensors, whose names are counters alone."""
  found = [
    node.attr['shared_name']
    for nodes in (graph.node, *(f.node_def for f in graph.library.function))
    for node in nodes
    if 'shared_name' in node.attr
  ] + [
    argument.attr['_user_specified_name']
    for function in graph.library.function
    for argument in function.arg_attr.values()
    if '_user_specified_name' in argument.attr
  ]
  names = sorted({int(a.s) for a in found if a.s.isdigit()})
  for attribute in found:
    if attribute.s.isdigit():
      attribute.s = b'%d' % names.index(int(attribute.s))


def _counter(name):
  """The number at the end of the name of a function, -1 without one."""
  digits = name.rpartition('_')[2]
  return int(digits) if digits.isdigit() else -1


def _replace(found, renamed):
  """Renames in all fields of a protocol buffer, keys of maps too."""
  if isinstance(found, tensor_pb2.TensorProto):  # Values, not names.
    return
  for field, value in found.ListFields():
    if field.message_type and field.message_type.GetOptions().map_entry:
      _replace_in_map(field, value, renamed)
    elif isinstance(value, message.Message):
      _replace(value, renamed)
    elif isinstance(value, (str, bytes)):
      if _new(value, renamed) != value:
        setattr(found, field.name, _new(value, renamed))
    elif hasattr(value, '__len__'):
      for i, item in enumerate(value):
        if isinstance(item, message.Message):
          _replace(item, renamed)
        elif _new(item, renamed) != item:
          value[i] = _new(item, renamed)


def _replace_in_map(field, value, renamed):
  if field.message_type.fields_by_name['value'].message_type:
    for item in value.values():
      _replace(item, renamed)
    for key in [k for k in value if _new(k, renamed) != k]:
      value[_new(key, renamed)].CopyFrom(value[key])
      del value[key]
    return
  for key, item in list(value.items()):
    new = _new(key, renamed), _new(item, renamed)
    if new != (key, item):
      del value[key]
      value[new[0]] = new[1]


def _new(value, renamed):
  """The new name, of bytes too, and numbers as they are."""
  if isinstance(value, bytes):
    text = value.decode('latin1')
    return _new(text, renamed).encode('latin1')
  if not isinstance(value, str):
    return value
  return renamed.get(value) or _COUNTED.sub(r'\1', value)
