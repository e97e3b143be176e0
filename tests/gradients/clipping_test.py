"""Every strategy equals its definition, and no example escapes its bound."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients
from tfdpflows.gradients import clipping, terms

BATCH = 6
STRATEGIES = {
  'flat': lambda c: gradients.Flat(c),
  'per_layer': lambda c: gradients.PerLayer(c),
  'per_unit': lambda c: gradients.PerUnit(c),
  'automatic': lambda c: gradients.Automatic(c, gamma=0.1),
  'sparse': lambda c: gradients.StochasticSparsification(c, 0.5),
  'sparse_small': lambda c: gradients.StochasticSparsification(c, 0.5, 0.3),
  'adaptive': lambda c: gradients.AdaptiveQuantile(c),
}


# In `make test` XLA compiles the first of them. Two more are traced: what
# counts units, and what has a state.
MODES = thinned(
  [(name, m) for name in STRATEGIES for m in ('eager', 'function', 'xla')],
  lambda point: (
    point[1] == 'eager'
    or point == ('flat', 'xla')
    or (point[1] == 'function' and point[0] in ('per_unit', 'adaptive'))
  ),
)


class _Net:
  """Two layers of `linear`, a scale and a shift of `per_example`.

  Args:
    uses: how often each row meets the first layer.
    masked: whether the kernels have masks.
    plain: whether the shift is used in plain TensorFlow.
  """

  def __init__(self, uses=1, masked=True, dtype='float32', plain=False):
    rng = np.random.default_rng(0)
    variable = lambda name, *shape: tf.Variable(
      rng.normal(size=shape).astype(dtype), name=name
    )
    self.kernels = [variable('kernel', 4, 5), variable('kernel', 5, 3)]
    self.biases = [variable('bias', 5), variable('bias', 3)]
    self.scale = variable('affine/scale', 3)
    self.shift = variable('affine/shift', 3)
    self.masks = [None, None]
    if masked:
      self.masks = [
        tf.constant((rng.random(k.shape) < 0.7).astype(dtype))
        for k in self.kernels
      ]
    self.uses, self.plain = uses, plain
    self.x = rng.normal(size=[BATCH, 4]).astype(dtype)
    self.variables = [
      *self.kernels,
      *self.biases,
      self.scale,
      self.shift,
    ]

  # The layers of the variables above.
  layers = [0, 1, 0, 1, 2, 2]

  def losses(self, x):
    h = tf.convert_to_tensor(x)
    y = 0.0
    for use in range(self.uses):
      y += tf.tanh(
        gradients.linear(
          h * (1 + use), self.kernels[0], self.biases[0], self.masks[0]
        )
      )
    y = gradients.linear(y, self.kernels[1], self.biases[1], self.masks[1])
    scale = gradients.per_example(self.scale, tf.shape(x)[0])
    shift = self.shift
    if not self.plain:
      shift = gradients.per_example(shift, tf.shape(x)[0])
    return tf.reduce_sum((y * scale + shift) ** 3, -1)

  def per_example(self, x):
    x = tf.convert_to_tensor(x)
    with gradients.PerExampleTape(losses=self.losses, rows=x) as tape:
      losses = self.losses(x)
    return tape.per_example_gradients(losses, self.variables)

  def rows(self, x):
    """The gradient of each example, a list over variables, in float64."""
    for i in range(len(x)):
      with tf.GradientTape() as tape:
        loss = self.losses(x[i : i + 1])
      found = tape.gradient(loss, self.variables)
      yield [np.asarray(tf.convert_to_tensor(g), 'float64') for g in found]


def _norm(parts):
  return np.sqrt(sum(np.sum(np.square(p)) for p in parts))


def _expected(name, strategy, net, rows):
  """The definitions, example by example."""
  total = [np.zeros(v.shape) for v in net.variables]
  sizes = [v.shape.num_elements() for v in net.variables]
  masks = None
  if name.startswith('sparse'):
    masks = [m.numpy() for m in strategy._masks(net.variables)]
  for row in rows:
    clip = float(strategy.l2_sensitivity)
    if name == 'per_layer':
      clipped = list(row)
      for layer in set(net.layers):
        own = [i for i, of in enumerate(net.layers) if of == layer]
        c = clip * np.sqrt(sum(sizes[i] for i in own) / sum(sizes))
        scale = min(1, c / _norm([row[i] for i in own]))
        for i in own:
          clipped[i] = row[i] * scale
    elif name == 'per_unit':
      clipped = list(row)
      for layer in set(net.layers):
        own = [i for i, of in enumerate(net.layers) if of == layer]
        c = clip * np.sqrt(sum(sizes[i] for i in own) / sum(sizes))
        l1 = sum(
          np.abs(row[i]).reshape(-1, row[i].shape[-1]).sum(0) for i in own
        )
        l2 = np.sqrt(
          sum(
            np.square(row[i]).reshape(-1, row[i].shape[-1]).sum(0) for i in own
          )
        )
        with np.errstate(divide='ignore', invalid='ignore'):
          scale = np.minimum(1, c * np.sqrt(l1 / l1.sum()) / l2)
        for i in own:
          clipped[i] = row[i] * np.where(l2 > 0, scale, 0)
    elif name == 'automatic':
      clipped = [g * clip / (_norm(row) + strategy.gamma) for g in row]
    else:
      if name == 'sparse':
        row = [g * m for g, m in zip(row, masks)]
      if name == 'sparse_small':
        row = [
          np.where(np.abs(g) >= strategy.threshold, g, g * m)
          for g, m in zip(row, masks)
        ]
      clipped = [g * min(1, clip / _norm(row)) for g in row]
    total = [t + g for t, g in zip(total, clipped)]
  return total


def _total(strategy, net, x):
  return strategy.clip_and_sum(net.per_example(x))


@pytest.mark.core
@pytest.mark.parametrize(('name', 'mode'), MODES)
def test_equals_its_definition(name, mode):
  nets = {
    'eager': [_Net(3, dtype='float64'), _Net(masked=False), _Net(2)],
    'function': [_Net(plain=True)],
    'xla': [_Net(3, dtype='float64', plain=True)],
  }
  for net in nets[mode]:
    rows = list(net.rows(net.x))
    strategy = STRATEGIES[name](float(np.median([_norm(row) for row in rows])))
    expected = _expected(name, strategy, net, rows)
    run = functools.partial(_total, strategy, net, net.x)
    if mode != 'eager':
      run = tf.function(run, jit_compile=mode == 'xla')
    for t, e in zip(run(), expected):
      assert t.dtype == net.x.dtype
      np.testing.assert_allclose(t, e, rtol=1e-5, atol=1e-5 * np.abs(e).max())


@pytest.mark.parametrize('name', STRATEGIES)
def test_the_slow_way_gives_the_same(name):
  net = _Net()
  strategy = STRATEGIES[name](1.0)
  fast = strategy.clip_and_sum(net.per_example(net.x))
  with tf.GradientTape(persistent=True) as tape:
    losses = net.losses(net.x)
  slow = gradients.PerExampleGradients(tape, losses, net.variables)
  # Without records the layers of variables without a scope are their own.
  if name not in ('per_layer', 'per_unit'):
    for a, b in zip(fast, strategy.clip_and_sum(slow)):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# Rows, of inputs and of what they make of gradients, that try to escape.
ADVERSARIAL = np.array(
  [
    np.zeros(4),
    [0.3, -1.2, 0.7, 2.0],
    [0, 0, 1, 0],
    [1e-38, 0, 0, 0],
    [1e-45, 1e-45, 0, 1e-45],
    [1e4, 1e-4, 0, 0],
    [1e38, 1e-38, 1, 0],
    [np.nan, 0, 0, 0],
    [np.inf, -np.inf, 0, 0],
    np.full(4, 1e9),
    np.full(4, 1e30),
    np.full(4, 1e-20),
    np.full(4, 1e-30),
  ]
)


@pytest.mark.parametrize(('name', 'mode'), MODES)
def test_no_example_contributes_more_than_the_bound(name, mode):
  """Alone, and as the difference of the sums with and without it."""
  net = {
    'eager': _Net(masked=False, plain=True),
    'function': _Net(plain=True, dtype='float64'),
    'xla': _Net(3, plain=True),
  }[mode]
  x = tf.constant(ADVERSARIAL, net.x.dtype)
  strategy, count = STRATEGIES[name](0.5), len(ADVERSARIAL)
  # The gradients are the same all along: only who counts differs.
  found = net.per_example(x) if mode == 'eager' else None

  def total(weights):
    gradients_of = net.per_example(x) if found is None else found
    return strategy.clip_and_sum(gradients_of, weights)

  if mode != 'eager':
    total = tf.function(total, jit_compile=mode == 'xla')
  flat = lambda w: np.concatenate(
    [np.ravel(t).astype('float64') for t in total(tf.constant(w, x.dtype))]
  )
  whole, eye = flat(np.ones(count)), np.eye(count)
  for i in range(count):
    alone = flat(eye[i])
    assert np.linalg.norm(alone) <= 0.5 * (1 + 1e-4)
    np.testing.assert_allclose(whole - flat(1 - eye[i]), alone, atol=1e-5)
  for i in (7, 8):  # nan and inf.
    assert not np.any(flat(eye[i]))


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.parametrize(
  'scale', thinned([1e-25, 1e18, 1e30, 1.0, 1e-10, 1e10], 3)
)
@pytest.mark.parametrize('dtype', thinned(['float32', 'float64'], 1))
def test_one_huge_unit_and_tiny_others_stay_in_the_bound(name, scale, dtype):
  rng = np.random.default_rng(1)
  kernel = tf.Variable(np.zeros([300, 7], dtype))
  bias = tf.Variable(np.zeros(7, dtype))
  mask = tf.constant((rng.random([300, 7]) < 0.5).astype(dtype))
  x = rng.normal(size=[1, 300]).astype(dtype)
  d = np.asarray(scale, dtype) ** np.linspace(-1, 1, 7).astype(dtype)
  for m in (None, mask):
    with gradients.PerExampleTape() as tape:
      y = gradients.linear(tf.constant(x), kernel, bias, m)
      losses = tf.reduce_sum(y * d, 1)
    found = tape.per_example_gradients(losses, [kernel, bias])
    for clip in (1e-9, 0.5, 1e9):
      total = STRATEGIES[name](clip).clip_and_sum(found)
      norm = _norm([t.numpy().astype('float64') for t in total])
      assert norm <= clip * (1 + 1e-4)
      for t in STRATEGIES[name](clip).clip_and_sum(found, [0.0]):
        assert not np.any(t.numpy())


@pytest.mark.core
def test_gradients_whose_squares_vanish_are_no_longer_than_the_clip():
  """The norm of such a gradient is what could be lost of it, and gamma."""
  for clip, gamma in ((1.0, 1e-12), (1e9, 1e-3), (1e-9, 1e-12), (1e-9, 1e9)):
    strategy = gradients.Automatic(clip, gamma=gamma)
    for size in 10.0 ** -np.arange(0, 46, 3):
      kernel = tf.Variable(np.zeros([50, 2], 'float32'))
      with gradients.PerExampleTape() as tape:
        y = gradients.linear(tf.fill([1, 50], np.float32(1e-6)), kernel)
        losses = np.float32(size) * tf.reduce_sum(y, 1)
      found = tape.per_example_gradients(losses, [kernel])
      (total,) = strategy.clip_and_sum(found)
      assert np.linalg.norm(total.numpy().astype('float64')) <= clip


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.parametrize('uses', [2, 12])
@pytest.mark.parametrize('masked', [False, True])
def test_uses_that_cancel_do_not_escape(name, uses, masked):
  """Uses of one kernel whose gradients cancel but for rounding."""
  rng = np.random.default_rng(0)
  kernel = tf.Variable(np.zeros([64, 3], 'float32'))
  mask = tf.constant(np.tri(64, 3, dtype='float32')) if masked else None
  x = (rng.normal(size=[1, 64]) * 1e3).astype('float32')
  with gradients.PerExampleTape() as tape:
    losses = 0.0
    for use in range(uses):
      near = (x * (1 + 1e-7 * rng.normal(size=x.shape))).astype('float32')
      y = gradients.linear(tf.constant(near), kernel, mask=mask)
      losses += (-1) ** use * 1e5 * tf.reduce_sum(y, 1)
  found = tape.per_example_gradients(losses, [kernel])
  total = STRATEGIES[name](1.0).clip_and_sum(found)
  assert _norm([t.numpy().astype('float64') for t in total]) <= 1 + 1e-5


@pytest.mark.parametrize('name', STRATEGIES)
@pytest.mark.parametrize('poison', [np.nan, np.inf])
def test_bad_examples_and_padding_leave_no_trace(name, poison):
  for uses in (1, 2):
    net = _Net(uses)
    strategy = STRATEGIES[name](1.0)
    x = net.x.copy()
    x[0] = poison
    x[-2:] = np.nan
    weights = tf.constant([1.0] * (BATCH - 2) + [0.0, np.nan])
    total = strategy.clip_and_sum(net.per_example(x), weights)
    clean = strategy.clip_and_sum(net.per_example(net.x[1:-2]))
    for a, b in zip(total, clean):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', STRATEGIES)
def test_an_empty_batch_sums_to_zero(name):
  net = _Net()
  total = STRATEGIES[name](1.0).clip_and_sum(net.per_example(net.x[:0]))
  assert all(not np.any(t) for t in total)


@pytest.mark.parametrize('name', STRATEGIES)
def test_weights_above_one_do_not_count_more(name):
  net = _Net()
  strategy = STRATEGIES[name](1.0)
  total = strategy.clip_and_sum(net.per_example(net.x), tf.fill([BATCH], 9.0))
  once = strategy.clip_and_sum(net.per_example(net.x))
  for a, b in zip(total, once):
    np.testing.assert_allclose(a, b)


@pytest.mark.core
@pytest.mark.parametrize('name', STRATEGIES)
def test_weights_are_one_for_each_example(name):
  """[batch, 1] would be broadcast to [batch, batch]: far above the bound."""
  net, strategy = _Net(), STRATEGIES[name](1.0)
  found = net.per_example(net.x)
  weights = [1, 0, 1, 1, 0, 1]
  functions = [strategy.clip_and_sum]
  if strategy.statistic_sensitivity:
    functions.append(strategy.statistic)
  for function in functions:
    for shape in ([BATCH, 1], [1, BATCH], [], [1], [BATCH + 1]):
      for kind in (tf.ones, np.ones, lambda s: np.ones(s).tolist()):
        with pytest.raises(ValueError, match='one for each example'):
          function(found, kind(shape))
    expected = tf.nest.flatten(function(found, tf.constant(weights, 'float32')))
    for kind in (list, np.array, tf.constant):
      for a, b in zip(
        tf.nest.flatten(function(found, kind(weights))), expected
      ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.core
@pytest.mark.parametrize('uses', [1, 2])
def test_thresholds_of_layers_do_not_depend_on_the_data(uses):
  net = _Net(uses)
  bad = net.x.copy()
  bad[0] = np.nan
  expected = net.per_example(net.x)
  for x in (net.x[1:], net.x[:0], bad, net.x * 1e30, net.x * 0):
    found = net.per_example(x)
    assert found.layers == expected.layers
    assert clipping._clips(found, 2.0) == clipping._clips(expected, 2.0)
  clips = clipping._clips(expected, 2.0).values()
  np.testing.assert_allclose(_norm(clips), 2.0)


@pytest.mark.parametrize('name', STRATEGIES)
def test_any_kind_of_term_works_with_every_strategy(name):
  """A term without the closed forms, and one for a kernel of rank 3."""

  class Term(terms.Term):
    def __init__(self, term):
      self.squared_norms = term.squared_norms
      self.weighted_sum = term.weighted_sum
      self.materialise = term.materialise

  net = _Net()
  strategy = STRATEGIES[name](1.0)
  expected = strategy.clip_and_sum(net.per_example(net.x))
  found = net.per_example(net.x)
  found._terms = [Term(t) for t in found._terms]
  for a, b in zip(strategy.clip_and_sum(found), expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

  kernel = tf.Variable(np.ones([4, 2, 3], 'float32'))
  scalar = tf.Variable(1.0)
  with gradients.PerExampleTape() as tape:
    y = gradients.linear(tf.constant(net.x), kernel)
    y *= gradients.per_example(scalar, BATCH)[:, None]
    losses = tf.reduce_sum(y**2, 1)
  found = tape.per_example_gradients(losses, [kernel, scalar])
  total = strategy.clip_and_sum(found)
  assert total[0].shape == [4, 2, 3]
  assert total[1].shape == []
  assert _norm(total) <= BATCH


def test_layers_come_from_uses_and_from_names():
  net = _Net()
  assert net.per_example(net.x).layers == net.layers
  with tf.name_scope('b'):
    names = ['dense/kernel', 'dense/bias', 'dense_1/kernel', 'other', 'other']
  variables = [tf.Variable(1.0, name=name) for name in names]
  twice = [tf.Variable(1.0, name='made/kernel') for _ in range(2)]
  with tf.GradientTape(persistent=True) as tape:
    losses = tf.ones([2]) * tf.add_n(variables + twice)
  found = gradients.PerExampleGradients(tape, losses, variables + twice)
  # Two variables of one name are in two layers.
  assert found.layers == [0, 0, 1, 2, 3, 4, 5]


def test_config_and_repr():
  for make in STRATEGIES.values():
    strategy = make(2.0)
    copy = type(strategy)(**strategy.get_config())
    assert copy.get_config() == strategy.get_config()
    assert type(strategy).__name__ in repr(strategy)
    assert float(strategy.fresh().l2_sensitivity) == 2.0
  flat = gradients.Flat(1.0)
  assert flat.fresh() is flat
  assert repr(flat) == 'Flat(l2_norm_clip=1)'


def test_bad_input():
  for make in (
    gradients.PerLayer,
    gradients.PerUnit,
    gradients.Automatic,
    lambda c: gradients.StochasticSparsification(c, 0.5),
  ):
    for clip in (0.0, -1.0, np.inf, np.nan, 1e-10, 1e10):
      with pytest.raises(ValueError, match='l2_norm_clip'):
        make(clip)
  for arguments, match in (
    ({'initial_clip': 0.0}, 'initial_clip'),
    ({'target_quantile': 1.0}, 'target_quantile'),
    ({'learning_rate': -1.0}, 'learning_rate'),
    ({'count_stddev': 0.0}, 'count_stddev'),
  ):
    with pytest.raises(ValueError, match=match):
      gradients.AdaptiveQuantile(**arguments)
  # The last two would be 0 in float32, or overflow 1 / gamma with the clip.
  for clip, gamma in (
    (1, 0.0),
    (1, np.nan),
    (1, np.inf),
    (1, 1e-50),
    (1e9, 1e-9),
  ):
    with pytest.raises(ValueError, match='gamma'):
      gradients.Automatic(clip, gamma=gamma)
  for sparsity, threshold in (
    (1.0, 1.0),
    (-0.1, 1.0),
    (0.5, -1),
    (0.5, np.nan),
  ):
    with pytest.raises(ValueError, match='sparsity|threshold'):
      gradients.StochasticSparsification(1.0, sparsity, threshold)
  with pytest.raises(ValueError, match='above 1'):
    gradients.AdaptiveQuantile(count_stddev=0.9).statistic_stddev(2.0, 100)
