"""The DP-Keras optimizers: noise, clipping, and what TF Privacy's get wrong."""

import copy
import itertools
import json
import os
import pickle

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import _keras, gradients, optimizers
from tfdpflows.optimizers import dp_keras, noise

OPTIMIZERS = {
  'sgd': (optimizers.DPKerasSGD, _keras.VectorizedDPKerasSGDOptimizer),
  'adam': (optimizers.DPKerasAdam, _keras.VectorizedDPKerasAdamOptimizer),
  'adagrad': (
    optimizers.DPKerasAdagrad,
    _keras.VectorizedDPKerasAdagradOptimizer,
  ),
  'adabelief': (
    optimizers.DPKerasAdaBelief,
    _keras.VectorizedDPKerasAdamOptimizer,
  ),
}
CLIPPING = {
  'flat': gradients.Flat(3.0),
  'per_layer': gradients.PerLayer(3.0),
  'per_unit': gradients.PerUnit(3.0),
  'automatic': gradients.Automatic(3.0, gamma=0.5),
  'sparse': gradients.StochasticSparsification(3.0, 0.5, 0.1, seed=4),
  'adaptive': gradients.AdaptiveQuantile(3.0, 0.7, 0.1, 20.0),
}


def _optimizer(name='sgd', **kwargs):
  arguments = {
    'l2_norm_clip': 1.0,
    'noise_multiplier': 1.0,
    'expected_batch_size': 8,
    'learning_rate': 1.0,
    'seed': 0,
    **kwargs,
  }
  return OPTIMIZERS[name][0](**arguments)


def _gradients(optimizer, x, kernel, weights=None):
  with gradients.PerExampleTape() as tape:
    loss = tf.reduce_sum(gradients.linear(x, kernel), -1)
  return optimizer.private_gradients(loss, [kernel], tape, weights)


@pytest.mark.core
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_is_tf_privacys_and_config_round_trips(name):
  optimizer = _optimizer(name, l2_norm_clip=3.0, loss_bound=2.0)
  assert isinstance(optimizer, OPTIMIZERS[name][1])
  config = optimizer.get_config()
  copy = type(optimizer).from_config(config)
  assert copy.get_config() == config
  assert copy.clipping.l2_norm_clip == 3.0
  assert copy.noise_multiplier == 1.0
  assert copy.expected_batch_size == 8
  assert copy.loss_bound == 2.0


@pytest.mark.core
@pytest.mark.parametrize('clipping', CLIPPING)
def test_config_keeps_the_strategy_and_the_schedule(clipping):
  schedule = _keras.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
  optimizer = _optimizer(
    l2_norm_clip=None,
    clipping=CLIPPING[clipping],
    learning_rate=schedule,
    augmentation_multiplicity=3,
    chunk_size=7,
  )
  config = json.loads(json.dumps(optimizer.get_config()))
  copy = type(optimizer).from_config(config)
  assert copy.get_config() == optimizer.get_config()
  assert type(copy.clipping) is type(CLIPPING[clipping])
  assert copy.clipping.get_config() == CLIPPING[clipping].get_config()
  assert copy.augmentation_multiplicity == 3
  assert copy.chunk_size == 7
  assert isinstance(copy.learning_rate, type(schedule))


def test_a_strategy_of_ones_own_comes_back_through_custom_objects():
  class Mine(gradients.Flat):
    pass

  config = _optimizer(l2_norm_clip=None, clipping=Mine(2.0)).get_config()
  copy = optimizers.DPKerasSGD.from_config(config, {'Mine': Mine})
  assert type(copy.clipping) is Mine
  with pytest.raises(ValueError, match="'Mine'"):
    optimizers.DPKerasSGD.from_config(config)


@pytest.mark.parametrize(
  # Of two kinds; the others take the rate as these.
  'name',
  thinned(OPTIMIZERS, lambda name: name in ('sgd', 'adabelief')),
)
def test_learning_rate_schedules(name):
  schedules = _keras.keras.optimizers.schedules
  schedule = schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
  kernel = tf.Variable([[1.0], [2.0]])
  optimizer = _optimizer(name, learning_rate=schedule)

  @tf.function
  def step():
    means, _ = _gradients(optimizer, tf.ones([1, 2]), kernel)
    optimizer.apply_gradients(zip(means, [kernel]))

  before = kernel.numpy()
  step()
  after = kernel.numpy()
  assert np.all(before != after)
  step()  # At a rate of zero.
  np.testing.assert_array_equal(kernel, after)


@pytest.mark.core
@pytest.mark.parametrize('loss_bound', [None, 2.0])
def test_noise_of_an_adaptive_threshold(loss_bound):
  """Count, loss and gradient together cost what the multiplier says."""
  optimizer = _optimizer(
    l2_norm_clip=None,
    clipping=gradients.AdaptiveQuantile(0.5, 0.5, 0.1, count_stddev=2.0),
    noise_multiplier=3.0,
    loss_bound=loss_bound,
  )
  multipliers = optimizer._noise_multipliers()
  np.testing.assert_allclose(sum(z**-2 for z in multipliers), 3.0**-2)
  assert multipliers[2] == 2 * 2.0
  if loss_bound is None:
    z_delta = (3.0**-2 - (2 * 2.0) ** -2) ** -0.5
    np.testing.assert_allclose(multipliers[0], z_delta)
  kernel = tf.Variable(tf.zeros([40, 1]))
  optimizer.clipping.learning_rate = 1e-9  # The threshold stays.
  step = tf.function(
    lambda: _gradients(optimizer, tf.zeros([3, 40]), kernel)[0]
  )
  noise, counts = [], []
  for _ in range(200):
    state = optimizer.clipping.state.numpy()
    noise.append(step()[0].numpy())
    # Three rows are left unclipped: a count of 3/2, and 4 of 8 are the target.
    change = (optimizer.clipping.state.numpy() - state) / -1e-9
    counts.append(change * 8 - 1.5)
  noise = np.ravel(noise) * 8 / (0.5 * multipliers[0])
  for z in (noise, np.array(counts) / 2.0):
    p = scipy.stats.chi2.cdf(np.sum(z**2), z.size)
    assert 1e-4 < p < 1 - 1e-4
  assert optimizer.noise_stddev.numpy() == pytest.approx(0.5 * multipliers[0])


@pytest.mark.core
def test_adaptive_threshold_moves_is_the_optimizers_own_and_is_saved(tmp_path):
  strategy = gradients.AdaptiveQuantile(1.0)
  make = lambda: _optimizer(
    l2_norm_clip=None, clipping=strategy, noise_multiplier=0.0
  )
  optimizer = make()
  kernel = tf.Variable(tf.zeros([2, 1]))
  x = tf.fill([8, 2], 100.0)
  for _ in range(5):
    _gradients(optimizer, x, kernel)
  clip = float(optimizer.clipping.l2_sensitivity)
  np.testing.assert_allclose(clip, np.exp(5 * 0.2 * 0.5))
  assert float(strategy.l2_sensitivity) == 1.0
  assert float(make().clipping.l2_sensitivity) == 1.0
  path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / 'c'))
  other = make()
  tf.train.Checkpoint(optimizer=other).restore(path)
  assert float(other.clipping.l2_sensitivity) == clip


@pytest.mark.core
@pytest.mark.parametrize(
  ('xla', 'rows', 'dtype'),
  thinned(
    itertools.product([False, True], [0, 1, 5], ['float32', 'float64']),
    # Each number of rows, and either precision with and without XLA.
    lambda point: (
      point[1:] in ((0, 'float32'), (5, 'float64'))
      or point == (False, 1, 'float32')
    ),
  ),
)
def test_noise_has_the_planned_variance(dtype, rows, xla):
  """Chi-square, also for an empty batch, whatever the realised size."""
  kernel = tf.Variable(tf.zeros([100, 100], dtype))
  optimizer = _optimizer(l2_norm_clip=0.5, noise_multiplier=3.0)
  x = tf.zeros([rows, 100], dtype)
  step = tf.function(
    lambda: _gradients(optimizer, x, kernel)[0][0], jit_compile=xla
  )
  noise = step().numpy() * 8 / (0.5 * 3)
  assert noise.dtype == dtype
  statistic = np.sum(noise**2)
  p = scipy.stats.chi2.cdf(statistic, noise.size)
  assert 1e-4 < p < 1 - 1e-4
  assert not np.allclose(step().numpy() * 8 / (0.5 * 3), noise)


def test_divides_by_the_expected_batch_and_leaves_out_bad_rows():
  kernel = tf.Variable(tf.zeros([2, 1]))
  optimizer = _optimizer(noise_multiplier=0.0)
  x = tf.constant([[0.5, 0], [np.nan, 1], [np.inf, 1], [30, 40], [0.1, 0]])
  weights = tf.constant([1.0, 1, 1, 1, 0])
  (mean,), _ = _gradients(optimizer, x, kernel, weights)
  np.testing.assert_allclose(mean[:, 0], [1.1 / 8, 0.8 / 8], rtol=1e-6)


@pytest.mark.core
def test_neighbours_with_frozen_noise_differ_by_at_most_the_clip(monkeypatch):
  # Each result is rounded, which is post-processing.
  monkeypatch.setattr(noise, 'on_grid', lambda x, stddev: x)
  rng = np.random.default_rng(0)
  kernel = tf.Variable(rng.normal(size=[6, 4]).astype('float32'))
  for scale in (1e-3, 1, 1e3):
    x = tf.constant(rng.normal(size=[10, 6]).astype('float32') * scale)
    (a,), _ = _gradients(_optimizer(), x, kernel)
    (b,), _ = _gradients(_optimizer(), x[1:], kernel)
    assert np.linalg.norm((a - b) * 8) <= 1 + 1e-5


def test_released_loss_is_bounded_noised_and_in_the_sensitivity():
  kernel = tf.Variable(tf.zeros([2, 1]))
  x = tf.constant([[1.0, 1]] * 4)

  def release(noise_multiplier, losses):
    optimizer = _optimizer(noise_multiplier=noise_multiplier, loss_bound=5.0)

    @tf.function
    def step():
      with gradients.PerExampleTape() as tape:
        loss = gradients.linear(x, kernel)[:, 0] + tf.constant(losses)
      return optimizer.private_gradients(loss, [kernel], tape)[1]

    return step

  quiet = release(0.0, [1.0, -100, 100, np.nan])()
  np.testing.assert_allclose(quiet, 1 / 8, rtol=1e-6)
  noisy = release(2.0, [0.0] * 4)
  noise = [float(noisy()) for _ in range(200)]
  # One example moves the sum by 5; its share of the noise is a tenth.
  expected = 2 * np.hypot(1, 0.1) * 5 / 0.1 / 8
  p = scipy.stats.chi2.cdf(np.sum(np.square(noise)) / expected**2, 200)
  assert 1e-4 < p < 1 - 1e-4
  assert _optimizer(loss_bound=5.0).noise_stddev == np.hypot(1, 0.1)
  assert _optimizer().noise_stddev == 1.0


def test_fresh_optimizers_have_fresh_noise():
  # Of many numbers: noise is on a grid, where two of three may be one.
  x, kernel = tf.zeros([1, 40]), tf.Variable(tf.zeros([40, 1]))
  draws = {
    _gradients(_optimizer(seed=None), x, kernel)[0][0].numpy().tobytes()
    for _ in range(3)
  }
  assert len(draws) == 3


def test_copies_and_forks_draw_no_noise_twice(monkeypatch):
  optimizer, kernel = _optimizer(seed=None), tf.Variable(tf.zeros([2, 1]))
  for copied in (copy.deepcopy, pickle.dumps):
    with pytest.raises(TypeError, match='drawn twice'):
      copied(optimizer.noise_source)
  with pytest.raises(TypeError, match='drawn twice'):
    copy.deepcopy(optimizer)
  type(optimizer).from_config(optimizer.get_config())
  process = os.getpid()
  monkeypatch.setattr(os, 'getpid', lambda: process + 1)
  with pytest.raises(RuntimeError, match='forked from'):
    _gradients(optimizer, tf.zeros([1, 2]), kernel)


@pytest.mark.core
@pytest.mark.parametrize('given', [None, 'seed', 'noise_generator'])
def test_a_restore_takes_secret_noise_not_back(given, tmp_path):
  """It was used, and the same noise would meet another batch."""
  values = {'seed': 3, 'noise_generator': tf.random.Generator.from_seed(3)}
  kwargs = {'seed': None, **({given: values[given]} if given else {})}
  optimizer, kernel = _optimizer(**kwargs), tf.Variable(tf.zeros([2, 1]))
  saved = tf.train.Checkpoint(optimizer=optimizer)
  path = saved.write(str(tmp_path / 'c'))
  noise = []
  for _ in range(2):
    noise.append(_gradients(optimizer, tf.zeros([1, 2]), kernel)[0][0].numpy())
    saved.read(path).assert_consumed()
  assert np.array_equal(*noise) == (given is not None)


def test_variables_of_two_dtypes_are_refused():
  variables = [
    tf.Variable([1.0]),
    tf.Variable([1.0], name='b', dtype='float64'),
  ]
  with pytest.raises(ValueError, match='b:0 is float64, and .* is float32'):
    _optimizer().private_gradients_of(
      lambda x: x[:, 0], tf.zeros([2, 1]), variables
    )


def test_plain_keras_model_trains_by_the_slow_way():
  """In `fit`, with a vector loss; a loss that Keras averages is refused."""
  keras = _keras.keras
  x = np.ones([16, 3], 'float32')

  def compiled(reduction):
    model = keras.Sequential([keras.layers.Dense(1)])
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model.compile(optimizer=_optimizer('adam'), loss=loss)
    return model

  compiled('none').fit(x, x[:, :1], batch_size=8, verbose=0)
  with pytest.raises(ValueError, match='one loss per example'):
    compiled('auto').fit(x, x[:, :1], batch_size=8, verbose=0)


def test_minimize_with_a_callable_equals_private_gradients():
  kernel = tf.Variable([[1.0], [2.0]])
  x = tf.constant([[3.0, 4.0]])
  optimizer = _optimizer(noise_multiplier=0.0)
  loss = lambda: tf.reduce_sum(gradients.linear(x, kernel), -1)
  optimizer.minimize(loss, [kernel])
  np.testing.assert_allclose(kernel[:, 0], [1 - 0.6 / 8, 2 - 0.8 / 8])


def test_replicas_are_refused(monkeypatch):
  kernel = tf.Variable(tf.zeros([2, 1]))

  class Two:
    num_replicas_in_sync = 2

  monkeypatch.setattr(tf.distribute, 'get_strategy', Two)
  with pytest.raises(ValueError, match='one replica and finds 2'):
    _gradients(_optimizer(), tf.zeros([1, 2]), kernel)


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ({'learning_rate': float('nan')}, ValueError, 'learning_rate is nan'),
    ({'learning_rate': -1.0}, ValueError, 'learning_rate is -1.0; .* zero or'),
    ({'learning_rate': 'x'}, TypeError, "learning_rate is 'x'; .* schedule"),
    ({'learning_rate': [0.1]}, TypeError, 'learning_rate is of type list'),
    ({'lerning_rate': 0.1}, TypeError, 'lerning_rate; .* learning_rate. It'),
    ({'unheard_of': 1}, TypeError, 'has no argument unheard_of. .*loss_bound'),
    ({'gradient_accumulation_steps': 4}, TypeError, 'see chunk_size'),
  ],
)
def test_arguments_of_keras_are_checked(arguments, error, message):
  with pytest.raises(error, match=message):
    _optimizer('adam', **arguments)


@pytest.mark.parametrize(
  'rate', [0, np.float32(0.1), tf.constant(0.1), lambda: 0.1]
)
def test_what_keras_takes_as_a_learning_rate(rate):
  _optimizer('adabelief', learning_rate=rate, clipnorm=1.0)


def test_bad_input():
  for arguments, message in (
    ({'l2_norm_clip': 0.0}, 'l2_norm_clip'),
    ({'clipping': gradients.Flat(1.0)}, 'one of `l2_norm_clip`'),
    ({'l2_norm_clip': None}, 'one of `l2_norm_clip`'),
    ({'noise_multiplier': -1.0}, 'noise_multiplier'),
    ({'noise_multiplier': np.nan}, 'noise_multiplier'),
    ({'expected_batch_size': 0}, 'expected_batch_size'),
    ({'loss_bound': -1.0}, 'loss_bound'),
    ({'loss_bound': 1e37}, 'from 1e-9 to 1e9'),
    ({'augmentation_multiplicity': 0}, 'augmentation_multiplicity'),
    ({'chunk_size': 1.5}, 'chunk_size'),
    (
      {
        'l2_norm_clip': None,
        'clipping': gradients.AdaptiveQuantile(count_stddev=0.4),
      },
      'count_stddev',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      _optimizer(**arguments)
  with pytest.raises(ValueError, match='TensorFlow 2'):
    _optimizer().get_gradients(None, None)
  with pytest.raises(ValueError, match='tape'):
    _optimizer()._compute_gradients(tf.zeros([3]), [])


@pytest.mark.core
def test_noise_is_the_same_whether_or_not_it_waits_for_the_sums(monkeypatch):
  # Two groups of noise.
  kernels = [tf.Variable(tf.zeros([300, 300])) for _ in range(2)]
  x = tf.ones([4, 300])

  def update():
    optimizer = _optimizer()

    @tf.function(autograph=False)
    def mean_gradients():
      with gradients.PerExampleTape() as tape:
        outputs = [gradients.linear(x, kernel) for kernel in kernels]
        loss = tf.reduce_sum(tf.add_n(outputs), -1)
      return optimizer.private_gradients(loss, kernels, tape)[0]

    return [mean_gradients(), mean_gradients()]

  assert len(noise.groups(kernels)) == 2
  free = update()
  monkeypatch.setattr(dp_keras, '_LITTLE', 0)
  for one, other in zip(tf.nest.flatten(free), tf.nest.flatten(update())):
    np.testing.assert_array_equal(one, other)
