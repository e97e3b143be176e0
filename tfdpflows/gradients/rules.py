"""From what a tape recorded to per-example norms and weighted sums.

For one use of a masked linear map, with input `a_i` and output gradient `d_i`
of example i and 0/1 mask M, the gradient by the kernel is `M * (a_i d_i^T)`:
its squared norm is `sum_o (a_i^2 M)_o d_io^2` and the sum of all of them with
weights c is `M * (a^T diag(c) d)`, so that none is ever stored. The norm needs
all uses of a variable together; where that has no closed form, this variable's
per-example gradient alone is stored.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdpflows.gradients import fallback, parts
from tfdpflows.gradients import terms as terms_lib
from tfdpflows.gradients.terms import (
  BiasTerm,
  EmbeddingTerm,
  LinearTerm,
  SharedTerm,
  StoredTerm,
  linear_term,
)


class Linear(NamedTuple):
  """One use of `linear`."""

  kernel: Any
  bias: Any
  mask: tf.Tensor | None
  inputs: tf.Tensor  # [batch, ..., in]
  output: tf.Tensor  # [batch, ..., out]
  variables = property(lambda self: _variables(self.kernel, self.bias))
  of_examples = property(lambda self: [self.inputs])
  shared = property(lambda self: [] if self.mask is None else [self.mask])


class Copies(NamedTuple):
  """One use of `per_example`."""

  parameter: Any
  output: tf.Tensor  # [batch] + parameter.shape
  variables = property(lambda self: _variables(self.parameter))
  of_examples = shared = ()


class Convolution(NamedTuple):
  """One use of `convolution`."""

  kernel: Any
  gradients: Callable[[tf.Tensor, tf.Tensor], Any]
  inputs: tf.Tensor  # [batch, ...]
  output: tf.Tensor  # [batch, ...]
  variables = property(lambda self: _variables(self.kernel))
  of_examples = property(lambda self: [self.inputs])
  shared = ()

  def resolved(self, gradient: tf.Tensor) -> tuple[Linear | Copies, tf.Tensor]:
    """Returns a use of another kind of the same kernel, and its gradient."""
    found = self.gradients(self.inputs, gradient)
    if isinstance(found, tuple):
      a, d = found
      return Linear(self.kernel, None, None, a, d), d
    found = tf.reshape(found, [-1, *self.kernel.shape])
    return Copies(self.kernel, found), found


class Lookup(NamedTuple):
  """One use of `embedding`."""

  table: Any
  ids: tf.Tensor  # [batch, ...]
  output: tf.Tensor  # [batch, ..., dim]
  variables = property(lambda self: _variables(self.table))
  of_examples = property(lambda self: [self.ids])
  shared = ()


class Shared(NamedTuple):
  """One use of `shared`."""

  parameters: Any
  jacobians: Any  # [k] + parameter.shape, for each parameter
  output: tf.Tensor  # [batch, k]
  variables = property(lambda self: _variables(*self.parameters))
  of_examples = ()
  shared = property(lambda self: list(self.jacobians))


class Ingredients:
  """What per-example gradients are made from, before anything is added up.

  Attributes:
    of_examples: tensors `[batch, ...]`, or `[batch * draws, ...]`.
    shared: tensors that all examples share.
    padded: whether an example of zeros is computed for an empty batch, when
      this is not observed.
  """

  def __init__(self):
    self.of_examples, self.shared, self.padded = [], [], False


_OBSERVING = threading.local()


@contextlib.contextmanager
def observed() -> Iterator[Ingredients]:
  """Context in which `PerExampleGradients` tells what it is made from.

  Row i of what is clipped and added up is a function of row i of one, and of
  the other. No example of zeros is computed for an empty batch.
  """
  old = getattr(_OBSERVING, 'found', None)
  _OBSERVING.found = found = Ingredients()
  try:
    yield found
  finally:
    _OBSERVING.found = old


class PerExampleGradients:
  """Gradients of `[batch]` losses by variables, one per example, unevaluated.

  Made by `PerExampleTape.per_example_gradients`. Nothing here clips: the
  strategies of `tfdpflows.gradients` do, with norms and weighted sums.

  Args:
    tape: a `PerExampleTape`. A plain `tf.GradientTape`, which is used up, takes
      the slow path: an example whose gradient is not finite is an error when it
      runs, and visible to whoever sees that error, since `tape.jacobian`
      cannot keep it apart from the others. It is refused under
      `jit_compile=True`, which drops the check.
    loss: `[batch]`, the loss of each example.
    variables: the variables, as a flat list.
    draws: number of consecutive rows of each example: inputs of the primitives
      are `[batch * draws, ...]`.

  Attributes:
    variables: the variables, in the order of all lists below.
    layers: the layer of each variable, as an integer: those that one `linear`
      used together, or whose names are alike up to the last `/`.
  """

  def __init__(
    self,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    variables: Sequence[tf.Variable],
    draws: int = 1,
  ):
    check_loss(loss)
    self.variables = list(variables)
    self._squared = self._finite = None
    self._batch = tf.shape(loss)
    self._jacobians = []
    seen = getattr(_OBSERVING, 'found', None)
    if not hasattr(tape, 'records'):
      self.layers = _layers(self.variables, [])
      whole = self._from_jacobian(tape, loss, self.variables)
      recorded, rest = [], {}
    else:
      known = {v.ref() for v in self.variables}
      records = [
        r for r in tape.records if known & {v.ref() for v in r.variables}
      ]
      _check_batch(loss, records, draws)
      self.layers = _layers(self.variables, records)
      # One backward pass for all. The gradient at a variable itself is that of
      # uses without a primitive.
      targets = [r.output for r in records] + self.variables
      gradients = tape.gradient(loss, targets)
      outputs, direct = gradients[: len(records)], gradients[len(records) :]
      for record, gradient in zip(records, outputs):
        # Gradients of a concatenation have lost it.
        if isinstance(gradient, tf.Tensor):
          gradient.set_shape(record.output.shape)
      recorded = [
        (r, g)
        for r, g in zip(records, outputs)
        if g is not None  # Else the output never reached the loss.
      ]
      past = [v for v, g in zip(self.variables, direct) if g is not None]
      for variable in past:
        fallback.log(variable)
      whole, rest = {}, {}
      if past and tape.losses is not None:
        found = fallback.one_by_one(
          tape.losses, tape.rows, past, draws, padded=seen is None
        )
        whole = {v.ref(): g for v, g in zip(past, found)}
      elif past:
        rest = self._from_jacobian(tape, loss, past)
    if seen is not None:
      seen.of_examples += [loss, *whole.values(), *rest.values()]
      seen.padded |= bool(whole)
      for record, gradient in recorded:
        gradient = tf.convert_to_tensor(gradient)
        seen.of_examples += [gradient, *record.of_examples]
        seen.shared += record.shared
    recorded = [_by_use(r, g, draws) for r, g in recorded]
    self._terms = [
      StoredTerm(whole[v.ref()])
      if v.ref() in whole
      else _term(v, recorded, draws, rest.get(v.ref()))
      for v in self.variables
    ]

  def _from_jacobian(self, tape, loss, variables):
    self._jacobians = fallback.jacobians(tape, loss, variables)
    found = zip(variables, self._jacobians)
    return {v.ref(): g for v, g in found if g is not None}

  def squared_norms(self) -> tf.Tensor:
    """Returns `[batch]`: the squared l2 norm over all variables together."""
    return tf.reduce_sum(self.variable_squared_norms(), 1)

  def finite(self) -> tf.Tensor:
    """Returns `[batch]`: whether all that enters an example's gradient is."""
    if self._finite is None:
      self._finite = tf.math.is_finite(self.squared_norms())
    return self._finite

  def variable_squared_norms(self) -> tf.Tensor:
    """Returns `[batch, variables]`: the squared l2 norms.

    Where one of an example is not finite, its others may be nan.
    """
    if self._squared is None:
      squared = terms_lib.squared_norms(self._terms)
      self._squared = _of_batch(squared, self._batch)
    return self._squared

  def weighted_sum(
    self,
    weights: tf.Tensor | list[tf.Tensor],
    bound: float | tf.Tensor,
  ) -> list[tf.Tensor]:
    """Returns `sum_i weights[i] * gradient_i`, one tensor per variable.

    Args:
      weights: `[batch]`; or one such tensor for each variable; after `by_unit`
        also `[batch, units]`. Examples that are not finite are left out before
        the sum, whatever they hold, so that `0 * nan` cannot leak.
      bound: the l2 norm of `weights[i] * gradient_i`, at most. Gradients that
        are sums of parts much longer than that are summed in float64.
    """
    if not isinstance(weights, list):
      weights = [weights] * len(self._terms)
    # Where anything that enters a gradient is not finite, nor is its norm.
    # That is rare, and leaving rows out costs a pass over all activations.
    # So are parts that cancel, and float64 costs more than that.
    finite = self.finite()
    usual, lengths = finite, [term.lengths() for term in self._terms]
    if any(length is not None for length in lengths):
      short = parts.short(lengths, weights, bound)
      usual = tf.logical_and(finite, short)

    def unusual():
      totals = self._sums(weights, lambda x: _zero_left_out(x, usual))
      if usual is finite:
        return totals
      long = tf.logical_and(finite, tf.logical_not(usual))
      precise = lambda x: tf.cast(_zero_left_out(x, long), tf.float64)
      rest = self._sums(weights, precise)
      return [total + part for total, part in zip(totals, rest)]

    totals = tf.cond(
      tf.reduce_all(usual),
      lambda: self._sums(weights, lambda x: x),
      unusual,
    )
    if self._jacobians:
      totals = [t + self.nan_if_mixed(t.dtype) for t in totals]
    return [tf.reshape(t, v.shape) for t, v in zip(totals, self.variables)]

  def nan_if_mixed(self, dtype: tf.DType) -> tf.Tensor:
    """Returns 0, or nan where an example that is not finite spoilt others."""
    return fallback.nan_if_mixed(self._jacobians, dtype)

  def _sums(self, weights, clean):
    totals = terms_lib.weighted_sums(self._terms, weights, clean)
    return [tf.cast(t, v.dtype) for t, v in zip(totals, self.variables)]

  def by_unit(self) -> PerExampleGradients:
    """Returns the same gradients, ready for `units`.

    A unit is an output of a layer: an index of the last axis of its variables.
    """
    return self._of(term.by_unit() for term in self._terms)

  def units(
    self,
  ) -> tuple[dict[tuple[int, int], terms_lib.Units], list[tuple[int, int]]]:
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

  def times(self, masks: Sequence[tf.Tensor]) -> PerExampleGradients:
    """Returns the same gradients, times one tensor for each variable."""
    return self._of(t.times(mask) for t, mask in zip(self._terms, masks))

  def transformed(
    self, function: Callable[..., tf.Tensor], *others: Sequence[Any]
  ) -> PerExampleGradients:
    """Returns the gradients that `function` makes of the stored ones.

    Args:
      function: of a gradient `[batch] + variable.shape`, and its entry in each
        of `others`.
      *others: lists with one entry for each variable.
    """
    return self._of(map(StoredTerm, map(function, self.materialise(), *others)))

  def _of(self, terms):
    found = copy.copy(self)
    found._terms = list(terms)
    found._squared = found._finite = None
    return found

  def materialise(self) -> list[tf.Tensor]:
    """Returns the gradients themselves: `[batch] + variable.shape` each."""
    return [
      _shaped(term.materialise(), variable)
      for term, variable in zip(self._terms, self.variables)
    ]


def check_loss(loss: tf.Tensor) -> None:
  """Raises a ValueError for a loss that is not one per example."""
  if loss.shape.rank != 1:
    raise ValueError(
      f'The loss has shape {loss.shape}; per-example gradients need one loss '
      'per example, shape [batch]. Do not average it first (in Keras: '
      '`reduction=NONE`).'
    )


def _check_batch(loss, records, draws):
  rows = None if loss.shape[0] is None else loss.shape[0] * draws
  for record in records:
    if not record.output.shape[:1].is_compatible_with([rows]):
      raise ValueError(
        f'The loss has {rows} examples, but a parameter met a batch of shape '
        f'{record.output.shape}: axis 0 must be the examples.'
      )


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


def _term(variable, recorded, draws, rest):
  """Returns the term of one variable: all its uses, summed before the norm.

  Args:
    variable: the variable.
    recorded: pairs of records and the gradients at their outputs, as `_by_use`.
    draws: rows of an example.
    rest: its gradients by uses that were not recorded, or `None`.
  """
  of = lambda kind, name: [
    (r, g)
    for r, g in recorded
    if isinstance(r, kind) and getattr(r, name) is variable
  ]
  stored = [_over_draws(g, draws) for _, g in of(Copies, 'parameter')]
  kernels = of(Linear, 'kernel')
  masks = [r.mask for r, _ in kernels]
  inputs = [_rank_3(_grouped(r.inputs, draws)) for r, _ in kernels]
  outputs = [g for _, g in kernels]
  biases = [g for _, g in of(Linear, 'bias')]
  looked_up = of(Lookup, 'table')
  shared = [
    (_over_draws(g, draws), jacobian)
    for r, g in recorded
    if isinstance(r, Shared)
    for parameter, jacobian in zip(r.parameters, r.jacobians)
    if parameter is variable
  ]
  if rest is not None:
    stored.append(rest)
  others = stored or kernels or looked_up or shared
  if not (others or biases):
    raise ValueError(
      f'No gradient reaches the variable {variable.name}. Set '
      '`trainable = False` on what holds it, or use it in the loss.'
    )
  if not others and len(biases) == 1 and biases[0].shape[1] == 1:
    return BiasTerm(biases[0])
  stored += [tf.reduce_sum(gradient, 1) for gradient in biases]
  plain = not (stored or looked_up)
  if plain and not shared and all(mask is masks[0] for mask in masks):
    return linear_term(masks[0], inputs, outputs)
  if shared:
    factors = tf.concat([c for c, _ in shared], 1)
    jacobians = tf.concat([j for _, j in shared], 0)
    if plain and all(mask is None for mask in masks):
      a = tf.concat(inputs, 1) if inputs else None
      d = tf.concat(outputs, 1) if inputs else None
      return SharedTerm(a, d, factors, jacobians)
    stored.append(SharedTerm(None, None, factors, jacobians).materialise())
  for mask, a, d in zip(masks, inputs, outputs):
    gradient = LinearTerm(mask, [a], [d]).materialise()
    stored.append(_shaped(gradient, variable))
  if looked_up:
    ids = [_grouped(r.ids, draws) for r, _ in looked_up]
    term = EmbeddingTerm(variable, ids, [g for _, g in looked_up])
    if not stored:
      return term
    stored.append(term.materialise())
  return StoredTerm(tf.add_n(stored))


def _variables(*parts):
  return [v for v in parts if isinstance(v, tf.Variable)]


def _by_use(record, gradient, draws):
  """Returns a record and the gradient at its output, with the draws as uses.

  That of `linear` as `[batch, t, out]`, others by draw.
  """
  if isinstance(record, Convolution):
    record, gradient = record.resolved(gradient)
  gradient = _grouped(gradient, draws)
  return record, _rank_3(gradient) if isinstance(record, Linear) else gradient


def _grouped(x, draws):
  """[batch * draws, ...] as [batch, draws, ...]: an example's rows as uses."""
  return x if draws == 1 else fallback.by_example(x, draws)


def _over_draws(x, draws):
  return x if draws == 1 else tf.reduce_sum(x, 1)


def _rank_3(x):
  """[batch, ..., n] as [batch, t, n]."""
  if x.shape.rank == 2:
    return tf.reshape(x, [-1, 1, x.shape[1]]) if x.shape[1] else x[:, None]
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
  shape = tf.concat([shape, norms.shape[1:]], 0)
  check = tf.debugging.assert_equal(tf.shape(norms), shape, message)
  with tf.control_dependencies([] if check is None else [check]):
    return tf.reshape(norms, shape)


def _zero_left_out(x, kept):
  """Zeroes the examples that are not kept, also where they hold nan or inf."""
  kept = tf.reshape(kept, [-1] + [1] * (x.shape.rank - 1))
  return tf.where(kept, x, tf.zeros_like(x))
