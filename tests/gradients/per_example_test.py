"""Per-example gradients equal `tape.jacobian`, by whatever way they come."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import flows, gradients

_rng = np.random.default_rng(0)
BATCH = 7


def _variable(*shape, dtype='float32', name=None):
  return tf.Variable(_rng.normal(size=shape).astype(dtype), name=name)


def _data(*shape, dtype='float32'):
  return tf.constant(_rng.normal(size=(BATCH,) + shape).astype(dtype))


def _mask(rows, columns, dtype='float32'):
  return tf.constant((_rng.random((rows, columns)) < 0.6).astype(dtype))


class _Dense:
  """Two masked layers, bias and all."""

  def __init__(self, dtype='float32'):
    self.k = [_variable(4, 5, dtype=dtype), _variable(5, 3, dtype=dtype)]
    self.b = [_variable(5, dtype=dtype), _variable(3, dtype=dtype)]
    self.m = [_mask(4, 5, dtype), _mask(5, 3, dtype)]
    self.variables = self.k + self.b
    self.x = _data(4, dtype=dtype)

  def loss(self):
    h = tf.tanh(gradients.linear(self.x, self.k[0], self.b[0], self.m[0]))
    y = gradients.linear(h, self.k[1], self.b[1], self.m[1])
    return tf.reduce_sum(y**3, -1)


class _Shared:
  """One kernel used `uses` times, with or without a mask."""

  def __init__(self, uses, masked):
    self.k, self.b = _variable(4, 4), _variable(4)
    self.mask = _mask(4, 4) if masked else None
    self.variables, self.uses, self.x = [self.k, self.b], uses, _data(4)

  def loss(self):
    h = self.x
    for _ in range(self.uses):
      h = tf.tanh(gradients.linear(h, self.k, self.b, self.mask))
    return tf.reduce_sum(h * self.x, -1)


class _Positions:
  """Inputs with more axes than [batch, features]."""

  def __init__(self, shape):
    self.k, self.b = _variable(4, 3), _variable(3)
    self.variables, self.x = [self.k, self.b], _data(*shape, 4)

  def loss(self):
    y = tf.sin(gradients.linear(self.x, self.k, self.b))
    return tf.reduce_sum(y, list(range(1, y.shape.rank)))


class _TwoMasks:
  """One kernel under two masks."""

  def __init__(self):
    self.k = _variable(4, 4)
    self.variables, self.masks = [self.k], [_mask(4, 4), _mask(4, 4)]
    self.x = _data(4)

  def loss(self):
    h = tf.tanh(gradients.linear(self.x, self.k, mask=self.masks[0]))
    return tf.reduce_sum(gradients.linear(h, self.k, mask=self.masks[1]), -1)


class _Copies:
  """A vector, a matrix and a scalar copied per example, one of them twice."""

  def __init__(self):
    self.v, self.w, self.s = _variable(4), _variable(4, 4), _variable()
    self.variables, self.x = [self.v, self.w, self.s], _data(4)

  def loss(self):
    copy = lambda p: gradients.per_example(p, tf.shape(self.x)[0])
    y = tf.linalg.matvec(copy(self.w), self.x * copy(self.v)) * copy(self.v)
    return tf.reduce_sum(y, -1) * copy(self.s)


class _Mixed:
  """One kernel through `linear`, `per_example` and plain TensorFlow."""

  def __init__(self):
    self.k, self.plain = _variable(4, 4), _variable(4)
    self.variables, self.x = [self.k, self.plain], _data(4)

  def loss(self):
    y = gradients.linear(self.x * self.plain, self.k)
    copies = gradients.per_example(self.k, tf.shape(self.x)[0])
    z = tf.linalg.matvec(copies, self.x)
    return tf.reduce_sum(y * z + tf.matmul(self.x, self.k) ** 2, -1)


class _Hidden:
  """Primitives where the tape cannot see: nested function, loop, branch."""

  def __init__(self):
    self.k, self.b = _variable(4, 4), _variable(4)
    self.variables, self.x = [self.k, self.b], _data(4)

  def loss(self):
    inner = tf.function(lambda x: gradients.linear(x, self.k, self.b))
    loop = tf.while_loop(
      lambda i, h: i < 2,
      lambda i, h: (i + 1, tf.tanh(gradients.linear(h, self.k, self.b))),
      (0, self.x),
    )[1]
    return tf.reduce_sum(inner(self.x) * loop, -1)


class _Computed:
  """A bias and a mask that are no variables, but were computed from some."""

  def __init__(self):
    self.k, self.b, self.m = _variable(4, 4), _variable(4), _variable(4, 4)
    self.variables, self.x = [self.k, self.b, self.m], _data(4)

  def loss(self):
    y = gradients.linear(self.x, self.k, 2 * self.b, tf.sigmoid(self.m))
    y = gradients.linear(tf.tanh(y), self.k, mask=self.m)
    return tf.reduce_sum(tf.sin(y), -1)


class _Embedding:
  """A plain gather: sparse gradients."""

  def __init__(self):
    self.table = _variable(6, 4)
    self.variables = [self.table]
    self.x = tf.constant(_rng.integers(0, 6, [BATCH, 2]))

  def loss(self):
    return tf.reduce_sum(tf.gather(self.table, self.x) ** 3, [1, 2])


CASES = {
  'dense': _Dense,
  'dense_float64': lambda: _Dense('float64'),
  'shared_masked_twice': lambda: _Shared(2, True),
  'shared_masked_many': lambda: _Shared(10, True),
  'shared_plain': lambda: _Shared(5, False),
  'positions_rank_3': lambda: _Positions([6]),
  'positions_rank_4': lambda: _Positions([2, 3]),
  'two_masks': _TwoMasks,
  'copies': _Copies,
  'mixed': _Mixed,
  'hidden': _Hidden,
  'computed': _Computed,
  'embedding': _Embedding,
}
PAST_THE_PRIMITIVES = 'mixed', 'hidden', 'computed', 'embedding'


def _jacobian(case):
  with tf.GradientTape(persistent=True) as tape:
    loss = case.loss()
  jacobian = tape.jacobian(loss, case.variables, experimental_use_pfor=False)
  jacobian = [tf.convert_to_tensor(j) for j in jacobian]
  squared = sum(
    tf.reduce_sum(tf.reshape(j, [BATCH, -1]) ** 2, 1) for j in jacobian
  )
  return squared, jacobian


def _losses(case):
  def losses(rows):
    x, case.x = case.x, rows
    loss = case.loss()
    case.x = x
    return loss

  return losses


def _actual(case, clip, again=False):
  again = {'losses': _losses(case), 'rows': case.x} if again else {}
  with gradients.PerExampleTape(**again) as tape:
    loss = case.loss()
  found = tape.per_example_gradients(loss, case.variables)
  return found.squared_norms(), gradients.Flat(clip).clip_and_sum(found)


@pytest.mark.core
@pytest.mark.parametrize(
  'name, mode, again',
  thinned(
    [
      (name, mode, again)
      for name in CASES
      for mode in ('eager', 'function', 'xla')
      # Whether variables past the primitives are computed again, row by row.
      for again in (False, True)
      if name in PAST_THE_PRIMITIVES or not again
      # XLA cannot differentiate a loop of unknown length.
      if (name, mode) != ('hidden', 'xla')
      if name not in PAST_THE_PRIMITIVES or mode != 'xla' or again
    ],
    # XLA for what is past the primitives: it is computed otherwise there.
    lambda point: (
      (point[1] == 'function' and not point[2])
      or (point[2] and point[1] == 'xla')
      or point == ('hidden', 'function', True)
    ),
  ),
)
def test_equals_jacobian_and_clip(name, mode, again, monkeypatch):
  # The same numbers whichever tests ran before.
  monkeypatch.setitem(globals(), '_rng', np.random.default_rng(1))
  case = CASES[name]()
  squared, jacobian = _jacobian(case)
  clip = float(np.median(np.sqrt(squared)))
  scale = tf.minimum(1, clip / tf.sqrt(squared))
  total = [tf.tensordot(scale, j, 1) for j in jacobian]
  run = lambda: _actual(case, clip, again)
  if mode != 'eager':
    run = tf.function(run, jit_compile=mode == 'xla')
  actual_squared, actual_total = run()
  np.testing.assert_allclose(actual_squared, squared, rtol=2e-5)
  for a, e in zip(actual_total, total):
    scale = np.abs(e).max()
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5 * scale)


def test_materialise_equals_jacobian():
  for name in ('dense', 'mixed', 'copies'):
    case = CASES[name]()
    with gradients.PerExampleTape() as tape:
      loss = case.loss()
    found = tape.per_example_gradients(loss, case.variables).materialise()
    with tf.GradientTape(persistent=True) as tape:
      loss = case.loss()
    for f, v in zip(found, case.variables):
      np.testing.assert_allclose(
        f,
        tape.jacobian(loss, v, experimental_use_pfor=False),
        rtol=1e-4,
        atol=1e-4,
      )


def test_masked_weights_have_no_gradient():
  case = _Dense()
  total = _actual(case, 1.0)[1]
  for mask, t in zip(case.m, total):
    assert not np.any(t.numpy()[mask.numpy() == 0])


def test_without_a_tape_the_primitives_are_plain():
  case = _Dense()
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(case.loss())
  assert all(g is not None for g in tape.gradient(loss, case.variables))


@pytest.mark.core
@pytest.mark.parametrize('poison', [np.nan, np.inf, 1e30])
def test_examples_that_are_not_finite_contribute_zero(poison):
  case = _Dense()
  clean = case.x.numpy()[1:]
  poisoned = case.x.numpy()
  poisoned[0] = poison
  case.x = tf.constant(poisoned)
  with_poison = _actual(case, 1.0)[1]
  case.x = tf.constant(clean)
  without = _actual(case, 1.0)[1]
  for a, b in zip(with_poison, without):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_padding_contributes_zero_whatever_it_holds():
  case = _Dense()
  x = case.x.numpy()
  x[-2:] = np.nan
  weights = tf.constant([1.0] * (BATCH - 2) + [0.0, np.nan])

  def total(x, weights):
    case.x = tf.constant(x)
    with gradients.PerExampleTape() as tape:
      loss = case.loss()
    found = tape.per_example_gradients(loss, case.variables)
    return gradients.Flat(1.0).clip_and_sum(found, weights)

  for a, b in zip(total(x, weights), total(x[:-2], None)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize('scale', [1e-6, 1.0, 1e6])
def test_no_example_contributes_more_than_the_clip(scale):
  for name in ('dense', 'shared_masked_twice', 'shared_plain'):
    case = CASES[name]()
    case.x = case.x[:1] * scale
    with gradients.PerExampleTape() as tape:
      loss = case.loss()
    found = tape.per_example_gradients(loss, case.variables)
    total = gradients.Flat(0.5).clip_and_sum(found)
    norm = np.sqrt(sum(np.sum(np.square(t)) for t in total))
    assert norm <= 0.5 * (1 + 1e-5)


@pytest.mark.core
@pytest.mark.parametrize('masked', [False, True])
def test_uses_that_cancel_do_not_escape_the_clip(masked):
  """Two uses of one kernel whose gradients cancel but for a little."""
  rng = np.random.default_rng(0)
  rows, size = 200, 512
  kernel = tf.Variable(np.zeros([size, 3], 'float32'))
  mask = tf.constant(np.ones([size, 3], 'float32')) if masked else None
  x = rng.normal(size=[rows, size]).astype('float32') * 100
  near = (x * (1 + 1e-7 * rng.normal(size=x.shape))).astype('float32')
  with gradients.PerExampleTape() as tape:
    one = gradients.linear(tf.constant(x), kernel, mask=mask)
    two = gradients.linear(tf.constant(near), kernel, mask=mask)
    loss = 1e3 * tf.reduce_sum(one - two, 1)
  found = tape.per_example_gradients(loss, [kernel])
  exact = 1e3 * np.sqrt(3) * np.linalg.norm(x.astype('float64') - near, axis=1)
  norms = np.sqrt(found.squared_norms())
  assert np.all(norms >= exact * (1 - 1e-6))
  assert np.all(norms <= exact + 1e-5 * 2e3 * np.linalg.norm(x, axis=1))


@pytest.mark.core
def test_squares_that_vanish_do_not_escape_the_clip():
  kernel = tf.Variable(np.zeros([1000, 1], 'float32'))
  x = tf.fill([1, 1000], tf.constant(1e-19))
  for mask in (None, tf.ones([1000, 1])):
    with gradients.PerExampleTape() as tape:
      loss = 5e18 * 2 * gradients.linear(x, kernel, mask=mask)[:, 0]
    found = tape.per_example_gradients(loss, [kernel])
    (total,) = gradients.Flat(1.0).clip_and_sum(found)
    assert np.linalg.norm(total) <= 1 + 1e-5


def test_mask_of_other_numbers_than_0_and_1():
  kernel = tf.Variable(np.zeros([2, 2], 'float32'))
  with gradients.PerExampleTape() as tape:
    x = tf.ones([1, 2])
    y = gradients.linear(x, kernel, mask=tf.fill([2, 2], 100.0))
    loss = tf.reduce_sum(y, 1)
  found = tape.per_example_gradients(loss, [kernel])
  np.testing.assert_allclose(found.squared_norms(), [4e4])


def test_bad_input():
  kernel = _variable(4, 3, name='lonely')
  with gradients.PerExampleTape() as tape:
    y = gradients.linear(_data(4), _variable(4, 3))
    loss = tf.reduce_sum(y, 1)
    mean = tf.reduce_mean(loss)
    short = loss[:2]
  with pytest.raises(ValueError, match='one loss per example'):
    tape.per_example_gradients(mean, [kernel])
  with pytest.raises(ValueError, match='No gradient reaches the variable lone'):
    tape.per_example_gradients(loss, [kernel])
  with gradients.PerExampleTape() as tape:
    short = tf.reduce_sum(gradients.linear(_data(4), kernel), 1)[:2]
  with pytest.raises(ValueError, match='axis 0 must be the examples'):
    tape.per_example_gradients(short, [kernel])
  for clip in (0.0, -1.0, np.inf, np.nan):
    with pytest.raises(ValueError, match='l2_norm_clip'):
      gradients.Flat(clip)


@pytest.mark.core
@pytest.mark.parametrize('uses', [100, 1000])
def test_uses_that_cancel_leave_no_rounding_errors_above_the_clip(uses):
  # Of 8 examples, one has uses of size 1e4 that cancel in float64 alone.
  rng = np.random.default_rng(3)
  kernel = tf.Variable([[0.5]])
  a = rng.normal(size=[8, uses, 1])
  d = rng.normal(size=[8, uses, 1]) * 1e-3
  a[0] *= 1e4
  half = uses // 2
  a[0, half : 2 * half], d[0, half : 2 * half] = a[0, :half], -d[0, :half]

  def clipped(rows):
    with gradients.PerExampleTape() as tape:
      y = gradients.linear(tf.constant(rows[0], tf.float32), kernel)
      loss = tf.reduce_sum(y * tf.constant(rows[1], tf.float32), [1, 2])
    found = tape.per_example_gradients(loss, [kernel])
    return gradients.Flat(1e-3).clip_and_sum(found)[0].numpy()

  change = clipped((a, d)) - clipped((a[1:], d[1:]))
  assert np.linalg.norm(change) <= 1.05e-3


@pytest.mark.core
def test_a_flow_takes_the_same_tensor_again():
  # TFP's bijectors keep what they computed of a tensor.
  x = tf.constant([[1.0, 0.0], [0.0, 3.0]])
  flow = flows.masked_autoregressive_flow(2, 1, [4], seed=0)
  norms = []
  for _ in range(3):
    with gradients.PerExampleTape() as tape:
      loss = -flow.log_prob(x)
    found = tape.per_example_gradients(loss, flow.trainable_variables)
    norms.append(found.squared_norms().numpy())
  np.testing.assert_array_equal(norms[1:], [norms[0]] * 2)
