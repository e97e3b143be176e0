"""Units of several rows under a plan: their batches, gradients and charge."""

import numpy as np
import pandas as pd
import pytest
import small_training
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tests.unproven import proven
from tfdpflows import _keras, accounting, audit, gradients, optimizers, sampling

keras = _keras.keras
PEOPLE, COLUMNS = 30, 4
CLIPPINGS = {
  'flat': gradients.Flat(0.4),
  'automatic': gradients.Automatic(0.4),
  'per layer': gradients.PerLayer(0.4),
  'per unit': gradients.PerUnit(0.4),
  'sparse': gradients.StochasticSparsification(0.4, sparsity=0.3),
}


def _ids(seed=0):
  rng = np.random.default_rng(seed)
  return rng.permutation(
    np.repeat(np.arange(PEOPLE), rng.integers(1, 7, PEOPLE))
  )


def _rows(ids, seed=1):
  rng = np.random.default_rng(seed)
  # People differ, so that gradients of their rows do not cancel.
  return (rng.normal(size=[PEOPLE, COLUMNS])[ids] + 0.3).astype('float32')


def _flow():
  return tfdpflows.flows.masked_autoregressive_flow(
    COLUMNS, num_blocks=1, hidden_units=[8], seed=0
  )


def _plan(units, **kwargs):
  sampler = sampling.PoissonSampler(
    num_examples=units.num_units, sampling_probability=0.4, chunk=4
  )
  kwargs = {
    'noise_multiplier': 2.0,
    'steps': 4,
    'clipping': gradients.Flat(0.4),
    'delta': 1e-3,
    'seed': 0,
    **kwargs,
  }
  clipping = kwargs.pop('clipping')
  return tfdpflows.TrainingPlan(sampler, clipping, units=units, **kwargs)


def _model(plan, **kwargs):
  model = tfdpflows.DensityModel(_flow())
  model.compile(optimizer=plan.optimizer('sgd', learning_rate=0.1, **kwargs))
  return model


@pytest.fixture(scope='module')
def whole():
  """A model that was trained on units of three rows at most, in one go."""
  units = sampling.Units(_ids(), name='unit', max_rows_per_unit=3)
  model = small_training.linear_model(_plan(units))
  model.fit(_rows(_ids()), verbose=0)
  return model


def _each_by_itself(losses, variables, x, weights):
  """Returns the gradients of each unit's weighted loss, and their norms."""
  found = []
  for rows, w in zip(x, weights):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(tf.constant(w) * losses(tf.constant(rows)))
    found.append(tape.gradient(loss, variables))
  return found, np.array([tf.linalg.global_norm(g) for g in found])


def _check_sums(losses, variables, x, weights, clip, **kwargs):
  """Compares what an optimizer adds up with gradients taken one by one."""
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=clip, noise_multiplier=0.0, expected_batch_size=5.0, **kwargs
  )
  means, _ = optimizer.private_gradients_of(
    losses, x, variables, tf.constant(weights)
  )
  each, norms = _each_by_itself(losses, variables, x, weights)
  present = weights.any(1)
  assert (norms[present] > clip).any()
  assert (norms[present] < clip).any()
  factors = present * np.minimum(1, clip / np.maximum(norms, 1e-9))
  for i, mean in enumerate(means):
    expected = sum(c * g[i] for c, g in zip(factors, each)) / 5.0
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize(
  ('weighting', 'draws'),
  thinned([('rows', 2), ('units', 1), ('rows', 1), ('units', 2)], 2),
)
def test_the_gradient_of_a_unit_is_clipped_as_a_whole(weighting, draws):
  ids = _ids()
  units = sampling.Units(
    ids, name='unit', max_rows_per_unit=3, weighting=weighting
  )
  numbers, weights = units.batch(np.arange(12), np.arange(12) < 10)
  flow = _flow()
  _check_sums(
    lambda rows: -flow.log_prob(tf.identity(rows)),
    list(flow.trainable_variables),
    _rows(ids)[numbers],
    weights,
    clip=12.0,
    augmentation_multiplicity=draws,
  )


@pytest.mark.parametrize('chunk', [None, 3])
def test_variables_without_a_rule_and_chunks_give_the_same(chunk):
  units = sampling.Units(
    _ids(), name='unit', max_rows_per_unit=3, weighting='units'
  )
  numbers, weights = units.batch(np.arange(10), np.ones(10))
  scale = tf.Variable([[0.5, -1.0, 2.0]])
  _check_sums(
    lambda rows: tf.reduce_sum(tf.sin(rows * scale), 1),
    [scale],
    _rows(_ids())[numbers][..., :3],
    weights,
    clip=3.0,
    chunk_size=chunk,
  )


@proven()
def test_batches_are_of_units_and_the_model_is_proven():
  ids = _ids()
  units = sampling.Units(ids, max_rows_per_unit=3, name='person')
  plan = _plan(units, seed=None)
  for rows, weights, _ in plan.dataset(_rows(ids), 1):
    assert rows.shape[1:] == [3, COLUMNS]
    assert weights.shape == rows.shape[:2]
    assert float(tf.reduce_max(tf.reduce_sum(weights, 1))) <= 3
  plan = _plan(units)
  model = _model(plan)
  model.fit(_rows(ids), verbose=0)
  assert model.checked_independence == 'proven'
  (entry,) = plan.ledger.entries
  assert entry.event == plan.sampler.event(2.0)
  assert plan.ledger.privacy_unit == 'person'


CASES = [(name, 'rows') for name in CLIPPINGS] + [('flat', 'units')]


@pytest.mark.parametrize('clipping, weighting', thinned(CASES, 1))
def test_one_person_moves_a_step_by_the_clip_at_most(clipping, weighting):
  """The worst of several neighbours, with the same noise."""
  ids, x = _ids(), _rows(_ids())
  person = np.flatnonzero(ids == 7)
  x[person] *= 100

  def fit(absent):
    units = sampling.Units(
      ids, name='unit', max_rows_per_unit=3, weighting=weighting
    )
    plan = _plan(
      units.without(person) if absent else units,
      clipping=CLIPPINGS[clipping],
      seed=None,
    )
    model = _model(plan)
    model.fit(x, verbose=0)
    return model.distribution

  found = audit.replay(fit, False, True)
  assert found.passed, found
  moved = np.array(found.entries[0].movements)
  assert 0.5 < moved.max() <= 1 + 1e-4


def test_a_person_with_one_row_or_with_many_is_one_person():
  """Rows that are not used, and how many there are, change nothing."""
  ids, x = _ids(), _rows(_ids())

  def fit(extra):
    # The person's further rows are equal: the same three are in use.
    more = np.full(extra, 7)
    rows = np.concatenate([x, np.tile(x[ids == 7][:1], [extra, 1])])
    rows[np.concatenate([ids, more]) == 7] = x[ids == 7][0]
    units = sampling.Units(
      np.concatenate([ids, more]), name='unit', max_rows_per_unit=1
    )
    model = small_training.linear_model(_plan(units, seed=None))
    model.fit(rows, verbose=0)
    return model.distribution

  found = audit.replay(fit, 0, 500)
  assert found.passed, found
  assert max(found.entries[0].movements) < 1e-6


@proven()
def test_keras_models_train_on_units():
  ids, x = _ids(), _rows(_ids())
  units = sampling.Units(ids, name='unit', max_rows_per_unit=3)
  plan = _plan(units)
  network = keras.Sequential(
    [keras.layers.Dense(4, 'tanh'), keras.layers.Dense(2)]
  )
  model = tfdpflows.PrivateModel(network)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(plan.optimizer('adam', loss_bound=3.0), loss)
  history = model.fit(x, (x[:, 0] > 0).astype(int), verbose=0)
  assert model.checked_independence == 'proven'
  assert np.isfinite(history.history['loss']).all()


@proven()
def test_models_that_mix_rows_are_refused():
  ids = _ids()
  plan = _plan(sampling.Units(ids, name='unit', max_rows_per_unit=3))
  flow = _flow()

  class Mixing(tf.Module):
    trainable_variables = flow.trainable_variables
    name = 'mixing'

    def log_prob(self, x):
      return flow.log_prob(x - tf.reduce_mean(x, 0))

  model = tfdpflows.DensityModel(Mixing())
  model.compile(optimizer=plan.optimizer('sgd'))
  with pytest.raises(ValueError, match='mixes examples|changes'):
    model.fit(_rows(ids), verbose=0)
  assert not plan.ledger.entries


def test_a_fit_goes_on_and_other_units_are_refused(whole, tmp_path):
  ids, x = _ids(), _rows(_ids())
  units = lambda most: sampling.Units(ids, name='unit', max_rows_per_unit=most)
  path = str(tmp_path / 'ledger.jsonl')
  ledger = accounting.PrivacyLedger(path, privacy_unit='unit')
  plan = _plan(units(3), ledger=ledger)
  model = small_training.linear_model(plan)
  model.fit(x, epochs=1, verbose=0)
  checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
  saved = checkpoint.write(str(tmp_path / 'weights'))
  ledger.close()
  for most in (2, 3):
    ledger = accounting.PrivacyLedger.open(path)
    plan = _plan(units(most), ledger=ledger)
    model = small_training.linear_model(plan)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.read(saved).assert_consumed()
    plan.resume(model.optimizer, replay=True)
    if most == 2:
      with pytest.raises(accounting.LedgerError):
        model.fit(x, verbose=0)
    else:
      model.fit(x, verbose=0)
      for one, two in zip(model.variables, whole.variables):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    ledger.close()


def test_xla_compiles_units(whole):
  ids = _ids()
  plan = _plan(sampling.Units(ids, name='unit', max_rows_per_unit=3))
  model = small_training.linear_model(plan, jit_compile=True)
  model.fit(_rows(ids), verbose=0)
  for one, two in zip(
    whole.distribution.trainable_variables,
    model.distribution.trainable_variables,
  ):
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_together_is_refused():
  units = sampling.Units(_ids(), max_rows_per_unit=3, name='person')
  x = _rows(_ids())
  with pytest.raises(ValueError, match='there are 30 units'):
    tfdpflows.TrainingPlan(
      sampling.PoissonSampler(num_examples=len(x), sampling_probability=0.1),
      gradients.Flat(1.0),
      noise_multiplier=1.0,
      steps=1,
      units=units,
    )
  plan = _plan(units)
  with pytest.raises(ValueError, match=r'x has 3 rows, and the units'):
    plan.dataset(x[:3])
  # A ledger of rows counts no people, and the other way round.
  plan = _plan(units, ledger=accounting.PrivacyLedger())
  with pytest.raises(ValueError, match="units 'person'.*is for rows"):
    plan.dataset(x)
  ledger = accounting.PrivacyLedger(privacy_unit='household')
  plan = _plan(units, ledger=ledger)
  with pytest.raises(ValueError, match="is for units 'household'"):
    small_training.linear_model(plan).fit(x, verbose=0)
  assert not ledger.entries


def test_weights_of_rows_are_those_of_a_plan():
  """Of others nothing was checked for examples of several rows."""
  flow = tfdpflows.flows.masked_autoregressive_flow(
    COLUMNS, num_blocks=1, hidden_units=[8], conditional_event_size=1
  )
  model = tfdpflows.DensityModel(flow)
  model.compile(
    optimizers.DPKerasSGD(
      l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=8.0
    )
  )
  x = np.zeros([8, COLUMNS], 'float32')
  data = tf.data.Dataset.from_tensor_slices((x, x[:, :1], np.ones_like(x)))
  with pytest.raises(ValueError, match='weights have shape'):
    model.fit(data.batch(8), verbose=0)


def test_for_epsilon_counts_units():
  units = sampling.Units(_ids(), max_rows_per_unit=3, name='person')
  make = lambda **kwargs: tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-3,
    expected_batch_size=10,
    epochs=2,
    clipping=gradients.Flat(1.0),
    **kwargs,
  )
  plan = make(units=units)
  assert plan.noise_multiplier == make(num_examples=PEOPLE).noise_multiplier
  text = ' '.join(str(plan.privacy_statement()).split())
  assert "all rows of the table with one value of 'person'" in text
  assert 'Number of units: 30' in text
  assert 'each value of person joins each batch independently' in text
  assert 'at most 3 of its rows are used' in text
  assert 'The number of units is public; that of rows is not.' in text
  assert 'one row at most' not in text


def test_identifiers_are_no_units():
  ids = pd.Series(['ann', 'bob', 'ann'])
  with pytest.raises(TypeError, match='type Series; .* sampling.Units'):
    tfdpflows.TrainingPlan.for_epsilon(
      epsilon=1.0,
      delta=1e-5,
      units=ids,
      expected_batch_size=1,
      epochs=1,
      clipping=gradients.Flat(1.0),
    )
  with pytest.raises(TypeError, match='type Series; .* sampling.Units'):
    tfdpflows.mechanisms.noisy_mean(
      [1.0, 2.0, 3.0],
      lower=0.0,
      upper=4.0,
      noise_multiplier=1.0,
      units=ids,
      ledger=accounting.PrivacyLedger(privacy_unit='who'),
    )
