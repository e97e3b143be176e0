"""Whether the rules of a model's layers give what the layers give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows import gradients
from tfdpflows.independence.runs import moved

if TYPE_CHECKING:
  from tfdpflows._keras import keras
  from tfdpflows.independence.runs import RepeatableRuns

_ZERO = tf.UnconnectedGradients.ZERO
_TOLERANCE = 1e-3
_LEAST = 1e-28


def rules_that_hold(
  compute: Callable[[Any], tf.Tensor],
  layers: Sequence[keras.layers.Layer],
  rows: Any,
  variables: Sequence[tf.Variable],
  runs: RepeatableRuns,
  step: Optional[list[np.ndarray]],
) -> list[keras.layers.Layer]:
  """Compares the rules with plain gradients; leaves out layers they misread.

  `compute` makes losses of rows without dropout, and the runs are those of the
  model with random layers as in inference; the step is one of
  `runs.weight_steps`.

  Returns:
    The layers whose rules may be used: a layer that gets positions in place of
    examples on axis 0 (inside of `TimeDistributed`, say) may not.

  Raises:
    ValueError: if a rule does not give what its layer gives.
  """

  def again(rows):
    runs.restore()
    return compute(rows)

  if runs.own_state:
    # Other random numbers in every run: nothing to compare with. The rules of
    # the library have tests of their own.
    ruled, _, _ = _with_rules(again, layers, rows)
    known = [
      layer for layer in ruled if gradients.layers.is_library_rule(layer)
    ]
    left_out = [layer.name for layer in ruled if layer not in known]
    if left_out:
      logging.warning(
        'tfdpflows: the model draws random numbers by %s, so that the rules of '
        '%s cannot be compared with their layers: they are not used. Draw from '
        'a tf.random.Generator, which can be restored.',
        ', '.join(runs.own_state),
        ', '.join(left_out),
      )
    return known
  # Where a layer begins with zeros, those before it have no gradient yet.
  try:
    with moved(variables, step):
      return _compared(again, layers, rows, variables)
  finally:
    runs.restore()


def _compared(compute, layers, rows, variables):
  with tf.GradientTape(persistent=True) as plain:
    losses = compute(rows)
    each = tf.unstack(losses)
  ruled, tape, found = _with_rules(compute, layers, rows)
  _compare('The loss', losses, found, ruled)
  per_example = tape.per_example_gradients(found, variables)
  weights = np.linspace(1, 2, len(each)).astype(losses.dtype.as_numpy_dtype)
  squared, totals = [], [0] * len(variables)
  for loss, weight in zip(each, weights):
    one = plain.gradient(loss, variables, unconnected_gradients=_ZERO)
    one = [tf.convert_to_tensor(g).numpy() for g in one]
    squared.append(sum(np.sum(g * g) for g in one))
    totals = [t + weight * g for t, g in zip(totals, one)]
  _compare('The norm', np.stack(squared), per_example.squared_norms(), ruled)
  sums = per_example.weighted_sum(tf.constant(weights), np.inf)
  # A gradient that is zero but for rounding (of a bias that a softmax cancels)
  # has no scale of its own.
  scale = 1e-2 * max(np.max(np.abs(t), initial=0) for t in totals)
  for variable, old, new in zip(variables, totals, sums):
    _compare(f'The gradient of {variable.name}', old, new, ruled, scale)
  return ruled


def _with_rules(compute, layers, rows):
  """Computes with the rules of as many layers as possible, under a tape."""
  ruled = [
    layer for layer in layers if gradients.layers.rule_of(layer) is not None
  ]
  while True:
    with (
      gradients.layers.layer_rules(ruled),
      gradients.PerExampleTape() as tape,
    ):
      found = compute(rows)
    strange = {
      v.ref()
      for record in tape.records
      if record.output.shape[0] != found.shape[0]
      for v in record.variables
    }
    wrong = [
      layer
      for layer in ruled
      if strange & {v.ref() for v in layer.trainable_variables}
    ]
    if not wrong:
      return ruled, tape, found
    logging.info(
      'tfdpflows: axis 0 of the input of %s is not the examples; per-example '
      'gradients of such layers come from tape.jacobian, which is slower.',
      ', '.join(layer.name for layer in wrong),
    )
    ruled = [layer for layer in ruled if layer not in wrong]


def _compare(what, old, new, ruled, scale=0.0):
  old, new = np.asarray(old), np.asarray(new)
  # Below that it is rounding alone, where all gradients should be zero.
  scale = max(scale, _LEAST)
  scale = max(scale, np.max(np.abs(old), initial=0, where=np.isfinite(old)))
  if not np.allclose(old, new, _TOLERANCE, _TOLERANCE * scale, equal_nan=True):
    classes = sorted({type(layer).__name__ for layer in ruled})
    raise ValueError(
      f'{what} is another with the rules of {", ".join(classes)} than without, '
      'and the rules would clip wrongly. Correct the rule, or build the model '
      'of layers without it.'
    )
