"""Tests on two virtual CPUs; `replicas_test.py` runs them in their own process.

TensorFlow splits a CPU only before it has used it.
"""

import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices('CPU')[0],
  [tf.config.LogicalDeviceConfiguration()] * 2,
)

import small_training  # noqa: E402

import tfdpflows  # noqa: E402
from tests.unproven import proven  # noqa: E402
from tfdpflows import (  # noqa: E402
  _keras,
  accounting,
  gradients,
  optimizers,
  sampling,
)
from tfdpflows.randomness import Randomness  # noqa: E402
from tfdpflows.training import replicas  # noqa: E402

keras = _keras.keras
ONE = tf.distribute.get_strategy()
TWO = tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1'])


def _assert_same_weights(found, expected):
  for a, b in zip(
    small_training.weights_of(found), small_training.weights_of(expected)
  ):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


class _Trained(NamedTuple):
  plan: tfdpflows.TrainingPlan
  model: tfdpflows.DensityModel
  losses: list
  folder: str


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The same training on one replica and on two."""
  results = []
  for strategy in (ONE, TWO):
    folder = str(tmp_path_factory.mktemp('checkpoints'))
    plan = small_training.plan(
      ledger=accounting.PrivacyLedger(
        pathlib.Path(folder) / 'ledger.jsonl',
        budget=accounting.PrivacyBudget(epsilon=50.0, delta=1e-4),
      )
    )
    model = small_training.flow_model(plan, strategy)
    saved = small_training.Checkpoints(model, folder)
    with proven():
      history = model.fit(small_training.table(), verbose=0, callbacks=[saved])
    results.append(_Trained(plan, model, history.history['loss'], folder))
  return results


def test_two_replicas_train_as_one_with_the_same_noise_and_ledger(trained):
  """Bad rows, averages and the released loss included."""
  one, two = trained
  assert TWO.num_replicas_in_sync == 2
  _assert_same_weights(two.model, one.model)
  np.testing.assert_allclose(two.losses, one.losses, rtol=1e-5)
  assert np.all(np.isfinite(one.losses))
  assert two.plan.ledger.entries == one.plan.ledger.entries
  assert two.plan.ledger.entries[0].count == small_training.STEPS
  assert two.plan.ledger.epsilon() == one.plan.ledger.epsilon()
  assert int(two.model.optimizer.plan_step.numpy()) == small_training.STEPS
  assert int(two.model.optimizer.iterations.numpy()) == small_training.STEPS


def test_labels_that_are_no_class_and_errors_on_two_replicas():
  secret = 17171
  x = small_training.table()
  x[7], x[8] = 0, 0
  y = np.arange(len(x)) % 2

  def trained(strategy, x, y, *layers):
    plan = small_training.plan()
    keras.utils.set_random_seed(0)
    with strategy.scope():
      model = keras.Sequential([*layers, keras.layers.Dense(2)])
      private = tfdpflows.PrivateModel(model)
      private.compile(
        plan.optimizer('adam', learning_rate=1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      )
    private.fit(x, y, verbose=0)
    return [v.numpy() for v in model.trainable_variables]

  y[7], y[8] = secret, -1
  for a, b in zip(trained(ONE, x, y), trained(TWO, x, y)):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)

  def lookup(x):
    bad = tf.cast(tf.equal(x[:, 0], secret), tf.int32)
    return tf.gather(tf.eye(3), bad * tf.cast(x[:, 0], tf.int32))

  x[7] = secret
  with pytest.raises(tf.errors.InvalidArgumentError) as info:
    trained(TWO, x, y, keras.layers.Lambda(lookup))
  assert 'A private batch could not be computed' in str(info.value)
  assert str(secret) not in str(info.value)
  assert info.value.__context__ is None


def test_random_layers_of_each_replica_draw_from_the_secret():
  class Noise(keras.layers.Layer):
    def __init__(self):
      super().__init__()
      self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
      return x + self.generator.normal(tf.shape(x))

  secret, found = Randomness().secret, []
  for _ in range(2):
    plan = small_training.plan(randomness=Randomness(secret=secret))
    with TWO.scope():
      noise = Noise()
      private = tfdpflows.PrivateModel(
        keras.Sequential([noise, keras.layers.Dense(2)])
      )
      private.compile(plan.optimizer('sgd', learning_rate=0.1), 'mse')
    before = [v.numpy().copy() for v in noise.generator.state.values]
    x = small_training.table()
    private._check_rows((x, x[:, :2]), False)
    found.append([v.numpy() for v in noise.generator.state.values])
    assert all(a[2] != b[2] for a, b in zip(before, found[-1]))
  np.testing.assert_array_equal(*found)
  assert found[0][0][2] != found[0][1][2]


def test_units_of_several_rows_are_shared_out_whole():
  ids = np.repeat(np.arange(100), 3)
  found = []
  for strategy in (ONE, TWO):
    units = sampling.Units(ids, max_rows_per_unit=2, name='person')
    plan = small_training.plan(rows=100, units=units)
    model, x = _linear_model(plan, strategy)
    model.fit(x, verbose=0)
    found.append((plan, model))
  (one, trained), (two, other) = found
  _assert_same_weights(other, trained)
  assert two.ledger.entries == one.ledger.entries
  with TWO.scope():
    plan = small_training.plan(rows=100, units=units)
    shares = iter(plan.dataset(small_training.table()))
  rows, weights, _ = next(shares)
  for x, w in zip(rows.values, weights.values):
    assert x.shape[1:] == [2, 3]
    assert w.shape == x.shape[:2]


def test_noise_has_the_planned_scale_once():
  """In a graph, and eagerly with a batch that is empty."""
  empty = {'rows': 20, 'q': 1e-3}
  x = np.zeros([20, 1])
  ((_, weights, _),) = small_training.plan(steps=1, **empty).dataset(x)
  assert not np.any(weights)
  one, two = (small_training.noise_of_one_update(s) for s in (ONE, TWO))
  eager = small_training.noise_of_one_update(TWO, **empty, run_eagerly=True)
  for noise in (one, two, eager):
    p = scipy.stats.chi2.cdf(np.sum(noise**2), noise.size)
    assert 1e-4 < p < 1 - 1e-4
    np.testing.assert_allclose(noise, one, rtol=0, atol=1e-5)


def test_replicas_share_no_row_and_every_row_is_drawn_with_q():
  rows, q, steps = 60, 0.3, 100
  x = np.arange(1, rows + 1, dtype='float32')[:, None]
  drawn = np.zeros([steps, rows], bool)
  with TWO.scope():
    plan = small_training.plan(rows=rows, q=q, steps=steps)
    shares = iter(plan.dataset(x))
  for step in range(steps):
    values, weights, _ = next(shares)
    seen = []
    for replica in range(2):
      used = weights.values[replica].numpy() > 0
      numbers = values.values[replica].numpy()[:, 0].astype(int) - 1
      assert np.all(numbers[~used] == -1)  # Padding is zeros.
      assert np.all(numbers[used] % 2 == replica)
      seen.extend(numbers[used])
    assert len(set(seen)) == len(seen)
    drawn[step, seen] = True
  batches = small_training.plan(rows=rows, q=q, steps=steps).dataset(x)
  for step, (values, weights, _) in enumerate(batches):
    expected = values.numpy()[weights.numpy() > 0, 0].astype(int) - 1
    np.testing.assert_array_equal(np.flatnonzero(drawn[step]), expected)
  z = (drawn.sum(0) - q * steps) / np.sqrt(q * (1 - q) * steps)
  assert 1e-4 < scipy.stats.chi2.cdf(np.sum(z**2), rows) < 1 - 1e-4


@pytest.mark.parametrize(
  'after', [TWO, pytest.param(ONE, marks=pytest.mark.full)], ids=['two', 'one']
)
def test_replays_from_checkpoint_on_any_number_of_replicas(
  after, trained, tmp_path
):
  one, two = trained
  path = shutil.copy(two.plan.ledger.path, tmp_path / 'ledger.jsonl')
  plan = small_training.plan(ledger=accounting.PrivacyLedger.open(path))
  resumed = small_training.flow_model(plan, after)
  small_training.Checkpoints(resumed, two.folder).restore(0)
  plan.resume(resumed.optimizer, replay=True)
  assert plan.remaining_steps == small_training.STEPS - 4
  resumed.fit(small_training.table(), verbose=0)
  _assert_same_weights(resumed, one.model)
  assert plan.ledger.entries[0].count == small_training.STEPS


def _linear_model(plan, strategy, **kwargs):
  """What is traced in less time than a flow, and rows for it."""
  with strategy.scope():
    model = small_training.linear_model(plan, **kwargs)
  return model, _wide_table()


def _wide_table():
  return np.pad(small_training.table(), ((0, 0), (0, 1)))


def test_what_was_made_for_other_replicas_is_refused():
  plan = small_training.plan(steps=1)
  model, x = _linear_model(plan, TWO)
  dataset = plan.dataset(x)
  with pytest.raises(ValueError, match=r'strategy\.scope'):
    model.fit(dataset, verbose=0)
  plan = small_training.plan(steps=1)
  with TWO.scope():
    dataset = plan.dataset(x)
  model, _ = _linear_model(plan, ONE)
  with pytest.raises(ValueError, match=r'strategy\.scope'):
    model.fit(dataset, verbose=0)
  model, _ = _linear_model(plan, TWO)
  model.fit(dataset, verbose=0)
  assert plan.remaining_steps == 0


def test_a_threshold_that_moves_is_that_of_one_replica():
  found = []
  for strategy in (ONE, TWO):
    plan = small_training.plan(clip=gradients.AdaptiveQuantile(3.0))
    model, x = _linear_model(plan, strategy)
    model.fit(x, verbose=0)
    state = model.optimizer.clipping.state
    copies = {float(v) for v in getattr(state, 'values', [state])}
    assert len(copies) == 1
    found.append((model, *copies))
  assert abs(found[0][1]) > 0.01
  np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
  _assert_same_weights(found[1][0], found[0][0])


@pytest.mark.parametrize(
  ('clip', 'name'), [(3.0, 'plan'), (gradients.AdaptiveQuantile(), 'clipping')]
)
def test_what_moves_belongs_to_the_strategy(clip, name):
  plan = small_training.plan(clip=clip)
  optimizer = plan.optimizer('sgd')
  model = _compiled_on_two(optimizer)
  message = rf'The {name} changes .*optimizer inside of strategy\.scope'
  with pytest.raises(ValueError, match=message):
    model.fit(_wide_table(), verbose=0)


def test_an_interrupted_fit_goes_on_in_step(trained):
  """Each replica's shares, too, are drawn again."""
  plan = small_training.plan()
  model = small_training.flow_model(plan, TWO)

  def stop(batch, logs):
    if batch == 1:
      raise KeyboardInterrupt

  callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
  with pytest.raises(KeyboardInterrupt):
    model.fit(small_training.table(), verbose=0, callbacks=[callback])
  assert plan.step == 2
  model.fit(small_training.table(), verbose=0)
  _assert_same_weights(model, trained[0].model)


def test_xla_is_refused_before_anything_is_charged():
  plan = small_training.plan()
  model, x = _linear_model(plan, TWO, jit_compile=True)
  with pytest.raises(ValueError, match='drop jit_compile'):
    model.fit(x, verbose=0)
  assert plan.ledger.entries == ()


@pytest.mark.full
def test_an_ordinary_keras_model_trains_as_on_one():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[small_training.ROWS, 5]).astype('float32')
  y = (x[:, 0] > 0).astype('int64')
  kernels = []
  for strategy in (ONE, TWO):
    plan = small_training.plan(steps=2)
    with strategy.scope():
      keras.utils.set_random_seed(0)
      layers = [keras.Input((5,)), keras.layers.Dense(2)]
      model = tfdpflows.PrivateModel(keras.Sequential(layers))
      model.compile(
        optimizer=plan.optimizer('adam', learning_rate=1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      )
    model.fit(x, y, verbose=0)
    kernels.append(model.model.trainable_variables[0].numpy())
  np.testing.assert_allclose(*kernels, rtol=0, atol=1e-6)


def _compiled_on_two(optimizer):
  with TWO.scope():
    model = tfdpflows.DensityModel(small_training.Linear())
    model.compile(optimizer=optimizer)
  return model


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (
      lambda: optimizers.DPKerasSGD(
        l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=30
      ),
      'DPKerasSGD runs on one replica and finds 2',
    ),
    (
      lambda: _keras.VectorizedDPKerasSGDOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0
      ),
      "TF Privacy's SGD would .* on each of 2 replicas",
    ),
  ],
  ids=['ours', "TF Privacy's"],
)
def test_private_optimizers_without_a_plan_are_refused(make, message):
  model = _compiled_on_two(make())
  with pytest.raises(ValueError, match=message):
    model.fit(_wide_table(), batch_size=30, verbose=0)


def test_training_without_privacy_averages_over_replicas():
  x = np.delete(_wide_table(), [7, 8], 0)[:64]
  model = _compiled_on_two(keras.optimizers.legacy.SGD(0.1))
  expected = small_training.weights_of(model)
  with tf.GradientTape() as tape:
    loss = -tf.reduce_mean(model.log_prob(x))
  steps = tape.gradient(loss, model.trainable_variables)
  model.fit(x, batch_size=64, verbose=0)
  for new, old, step in zip(small_training.weights_of(model), expected, steps):
    np.testing.assert_allclose(new, old - 0.1 * step, atol=1e-6)


def test_other_strategies_are_refused_by_name():
  strategy = tf.distribute.experimental.CentralStorageStrategy(
    ['cpu:0', 'cpu:1']
  )
  plan = small_training.plan()
  with pytest.raises(ValueError, match='CentralStorageStrategy is not'):
    small_training.flow_model(plan, strategy).fit(
      small_training.table(), verbose=0
    )
  assert plan.ledger.entries == ()


def test_outside_of_a_replica_there_is_no_noise_to_add():
  with TWO.scope(), pytest.raises(RuntimeError, match=r'strategy\.run'):
    replicas.is_first_replica()


def test_banded_noise_is_refused():
  sampler = sampling.CyclicPoissonSampler(
    num_examples=300, sampling_probability=0.5, parts=2
  )
  plan = tfdpflows.TrainingPlan(
    sampler,
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=4,
    noise='banded',
  )
  model, x = _linear_model(plan, TWO)
  with pytest.raises(ValueError, match='Banded noise is drawn on one replica'):
    model.fit(x, verbose=0)
  assert not plan.ledger.entries
