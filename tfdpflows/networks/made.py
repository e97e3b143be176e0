"""MADE: an autoregressive network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._checks import check_integer, check_number

# Weights of a part of the direct connections of few columns: in more parts less
# of them is masked, and there are more operations.
_JOINED = 1 << 15


class MADE(tf.Module):
  """Masked autoencoder for distribution estimation (Germain et al. 2015).

  The outputs of column j depend on the columns before j. Hidden units have
  degrees 1..event_size-1 in ascending order; a weight is kept where the degree
  of its input does not exceed that of its output (is less, in the last layer).
  The kernels are multiplied by masks in the forward pass, so that masked
  weights have no gradients, which would add to the norm that is clipped. The
  last layer is initialised with zeros: the identity for all transforms of this
  package.

  One network can be shared by several blocks of a flow (`num_conditions`), as
  in DP-HFlow, given an embedding of the block's number, a vector added in the
  first layer. With DP-SGD fewer parameters mean less noise.

  A column may have several inputs, such as an indicator for each bin
  (`inputs`). Direct connections lead from inputs to outputs (section 4.2 of
  the paper).

  For a conditional density p(x | c) all columns depend on a further input c
  (`conditional_event_size`), which has degree 0, before the first column.
  Hidden units then have degrees 0..event_size-1, so that the first column too
  is a nonlinear function of c.

  Args:
    params: number of outputs of each column; or a sequence, with a number for
      each.
    event_size: number of columns d.
    hidden_units: width of each hidden layer.
    activation: name of a function in `tf.nn`.
    dtype: of the variables.
    seed: for the initial weights, or `None`.
    num_conditions: number of blocks that share the network; each uses
      `conditioned(block)`.
    inputs: number of inputs of each column, a sequence; 1 by default. Several
      are indicators, of which one is 1.
    direct: whether there are direct connections from inputs to outputs; or a
      sequence of the factor of each input on them. Without hidden units all
      connections are direct, with factor 1.
    conditional_event_size: number of values of `conditional_input`; 0 for a
      network without.
    connections: for each column the numbers of those that it has direct
      connections with, in either direction; all by default. A network of many
      columns then takes a time and memory that grow with their number, and not
      with its square; where they are more than the hidden units of a layer,
      the degrees of these are spread over all columns, not over the first ones.

  Raises:
    TypeError: for sizes that are no numbers, or `hidden_units` that are no
      sequence.
    ValueError: for sizes that are not positive, or not one for each column; for
      an activation that `tf.nn` has not; for `connections` of a conditional
      network, or with other columns.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import networks
  >>> made = networks.MADE(params=2, event_size=3, hidden_units=[16])
  >>> made(tf.zeros([5, 3])).shape
  TensorShape([5, 3, 2])
  >>> made = networks.MADE(2, 3, [16], conditional_event_size=4)
  >>> made(tf.zeros([5, 3]), conditional_input=tf.ones([5, 4])).shape
  TensorShape([5, 3, 2])
  """

  def __init__(
    self,
    params: int | Sequence[int],
    event_size: int,
    hidden_units: Sequence[int] = (100, 100),
    activation: str = 'relu',
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    num_conditions: int = 1,
    name: str = 'made',
    *,
    inputs: int | Sequence[int] = 1,
    direct: bool | Sequence[float] = False,
    conditional_event_size: int = 0,
    connections: Sequence[Sequence[int]] | None = None,
  ):
    super().__init__(name=name)
    _check_arguments(hidden_units, activation)
    check_number('event_size', event_size)
    conditional_event_size = check_integer(
      'conditional_event_size', conditional_event_size, 0
    )
    sizes = [*np.ravel(params), *np.ravel(inputs), *hidden_units]
    if min([*sizes, event_size, num_conditions]) < 1:
      raise ValueError(
        f'params={params}, event_size={event_size}, num_conditions='
        f'{num_conditions}, inputs={inputs} and hidden_units='
        f'{list(hidden_units)} must all be at least 1.'
      )
    for what, value in (('params', params), ('inputs', inputs)):
      if np.ndim(value) and len(value) != event_size:
        raise ValueError(
          f'{what} has {len(value)} numbers; there are {event_size} columns.'
        )
    self.params = params if np.ndim(params) else int(params)
    self.event_size = int(event_size)
    self.conditional_event_size = conditional_event_size
    if connections is not None and conditional_event_size:
      raise ValueError('A conditional network has all direct connections.')
    self._spread = connections is not None
    # The column of every input and of every output.
    columns = np.arange(event_size)
    self._inputs, self._outputs = (
      np.repeat(columns, np.broadcast_to(n, [event_size]))
      for n in (inputs, params)
    )
    # The indicators of a column count as one input.
    share = 1 / np.bincount(self._inputs)[self._inputs]
    before = np.full(self.conditional_event_size, -1)
    self._inputs = np.concatenate([before, self._inputs])
    share = np.concatenate([np.ones(len(before)), share])
    self.hidden_units = tuple(int(h) for h in hidden_units)
    self._activation = getattr(tf.nn, activation)
    rng = np.random.default_rng(seed)
    dtype = tf.as_dtype(dtype)
    masks = self._masks()
    self._kernels, self._biases, self._masks = [], [], []
    for i, mask in enumerate(masks):
      last = i == len(masks) - 1
      # He initialisation, with the number of inputs under the mask.
      fan_in = mask.sum(0) if i else share @ mask
      std = 0 if last else np.sqrt(2 / np.maximum(fan_in, 1))
      kernel = mask * rng.normal(size=mask.shape) * std
      self._kernels.append(tf.Variable(kernel, dtype=dtype, name=f'kernel_{i}'))
      # The first layer has one for each condition, made below.
      if i or num_conditions == 1:
        self._biases.append(
          tf.Variable(tf.zeros([mask.shape[1]], dtype), name=f'bias_{i}')
        )
      with tf.init_scope():
        self._masks.append(tf.constant(mask, dtype))
    self._direct = self._direct_mask = self._direct_scale = None
    columns_inputs = len(self._inputs) - self.conditional_event_size
    if np.ndim(direct) and len(direct) != columns_inputs:
      raise ValueError(
        f'direct has {len(direct)} numbers; there are {columns_inputs} inputs.'
      )
    self._joined = []
    if np.any(direct) and hidden_units and self._spread:
      self._joined_scale = np.broadcast_to(
        np.asarray(direct, dtype.as_numpy_dtype), [columns_inputs]
      )
      self.connect(connections)
    elif np.any(direct) and hidden_units:
      mask = self._inputs[:, None] < self._outputs
      self._direct = tf.Variable(tf.zeros(mask.shape, dtype), name='direct')
      scale = np.asarray(direct, np.float64)
      scale = np.broadcast_to(scale, [columns_inputs])
      scale = np.concatenate([np.ones(self.conditional_event_size), scale])
      with tf.init_scope():
        self._direct_mask = tf.constant(mask, dtype)
        self._direct_scale = tf.constant(scale, dtype)
    # Conditions that start equal would differ only slowly.
    self._first_biases = self._biases[:1]
    if num_conditions > 1:
      std = 1.0 if hidden_units else 0.0
      values = rng.normal(size=[num_conditions, masks[0].shape[1]]) * std
      self._first_biases = [
        tf.Variable(value, dtype=dtype, name=f'embedding_{i}')
        for i, value in enumerate(values)
      ]

  def connect(self, connections: Sequence[Sequence[int]]) -> None:
    """Replaces the direct connections, of a network with `connections`.

    The new ones are zero.

    Args:
      connections: see `MADE`.

    Raises:
      ValueError: for another number of columns, or one that is not there.
    """
    d = self.event_size
    if not self._spread or len(connections) != d:
      raise ValueError(
        f'There are connections of {len(connections)} columns, for a network '
        f'of {d}; give them for each column, from the start.'
      )
    before = [{int(i) for i in others} for others in connections]
    for j, others in enumerate(before):
      if not others <= set(range(d)):
        raise ValueError(f'Column {j} is connected with {sorted(others)}.')
      for i in others:
        before[i].add(j)
    targets = {
      j: sorted(i for i in others if i < j) for j, others in enumerate(before)
    }
    # Of those with the same columns before them first.
    order = sorted((j for j in targets if targets[j]), key=targets.get)
    parts, part, columns = [], [], set()
    for j in order:
      wider = columns.union(targets[j])
      size = len(self.bins_of(wider, True)) * len(self.bins_of([*part, j]))
      if part and size > _JOINED:
        parts.append(part)
        part, wider = [], set(targets[j])
      part, columns = [*part, j], wider
    parts += [part] if part else []
    self._joined = [
      _Joined(self, {j: targets[j] for j in part}, self._joined_scale)
      for part in parts
    ]

  def bins_of(self, columns: Iterable[int], inputs: bool = False) -> np.ndarray:
    """Returns the numbers of the outputs, or inputs, of some columns."""
    of = self._inputs if inputs else self._outputs
    ends = np.searchsorted(of, [[j, j + 1] for j in columns])
    return np.concatenate([np.arange(*pair) for pair in ends])

  def _degrees(self, units):
    """Returns degrees 1..d-1 in ascending order, equally often.

    From 0 on where there is a conditional input.
    """
    if self._spread and units < self.event_size - 1:
      last = self.event_size - 1
      return np.ceil(np.arange(1, units + 1) * last / units).astype(int)
    if self.conditional_event_size:
      return np.sort(np.arange(units) % self.event_size)
    return np.sort(np.arange(units) % max(self.event_size - 1, 1)) + 1

  def _masks(self):
    degrees = [self._inputs + 1] + [self._degrees(h) for h in self.hidden_units]
    masks = [a[:, None] <= b for a, b in zip(degrees[:-1], degrees[1:])]
    return masks + [degrees[-1][:, None] < self._outputs + 1]

  def conditioned(self, number: int) -> _Conditioned:
    """Returns the network for block `number` of `num_conditions`."""
    if not 0 <= number < len(self._first_biases):
      raise ValueError(
        f'There is no condition {number}; the network has '
        f'{len(self._first_biases)}.'
      )
    return _Conditioned(self, number)

  def _bias(self, layer, condition):
    if layer == 0:
      return self._first_biases[condition]
    return self._biases[layer - len(self._kernels)]  # From the end.

  def _check_conditional(self, conditional_input):
    size = self.conditional_event_size
    if conditional_input is None:
      if size:
        raise ValueError(
          f'{self.name} is conditional and needs conditional_input, of shape '
          f'[..., {size}]: log_prob(x, conditional_input=c).'
        )
    elif not size:
      raise ValueError(
        f'{self.name} is not conditional and takes no conditional_input: build '
        'it with conditional_event_size=...'
      )
    elif conditional_input.shape[-1] != size:
      raise ValueError(
        f'conditional_input has shape {conditional_input.shape}, for the rows '
        f'of x; {self.name} was built with conditional_event_size={size}: it '
        f'must be [..., {size}]. (One value for each row is c[:, tf.newaxis].)'
      )

  def __call__(self, x, condition=0, conditional_input=None):
    """Returns the parameters of every column.

    Args:
      x: `[..., event_size]`; or `[..., sum(inputs)]`, where there are several.
      condition: number of the block; see `conditioned`.
      conditional_input: `[..., conditional_event_size]`, with the axes and the
        dtype of x, where the network is conditional.

    Returns:
      `[..., event_size, params]`, or `[..., sum(params)]` where they are a
      sequence.

    Raises:
      ValueError: without a conditional input where one is needed, for one where
        none is, or one of another shape.
    """
    self._check_conditional(conditional_input)
    if conditional_input is not None:
      x = tf.concat([conditional_input, x], -1)
    inputs = h = x[None] if x.shape.rank == 1 else x
    last = len(self._kernels) - 1
    for i in range(last + 1):
      bias = self._bias(i, condition)
      h = gradients.linear(h, self._kernels[i], bias, self._masks[i])
      if i < last:
        h = self._activation(h)
    if self._direct is not None:
      inputs *= self._direct_scale
      h += gradients.linear(inputs, self._direct, None, self._direct_mask)
    if self._joined:
      h += self._joined_outputs(inputs)
    event = [self.event_size, self.params]
    if np.ndim(self.params):
      event = [len(self._outputs)]
    y = tf.reshape(h, tf.concat([tf.shape(x)[:-1], event], 0))
    return tf.ensure_shape(y, x.shape[:-1] + event)

  def _joined_outputs(self, inputs):
    """Returns what the direct connections of `connections` add."""
    # Rows of a transpose are gathered many times as fast as columns.
    inputs = _last_first(inputs)
    parts = [_last_first(joined(inputs)) for joined in self._joined]
    place = np.concatenate([joined.outputs for joined in self._joined])
    # No two are added up: this leaves zeros for outputs that have none.
    placed = tf.math.unsorted_segment_sum(
      tf.concat(parts, 0), place, len(self._outputs)
    )
    return _first_last(placed)

  def columns(
    self, condition: int = 0, conditional_input: tf.Tensor | None = None
  ) -> Iterator[Callable[[Sequence[tf.Tensor]], tf.Tensor]]:
    """Evaluates the network column by column, at the cost of one pass.

    Yields, for each column j, a function of the columns before it (a list of j
    tensors `[n]`, or `[n, inputs]`) that returns its parameters, `[n, params]`.
    Since degrees ascend, the units that column j adds are one slice of every
    layer, and all others are known already: sampling d columns costs one
    network pass and not d. The functions must be called in order.

    Args:
      condition: number of the block; see `conditioned`.
      conditional_input: `[n, conditional_event_size]`, where the network is
        conditional.
    """
    self._check_conditional(conditional_input)
    starts = [0] * len(self.hidden_units)
    known = [[] for _ in self.hidden_units]
    sums = _FirstSums(self._kernels[0], self._inputs)
    for j in range(self.event_size):
      ends = [
        int(np.searchsorted(self._degrees(h), j, side='right'))
        for h in self.hidden_units
      ]
      yield lambda x, j=j, s=tuple(starts), e=tuple(ends): self._column(
        x, j, s, e, known, sums, condition, conditional_input
      )
      starts = ends

  def _column(
    self, x, j, starts, ends, known, sums, condition, conditional_input
  ):
    """Adds the hidden units of degree j, returns the parameters of column j."""
    before = np.searchsorted(self._inputs, j)
    start, end = np.searchsorted(self._outputs, [j, j + 1])
    out = self._bias(len(self._kernels) - 1, condition)[start:end]
    if conditional_input is not None:
      x = [conditional_input, *x]
    if not x:
      return out  # Column 0 depends on nothing.
    # Operations for each pair of columns would be most of a large graph.
    x = [
      c if c.shape.rank == 2 else tf.reshape(c, [tf.shape(c)[0], -1]) for c in x
    ]
    if self._spread:
      return self._spread_column(x, out, j, starts, ends, known, sums)
    x = tf.concat(x, 1)
    h = tf.ensure_shape(x, [None, before])
    for layer, (first, last) in enumerate(zip(starts, ends)):
      if last > first:
        kernel = self._kernels[layer][: h.shape[1], first:last]
        bias = self._bias(layer, condition)[first:last]
        known[layer].append(self._activation(tf.matmul(h, kernel) + bias))
      if not known[layer]:
        break
      h = tf.concat(known[layer], 1)
    else:
      out += tf.matmul(h, self._kernels[-1][: h.shape[1], start:end])
    if self._direct is not None:
      scale = self._direct_scale[:before, None]
      out += tf.matmul(x, scale * self._direct[:before, start:end])
    return out

  def _spread_column(self, x, out, j, starts, ends, known, sums):
    """What `_column` does, of a network with `connections`.

    Most columns add no hidden units, and need few of those before them.
    """
    start, end = np.searchsorted(self._outputs, [j, j + 1])
    h = None
    for layer, (first, last) in enumerate(zip(starts, ends)):
      if last > first:
        if layer:
          h = tf.concat(h, 1)
          added = tf.matmul(h, self._kernels[layer][: h.shape[1], first:last])
        else:
          added = sums.take(x, last - first)
        bias = self._biases[layer][first:last]
        known[layer].append(self._activation(added + bias))
      h = known[layer]
      if not h:
        break
    else:
      h = tf.concat(h, 1)
      out += tf.matmul(h, self._kernels[-1][: h.shape[1], start:end])
    for joined in self._joined:
      if j in joined.targets:
        out += joined.column(x, j)
    return out


class _FirstSums:
  """What columns add to the hidden units of the first layer that come.

  Of hundreds of columns all those before a unit would be joined for each unit.
  """

  def __init__(self, kernel, inputs):
    self._kernel, self._inputs = kernel, inputs
    self._columns = self._units = 0
    self._sums = None

  def take(self, x, units):
    """Returns `[n, units]` of the next units, given all columns so far."""
    start, end = np.searchsorted(self._inputs, [self._columns, len(x)])
    kernel = self._kernel[start:end, self._units :]
    sums = tf.matmul(tf.concat(x[self._columns :], 1), kernel)
    if self._sums is not None:
      sums += self._sums
    self._columns, self._units = len(x), self._units + units
    self._sums = sums[:, units:]
    return sums[:, :units]


class _Joined(tf.Module):
  """Direct connections of a few columns with few before them, as one kernel."""

  def __init__(self, network, before, scale):
    super().__init__(name=f'direct_{min(before)}')
    columns = sorted({i for others in before.values() for i in others})
    self.targets = tuple(before)
    self._before = tuple(tuple(others) for others in before.values())
    self._inputs = network.bins_of(columns, inputs=True)
    self.outputs = network.bins_of(self.targets)
    sizes = [len(network.bins_of([j])) for j in self.targets]
    self._ends = np.cumsum([0, *sizes])
    self._rows = tuple(
      np.flatnonzero(
        np.isin(self._inputs, network.bins_of(others, inputs=True))
      )
      for others in self._before
    )
    mask = np.zeros([len(self._inputs), len(self.outputs)])
    for rows, start, end in zip(self._rows, self._ends[:-1], self._ends[1:]):
      mask[rows, start:end] = 1
    self._scale = scale[self._inputs]
    self._mask = mask.astype(scale.dtype)
    self._kernel = tf.Variable(tf.zeros(mask.shape, scale.dtype), name='direct')

  def __call__(self, inputs):
    """Returns what is added to the targets; `inputs` has them in front."""
    x = _first_last(tf.gather(inputs, self._inputs)) * self._scale
    return gradients.linear(x, self._kernel, None, tf.constant(self._mask))

  def column(self, before, target):
    """Returns what is added to a target, given all columns before it."""
    place = self.targets.index(target)
    start, end = self._ends[place : place + 2]
    rows = self._rows[place]
    x = tf.concat([before[i] for i in self._before[place]], 1)
    kernel = tf.gather(self._kernel[:, start:end], rows)
    return tf.matmul(x * self._scale[rows], kernel)


class _Conditioned(tf.Module):
  """A shared `MADE` for one of its blocks."""

  def __init__(self, network, number):
    super().__init__(name=f'{network.name}_{number}')
    self._network, self._number = network, number
    self.params, self.event_size = network.params, network.event_size

  def __call__(self, x, conditional_input=None):
    return self._network(x, self._number, conditional_input)

  def columns(self, conditional_input=None):
    return self._network.columns(self._number, conditional_input)


def _check_arguments(hidden_units, activation):
  """Raises errors for what has no sizes, or no name in `tf.nn`."""
  if isinstance(hidden_units, (str, bytes)) or np.ndim(hidden_units) != 1:
    raise TypeError(
      f'hidden_units is {hidden_units!r}; it must be a list with the width of '
      'each layer, such as [100, 100].'
    )
  for units in hidden_units:
    check_number('A width of hidden_units', units)
  if not (
    isinstance(activation, str) and callable(getattr(tf.nn, activation, None))
  ):
    raise ValueError(
      f'activation is {activation!r}; it must be the name of a function in '
      "tf.nn, such as 'relu', 'swish' or 'tanh'."
    )


def _last_first(x):
  """Returns x with the last axis in front."""
  return tf.transpose(x, np.roll(np.arange(x.shape.rank), 1))


def _first_last(x):
  """Returns x with the first axis at the end."""
  return tf.transpose(x, np.roll(np.arange(x.shape.rank), -1))
