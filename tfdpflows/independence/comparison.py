"""Whether an example changes what is computed for another: runs compared.

Clipping the gradient of each example bounds what an example adds to the sum
only where it adds nothing by another's. Runs on few rows find mistakes and
prove nothing. Where they cannot tell, the answer is no.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows._autograph import converted
from tfdpflows.independence import probe_rows
from tfdpflows.independence.runs import RepeatableRuns, said_by

# Losses may cancel to nothing but rounding; gradients tell of smaller ones.
_LOSS = 0.1
# What counts as rounding, relative to the largest value; or this many times
# what the last bits of rows change, up to a limit: one of a few rows that
# changes a mean changes more.
_TOLERANCE = 1e-4
_ROUNDINGS, _MOST_ROUNDING = 16, 1e-2
# How many times a layer may enlarge what another one mixed.
_ENLARGED = 100
# Weight of other losses, so that one is nothing beside them.
_HUGE = 1e6
DECLARE = (
  'If you know that no example changes the loss of another, whatever the size '
  'of the batch, declare it: examples_independent=True.'
)


def check_function(
  function: Callable,
  what: str,
  shape: Sequence[int],
  dtype: tf.DType,
  variables: Sequence = (),
) -> None:
  """Refuses a function of rows that mixes them, keeps them, or is random.

  It is traced, from rows `[n, *shape]` to floats `[n, ...]`. Errors begin with
  `what`, and name the variables.

  Raises:
    ValueError: if a row changes what another row gives, if the number of rows
      does, if a variable is written, or if random numbers are drawn.
  """
  rows, others = probe_rows.made_up(tf.TensorSpec([None, *shape], dtype))

  def compute(rows):
    # TFP keeps results by input tensor.
    values = tf.convert_to_tensor(converted(function)(tf.identity(rows)))
    # One number is none for each row.
    each = values if values.shape.rank else values[None]
    return tf.reduce_sum(each, list(range(1, each.shape.rank))), [
      (what, values)
    ]

  runs = RepeatableRuns(compute, [], rows, variables)
  changed = runs.find_changes(rows, others)
  if changed:
    raise ValueError(
      f'{what} writes its variables while it looks at rows '
      f'({", ".join(changed)}): what it keeps of private rows would be neither '
      'charged nor noised. Set `training` or `trainable` to False, or take the '
      'layer out.'
    )
  batch = rows.shape[0]
  one, again = (runs.run(rows, np.ones(batch)) for _ in range(2))
  tolerance = min(_TOLERANCE, float(np.finfo(rows.dtype.name).eps) ** 0.5)
  same = _close(one.outputs[0][1], again.outputs[0][1], tolerance=tolerance)
  if len(one.losses) != batch or not same:
    raise ValueError(
      f'{what} gives other numbers for the same rows at a second time, or not '
      'one for each row, so that nobody can tell whether a row changes those '
      'of another. Take random layers out.'
    )
  found = Comparison(runs, runs, rows, others, what, tolerance)
  found.check(backward=False)
  found.refuse(declared=False)


class Comparison:
  """Compares runs in which other examples change, at the weights as they are.

  Loss, gradient and layers' outputs of an example must stay when all other
  examples change, become copies of it, large, or not finite, or one is
  missing; its gradient must also stay when theirs are large.

  The `runs` are those of the training step, before it was run. Those
  `without_randomness` have random layers as in inference, for batches of other
  sizes, which get other random numbers; they may be the same. The `others` are
  different in every row. What counts as rounding is relative to the largest
  value.
  """

  def __init__(
    self,
    runs: RepeatableRuns,
    without_randomness: RepeatableRuns,
    rows: Any,
    others: Any,
    what: str,
    tolerance: float = _TOLERANCE,
  ):
    self._runs, self._resting = runs, without_randomness
    self._rows, self._others = rows, others
    self._what, self._tolerance = what, tolerance
    self._rounding = 0.0
    # The error, where no layer is known by name; that nothing can be told; that
    # nothing can be told of batches of other sizes.
    self._mixing = self._unknown = self._unpaired = None
    # What rows hold with which nothing can be computed, and the error.
    self._failed = {}

  def refuse_changes(self) -> None:
    """Refuses what changes variables by itself; to be called first."""
    changed = self._runs.find_changes(self._rows, self._others)
    if self._resting is not self._runs:
      changed += self._resting.find_changes(self._rows, self._others)
    if changed:
      raise ValueError(
        f'Training changes {", ".join(dict.fromkeys(changed))} by itself, from '
        'private rows and without noise. Set `trainable = False` on the layer, '
        'if it then stops, or replace it (a recurrent layer must not be '
        'stateful).'
      )

  def refuse(self, declared: bool) -> None:
    """Raises the error that `check` found, after it was called at all weights.

    Those that open a gate tell which layer it is. What cannot be compared
    passes if the user declares it.
    """
    for what, said in self._failed.items():
      logging.warning(
        'tfdpflows: %s cannot be computed where rows hold %s (made up: %s); it '
        'was not compared whether such rows change others.',
        _lower(self._what),
        what,
        said,
      )
    self.refuse_mixing(declared)
    if self._unpaired is not None and not declared:
      raise self._unpaired

  def refuse_mixing(self, declared: bool) -> None:
    """As `refuse`, but for what only batches of another size could show."""
    if self._mixing is not None:
      raise self._mixing
    if self._unknown is not None and not declared:
      raise self._unknown

  def check(self, backward: bool = True) -> None:
    """Compares; raises an error for a layer that mixes examples, naming it."""
    rows, others = self._rows, self._others
    batch = tf.nest.flatten(rows)[0].shape[0]
    self._rounding = 0.0
    if not self._alike(*self._runs.pair(rows, rows, 0), slice(None)):
      self._unknown = self._cannot_tell(
        'draws random numbers in a way that could not be repeated'
      )
      return
    self._rounding = self._find_rounding()
    for i in range(batch):
      self._compare(*self._runs.pair(rows, _kept(rows, others, i), i), i)
    self._compare_missing()
    copies = tf.nest.map_structure(
      lambda x: tf.repeat(x[:1], batch, axis=0), rows
    )
    self._compare(*self._runs.pair(rows, copies, 0), 0)
    short = tf.nest.map_structure(lambda x: x[:-1], rows)
    whole, part = self._resting.pair(rows, short, 0)
    # Both instances have drawn as much then, and stay in step.
    self._resting.pair(short, rows, 0)
    if self._resting.random and not self._alike(whole, part, 0):
      self._unpaired = self._cannot_tell(
        'draws other random numbers for a batch of another size'
      )
    else:
      self._compare(whole, part, 0, 'The size of the batch changes')
    if backward:
      self._check_backward(batch)
    # Last: a run that fails leaves operations with a state out of step.
    self._check_extremes(batch)

  def _compare_missing(self):
    """What stands in for missing values must not come from other rows."""
    missing = probe_rows.missing(self._rows)
    old, new = self._runs.pair(
      _kept(missing, self._rows, 1), _kept(missing, self._others, 1), 1
    )
    if np.isfinite(old.losses[1]) or np.isfinite(new.losses[1]):
      # As far as it is a number: 0 * nan is none.
      if not all(np.all(np.isfinite(g)) for g in old.gradient + new.gradient):
        new = new._replace(gradient=old.gradient)
      self._compare(old, new, 1)

  def _find_rounding(self):
    """What may be rounding at these weights, by what last bits of rows change.

    Weights that training may come to can enlarge it: a batch of another size is
    added up in another order.
    """
    largest = 0.0
    for sign in (1, -1):
      old, new = self._runs.pair(
        self._rows, probe_rows.with_other_last_bits(self._rows, sign), 0
      )
      scale = 0.1 * max(map(_largest, old.gradient), default=0)
      pairs = [(a, b, scale) for a, b in zip(old.gradient, new.gradient)]
      # Not the outputs of layers: one may be nothing but rounding.
      pairs += [(old.losses, new.losses, _LOSS)]
      for a, b, scale in pairs:
        if a.dtype.kind == 'f' and a.shape == b.shape:
          with np.errstate(invalid='ignore', over='ignore'):
            moved = _largest(a - b)
          largest = max(largest, moved / max(scale, _largest(a), 1e-300))
    return min(_ROUNDINGS * largest, _MOST_ROUNDING)

  def _check_extremes(self, batch):
    """Other rows of sizes that made-up ones do not have."""
    own_state = bool(self._runs.own_state)
    for others, what in probe_rows.extreme(self._others, own_state):
      for i in (0, batch - 1):
        try:
          old, new = self._runs.pair(
            self._rows, _kept(self._rows, others, i), i
          )
        except tf.errors.OpError as error:
          self._failed.setdefault(what, said_by(error))
          if own_state:
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
    runs, rows = self._resting, self._rows
    one, huge = np.eye(batch), _HUGE * np.eye(batch)
    together = one + _HUGE - huge
    if runs.own_state:
      for i in range(batch):
        old, new = runs.pair(rows, rows, i, together[i])
        self._compare_backward(old, new, i)
      return
    runs = runs.with_weights(rows, [*one, *huge, *together, np.ones(batch)])
    ones, huge = runs[:batch], runs[batch : 2 * batch]
    for i, new in enumerate(runs[2 * batch : -1]):
      self._compare_backward(ones[i], new, i)
      self._compare_sum([ones[i], *huge[:i], *huge[i + 1 :]], new)
    self._compare_sum(ones, runs[-1])

  def _compare_backward(self, old, new, row):
    """Compares the gradient of one loss at what layers gave for its row."""
    largest = max((_largest(g) for _, g in old.output_gradients), default=0)
    for (name, before), (_, after) in zip(
      old.output_gradients, new.output_gradients
    ):
      if not before.ndim or before.shape[0] != len(old.losses):
        continue
      if not self._close(before[row], after[row], 0.1 * largest):
        self._mixes_backward(f'after {_lower(name)}')

  def _compare_sum(self, runs, whole):
    """Compares the gradients of single losses with that of their sum."""
    columns = list(zip(*(run.gradient for run in runs)))
    sizes = [sum(_size(g) for g in gradients) for gradients in columns]
    largest = max((np.max(s, initial=0) for s in sizes), default=0)
    for gradients, size, found in zip(columns, sizes, whole.gradient):
      scale = max(np.max(size, initial=0), 0.1 * largest)
      if not self._close(sum(gradients), found, scale):
        self._mixes_backward('somewhere')

  def _mixes_backward(self, where):
    self._mixing = self._mixing or ValueError(
      f'{self._what} mixes examples in its backward pass ({where}): the '
      'gradient of one depends on how large those of others are, so that '
      'clipping each bounds nothing. A gradient by tf.custom_gradient must '
      'treat each example by itself, not take a norm or mean over the batch.'
    )

  def _cannot_tell(self, why):
    return ValueError(
      f'{self._what} {why}, so that it cannot be found out whether an example '
      "changes another's. Take random numbers from one tf.random.Generator, "
      f'in one call for all rows. {DECLARE}'
    )

  def _compare(self, old, new, row, how='One changes'):
    changed = functools.partial(self._layers_changed, old, new, row)
    if changed():
      # A layer behind may enlarge what is hardly seen where it comes from.
      name = changed(_ENLARGED)[0]
      raise ValueError(
        f'{name} mixes examples: {_lower(how)} what it gives for another, so '
        'that clipping each bounds nothing. Replace it by one that treats '
        'each example by itself.'
      )
    if not self._alike(old, new, row):
      if self._only_not_finite(old, new, row):
        return
      part = 'loss'
      if self._close(old.losses[row], new.losses[row], _LOSS):
        part = "gradient (not the loss) of the model's variables"
      self._mixing = self._mixing or ValueError(
        f'{self._what} mixes examples: {_lower(how)} the {part} of another. It '
        'must treat each example by itself: no average over the batch, and no '
        'difference of shapes [n, 1] and [n], which is all pairs of examples.'
      )

  def _only_not_finite(self, old, new, row):
    """Whether a gradient changed by another loss alone that is not finite.

    It is then nan by `0 * nan`, and tells nothing of what examples share.
    """
    finite = all(np.all(np.isfinite(g)) for g in new.gradient)
    if finite or not self._close(old.losses[row], new.losses[row], _LOSS):
      return False
    if np.all(np.isfinite(new.losses)):
      return False
    self._unknown = ValueError(
      f'{self._what} is not finite on some rows made up from shapes and dtypes '
      '(integers are 0 or 1), so that it cannot be found out whether an '
      "example changes another's gradient. A mean over nothing is 0 / 0: of a "
      'row whose ids are all 0, after Embedding(mask_zero=True). Give public '
      'rows on which it is finite, example=... Such rows of the data add '
      f'nothing to a step; usable=... leaves them out. {DECLARE}'
    )
    return True

  def _layers_changed(self, old, new, row, times=1):
    """Names layers that gave something else for one row, in their order.

    `times` smaller changes count too. What has no rows does not.
    """
    tolerance = max(self._tolerance, self._rounding) / times
    return [
      name
      for (name, a), (_, b) in zip(old.outputs, new.outputs)
      if a.ndim
      and b.ndim
      and (a.shape[0], b.shape[0]) == (len(old.losses), len(new.losses))
      and not _close(a[row], b[row], _largest(a), tolerance)
    ]

  def _alike(self, old, new, row):
    """Whether the loss of one row and its gradient are the same."""
    largest = max(map(_largest, old.gradient), default=0)
    return self._close(old.losses[row], new.losses[row], _LOSS) and all(
      self._close(a, b, 0.1 * largest)
      for a, b in zip(old.gradient, new.gradient)
    )

  def _close(self, a, b, scale=0.0):
    return _close(a, b, scale, max(_TOLERANCE, self._rounding))


def _lower(text):
  return text[0].lower() + text[1:]


def _kept(rows, others, i):
  """Returns row `i` among others."""

  def row_among(a, b):
    kept = np.arange(a.shape[0]) == i
    return tf.where(np.reshape(kept, [-1] + [1] * (a.shape.rank - 1)), a, b)

  return tf.nest.map_structure(row_among, rows, others)


def _close(a, b, scale=0.0, tolerance=_TOLERANCE):
  """Equal up to rounding, relative to a scale or the largest value of `a`."""
  a, b = np.asarray(a), np.asarray(b)
  if a.shape != b.shape:
    return False
  if a.dtype.kind not in 'fc':
    return np.array_equal(a, b)
  scale = max(scale, _largest(a))
  return np.allclose(a, b, tolerance, tolerance * scale, equal_nan=True)


def _size(x):
  """Absolute values, 0 where there is none."""
  if x.dtype.kind not in 'fc':
    return np.zeros_like(x, float)
  return np.where(np.isfinite(x), np.abs(x), 0)


def _largest(x):
  return np.max(_size(x), initial=0)
