"""Models that let one example change another are found out, others are not."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tests.quick_density import QuickDensity
from tfdpflows import gradients, optimizers, sampling
from tfdpflows._keras import keras, tfp
from tfdpflows.accounting.ledger import ledger as ledger_lib
from tfdpflows.independence.comparison import check_function
from tfdpflows.optimizers import noise
from tfdpflows.randomness import Randomness

L = keras.layers
tfb, tfd = tfp.bijectors, tfp.distributions
N = 40
SPEC = tf.TensorSpec([None, 4]), tf.TensorSpec([None])


def _plan(seed=0, **kwargs):
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=N, sampling_probability=0.5),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=2,
    delta=1e-4,
    seed=seed,
    **kwargs,
  )


def _optimizer():
  return optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )


def _checked(layers, loss='mse', **kwargs):
  """Tries a regression as the first step does."""
  model = keras.Sequential([L.Dense(4), *layers, L.Dense(1)])
  private = tfdpflows.PrivateModel(model, **kwargs)
  private.compile(_optimizer(), loss)
  private._checker.check(SPEC)
  return private


class _Gated(L.Layer):
  """Mixes rows behind a gate that is closed at the start."""

  def __init__(self, activation=tf.identity, start=0.0):
    super().__init__(name='bad')
    self._activation, self._start = activation, start

  def build(self, shape):
    self.gate = self.add_weight(
      'gate', [], initializer=keras.initializers.Constant(self._start)
    )

  def call(self, x):
    return x + self._activation(self.gate) * tf.reduce_mean(x, 0)


class _StraightThrough(L.Layer):
  """The outputs of each row alone but for rounding, the gradients of all."""

  def call(self, x):
    mean = tf.reduce_mean(x, 0)
    return x + mean - tf.stop_gradient(mean)


class _Mixup(L.Layer):
  """In training each row is mixed with a random row."""

  def call(self, x, training=None):
    if not training:
      return x
    return (x + tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))) / 2


class _KerasMixup(keras.__internal__.layers.BaseRandomLayer):
  """The same, as Keras makes its random layers."""

  def call(self, x, training=None):
    if not training:
      return x
    share = self._random_generator.random_uniform(tf.shape(x)[:1])[:, None]
    return share * x + (1 - share) * tf.reverse(x, [0])


class _FewRows(L.Layer):
  def call(self, x):
    return x / tf.cast(tf.shape(x)[0], x.dtype)


MIXING = {
  'gate': lambda: _Gated(),
  'gate_behind_relu': lambda: _Gated(tf.nn.relu),
  'gate_behind_negative_relu': lambda: _Gated(lambda g: tf.nn.relu(-g)),
  'small_gate': lambda: _Gated(start=1e-7),
  'straight_through': lambda: _StraightThrough(name='bad'),
  'mixup': lambda: _Mixup(name='bad'),
  'keras_mixup': lambda: _KerasMixup(name='bad'),
  'batch_size': lambda: _FewRows(name='bad'),
}


@pytest.mark.core
@pytest.mark.parametrize('name', MIXING)
def test_layers_that_mix_are_refused(name):
  with pytest.raises(ValueError, match='bad mixes examples'):
    _checked([MIXING[name]()])


def test_the_layer_that_mixes_is_named_where_one_behind_shows_it():
  def shift(by):
    bias = keras.initializers.Constant(by)
    return L.Dense(4, kernel_initializer='identity', bias_initializer=bias)

  with pytest.raises(ValueError, match='bad mixes examples'):
    _checked([shift(10.0), _Gated(start=2e-5), shift(-10.0)])


def test_losses_that_count_the_batch_are_refused():
  def shared(y, p):
    return keras.losses.mse(y, p) / tf.cast(tf.shape(p)[0], p.dtype)

  with pytest.raises(ValueError, match='size of the batch changes the loss'):
    _checked([], shared)

  def weighted(y, p):
    count = tf.reduce_sum(tf.cast(y == y[0], p.dtype))
    return tf.reduce_sum(tf.square(p), 1) * tf.stop_gradient(count)

  with pytest.raises(ValueError, match='The loss mixes examples'):
    _checked([], weighted)


class _Noisy(L.Layer):
  """Draws by itself, in a way of its own."""

  def __init__(self, how):
    super().__init__()
    self.generator = tf.random.Generator.from_seed(3)
    hidden = tf.random.Generator.from_seed(4)
    self._draw = {
      'legacy': tf.random.normal,
      'seeded': lambda shape: tf.random.normal(shape, seed=3),
      'tracked': self.generator.normal,
      'hidden': lambda shape: hidden.normal(shape),
      'twice': lambda shape: hidden.normal(shape) + hidden.normal(shape),
      'numpy': lambda shape: tf.numpy_function(
        lambda s: np.random.normal(size=s).astype('f'), [shape], tf.float32
      ),
    }[how]

  def call(self, x):
    return x + tf.ensure_shape(self._draw(tf.shape(x)), x.shape)


RANDOM = ['legacy', 'seeded', 'tracked', 'hidden']


@pytest.mark.parametrize('how', RANDOM)
def test_randomness_of_ones_own_is_repeated_and_does_not_hide_mixing(how):
  private = _checked([_Noisy(how)])
  assert bool(private._checker.untracked_randomness) == (how != 'tracked')
  with pytest.raises(ValueError, match='bad mixes examples'):
    _checked([_Noisy(how), _Gated()])


class _Known(L.Layer):
  """Draws the same numbers in each step, a number for each place."""

  def call(self, x):
    return x * tf.random.stateless_uniform(tf.shape(x), [1, 2])


def test_numbers_that_tell_the_place_of_a_row_are_refused():
  with pytest.raises(ValueError, match='differ by the place of a row'):
    _checked([_Known(name='bad')])


class _Counts(L.Layer):
  """Keeps how many rows batches have, once its gate is open."""

  def build(self, shape):
    make = lambda name: self.add_weight(
      name, [], initializer='zeros', trainable=False
    )
    self.gate, self.count = make('gate'), make('count')

  def call(self, x):
    self.count.assign_add(self.gate * tf.cast(tf.shape(x)[0], x.dtype))
    return x


class _CountsApart(_Counts):
  @tf.function
  def call(self, x):
    return super().call(x)


class _Accumulates(L.Layer):
  """Keeps a sum of its rows in a state that is no variable."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.sums = tf.raw_ops.ResourceConditionalAccumulator(
      dtype=tf.float32, shape=[4]
    )

  def _keep(self, total):
    step = tf.constant(10**9, tf.int64)
    tf.raw_ops.ResourceAccumulatorApplyGradient(
      handle=self.sums, local_step=step, gradient=total
    )

  def call(self, x):
    self._keep(tf.reduce_sum(tf.stop_gradient(x), 0))
    return x


class _AccumulatesSizes(_Accumulates):
  def call(self, x):
    self._keep(tf.fill([4], tf.cast(tf.shape(x)[0], x.dtype)))
    return x


class _AccumulatesApart(_Accumulates):
  @tf.function
  def call(self, x):
    return super().call(x)


class _Repeats(L.Layer):
  """Sets its generator back before it draws."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.generator = tf.random.Generator.from_seed(3)

  def call(self, x):
    self.generator.reset_from_seed(1)
    return x + self.generator.normal(tf.shape(x))


@pytest.mark.parametrize(
  ('layer', 'message'),
  [
    (_Counts, 'number of rows in the batch'),
    (_CountsApart, 'inside of a function, a loop'),
    (_Accumulates, 'mixes examples'),
    (_AccumulatesSizes, 'number of rows in the batch'),
    (_AccumulatesApart, 'inside of a function, a loop'),
    (_Repeats, 'sets the state of a tf.random.Generator'),
  ],
)
def test_states_that_keep_what_is_not_known_are_refused(layer, message):
  with pytest.raises(ValueError, match=message):
    _checked([layer(name='bad')])


def _fitted(plan, *layers, **kwargs):
  x = np.ones([N, 4], 'float32')
  model = keras.Sequential(
    [*layers, L.Dense(1, use_bias=False, kernel_initializer='zeros')]
  )
  private = tfdpflows.PrivateModel(model)
  private.compile(plan.optimizer('sgd', learning_rate=1.0), lambda y, p: p)
  private.fit(x, np.zeros([N, 1], 'float32'), verbose=0, **kwargs)
  return private.model.trainable_weights[0].numpy().ravel()


def test_seeds_of_layers_are_refused_or_replaced_by_the_secret_of_a_plan(
  monkeypatch,
):
  """One row more moves the numbers of a known seed to other rows."""
  # Reservations that are alike, so that batches are.
  monkeypatch.setattr(ledger_lib, '_new_nonce', lambda: 7)
  with pytest.raises(ValueError, match='with a seed of its own'):
    _fitted(_plan(seed=None), _Noisy('seeded'))
  _fitted(_plan(seed=3), _Noisy('seeded'))
  secret, states = Randomness().secret, []
  for how in ('tracked', 'hidden', 'tracked'):
    source = Randomness(secret=secret)
    noisy, found = _Noisy(how), []
    at_end = keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda *_, n=noisy, f=found: f.append(
        n.generator.state.numpy()
      )
    )
    _fitted(_plan(seed=None, randomness=source), noisy, callbacks=[at_end])
    states.append(found)
  # Of the secret and the step alone, also what no checkpoint knows.
  np.testing.assert_array_equal(states[0], states[2])
  assert len({state[2] for state in (*states[0], *states[1])}) == 4


def test_a_seed_of_the_whole_program_decides_nothing(monkeypatch):
  """Nothing but dropout is random here."""
  monkeypatch.setattr(noise, 'normal', lambda _, n, *x: tf.zeros([n], x[-1]))
  found = []
  for _ in range(2):
    keras.utils.set_random_seed(1)
    plan = tfdpflows.TrainingPlan(
      sampling.PoissonSampler(num_examples=N, sampling_probability=1.0),
      gradients.Flat(1.0),
      noise_multiplier=1.0,
      steps=1,
      delta=1e-4,
    )
    found.append(_fitted(plan, L.Dropout(0.5)))
  assert np.abs(found[0] - found[1]).max() > 1e-3


def test_what_cannot_be_repeated_is_refused_unless_declared():
  with pytest.raises(ValueError, match='declare it: examples_independent=True'):
    _checked([_Noisy('numpy')])
  _checked([_Noisy('numpy')], examples_independent=True)


def test_several_draws_that_batches_share_out_otherwise_are_proven():
  assert _checked([_Noisy('twice')]).checked_independence == 'proven'
  with pytest.raises(ValueError, match='bad mixes examples'):
    _checked([_Noisy('twice'), _Gated()], examples_independent=True)


def test_ordinary_random_layers_are_not_refused():
  private = _checked(
    [
      L.Dropout(0.5),
      L.GaussianNoise(0.1, seed=3),
      L.Reshape([2, 2, 1]),
      L.RandomTranslation(0.3, 0.3),
      L.Reshape([2, 2]),
      L.GRU(2, dropout=0.2),
    ]
  )
  assert 'RandomUniform' in private._checker.untracked_randomness


@pytest.mark.parametrize(
  'layer',
  thinned(
    [
      lambda: L.RNN(L.SimpleRNNCell(3, dropout=0.1)),
      lambda: L.RNN(L.GRUCell(3, dropout=0.1, recurrent_dropout=0.2)),
      lambda: L.Bidirectional(L.LSTM(3, dropout=0.1)),
    ],
    1,
  ),
  ids=['simple', 'gru', 'bidirectional'],
)
def test_dropout_in_the_steps_of_a_series_is_not_refused(layer):
  """Its masks could not be listed, and were drawn in any order of the steps."""
  _checked([L.Reshape([4, 1]), L.Masking(), layer()])


def test_everything_is_as_before():
  tf.random.set_seed(7)
  expected = [tf.random.uniform([]).numpy() for _ in range(2)]
  noisy = _Noisy('tracked')
  model = keras.Sequential([L.Dense(4), noisy, L.Dropout(0.5), L.Dense(1)])
  model(np.zeros([1, 4], 'float32'))
  private = tfdpflows.PrivateModel(model)
  private.compile(_optimizer(), 'mse')
  before = [v.numpy() for v in model.variables]
  state = noisy.generator.state.numpy()
  tf.random.set_seed(7)
  found = [tf.random.uniform([]).numpy()]
  private._checker.check(SPEC)
  found.append(tf.random.uniform([]).numpy())
  assert found == expected
  for old, new in zip(before, model.variables):
    np.testing.assert_array_equal(old, new)
  np.testing.assert_array_equal(noisy.generator.state, state)
  private._checker.forget()
  private._checker.check(SPEC)
  np.testing.assert_array_equal(noisy.generator.state, state)


def test_rows_that_the_model_cannot_use_are_asked_for():
  logarithm = lambda y, p: tf.math.log(tf.cast(y, p.dtype) - 5) + p[:, :1]
  with pytest.raises(ValueError, match='not finite on rows made up.*example='):
    _checked([], logarithm)
  example = np.zeros([3, 4]), np.array([6.0, 7.0, 8.0])
  _checked([], logarithm, example=example)


def _density(distribution=None, **kwargs):
  distribution = QuickDensity(4) if distribution is None else distribution
  model = tfdpflows.DensityModel(distribution, **kwargs)
  model.compile(_optimizer())
  model._checker.check(SPEC[0])
  return model


class _GatedShift(tfb.Bijector):
  """Moves rows by their mean, once its gate is open."""

  def __init__(self):
    parameters = dict(locals())
    self.gate = tf.Variable(0.0)
    super().__init__(
      forward_min_event_ndims=1,
      is_constant_jacobian=True,
      parameters=parameters,
    )

  def _inverse(self, y):
    return y - self.gate * tf.reduce_mean(y, 0)

  def _inverse_log_det_jacobian(self, y):
    return tf.zeros([], y.dtype)


@pytest.mark.core
def test_densities_that_mix_rows_are_refused():
  flow = lambda: tfdpflows.flows.masked_autoregressive_flow(4, 1, [4], seed=0)
  with pytest.raises(ValueError, match='The log-density mixes examples'):
    _density(tfd.TransformedDistribution(flow(), _GatedShift()))
  for mixing in (
    lambda x: x - tf.reduce_mean(x, 0),
    lambda x: (x + tf.random.shuffle(x)) / 2,
    lambda x: x / tf.cast(tf.shape(x)[0], x.dtype),
  ):
    with pytest.raises(ValueError, match='mixes examples'):
      _density(preprocessing=mixing)


def test_densities_may_be_dequantised_at_random():
  generator = tf.random.Generator.from_seed(1)
  for draw, randomness in (
    (tf.random.uniform, 'RandomUniform'),
    (generator.uniform, 'tf.random.Generator'),
  ):
    model = _density(preprocessing=lambda x, draw=draw: x + draw(tf.shape(x)))
    assert model._checker.untracked_randomness == randomness


def test_densities_that_made_up_rows_do_not_fit():
  beyond = tfd.Independent(
    tfd.Pareto(concentration=tf.Variable([1.0] * 4), scale=5.0), 1
  )
  with pytest.raises(ValueError, match='not finite on rows made up'):
    _density(beyond)
  rows = 6 + np.random.default_rng(0).random([3, 4])
  _density(beyond, example=rows)


def test_mixing_is_found_before_a_plan_charges_and_once_per_compile():
  plan = _plan()
  x = np.random.default_rng(0).normal(size=[N, 4]).astype('float32')
  model = tfdpflows.DensityModel(QuickDensity(4), lambda x: x[::-1] + x)
  model.compile(plan.optimizer('sgd', learning_rate=0.1))
  with pytest.raises(ValueError, match='mixes examples'):
    model.fit(x, verbose=0)
  assert plan.ledger.entries == () and plan.step == 0
  calls = []
  model = tfdpflows.DensityModel(
    QuickDensity(4), lambda x: calls.append(x) or x
  )
  model.compile(plan.optimizer('sgd', learning_rate=0.1))
  model.fit(x, epochs=1, verbose=0)
  # Traced for the checks and for training.
  assert all(x.shape[0] is None for x in calls)
  before = len(calls)
  model._checker.check(SPEC[0])
  assert len(calls) == before


@pytest.mark.parametrize(
  ('make', 'kept'),
  [
    (lambda: L.Dropout(0.5), False),
    (lambda: _Noisy('hidden'), False),
    (lambda: _Noisy('tracked'), True),
    (lambda: L.Activation('relu'), True),
  ],
)
def test_randomness_that_no_checkpoint_keeps_cannot_replay(make, kept):
  """A replayed step would put the same noise on another sum."""
  x = np.random.default_rng(0).normal(size=[N, 4]).astype('float32')
  y = x[:, 0]
  plan = _plan()
  model = keras.Sequential([L.Dense(4), make(), L.Dense(1)])
  private = tfdpflows.PrivateModel(model)
  optimizer = plan.optimizer('sgd', learning_rate=0.1)
  private.compile(optimizer, 'mse')
  plan.resume(optimizer, replay=True)
  if kept:
    private.fit(x, y, verbose=0)
  else:
    with pytest.raises(ValueError, match='replays.*random numbers that no'):
      private.fit(x, y, verbose=0)
    assert plan.ledger.entries == ()


def test_a_replay_does_not_run_eagerly():
  """Python code runs in each step, and no check sees what it draws."""
  x = np.random.default_rng(0).normal(size=[N, 4]).astype('float32')
  y = x[:, 0]
  plan = _plan()
  private = tfdpflows.PrivateModel(keras.Sequential([L.Dense(1)]))
  optimizer = plan.optimizer('sgd', learning_rate=0.1)
  private.compile(optimizer, 'mse', run_eagerly=True)
  plan.resume(optimizer, replay=True)
  with pytest.raises(ValueError, match='replays.*runs eagerly'):
    private.fit(x, y, verbose=0)
  assert plan.ledger.entries == ()


def test_layers_that_begin_to_mix_while_a_model_trains_are_refused():
  """Eager steps run Python again; this layer has no variables to train."""
  normalization = L.BatchNormalization(center=False, scale=False)
  normalization.trainable = False
  model = keras.Sequential([L.Dense(4), normalization, L.Dense(1)])
  private = tfdpflows.PrivateModel(model)
  private.compile(_optimizer(), 'mse', run_eagerly=True)

  def unfreeze(batch, logs):
    normalization.trainable = True

  callback = keras.callbacks.LambdaCallback(on_train_batch_end=unfreeze)
  x, y = np.ones([18, 4], 'float32'), np.zeros([18], 'float32')
  with pytest.raises(ValueError, match='have changed since the first step'):
    private.fit(x, y, batch_size=9, verbose=0, callbacks=[callback])


def _sensitive(x, rounding, mean):
  """Enlarges the rounding of rows, which depends on how many there are."""
  size = tf.cast(tf.shape(x)[0], x.dtype)
  y = tf.sin(1e4 * tf.reduce_sum(x * (1 + rounding * size), 1))
  return y + mean * tf.reduce_mean(y) if mean else y


def test_rounding_that_a_function_enlarges_is_no_mixing():
  check_function(lambda x: _sensitive(x, 1e-8, 0.0), 'f', [4], tf.float32)
  with pytest.raises(ValueError, match='mixes examples'):
    check_function(lambda x: _sensitive(x, 0.0, 0.1), 'f', [4], tf.float32)
  # What is rounding of float32 is none of float64.
  with pytest.raises(ValueError, match='mixes examples'):
    check_function(lambda x: _sensitive(x, 1e-8, 0.0), 'f', [4], tf.float64)


class _FilledByMean(L.Layer):
  """Puts the mean of the batch where a value is missing."""

  def call(self, x):
    known = tf.math.is_finite(x)
    mean = tf.reduce_mean(tf.where(known, x, 0.0), 0)
    return tf.where(known, x, mean)


def test_missing_values_are_not_filled_by_those_of_other_rows():
  with pytest.raises(ValueError, match='filled_by_mean.*mixes examples'):
    _checked([_FilledByMean(name='filled_by_mean')])
  _checked([L.Lambda(lambda x: tf.where(tf.math.is_finite(x), x, 0.0))])


def test_an_output_that_is_but_rounding_hides_no_mixing():
  def forgets(x):
    noise = L.Lambda(lambda x: tf.math.log(tf.exp(x)) - x)(x)
    return x + noise + 1e-3 * tf.reduce_max(x, 0, keepdims=True)

  with pytest.raises(ValueError, match='mixes examples'):
    _checked([L.Lambda(forgets)])


@pytest.mark.full
def test_flows_of_readme_are_never_refused():
  """One in ten was: far from the start, its gradients enlarge rounding."""
  for seed in range(20):
    tf.random.set_seed(seed)
    flow = tfdpflows.flows.masked_autoregressive_flow(
      event_size=10, num_blocks=5, hidden_units=[100, 100]
    )
    model = tfdpflows.DensityModel(flow)
    model.compile(optimizer=_plan().optimizer('adam', learning_rate=1e-3))
    model._checker.check(tf.TensorSpec([None, 10], tf.float32))
    keras.backend.clear_session()
