"""Loops whose length rows decide are accepted where they are sure to end."""

import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import optimizers
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import graph_scan

L = keras.layers
tfb, tfd, tfm = tfp.bijectors, tfp.distributions, tfp.math


def _ends(function):
  """Returns whether all loops of a function of rows are known to end."""
  traced = tf.function(function).get_concrete_function(tf.TensorSpec([None]))
  scan = graph_scan._Scan(traced, [], strict=True)
  assert scan.chooses
  return 'While' not in {op.replace('Stateless', '') for op, *_ in scan.found}


def _while(condition, body, *start, **kwargs):
  return lambda x: tf.while_loop(
    condition, body, [s(x) if callable(s) else s for s in start], **kwargs
  )[-1]


def _positive(x):
  return tf.reduce_any(x > 0)


def _with_a_break(x):
  count = 0
  while _positive(x):
    x -= 1
    count += 1
    if count > 10:
      break
  return x


def _with_a_function(x):
  @tf.function
  def goes_on(count, x):
    return tf.logical_and(count < 9, _positive(x))

  return tf.while_loop(goes_on, lambda i, x: (i + 1, x / 2), [0, x])[1]


def _root(search, **kwargs):
  return lambda x: search(lambda r: r**3 - x, **kwargs).estimated_root


def _zeros(x):
  return tf.zeros_like(x, tf.int32)


def _done(pairs, axis=1, **kwargs):
  return tf.reduce_all(pairs > 0, axis, **kwargs)


def _pairs(x):
  return tf.reshape(tf.repeat(x, 3), [3, 3])


def _up_to(x, limit, step, start=None):
  start = tf.zeros_like(step) if start is None else start
  return tf.while_loop(
    lambda i, x: (i < limit) & _positive(x),
    lambda i, x: (i + step, x),
    [start, x],
  )[1]


_same = lambda x: x
_WEIGHT = tf.Variable(0.0)
ENDS = {
  'maximum': _while(_positive, lambda x: x, _same, maximum_iterations=9),
  'count': _while(
    lambda i, x: (i < 9) & _positive(x), lambda i, x: (i + 1, x), 0, _same
  ),
  'size': lambda x: _up_to(x, tf.shape(x)[0] - 1, 1),
  'outside': lambda x: _up_to(x, tf.constant(9.0), 1.0, tf.constant(-5.0)),
  'flag': _while(
    lambda stop, i, x: ~stop,
    lambda stop, i, x: (~_positive(x) | (i > 9), i + 1, x),
    *(False, 0, _same),
  ),
  'by_element': _while(
    lambda i, x: tf.reduce_any((i < 9) & (x > 0)),
    lambda i, x: (tf.where((i < 9) & (x > 0), i + 1, i), x),
    *(_zeros, _same),
  ),
  'break': _with_a_break,
  'function': _with_a_function,
  'chandrupatla': _root(tfm.find_root_chandrupatla, low=-9.0, high=9.0),
  'secant': _root(tfm.find_root_secant, initial_position=tf.ones([3])),
  'lambertw': tfm.lambertw,
  'bessel': lambda x: tfm.bessel_kve(2.5, x),
  'betaincinv': lambda x: tfd.StudentT(3.0, 0.0, 1.0).quantile(x),
  'igammainv': lambda x: tfm.igammainv(x + 1, 0.3),
  'owens_t': lambda x: tfm.owens_t(x, x),
}
MAY_NOT_END = {
  'rows_alone': _while(_positive, lambda x: x / 2, _same),
  'counts_for_nothing': _while(
    lambda i, x: _positive(x), lambda i, x: (i + 1, x), 0, _same
  ),
  'either': _while(
    lambda i, x: (i < 9) | _positive(x), lambda i, x: (i + 1, x), 0, _same
  ),
  'counts_at_times': _while(
    lambda i, x: tf.reduce_any(i < 9),
    lambda i, x: (tf.where(x > 0, i, i + 1), x),
    *(_zeros, _same),
  ),
  'counts_back': _while(
    lambda i, x: (i < 9) & _positive(x), lambda i, x: (i - 1, x), 0, _same
  ),
  'limit_moves': _while(
    lambda i, n, x: (i < n) & _positive(x),
    lambda i, n, x: (i + 1, n + 1, x),
    *(0, 9, _same),
  ),
  'flag_falls': _while(
    lambda stop, i, x: ~stop,
    lambda stop, i, x: (tf.equal(i, 9) & _positive(x), i + 1, x),
    *(False, 0, _same),
  ),
  'elements_of_others': _while(
    lambda i, x: tf.reduce_any(x > 0) & tf.reduce_any(i < 9),
    lambda i, x: (tf.where(tf.reverse(x, [0]) > 0, i, i + 1), x),
    *(_zeros, _same),
  ),
  'random': lambda x: tfd.Gamma(x, 1.0).sample(seed=1),
  # 1 + 1e-9 is 1 in float32.
  'stands_still': _while(
    lambda i, x: (i < 9.0) & _positive(x),
    *(lambda i, x: (i + 1e-9, x), 1.0, _same),
  ),
  'rounded_away': _while(
    lambda i, x: (i < 1e9) & _positive(x),
    *(lambda i, x: (i + 1.0, x), 1.0, _same),
  ),
  'no_limit': _while(
    lambda i, x: (i < float('inf')) & _positive(x),
    *(lambda i, x: (i + 1.0, x), 1.0, _same),
  ),
  'begins_anew': _while(
    lambda i, x: (tf.cast(i, tf.int32) < 300) & _positive(x),
    lambda i, x: (i + tf.constant(1, tf.uint8), x),
    *(lambda x: tf.constant(0, tf.uint8), _same),
  ),
  # The same where the limit is a constant outside of the loop.
  'rounded_away_outside': lambda x: _up_to(x, tf.constant(1e9), 1.0),
  'no_limit_outside': lambda x: _up_to(x, tf.constant(float('inf')), 1.0),
  'begins_too_low': lambda x: _up_to(x, 9.0, 1.0, -1e30),
  # These pass the largest int32.
  'begins_anew_after_the_largest': lambda x: _up_to(x, 2**31 - 1, 2),
  'begins_anew_outside': lambda x: _up_to(x, tf.constant(2**31 - 1), 2),
  'steps_too_large': lambda x: _up_to(x, 9, 2**31 - 1, 1),
  'sum_begins_anew': _while(
    lambda i, x: (i - tf.constant(-(2**31)) < 9) & _positive(x),
    *(lambda i, x: (i + 1, x), 1, _same),
  ),
  'too_many': lambda x: _up_to(x, 2 * 10**9, 1),
  'limit_of_a_variable': lambda x: _up_to(x, tf.exp(_WEIGHT), 1.0),
  # [n, 1] with [n]: a row waits for all others.
  'other_alignment': _while(
    lambda i, x: tf.reduce_any(~_done(x, keepdims=True) & (i < 9)),
    lambda i, x: (tf.where(_done(x), i, i + 1), x),
    *(lambda x: tf.zeros([3], tf.int32), _pairs),
  ),
  'other_axis': _while(
    lambda i, x: tf.reduce_any(~_done(x, axis=0) & (i < 9)),
    lambda i, x: (tf.where(_done(x), i, i + 1), x),
    *(lambda x: tf.zeros([3], tf.int32), _pairs),
  ),
  'aligned_at_the_left': _while(
    lambda i, x: tf.reduce_any(~(x > 0) & (i < 9)),
    lambda i, x: (tf.compat.v1.where(x > 0, i, i + 1), x),
    *(lambda x: tf.zeros([3, 3], tf.int32), lambda x: tf.ensure_shape(x, [3])),
  ),
  'other_number': _while(
    lambda i, x: tf.reduce_any(
      ~(tf.cast(x, tf.int32) > tf.cast(x - 0.5, tf.int32)) & (i < 9)
    ),
    lambda i, x: (
      tf.where(tf.cast(x, tf.float64) > tf.cast(x - 0.5, tf.float64), i, i + 1),
      x,
    ),
    *(_zeros, _same),
  ),
}


@pytest.mark.core
@pytest.mark.parametrize('name', ENDS)
def test_loops_that_end(name):
  assert _ends(ENDS[name])


@pytest.mark.core
@pytest.mark.parametrize('name', MAY_NOT_END)
def test_loops_that_may_not_end(name):
  assert not _ends(MAY_NOT_END[name])


def test_no_elements_are_no_reason_to_end():
  """Of no elements, all count as past the limit and any as not."""
  on = _while(
    lambda i, x: ~tf.reduce_any((i > 9) | (x > 17)),
    *(lambda i, x: (i + 1, x), _zeros, _same),
  )
  assert not _ends(on)


def _checked(function):
  model = keras.Sequential([L.Dense(4), L.Lambda(function, name='bad')])
  private = tfdpflows.PrivateModel(keras.Sequential([model, L.Dense(1)]))
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )
  private.compile(optimizer, 'mse')
  private._checker.check((tf.TensorSpec([None, 4]), tf.TensorSpec([None])))


def test_a_model_with_an_endless_loop_is_refused_and_not_run():
  """It would never end on the first probe rows."""
  endless = _while(lambda x: tf.reduce_all(x == x), lambda x: x + 1, _same)
  with pytest.raises(ValueError, match='(?s)bad uses .*While.*maximum_iter'):
    _checked(endless)
  inner = lambda x: tf.cond(
    tf.reduce_any(x > 17), lambda: _forever(x), lambda: x
  )
  with pytest.raises(ValueError, match='(?s)uses .*While.*maximum_iter'):
    _checked(lambda x: tf.map_fn(inner, x))


def test_how_many_rows_are_left_is_for_rows_to_say():
  """The condition looks at a shape only."""

  def left(x):
    over = tf.while_loop(
      lambda rest: tf.size(rest) > 0,
      lambda rest: [tf.boolean_mask(rest, tf.equal(rest, 12345.0))],
      [tf.reshape(tf.stop_gradient(x), [-1])],
      shape_invariants=[tf.TensorShape([None])],
    )[0]
    return x + tf.reduce_sum(over)

  with pytest.raises(ValueError, match='bad uses the operation Where, '):
    _checked(left)


def test_rows_that_take_long_to_come_to_the_condition():
  def passed_on(x):
    # Here only after as many turns as there are variables.
    large = tf.cast(tf.reduce_any(tf.equal(x, 12345.0)), tf.int32)
    turns = tf.while_loop(
      lambda i, *late: i < 100,
      lambda i, *late: (i + tf.where(late[-1] > 0, 0, 1), large, *late[:-1]),
      [0] * 61,
    )[0]
    return x + tf.cast(turns, x.dtype)

  with pytest.raises(ValueError, match='(?s)bad uses .*While.*maximum_iter'):
    _checked(passed_on)


def _forever(x):
  """That it is entered is for rows to say."""
  turns = tf.while_loop(lambda i: i > -1, lambda i: (i + 0,), [0])[0]
  return x + tf.cast(turns, x.dtype)


@pytest.mark.core
def test_models_with_loops_that_end_are_kept():
  def halved(x):
    each = _while(
      lambda i, r: _positive(r),
      lambda i, r: [i + 1, r / 2 - 0.01],
      *(0, _same),
      maximum_iterations=3,
    )
    return tf.map_fn(each, x)

  _checked(halved)


class _Cubic(tfb.Bijector):
  """Inverts x^3 + exp(a) x by a search."""

  def __init__(self):
    parameters = dict(locals())
    self.a = tf.Variable(0.0)
    super().__init__(forward_min_event_ndims=0, parameters=parameters)

  def _inverse(self, y):
    slope = tf.exp(self.a)
    bound = 1 + tf.abs(y)
    found = tfm.find_root_chandrupatla(
      lambda x: x**3 + slope * x - y,
      low=-bound,
      high=bound,
      position_tolerance=1e-3,
    )
    x = tf.stop_gradient(found.estimated_root)
    # A step of Newton's method has the derivatives of the root.
    return x - (x**3 + slope * x - y) / tf.stop_gradient(3 * x**2 + slope)

  def _forward_log_det_jacobian(self, x):
    return tf.math.log(3 * x**2 + tf.exp(self.a))


def test_densities_may_search_for_roots():
  density = tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.Variable([0.0, 0.0])), _Cubic()
  )
  model = tfdpflows.DensityModel(density)
  model.compile(
    optimizers.DPKerasSGD(
      l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
    )
  )
  model._checker.check(tf.TensorSpec([None, 2]))
