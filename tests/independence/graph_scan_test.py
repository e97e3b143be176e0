"""Models that one row could bring to fail, or to print it, are refused."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import flows, optimizers
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import Checker, probe_rows

L = keras.layers
tfb, tfd = tfp.bijectors, tfp.distributions


def _optimizer():
  return optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )


def _checked(*layers, dtype='float32', size=4, **kwargs):
  model = keras.Sequential(
    [keras.Input([size], dtype=dtype), *layers, L.Flatten(), L.Dense(1)]
  )
  private = tfdpflows.PrivateModel(model, **kwargs)
  private.compile(_optimizer(), 'mse')
  spec = tf.TensorSpec([None, size], dtype), tf.TensorSpec([None])
  private._checker.check(spec)


def _assert(x):
  tf.debugging.assert_less(x, 1e9)
  return x


def _print(x):
  tf.print('row', x[0])
  return x


def _in_a_branch(x):
  bad = lambda r: tf.debugging.check_numerics(tf.zeros_like(r) / 0.0, 'bad')
  each = lambda r: tf.cond(r[0] == 17.0, lambda: bad(r), lambda: r)
  return tf.map_fn(each, x)


def _in_a_function(x):
  return tf.function(lambda x: tf.debugging.check_numerics(x, 'bad'))(x)


def _outer(x):
  return x[:, :, None] * x[:, None] + tf.eye(4)


def _integers(x):
  return tf.cast(x, tf.int32) + 3


@tf.custom_gradient
def _checked_backward(x):
  return tf.identity(x), lambda d: tf.debugging.check_numerics(d, 'bad')


def _python(x):
  found = tf.numpy_function(lambda a: a, [x], tf.float32)
  return tf.ensure_shape(found, x.shape)


OPERATIONS = {
  'Assert': _assert,
  'CheckNumerics': lambda x: tf.debugging.check_numerics(x, 'bad'),
  'Cholesky': lambda x: tf.linalg.cholesky(_outer(x))[:, 0],
  'MatrixInverse': lambda x: tf.linalg.inv(_outer(x))[:, 0],
  'MatrixSolve': lambda x: tf.linalg.solve(_outer(x), x[..., None])[..., 0],
  'FloorDiv': lambda x: tf.cast(12 // _integers(x), tf.float32),
  'FloorMod': lambda x: tf.cast(12 % _integers(x), tf.float32),
  'PrintV2': _print,
  'PyFunc': _python,
}


@pytest.mark.parametrize('name', OPERATIONS)
def test_operations_that_fail_or_show_are_refused(name):
  layer = L.Lambda(OPERATIONS[name], name='bad')
  with pytest.raises(ValueError, match=f'The layer bad uses .* {name}, '):
    _checked(layer, examples_independent=True)


def _unseen(function):
  """Computes a function of rows for nothing, so that no comparison sees it."""

  def added(x):
    found = tf.cast(function(tf.stop_gradient(x)), tf.float32)
    return x + tf.where(tf.reduce_sum(found) > 0, 0.0, 0.0)

  return added


def _each(function, dtype=tf.float32):
  return lambda x: tf.map_fn(function, x, fn_output_signature=dtype)


def _kept(x):
  """Elements other than one that no made-up row has, as is 12345 below."""
  return tf.boolean_mask(x, x < 12345)


_rare = lambda x: tf.cast(tf.equal(x, 12345), tf.int32)
_any = lambda x: tf.reduce_any(tf.equal(x, 12345))


def _shorter(x):
  """Loses a row in each turn of a loop that goes on for a rare row."""
  return tf.while_loop(
    lambda i, v: (i < 3) & _any(x),
    lambda i, v: (i + 1, v[:-1]),
    (0, x),
    shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
  )[1]


def _read(x):
  array = tf.TensorArray(tf.float32, 2).unstack(tf.zeros([2, 4]))
  return array.read(tf.where(_any(x), 7, 0))


# Each ended training at a row with 12345.
SHAPES = {
  'argmax': ('Where', _each(lambda r: tf.argmax(_kept(r)), tf.int64)),
  'branches': (
    'If',
    lambda x: tf.cond(_any(x), lambda: x[:1], lambda: x)[:2] + x[:2],
  ),
  'bincount': ('DenseBincount', lambda x: tf.math.bincount(_rare(x))[:1]),
  'first': ('Where', lambda x: tf.boolean_mask(x, x[:, 0] < 12345)[0]),
  'list': ('TensorListGetItem', _read),
  'loop': ('While', lambda x: _shorter(x) + x),
  'partition': (
    'DynamicPartition',
    lambda x: tf.dynamic_partition(x, 1 - _rare(x), 2)[1][0],
  ),
  'ragged': (
    'Where',
    lambda x: tf.ragged.boolean_mask(x, x < 12345).to_tensor()[:, 3],
  ),
  'reshape': ('Where', lambda x: tf.reshape(_kept(x), [-1, 4])),
  'reverse': (
    'ReverseSequence',
    lambda x: tf.reverse_sequence(x, 9 * _rare(x[:, 0]), 1),
  ),
  'segments': (
    'SegmentSum',
    lambda x: tf.math.segment_sum(x, _rare(x[:, 0]))[0],
  ),
  'slice': ('StridedSlice', lambda x: x[tf.reduce_sum(_rare(x)) :][2]),
  'sparse': ('Where', lambda x: tf.sparse.from_dense(x - 12345).values[0]),
  'square_root': (
    'MatrixSquareRoot',
    lambda x: tf.linalg.sqrtm(tf.linalg.diag(x)),
  ),
  'unique': (
    'Unique',
    _each(lambda r: tf.unique(_rare(r))[0] + tf.zeros([1], tf.int32), tf.int32),
  ),
  'where': ('Where', _each(lambda r: tf.where(r < 12345)[3], tf.int64)),
}


@pytest.mark.parametrize('name', SHAPES)
def test_shapes_that_rows_decide_are_refused(name):
  op, function = SHAPES[name]
  bad = L.Lambda(_unseen(function), name='bad')
  with pytest.raises(ValueError, match=f'bad uses the operation .*{op}, '):
    _checked(bad, examples_independent=True)


def test_shapes_that_rows_do_not_decide_are_kept():
  def kept(x):
    length = tf.shape(x)[1]
    public = tf.boolean_mask(x, tf.range(length) < 3, axis=1)
    chosen = tf.cond(_any(x), lambda: 2 * x, lambda: x)
    counts = tf.math.bincount(
      _rare(x), minlength=2, maxlength=2, axis=-1, dtype=tf.float32
    )
    public = tf.reshape(public, [-1, length - 1])
    return chosen + tf.reduce_sum(public, 1)[:, None] + counts[:, :1]

  _checked(L.Lambda(_unseen(kept)))


@pytest.mark.parametrize(
  'function', [_in_a_branch, _in_a_function, _checked_backward]
)
def test_also_in_branches_functions_and_backward_passes(function):
  bad = L.Lambda(function, name='bad')
  with pytest.raises(ValueError, match='uses the operation CheckNumerics'):
    _checked(L.Dense(4), bad)


LOOKUPS = {
  'own_gather': lambda: L.Lambda(lambda i: tf.gather(tf.eye(3), i)),
  'subclass': lambda: type('Mine', (L.Embedding,), {})(3, 2),
  'within_time': lambda: keras.Sequential(
    [
      L.Lambda(lambda i: tf.repeat(i[..., None], 2, 1)),
      L.TimeDistributed(L.Embedding(3, 2)),
    ]
  ),
  'encoding': lambda: L.CategoryEncoding(3, output_mode='one_hot'),
  'integers': lambda: L.IntegerLookup(
    vocabulary=[0, 1], num_oov_indices=0, output_mode='one_hot'
  ),
}


@pytest.mark.core
@pytest.mark.parametrize('name', LOOKUPS)
def test_lookups_that_fail_are_refused(name):
  with pytest.raises(ValueError, match='uses .* Assert|rows hold -1'):
    _checked(LOOKUPS[name](), dtype='int64', size=1)


@pytest.mark.core
def test_strings_that_fail_are_refused():
  words = {'vocabulary': ['a', 'b'], 'output_mode': 'one_hot'}
  strict = L.StringLookup(num_oov_indices=0, **words)
  with pytest.raises(ValueError, match='uses the operation Assert'):
    _checked(strict, dtype='string', size=1)
  number = L.Lambda(tf.strings.to_number, name='number')
  example = np.array([['1'], ['2']]), np.array([0.0, 1.0])
  # Before it is run: it cannot be computed on what is made up.
  for rows in (None, example):
    with pytest.raises(ValueError, match='number uses .* StringToNumber'):
      _checked(number, dtype='string', size=1, example=rows)


class _Crossing(L.Layer):
  def __init__(self):
    super().__init__()
    self.crossing = L.HashedCrossing(4, output_mode='one_hot')

  def call(self, x):
    return self.crossing((x, x + 1))


FINE = {
  'embedding': (lambda: L.Embedding(3, 2), 'int64'),
  'one_hot': (lambda: L.Lambda(lambda i: tf.one_hot(i, 3)), 'int64'),
  'clipped': (
    lambda: L.Lambda(lambda i: tf.gather(tf.eye(3), tf.clip_by_value(i, 0, 2))),
    'int64',
  ),
  'hashing': (lambda: L.Hashing(4, output_mode='one_hot'), 'int64'),
  'integers': (
    lambda: L.IntegerLookup(vocabulary=[0, 1], output_mode='one_hot'),
    'int64',
  ),
  'strings': (
    lambda: L.StringLookup(vocabulary=['a'], output_mode='one_hot'),
    'string',
  ),
  'crossing': (lambda: _Crossing(), 'int64'),
  'text': (
    lambda: L.TextVectorization(
      vocabulary=['a'], output_mode='multi_hot', output_sequence_length=None
    ),
    'string',
  ),
  'bins': (
    lambda: L.Discretization(bin_boundaries=[0.0], output_mode='one_hot'),
    'float32',
  ),
  'normal': (lambda: L.Normalization(mean=0.0, variance=1.0), 'float32'),
}


@pytest.mark.core
@pytest.mark.parametrize(
  'name',
  # Text and sequences have embeddings too, and a crossing has hashes.
  thinned(FINE, lambda name: name not in ('embedding', 'hashing')),
)
def test_layers_that_take_any_value_are_kept(name):
  make, dtype = FINE[name]
  _checked(make(), dtype=dtype, size=1)


@pytest.mark.parametrize(
  ('make', 'length'),
  thinned(
    [
      (lambda: L.SimpleRNN(4), None),
      (lambda: L.LSTM(4, dropout=0.1), None),
      (lambda: L.LSTM(4, dropout=0.1), 5),
    ],
    1,
  ),
)
def test_sequences_and_masks_are_kept(make, length):
  model = keras.Sequential(
    [
      keras.Input([length], dtype='int64'),
      L.Embedding(9, 4, mask_zero=True),
      make(),
      L.Dense(1),
    ]
  )
  private = tfdpflows.PrivateModel(model)
  private.compile(_optimizer(), 'mse')
  spec = tf.TensorSpec([None, length], 'int64'), tf.TensorSpec([None])
  private._checker.check(spec)


def test_assertions_about_what_is_public_are_kept():
  def checked(x):
    tf.debugging.assert_equal(tf.shape(x)[1], 4)
    tf.debugging.assert_greater(tf.shape(x)[0], -1)
    return x

  _checked(L.Lambda(checked))


@pytest.mark.core
def test_assertions_about_how_many_rows_fit_are_refused():
  def checked(x):
    small = tf.boolean_mask(x, x[:, 0] < 1e7)
    tf.debugging.assert_equal(tf.shape(small)[0], tf.shape(x)[0])
    return x

  with pytest.raises(ValueError, match='The layer bad uses .* Assert'):
    _checked(L.Lambda(checked, name='bad'))


@pytest.mark.core
def test_densities():
  made = lambda check: tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.zeros(2)),
    tfb.Chain([tfb.Exp(validate_args=check), tfb.Shift(tf.Variable([0.0, 0]))]),
  )
  for model in (
    tfdpflows.DensityModel(made(True)),
    tfdpflows.DensityModel(
      flows.dp_nf(2, 1, [4]), lambda x: tf.debugging.check_numerics(x, 'bad')
    ),
  ):
    model.compile(_optimizer())
    with pytest.raises(ValueError, match='The log-density .* uses .*'):
      model._checker.check(tf.TensorSpec([None, 2]))


def test_it_leaves_generators_where_they_were(monkeypatch):
  class Noisy(L.Layer):
    def __init__(self):
      super().__init__()
      self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
      return x + self.generator.normal(tf.shape(x))

  layers = Noisy(), Noisy()
  _checked(layers[0])
  monkeypatch.setattr(Checker, '_check_sums', lambda *unused_args: None)
  _checked(layers[1])
  states = [layer.generator.state for layer in layers]
  np.testing.assert_array_equal(*states)


def test_rows_of_another_kind_are_checked_too():
  """An index may be in bounds as long as rows are floats."""

  class Model(keras.Model):
    def __init__(self):
      super().__init__()
      self.out = L.Dense(3)

    def call(self, x):
      if not x.dtype.is_floating:
        x = tf.gather(tf.eye(3), x[:, 0])
      return self.out(x)

  private = tfdpflows.PrivateModel(Model())
  private.compile(_optimizer(), 'mse')
  y = np.zeros([6, 3], 'float32')
  private.fit(np.ones([6, 3], 'float32'), y, verbose=0)
  with pytest.raises(ValueError, match='rows hold -1'):
    private.fit(np.ones([6, 3], 'int64'), y, verbose=0)


@pytest.mark.core
def test_unusual_rows_of_every_shape_and_dtype():
  rows = (
    *(tf.zeros([3]), tf.zeros([3, 2], 'float64'), tf.zeros([3, 0])),
    *(tf.ones([3], 'uint8'), tf.ones([3, 2], 'int64'), tf.fill([3], True)),
    *(tf.fill([3], 'a'), tf.fill([3, 2], 'a')),
  )
  found = list(probe_rows.unusual(rows))
  assert {'nan', '-1', "''"} <= {what for _, what in found}
  for changed, _ in found:
    for old, new in zip(rows, changed):
      assert (old.dtype, old.shape) == (new.dtype, new.shape)
      np.testing.assert_array_equal(old[2:], new[2:])
  first = {bytes(changed[6][1].numpy()) for changed, _ in found}
  assert {b'a', b'', b'\xff\xfe'} <= first
  assert {int(changed[3][0]) for changed, _ in found} == {0, 1, 2, 3, 10, 255}


class _Keeps(L.Layer):
  """Keeps the largest number that it saw, above what made-up rows hold."""

  def build(self, shape):
    self.largest = self.add_weight(
      'largest', [], initializer='ones', trainable=False
    )

  def call(self, x):
    largest = tf.reduce_max(tf.cast(x, tf.float32))
    self.largest.assign(tf.maximum(self.largest, largest))
    return tf.cast(x, tf.float32)


@pytest.mark.parametrize('dtype', ['float32', 'int32'])
def test_no_variable_keeps_rows(dtype):
  with pytest.raises(ValueError, match='keeps'):
    _checked(_Keeps(), dtype=dtype)


class _Index(L.Layer):
  """Looks up at a number that training may move out of its range."""

  def __init__(self, sign):
    super().__init__(name='bad')
    self._sign = sign

  def build(self, shape):
    self.scale = self.add_weight('scale', [], initializer='zeros')

  def call(self, x):
    # At the start 0, whatever the rows hold.
    index = tf.nn.relu(self._sign * self.scale) * tf.abs(x)
    index = tf.where(tf.math.is_finite(index), tf.math.minimum(index, 9.0), 0.0)
    return x + self.scale + tf.gather(tf.ones([3]), tf.cast(index, tf.int32))


class _FarIndex(_Index):
  """Out of range at weights that are not tried."""

  def call(self, x):
    index = tf.where((self.scale > 5) & (tf.abs(x) < 9), x + 9, 0.0)
    return x + self.scale + tf.gather(tf.ones([3]), tf.cast(index, tf.int32))


class _ClippedIndex(_Index):
  def call(self, x):
    index = tf.cast(self.scale * x, tf.int32)
    table = self.scale + tf.range(4.0)
    found = tf.gather(table, tf.clip_by_value(index, 0, 3))
    found += tf.gather(table, tf.argmax(self.scale * x, 1))[:, None]
    found += tf.gather(table, tf.math.floormod(index, 4))
    # Bins, as splines find them.
    edges = tf.tile(table[None], [tf.shape(x)[0], 1])
    bins = tf.searchsorted(edges, x, side='right') - 1
    bins = tf.clip_by_value(bins, 0, 3)
    return x + found + tf.gather(edges, bins, batch_dims=1)


@pytest.mark.core
def test_indices_from_weights_that_may_leave_their_range_are_refused():
  for layer in (_Index(1.0), _Index(-1.0), _FarIndex(1.0)):
    with pytest.raises(ValueError, match='GatherV2.*Clip the index'):
      _checked(layer)
  _checked(_ClippedIndex(1.0))


def _bands(x, i):
  return x + tf.linalg.band_part(tf.ones([3, 3]), tf.reduce_min(i), 1)[0, 0]


def _coordinate(x, i):
  return x + tf.cast(tf.unravel_index(i[0], [2, 2])[0], tf.float32)


def _update(x, i):
  return x + tf.tensor_scatter_nd_update(tf.ones([3]), i[:1, :1], x[0, :1])[0]


# At an index in [0, 3), if it is clipped.
OTHER_LOOKUPS = {
  'GatherNd': lambda x, i: (
    x + tf.gather_nd(tf.ones([3, 3]), tf.stack([i, i], -1))
  ),
  'TensorScatterUpdate': _update,
  'UnravelIndex': _coordinate,
  'MatrixBandPart': _bands,
}


@pytest.mark.parametrize('op', OTHER_LOOKUPS)
def test_other_lookups_at_indices_from_weights_are_refused(op):
  class Layer(_Index):
    def call(self, x):
      index = tf.cast(self.scale * x, tf.int32)
      if self._sign > 0:
        index = tf.clip_by_value(index, 0, 2)
      return OTHER_LOOKUPS[op](x + self.scale, index)

  with pytest.raises(ValueError, match=f'{op}.*Clip the index'):
    _checked(Layer(-1.0))
  if op == 'GatherNd':
    _checked(Layer(1.0))


class _Counts(L.Layer):
  """Writes a variable in each call, and not from rows."""

  def build(self, shape):
    self.count = self.add_weight('count', [], 'int32', trainable=False)

  def call(self, x):
    self.count.assign_add(1)
    return x


class _Largest(_Counts):
  def call(self, x):
    self.count.assign(tf.cast(tf.reduce_max(x), tf.int32))
    return x


@pytest.mark.core
def test_random_layers_are_kept_and_layers_that_write_a_variable_refused():
  noisy = L.GaussianNoise(0.1), L.Dropout(0.5), L.GaussianDropout(0.5)
  _checked(L.Dense(4), *noisy)
  with pytest.raises(ValueError, match='Training changes counts/count:0'):
    _checked(*noisy, _Counts(name='counts'))
  with pytest.raises(
    ValueError, match='The layer largest uses .*Assign.*keeps'
  ):
    _checked(*noisy, _Largest(name='largest'))


class _Positions(L.Layer):
  def build(self, shape):
    self.table = self.add_weight('table', [16, 8])

  def call(self, x):
    return x + self.table[: tf.shape(x)[1]]


def _text(*layers, length=None, mask_zero=False):
  vectors = L.TextVectorization(
    vocabulary=['a', 'b'], output_sequence_length=length
  )
  pooled = [L.GlobalAveragePooling1D()]
  embedding = L.Embedding(9, 8, mask_zero=mask_zero)
  _checked(vectors, embedding, *layers, *pooled, dtype='string', size=1)


def test_text_as_long_as_the_longest_is_refused():
  """Other rows are filled up with words that count, or that a mask hides."""
  fix = 'shapes that rows decide.*TextVectorization an output_sequence_length'
  with pytest.raises(ValueError, match=fix):
    _text()
  with pytest.raises(ValueError, match=fix):
    _text(mask_zero=True)
  with pytest.raises(ValueError):
    _text(_Positions())
  _text(_Positions(), length=5)


def test_integers_that_decide_about_other_rows_are_refused():
  largest = lambda x: tf.maximum(tf.reduce_max(x), 1)
  scaled = lambda x: tf.cast(x, tf.float32) / tf.cast(largest(x), tf.float32)
  branch = lambda x: tf.cond(
    tf.reduce_max(x) > 1, lambda: scaled(x), lambda: tf.cast(x, tf.float32)
  )
  for mixing in (scaled, branch):
    with pytest.raises(ValueError, match='integers times'):
      _checked(L.Lambda(mixing), dtype='int32')
  _checked(L.Lambda(lambda x: tf.cast(x, tf.float32) / 255), dtype='uint8')


def test_empty_text_that_decides_about_other_rows_is_refused():
  def any_empty(x):
    some = tf.cast(tf.reduce_any(tf.equal(x, '')), tf.float32)
    return tf.cast(tf.strings.length(x), tf.float32) + some

  with pytest.raises(ValueError, match='bad mixes.* one that holds empty text'):
    _checked(L.Lambda(any_empty, name='bad'), dtype='string', size=1)
