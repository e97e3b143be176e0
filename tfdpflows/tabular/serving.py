"""SavedModels of table models that take and give raw values."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdpflows import _saved_model, atomic
from tfdpflows.tabular import model_card, numpy_streams
from tfdpflows.tabular.density import (
  BATCH,
  DRAWS,
  TableDensity,
  TableDistribution,
)
from tfdpflows.tabular.raw_values import RawTable

CARD = 'model_card.json'
_CARD_TEXT = 'model_card.md'
# All that an export writes, in its folder.
_EXPORTED = {CARD, _CARD_TEXT, 'saved_model.pb', 'variables', 'assets'}
_MOST_ROWS = 2**31 - 1


def save(
  path: str | os.PathLike, distribution: TableDistribution, table: RawTable
) -> None:
  """Writes the SavedModel, the same bytes for the same weights.

  Its random numbers are those that `TabularSynthesizer.sample` and `log_prob`
  draw with NumPy.
  """
  module = tf.Module(name='served_model')
  module._variables = distribution.exported_variables()
  module._table = table
  signatures = {'sample': _sample_of(distribution, table)}
  if isinstance(distribution, TableDensity):
    signatures['log_prob'] = _log_prob_of(distribution, table)
  _saved_model.write(module, path, signatures)


def _sample_of(distribution, table):
  """Returns the function that draws rows of raw values."""
  d = len(distribution.columns)

  @tf.function(
    autograph=False,
    input_signature=[
      tf.TensorSpec([], tf.int64, name='num_rows'),
      tf.TensorSpec([], tf.int64, name='seed'),
    ],
  )
  def _sample(num_rows, seed):
    checks = [
      tf.debugging.Assert(
        number >= 0, [f'{name} must be 0 or more, and is', number]
      )
      for number, name in ((num_rows, 'num_rows'), (seed, 'seed'))
    ]
    checks.append(
      tf.debugging.Assert(
        num_rows <= _MOST_ROWS, ['num_rows is too large:', num_rows]
      )
    )
    with tf.control_dependencies(checks):
      num_rows = tf.cast(num_rows, tf.int32)
    start, increment = numpy_streams.seeded(seed)

    def draw(_, size, state):
      state = numpy_streams.step(state, increment)
      bits = numpy_streams.halves(numpy_streams.word(state))
      # NumPy takes 2**31 from an unsigned number.
      bits = tf.bitwise.bitwise_xor(bits, tf.constant(2**31, tf.uint32))
      codes = distribution.draw(
        tf.reshape(size, [1]), tf.bitcast(bits, tf.int32)
      )
      return tf.reshape(codes, [size, d]), state

    codes = _in_parts(draw, num_rows, BATCH, [None, d], start)
    return table.decode(codes)

  return _sample


def _log_prob_of(density, table):
  """Returns the function that gives rows of raw values their log-density."""
  d, rows = len(density.columns), BATCH // DRAWS
  uniform_of = numpy_streams.UniformBlocks(0, DRAWS, rows, d)

  @tf.function(
    autograph=False,
    input_signature=[
      {
        name: tf.TensorSpec([None], column.dtype, name=name)
        for name, column in zip(table.names, table.columns)
      }
    ],
  )
  def _log_prob(values):
    codes = table.encode(values)

    def estimate(part, size, state):
      x = codes[part * rows : part * rows + size]
      x = tf.reshape(x, [size, d])
      uniform = tf.reshape(uniform_of(part, size), [DRAWS, size, d])
      return density.estimate_log_prob(x, uniform), state

    found = _in_parts(estimate, tf.shape(codes)[0], rows, [None], ())
    return {'log_prob': found}

  return _log_prob


@contextlib.contextmanager
def written_aside(path: str | os.PathLike, overwrite: bool) -> Iterator[str]:
  """Yields a folder that becomes `path` unless an error occurs.

  Raises:
    FileExistsError: if `path` exists, without `overwrite` or if it is no
      exported model.
  """
  target = os.path.abspath(path)
  parent, name = os.path.split(target)
  atomic.check_replaceable(
    path, overwrite, _is_exported, 'a model that tfdpflows exported'
  )
  there = os.listdir(target) if os.path.isdir(target) else []
  if other := sorted(set(there) - _EXPORTED):
    raise FileExistsError(
      f'{path} holds an exported model and {other[0]!r}, which would be lost: '
      'move that elsewhere, or choose another name.'
    )
  os.makedirs(parent, exist_ok=True)
  with atomic.folder_aside(parent, name) as aside:
    yield aside
    atomic.publish_folder(aside, target)


def _is_exported(folder):
  try:
    with open(os.path.join(folder, CARD), encoding='utf-8') as file:
      card = json.load(file)
  except (OSError, ValueError):
    return False
  return isinstance(card, dict) and card.get('format') == model_card.FORMAT


def write_card(folder: str, card: dict[str, Any], text: str) -> None:
  """Writes a model card, as JSON and as Markdown."""
  content = json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False)
  for name, written in ((CARD, f'{content}\n'), (_CARD_TEXT, text)):
    with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
      file.write(written)


def _in_parts(function, num_rows, size, shape, state):
  """Concatenates what a function gives for parts of rows, one at a time.

  It is called with the number of the part, how many rows it has, and a state
  that it returns too.
  """
  count = tf.maximum((num_rows - 1) // size + 1, 1)
  parts = tf.TensorArray(
    tf.float32, count, infer_shape=False, element_shape=shape
  )

  def step(i, parts, state):
    found, state = function(i, tf.minimum(num_rows - i * size, size), state)
    return i + 1, parts.write(i, found), state

  _, parts, _ = tf.while_loop(
    lambda i, *_: i < count,
    step,
    (0, parts, state),
    parallel_iterations=1,
  )
  return tf.ensure_shape(parts.concat(), shape)
