"""Keras losses as one number per example, whatever their reduction."""

from __future__ import annotations

import copy
import functools
from typing import Any

import tensorflow as tf

from tfdpflows._autograph import converted
from tfdpflows._keras import keras, tfp

_HINGES = (keras.losses.hinge, keras.losses.squared_hinge)


class RowLosses:
  """What `compile(loss=...)` takes, evaluated for every example by itself.

  Keras averages over the batch and over all else at once; here everything but
  the batch is averaged (summed, where the loss says `reduction='sum'`), over
  what a mask of the outputs leaves of the example. The weight of one example
  does not depend on the others.

  Args:
    loss: name, function or `tf.keras.losses.Loss`; for several outputs also a
      list or dict of them, `None` for outputs without a loss.
    loss_weights: a list or dict of numbers, or `None`.
  """

  def __init__(self, loss: Any, loss_weights: Any = None):
    self._loss = loss
    self._loss_weights = loss_weights

  def __call__(self, y, outputs, names=None):
    """Returns `[batch]`; `names` are of the outputs, where they are a list."""
    flat = tf.nest.flatten(outputs)
    if isinstance(outputs, dict):
      names = sorted(outputs)
    elif names is None or len(names) != len(flat):
      names = list(range(len(flat)))
    losses = _for_each(self._loss, names, 'loss')
    targets = _for_each(y, names, 'targets')
    weights = [1.0] * len(flat)
    if self._loss_weights is not None:
      weights = _for_each(self._loss_weights, names, 'loss_weights')
    rows, usable = [], []
    for loss, target, output, weight in zip(losses, targets, flat, weights):
      if loss is None:
        continue
      if target is None and isinstance(y, dict):
        raise ValueError(
          f'There are targets for {sorted(y, key=str)}, and a loss for each of '
          f'the outputs {list(names)}: give targets for all, or a dict of the '
          'losses of those to train.'
        )
      values, known = _rows(loss, target, output)
      rows.append(tf.cast(weight, output.dtype) * values)
      usable += [] if known is None else [known]
    total = tf.add_n(rows)
    for known in usable:
      total = left_out(total, known)
    return total


def left_out(losses: tf.Tensor, usable: tf.Tensor) -> tf.Tensor:
  """Returns losses of which those not usable count for nothing.

  They are NaN, which no sum takes in, and no gradient flows to where they come
  from. Both are `[batch]`.
  """
  nan = tf.fill(tf.shape(losses), tf.constant(float('nan'), losses.dtype))
  return tf.where(usable, losses, nan)


def _for_each(spec, names, what):
  """Returns one entry per output of a list, a dict, or one for all."""
  if isinstance(spec, dict):
    unknown = sorted(set(spec) - set(names), key=str)
    if unknown:
      raise ValueError(
        f'There are {what} for {unknown}; the outputs are {list(names)}.'
      )
    return [spec.get(name) for name in names]
  if isinstance(spec, (list, tuple)):
    if len(spec) != len(names):
      raise ValueError(
        f'There are {len(spec)} {what} for {len(names)} outputs.'
      )
    return list(spec)
  return [spec] * len(names)


def _rows(loss, y, output):
  """Returns one loss per row of one output, and which rows have one."""
  name = getattr(loss, 'name', getattr(loss, '__name__', loss))
  loss = keras.losses.get(loss)
  if y is None:
    raise ValueError(f'The loss {name} has no targets: fit(x, y).')
  # Layers of TFP give distributions, and losses may ask for a log-density.
  given = output if isinstance(output, tfp.distributions.Distribution) else None
  y, output = tf.convert_to_tensor(y), tf.convert_to_tensor(output)
  mask = getattr(output, '_keras_mask', None)
  # As Keras does: [batch] meets [batch, 1], and not [batch, batch].
  if y.shape.rank == 1 and output.shape.rank == 2:
    y = y[:, None]
  if y.dtype.is_floating == output.dtype.is_floating:
    y = tf.cast(y, output.dtype)
  y, usable, ignored = _labels(loss, y, output, mask)
  call = loss.call if isinstance(loss, keras.losses.Loss) else loss
  function, options = _function(loss)
  if function in _HINGES:
    call = _by_label(loss, function)
  if ignored is None:
    values = converted(call)(y, output if given is None else given)
  else:
    # Keras would take such labels out of the batch, whose size XLA must know.
    values = function(y, output, **{**options, 'ignore_class': None})
    ignored = tf.reshape(ignored, tf.shape(values))
    values = tf.where(ignored, tf.zeros_like(values), values)
  return _over_rows(loss, name, values, mask), usable


def _by_label(loss, function):
  """Returns a hinge loss that does not ask whether all labels are 0 or 1."""

  def own(y, output):
    missing = tf.maximum(1.0 - y * output, 0.0)
    if function is not keras.losses.hinge:
      missing = tf.square(missing)
    return tf.reduce_mean(missing, -1)

  if not isinstance(loss, keras.losses.Loss):
    return own
  loss = copy.copy(loss)
  loss.fn = own
  return loss.call


def _labels(loss, y, output, mask):
  """Returns targets that the loss can be computed for, and of which rows.

  Keras looks the output up at labels, and fails for all rows if one of them is
  no class. Such labels become 0. All else that losses make of unusual targets
  is a number, or NaN. What a mask of the output leaves out needs no class.

  Also returns which rows have a loss, bool `[batch]`, or `None` for all; and
  which labels are to be ignored, or `None` for those that the loss knows.
  """
  function, options = _function(loss)
  if function in _HINGES:
    # Keras asks whether all labels of the batch are 0 or 1, so that one decides
    # over all others. Here each label is -1 if it is 0.
    y = tf.cast(y, output.dtype)
    return tf.where(tf.equal(y, 0), -tf.ones_like(y), y), None, None
  sparse = (
    function is keras.losses.sparse_categorical_crossentropy
    or isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
  )
  if not sparse or options.get('axis', -1) != -1:
    return y, None, None
  labels = tf.cast(y, tf.int64)
  classes = tf.cast(tf.shape(output)[-1], tf.int64)
  known = tf.logical_and(labels >= 0, labels < classes)
  if y.dtype.is_floating:
    known = tf.logical_and(known, tf.math.is_finite(y))
  kept, ignored = known, None
  if options.get('ignore_class') is not None:
    ignored = tf.equal(labels, int(options['ignore_class']))
    kept = tf.logical_or(known, ignored)
  fine = kept
  if mask is not None and mask.shape.rank <= kept.shape.rank:
    fine = tf.logical_or(kept, tf.logical_not(_of_rank(mask, kept, tf.bool)))
  usable = tf.reduce_all(fine, list(range(1, kept.shape.rank)))
  overridden = (
    isinstance(loss, keras.losses.Loss)
    and type(loss).call is not keras.losses.SparseCategoricalCrossentropy.call
  )
  if ignored is not None and not overridden:
    return tf.where(known & ~ignored, y, tf.zeros_like(y)), usable, ignored
  return tf.where(kept, y, tf.zeros_like(y)), usable, None


def _function(loss):
  """Returns the function of a loss, and the options that it gets."""
  if isinstance(loss, functools.partial) and not loss.args:
    return loss.func, loss.keywords
  if isinstance(loss, keras.losses.Loss):
    return getattr(loss, 'fn', loss), getattr(loss, '_fn_kwargs', {})
  return loss, {}


def _over_rows(loss, name, values, mask):
  """Returns `[batch]`, from the losses of an output."""
  if not tf.is_tensor(values):
    raise ValueError(
      f'The loss {name} gives {values!r}, and must give one number per '
      'example, as a tensor that it computes from targets and outputs.'
    )
  if values.shape.rank == 0:
    raise ValueError(
      f'The loss {name} gives one number for the whole batch, and must give '
      'one per example: do not average over the first axis.'
    )
  axes = list(range(1, values.shape.rank))
  summed = getattr(loss, 'reduction', None) == keras.losses.Reduction.SUM
  if mask is None or not axes:
    if mask is not None and mask.shape.rank == 1:
      values *= tf.cast(mask, values.dtype)
    reduce = tf.reduce_sum if summed else tf.reduce_mean
    return reduce(values, axes) if axes else values
  mask = _of_rank(mask, values, values.dtype)
  mask = tf.broadcast_to(mask, tf.shape(values))
  total = tf.reduce_sum(tf.where(mask > 0, values * mask, 0.0), axes)
  if summed:
    return total
  return tf.math.divide_no_nan(total, tf.reduce_sum(mask, axes))


def _of_rank(mask, values, dtype):
  """Returns a mask of the first axes of values, to broadcast with them."""
  missing = [1] * max(0, values.shape.rank - mask.shape.rank)
  shape = tf.concat([tf.shape(mask), missing], 0)
  return tf.reshape(tf.cast(mask, dtype), shape)
