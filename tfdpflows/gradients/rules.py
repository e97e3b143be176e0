"""From what a tape noted to per-example norms and weighted sums.

For one use of a masked linear map, with input `a_i` and output gradient `d_i`
of example i and 0/1 mask M, the gradient by the kernel is `M * (a_i d_i^T)`:
its squared norm is `sum_o (a_i^2 M)_o d_io^2` and the sum of all of them with
weights c is `M * (a^T diag(c) d)`, so that none is ever stored. The norm needs
all uses of a variable together; where that has no closed form, this variable's
per-example gradient alone is stored.
"""

from __future__ import annotations

import collections
import copy

import tensorflow as tf
from absl import logging

from tfdpflows.gradients import terms as terms_lib
from tfdpflows.gradients.embedding import EmbeddingTerm
from tfdpflows.gradients.shared import SharedTerm
from tfdpflows.gradients.terms import (
  BiasTerm,
  LinearTerm,
  StoredTerm,
  linear_term,
)


class PerExampleGradients:
  """Gradients of `[batch]` losses by variables, one per example, unevaluated.

  Made by `PerExampleTape.per_example_gradients`. Nothing here clips: the
  strategies of `tfdpflows.gradients` do, with norms and weighted sums.

  Args:
    tape: a `PerExampleTape`.
    loss: `[batch]`, the loss of each example.
    variables: the variables, as a flat list.
    records: what the tape noted.
    draws: number of rows that each example has in a row: what met the
      parameters is `[batch * draws, ...]`.

  Attributes:
    variables: the variables, in the order of all lists below.
    layers: the layer of each variable, as an integer: those that one `linear`
      used together, or whose names are alike up to the last `/`.
  """

  def __init__(self, tape, loss, variables, records, draws=1):
    _check_loss(loss)
    self.variables = list(variables)
    self._squared = self._finite = None
    self._batch = tf.shape(loss)
    known = {v.ref() for v in self.variables}
    records = [r for r in records if known & {v.ref() for v in r.variables}]
    rows = None if loss.shape[0] is None else loss.shape[0] * draws
    for record in records:
      if not record.output.shape[:1].is_compatible_with([rows]):
        raise ValueError(
          f'The loss has {rows} examples, but a parameter met a '
          f'batch of shape {record.output.shape}: axis 0 must be the examples.'
        )
    self.layers = _layers(self.variables, records)
    targets = [r.output for r in records] + self.variables
    # One backward pass for all of it. What arrives at a variable itself came
    # by a way that no primitive noted.
    gradients = tape.gradient(loss, targets)
    outputs, direct = gradients[: len(records)], gradients[len(records) :]
    outputs = [_uses(r, g, draws) for r, g in zip(records, outputs)]
    self._terms = []
    for variable, seen in zip(self.variables, direct):
      noted = zip(records, outputs)
      term = _term(tape, loss, variable, seen is not None, noted, draws)
      self._terms.append(term)

  @classmethod
  def from_jacobian(cls, tape, loss, variables):
    """The slow way, for a plain `tf.GradientTape` that is used up by it."""
    _check_loss(loss)
    self = cls.__new__(cls)
    self.variables = list(variables)
    self.layers = _layers(self.variables, [])
    self._squared = self._finite = None
    self._batch = tf.shape(loss)
    self._terms = []
    for variable, jacobian in zip(
      variables, tape.jacobian(loss, self.variables)
    ):
      if jacobian is None:
        raise _no_gradient(variable)
      self._terms.append(StoredTerm(_finite(jacobian, variable)))
    return self

  def squared_norms(self):
    """Returns `[batch]`: the squared l2 norm over all variables together."""
    return tf.add_n(self.variable_squared_norms())

  def finite(self):
    """Returns `[batch]`: whether all that enters an example's gradient is."""
    if self._finite is None:
      self._finite = tf.math.is_finite(self.squared_norms())
    return self._finite

  def variable_squared_norms(self):
    """Returns `[batch]` for each variable: the squared l2 norms."""
    if self._squared is None:
      self._squared = [
        _of_batch(t.squared_norms(), self._batch) for t in self._terms
      ]
    return self._squared

  def weighted_sum(self, weights):
    """Returns `sum_i weights[i] * gradient_i`, one tensor per variable.

    Args:
      weights: `[batch]`; or one such tensor for each variable; after `by_unit`
        also `[batch, units]`. Examples that are not finite are left out before
        the sum, whatever they hold, so that `0 * nan` cannot leak.
    """
    if not isinstance(weights, list):
      weights = [weights] * len(self._terms)
    # Where anything that enters a gradient is not finite, nor is its norm.
    # That is rare, and leaving rows out costs a pass over all activations.
    finite = self.finite()
    totals = tf.cond(
      tf.reduce_all(finite),
      lambda: self._sums(weights, lambda x: x),
      lambda: self._sums(weights, lambda x: _zero_left_out(x, finite)),
    )
    return [tf.reshape(t, v.shape) for t, v in zip(totals, self.variables)]

  def _sums(self, weights, clean):
    return [
      term.weighted_sum(clean(w), clean)
      for term, w in zip(self._terms, weights)
    ]

  def by_unit(self):
    """Returns the same gradients, ready for `units`.

    A unit is an output of a layer: an index of the last axis of its variables.
    """
    return self._of(map(terms_lib.by_unit, self._terms))

  def units(self):
    """Returns the units of each layer, and which of them each variable has.

    After `by_unit` only. Variables of a layer that have the same number of
    units have the same units.

    Returns:
      A dict from (layer, number of units) to `terms.Units`, and the key of
      each variable.
    """
    units, keys = {}, []
    for layer, term in zip(self.layers, self._terms):
      own = term.units()
      keys.append((layer, own.count))
      known = units.get(keys[-1])
      units[keys[-1]] = own if known is None else known.joined(own)
    totals = [_of_batch(u.total(), self._batch) for u in units.values()]
    squared = [u.sum_of_squares() for u in units.values()]
    self._finite = tf.math.is_finite(tf.add_n(totals + squared))
    return units, keys

  def times(self, masks):
    """Returns the same gradients, times one tensor for each variable."""
    return self._of(map(terms_lib.times, self._terms, masks))

  def transformed(self, function, *others):
    """Returns the gradients that `function` makes of the stored ones.

    Args:
      function: of a gradient `[batch] + variable.shape`, and its entry in each
        of `others`.
      *others: lists with one entry for each variable.
    """
    return self._of(map(StoredTerm, map(function, self.materialise(), *others)))

  def _of(self, terms):
    found = copy.copy(self)
    found._terms, found._squared, found._finite = list(terms), None, None
    return found

  def materialise(self):
    """Returns the gradients themselves: `[batch] + variable.shape` each."""
    return [
      _shaped(term.materialise(), variable)
      for term, variable in zip(self._terms, self.variables)
    ]


def _layers(variables, records):
  """Returns the number of the layer of each variable. Nothing private in it."""
  scopes = [v.name.rpartition('/')[0] for v in variables]
  count = collections.Counter(v.name for v in variables)
  # Where a scope has two variables of one name it is no layer's own.
  shared = {s for s, v in zip(scopes, variables) if count[v.name] > 1} | {''}
  names = [f'/{i}' if s in shared else s for i, s in enumerate(scopes)]
  place = {v.ref(): i for i, v in enumerate(variables)}
  for record in records:
    together = [place[v.ref()] for v in record.variables if v.ref() in place]
    for i in together[1:]:
      names = [names[together[0]] if n == names[i] else n for n in names]
  numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
  return [numbers[name] for name in names]


def _term(tape, loss, variable, seen_directly, noted, draws):
  """Returns the term of one variable: all its uses, summed before the norm."""
  masks, inputs, outputs, stored = [], [], [], []
  ids, found, factors, jacobians, biases = [], [], [], [], []
  for record, gradient in noted:
    if gradient is None:  # The output never reached the loss.
      continue
    if hasattr(record, 'parameter'):
      if record.parameter is variable:
        gradient = _grouped(gradient, draws)
        stored.append(gradient if draws == 1 else tf.reduce_sum(gradient, 1))
      continue
    if hasattr(record, 'table'):
      if record.table is variable:
        ids.append(_grouped(record.ids, draws))
        found.append(_grouped(gradient, draws))
      continue
    if hasattr(record, 'jacobians'):
      for parameter, jacobian in zip(record.parameters, record.jacobians):
        if parameter is variable:
          gradient = _grouped(gradient, draws)
          gradient = gradient if draws == 1 else tf.reduce_sum(gradient, 1)
          factors.append(gradient)
          jacobians.append(jacobian)
      continue
    if record.kernel is variable:
      masks.append(record.mask)
      inputs.append(_rank_3(_grouped(record.inputs, draws)))
      outputs.append(gradient)
    if record.bias is variable:
      biases.append(gradient)
  if seen_directly:
    _log_fallback(variable)
    stored.append(_finite(tape.jacobian(loss, variable), variable))
  others = inputs or stored or found or factors
  if not (others or biases):
    raise _no_gradient(variable)
  if not others and len(biases) == 1 and biases[0].shape[1] == 1:
    return BiasTerm(biases[0])
  stored += [tf.reduce_sum(gradient, 1) for gradient in biases]
  one_mask = all(mask is masks[0] for mask in masks)
  plain = not (stored or found)
  if plain and one_mask and not factors:
    return linear_term(masks[0], inputs, outputs)
  if factors:
    factors, jacobians = tf.concat(factors, 1), tf.concat(jacobians, 0)
    if plain and not any(mask is not None for mask in masks):
      a = tf.concat(inputs, 1) if inputs else None
      d = tf.concat(outputs, 1) if inputs else None
      return SharedTerm(a, d, factors, jacobians)
    term = SharedTerm(None, None, factors, jacobians)
    stored.append(_shaped(term.materialise(), variable))
  for mask, a, d in zip(masks, inputs, outputs):
    gradient = LinearTerm(mask, [a], [d]).materialise()
    stored.append(_shaped(gradient, variable))
  if found:
    term = EmbeddingTerm(variable, ids, found)
    if not stored:
      return term
    stored.append(term.materialise())
  return StoredTerm(tf.add_n(stored))


def _check_loss(loss):
  if loss.shape.rank != 1:
    raise ValueError(
      f'The loss has shape {loss.shape}; per-example gradients need one loss '
      'per example, shape [batch]. Do not average it first (in Keras: '
      '`reduction=NONE`).'
    )


def _finite(jacobian, variable):
  """Returns the jacobian as a tensor; an error if it is not finite.

  A jacobian adds up the batch with weights 0 and 1, so that one example which
  is not finite makes all others nan. Leaving all of them out would be no
  bounded change. (XLA drops the check.)
  """
  return tf.debugging.check_numerics(
    tf.convert_to_tensor(jacobian),
    'A per-example gradient is not finite, and was mixed with the others in '
    f'tape.jacobian for the variable {variable.name}. Use the variable through '
    'tfdpflows.gradients.linear or per_example, which keep them apart, or '
    'leave the example out before it meets the model',
  )


def _no_gradient(variable):
  return ValueError(
    f'No gradient reaches the variable {variable.name}. Set '
    '`trainable = False` on what holds it, or use it in the loss.'
  )


def _uses(record, gradient, draws):
  """The output gradient of `linear` as [batch, t, out], others as they are."""
  if gradient is None or not hasattr(record, 'kernel'):
    return gradient
  return _rank_3(_grouped(gradient, draws))


def _grouped(x, draws):
  """[batch * draws, ...] as [batch, draws, ...]: an example's rows as uses."""
  if draws == 1:
    return x
  sizes = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
  return tf.reshape(x, [-1, draws, *sizes[1:]])


def _rank_3(x):
  """[batch, ..., n] as [batch, t, n]."""
  if x.shape.rank == 2:
    return x[:, None]
  if x.shape.rank == 3:
    return x
  return tf.reshape(x, [tf.shape(x)[0], -1, x.shape[-1]])


def _shaped(gradients, variable):
  """One gradient per example, in the shape of the variable."""
  return tf.reshape(gradients, tf.concat([[-1], tf.shape(variable)], 0))


def _of_batch(norms, shape):
  """Norms, which must be those of the examples and not of, say, positions.

  XLA drops the assertion and fails at the reshape; without XLA the reshape of
  a vector to a vector is optimised away, and the assertion fails.
  """
  message = 'Axis 0 of what a parameter met must be the examples of the loss.'
  check = tf.debugging.assert_equal(tf.shape(norms), shape, message)
  with tf.control_dependencies([] if check is None else [check]):
    return tf.reshape(norms, shape)


def _zero_left_out(x, kept):
  """Zeroes the examples that are not kept, also where they hold nan or inf."""
  kept = tf.reshape(kept, [-1] + [1] * (x.shape.rank - 1))
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
