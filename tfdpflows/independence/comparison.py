"""Whether an example changes what a model makes of another: tried.

Clipping the gradient of each example bounds what an example adds to the sum
only where it adds nothing by another's. A try on few rows finds mistakes and
proves nothing. Where it cannot tell, it says no.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows.independence import other_weights, probe_rows

# Losses may cancel to nothing but rounding; gradients tell of smaller ones.
_LOSS = 0.1
# Weight of other losses, so that one is nothing beside them.
_HUGE = 1e6
_DECLARE = (
  'If you know that no example changes the loss of another, whatever the size '
  'of the batch, declare it: examples_apart=True.'
)


def check(trial, resting, variables, rows, others, *, declared, what):
  """Tries examples apart, at the weights as they are and at others.

  Loss, gradient and layers' outputs of an example must stay when all other
  examples change, become copies of it, large, or not finite, or one is
  missing; its gradient must also stay when theirs are large.

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
    # Last: a run that fails leaves legacy chance out of step.
    self._check_backward(batch)
    self._check_extremes(batch)

  def _check_extremes(self, batch):
    """Other rows of sizes that made-up ones do not have."""
    # A run that fails leaves legacy chance out of step.
    legacy = bool(self._trial.legacy)
    for others, what in probe_rows.extreme(self._others, legacy):
      for i in (0, batch - 1):
        try:
          old, new = self._trial.pair(
            self._rows, _kept(self._rows, others, i), i
          )
        except tf.errors.OpError as error:
          logging.warning(
            'tfdpflows: %s cannot be computed where rows hold %s (%s); it was '
            'not tried whether such rows change others.',
            _lower(self._what),
            what,
            str(error).partition('\n')[0],
          )
          if legacy:
            return
          break
        # In a gradient of one loss, 0 * inf of another row is nan: it is one
        # by weights that training does not have.
        finite = all(np.all(np.isfinite(g)) for g in new.gradient)
        if not finite:
          new = new._replace(gradient=old.gradient)
        self._compare(old, new, i, f'One that holds {what} changes')

  def _check_backward(self, batch):
    """All losses at once, of most different weights, and one by one."""
    trial, rows = self._resting, self._rows
    one, huge = np.eye(batch), _HUGE * np.eye(batch)
    together = one + _HUGE - huge
    if trial.legacy:
      for i in range(batch):
        old, new = trial.pair(rows, rows, i, together[i])
        self._compare_backward(old, new, i)
      return
    runs = trial.alike(rows, [*one, *huge, *together, np.ones(batch)])
    ones, huge = runs[:batch], runs[batch : 2 * batch]
    for i, new in enumerate(runs[2 * batch : -1]):
      self._compare_backward(ones[i], new, i)
      self._compare_sum([ones[i], *huge[:i], *huge[i + 1 :]], new)
    self._compare_sum(ones, runs[-1])

  def _compare_backward(self, old, new, row):
    """Compares the gradient of one loss at what layers gave for its row."""
    gradients = [g for _, g in old.backward]
    largest = max((np.max(_size(g), initial=0) for g in gradients), default=0)
    for (name, before), (_, after) in zip(old.backward, new.backward):
      if not before.ndim or before.shape[0] != len(old.losses):
        continue
      if not _close(before[row], after[row], 0.1 * largest):
        self._mixes_backward(f'after {_lower(name)}')

  def _compare_sum(self, runs, whole):
    """Compares the gradients of single losses with that of their sum."""
    columns = list(zip(*(run.gradient for run in runs)))
    sizes = [sum(_size(g) for g in gradients) for gradients in columns]
    largest = max((np.max(s, initial=0) for s in sizes), default=0)
    for gradients, size, found in zip(columns, sizes, whole.gradient):
      scale = max(np.max(size, initial=0), 0.1 * largest)
      if not _close(sum(gradients), found, scale):
        self._mixes_backward('somewhere')

  def _mixes_backward(self, where):
    self.mixing = self.mixing or ValueError(
      f'{self._what} mixes examples in its backward pass ({where}): the '
      'gradient of one depends on how large those of others are, so that '
      'clipping each bounds nothing. A gradient by tf.custom_gradient must '
      'treat each example by itself, not take a norm or mean over the batch.'
    )

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
