"""`DensityModel`: Keras training, with a plan and without."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl import logging

import tfdpflows
from tests.grids import thinned
from tests.quick_density import QuickDensity
from tests.unproven import proven
from tfdpflows import _keras, accounting, gradients, sampling
from tfdpflows._keras import tfp

keras = _keras.keras


def _data(n=300, d=3):
  rng = np.random.default_rng(0)
  return (rng.normal(size=[n, d]) @ rng.normal(size=[d, d])).astype('float32')


def _flow(d=3, **kwargs):
  return tfdpflows.flows.masked_autoregressive_flow(d, 1, [8], seed=0, **kwargs)


def _plan(steps=8, noise_multiplier=1.0, **kwargs):
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=300, sampling_probability=0.25),
    gradients.Flat(3.0),
    noise_multiplier=noise_multiplier,
    steps=steps,
    delta=1e-4,
    seed=0,
    **kwargs,
  )


def _private(plan, **kwargs):
  model = tfdpflows.DensityModel(QuickDensity(3))
  model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-2, **kwargs))
  return model


def test_variables_are_tracked_and_trained_without_privacy():
  model = tfdpflows.DensityModel(_flow())
  assert len(model.trainable_variables) == 4
  model.compile(optimizer=keras.optimizers.legacy.Adam(1e-2))
  x = _data()
  history = model.fit(x, epochs=15, batch_size=50, verbose=0).history['loss']
  assert history[-1] < history[0] - 0.3
  loss = model.evaluate(x, verbose=0)
  np.testing.assert_allclose(loss, -np.mean(model.log_prob(x)), rtol=1e-5)
  np.testing.assert_allclose(
    model.predict(x, verbose=0), model.log_prob(x), rtol=1e-4, atol=1e-4
  )


def test_a_training_without_privacy_says_so(monkeypatch):
  told = []
  monkeypatch.setattr(
    logging, 'log_first_n', lambda level, text, n, name: told.append(name)
  )
  model = tfdpflows.DensityModel(QuickDensity(3))
  model.compile('sgd')
  model.evaluate(_data(), verbose=0)
  assert told == []
  model.fit(_data(), verbose=0)
  assert told == ['SGD']
  plan = _plan(steps=1)
  _private(plan).fit(_data(), verbose=0)
  model.compile(
    tfdpflows.optimizers.DPKerasSGD(
      l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=30
    )
  )
  model.fit(_data(), verbose=0)
  assert told == ['SGD']


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('loss', 'mse'),
    ('metrics', ['mae']),
    ('loss_weights', [2.0]),
    ('weighted_metrics', ['mae']),
  ],
)
def test_what_a_density_would_ignore_is_refused_by_compile(name, value):
  model = tfdpflows.DensityModel(QuickDensity(3))
  with pytest.raises(ValueError, match=f'compile takes no {name}: its loss is'):
    model.compile('sgd', **{name: value})


def test_weights_of_rows_are_not_dropped():
  """Keras does so where there are no targets; pairs keep them."""
  model = tfdpflows.DensityModel(QuickDensity(3))
  model.compile(keras.optimizers.legacy.SGD(0.0))
  x, weights = _data(), np.ones(len(_data()), 'float32')
  for call in (model.fit, model.evaluate):
    with pytest.raises(ValueError, match='Keras drops sample_weight'):
      call(x, sample_weight=weights, verbose=0)
  flow = tfdpflows.flows.masked_autoregressive_flow(
    2, 1, [4], conditional_event_size=1
  )
  model = tfdpflows.DensityModel(flow)
  model.compile(keras.optimizers.legacy.SGD(0.0))
  pairs, n = (x[:, :2], x[:, 2:]), len(x)
  weights[: n // 2] = 0.0
  found = model.evaluate(*pairs, sample_weight=weights, verbose=0)
  expected = -np.mean(model.log_prob(pairs[0][n // 2 :], pairs[1][n // 2 :]))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('jit_compile', thinned([False, True], 1))
@proven()
def test_fit_under_a_plan_equals_updates_by_hand(jit_compile):
  """Noiseless but for rounding: one step of SGD on the clipped sum."""
  x = _data()
  plan = _plan(steps=1, noise_multiplier=1e-3)
  model = tfdpflows.DensityModel(_flow())
  before = [v.numpy() for v in model.trainable_variables]
  model.compile(
    optimizer=plan.optimizer('sgd', learning_rate=1.0), jit_compile=jit_compile
  )
  model.fit(x, verbose=0)
  ((rows, weights, _),) = list(_plan(steps=1, noise_multiplier=1.0).dataset(x))
  rows = rows[weights.numpy() == 1]
  reference = _flow()
  with tf.GradientTape(persistent=True) as tape:
    loss = -reference.log_prob(rows)
  jacobian = tape.jacobian(
    loss, reference.trainable_variables, experimental_use_pfor=False
  )
  norms = np.sqrt(
    sum(np.sum(np.square(j).reshape(len(rows), -1), 1) for j in jacobian)
  )
  scale = np.minimum(1, 3 / norms)
  for old, new, j in zip(before, model.trainable_variables, jacobian):
    expected = old - np.tensordot(scale, j, 1) / 75
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=3e-4)


def test_plan_trains_all_its_steps_or_the_epochs_that_are_asked():
  plan = _plan(steps=10)
  model = _private(plan)
  model.fit(_data(), epochs=1, verbose=0)
  assert plan.step == 4
  assert int(model.optimizer.iterations) == 4
  model.fit(_data(), verbose=0)
  assert plan.step == 10
  assert int(model.optimizer.iterations) == 10
  assert plan.ledger.entries[0].count == 10
  with pytest.raises(ValueError, match='All 10 steps of the plan were made'):
    model.fit(_data(), verbose=0)


@pytest.mark.core
def test_data_that_the_plan_did_not_draw_is_refused():
  plan = _plan()
  model = _private(plan)
  x = _data()
  own = tf.data.Dataset.from_tensor_slices(x).batch(10)
  for data in (own, plan.dataset(x).map(lambda *batch: batch)):
    with pytest.raises(ValueError, match='did not draw this dataset'):
      model.fit(data, verbose=0)
  other = _plan().dataset(x)
  with pytest.raises(ValueError, match='did not draw this dataset'):
    model.fit(other, verbose=0)
  for arguments in (
    {'batch_size': 10},
    {'validation_split': 0.1},
    {'y': x},
    {'sample_weight': x[:, 0]},
    {'steps_per_epoch': 3},
  ):
    with pytest.raises(ValueError, match=next(iter(arguments))):
      model.fit(x, verbose=0, **arguments)
  with pytest.raises(ValueError, match='positional'):
    model.fit(x, x, verbose=0)
  assert plan.ledger.entries == () or plan.ledger.entries[0].count == 0
  with pytest.raises(ValueError, match=r'use fit\(x\)'):
    model.train_on_batch(x)
  model.fit(plan.dataset(x), verbose=0)
  assert plan.remaining_steps == 0


def test_training_loss_is_shown_only_with_noise():
  x = _data()
  model = _private(_plan())
  assert model.fit(x, verbose=0).history == {}
  noisy = []
  for noise_multiplier in (1e-3, 5.0):
    model = _private(
      _plan(noise_multiplier=noise_multiplier, steps=4), loss_bound=50.0
    )
    noisy.append(model.fit(x, verbose=0).history['loss'][0])
  # 5 * 50 / .1 / 75 / sqrt(4) = 17 nats of noise on the mean of four.
  assert 0 < noisy[0] < 20
  assert abs(noisy[1] - noisy[0]) > 0.1


def test_tf_privacys_own_optimizer_works():
  model = tfdpflows.DensityModel(_flow())
  optimizer = _keras.VectorizedDPKerasSGDOptimizer(
    l2_norm_clip=1.0, noise_multiplier=0.1, learning_rate=0.01
  )
  model.compile(optimizer=optimizer)
  before = [v.numpy() for v in model.trainable_variables]
  model.fit(_data(16), batch_size=8, verbose=0)
  after = [v.numpy() for v in model.trainable_variables]
  assert all((a != b).any() for a, b in zip(before, after))


def test_weights_are_averaged_over_steps(tmp_path):
  model = tfdpflows.DensityModel(_flow(), ema_momentum=0.5)
  model.compile(optimizer=keras.optimizers.legacy.SGD(1e-2))
  seen = []
  first = model.trainable_variables[0]
  callback = keras.callbacks.LambdaCallback(
    on_batch_end=lambda batch, logs: seen.append(first.numpy())
  )
  average = model.trainable_variables[0].numpy()
  model.fit(_data(), batch_size=100, verbose=0, callbacks=[callback])
  for t, weights in enumerate(seen, 1):
    momentum = min(0.5, t / (9 + t))
    average = momentum * average + (1 - momentum) * weights
  np.testing.assert_allclose(
    model.trainable_variables[0], average, rtol=1e-5, atol=1e-6
  )
  path = tf.train.Checkpoint(model=model).write(str(tmp_path / 'c'))
  names = [name for name, _ in tf.train.list_variables(path)]
  assert any(name.startswith('model/_average/_averages/0') for name in names)


def test_preprocessing_runs_in_training_only():
  calls = []

  def shift(x):
    calls.append(1)
    return x + 1

  model = tfdpflows.DensityModel(_flow(), preprocessing=shift)
  model.compile(optimizer=keras.optimizers.legacy.SGD(0.0))
  x = _data()
  history = model.fit(x, batch_size=300, verbose=0).history['loss'][0]
  np.testing.assert_allclose(
    history, -np.mean(model.log_prob(x + 1)), rtol=1e-4
  )
  assert calls


def test_checkpoint_restores_model_optimizer_and_noise(tmp_path):
  x = _data()

  def trained(epochs, restore, ledger=None):
    plan = _plan(steps=8, ledger=ledger)
    model = _private(plan)
    model.optimizer._create_all_weights(model.distribution.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if restore:
      checkpoint.read(str(tmp_path / 'c')).assert_consumed()
      plan.resume(model.optimizer, replay=True)
    model.fit(x, epochs=epochs, verbose=0)
    if not restore and epochs == 1:
      checkpoint.write(str(tmp_path / 'c'))
    return [v.numpy() for v in model.trainable_variables]

  whole = trained(2, restore=False)
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=50.0, delta=1e-4)
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    trained(1, restore=False, ledger=ledger)
  with accounting.PrivacyLedger.open(path) as ledger:
    replayed = trained(1, restore=True, ledger=ledger)
  for a, b in zip(replayed, whole):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_saved_model_has_log_prob(tmp_path):
  model = tfdpflows.DensityModel(_flow())
  x = _data(5)
  function = tf.function(
    lambda x: {'log_prob': model.log_prob(x)},
    input_signature=[tf.TensorSpec([None, 3])],
  )
  tf.saved_model.save(model, str(tmp_path), signatures={'log_prob': function})
  loaded = tf.saved_model.load(str(tmp_path)).signatures['log_prob']
  np.testing.assert_allclose(
    loaded(tf.constant(x))['log_prob'], model.log_prob(x), rtol=1e-5
  )


def test_nothing_to_fit_is_refused():
  with pytest.raises(ValueError, match='no trainable variables.*first use'):
    tfdpflows.DensityModel(tfp.distributions.Normal(0.0, 1.0))


def test_networks_of_tfp_are_built_on_zeros():
  tfb, tfd = tfp.bijectors, tfp.distributions
  network = tfb.AutoregressiveNetwork(2, event_shape=[3], hidden_units=[8])
  flow = tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.zeros(3)),
    tfb.MaskedAutoregressiveFlow(network),
  )
  assert not flow.trainable_variables
  assert len(tfdpflows.DensityModel(flow).trainable_variables) == 4


@pytest.mark.parametrize(
  ('rows', 'message'),
  [
    (lambda x: x[:, :2], r'x has shape \[{}, 2\]; .* is of rows \[{}, 3\]'),
    (lambda x: x[:, 0], r'x has shape \[{}\]; .* is of rows \[{}, 3\]'),
    (lambda x: x.astype(str), 'x is of text .*of numbers'),
    (lambda _: None, 'x is of (text|type None).* of numbers'),
    (
      lambda x: pd.DataFrame({'a': x[:, 0], 'b': 'b', 'c': 1}),
      'x is of (text|type DataFrame).* of numbers',
    ),
  ],
)
@proven()
def test_rows_that_a_density_is_not_of_are_refused_uncharged(rows, message):
  plan = _plan()
  model = tfdpflows.DensityModel(_flow())
  model.compile(plan.optimizer('sgd'))
  with pytest.raises(ValueError, match=message.format('300', r'\.\.\.')):
    model.log_prob(rows(_data()))
  with pytest.raises(ValueError, match=message.format('n', 'n')):
    model.fit(rows(_data()), verbose=0)
  assert not plan.ledger.entries


@proven()
def test_other_rows_that_a_density_is_not_of():
  x, c = _pairs()
  plan = _plan()
  model = tfdpflows.DensityModel(_conditional())
  model.compile(plan.optimizer('sgd'))
  with pytest.raises(ValueError, match='conditional_input is of text'):
    model.fit((x, c.astype(str)), verbose=0)
  with pytest.raises(ValueError, match=r'x has shape \[n, 1\]'):
    model.fit((c, c), verbose=0)
  with pytest.raises(ValueError, match='validation_data: x has shape'):
    model.fit((x, c), verbose=0, validation_data=(c, c))
  assert not plan.ledger.entries


@pytest.mark.core
def test_validation_data_may_be_an_array():
  plan = _plan(steps=1)
  history = _private(plan).fit(_data(), verbose=0, validation_data=_data(9))
  assert np.isfinite(history.history['val_loss']).all()


def test_rows_may_be_integers_or_lists():
  model = tfdpflows.DensityModel(_flow())
  x = np.arange(6).reshape(2, 3)
  expected = model.log_prob(x.astype('float32'))
  for rows in (x, x.tolist(), pd.DataFrame(x)):
    np.testing.assert_array_equal(model.log_prob(rows), expected)
  plan = _plan(steps=1)
  model = tfdpflows.DensityModel(_flow())
  model.compile(plan.optimizer('sgd'))
  model.fit(np.ones([300, 3], int).tolist(), verbose=0)
  assert plan.remaining_steps == 0


@pytest.mark.parametrize(
  ('shape', 'error'),
  [
    (-1, ValueError),
    (2.5, ValueError),
    ([2, -1], ValueError),
    ('3', TypeError),
  ],
)
def test_numbers_of_samples_are_integers(shape, error):
  model = tfdpflows.DensityModel(_flow())
  with pytest.raises(error, match='sample_shape is'):
    model.sample(shape)


def test_numbers_of_samples_may_be_known_late():
  model = tfdpflows.DensityModel(_flow())
  rows = tf.ones([4, 3])
  sample = tf.function(lambda x: model.sample([tf.shape(x)[0], 2]))
  assert sample(rows).shape == [4, 2, 3]
  for shape in (
    tf.TensorShape([4]),
    np.array([4]),
    [np.int64(4)],
    tf.constant(4),
  ):
    assert model.sample(shape).shape == [4, 3]


@proven()
def test_batch_normalization_is_refused_by_name():
  distribution = tfp.distributions.TransformedDistribution(
    _flow(), tfp.bijectors.BatchNormalization()
  )
  distribution.log_prob(_data(5))
  plan = _plan()
  model = tfdpflows.DensityModel(distribution)
  model.compile(optimizer=plan.optimizer('sgd', learning_rate=0.1))
  with pytest.raises(ValueError, match='BatchNormalization.*mixes'):
    model.fit(_data(), verbose=0)


@pytest.mark.core
def test_what_the_ledger_refuses_while_training_is_its_own_error(tmp_path):
  """TensorFlow, which asks for the batches, would raise the text only."""
  ledger = accounting.PrivacyLedger(tmp_path / 'ledger')
  plan = _plan(ledger=ledger)
  model = _private(plan)

  class Close(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      ledger.close()

  with pytest.raises(accounting.LedgerError, match='ledger'):
    model.fit(_data(), verbose=0, callbacks=[Close()])


def _pairs(n=300):
  rng = np.random.default_rng(1)
  c = rng.normal(size=[n, 1])
  x = c**2 + 0.3 * rng.normal(size=[n, 2])
  return x.astype('float32'), c.astype('float32')


def _conditional(**kwargs):
  return _flow(2, conditional_event_size=1, **kwargs)


def test_a_conditional_density_is_learned():
  x, c = _pairs(500)
  losses = {}
  for name, flow, rows in (
    ('alone', _flow(2), x),
    ('given', _conditional(), (x, c)),
  ):
    model = tfdpflows.DensityModel(flow)
    model.compile(optimizer=keras.optimizers.legacy.Adam(4e-2))
    model.fit(rows, epochs=50, batch_size=250, verbose=0)
    losses[name] = model.evaluate(rows, verbose=0)
  assert losses['given'] < losses['alone'] - 0.5
  np.testing.assert_allclose(
    losses['given'], -np.mean(model.log_prob(x, c)), rtol=1e-5
  )
  np.testing.assert_allclose(
    model.predict((x, c), verbose=0), model.log_prob(x, c), rtol=1e-4, atol=1e-4
  )
  # Pairs as Keras has them: inputs and targets.
  pairs = tf.data.Dataset.from_tensor_slices((x, c)).batch(100)
  for found in (
    model.evaluate(pairs, verbose=0),
    model.evaluate(x, c, verbose=0),
    model.fit((x, c), validation_data=(x, c), verbose=0).history['val_loss'][0],
  ):
    assert abs(found - losses['given']) < 0.3
  near, far = (
    np.mean(model.sample(500, seed=0, conditional_input=[value]))
    for value in (0.0, 1.5)
  )
  assert near < 0.8 and far > 1.5


@pytest.mark.parametrize('jit_compile', thinned([False, True], 1))
@proven()
def test_a_conditional_density_under_a_plan_is_proven_of_one_table(jit_compile):
  x, c = _pairs()
  plan = _plan()
  model = tfdpflows.DensityModel(_conditional())
  model.compile(
    plan.optimizer('adam', learning_rate=1e-2), jit_compile=jit_compile
  )
  before = [v.numpy() for v in model.trainable_variables]
  model.fit((x, c), epochs=1, validation_data=(x, c), verbose=0)
  assert model.checked_independence == 'proven'
  # Another conditional input is another table, with the noise used before.
  with pytest.raises(ValueError, match='not the table'):
    model.fit((x, c + 1), verbose=0)
  with pytest.raises(ValueError, match='have 300 and 299 rows'):
    model.fit((x, c[1:]), verbose=0)
  model.fit(plan.dataset((x, c)), verbose=0)
  assert plan.remaining_steps == 0
  assert plan.ledger.entries[0].count == 8
  for old, new in zip(before, model.trainable_variables):
    assert np.any(old != new)


def test_the_shape_of_conditional_samples():
  x, c = _pairs(5)
  model = tfdpflows.DensityModel(_conditional())
  for shape, given, expected in (
    ((), c, [5, 2]),
    (4, c, [4, 5, 2]),
    ([4, 3], c, [4, 3, 5, 2]),
    (4, [1.0], [4, 2]),
  ):
    found = model.sample(shape, seed=0, conditional_input=given)
    assert found.shape == expected
  np.testing.assert_allclose(
    model.log_prob(x, [0.5]), model.log_prob(x, np.full([5, 1], 0.5))
  )


@pytest.mark.core
@proven()
def test_rows_that_are_no_pairs_are_refused_before_the_charge():
  x, c = _pairs()
  for flow, rows, match in (
    (_flow(2), (x, c), 'takes no conditional_input'),
    (_conditional(), x, 'is conditional and needs conditional_input'),
    (_conditional(), (x, c[:, 0]), r'c\[..., tf.newaxis\]'),
    (_conditional(), (x, x), r'must be \[..., 1\]'),
    (_conditional(), (x, c, c), 'Rows are a tuple of 3'),
    (_conditional(), {'x': x, 'c': c}, 'Rows are a dict of 2.*preprocessing'),
  ):
    plan = _plan()
    model = tfdpflows.DensityModel(flow)
    model.compile(plan.optimizer('sgd', learning_rate=0.1))
    with pytest.raises(ValueError, match=match):
      model.fit(rows, verbose=0)
    assert plan.ledger.entries == ()


@proven()
def test_rows_of_any_structure_with_preprocessing():
  x, c = _pairs()
  rows = {'x': x, 'more': (c, np.arange(300) % 3)}

  def preprocessing(rows):
    c, group = rows['more']
    return rows['x'], tf.concat([c, tf.one_hot(group, 3)], -1)

  plan = _plan()
  model = tfdpflows.DensityModel(
    _flow(2, conditional_event_size=4), preprocessing
  )
  model.compile(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(rows, epochs=1, verbose=0)
  model.fit(plan.dataset(rows), verbose=0)
  assert model.checked_independence == 'proven'
  assert plan.remaining_steps == 0


@proven()
def test_a_conditional_input_that_looks_at_other_rows_is_refused():
  x, c = _pairs()
  plan = _plan()
  model = tfdpflows.DensityModel(
    _conditional(), lambda rows: (rows[0], rows[1] - tf.reduce_mean(rows[1]))
  )
  model.compile(plan.optimizer('sgd', learning_rate=0.1))
  with pytest.raises(ValueError, match='another|mixes'):
    model.fit((x, c), verbose=0)
  assert plan.ledger.entries == ()


@proven()
def test_conditional_flows_of_tfp():
  """Any distribution whose methods take `conditional_input`."""
  tfb, tfd = tfp.bijectors, tfp.distributions
  network = tfb.AutoregressiveNetwork(
    2,
    event_shape=[2],
    hidden_units=[8],
    conditional=True,
    conditional_event_shape=[1],
  )
  flow = tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag([0.0, 0.0]),
    tfb.MaskedAutoregressiveFlow(network),
    kwargs_split_fn=lambda kwargs: ({}, kwargs),
  )
  x, c = _pairs()
  flow.log_prob(x, conditional_input=c)  # Makes its variables.
  plan = _plan(steps=2)
  model = tfdpflows.DensityModel(flow)
  model.compile(plan.optimizer('sgd', learning_rate=0.1))
  model.fit((x, c), verbose=0)
  assert model.checked_independence == 'proven'
  assert model.sample(3, conditional_input=c[0]).shape == [3, 2]


def test_saved_model_of_a_conditional_density(tmp_path):
  model = tfdpflows.DensityModel(_conditional())
  x, c = _pairs(5)
  rows, given = tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])
  model.score = tf.function(model.log_prob, input_signature=[rows, given])
  model.draw = tf.function(
    lambda c: model.sample(conditional_input=c), input_signature=[given]
  )
  tf.saved_model.save(model, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(
    loaded.score(x, c), model.log_prob(x, c), rtol=1e-5
  )
  assert loaded.draw(c).shape == [5, 2]


def test_rows_of_double_precision_are_cast_as_keras_layers_do():
  density = tfdpflows.DensityModel(_flow())
  x = np.linspace(-1, 1, 12).reshape(4, 3)
  found = density.log_prob(x)
  assert found.dtype == tf.float32
  np.testing.assert_array_equal(found, density.log_prob(x.astype('float32')))
  density.compile(optimizer='adam')
  density.fit(x, verbose=0)


def test_a_frozen_density_is_a_layer():
  density = tfdpflows.DensityModel(_flow())
  density.trainable = False
  rows = keras.Input([3])
  features = keras.layers.Reshape([1])(density(rows))
  model = keras.Model(rows, keras.layers.Dense(1)(features))
  assert len(model.trainable_variables) == 2
  x = _data(5)
  found = keras.Model(rows, features).predict(x, verbose=0)
  np.testing.assert_allclose(found[:, 0], density.log_prob(x), rtol=1e-5)


def test_no_keras_file_holds_a_density(tmp_path):
  density = tfdpflows.DensityModel(QuickDensity(3))
  inputs = keras.Input([3])
  model = keras.Model(inputs, density(inputs))
  with pytest.raises(NotImplementedError, match='a DensityModel, cannot be'):
    model.save(tmp_path / 'model.keras')
