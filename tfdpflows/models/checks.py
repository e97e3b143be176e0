"""What a Keras model must be for clipped gradients to protect an example.

The loss of one example may depend on no other, and nothing else may be learned
from the batch. That is checked by name where a layer is known for it, and by
trying: on rows made up for it, never on data.
"""

from __future__ import annotations

import contextlib
import functools
import inspect

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows import gradients
from tfdpflows._keras import keras

# More of these than an axis of the data has, so that examples are told apart.
_BATCHES = (3, 5, 7, 11, 13, 17)
_UNKNOWN_LENGTH = 8


def layers_of(model):
  """Returns the model and all layers inside of it."""
  found = [model, *model.submodules]
  return [
    m
    for m in found
    if isinstance(m, keras.layers.Layer)
    and not isinstance(m, keras.metrics.Metric)
  ]


def refuse_layers(layers):
  """Refuses what is known, by name, to break the guarantee.

  Raises:
    ValueError: naming the layer and what to do.
  """
  for layer in layers:
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
      raise ValueError(
        f'The layer {layer.name} normalises over the batch, so that an example '
        'changes the gradients of all others and clipping each bounds nothing. '
        'Use LayerNormalization or GroupNormalization, or set `trainable = '
        'False` on it, if its statistics come from public data.'
      )
    precise = layer.compute_dtype == layer.variable_dtype
    if not precise or layer.variable_dtype in ('float16', 'bfloat16'):
      raise ValueError(
        f'The layer {layer.name} computes in {layer.compute_dtype}: squared '
        'norms overflow or vanish in half precision, and what is clipped by '
        "them may exceed the bound. Build the model with dtype 'float32' "
        "(`tf.keras.mixed_precision.set_global_policy('float32')`)."
      )
    if getattr(layer, 'is_adapted', False):
      logging.warning(
        'tfdpflows: the layer %s was adapted. If that was to the private data, '
        'its statistics are not covered by the privacy statement.',
        layer.name,
      )


def refuse_batch_losses(layers):
  """Refuses what `call` adds beside the loss; after the layers have run.

  Raises:
    ValueError: naming the layer and what to do.
  """
  for layer in layers:
    if layer._eager_losses:
      raise ValueError(
        f'The layer {layer.name} adds a loss computed from the batch (add_loss '
        'or activity_regularizer), which would be neither clipped nor noised. '
        'Make it part of compile(loss=...), one number per example.'
      )
    if layer._metrics:
      raise ValueError(
        f'The layer {layer.name} keeps a metric of the private batches '
        '(add_metric), which would be released without noise. Drop it.'
      )


def penalties_of(layers):
  """Returns the weight regularizers, as functions of nothing.

  They depend on weights alone, which are released anyway.

  Raises:
    ValueError: for another loss that a layer adds by a function.
  """
  found = []
  for layer in layers:
    for penalty in layer._callable_losses:
      inner = (
        penalty.args[0] if isinstance(penalty, functools.partial) else None
      )
      if not isinstance(inner, functools.partial) or not all(
        isinstance(a, tf.Variable) for a in inner.args
      ):
        raise ValueError(
          f'The layer {layer.name} adds a loss by a function (add_loss), which '
          'may depend on private rows and would be neither clipped nor noised. '
          'Use a regularizer of its weights, or compile(loss=...).'
        )
      found.append(penalty)
  return found


def made_up(spec):
  """Returns rows for a structure of `tf.TensorSpec`, and as many others.

  Floats are in (0, 1), integers 0 or 1, strings 'a' or 'b'.
  """
  flat = tf.nest.flatten(spec)
  known = {d for s in flat for d in s.shape[1:].as_list()}
  batch = next((b for b in _BATCHES if b not in known), _BATCHES[0])
  rng = np.random.default_rng(0)
  one, other = [], []
  for s in flat:
    lengths = [_UNKNOWN_LENGTH if d is None else d for d in s.shape[1:]]
    bits = rng.integers(0, 2, [batch, *lengths])
    if s.dtype == tf.string:
      pair = [np.where(b, 'a', 'b') for b in (bits, 1 - bits)]
    elif s.dtype.is_floating:
      pair = [rng.random(bits.shape) for _ in range(2)]
    else:
      pair = [bits, 1 - bits]
    for into, values in zip((one, other), pair):
      into.append(tf.cast(tf.constant(values), s.dtype))
  pack = functools.partial(tf.nest.pack_sequence_as, spec)
  return pack(one), pack(other)


def check_examples_apart(compute, layers, rows, others):
  """Tries whether an example changes what the model makes of another.

  A try on few rows: it finds mistakes and proves nothing.

  Args:
    compute: a function from rows to (losses `[batch]`, outputs), in training.
    layers: all layers of the model.
    rows: as `compute` takes them.
    others: as `rows`, different in every row.

  Raises:
    ValueError: naming the layer that mixes examples or keeps something of
      them.
  """
  before = _state(layers)
  losses, seen = _observed(compute, layers, rows)
  changed = _restored(before)
  if changed:
    raise ValueError(
      f'Training changes {", ".join(changed)} by itself, from private rows and '
      'without noise. Set `trainable = False` on the layer, if it then stops, '
      'or replace it (a recurrent layer must not be stateful).'
    )
  again, _ = _observed(compute, layers, rows)
  batch = losses.shape[0]
  if not _equal(losses, again):
    logging.warning(
      'tfdpflows: the model draws random numbers by itself; whether it keeps '
      'examples apart could not be tried.'
    )
    return
  for row in range(batch):
    mixed = tf.nest.map_structure(
      lambda a, b, row=row: tf.concat(
        [a[:row], b[row : row + 1], a[row + 1 :]], 0
      ),
      rows,
      others,
    )
    found, now = _observed(compute, layers, mixed)
    for (name, old), (_, new) in zip(seen, now):
      if not _equal_but(old, new, row):
        raise ValueError(
          f'{name} mixes examples: one changes what it gives for another, so '
          'that clipping each bounds nothing. Replace it by one that treats '
          'each example by itself.'
        )
    if not _equal_but(losses, found, row):
      raise ValueError(
        'The loss mixes examples: one changes the loss of another. It must '
        'treat each example by itself.'
      )


def check_rules(compute, layers, rows, variables):
  """Compares the rules with plain gradients; leaves out layers they misread.

  Args:
    compute: a function from rows to losses `[batch]`, without dropout.
    layers: all layers of the model.
    rows: as `compute` takes them.
    variables: the trainable variables.

  Returns:
    The layers whose rules may be used: a layer that gets positions in place of
    examples on axis 0 (inside of `TimeDistributed`, say) may not.

  Raises:
    ValueError: if a rule does not give what its layer gives.
  """
  with tf.GradientTape(persistent=True) as plain:
    losses = compute(rows)
    each = tf.unstack(losses)
  ruled, tape, found = _with_rules(compute, layers, rows, losses.shape[0])
  if not _equal(losses, compute(rows)):
    logging.warning(
      'tfdpflows: the model draws random numbers by itself; the rules of its '
      'layers could not be compared with them.'
    )
    return ruled
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
  sums = per_example.weighted_sum(tf.constant(weights))
  for variable, old, new in zip(variables, totals, sums):
    _compare(f'The gradient of {variable.name}', old, new, ruled)
  return ruled


def _with_rules(compute, layers, rows, batch):
  """Computes with the rules of as many layers as possible, under a tape."""
  ruled = [layer for layer in layers if gradients.rule_of(layer) is not None]
  while True:
    with gradients.layer_rules(ruled), gradients.PerExampleTape() as tape:
      found = compute(rows)
    strange = {
      v.ref()
      for record in tape.records
      if record.output.shape[0] != batch
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


def _compare(what, old, new, ruled):
  if not _equal(old, new, 1e-3):
    classes = sorted({type(layer).__name__ for layer in ruled})
    raise ValueError(
      f'{what} is another with the rules of {", ".join(classes)} than without, '
      'and the rules would clip wrongly. Correct the rule, or build the model '
      'of layers without it.'
    )


_ZERO = tf.UnconnectedGradients.ZERO


def _state(layers):
  """Returns all variables that training does not update, with their values."""
  model = layers[0]
  trained = {v.ref() for v in model.trainable_variables}
  found = model._flatten(predicate=lambda v: isinstance(v, tf.Variable))
  return [(v, v.numpy()) for v in found if v.ref() not in trained]


def _restored(before):
  """Puts values back, and returns the names of the variables that changed."""
  changed = [(v, old) for v, old in before if not np.array_equal(v, old)]
  for variable, old in changed:
    variable.assign(old)
  return [v.name for v, _ in changed]


def _observed(compute, layers, rows):
  """Runs without dropout, and returns losses and what every layer gave."""
  seen = []
  with _calls(layers, _without_chance), _calls(layers, _noted(seen)):
    losses, outputs = compute(rows)
  batch = losses.shape[0]
  for output in tf.nest.flatten(outputs):
    seen.append(('The model', output))
  seen = [
    (name, x.numpy())
    for name, x in seen
    if isinstance(x, tf.Tensor) and x.shape.rank and x.shape[0] == batch
  ]
  return losses.numpy(), seen


@contextlib.contextmanager
def _calls(layers, change):
  """Changes the calls of layers inside of the context."""
  old = [vars(layer).get('call') for layer in layers]
  try:
    for layer in layers:
      own = layer.call
      call = change(layer, own)
      if call is not own:
        vars(layer)['call'] = functools.wraps(own)(call)
    yield
  finally:
    for layer, call in zip(layers, old):
      vars(layer).pop('call', None)
      if call is not None:
        vars(layer)['call'] = call


def _without_chance(layer, call):
  """Random layers run as in inference; chance does not mix examples."""
  by_chance = isinstance(layer, keras.__internal__.layers.BaseRandomLayer)
  if not by_chance or 'training' not in inspect.signature(call).parameters:
    return call
  return lambda *args, **kwargs: call(*args, **{**kwargs, 'training': False})


def _noted(seen):
  def change(layer, call):
    def noted(*args, **kwargs):
      result = call(*args, **kwargs)
      for x in tf.nest.flatten(result):
        if tf.executing_eagerly():
          seen.append((f'The layer {layer.name}', x))
      return result

    return noted

  return change


def _equal(a, b, tolerance=1e-4):
  """Equal up to rounding, of whatever type."""
  a, b = np.asarray(a), np.asarray(b)
  if a.dtype.kind not in 'fc':
    return np.array_equal(a, b)
  scale = np.max(np.abs(a), initial=0, where=np.isfinite(a))
  return np.allclose(a, b, tolerance, tolerance * scale, equal_nan=True)


def _equal_but(a, b, row):
  if a.shape != b.shape:
    return False
  return _equal(np.delete(a, row, 0), np.delete(b, row, 0))
