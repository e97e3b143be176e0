"""`PrivateModel`: ordinary Keras models under a plan, and what is refused."""

import importlib.util
import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse

import tfdpflows
from tests import saved_graphs
from tests.grids import thinned
from tests.unproven import unproven
from tfdpflows import gradients, optimizers, sampling
from tfdpflows._keras import VectorizedDPKerasSGDOptimizer, keras, tfp
from tfdpflows.randomness import Randomness

L = keras.layers
tfd = tfp.distributions
N = 200


def _data(d=4, classes=3):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[N, d]).astype('float32')
  return x, np.argmax(x[:, :classes], 1)


def _plan(steps=4, noise_multiplier=1e-3, **kwargs):
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=N, sampling_probability=0.25),
    gradients.Flat(1.0),
    noise_multiplier=noise_multiplier,
    steps=steps,
    delta=1e-4,
    seed=0,
    ledger=tfdpflows.PrivacyLedger(
      budget=tfdpflows.PrivacyBudget(epsilon=1e12, delta=1e-4)
    ),
    **kwargs,
  )


def _classifier(classes=3):
  keras.utils.set_random_seed(0)
  return keras.Sequential([L.Dense(8, 'tanh'), L.Dense(classes)])


def _cross_entropy(**kwargs):
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


def _private(
  model, plan=None, loss=None, example=None, optimizer=None, **kwargs
):
  private = tfdpflows.PrivateModel(model, example=example)
  plan = _plan() if plan is None else plan
  private.compile(
    optimizer=plan.optimizer('sgd', **(optimizer or {'learning_rate': 1.0})),
    loss=_cross_entropy() if loss is None else loss,
    **kwargs,
  )
  return private


def _line(plan=None, **kwargs):
  """A regression on `_line_data`: for what is the same whatever the model is.

  Its loss takes less time to check than that of a classifier.
  """
  # All of them begin alike, whatever ran before, with losses near 1.
  dense = L.Dense(1, kernel_initializer='zeros')
  model = keras.Sequential([keras.Input([4]), dense])
  return _private(model, plan, loss='mse', **kwargs)


def _line_data():
  x, _ = _data()
  return x, x[:, :1]


def _by_hand(model, rows, losses_of, clip=1.0):
  """The update of one step of SGD, from the jacobian."""
  with tf.GradientTape(persistent=True) as tape:
    losses = losses_of(model, *rows)
  jacobian = tape.jacobian(
    losses, model.trainable_variables, experimental_use_pfor=False
  )
  flat = [
    np.reshape(tf.convert_to_tensor(j), [len(losses), -1]) for j in jacobian
  ]
  norms = np.sqrt(sum(np.sum(j**2, 1) for j in flat))
  scale = np.minimum(1, clip / norms)
  return [
    np.tensordot(scale, tf.convert_to_tensor(j), 1) / 50 for j in jacobian
  ]


def _drawn(data):
  ((rows, weights, _),) = list(_plan(steps=1).dataset(data))
  keep = weights.numpy() == 1
  return tf.nest.map_structure(lambda a: a[keep], rows)


@pytest.mark.core
@pytest.mark.parametrize(
  ('kind', 'jit_compile'),
  thinned(
    itertools.product(['sequential', 'functional', 'subclass'], [False, True]),
    # Functional models are in tests of several inputs below.
    lambda point: point in (('sequential', True), ('subclass', False)),
  ),
)
def test_one_step_equals_the_definition(kind, jit_compile):
  """Noiseless but for rounding: SGD on the clipped sum over the drawn rows."""
  data = _data()

  class Subclass(keras.Model):
    def __init__(self):
      super().__init__()
      self.hidden, self.out = L.Dense(8, 'tanh'), L.Dense(3)

    def call(self, x):
      return self.out(self.hidden(x))

  inputs = keras.Input([4])
  model = {
    'sequential': _classifier,
    'functional': lambda: keras.Model(inputs, _classifier()(inputs)),
    'subclass': Subclass,
  }[kind]()
  model(data[0][:2])
  before = [v.numpy() for v in model.trainable_variables]
  loss = lambda m, x, y: keras.losses.sparse_categorical_crossentropy(
    y, m(x), from_logits=True
  )
  update = _by_hand(model, _drawn(data), loss)
  private = _private(model, _plan(steps=1), jit_compile=jit_compile)
  history = private.fit(*data, verbose=0)
  assert history.history == {}
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


@unproven()
def test_learns_and_shows_nothing_private():
  x, y = _data()
  model = _classifier()
  private = _private(model, _plan(steps=30), metrics=['accuracy'])
  private.fit(x, y, verbose=0)
  loss, accuracy = private.evaluate(x, y, verbose=0)
  assert accuracy > 0.8
  assert loss < 0.8
  np.testing.assert_allclose(
    private.predict(x[:5], verbose=0), model(x[:5]), rtol=1e-5
  )


@unproven()
def test_metrics_are_of_validation_data_and_keep_nothing_of_training():
  x, y = _data()
  private = _private(_classifier(), _plan(steps=8), metrics=['accuracy'])
  history = private.fit(x, y, epochs=1, verbose=0).history
  assert history == {}
  for metric in (*private.metrics, private._released):
    assert float(metric.result()) == 0
  history = private.fit(x, y, validation_data=(x[:9], y[:9]), verbose=0).history
  assert sorted(history) == ['val_accuracy', 'val_loss']


@unproven()
def test_loss_is_shown_with_noise():
  x, y = _line_data()
  seen = []
  for noise in (1e-3, 10.0):
    private = _line(
      _plan(noise_multiplier=noise),
      optimizer={'learning_rate': 0.0, 'loss_bound': 5.0},
    )
    seen.append(private.fit(x, y, verbose=0).history['loss'][0])
    exact = private.evaluate(x, y, verbose=0)
  assert abs(seen[0] - exact) < 0.5
  assert abs(seen[1] - exact) > 0.2


@pytest.mark.core
@unproven()
def test_plan_draws_charges_and_refuses_other_data():
  x, y = _line_data()
  plan = _plan(steps=8)
  private = _line(plan)
  private.fit(x, y, epochs=1, verbose=0)
  assert plan.step == 4
  assert plan.ledger.entries[0].count == 4
  with pytest.raises(TypeError, match='draws batches of its own'):
    plan.dataset(tf.data.Dataset.from_tensor_slices((x, y)))
  with pytest.raises(ValueError, match=r'plan\.dataset'):
    private.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(9))
  for arguments in ({'batch_size': 9}, {'sample_weight': y}):
    with pytest.raises(ValueError, match=next(iter(arguments))):
      private.fit(x, y, verbose=0, **arguments)
  with pytest.raises(ValueError, match='use fit'):
    private.train_on_batch(x, y)
  with pytest.raises(ValueError, match='x has 9 rows'):
    private.fit(x[:9], y[:9], verbose=0)
  private.fit(plan.dataset((x, y)), verbose=0)
  assert plan.remaining_steps == 0


@pytest.mark.core
def test_several_inputs_and_outputs():
  x, y = _data()
  ids = np.arange(N)[:, None] % 5
  a, b = keras.Input([4], name='a'), keras.Input([1], name='b', dtype='int64')
  h = L.Concatenate()([a, L.Flatten()(L.Embedding(5, 2)(b))])
  one = L.Dense(3, name='one')(h)
  two = L.Dense(1, name='two')(h)
  model = keras.Model({'a': a, 'b': b}, {'one': one, 'two': two})
  inputs = {'a': x, 'b': ids}
  targets = {'one': y, 'two': x[:, 0]}
  before = [v.numpy() for v in model.trainable_variables]

  def losses(m, x, y):
    p = m(x)
    one = keras.losses.sparse_categorical_crossentropy(
      y['one'], p['one'], from_logits=True
    )
    return one + 0.5 * tf.square(y['two'] - p['two'][:, 0])

  update = _by_hand(model, _drawn((inputs, targets)), losses)
  private = _private(
    model,
    _plan(steps=1),
    loss={'one': _cross_entropy(), 'two': 'mse'},
    loss_weights={'one': 1.0, 'two': 0.5},
  )
  private.fit(inputs, targets, verbose=0)
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


def test_lists_of_outputs_have_the_names_that_keras_gives_them():
  x, y = _data()
  i = keras.Input([4])
  outputs = [L.Dense(3, name='one')(i), L.Dense(1, name='two')(i)]
  private = _private(
    keras.Model(i, outputs),
    loss={'one': _cross_entropy(), 'two': 'mse'},
    metrics={'one': 'accuracy'},
  )
  rows = x, {'one': y, 'two': x[:, :1]}
  history = private.fit(*rows, epochs=1, verbose=0, validation_data=rows)
  assert history.history['val_one_accuracy'] == [
    private.evaluate(*rows, verbose=0, return_dict=True)['one_accuracy']
  ]


def test_lists_of_inputs_and_strings():
  x, y = _line_data()
  words = np.where(x[:, :1] > 0, 'yes', 'no')
  a = keras.Input([4])
  b, c = (keras.Input([1], dtype=tf.string) for _ in range(2))
  ids = L.StringLookup(vocabulary=['yes', 'no'])(L.Concatenate()([b, c]))
  h = L.Concatenate()([a, L.Flatten()(L.Embedding(3, 2)(ids))])
  private = _private(keras.Model([a, b, c], L.Dense(1)(h)), loss='mse')
  private.fit([x, words, words.astype(object)], y, verbose=0)


@pytest.mark.core
def test_a_dp_optimizer_by_itself():
  x, y = _line_data()
  private = tfdpflows.PrivateModel(keras.Sequential([L.Dense(1)]))
  private.compile(
    optimizer=optimizers.DPKerasSGD(
      l2_norm_clip=1.0,
      noise_multiplier=0.0,
      expected_batch_size=50,
      learning_rate=1.0,
    ),
    loss='mse',
  )
  private.fit(x, y, batch_size=50, epochs=2, verbose=0)
  weights = np.r_[np.ones(100), np.zeros(100)]
  private.fit(x, y, sample_weight=weights, batch_size=50, verbose=0)
  private.train_on_batch(x[:8], y[:8])
  with pytest.raises(ValueError, match=r'pairs: fit\(x, y\)'):
    private.fit(x, batch_size=50, verbose=0)
  for optimizer in ('adam', keras.optimizers.legacy.SGD(0.1)):
    with pytest.raises(ValueError, match='does not train privately'):
      private.compile(optimizer, 'mse')
  of_tf_privacy = VectorizedDPKerasSGDOptimizer(1.0, 1.0, learning_rate=0.1)
  with pytest.raises(
    ValueError, match='of TF Privacy divides.* plan.optimizer'
  ):
    private.compile(of_tf_privacy, 'mse')
  with pytest.raises(ValueError, match='needs a loss'):
    private.compile(private.optimizer, None)


def test_the_optimizer_of_a_plan_tells_a_keras_model_what_to_do():
  model = _classifier()
  loss = _cross_entropy(reduction='none')
  model.compile(_plan().optimizer('sgd'), loss)
  with pytest.raises(ValueError, match=r'as tfdpflows\.PrivateModel\(model\)'):
    model.fit(*_data(), verbose=0)


LOSSES = {
  'name': 'mse',
  'function': lambda y, p: tf.reduce_mean(tf.square(y - p), 1),
  'auto': keras.losses.MeanSquaredError(),
  'none': keras.losses.MeanSquaredError(reduction='none'),
  'batch size': keras.losses.MeanSquaredError(reduction='sum_over_batch_size'),
}


@pytest.mark.parametrize(
  'name', thinned(LOSSES, lambda x: x in ('function', 'batch size'))
)
def test_whatever_the_reduction_losses_are_of_examples(name):
  x, _ = _data()
  y = x[:, 1]
  model = _classifier(1)
  model(x)
  before = [v.numpy() for v in model.trainable_variables]
  loss = lambda m, x, y: tf.square(y - m(x)[:, 0])
  update = _by_hand(model, _drawn((x, y)), loss)
  _private(model, _plan(steps=1), loss=LOSSES[name]).fit(x, y, verbose=0)
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


def test_sequences_are_averaged_over_what_the_mask_leaves():
  rng = np.random.default_rng(0)
  ids = rng.integers(1, 5, [N, 4])
  ids[:, 2:] = 0
  y = rng.integers(0, 2, [N, 4])
  model = keras.Sequential([L.Embedding(5, 2, mask_zero=True), L.Dense(2)])
  model(ids)
  before = [v.numpy() for v in model.trainable_variables]
  loss = lambda m, x, y: tf.reduce_mean(
    keras.losses.sparse_categorical_crossentropy(
      y[:, :2], m(x)[:, :2], from_logits=True
    ),
    1,
  )
  update = _by_hand(model, _drawn((ids, y)), loss)
  _private(model, _plan(steps=1)).fit(ids, y, verbose=0)
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


@pytest.mark.core
def test_outputs_may_be_distributions():
  """Of TFP's layers, with losses that are log-densities of the targets."""
  x, _ = _data()
  layer = tfp.layers.DistributionLambda(
    lambda t: tfd.Normal(t[:, :1], tf.nn.softplus(t[:, 1:]))
  )
  model = keras.Sequential([keras.Input([4]), L.Dense(2), layer])
  density = lambda y, p: -p.log_prob(y)
  private = _private(model, loss=density, optimizer={'learning_rate': 0.1})
  targets = x[:, 0]  # [n], which meet [n, 1] as in Keras.
  before = -model(x).log_prob(targets[:, None])
  losses, _ = private._losses_of((tf.constant(x), tf.constant(targets)), True)
  np.testing.assert_allclose(losses, before[:, 0], rtol=1e-5)
  private.fit(x, targets, verbose=0)
  assert private.checked_independence == 'proven'
  after = private.evaluate(x, targets[:, None], verbose=0)
  assert after < np.mean(before)
  mixing = lambda y, p: -p.log_prob(y) + tf.reduce_mean(p.mean())
  with pytest.raises(ValueError, match='mixes examples'):
    _private(model, loss=mixing).fit(x, targets, verbose=0)


@pytest.mark.core
def test_losses_that_mix_examples_are_refused():
  x, y = _data(classes=1)
  y = y.astype('float32')
  mean = lambda y, p: tf.reduce_mean(tf.square(y - p))
  with pytest.raises(ValueError, match='one number for the whole batch'):
    _private(_classifier(1), loss=mean).fit(x, y, verbose=0)
  centred = lambda y, p: tf.square(y - p)[:, 0] - tf.reduce_mean(p)
  with pytest.raises(ValueError, match='The loss mixes examples'):
    _private(_classifier(1), loss=centred).fit(x, y, verbose=0)
  crossed = lambda y, p: tf.reduce_mean(tf.square(y - p), 1)
  with pytest.raises(ValueError, match='The loss mixes examples'):
    _private(
      _classifier(1), loss=lambda y, p: crossed(tf.reshape(y, [-1]), p)
    ).fit(x, y, verbose=0)


class _Mixing(L.Layer):
  def call(self, x):
    return x - tf.reduce_mean(x, 0)


class _Previous(L.Layer):
  def call(self, x):
    return x + tf.concat([tf.zeros_like(x[:1]), x[:-1]], 0)


class _InTrainingOnly(L.Layer):
  def call(self, x, training=None):
    return x - tf.reduce_max(x) if training else x


class _Counting(L.Layer):
  def build(self, shape):
    self.total = self.add_weight('total', [], trainable=False)

  def call(self, x):
    self.total.assign_add(tf.reduce_sum(x))
    return x


class _Penalising(L.Layer):
  def call(self, x):
    self.add_loss(tf.reduce_sum(x))
    return x


class _Scoring(L.Layer):
  def call(self, x):
    self.add_metric(tf.reduce_sum(x), 'score')
    return x


class _ByFunction(L.Layer):
  def call(self, x):
    self.last = x
    if not self._callable_losses:
      self.add_loss(lambda: tf.reduce_sum(self.last))
    return x


REFUSED = {
  'batch_norm': (lambda: L.BatchNormalization(name='bad'), 'LayerNorm'),
  'mixing': (lambda: _Mixing(name='bad'), 'mixes examples'),
  'previous': (lambda: _Previous(name='bad'), 'mixes examples'),
  'training': (lambda: _InTrainingOnly(name='bad'), 'mixes examples'),
  'counting': (lambda: _Counting(name='bad'), 'by itself, from private'),
  'add_loss': (lambda: _Penalising(name='bad'), 'adds a loss'),
  'activity': (
    lambda: L.Dense(4, activity_regularizer='l2', name='bad'),
    'adds a loss',
  ),
  'add_metric': (lambda: _Scoring(name='bad'), 'keeps a metric'),
  'function': (lambda: _ByFunction(name='bad'), 'by a function'),
  'mixed_precision': (
    lambda: L.Dense(4, dtype='mixed_float16', name='bad'),
    'float16',
  ),
  'half': (lambda: L.Dense(4, dtype='float16', name='bad'), 'half precision'),
}


@pytest.mark.core
@pytest.mark.parametrize('name', REFUSED)
def test_layers_that_break_the_guarantee_are_refused_by_name(name):
  make, message = REFUSED[name]
  x, y = _data()
  plan = _plan()
  model = keras.Sequential([L.Dense(4), make(), L.Dropout(0.5), L.Dense(3)])
  private = _private(model, plan)
  with pytest.raises(ValueError, match=f'(?s)bad.*{message}|{message}.*bad'):
    private.fit(x, y, verbose=0)
  assert plan.ledger.entries == ()


@pytest.mark.core
def test_losses_added_to_a_functional_model_are_refused():
  x, y = _data()
  inputs = keras.Input([4])
  outputs = L.Dense(3)(inputs)
  model = keras.Model(inputs, outputs)
  model.add_loss(tf.reduce_mean(outputs))
  with pytest.raises(ValueError, match='adds a loss computed from the batch'):
    _private(model).fit(x, y, verbose=0)


def test_stateful_layers_are_refused():
  model = keras.Sequential([L.SimpleRNN(2, stateful=True), L.Dense(3)])
  x = np.zeros([N, 3, 2], 'float32')
  with pytest.raises(ValueError, match='stateful'):
    _private(model).fit(x, np.zeros(N, 'int64'), verbose=0)


def test_frozen_batch_normalization_and_layers_are_trained_around():
  x, y = _line_data()
  norm, frozen = L.BatchNormalization(), L.Dense(4, trainable=False)
  norm.trainable = False
  model = keras.Sequential([frozen, norm, L.Dense(1)])
  private = _private(model, loss='mse')
  model(x)
  before = frozen.kernel.numpy()
  private.fit(x, y, verbose=0)
  np.testing.assert_array_equal(frozen.kernel, before)
  assert np.all(norm.moving_mean == 0)


@pytest.mark.core
def test_variables_that_change_after_the_first_step_are_refused():
  x, y = _line_data()
  first = L.Dense(4, trainable=False)
  model = keras.Sequential([first, L.Dense(1)])
  private = _private(model, _plan(steps=8), loss='mse')
  private.fit(x, y, epochs=1, verbose=0)
  first.trainable = True
  with pytest.raises(ValueError, match=r'changed since the first step.*kernel'):
    private.fit(x, y, verbose=0)
  optimizer = private.optimizer
  step = optimizer.plan.step
  private.compile(optimizer, 'mse')
  with pytest.raises(ValueError, match=r'of a new plan that knows the cost'):
    private.fit(x, y, verbose=0)
  assert optimizer.plan.step == step


@pytest.mark.core
def test_regularizers_act_without_noise_or_clipping():
  x, y = _data()
  factor = 0.3
  model = keras.Sequential(
    [L.Dense(3, kernel_regularizer=keras.regularizers.L2(factor))]
  )
  model(x)
  model.layers[0].kernel.assign(tf.fill([4, 3], 100.0))
  before = [v.numpy() for v in model.trainable_variables]
  loss = lambda m, x, y: keras.losses.sparse_categorical_crossentropy(
    y, m(x), from_logits=True
  )
  update = _by_hand(model, _drawn((x, y)), loss)
  update[0] += 2 * factor * before[0]
  _private(model, _plan(steps=1)).fit(x, y, verbose=0)
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


def test_dropout_is_of_the_same_draw_and_not_refused():
  x, y = _data()
  model = keras.Sequential(
    [L.Dense(8), L.Dropout(0.5), L.GaussianNoise(0.1, seed=3), L.Dense(3)]
  )
  private = _private(model)
  private.fit(x, y, verbose=0)
  assert np.all(np.isfinite(private.predict(x, verbose=0)))


def _check_one_step(model, x, y):
  """One step under a plan is the update by `tape.jacobian` and a clip."""
  before = [v.numpy() for v in model.trainable_variables]
  loss = lambda m, x, y: keras.losses.sparse_categorical_crossentropy(
    y, m(x), from_logits=True
  )
  update = _by_hand(model, _drawn((x, y)), loss)
  _private(model, _plan(steps=1)).fit(x, y, verbose=0)
  for old, new, u in zip(before, model.trainable_variables, update):
    np.testing.assert_allclose(new, old - u, rtol=1e-4, atol=3e-4)


def test_a_gradient_that_is_zero_but_for_rounding_is_no_wrong_rule():
  """The bias of the keys: the softmax cancels it."""
  x, y = _data()
  inputs = keras.Input([4])
  h = L.Reshape([2, 2])(inputs)
  h = L.LayerNormalization()(h + L.MultiHeadAttention(1, 2)(h, h))
  model = keras.Model(inputs, L.Dense(3)(L.Flatten()(h)))
  _check_one_step(model, x, y)


def test_adapted_layers_get_a_remark(caplog):
  x, y = _line_data()
  norm = L.Normalization(name='mine')
  norm.adapt(x)
  model = keras.Sequential([norm, L.Dense(1)])
  with caplog.at_level('WARNING'):
    _private(model, loss='mse').fit(x, y, verbose=0)
  assert 'mine was adapted' in caplog.text


def test_codes_that_are_no_integers_are_told_in_a_sentence():
  codes = keras.Input([], dtype='int32')
  model = keras.Model(codes, L.Dense(1)(L.Embedding(8, 2)(codes)))
  x, y = np.arange(1.0 * N) % 8, np.zeros([N, 1])
  with pytest.raises(ValueError, match='not in .0, 8.*as integers') as error:
    _private(model, loss='mse').fit(x, y, verbose=0)
  assert 'File' not in str(error.value)
  _private(model, loss='mse').fit(x.astype('int32'), y, verbose=0)


def test_outputs_without_targets_are_named():
  inputs = keras.Input([4])
  outputs = {name: L.Dense(1, name=name)(inputs) for name in ('risk', 'size')}
  model = keras.Model(inputs, outputs)
  x, y = np.zeros([N, 4], 'float32'), {'risk': np.zeros([N, 1])}
  with pytest.raises(ValueError, match="for .'risk'., .*'risk', 'size'"):
    _private(model, loss={'risk': 'mse', 'size': 'mse'}).fit(x, y, verbose=0)
  model.get_layer('size').trainable = False
  _private(model, loss={'risk': 'mse'}).fit(x, y, verbose=0)


def test_positions_in_place_of_examples_take_the_slow_way():
  """Folded into the batch, each position would be clipped by itself."""

  class Folding(L.Layer):
    def __init__(self):
      super().__init__()
      self.inner = L.Dense(3, 'tanh')

    def call(self, x):
      y = self.inner(tf.reshape(x, [-1, 2]))
      return tf.reshape(y, [tf.shape(x)[0], 2, 3])

  x, y = _data()
  model = keras.Sequential(
    [L.Reshape([2, 2]), Folding(), L.Flatten(), L.Dense(3)]
  )
  model(x)
  _check_one_step(model, x, y)


def test_convolutions_in_groups_are_clipped_by_example():
  """They were refused: the parallel loop of TensorFlow is wrong for them."""
  x, y = _data()
  model = keras.Sequential(
    [
      L.Dense(16),
      L.Reshape([4, 4]),
      L.Conv1D(8, 2, groups=2),
      L.Reshape([3, 2, 4]),
      L.Conv2D(4, 2, groups=2),
      L.Flatten(),
      L.Dense(3),
    ]
  )
  model(x)
  _check_one_step(model, x, y)


class _Wrong(L.Dense):
  """Another output."""


@gradients.register_rule(_Wrong)
def _wrong(layer, x):
  return gradients.linear(x, layer.kernel, layer.bias) + 1.0


class _WrongGradient(L.Dense):
  """The right output, half of the gradient."""


@gradients.register_rule(_WrongGradient)
def _wrong_gradient(layer, x):
  y = gradients.linear(x, layer.kernel, layer.bias)
  return 0.5 * y + tf.stop_gradient(0.5 * y)


@pytest.mark.core
@pytest.mark.parametrize('layer', [_Wrong, _WrongGradient])
def test_rules_that_are_wrong_are_refused(layer):
  x, y = _data()
  model = keras.Sequential([layer(4), L.Dense(3)])
  with pytest.raises(ValueError, match='is another with the rules of .*_Wrong'):
    _private(model).fit(x, y, verbose=0)


def test_public_rows_may_be_given_where_made_up_ones_do_not_do():
  x, y = _line_data()
  large = x + 100

  class Large(L.Layer):
    def call(self, x):
      return tf.math.log(x - 50)

  model = keras.Sequential([Large(), L.Dense(1)])
  with pytest.raises(ValueError, match='not finite on rows made up'):
    _private(model, loss='mse').fit(large, y, verbose=0)
  example = (large[:3], y[:3])
  _private(model, loss='mse', example=example).fit(large, y, verbose=0)


@unproven()
def test_checkpoint_and_saved_model(tmp_path):
  x, y = _data()
  model = _classifier()
  private = _private(model)
  private.fit(x, y, verbose=0)
  model.save(str(tmp_path / 'm'))
  loaded = keras.models.load_model(str(tmp_path / 'm'), compile=False)
  np.testing.assert_allclose(loaded(x), model(x), rtol=1e-5)
  tf.train.Checkpoint(model=private).write(str(tmp_path / 'c'))
  other = _private(_classifier())
  other(x)
  status = tf.train.Checkpoint(model=other).read(str(tmp_path / 'c'))
  status.expect_partial().assert_existing_objects_matched()
  np.testing.assert_allclose(other(x), model(x), rtol=1e-6)


def test_a_private_model_of_a_private_model_is_refused():
  inner = tfdpflows.PrivateModel(keras.Sequential([keras.layers.Dense(2)]))
  with pytest.raises(ValueError, match='is a PrivateModel and trains priv'):
    tfdpflows.PrivateModel(inner)


@pytest.mark.core
@unproven()
def _with_own(name, **kwargs):
  kwargs = {name: lambda self, *args, **kwargs: None, **kwargs}
  return type('Own', (keras.Model,), kwargs)(name='own')


@pytest.mark.parametrize('name', ['train_step', 'compute_loss'])
def test_a_training_of_its_own_that_nothing_would_call_is_refused(name):
  model = _with_own(name)
  with pytest.raises(ValueError, match=f'own has a {name} of its own, .*never'):
    tfdpflows.PrivateModel(model)
  model = _classifier()
  setattr(model, name, lambda *args: None)
  with pytest.raises(ValueError, match='Give the loss to compile'):
    tfdpflows.PrivateModel(model)


def test_an_evaluation_of_its_own_is_told_not_to_be_called(caplog):
  with caplog.at_level('WARNING'):
    tfdpflows.PrivateModel(_classifier())
    assert caplog.text == ''
    tfdpflows.PrivateModel(_with_own('test_step'))
  assert 'own has a test_step of its own, which PrivateModel' in caplog.text


@unproven()
def test_keras_saves_and_loads_what_is_trained(tmp_path, caplog):
  x, y = _data()
  model = _classifier()
  private = _private(model, metrics=['accuracy'])
  folder = str(tmp_path)
  callbacks = [
    keras.callbacks.ModelCheckpoint(f'{folder}/whole{{epoch}}'),
    keras.callbacks.ModelCheckpoint(f'{folder}/{{epoch}}.keras'),
    keras.callbacks.ModelCheckpoint(
      f'{folder}/{{epoch}}.weights.h5', save_weights_only=True
    ),
    keras.callbacks.BackupAndRestore(f'{folder}/backup'),
  ]
  private.fit(x, y, verbose=0, callbacks=callbacks)
  assert 'must be built' not in caplog.text
  private.save(f'{folder}/by_hand.keras')
  for name in ('whole1', '1.keras', 'by_hand.keras'):
    loaded = keras.models.load_model(f'{folder}/{name}')
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
  private.save_weights(f'{folder}/old.h5')
  for name in ('1.weights.h5', 'old.h5'):
    classifier = _classifier()
    classifier.build(x.shape)
    other = _private(classifier)
    other.load_weights(f'{folder}/{name}')
    np.testing.assert_allclose(other(x), model(x), rtol=1e-6)


def test_a_saved_model_does_not_tell_what_was_done_before(tmp_path):
  private = _private(_classifier())
  private(_data()[0])
  one, other = saved_graphs.written_twice(private.save, tmp_path)
  assert one == other


@unproven()
def test_the_wrapper_itself_is_not_saved(tmp_path):
  """Keras wrote a file that it could not load."""
  x, y = _data()
  private = _private(_classifier(), _plan(1))
  private.fit(x, y, verbose=0)
  with pytest.raises(NotImplementedError, match=r'with model.save\(path\)'):
    keras.models.save_model(private, str(tmp_path / 'p.keras'))
  keras.models.save_model(private.model, str(tmp_path / 'm.keras'))
  loaded = keras.models.load_model(str(tmp_path / 'm.keras'))
  np.testing.assert_allclose(loaded(x), private.model(x), rtol=1e-6)


class _Sequence(keras.utils.Sequence):
  def __len__(self):
    return 4

  def __getitem__(self, number):
    return np.zeros([50, 4]), np.zeros([50])


@pytest.mark.parametrize(
  ('x', 'y', 'message'),
  [
    (np.zeros([N, 4]), None, r'y is missing: .* pairs, fit\(x, y\)'),
    (iter([]), None, 'x is a list_iterator, which draws batches of its own'),
    (_Sequence(), None, 'x is a _Sequence, which draws batches of its own'),
    (tf.ragged.constant([[1.0], []]), 0, 'x is a RaggedTensor: give a dense'),
    (sparse.csr_matrix([[1.0]]), 0, 'x is a csr_matrix: give a dense array'),
    ([[1.0], [1.0, 2.0]], 0, 'x is a list of rows of several lengths'),
    (np.zeros([N, 4], 'M8[s]'), 0, r'x is of datetime64\[s\], which Tensor'),
    (
      (np.zeros([N, 4]), np.zeros([N], 'M8[s]')),
      0,
      r'x\[1\] is of datetime64\[s\]',
    ),
    (np.zeros([N, 4]), np.zeros([N], 'm8[s]'), r'y is of timedelta64\[s\]'),
  ],
)
def test_what_is_no_table_is_named_by_its_argument(x, y, message):
  with pytest.raises((TypeError, ValueError), match=message):
    _private(_classifier()).fit(x, y, verbose=0)


@pytest.mark.parametrize(
  ('dtype', 'name'), thinned([('U1', 'x'), (object, 'x'), ('U1', 'y')], 1)
)
def test_text_that_a_model_cannot_take_is_named(dtype, name):
  rows = dict(zip('xy', _data()))
  rows[name] = rows[name].astype(dtype)
  with pytest.raises(ValueError, match=f'^{name} is of text or other objects'):
    _private(_classifier()).fit(**rows, verbose=0)


def test_a_layer_without_a_vocabulary_is_told():
  x, y = np.full([N, 1], 'word'), np.zeros([N])
  words = L.TextVectorization(max_tokens=4, output_sequence_length=3)
  text = keras.Input([1], dtype='string')
  embedded = L.Flatten()(L.Embedding(4, 2)(words(text)))
  model = keras.Model(text, L.Dense(1)(embedded))
  with pytest.raises(ValueError, match=r'has no vocabulary: .* public rows'):
    _private(model, loss='mse').fit(x, y, verbose=0)


@unproven()
def test_lists_of_numbers_are_one_array():
  x, y = _data()
  _private(_classifier(), _plan(1)).fit(x.tolist(), y.tolist(), verbose=0)
  _private(_classifier(), _plan(1)).fit(x, list(y), verbose=0)


def test_a_model_is_compiled_before_it_is_trained(capsys):
  model = _classifier()
  with pytest.raises(RuntimeError, match=r'not compiled: call compile\(plan'):
    tfdpflows.PrivateModel(model).fit(*_data())
  private = _private(model, _plan(1))
  private.fit(*_data(), verbose=0)
  private.summary()
  assert 'Dense' in capsys.readouterr().out


@pytest.fixture(scope='module')
def unused():
  """A model that no test trains, so that it is checked once for all."""
  return _line()


@pytest.mark.core
@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda c: {'callbacks': c.EarlyStopping('loss')}, "'loss'.*never act"),
    (lambda c: {'callbacks': [c.EarlyStopping()]}, "'val_loss'.*never act"),
    (
      lambda c: {'callbacks': c.ReduceLROnPlateau('val_accuracy')},
      "'val_accuracy'.*never act",
    ),
    (
      lambda c: {'callbacks': c.EarlyStopping('accuracy', mode='max')},
      "'accuracy'.*never act.*monitor='val_accuracy'",
    ),
    (lambda c: {'callbacks': c.EarlyStopping('epsilon')}, 'EpsilonLogger'),
    (
      lambda c: {'callbacks': c.ModelCheckpoint('a-{epoch}-{accuracy:.2f}.h5')},
      'no accuracy in the logs',
    ),
    (
      lambda c: {'callbacks': c.ModelCheckpoint('a-{epoch}-{val_loss}.h5')},
      'no val_loss in the logs',
    ),
    (
      lambda _: {'epochs': 1000},
      'epochs=1000 asks for 4000 steps.*drop epochs',
    ),
    (lambda _: {'class_weight': {0: 2.0}}, 'class_weight.*into the loss'),
    (lambda _: {'sample_weight': np.ones(9)}, 'sample_weight.*into the loss'),
  ],
)
def test_what_would_fail_or_never_act_is_refused_uncharged(
  make, message, unused
):
  x, y = _line_data()
  with pytest.raises(ValueError, match=message):
    unused.fit(x, y, verbose=0, **make(keras.callbacks))
  assert not unused.optimizer.plan.ledger.entries


@unproven()
@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (
      lambda x, y: (x[:, :2], y),
      r'validation_data: Input 0 .*None, 2\).*has charged nothing',
    ),
    (lambda x, y: (x, y[:9]), 'validation_data: .*ambiguous'),
    (
      lambda *rows: tf.data.Dataset.from_tensor_slices(rows),
      'validation_data: .*min_ndim=2, found ndim=1.*of batches',
    ),
  ],
)
def test_validation_data_that_would_fail_are_refused_uncharged(
  make, message, unused
):
  x, y = _line_data()
  with pytest.raises(ValueError, match=message):
    unused.fit(x, y, verbose=0, validation_data=make(x, y))
  assert not unused.optimizer.plan.ledger.entries
  assert not hasattr(unused, '_eval_data_handler')


@unproven()
def test_after_a_refusal_the_right_validation_data_are_taken(tmp_path):
  x, y = _line_data()
  model = _line()
  with pytest.raises(ValueError, match='cannot be evaluated'):
    model.fit(x, y, verbose=0, validation_data=(x[:, :2], y))
  # It saves each epoch, whatever it is to monitor.
  save = keras.callbacks.ModelCheckpoint(
    tmp_path / 'w.weights.h5', save_weights_only=True, monitor='val_foo'
  )
  history = model.fit(
    x, y, verbose=0, validation_data=(x, y), callbacks=[save]
  ).history
  assert 'val_loss' in history
  assert (tmp_path / 'w.weights.h5').exists()


def test_what_validation_does_not_give_is_not_monitored(unused):
  x, y = _line_data()
  stop = keras.callbacks.EarlyStopping('val_los')
  with pytest.raises(ValueError, match="'val_los'.*gives val_loss"):
    unused.fit(x, y, verbose=0, validation_data=(x, y), callbacks=[stop])
  save = keras.callbacks.ModelCheckpoint('a-{epoch}-{val_accuracy:.2f}.h5')
  with pytest.raises(ValueError, match='val_accuracy.*gives val_loss'):
    unused.fit(x, y, verbose=0, validation_data=(x, y), callbacks=[save])
  assert not unused.optimizer.plan.ledger.entries


@unproven()
def test_trying_validation_data_changes_nothing():
  """No row of an iterator is lost, no metric moves, and no random number."""
  x, y = _data()
  found = {}
  for kind in ('arrays', 'generator', 'eager'):
    private = _private(
      _classifier(), metrics=['accuracy'], run_eagerly=kind == 'eager'
    )
    data, steps = (x, y), None
    if kind == 'generator':
      data, steps = ((x[i : i + 32], y[i : i + 32]) for i in range(0, N, 32)), 7
    stop = keras.callbacks.EarlyStopping('val_accuracy', patience=9)
    history = private.fit(
      *(x, y),
      epochs=1,
      verbose=0,
      validation_data=data,
      validation_steps=steps,
      callbacks=[stop],
    ).history
    found[kind] = history['val_accuracy'] + history['val_loss']
    assert not hasattr(private, '_eval_data_handler')
  np.testing.assert_allclose(found['generator'], found['arrays'], rtol=1e-5)
  np.testing.assert_allclose(found['eager'], found['arrays'], rtol=1e-4)


def test_metrics_and_optimizers_that_keras_would_look_up_late():
  with pytest.raises(ValueError, match="no metric 'acuracy'.*'accuracy'"):
    _private(_classifier(), metrics=['acuracy'])
  _private(_classifier(), metrics=['acc', 'mse', keras.metrics.AUC()])
  private = tfdpflows.PrivateModel(_classifier())
  with pytest.raises(ValueError, match=r"'adam' of Keras .*plan\.optimizer\("):
    private.compile('adam', 'mse')


def test_a_loss_that_is_never_finite_is_named_as_a_cause():
  """Several classes on one output."""
  x, y = _data(classes=2)
  private = tfdpflows.PrivateModel(keras.Sequential([L.Dense(1, 'sigmoid')]))
  private.compile(
    _plan().optimizer('sgd'), keras.losses.SparseCategoricalCrossentropy()
  )
  with pytest.raises(ValueError, match='not finite .*look at the loss'):
    private.fit(x, y, verbose=0)


@unproven()
def test_early_stopping_on_a_released_loss():
  x, y = _line_data()
  plan = _plan(steps=12)
  private = _line(plan, optimizer={'learning_rate': 0.0, 'loss_bound': 5.0})
  stop = keras.callbacks.EarlyStopping('loss', min_delta=100.0, patience=1)
  history = private.fit(x, y, verbose=0, callbacks=[stop]).history
  assert len(history['loss']) == 2
  per_epoch = plan.sampler.steps_per_epoch
  assert plan.remaining_steps == 12 - 2 * per_epoch


@unproven()
def test_a_checkpoint_may_be_named_by_what_is_shown(tmp_path):
  x, y = _line_data()
  private = _line(optimizer={'learning_rate': 0.0, 'loss_bound': 5.0})
  save = keras.callbacks.ModelCheckpoint(
    str(tmp_path / '{epoch}-{loss:.1f}-{val_loss:.1f}.keras')
  )
  private.fit(x, y, verbose=0, validation_data=(x, y), callbacks=[save])
  assert len(list(tmp_path.iterdir())) == 1


@unproven()
def test_weights_of_another_training_get_a_remark(caplog):
  x, y = _line_data()
  private, said = _line(_plan(8)), 'trained under another plan'
  private.fit(x, y, epochs=1, verbose=0)
  private.fit(x, y, verbose=0)
  first = private.optimizer.plan
  again = _plan(label='again')
  private.compile(again.optimizer('sgd'), 'mse')
  assert said not in caplog.text
  private.fit(x, y, verbose=0)
  assert said in caplog.text
  caplog.clear()
  spent = tfdpflows.TrainingPlan(
    again.sampler,
    again.clipping,
    noise_multiplier=1.0,
    steps=4,
    ledger=first.ledger,
    label='more',
  )
  private.compile(spent.optimizer('sgd'), 'mse')
  private.fit(x, y, verbose=0)
  assert said not in caplog.text


def test_tensorboard(tmp_path, monkeypatch):
  x, y = _line_data()
  private = _line()
  board = keras.callbacks.TensorBoard(str(tmp_path))
  with monkeypatch.context() as patch:
    patch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'tfdpflows\[tensorboard\]'):
      private.fit(x, y, verbose=0, callbacks=[board])
  assert not private.optimizer.plan.ledger.entries
  pytest.importorskip('tensorboard')
  private.fit(x, y, verbose=0, callbacks=[board])
  assert list(tmp_path.rglob('events*'))


def test_a_profile_would_tell_the_size_of_batches(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  board = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=2)
  private = _line()
  with pytest.raises(ValueError, match='set profile_batch=0'):
    private.fit(*_line_data(), verbose=0, callbacks=[board])
  assert not private.optimizer.plan.ledger.entries


@pytest.mark.parametrize('noise', ['independent', 'banded'])
def test_graphs_hold_no_key(monkeypatch, noise):
  # TensorBoard writes them down, for one, with all their constants.
  words, key_of = set(), Randomness.key

  def key(self, *path):
    found = key_of(self, *path)
    words.update(np.frombuffer(found, np.int64).tolist())
    return found

  monkeypatch.setattr(Randomness, 'key', key)
  sampler = sampling.CyclicPoissonSampler(
    num_examples=N, sampling_probability=0.5, parts=2
  )
  plan = tfdpflows.TrainingPlan(
    sampler,
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=2,
    noise=noise,
  )
  model = keras.Sequential([keras.Input([4]), L.Dropout(0.5), L.Dense(1)])
  private = _private(model, plan, loss='mse')
  private.fit(*_line_data(), verbose=0)
  graph = private.train_tf_function._concrete_variable_creation_fn.graph
  graph = graph.as_graph_def()
  constants = [
    tf.make_ndarray(node.attr['value'].tensor)
    for nodes in (graph.node, *(f.node_def for f in graph.library.function))
    for node in nodes
    if node.op == 'Const'
  ]
  found = {
    number
    for array in constants
    if array.dtype in ('int64', 'uint64')
    for number in array.ravel().view(np.int64).tolist()
  }
  assert found and not found & words


class _Shaken(L.Layer):
  def __init__(self):
    super().__init__()
    self.generator = tf.random.Generator.from_seed(1)

  def call(self, inputs, training=None):
    if not training:
      return inputs
    return inputs + self.generator.normal(tf.shape(inputs))


def test_what_a_step_has_drawn_is_in_no_checkpoint():
  # It tells how many rows the last batch had, and what each of them got.
  plan, layer = _plan(), _Shaken()
  model = keras.Sequential([keras.Input([4]), layer, L.Dense(1)])
  private = _private(model, plan, loss='mse')
  private.fit(*_line_data(), verbose=0)
  source = private.optimizer.noise_source
  (drawn,), (left,) = source.generator_states(plan.steps - 1, [3])
  np.testing.assert_array_equal(layer.generator.state, left)
  assert not np.isin(left, drawn).any()


@unproven()
def test_epochs_beside_a_dataset_and_after_the_last_step():
  x, y = _line_data()
  plan = _plan()
  private = _line(plan)
  with pytest.raises(ValueError, match='drop epochs'):
    private.fit(plan.dataset((x, y)), epochs=1000, verbose=0)
  private.fit(x, y, verbose=0)
  with pytest.raises(ValueError, match='All .* steps of the plan were made'):
    private.fit(x, y, verbose=0)


def test_the_input_of_a_model_is_no_model():
  inputs = tf.keras.Input([3])
  with pytest.raises(TypeError, match=r'PrivateModel\(tf.keras.Model\('):
    tfdpflows.PrivateModel(inputs, tf.keras.layers.Dense(2)(inputs))


def test_models_of_keras_3_are_refused():
  class Model:  # Keras 3 is not installed with every TensorFlow.
    name = 'classifier'

  Model.__module__ = 'keras.src.models.model'
  with pytest.raises(TypeError, match=r'tf_keras.*keras\.src\.models'):
    tfdpflows.PrivateModel(Model())
