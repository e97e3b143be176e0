"""Which graphs keep rows apart, at any weights and for any values."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import axes
from tfdpflows.independence.shape_arithmetic import OTHER_ROWS, ROWS

L = keras.layers
tfb, tfd = tfp.bijectors, tfp.distributions
SPEC = tf.TensorSpec([None, 4])


def _follow(function, spec=SPEC):
  traced = tf.function(function, autograph=False)
  return axes.follow(traced.get_concrete_function(spec))


def _gradient(function):
  """Returns the function that computes the gradients at its rows."""

  def of_rows(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = function(x)
    return tf.convert_to_tensor(tape.gradient(y, x))

  return of_rows


@tf.custom_gradient
def _mixes_backward(x):
  return tf.identity(x), lambda d: d / (1e-3 + tf.norm(d))


@tf.custom_gradient
def _apart_backward(x):
  return tf.identity(x), lambda d: d / (1e-3 + tf.norm(d, axis=1)[:, None])


def _batch_norm(x):
  mean, variance = tf.nn.moments(x, [0])
  return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def _rows(x):
  return tf.shape(x)[0]


def _mostly(x):
  """Their number, where there are few or very many rows; else 1."""
  n = _rows(x)
  return tf.where((n > 20) & (n < 5000), 1, n)


def _largest(x):
  return tf.argmax(x, 1, output_type=tf.int32)


def _polynomial(x):
  """A number that is zero for the numbers of rows that are looked at."""
  n = _rows(x)
  return (n - ROWS) * (n - OTHER_ROWS) * (n - 3) * (n - 2) * (n - 1)


def _drawn_by(x, seed_of):
  """Random numbers of rows, by a seed that is made of drawn numbers."""
  a, b = (GENERATOR.uniform_full_int([2], tf.int32) for _ in range(2))
  return tf.random.stateless_uniform([_rows(x), 1], seed_of(a, b))


def _forgotten(x):
  """Begins as 1 or more, becomes 0 in a loop, and is 1 at most."""
  least = tf.maximum(tf.cast(tf.reduce_max(x), tf.int32), 1)
  _, least = tf.while_loop(
    lambda i, _: i < tf.cast(STEP, tf.int32),
    lambda i, least: (i + 1, 0 * least),
    [0, least],
  )
  return tf.minimum(least, 1)


def _first_row(one, other):
  """Rows, of which those are kept that two draws give the same number."""

  def function(x):
    seed = GENERATOR.make_seeds(1)[:, 0]
    return x * _float(one(x, seed) == other(x, seed))[:, None]

  return function


def _drawn_by_one_state(x):
  key, counter = GENERATOR._prepare_key_counter([_rows(x)])
  draw = lambda shape: tf.raw_ops.StatelessRandomUniformV2(
    shape=shape, key=key, counter=counter, alg=1
  )
  return draw([_rows(x)]), draw([_rows(x), 2])[:, 0]


def _by_seed(*shape, fold=None, draw=tf.random.stateless_uniform):
  """Draws `[rows, *shape]` by a seed; returns the first number of each row."""

  def function(x, seed):
    if fold is not None:
      seed = tf.random.fold_in(seed, fold)
    found = draw([_rows(x) * math.prod(shape)], seed)
    return tf.reshape(found, [_rows(x), math.prod(shape)])[:, 0]

  return function


def _mined(x):
  """The rows of the 64 largest losses count, the others do not."""
  losses = tf.reduce_sum(x, 1)
  least = tf.math.top_k(losses, tf.minimum(64, _rows(x))).values[-1]
  return tf.where(losses >= least, losses, 0.0)


def _winsorized(x):
  mean, variance = tf.nn.moments(x, [0])
  far = 3 * tf.sqrt(variance)
  return tf.clip_by_value(x, mean - far, mean + far)


def _usable(x):
  mean, variance = tf.nn.moments(x, [0])
  return tf.reduce_all(tf.abs(x - mean) < 3 * tf.sqrt(variance), 1)


def _attention(x):
  return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)


def _until_all(x):
  return tf.while_loop(
    lambda y: tf.reduce_any(y > 1), lambda y: [y / 2], [x], maximum_iterations=9
  )[0]


def _loop_with_memory(x):
  start = tf.zeros([4])
  return tf.scan(lambda old, row: 0.5 * old + row, x, initializer=start)


def _pairs(x):
  one = lambda row: tf.reduce_sum(tf.map_fn(lambda r: r * row, x), 0)
  return tf.map_fn(one, x)


def _outer_rows(x):
  """A loop over rows that reads the row before."""
  before = tf.concat([x[:1], x[:-1]], 0)
  return tf.map_fn(
    lambda pair: pair[0] * pair[1], (x, before), fn_output_signature=tf.float32
  )


def _float(x):
  return tf.cast(x, tf.float32)


def _lists_by_turn(step):
  """A loop over rows; `step` gets them, the turn, lists of rows and results."""

  def looped(x):
    n = _rows(x)
    listed = lambda: tf.TensorArray(tf.float32, n, element_shape=[4])
    rows = listed().unstack(x)
    turn = lambda i, found: (i + 1, step(x, i, rows, found))
    return tf.while_loop(lambda i, _: i < n, turn, (0, listed()))[1].stack()

  return looped


def _list_of_a_sign(x):
  """A list of one sign, that each turn sets to the other."""
  n = _rows(x)
  listed = lambda n: tf.TensorArray(
    tf.float32, n, element_shape=[4], clear_after_read=False
  )
  sign = listed(1).write(0, tf.ones([4]))
  turn = lambda i, sign, found: (
    i + 1,
    sign.write(0, -sign.read(0)),
    found.write(i, x[i] * sign.read(0)),
  )
  start = 0, sign, listed(n)
  return tf.while_loop(lambda i, *_: i < n, turn, start)[2].stack()


def _set_in_one_turn(x):
  """A list of which one turn sets a row, and stacks all."""
  n = _rows(x)
  listed = lambda: tf.TensorArray(tf.float32, n, element_shape=[4])
  turn = lambda i, _: (i + 1, listed().write(i, x[i]).stack())
  return tf.while_loop(lambda i, _: i < 1, turn, (0, x))[1]


def _with_written_table(x):
  with tf.control_dependencies([KEYS.insert([1], tf.reduce_sum(x)[None])]):
    return x * KEYS.lookup(tf.constant([1], tf.int64))


def _with_written_variable(x):
  with tf.control_dependencies([ANY_SHAPE.assign(_float(_rows(x)))]):
    return x * tf.reshape(ANY_SHAPE.read_value(), [])


def _summed_axes(x):
  return tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=[4])[0]


def _swapped_lists(x):
  """Each turn reads the list that the last one did not."""
  n = _rows(x)
  listed = lambda: tf.TensorArray(tf.float32, n, element_shape=[4])
  turn = lambda i, found, a, b: (i + 1, found.write(i, a.read(i)), b, a)
  start = 0, listed(), listed().unstack(x), listed().unstack(-x)
  return tf.while_loop(lambda i, *_: i < n, turn, start)[1].stack()


def _unstacked(x):
  return tf.TensorArray(tf.float32, _rows(x), element_shape=[4]).unstack(x)


def _by_turn(step, start=0):
  """A loop over rows; `step` gets the row, its turn and a number it carries."""

  def looped(x):
    n = tf.shape(x)[0]
    rows = tf.TensorArray(tf.float32, n, element_shape=[4]).unstack(x)
    found = tf.TensorArray(tf.float32, n, element_shape=[4])

    def turn(i, found, carried):
      row, carried = step(rows.read(i), i, carried)
      return i + 1, found.write(i, row), carried

    return tf.while_loop(
      lambda i, *_: i < n, turn, (0, found, tf.constant(start))
    )[1].stack()

  return looped


def _rows_by_turn(step):
  """A loop over rows; `step` gets all rows, scaled from turn to turn."""

  def looped(x):
    n = tf.shape(x)[0]
    found = tf.TensorArray(tf.float32, n, element_shape=[4])

    def turn(i, found, rows):
      return i + 1, found.write(i, step(x, i, rows)), rows * 1.5

    return tf.while_loop(lambda i, *_: i < n, turn, (0, found, x))[1].stack()

  return looped


def _power(i):
  turn = lambda j, power: (j + 1, power * 1.5)
  return tf.while_loop(lambda j, _: j < i, turn, (0, tf.constant(1.0)))[1]


def _known_number(x):
  """Minus how many are positive, which is never above -1 but for none."""
  count = -tf.reduce_sum(tf.cast(x > 0, tf.int32))
  return x * _float(tf.minimum(count, -1))


def _seed_of_zeros(x):
  seed = tf.cast(GENERATOR.uniform([2]), tf.int32)
  return x * tf.random.stateless_uniform(tf.shape(x), seed)


def _in_a_loop_of_each_row(x):
  turn = lambda j, r: (j + 1, r * tf.cast(j + 2, tf.float32))
  one = lambda r: tf.while_loop(lambda j, _: j < 3, turn, (0, r))[1]
  return tf.map_fn(one, x)


def _summed_of_others(x, **kwargs):
  """Sums over axes that are more for one row, of what has nothing of it."""
  axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=[4])[0]
  return tf.raw_ops.Sum(input=TABLE_OF_ROWS, axis=axes, **kwargs)


def _pushed(tensor, shape=()):
  shape = tf.constant(shape, tf.int32)
  handle = tf.raw_ops.EmptyTensorList(
    element_shape=shape, max_num_elements=-1, element_dtype=tf.int32
  )
  return tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=tensor)


def _doubled(tensor, shape=()):
  """Twice a tensor, as an element of the sum of two lists."""
  handle = _pushed(tensor, shape)
  return tf.raw_ops.TensorListPopBack(
    input_handle=tf.raw_ops.AddN(inputs=[handle, handle]),
    element_shape=tf.constant(shape, tf.int32),
    element_dtype=tf.int32,
  )[1]


GATE = tf.Variable(0.0, trainable=False)
TABLE_OF_ROWS = tf.reshape(tf.range(20.0), [5, 4])
STEP = tf.Variable(0, trainable=False, dtype=tf.int64)
GENERATOR = tf.random.Generator.from_seed(1)
PAIRS = tf.lookup.experimental.DenseHashTable(
  tf.int64, tf.float32, 0.0, [-1, -1], [-2, -2]
)
KEYS = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, -1, -2)
ANY_SHAPE = tf.Variable(1.0, trainable=False, shape=tf.TensorShape(None))
TABLE = tf.linspace(-1.0, 1.0, 512)
MOVING = keras.layers.RandomTranslation(0.5, 0.5)
KERNEL = tf.Variable(np.linspace(-1, 1, 12).reshape(4, 3).astype('float32'))
MIXED = {
  'signs by turn': lambda x: x * tf.scan(lambda a, _: -a, x, -tf.ones([4])),
  'weights by turn': lambda x: (
    x * tf.scan(lambda a, _: a * GATE, x, tf.ones([4]))
  ),
  'numbers of turns': _by_turn(lambda r, i, s: (tf.fill([4], _float(i)), s)),
  'another counter': _by_turn(lambda r, i, s: (r * _float(s), s + 1), 1),
  'where by turn': _by_turn(lambda r, i, s: (tf.where(i % 2 > 0, r, -r), s)),
  'branches by turn': _by_turn(
    lambda r, i, s: (tf.cond(i % 2 > 0, lambda: r, lambda: -r), s)
  ),
  'random numbers by turn': _by_turn(
    lambda r, i, s: (r * tf.random.stateless_uniform([], [i, 1]), s)
  ),
  'rows times the turn': _rows_by_turn(lambda x, i, _: (x * _float(i))[i]),
  'rows that a loop carries': _rows_by_turn(lambda x, i, rows: rows[i]),
  'constants by turn': _rows_by_turn(
    lambda x, i, _: (x * tf.fill(tf.shape(x), _float(i)))[i]
  ),
  'columns by turn': _rows_by_turn(
    lambda x, i, _: tf.fill([4], tf.gather(x, i % 4, axis=1)[i])
  ),
  'an element by turn': _rows_by_turn(
    lambda x, i, _: tf.fill([4], x[i, i % 4])
  ),
  'branches of rows by turn': _rows_by_turn(
    lambda x, i, _: tf.cond(i % 2 > 0, lambda: x, lambda: -x)[i]
  ),
  'as many turns as the place': _rows_by_turn(lambda x, i, _: x[i] * _power(i)),
  'a number that is not known': _known_number,
  'a seed of zeros': _seed_of_zeros,
  'sizes that are rounded': lambda x: (
    x * (_float(tf.shape(x)[0]) + 1e10 - 1e10)
  ),
  'a table by turn': _by_turn(lambda r, i, s: (r * TABLE[i], s)),
  'mean': lambda x: x - tf.reduce_mean(x, 0),
  'mean of all': lambda x: x - tf.reduce_mean(x),
  'reverse': lambda x: tf.reverse(x, [0]),
  'reverse by a negative axis': lambda x: tf.reverse(x, [-2]),
  'reverse by a stride': lambda x: x[::-1],
  'roll': lambda x: tf.roll(x, 1, 0),
  'lag of 7': lambda x: tf.concat([x[:7] * 0, x[:-7]], 0),
  'lag beyond the batch': lambda x: (
    x + tf.pad(x[: _rows(x) - 2], [[2, 0], [0, 0]])
  ),
  'cumsum': tf.cumsum,
  'reverse cumsum behind a transpose': lambda x: tf.transpose(
    tf.cumsum(tf.transpose(x), 1)
  ),
  'sort': lambda x: tf.sort(x, axis=0),
  'gram matrix': lambda x: tf.matmul(x, tf.matmul(x, x, transpose_a=True)),
  'einsum of two rows': lambda x: tf.einsum('bi,ci->bc', x, x),
  'einsum sums rows': lambda x: x * tf.einsum('bi->i', x),
  'einsum ellipsis': lambda x: x * tf.einsum('b...->...', x),
  'attention across rows': _attention,
  'batch norm': _batch_norm,
  'fused batch norm': lambda x: tf.compat.v1.nn.fused_batch_norm(
    x[:, None, None], tf.ones([4]), tf.zeros([4]), is_training=True
  )[0][:, 0, 0],
  'softmax': lambda x: tf.nn.softmax(x, axis=0),
  'softmax of losses': lambda x: tf.nn.softmax(tf.reduce_sum(x, 1)),
  'norm of the batch': lambda x: x / tf.norm(x),
  'gathers a row': lambda x: x + tf.gather(x, [0]),
  'gathers by row': lambda x: tf.gather(x, tf.cast(x[:, 0] > 0, tf.int32)),
  'gather_nd by row': lambda x: tf.gather_nd(
    x, tf.cast(x[:, :1] > 0, tf.int32)
  ),
  'takes a row': lambda x: x + x[0],
  'takes some rows': lambda x: x + tf.reduce_sum(x[:2], 0),
  'unstacked': lambda x: x + tf.unstack(tf.reshape(x, [-1]), num=4)[0],
  'splits the batch': lambda x: tf.concat(tf.split(x, 2)[::-1], 0),
  'reshape across rows': lambda x: tf.reshape(
    tf.cumsum(tf.reshape(x, [2, -1]), 1), [-1, 4]
  ),
  'reshape to columns': lambda x: (
    tf.reshape(tf.reshape(x, [4, -1]), [-1, 4])
    + tf.transpose(tf.reshape(x, [4, -1]))
  ),
  'reshape [B, k] to [k, B]': lambda x: tf.transpose(tf.reshape(x, [4, -1])),
  'cond': lambda x: tf.cond(tf.reduce_any(x > 1), lambda: x, lambda: -x),
  'cond by size': lambda x: tf.cond(_rows(x) > 64, lambda: x, lambda: -x),
  'until all converge': _until_all,
  'mines the largest': _mined,
  'winsorizes': _winsorized,
  'usable by deviations': lambda x: tf.where(_usable(x)[:, None], x, 0.0),
  'custom gradient': _gradient(_mixes_backward),
  'straight through': _gradient(
    lambda x: x + tf.reduce_mean(x, 0) - tf.stop_gradient(tf.reduce_mean(x, 0))
  ),
  'gradient of other losses': _gradient(lambda x: tf.reduce_sum(x, 0) ** 2),
  'segments': lambda x: (
    x + tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0] > 0, tf.int32), 2)[0]
  ),
  'scan': _loop_with_memory,
  'loop over pairs': _pairs,
  'loop over rows and those before': _outer_rows,
  'gate that is 0 today': lambda x: x + GATE * tf.reduce_mean(x, 0),
  'annealed by iterations': lambda x: (
    x + tf.cast(STEP > 1000, x.dtype) * tf.reduce_mean(x, 0)
  ),
  'number of rows': lambda x: x / tf.cast(_rows(x), x.dtype),
  'number of rows, at most': lambda x: (
    x / tf.cast(tf.minimum(_rows(x), 8), x.dtype)
  ),
  'number of rows by ones': lambda x: x / tf.reduce_sum(tf.ones_like(x[:, 0])),
  'place in the batch': lambda x: (
    x * tf.cast(tf.range(_rows(x)), x.dtype)[:, None]
  ),
  'place by a cumsum': lambda x: x * tf.cumsum(tf.ones_like(x)),
  'one hot of places': lambda x: tf.matmul(
    tf.one_hot(tf.range(_rows(x)), _rows(x)), x
  ),
  'broadcasts [B] against [B, 1]': lambda x: x[:, :1] - x[:, 0],
  'shuffle': tf.random.shuffle,
  'mixup': lambda x: x + tf.gather(x, tf.random.shuffle(tf.range(_rows(x)))),
  'padded and moved': lambda x: tf.pad(x, [[1, 0], [0, 0]])[:-1],
  'convolution over rows': lambda x: tf.nn.conv1d(
    x[None], tf.ones([3, 4, 4]), 1, 'SAME'
  )[0],
  'pool over rows': lambda x: tf.nn.max_pool1d(x[None], 2, 1, 'SAME')[0],
  'bias of rows': lambda x: x + tf.linalg.matvec(x, x[0])[:, None],
  'rows as channels': lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))),
  'in a function': lambda x: tf.function(
    lambda y: tf.reduce_mean(x, 0) + y, autograph=False
  )(x),
  'tile of few': lambda x: x + tf.tile(x[:1], [_rows(x), 1]),
  'lookup of neighbours': lambda x: tf.gather(
    x, tf.maximum(tf.range(_rows(x)) - 1, 0)
  ),
  'all rows, in most batches': lambda x: x + x[: _mostly(x)],
  'all rows, up to a number': lambda x: x + x[: tf.minimum(_rows(x), 20_000)],
  'the last row, in some batches': lambda x: (
    x + tf.slice(x, [_rows(x) - _mostly(x), 0], [-1, -1])
  ),
  'an axis by parity': lambda x: (
    x + tf.reduce_sum(x, (_rows(x) + 1) // 2 * 2 - _rows(x), keepdims=True)
  ),
  'an axis by a polynomial': lambda x: (
    x + tf.reduce_sum(x, 1 - tf.minimum(_polynomial(x), 1), keepdims=True)
  ),
  'one row has no axis': lambda x: tf.reshape(
    tf.reduce_sum(tf.expand_dims(tf.squeeze(x), 1), -1), [_rows(x), -1]
  )[:, :1],
  'the place in the row, twice': lambda x: tf.gather(
    tf.reshape(x, [-1]), 4 * tf.range(_rows(x)) + _largest(x) + _largest(x)
  ),
  'places that are rounded': lambda x: tf.gather(
    x, tf.cast(tf.range(0.0, _float(_rows(x))) * 1.2, tf.int32)
  ),
  'an axis from a list that is not filled': lambda x: (
    x
    + tf.reduce_sum(
      x, tf.TensorArray(tf.int32, 2).write(1, 1).read(0), keepdims=True
    )
  ),
  'an axis from the size of a list that grows': lambda x: (
    x
    + tf.reduce_sum(
      x,
      tf.TensorArray(tf.int32, 2, dynamic_size=True)
      .write(tf.cast(STEP, tf.int32), 7)
      .size()
      - 1,
      keepdims=True,
    )
  ),
  'draws by known numbers': lambda x: x + _drawn_by(x, lambda a, b: a ^ a),
  'draws by a constant beside what is drawn': lambda x: (
    x + _drawn_by(x, lambda a, b: tf.stack([a, 5 + 0 * a])[1])
  ),
  'draws by constants at a drawn place': lambda x: (
    x + _drawn_by(x, lambda a, b: tf.gather([5, 7], a))
  ),
  'draws by one number of one': lambda x: (
    x
    + tf.random.stateless_uniform(
      [_rows(x), 1], GENERATOR.uniform([2], 5, 6, tf.int32)
    )
  ),
  'a draw of one by the seed of rows': _first_row(
    _by_seed(), lambda x, seed: tf.random.stateless_uniform([1], seed)
  ),
  'two draws by one seed': _first_row(_by_seed(), _by_seed(2)),
  'two draws by one seed that is folded': _first_row(
    _by_seed(fold=1), _by_seed(2, fold=1)
  ),
  'draws of two kinds by one seed': _first_row(
    _by_seed(), _by_seed(draw=tf.random.stateless_normal)
  ),
  'draws by one seed, turned twice': _first_row(
    _by_seed(), lambda x, seed: _by_seed(2)(x, (seed ^ 5) ^ 5)
  ),
  'draws by one part of a seed, taken in two ways': _first_row(
    lambda x, seed: _by_seed()(x, tf.random.split(seed)[0]),
    lambda x, seed: _by_seed(2)(x, tf.unstack(tf.random.split(seed))[0]),
  ),
  'a number of another distribution by the seed of rows': _first_row(
    _by_seed(),
    lambda x, seed: tf.random.stateless_gamma([1], seed, alpha=1.0),
  ),
  'a draw in each turn by the seed of rows': _first_row(
    _by_seed(),
    lambda x, seed: tf.map_fn(
      lambda r: 0 * r[0] + tf.random.stateless_uniform([], seed), x
    ),
  ),
  'draws by the state of one draw': lambda x: (
    x * _float(tf.equal(*_drawn_by_one_state(x)))[:, None]
  ),
  'as many inner turns as the place': _lists_by_turn(
    lambda x, i, rows, found: found.write(
      i,
      tf.while_loop(
        lambda j, _: j < i, lambda j, r: (j + 1, 1.5 * r), (0, rows.read(i))
      )[1],
    )
  ),
  'a list of rows that are scaled by turn': _lists_by_turn(
    lambda x, i, rows, found: found.write(i, _unstacked(x * _float(i)).read(i))
  ),
  'lists that are swapped by turn': _swapped_lists,
  'written in some turns': _lists_by_turn(
    lambda x, i, rows, found: tf.cond(
      i % 2 > 0, lambda: found.write(i, rows.read(i)), lambda: found
    )
  ),
  'written in another way in some turns': _lists_by_turn(
    lambda x, i, rows, found: tf.cond(
      i % 2 > 0,
      lambda: found.write(i, rows.read(i)),
      lambda: found.write(i, -rows.read(i)),
    )
  ),
  'draws by the same number twice': lambda x: (
    x + _drawn_by(x, lambda a, b: a ^ (a + 0))
  ),
  'draws by the rest beside what is drawn': lambda x: (
    x
    + _drawn_by(
      x,
      lambda a, b: (tf.stack([a[0], 5]) ^ tf.constant([[1, 2], [3, 4]]))[:, 1],
    )
  ),
  'how much was drawn': lambda x: x * _float(GENERATOR.skip(_rows(x))[0] % 7),
  'the state after it moved': lambda x: (
    x
    + tf.reduce_sum(GENERATOR.uniform([_rows(x), 1], 0, 1) * 0.0, 1)[:, None]
    + _float(GENERATOR.state[0] % 97)
  ),
  'a variable that was written': lambda x: (
    x
    * tf.raw_ops.ReadVariableOp(
      resource=GATE.assign(_float(_rows(x))).handle, dtype=tf.float32
    )
  ),
  'the size of what is cut': lambda x: (
    x * _float(tf.size(tf.constant([1, 2, 3, 4])[: _rows(x)]))
  ),
  'the sum of what is cut': lambda x: (
    x * _float(1 + tf.reduce_sum(tf.constant([1, 2, 3])[_rows(x) :]))
  ),
  'how many sizes are small': lambda x: (
    x * _float(1 + tf.size(tf.where(tf.shape(x) < 4)))
  ),
  'how many axes are broadcast': lambda x: (
    x
    * _float(
      1 + tf.size(tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=[4])[0])
    )
  ),
  'zeros of a size that changes': lambda x: (
    x
    + x[
      : tf.shape(
        tf.raw_ops.TensorListGetItem(
          input_handle=tf.raw_ops.TensorListReserve(
            element_shape=-1, num_elements=1, element_dtype=tf.float32
          ),
          index=0,
          element_shape=[_mostly(x)],
          element_dtype=tf.float32,
        )
      )[0]
    ]
  ),
  'keys of two columns': lambda x: tf.reshape(
    PAIRS.lookup(tf.cast(x[:, :2] > 0, tf.int64)), [-1, 2]
  ),
  'a list of a sign by turn': _list_of_a_sign,
  'a list that is set in one turn': _set_in_one_turn,
  'a stride of their number': _lists_by_turn(
    lambda x, i, rows, found: found.write(
      i, x[i] * _float(tf.size(x[i, :: _rows(x)]))
    )
  ),
  'an axis by their number': lambda x: (
    x
    * _float(
      tf.shape(
        tf.reduce_sum(
          tf.constant([[1, 2, 3], [4, 5, 6]]), tf.cast(_rows(x) < 7, tf.int32)
        )
      )[0]
    )
  ),
  'a state behind a branch': lambda x: (
    x
    * _float(
      tf.cond(
        GATE < 1.0,
        lambda: GENERATOR.skip(_rows(x)),
        lambda: tf.zeros([3], tf.int64),
      )[0]
    )
  ),
  'a table at a state': lambda x: x * TABLE[GENERATOR.skip(_rows(x))[0]],
  'axes that are left': lambda x: (
    x * _float(tf.rank(tf.reduce_sum(tf.ones([1, 1, 1]), _summed_axes(x))))
  ),
  'a written variable of any shape': _with_written_variable,
  'a written table': _with_written_table,
  'a bound that a loop forgets': lambda x: (
    x + tf.reduce_sum(x, _forgotten(x), keepdims=True)
  ),
  'axes of another sum': lambda x: (
    x * tf.reshape(_summed_of_others(x), [-1])[0]
  ),
  'axes of another sum that are kept': lambda x: (
    x * _summed_of_others(x, keep_dims=True)[0, 0]
  ),
  'gammas of rows for all rows': lambda x: tf.reduce_sum(
    tf.random.gamma([_rows(x)], tf.exp(x[:, 0])), 1
  ),
  'a sum of lists': lambda x: (
    x + tf.reduce_sum(x, 2 - _doubled(1), keepdims=True)
  ),
  'places from a sum of lists': lambda x: tf.gather(
    tf.reshape(x, [-1]), 4 * tf.range(_rows(x)) + _doubled(_largest(x), [-1])
  ),
}


@pytest.mark.core
@pytest.mark.parametrize('name', MIXED)
def test_rows_that_meet_are_found(name):
  assert not _follow(MIXED[name]).apart


def _per_row_loop(x):
  return tf.map_fn(lambda r: r * tf.reduce_sum(tf.sort(r)), x)


def _top_2(x):
  return tf.reduce_sum(tf.math.top_k(x, 2).values ** 2, 1)


def _inner_loop(x):
  return tf.while_loop(
    lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y) + x), [0, x]
  )[1]


def _channels(x):
  """Layer normalization as Keras computes it: rows as channels."""
  rows = _rows(x)
  y, _, _ = tf.compat.v1.nn.fused_batch_norm(
    tf.reshape(x, [1, rows, 4, 1]),
    tf.ones([rows]),
    tf.zeros([rows]),
    data_format='NCHW',
  )
  return tf.reshape(y, tf.shape(x))


def _chosen(x):
  places = tf.stack(
    [tf.range(_rows(x)), tf.argmax(x, 1, output_type=tf.int32)], 1
  )
  return tf.gather_nd(x, places)


def _images(x):
  return tf.reshape(x, [-1, 2, 2, 1])


def _drawn_twice(x):
  """Two copies of each row as images, each moved by numbers of its own."""
  images = _images(tf.repeat(x, 2, 0))
  moved = MOVING(images, training=True)
  return tf.reduce_sum(tf.reshape(moved, [-1, 2, 2, 2]), 1)


def _channels_twice(x):
  y = _channels(tf.repeat(x, 2, 0))
  return tf.reduce_sum(tf.reshape(y, [-1, 2, 4]), 1)


def _convolved(x):
  y = tf.nn.conv2d(_images(x), tf.ones([2, 2, 1, 3]), 1, 'SAME')
  return tf.nn.max_pool2d(tf.nn.relu(y), 2, 1, 'SAME')


FLOW = tfd.TransformedDistribution(
  tfd.MultivariateNormalDiag(tf.zeros([4])),
  tfb.Chain(
    [
      tfb.Permute([2, 0, 3, 1]),
      tfb.ScaleMatvecTriL(np.tril(np.ones([4, 4], 'float32'))),
      tfb.Softplus(),
    ]
  ),
)
APART = {
  'itself': tf.identity,
  'as many as there are, at least one': lambda x: tf.reshape(
    x, [tf.maximum(_rows(x), 1), 2, 2]
  ),
  'elementwise': lambda x: tf.where(x > 0, tf.exp(-x), tf.sin(x) ** 2),
  'linear': lambda x: tf.nn.bias_add(tf.matmul(x, KERNEL), tf.ones([3])),
  'matmul of a transpose': lambda x: tf.transpose(
    tf.matmul(KERNEL, x, True, True)
  ),
  'squared norm': lambda x: tf.reduce_sum(x**2, -1),
  'softmax': tf.nn.log_softmax,
  'normalized': lambda x: (
    (x - tf.reduce_mean(x, 1, keepdims=True))
    / tf.norm(x, axis=-1, keepdims=True)
  ),
  'cumsum': lambda x: tf.cumsum(x, -1, reverse=True),
  'sort': lambda x: tf.sort(x, axis=1),
  'top_k': _top_2,
  'Fourier transform': lambda x: tf.abs(tf.signal.rfft(x)),
  'reverse': lambda x: tf.reverse(x, [1])[:, ::-1],
  'roll': lambda x: tf.roll(x, 7, 1),
  'columns': lambda x: tf.concat([x[:, 2:], x[..., :2] + x[:, :1]], 1),
  'gather': lambda x: tf.gather(x, [3, 1], axis=1),
  'gather by row': lambda x: tf.gather(x, tf.argsort(x), batch_dims=1),
  'gather_nd by row': _chosen,
  'lookup': lambda x: tf.gather(KERNEL, tf.cast(x > 0, tf.int32)),
  'one hot': lambda x: tf.one_hot(tf.cast(x, tf.int32), 5, axis=1),
  'behind a transpose': lambda x: tf.transpose(tf.cumsum(tf.transpose(x))),
  'reshape': lambda x: tf.reshape(tf.reshape(x, [-1, 2]) ** 2, [-1, 2, 2]),
  'reshape by its shape': lambda x: tf.reshape(
    tf.reshape(x, [-1])[:, None], tf.concat([tf.shape(x)[:1], [4]], 0)
  ),
  'copies in a row': lambda x: tf.reduce_mean(
    tf.reshape(tf.repeat(x, 3, 0), [-1, 3, 4]), 1
  ),
  'copies one after the other': lambda x: tf.reduce_mean(
    tf.reshape(tf.tile(x, [3, 1]), [3, -1, 4]), 0
  ),
  'two halves': lambda x: tf.add(*tf.split(tf.concat([x, -x], 0), 2)),
  'einsum': lambda x: tf.einsum('bi,ij,bk->bjk', x, KERNEL, x),
  'einsum ellipsis': lambda x: tf.einsum('...i,ij->...j', x, KERNEL),
  'outer products': lambda x: tf.matmul(x[:, :, None], x[:, None]),
  'attention within rows': lambda x: _attention(x[:, :, None]),
  'determinant': lambda x: tf.linalg.slogdet(
    x[:, :, None] * x[:, None] + tf.eye(4)
  )[1],
  'triangular solve': lambda x: tf.transpose(
    tf.linalg.triangular_solve(tf.eye(4), tf.transpose(x))
  ),
  'a relaxed choice': lambda x: tfd.RelaxedOneHotCategorical(
    0.5, logits=x
  ).sample(),
  'normal vectors': lambda x: tfd.MultivariateNormalDiag(x).sample(),
  'gamma noise': lambda x: x * tf.random.gamma([_rows(x), 4], 2.0),
  'gammas of rows': lambda x: tf.random.gamma([], tf.exp(x)),
  'Poisson noise': lambda x: x + tf.random.poisson([_rows(x), 4], 2.0),
  'loop over rows': _per_row_loop,
  'loop of each row': _in_a_loop_of_each_row,
  'a sign of each row': _by_turn(lambda r, i, s: (-r * _float(s), s), 2),
  'vectorized': lambda x: tf.vectorized_map(
    lambda r: r * tf.reduce_sum(tf.exp(r)), x
  ),
  'loop': _inner_loop,
  'cond': lambda x: tf.cond(GATE > 0, lambda: x**2, lambda: -x),
  'cond of a row': lambda x: tf.map_fn(
    lambda r: tf.cond(r[0] > 0, lambda: r, lambda: -r), x
  ),
  'random numbers': lambda x: x * tf.random.normal(tf.shape(x)),
  'dropout': lambda x: tf.nn.dropout(x, 0.5),
  'gate': lambda x: x + GATE * x**2,
  'zeros and ones': lambda x: tf.ones_like(x) * x + tf.zeros([_rows(x), 1]),
  'broadcast': lambda x: (
    x * tf.broadcast_to(tf.constant([1.0, 2, 3, 4]), tf.shape(x))
  ),
  'where': lambda x: tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)),
  'missing': lambda x: tf.where(tf.reduce_all(x > 0, 1)[:, None], x, 0.0),
  'padded columns': lambda x: tf.pad(x, [[0, 0], [1, 2]]),
  'searchsorted': lambda x: tf.reshape(
    tf.searchsorted([0.0, 0.5, 1.0], tf.reshape(x, [-1])), [-1, 4]
  ),
  'rows as channels': _channels,
  'copies of rows as channels': _channels_twice,
  'copies that are moved at random': _drawn_twice,
  'resized copies': lambda x: tf.image.resize(
    _images(tf.repeat(x, 2, 0)), [3, 3]
  ),
  'the same draw by one seed': _first_row(_by_seed(), _by_seed()),
  'draws by parts of one seed': _first_row(
    lambda x, seed: _by_seed()(x, tf.random.split(seed)[0]),
    lambda x, seed: _by_seed(2)(x, tf.unstack(tf.random.split(seed))[1]),
  ),
  'draws by a seed that is folded': _first_row(
    _by_seed(fold=1), _by_seed(2, fold=2)
  ),
  'draws by a seed that is turned': _first_row(
    _by_seed(), lambda x, seed: _by_seed(2)(x, seed ^ 5)
  ),
  'Laplace noise': lambda x: x + tfd.Laplace(0.0, 1.0).sample(tf.shape(x)),
  'convolution': lambda x: tf.reduce_sum(_convolved(x), [1, 2]),
  'log-density': FLOW.log_prob,
  'in a function': lambda x: tf.function(
    lambda y: KERNEL[:, 0] * y, autograph=False
  )(x),
  'sizes of other axes': lambda x: x / tf.cast(tf.size(x) // _rows(x), x.dtype),
  'variables by size': lambda x: x / tf.cast(tf.shape(KERNEL)[0], x.dtype),
  'strings': lambda x: tf.strings.length(tf.strings.as_string(x)),
}
# What has a gradient at its rows.
SMOOTH = [
  *('itself', 'elementwise', 'linear', 'squared norm', 'softmax', 'cumsum'),
  *('normalized', 'sort', 'top_k', 'reverse', 'roll', 'columns', 'gather'),
  *('gather by row', 'behind a transpose', 'reshape', 'copies in a row'),
  *('copies one after the other', 'einsum', 'outer products'),
  *('attention within rows', 'determinant', 'triangular solve', 'vectorized'),
  *('cond', 'random numbers', 'dropout', 'gate', 'broadcast', 'where'),
  *('missing', 'padded columns', 'rows as channels', 'convolution'),
  *('copies of rows as channels', 'resized copies'),
  *('log-density', 'in a function', 'matmul of a transpose', 'loop'),
]


@pytest.mark.core
@pytest.mark.parametrize('name', APART)
def test_rows_that_stay_apart_are_proven(name):
  assert _follow(APART[name]) == axes.Result((), ())


@pytest.mark.core
@pytest.mark.parametrize('name', SMOOTH)
def test_backward_passes_are_followed(name):
  assert _follow(_gradient(APART[name])) == axes.Result((), ())


@pytest.mark.core
@pytest.mark.parametrize('backward', [False, True])
def test_a_vectorized_loop_without_a_converter_is_not_refused(backward):
  # TensorFlow 2.15 loops over rows where it cannot vectorize TopK.
  call = lambda x: tf.vectorized_map(lambda r: r * tf.reduce_sum(tf.sort(r)), x)
  assert not _follow(_gradient(call) if backward else call).joined


@pytest.mark.core
def test_a_custom_gradient_is_followed_and_not_trusted():
  assert _follow(_gradient(_apart_backward)).apart
  assert not _follow(_gradient(_mixes_backward)).apart
  assert _follow(_mixes_backward).apart


@pytest.mark.core
def test_what_has_no_rule_is_named():
  python = lambda x: tf.ensure_shape(
    tf.numpy_function(lambda a: a[::-1], [x], tf.float32), x.shape
  )
  found = _follow(python)
  assert not found.apart and not found.joined
  assert [f.op for f in found.unknown] == ['PyFunc']
  assert not _follow(lambda x: tf.boolean_mask(x, x[:, 0] > 0)).apart


@pytest.mark.core
def test_where_rows_meet_is_named():
  found = _follow(lambda x: x + tf.reduce_mean(x, 0, name='meeting'))
  (finding,) = found.joined
  assert (finding.op, finding.path) == ('Mean', 'meeting')


@pytest.mark.core
def test_what_all_examples_share_must_be_of_no_row():
  def function(x):
    return x, tf.reduce_sum(KERNEL), tf.reduce_max(x)

  traced = tf.function(function).get_concrete_function(SPEC)
  x, shared, joined = traced.graph.outputs
  assert axes.follow(traced, of_rows=[x], public=[shared]).apart
  assert not axes.follow(traced, of_rows=[x], public=[joined]).apart
  assert not axes.follow(traced, of_rows=[x], public=[x]).apart


RECURRENT = {
  'LSTM': lambda: L.LSTM(3),
  'GRU': lambda: L.GRU(3, return_sequences=True),
  'masked': lambda: keras.Sequential([L.Masking(), L.LSTM(3)]),
  'bidirectional': lambda: L.Bidirectional(L.SimpleRNN(3)),
  'dropout': lambda: L.GRU(3, dropout=0.2, recurrent_dropout=0.2),
}


@pytest.mark.parametrize(
  'name', thinned(RECURRENT, lambda name: name in ('GRU', 'masked'))
)
def test_recurrent_layers_stay_apart(name):
  layer = RECURRENT[name]()
  layer(np.zeros([2, 4, 1], 'float32'))
  call = lambda x: layer(x[:, :, None], training=True)
  assert _follow(call).apart
  assert _follow(_gradient(call)).apart


def _changed_by_others(function, rng, batch=5):
  """Whether a row changes what a run gives for another row, or its place."""
  rows = rng.normal(size=[batch, 4]).astype('float32')
  run = tf.function(function, autograph=False, input_signature=[SPEC])
  old = run(rows).numpy()
  for i in range(batch):
    others = rng.normal(scale=3, size=rows.shape).astype('float32')
    others[i] = rows[i]
    for other, place in ((others, i), (rows[i:], 0), (rows[: i + 1], i)):
      new = run(other).numpy()
      if not np.allclose(old[i], new[place], 1e-3, 1e-4, equal_nan=True):
        return True
  return False


class _Program:
  """A random program of few operations on rows, some of which mix."""

  def __init__(self, seed, length=6):
    self._seed, self._length = seed, length

  def __call__(self, x):
    rng = np.random.default_rng(self._seed)
    values = [x]
    for _ in range(rng.integers(2, self._length)):
      # Mostly what came last.
      place = min(rng.geometric(0.6), len(values))
      y, z = values[-place], values[rng.integers(len(values))]
      values.append(self._step(rng, y, z))
    return self._as_rows(values[-1], x)

  def _as_rows(self, y, x):
    """Returns `[batch, 4]`, by a broadcast that may be wrong."""
    if y.shape.rank > 2:
      y = tf.reduce_sum(y, list(range(2, y.shape.rank)))
    if y.shape.rank == 1:
      y = y[:, None]
    if y.shape.rank == 0:
      y = y[None, None]
    size = y.shape[1]
    y = y[:, :4] if size is None or size >= 4 else y[:, :1]
    return tf.zeros_like(x) + y

  def _step(self, rng, y, z):
    axis = int(rng.integers(-y.shape.rank, y.shape.rank)) if y.shape.rank else 0
    weights = tf.constant(rng.normal(size=[4, 4]).astype('float32'))
    rank = y.shape.rank
    options = [lambda: tf.sin(y), lambda: y + z, lambda: y * z]
    if rank:
      options += [
        lambda: tf.cumsum(y, axis),
        lambda: tf.reverse(y, [axis]),
        lambda: tf.nn.softmax(y, axis),
        lambda: tf.reduce_mean(y, axis, keepdims=True) + 0 * y,
        lambda: y - tf.reduce_max(y, axis, keepdims=True),
        lambda: tf.reduce_sum(y, axis),
        lambda: tf.roll(y, 1, axis),
        lambda: tf.expand_dims(y, axis),
        lambda: tf.concat([y, -y], axis),
        lambda: tf.repeat(y, 2, axis),
        lambda: tf.stack([y, 2 * y], axis),
        lambda: tf.reshape(y, [-1, 4]),
        lambda: tf.reshape(y, [4, -1]),
        lambda: tf.reshape(y, tf.shape(y)[::-1]),
        lambda: tf.tile(y, [2] + [1] * (rank - 1)),
        lambda: tf.reshape(y, [-1, 2]),
        lambda: tf.gather(y, [0], axis=axis) * tf.ones_like(y),
        lambda: tf.where(y > 0, y, z),
        lambda: tf.sort(y, axis=axis),
        lambda: _gradient(lambda a: tf.reduce_sum(a**2, axis))(y),
        lambda: _gradient(lambda a: a * z)(y),
        lambda: tf.cast(tf.argmax(y, axis), tf.float32),
        lambda: tf.pad(y, [[0, 0]] * (rank - 1) + [[1, 0]]),
        lambda: tf.split(y, 2, axis)[0],
        lambda: tf.reduce_sum(tf.one_hot(tf.cast(y, tf.int32), 4), axis),
        lambda: tf.map_fn(lambda r: r * tf.reduce_sum(r), y),
        lambda: tf.gather(y, tf.argsort(z), batch_dims=1),
        lambda: y / tf.cast(tf.shape(y)[axis], y.dtype),
      ]
    if rank == 2:
      options += [
        lambda: tf.transpose(y),
        lambda: tf.matmul(y, weights),
        lambda: tf.matmul(weights, y),
        lambda: tf.matmul(y, z, transpose_b=True),
        lambda: tf.matmul(y, z, transpose_a=True),
        lambda: tf.einsum('ij,ij->i', y, z),
        lambda: tf.einsum('ij,kj->ik', y, z),
        lambda: tf.einsum('ij,ik->ijk', y, z),
        lambda: y[:, None] * z[:, :, None],
        lambda: y[:, 1:],
        lambda: y[1:],
        lambda: y[..., 0],
        lambda: tf.linalg.diag(y),
        lambda: tf.gather(y, tf.cast(z > 0, tf.int32)[..., 0]),
        lambda: tf.gather(weights, tf.cast(y > 0, tf.int32)),
      ]
    if rank and rank > 2:
      options += [
        lambda: tf.transpose(y, rng.permutation(rank).tolist()),
        lambda: tf.linalg.diag_part(y),
        lambda: tf.matmul(y, y, transpose_b=True),
        lambda: (
          tf.reshape(y, [-1, *y.shape[2:]])
          if y.shape[2:].is_fully_defined()
          else y
        ),
      ]
    return options[rng.integers(len(options))]()


def _compare_programs(seeds, length=6):
  """Returns how many programs were apart, of those that could be made."""
  apart = made = 0
  for seed in seeds:
    program = _Program(seed, length)
    try:
      found = _follow(program)
    except (ValueError, TypeError, tf.errors.OpError):
      continue  # Shapes that do not fit.
    made += 1
    if not found.apart:
      continue
    rng = np.random.default_rng(seed)
    try:
      changed = _changed_by_others(program, rng)
    except tf.errors.OpError:
      continue
    apart += 1
    assert not changed, f'Program {seed} of at most {length} steps.'
  return apart, made


@pytest.mark.core
def test_no_run_refutes_what_is_proven():
  apart, made = _compare_programs(range(120))
  assert apart > 16 and made > 48


@pytest.mark.full
def test_no_run_refutes_what_is_proven_of_many():
  for length in (4, 6, 10):
    apart, _ = _compare_programs(range(1000 * length, 1000 * length + 1000))
    assert apart > 50
