"""Whether an example changes what a model makes of another: tried.

Clipping the gradient of each example bounds what an example adds to the sum
only where it adds nothing by another's. A try on few rows finds mistakes and
proves nothing. Where it cannot tell, it says no.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows.models import other_weights

# Losses may cancel to nothing but rounding; gradients tell of smaller ones.
_LOSS = 0.1
_DECLARE = (
  'If you know that no example changes the loss of another, whatever the size '
  'of the batch, declare it: examples_apart=True.'
)


def check(trial, resting, variables, rows, others, *, declared, what):
  """Tries examples apart, at the weights as they are and at others.

  Loss, gradient and layers' outputs of an example must stay when all other
  examples change, become copies of it, or one is missing.

  Args:
    trial: a `Trial` of the training step.
    resting: the same with random layers at rest, for batches of other sizes,
      which get other random numbers; or `trial` again.
    variables: the trainable variables.
    rows: rows as the trials take them.
    others: as `rows`, different in every row.
    declared: whether to take what chance hides for granted.
    what: what computes the losses, at the start of a sentence.

  Raises:
    ValueError: naming the layer that mixes examples or keeps something of
      them; or if it could not be tried.
  """
  changed = trial.find_changes(rows, others)
  if resting is not trial:
    changed += resting.find_changes(rows, others)
  if changed:
    raise ValueError(
      f'Training changes {", ".join(dict.fromkeys(changed))} by itself, from '
      'private rows and without noise. Set `trainable = False` on the layer, '
      'if it then stops, or replace it (a recurrent layer must not be '
      'stateful).'
    )
  try:
    _check_weights(trial, resting, variables, rows, others, declared, what)
  finally:
    trial.set_back()
    resting.set_back()


def _check_weights(trial, resting, variables, rows, others, declared, what):
  def finite():
    return all(np.all(np.isfinite(r.losses)) for r in trial.pair(rows, rows, 0))

  if not finite():
    raise ValueError(
      f'{what} is not finite on rows made up from shapes and dtypes, so that '
      'it cannot be tried whether examples are kept apart. Give public rows '
      'that the model can work with: example=...'
    )
  one = _Try(trial, resting, rows, others, declared, what)
  one.check()
  for sign in (1, -1):
    with other_weights.opened(variables, finite, sign) as other:
      if other:
        one.check()
      else:
        logging.warning(
          'tfdpflows: with any other weights %s is not finite on rows made up '
          'for it; examples apart was tried at the initial weights only.',
          _lower(what),
        )
  # After all weights: those that open a gate tell which layer it is.
  error = one.mixing or one.untold
  if error is not None:
    raise error


class _Try:
  """Tries at one setting of the weights after the other.

  Attributes:
    mixing: the error, where no layer is known by name.
    untold: the error that it could not be tried.
  """

  def __init__(self, trial, resting, rows, others, declared, what):
    self._trial, self._resting = trial, resting
    self._rows, self._others = rows, others
    self._declared, self._what = declared, what
    self.mixing = self.untold = None

  def check(self):
    rows, others = self._rows, self._others
    batch = tf.nest.flatten(rows)[0].shape[0]
    if not _alike(*self._trial.pair(rows, rows, 0), slice(None)):
      self._cannot_tell(
        'draws random numbers in a way that could not be repeated'
      )
      return
    for i in range(batch):
      self._compare(*self._trial.pair(rows, _kept(rows, others, i), i), i)
    copies = tf.nest.map_structure(
      lambda x: tf.repeat(x[:1], batch, axis=0), rows
    )
    self._compare(*self._trial.pair(rows, copies, 0), 0)
    short = tf.nest.map_structure(lambda x: x[:-1], rows)
    whole, part = self._resting.pair(rows, short, 0)
    # Both instances have drawn as much then, and stay in step.
    self._resting.pair(short, rows, 0)
    if self._resting.random and not _alike(whole, part, 0):
      self._cannot_tell(
        'draws other random numbers for a batch of another size'
      )
      return
    self._compare(whole, part, 0, 'The size of the batch changes')

  def _cannot_tell(self, why):
    if self._declared:
      return
    self.untold = ValueError(
      f'{self._what} {why}, so that it cannot be tried whether an example '
      "changes another's. Take random numbers from one tf.random.Generator, "
      f'in one call for all rows. {_DECLARE}'
    )

  def _compare(self, old, new, row, how='One changes'):
    for (name, before), (_, after) in zip(old.seen, new.seen):
      if not _row_alike(before, after, row, len(old.losses), len(new.losses)):
        raise ValueError(
          f'{name} mixes examples: {_lower(how)} what it gives for another, so '
          'that clipping each bounds nothing. Replace it by one that treats '
          'each example by itself.'
        )
    if not _alike(old, new, row):
      part = 'loss'
      if _close(old.losses[row], new.losses[row], _LOSS):
        part = "gradient (not the loss) of the model's variables"
      self.mixing = self.mixing or ValueError(
        f'{self._what} mixes examples: {_lower(how)} the {part} of another. It '
        'must treat each example by itself, and not average over the batch.'
      )


def _lower(text):
  return text[0].lower() + text[1:]


def _kept(rows, others, i):
  """Returns row `i` among others."""
  return tf.nest.map_structure(
    lambda a, b: tf.concat([b[:i], a[i : i + 1], b[i + 1 :]], 0), rows, others
  )


def _row_alike(before, after, row, batch, other_batch):
  """Whether a layer gave the same for one row; true if it has no rows."""
  if not (before.ndim and after.ndim):
    return True
  if (before.shape[0], after.shape[0]) != (batch, other_batch):
    return True
  return _close(before[row], after[row], np.max(_size(before), initial=0))


def _alike(old, new, row):
  """Whether the loss of one row and its gradient are the same."""
  if not _close(old.losses[row], new.losses[row], _LOSS):
    return False
  largest = max((np.max(_size(g), initial=0) for g in old.gradient), default=0)
  return all(
    _close(a, b, 0.1 * largest) for a, b in zip(old.gradient, new.gradient)
  )


def _close(a, b, scale=0.0, tolerance=1e-4):
  """Equal up to rounding, of whatever type.

  Args:
    a: number or array.
    b: as `a`.
    scale: what is a large value for elements of `a`.
    tolerance: relative to that, or to the largest value of `a`.
  """
  a, b = np.asarray(a), np.asarray(b)
  if a.shape != b.shape:
    return False
  if a.dtype.kind not in 'fc':
    return np.array_equal(a, b)
  scale = max(scale, np.max(_size(a), initial=0))
  return np.allclose(a, b, tolerance, tolerance * scale, equal_nan=True)


def _size(x):
  """Absolute values, 0 where there is none."""
  if x.dtype.kind not in 'fc':
    return np.zeros_like(x, float)
  return np.where(np.isfinite(x), np.abs(x), 0)
