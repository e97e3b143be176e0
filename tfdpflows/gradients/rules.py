"""From what a tape noted to per-example norms and weighted sums.

For one use of a masked linear map, with input `a_i` and output gradient `d_i`
of example i and 0/1 mask M, the gradient by the kernel is `M * (a_i d_i^T)`:
its squared norm is `sum_o (a_i^2 M)_o d_io^2` and the sum of all of them with
weights c is `M * (a^T diag(c) d)`, so that none is ever stored. The norm needs
all uses of a variable together; where that has no closed form, this variable's
per-example gradient alone is stored.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import logging


class PerExampleGradients:
  """Gradients of `[batch]` losses by variables, one per example, unevaluated.

  Made by `PerExampleTape.per_example_gradients`. Nothing here clips:
  `tfdpflows.gradients.Flat` does, with `squared_norms` and `weighted_sum`.

  Attributes:
    variables: the variables, in the order of all lists below.
  """

  def __init__(self, tape, loss, variables, records):
    _check_loss(loss)
    self.variables = list(variables)
    self._squared_norms = None
    known = {v.ref() for v in self.variables}
    records = [r for r in records if _variables_of(r) & known]
    for record in records:
      if not record.output.shape[:1].is_compatible_with(loss.shape):
        raise ValueError(
          f'The loss has {loss.shape[0]} examples, but a parameter met a '
          f'batch of shape {record.output.shape}: axis 0 must be the examples.'
        )
    targets = [r.output for r in records] + self.variables
    # One backward pass for all of it. What arrives at a variable itself came
    # by a way that no primitive noted.
    gradients = tape.gradient(loss, targets)
    outputs, direct = gradients[: len(records)], gradients[len(records) :]
    self._terms = []
    for variable, seen in zip(self.variables, direct):
      self._terms.append(
        _term(tape, loss, variable, seen is not None, zip(records, outputs))
      )

  @classmethod
  def from_jacobian(cls, tape, loss, variables):
    """The slow way, for a plain `tf.GradientTape` that is used up by it."""
    _check_loss(loss)
    self = cls.__new__(cls)
    self.variables = list(variables)
    self._squared_norms = None
    self._terms = []
    for variable, jacobian in zip(
      variables, tape.jacobian(loss, self.variables)
    ):
      if jacobian is None:
        raise _no_gradient(variable)
      self._terms.append(_StoredTerm(tf.convert_to_tensor(jacobian)))
    return self

  def squared_norms(self):
    """Returns `[batch]`: the squared l2 norm over all variables together."""
    if self._squared_norms is None:
      self._squared_norms = tf.add_n([t.squared_norms() for t in self._terms])
    return self._squared_norms

  def weighted_sum(self, weights):
    """Returns `sum_i weights[i] * gradient_i`, one tensor per variable.

    Args:
      weights: `[batch]`. Examples of weight exactly 0 are left out before the
        sum, whatever they hold, so that `0 * nan` cannot leak.
    """
    # Where anything that enters a gradient is not finite, nor is its norm.
    # That is rare, and leaving rows out costs a pass over all activations.
    return tf.cond(
      tf.reduce_all(tf.math.is_finite(self.squared_norms())),
      lambda: [t.weighted_sum(weights, lambda x: x) for t in self._terms],
      lambda: [
        t.weighted_sum(weights, lambda x: _zero_left_out(x, weights))
        for t in self._terms
      ],
    )

  def materialise(self):
    """Returns the gradients themselves: `[batch] + variable.shape` each."""
    return [term.materialise() for term in self._terms]


class _LinearTerm:
  """Kernel of linear maps with one mask: k uses, each [batch, t, in/out]."""

  def __init__(self, mask, inputs, gradients):
    self._mask = mask
    self._a = inputs[0] if len(inputs) == 1 else tf.concat(inputs, 1)
    self._d = gradients[0] if len(inputs) == 1 else tf.concat(gradients, 1)
    self._uses = self._a.shape[1]

  def squared_norms(self):
    a, d = self._a, self._d
    if self._uses == 1:
      a, d = a[:, 0], d[:, 0]
      if self._mask is None:
        a = tf.reduce_sum(a * a, 1, keepdims=True)
        d = tf.reduce_sum(d * d, 1, keepdims=True)
      else:
        columns, members = _column_groups(self._mask)
        a, d = tf.matmul(a * a, columns), tf.matmul(d * d, members)
      # A tiny input can meet a huge gradient: what its square lost when it
      # was rounded to zero is added again.
      lost = np.finfo(self._a.dtype.as_numpy_dtype).tiny
      a, d = a + self._a.shape[2] * lost, d + self._d.shape[2] * lost
      return tf.reduce_sum(a * d, 1)
    # Cross terms may cancel. In float64, and with what rounding may still
    # hide of the norm added to it, no example whose uses nearly cancel can
    # pass for one of norm zero, and escape the clip.
    a, d = tf.cast(a, tf.float64), tf.cast(d, tf.float64)
    if self._mask is None:
      aa = tf.matmul(a, a, transpose_b=True)
      dd = tf.matmul(d, d, transpose_b=True)
      squared = tf.reduce_sum(aa * dd, [1, 2])
    elif self._uses is not None and self._uses <= _MAX_PAIRED_USES:
      # |sum_t M * a_t d_t^T|^2: the masked products of all pairs of uses.
      aa = a[:, :, None] * a[:, None, :]
      dd = d[:, :, None] * d[:, None, :]
      aa = tf.tensordot(aa, tf.cast(self._mask, tf.float64) ** 2, 1)
      squared = tf.reduce_sum(aa * dd, [1, 2, 3])
    else:
      return _squared_norms(self.materialise())
    lengths = tf.norm(a, axis=2) * tf.norm(d, axis=2)
    terms = 4 * (a.shape[2] + d.shape[2])
    # The sum itself is made in the precision of the activations: what cancels
    # in it leaves rounding errors that have a length too.
    rounding = (32 * np.finfo(self._a.dtype.as_numpy_dtype).eps) ** 2
    rounding += terms * np.finfo(np.float64).eps
    hidden = rounding * tf.reduce_sum(lengths, 1) ** 2
    return tf.cast(tf.maximum(squared, 0) + hidden, self._a.dtype)

  def weighted_sum(self, weights, clean):
    if self._uses != 1:
      weights = tf.repeat(weights, tf.shape(self._a)[1])
    a, d = _rank_2(clean(self._a)), _rank_2(clean(self._d))
    total = tf.matmul(a, d * weights[:, None], transpose_a=True)
    return total if self._mask is None else total * self._mask

  def materialise(self):
    gradients = tf.matmul(self._a, self._d, transpose_a=True)
    return gradients if self._mask is None else gradients * self._mask


class _StoredTerm:
  """A variable whose per-example gradients exist as a tensor."""

  def __init__(self, gradients):
    self._gradients = gradients

  def squared_norms(self):
    return _squared_norms(self._gradients)

  def weighted_sum(self, weights, clean):
    return tf.tensordot(weights, clean(self._gradients), 1)

  def materialise(self):
    return self._gradients


def _column_groups(mask):
  """Returns a mask's distinct columns `[in, k]`, and who has them `[out, k]`.

  Outputs with equal columns share `a^2 M`, and the masks of autoregressive
  networks have no more distinct columns than there are degrees.
  """
  key = id(mask)
  if key not in _GROUPS:
    columns, inverse = np.unique(
      tf.get_static_value(mask), axis=1, return_inverse=True
    )
    members = np.eye(columns.shape[1], dtype=columns.dtype)[inverse.ravel()]
    # Keeping the mask keeps its id from being given to another. The squares
    # differ from the mask where it is not 0/1.
    _GROUPS[key] = (mask, columns**2, members)
  return _GROUPS[key][1:]


_GROUPS = {}

# Above this many uses of one masked kernel, all pairs of uses cost more than
# storing its per-example gradient.
_MAX_PAIRED_USES = 8


def _variables_of(record):
  parts = (
    (record.parameter,)
    if hasattr(record, 'parameter')
    else (record.kernel, record.bias)
  )
  return {v.ref() for v in parts if isinstance(v, tf.Variable)}


def _term(tape, loss, variable, seen_directly, records_and_gradients):
  """Returns the term of one variable: all its uses, summed before the norm."""
  masks, inputs, outputs, stored = [], [], [], []
  for record, gradient in records_and_gradients:
    if gradient is None:  # The output never reached the loss.
      continue
    if hasattr(record, 'parameter'):
      if record.parameter is variable:
        stored.append(gradient)
      continue
    gradient = _rank_3(gradient)
    if record.kernel is variable:
      masks.append(record.mask)
      inputs.append(_rank_3(record.inputs))
      outputs.append(gradient)
    if record.bias is variable:
      stored.append(tf.reduce_sum(gradient, 1))
  if seen_directly:
    _log_fallback(variable)
    stored.append(tf.convert_to_tensor(tape.jacobian(loss, variable)))
  if not (inputs or stored):
    raise _no_gradient(variable)
  one_mask = all(mask is masks[0] for mask in masks)
  if not stored and one_mask:
    return _LinearTerm(masks[0], inputs, outputs)
  for mask, a, d in zip(masks, inputs, outputs):
    stored.append(_LinearTerm(mask, [a], [d]).materialise())
  return _StoredTerm(tf.add_n(stored))


def _check_loss(loss):
  if loss.shape.rank != 1:
    raise ValueError(
      f'The loss has shape {loss.shape}; per-example gradients need one loss '
      'per example, shape [batch]. Do not average it first (in Keras: '
      '`reduction=NONE`).'
    )


def _no_gradient(variable):
  return ValueError(
    f'No gradient reaches the variable {variable.name}. Set '
    '`trainable = False` on what holds it, or use it in the loss.'
  )


def _rank_3(x):
  """[batch, ..., n] as [batch, t, n]."""
  if x.shape.rank == 2:
    return x[:, None]
  if x.shape.rank == 3:
    return x
  return tf.reshape(x, [tf.shape(x)[0], -1, x.shape[-1]])


def _rank_2(x):
  """[batch, t, n] as [batch * t, n]."""
  return x[:, 0] if x.shape[1] == 1 else tf.reshape(x, [-1, x.shape[-1]])


def _squared_norms(x):
  return tf.reduce_sum(tf.reshape(x * x, [tf.shape(x)[0], -1]), 1)


def _zero_left_out(x, weights):
  """Zeroes the examples of weight 0, also where they hold nan or inf."""
  kept = tf.reshape(weights != 0, [-1] + [1] * (x.shape.rank - 1))
  return tf.where(kept, x, tf.zeros_like(x))


_LOGGED = set()


def _log_fallback(variable):
  if variable.name not in _LOGGED:
    _LOGGED.add(variable.name)
    logging.info(
      'tfdpflows: %s %s met the loss outside `linear` and `per_example`; '
      'its per-example gradients come from tape.jacobian, which is slower.',
      variable.name,
      variable.shape,
    )
