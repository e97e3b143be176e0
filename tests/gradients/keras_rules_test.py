"""Rules of Keras layers: same output, per-example gradients in one pass."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients
from tfdpflows._keras import keras
from tfdpflows.gradients import fallback
from tfdpflows.gradients import layers as rules
from tfdpflows.gradients.rules import PerExampleGradients

L = keras.layers
BATCH = 5


def _floats(*shape, seed=0):
  values = np.random.default_rng(seed).normal(size=(BATCH,) + shape)
  return tf.constant(values.astype('float32'))


def _ids(*shape, vocabulary=6):
  rng = np.random.default_rng(0)
  return tf.constant(rng.integers(0, vocabulary, (BATCH,) + shape))


class _Cell(L.Layer):
  """A cell that is called step by step, as in a subclassed model."""

  def __init__(self, cell):
    super().__init__()
    self.cell = cell

  def call(self, x):
    state = [tf.zeros([tf.shape(x)[0], self.cell.units])]
    for t in range(3):
      y, state = self.cell(x[:, t], state)
    return y


class _Twice(L.Layer):
  """Uses one layer at two sizes."""

  def __init__(self, layer):
    super().__init__()
    self.layer = layer

  def call(self, x):
    one = self.layer(x)
    return tf.concat([one[:, :1], self.layer(tf.tanh(one)[:, :2])], 1)


CASES = {
  'dense': (lambda: L.Dense(3, 'tanh'), _floats(4)),
  'dense_no_bias': (lambda: L.Dense(3, use_bias=False), _floats(4)),
  'dense_positions': (lambda: L.Dense(3, 'relu'), _floats(2, 6, 4)),
  'embedding': (lambda: L.Embedding(6, 3), _ids(8)),
  'embedding_one': (lambda: L.Embedding(6, 3), _ids()),
  'embedding_rank_3': (lambda: L.Embedding(6, 3), _ids(2, 4)),
  'embedding_mask': (
    lambda: keras.Sequential(
      [L.Embedding(6, 3, mask_zero=True), L.GRU(2), L.Dense(2)]
    ),
    _ids(4),
  ),
  'embedding_of_floats': (
    lambda: L.Embedding(6, 3),
    tf.cast(_ids(4), tf.float32),
  ),
  'einsum': (
    lambda: L.EinsumDense('ab,bc->ac', 3, bias_axes='c'),
    _floats(4),
  ),
  'einsum_heads': (
    lambda: L.EinsumDense('abc,cde->abde', [None, 2, 3], bias_axes='de'),
    _floats(5, 4),
  ),
  'einsum_one_bias': (
    lambda: L.EinsumDense('abc,cde->abde', [3, 2, 3], bias_axes='d'),
    _floats(3, 4),
  ),
  'einsum_heads_back': (
    lambda: L.EinsumDense('abde,dec->abc', [3, 4], 'tanh', bias_axes='c'),
    _floats(3, 2, 3),
  ),
  'einsum_dots': (
    lambda: L.EinsumDense('...x,xy->...y', 3, bias_axes='y'),
    _floats(2, 2, 4),
  ),
  'layer_norm': (lambda: L.LayerNormalization(), _floats(4)),
  'layer_norm_sequence': (
    lambda: L.LayerNormalization(epsilon=1e-6),
    _floats(3, 4),
  ),
  'layer_norm_two_axes': (
    lambda: L.LayerNormalization(axis=[1, 2]),
    _floats(3, 4),
  ),
  'layer_norm_axis_1': (lambda: L.LayerNormalization(axis=1), _floats(3, 4)),
  'layer_norm_no_scale': (
    lambda: L.LayerNormalization(scale=False),
    _floats(4),
  ),
  'layer_norm_no_center': (
    lambda: L.LayerNormalization(center=False),
    _floats(4),
  ),
  'group_norm': (lambda: L.GroupNormalization(2), _floats(3, 2, 4)),
  'group_norm_axis_1': (
    lambda: L.GroupNormalization(3, axis=1, scale=False),
    _floats(6, 4),
  ),
  'gru': (lambda: L.GRU(3), _floats(4, 2)),
  'gru_sequences': (
    lambda: L.GRU(3, return_sequences=True, go_backwards=True),
    _floats(4, 2),
  ),
  'gru_unroll': (lambda: L.GRU(3, unroll=True), _floats(4, 2)),
  'gru_no_bias': (lambda: L.GRU(3, use_bias=False), _floats(4, 2)),
  'gru_implementation_1': (lambda: L.GRU(3, implementation=1), _floats(4, 2)),
  'gru_cell': (lambda: _Cell(L.GRUCell(3)), _floats(3, 2)),
  'rnn_of_cell': (lambda: L.RNN(L.GRUCell(3)), _floats(4, 2)),
  'rnn_stacked': (
    lambda: L.RNN([L.GRUCell(3), L.LSTMCell(2)]),
    _floats(3, 2),
  ),
  'lstm': (lambda: L.LSTM(3), _floats(4, 2)),
  'simple_rnn': (lambda: L.SimpleRNN(3), _floats(4, 2)),
  'bidirectional': (lambda: L.Bidirectional(L.GRU(2)), _floats(3, 2)),
  'time_distributed': (lambda: L.TimeDistributed(L.Dense(3)), _floats(4, 2)),
  'conv1d': (lambda: L.Conv1D(2, 2), _floats(3, 2)),
  'conv1d_causal': (
    lambda: L.Conv1D(3, 2, padding='causal', dilation_rate=2),
    _floats(5, 2),
  ),
  'conv1d_same': (
    lambda: L.Conv1D(3, 3, 2, 'same', use_bias=False),
    _floats(6, 2),
  ),
  'conv2d': (lambda: L.Conv2D(2, 2, activation='relu'), _floats(3, 3, 2)),
  'conv2d_same': (
    lambda: L.Conv2D(3, (3, 2), (2, 1), 'same', activation='tanh'),
    _floats(5, 4, 2),
  ),
  'conv2d_dilated': (
    lambda: L.Conv2D(2, 2, padding='same', dilation_rate=(2, 1)),
    _floats(4, 5, 3),
  ),
  'conv2d_twice': (
    lambda: keras.Sequential(
      [L.Conv2D(3, 2, activation='tanh'), L.MaxPool2D(2, 1), L.Conv2D(2, 2)]
    ),
    _floats(5, 5, 2),
  ),
  # Two positions, eight channels: the norm takes the patches.
  'conv1d_few_positions': (lambda: L.Conv1D(8, 2), _floats(3, 2)),
  'conv2d_strides': (
    lambda: L.Conv2D(2, 2, 3, 'same', activation='tanh'),
    _floats(7, 8, 3),
  ),
  # Patches are not gathered.
  'conv2d_wide': (
    lambda: L.Conv2D(3, 3, 2, 'same', activation='tanh'),
    _floats(4, 5, 16),
  ),
  'conv1d_groups': (
    lambda: L.Conv1D(4, 2, groups=2, padding='causal'),
    _floats(3, 4),
  ),
  'conv2d_groups': (
    lambda: L.Conv2D(6, 2, strides=2, padding='same', groups=3),
    _floats(4, 3, 3),
  ),
  'conv2d_groups_twice': (
    lambda: keras.Sequential(
      [L.Conv2D(4, 2, groups=2), L.Conv2D(4, 2, groups=4)]
    ),
    _floats(3, 3, 4),
  ),
  'conv3d': (
    lambda: L.Conv3D(2, 2, (1, 2, 1), 'same', activation='tanh'),
    _floats(2, 3, 2, 2),
  ),
  'conv3d_groups': (lambda: L.Conv3D(4, 2, groups=2), _floats(3, 2, 2, 4)),
  'depthwise_conv2d': (
    lambda: L.DepthwiseConv2D(2, 2, 'same', 2, activation='tanh'),
    _floats(5, 4, 3),
  ),
  'depthwise_conv2d_valid': (
    lambda: L.DepthwiseConv2D((3, 2), use_bias=False),
    _floats(5, 4, 3),
  ),
  'depthwise_conv2d_dilated': (
    lambda: L.DepthwiseConv2D(2, depth_multiplier=2, dilation_rate=2),
    _floats(4, 4, 3),
  ),
  'depthwise_conv1d': (
    lambda: L.DepthwiseConv1D(3, 2, 'same', 2),
    _floats(6, 3),
  ),
  'separable_conv2d': (
    lambda: L.SeparableConv2D(
      4, 3, 2, 'same', depth_multiplier=2, activation='tanh'
    ),
    _floats(5, 4, 3),
  ),
  'separable_conv2d_dilated': (
    lambda: L.SeparableConv2D(2, 2, dilation_rate=2, use_bias=False),
    _floats(4, 5, 3),
  ),
  'separable_conv1d': (lambda: L.SeparableConv1D(3, 3), _floats(5, 4)),
  'separable_conv1d_causal': (
    lambda: L.SeparableConv1D(3, 2, padding='causal', dilation_rate=2),
    _floats(5, 4),
  ),
  # With all positions its gradients are stored, with two patches are.
  'conv1d_used_twice': (
    lambda: _Twice(L.Conv1D(8, 2, padding='same')),
    _floats(5, 8),
  ),
  'depthwise_conv1d_used_twice': (
    lambda: _Twice(L.DepthwiseConv1D(2, padding='same')),
    _floats(5, 3),
  ),
  'conv1d_transpose': (
    lambda: L.Conv1DTranspose(3, 3, 2, 'same'),
    _floats(4, 2),
  ),
  'conv2d_transpose': (
    lambda: L.Conv2DTranspose(3, 2, strides=2, activation='tanh'),
    _floats(2, 2, 4),
  ),
  'conv2d_transpose_few_positions': (
    lambda: L.Conv2DTranspose(3, 2, strides=2),
    _floats(1, 2, 8),
  ),
  'conv2d_transpose_gaps': (
    lambda: L.Conv2DTranspose(2, (2, 3), 3, output_padding=(1, 2)),
    _floats(2, 3, 2),
  ),
  'conv2d_transpose_same': (
    lambda: L.Conv2DTranspose(2, 3, 2, 'same', use_bias=False),
    _floats(3, 2, 2),
  ),
  'conv2d_transpose_dilated': (
    lambda: L.Conv2DTranspose(2, 2, padding='same', dilation_rate=2),
    _floats(3, 4, 2),
  ),
  'conv3d_transpose': (
    lambda: L.Conv3DTranspose(2, 2, (2, 1, 2), 'same'),
    _floats(2, 2, 3, 2),
  ),
}
SLOW = {
  'einsum_not_a_product': (
    lambda: L.EinsumDense('abc,bcd->abd', [3, 2]),
    _floats(3, 4),
  ),
  'gru_reset_before': (
    lambda: L.GRU(2, reset_after=False, unroll=True),
    _floats(2, 2),
  ),
  'prelu': (lambda: L.PReLU(), _floats(4)),
  'locally_connected': (lambda: L.LocallyConnected1D(2, 2), _floats(3, 2)),
  'conv2d_of_sequences': (lambda: L.Conv2D(2, 2), _floats(2, 3, 3, 2)),
}


# Ways of the same rules: `make test` has `bidirectional`, `embedding_mask`,
# `gru`, `gru_sequences`, `lstm` and the others.
ALIKE = (
  'gru_unroll',
  'gru_no_bias',
  'gru_implementation_1',
  'rnn_stacked',
  'rnn_of_cell',
  'einsum_heads_back',
  'layer_norm_no_center',
  'layer_norm_no_scale',
  'layer_norm_sequence',
  'dense_no_bias',
  'einsum_one_bias',
  'embedding_rank_3',
)
NAMES = thinned(CASES, lambda name: name not in ALIKE)


def _built(name):
  make, x = {**CASES, **SLOW}[name]
  layer = make()
  layer(x)
  rng = np.random.default_rng(1)
  for v in layer.trainable_variables:
    v.assign_add(rng.normal(size=v.shape).astype('float32') * 0.2)
  return layer, x


def _all(layer):
  return [layer] + [m for m in layer.submodules if isinstance(m, L.Layer)]


def _loss(y):
  y = tf.reshape(tf.sin(y + 0.1), [BATCH, -1])
  return tf.reduce_sum(y * tf.range(1.0, y.shape[1] + 1), 1)


def _jacobian(layer, x):
  with tf.GradientTape(persistent=True) as tape:
    loss = _loss(layer(x))
  variables = layer.trainable_variables
  found = tape.jacobian(loss, variables, experimental_use_pfor=False)
  found = [tf.convert_to_tensor(j) for j in found]
  squared = sum(np.sum(np.reshape(j, [BATCH, -1]) ** 2, 1) for j in found)
  return found, squared


def _fast(layer, x, clip):
  with rules.layer_rules(_all(layer)), gradients.PerExampleTape() as tape:
    loss = _loss(layer(x))
  found = tape.per_example_gradients(loss, layer.trainable_variables)
  return found.squared_norms(), gradients.Flat(clip).clip_and_sum(found)


@pytest.mark.core
@pytest.mark.parametrize('name', NAMES)
def test_rule_gives_the_layers_own_output(name):
  layer, x = _built(name)
  expected = layer(x)
  with rules.layer_rules(_all(layer)):
    found = layer(x)
    with gradients.PerExampleTape() as tape:
      recorded = layer(x)
  assert tape.records
  assert found.shape == expected.shape and found.dtype == expected.dtype
  for y in (found, recorded):
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6)
  assert all('call' not in vars(one) for one in _all(layer))


@pytest.mark.core
@pytest.mark.parametrize('mode', thinned(['function', 'eager', 'xla'], 1))
@pytest.mark.parametrize('name', NAMES)
def test_equals_jacobian_and_clip(name, mode):
  layer, x = _built(name)
  jacobian, squared = _jacobian(layer, x)
  clip = float(np.median(np.sqrt(squared)))
  run = lambda: _fast(layer, x, clip)
  if mode != 'eager':
    run = tf.function(run, jit_compile=mode == 'xla')
  found_squared, found = run()
  # Norms include what squares below the smallest numbers have lost.
  np.testing.assert_allclose(found_squared, squared, rtol=5e-5, atol=1e-30)
  scale = np.minimum(1, clip / np.sqrt(squared)).astype('float32')
  for f, j in zip(found, jacobian):
    expected = np.tensordot(scale, j, 1)
    atol = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(f, expected, rtol=1e-5, atol=atol)


CONVOLUTIONS = {
  'patches': lambda **kw: L.Conv2D(40, 2, **kw),
  'products': lambda **kw: L.Conv2D(2, 2, **kw),
  'groups': lambda **kw: L.Conv2D(4, 2, groups=2, **kw),
  'depthwise': lambda **kw: L.DepthwiseConv2D(2, **kw),
  'separable': lambda **kw: L.SeparableConv2D(3, 2, **kw),
  'transposed': lambda **kw: L.Conv2DTranspose(3, 2, **kw),
}


@pytest.mark.core
@pytest.mark.parametrize('name', CONVOLUTIONS)
def test_convolutions_keep_examples_apart(name):
  """In float64, of two draws each; nan and padding contribute nothing."""
  layer = CONVOLUTIONS[name](dtype='float64')
  x = np.random.default_rng(0).normal(size=[6, 4, 4, 4])
  layer(x)

  def clipped(x, weights):
    with rules.layer_rules([layer]), gradients.PerExampleTape() as tape:
      y = tf.sin(layer(x))
      loss = tf.reduce_sum(tf.reshape(y, [-1, 2 * np.prod(y.shape[1:])]), 1)
    found = PerExampleGradients(tape, loss, layer.trainable_variables, draws=2)
    return gradients.Flat(2.0).clip_and_sum(found, weights)

  total = clipped(tf.constant(x[:2]), None)
  length = np.sqrt(sum(np.sum(np.square(t)) for t in total))
  np.testing.assert_allclose(length, 2.0, rtol=1e-12)
  x[2] = np.nan
  found = clipped(tf.constant(x), tf.constant([1.0, 1.0, 0.0]))
  for one, two in zip(found, total):
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.core
def test_layers_made_of_convolutions_have_no_rule():
  class Own(L.DepthwiseConv2D):
    def call(self, x):
      return 2 * super().call(x)

  assert rules.rule_of(Own(2)) is None
  first = L.Conv2D(2, 2, data_format='channels_first')
  first.build([None, 2, 3, 3])
  assert rules.rule_of(first)(first, _floats(2, 3, 3)) is NotImplemented


@pytest.mark.parametrize('name', CASES)
def test_no_variable_takes_the_slow_way(name, monkeypatch):
  layer, x = _built(name)
  slow = lambda *args, **kwargs: pytest.fail('tape.jacobian was called')
  monkeypatch.setattr(tf.GradientTape, 'jacobian', slow)
  _fast(layer, x, 1.0)


@pytest.mark.parametrize(
  # These are in fallback_test.py, too.
  'name',
  thinned(SLOW, lambda name: name not in ('conv1d_groups', 'conv3d_groups')),
)
def test_what_no_rule_knows_falls_back(name):
  layer, x = _built(name)
  jacobian, squared = _jacobian(layer, x)
  found_squared, found = _fast(layer, x, 1e6)
  np.testing.assert_allclose(found_squared, squared, rtol=5e-5)
  for f, j in zip(found, jacobian):
    np.testing.assert_allclose(f, np.sum(j, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.core
def test_layers_without_a_rule_are_logged_once_by_variable(caplog):
  layer, x = _built('locally_connected')
  # Once in a process: other tests may have had a variable of this name.
  fallback._LOGGED.clear()
  with caplog.at_level('INFO', logger='absl'):
    for _ in range(2):
      _fast(layer, x, 1.0)
  for v in layer.trainable_variables:
    lines = [r.message for r in caplog.records if v.name in r.message]
    assert len(lines) == 1 and 'tape.jacobian' in lines[0]


def test_options_without_a_rule_are_logged_once(caplog):
  layer, x = _built('gru_reset_before')
  rules._LOGGED.clear()
  with caplog.at_level('INFO', logger='absl'):
    for _ in range(2):
      _fast(layer, x, 1.0)
  lines = [r.message for r in caplog.records if 'not support all' in r.message]
  assert len(lines) == 1 and layer.cell.name in lines[0]


@pytest.mark.core
def test_dropout_of_cells_is_one_draw():
  """Forward and backward see the same mask, examples masks of their own."""
  for layer in (L.GRU(3, dropout=0.5), L.LSTM(3, dropout=0.5)):
    x = tf.ones([BATCH, 4, 6])
    layer(x)
    with rules.layer_rules(_all(layer)), gradients.PerExampleTape() as tape:
      loss = _loss(layer(x, training=True))
    found = tape.per_example_gradients(loss, [layer.cell.kernel])
    (g,) = found.materialise()
    # Dropped inputs have no gradient, in all steps alike.
    assert len({tuple(~np.any(row, 1)) for row in g.numpy()}) > 1


@pytest.mark.core
def test_a_rule_of_ones_own_and_of_exactly_this_class():
  class Scale(L.Layer):
    def build(self, shape):
      self.factor = self.add_weight('factor', shape[1:], initializer='ones')

    def call(self, x):
      return x * self.factor

  class Twice(Scale):
    def call(self, x):
      return 2 * super().call(x)

  @gradients.register_rule(Scale)
  def scale(layer, x):
    return x * gradients.per_example(layer.factor, tf.shape(x)[0])

  assert rules.rule_of(Scale()) is scale
  assert rules.rule_of(Twice()) is None
  x = _floats(4)
  layer = Scale()
  layer(x)
  jacobian, squared = _jacobian(layer, x)
  found_squared, (found,) = _fast(layer, x, 1e6)
  np.testing.assert_allclose(found_squared, squared, rtol=1e-5)
  np.testing.assert_allclose(found, np.sum(jacobian[0], 0), rtol=1e-4)
  layer.call = lambda x: x
  assert rules.rule_of(layer) is None


def test_rules_end_with_the_context_also_after_an_error():
  layer, _ = _built('dense')

  def fail():
    with rules.layer_rules([layer]):
      assert 'call' in vars(layer)
      raise RuntimeError

  with pytest.raises(RuntimeError):
    fail()
  assert 'call' not in vars(layer)


@pytest.mark.core
def test_positions_taken_for_examples_are_an_error():
  """Each of t positions would be clipped by itself: a sum of t C."""
  layer = L.Dense(3)
  x = _floats(4, 2)

  def total(x):
    with rules.layer_rules([layer]), gradients.PerExampleTape() as tape:
      y = layer(tf.reshape(x, [-1, 2]))
      loss = tf.reduce_sum(tf.reshape(y, [tf.shape(x)[0], -1]), 1)
    found = tape.per_example_gradients(loss, [layer.kernel])
    return gradients.Flat(1.0).clip_and_sum(found)

  layer(x)
  unknown = [tf.TensorSpec([None, 4, 2])]
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    total(x)
  for xla in (False, True):
    run = tf.function(total, jit_compile=xla, input_signature=unknown)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
      run(x)


class TestEmbedding:
  """The primitive by itself."""

  def _term(self, ids, seed=0, scale=1.0):
    table = tf.Variable(tf.zeros([7, 3]))
    size = np.shape(ids) + (3,)
    d = np.random.default_rng(seed).normal(size=size).astype('float32') * scale
    with gradients.PerExampleTape() as tape:
      y = gradients.embedding(tf.constant(ids), table)
      axes = list(range(1, y.shape.rank))
      loss = tf.reduce_sum(y * d, axes)
    expected = np.zeros([len(ids), 7, 3], 'float32')
    for i, row in enumerate(ids):
      np.add.at(expected[i], row.ravel(), d[i].reshape(-1, 3))
    return tape.per_example_gradients(loss, [table]), expected

  @pytest.mark.parametrize('shape', [(), (1,), (6,), (2, 3), (0,)])
  @pytest.mark.parametrize('batch', [0, 1, 4])
  def test_sums_of_equal_rows(self, batch, shape):
    ids = np.random.default_rng(1).integers(0, 7, (batch,) + shape)
    found, expected = self._term(ids)
    np.testing.assert_allclose(
      found.squared_norms(), np.sum(expected**2, (1, 2)), rtol=1e-5
    )
    (g,) = found.materialise()
    np.testing.assert_allclose(g, expected, rtol=1e-5, atol=1e-6)
    weights = np.linspace(0, 1, batch).astype('float32')
    (total,) = found.weighted_sum(tf.constant(weights), np.inf)
    np.testing.assert_allclose(
      total, np.tensordot(weights, expected, 1), rtol=1e-4, atol=1e-5
    )

  @pytest.mark.core
  @pytest.mark.parametrize('xla', [False, True])
  def test_positions_that_cancel_do_not_escape_the_clip(self, xla):
    """200 positions of one row, whose gradients cancel but for rounding."""
    table = tf.Variable(tf.zeros([7, 3]))
    rng = np.random.default_rng(0)
    half = rng.normal(size=[1, 100, 3]).astype('float32')
    ids = tf.ones([1, 200], tf.int32)

    @tf.function(jit_compile=xla)
    def total(d):
      with gradients.PerExampleTape() as tape:
        loss = tf.reduce_sum(gradients.embedding(ids, table) * d, [1, 2])
      found = tape.per_example_gradients(loss, [table])
      return gradients.Flat(0.5).clip_and_sum(found)[0]

    for scale in np.float32([1e-38, 1e-20, 1.0, 1e10, 1e38]):
      d = tf.constant(scale * np.concatenate([half, -half], 1))
      norm = np.linalg.norm(total(d).numpy().astype('float64'))
      assert norm <= 0.5 * (1 + 1e-5)

  def test_no_tensor_of_batch_times_vocabulary(self):
    """128 examples of a table of a million rows would be 512 MB."""
    table = tf.Variable(tf.zeros([1_000_000, 1]))
    ids = tf.random.stateless_uniform([128, 4], [0, 1], 0, 1_000_000, tf.int64)

    @tf.function
    def total():
      with gradients.PerExampleTape() as tape:
        loss = tf.reduce_sum(gradients.embedding(ids, table), [1, 2])
      found = tape.per_example_gradients(loss, [table])
      return gradients.Flat(0.5).clip_and_sum(found)[0]

    sizes = [
      int(np.prod([d or 0 for d in t.shape.as_list()]))
      for op in total.get_concrete_function().graph.get_operations()
      for t in op.outputs
      if t.shape.rank
    ]
    assert max(sizes) <= 1_000_000
    assert abs(float(tf.reduce_sum(total())) - 128) < 1e-2 * 128 * 10

  def test_used_twice_and_tied_to_the_output(self):
    """Looked up two times and as the output's kernel: all summed first."""
    table = tf.Variable(np.random.default_rng(0).normal(size=[7, 3]))
    ids = tf.constant([[1, 2], [1, 1], [6, 0]])

    def loss():
      one = gradients.embedding(ids, table)
      two = gradients.embedding(ids[:, ::-1] * 0 + 1, table)
      h = tf.reduce_sum(tf.sin(one) * two, 1)
      return tf.reduce_sum(tf.matmul(h, table, transpose_b=True) ** 2, 1)

    with tf.GradientTape(persistent=True) as plain:
      value = loss()
    expected = plain.jacobian(value, table)
    with gradients.PerExampleTape() as tape:
      value = loss()
    (found,) = tape.per_example_gradients(value, [table]).materialise()
    np.testing.assert_allclose(found, expected, rtol=1e-8)
