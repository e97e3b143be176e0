"""Noise that is correlated over steps: what it is, what it costs, replays."""

import hashlib
import math

import dp_accounting
import numpy as np
import pytest
import scipy.linalg
import small_training
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import _keras, accounting, audit, gradients, sampling
from tfdpflows.optimizers.noise import normal
from tfdpflows.randomness import Randomness
from tfdpflows.training import mechanism, step_noise
from tfdpflows.training.banded_noise import BandedNoise
from tfdpflows.training.step_noise import StepStream

keras = _keras.keras
KEY = bytes(range(24))
ROWS, PARTS, STEPS = 120, 3, 7
COEFFICIENTS = (0.8, 0.5, 0.3)
CLIPPING = {
  'Flat': gradients.Flat(1.0),
  'AdaptiveQuantile': gradients.AdaptiveQuantile(
    1.0, target_quantile=0.5, learning_rate=0.2
  ),
}


def _stream_of(step, *kind):
  return StepStream(hashlib.sha256(repr(kind).encode()).digest()[:24], step)


def _rows_of_inverse(steps, draw=0, size=10, coefficients=COEFFICIENTS):
  """Returns C^-1 z by linear algebra."""
  column = np.zeros(steps)
  column[: len(coefficients)] = coefficients[:steps]
  matrix = scipy.linalg.toeplitz(column, np.zeros(steps))
  z = [
    normal(_stream_of(step, draw, size, 'float64'), size, 1.0, tf.float64)
    for step in range(steps)
  ]
  return np.linalg.solve(matrix, np.stack(z))


@pytest.mark.core
@pytest.mark.parametrize('compiled', [None, False, True])
def test_rows_are_those_of_the_inverse(compiled):
  """Also where a process begins late, or leaves steps out."""
  noise = BandedNoise(COEFFICIENTS, _stream_of)

  def rows(step, allowed=True):
    stream, allowed = StepStream(KEY, step), tf.constant(allowed)
    return [
      noise.rows(stream, 10, tf.float64, allowed),
      noise.rows(stream, 4, tf.float64, allowed),
    ]

  if compiled is not None:
    rows = tf.function(rows, jit_compile=compiled)
  expected = _rows_of_inverse(12), _rows_of_inverse(12, 1, 4)
  for step in (2, 3, 4, 9, 11):
    found = rows(tf.constant(step, tf.int64))
    for one, of_all in zip(found, expected):
      np.testing.assert_allclose(one, of_all[step], rtol=1e-9)


def test_no_row_is_given_twice():
  noise = BandedNoise(COEFFICIENTS, _stream_of)

  def row(step, allowed=True):
    stream = StepStream(KEY, tf.constant(step, tf.int64))
    return noise.rows(stream, 10, tf.float64, tf.constant(allowed)).numpy()

  expected = _rows_of_inverse(7)
  np.testing.assert_allclose(row(3), expected[3], rtol=1e-9)
  assert np.all(np.isnan(row(3))) and np.all(np.isnan(row(1)))
  # A step that may not be made moves nothing.
  assert np.all(np.isnan(row(6, allowed=False)))
  np.testing.assert_allclose(row(4), expected[4], rtol=1e-9)


def test_an_interrupt_between_two_writes_loses_nothing():
  noise = BandedNoise(COEFFICIENTS, _stream_of)

  def row(step):
    stream = StepStream(KEY, tf.constant(step, tf.int64))
    return noise.rows(stream, 10, tf.float64, tf.constant(True)).numpy()

  expected = _rows_of_inverse(7)
  row(1)
  ((kind, variables),) = noise._past.items()
  for broken in range(len(variables)):
    noise._past[kind] = tuple(
      _Interrupted(v) if i == broken else v for i, v in enumerate(variables)
    )
    with pytest.raises(KeyboardInterrupt):
      row(2 + 2 * broken)
    noise._past[kind] = variables
    step = 3 + 2 * broken
    np.testing.assert_allclose(row(step), expected[step], rtol=1e-9)


class _Interrupted:
  """A variable, and Ctrl-C just before the next value is there."""

  def __init__(self, variable):
    self._variable = variable
    self.shape, self.read_value = variable.shape, variable.read_value

  def assign(self, value):
    if value.shape.rank or value >= 0:
      raise KeyboardInterrupt
    return self._variable.assign(value)


@pytest.mark.parametrize('bands, most', [(2, 0.73), (8, 0.41), (32, 0.26)])
def test_sums_over_steps_have_less_noise(bands, most):
  found = mechanism.banded_coefficients(bands, 500)
  assert len(found) == bands and math.fsum(c * c for c in found) == (
    pytest.approx(1)
  )
  error = mechanism.prefix_error(found, 500)
  assert error < most * mechanism.prefix_error((1.0,), 500)
  # By linear algebra.
  column = np.zeros(500)
  column[:bands] = found
  inverse = np.linalg.inv(scipy.linalg.toeplitz(column, np.zeros(500)))
  sums = np.cumsum(inverse, 0)
  assert error == pytest.approx(np.sqrt(np.mean(np.sum(sums**2, 1))))


def _plan(clipping='Flat', noise='banded', parts=PARTS, **kwargs):
  sampler = sampling.CyclicPoissonSampler(
    num_examples=ROWS, sampling_probability=0.8, parts=parts
  )
  kwargs = {'randomness': Randomness(seed=0), **kwargs}
  return tfdpflows.TrainingPlan(
    sampler,
    CLIPPING[clipping],
    noise_multiplier=1.5,
    steps=STEPS,
    delta=1e-3,
    noise=noise,
    **kwargs,
  )


def _rows():
  return np.random.default_rng(0).normal(size=[ROWS, 4]).astype('float32')


class _Kernels(keras.callbacks.Callback):
  """Notes the kernel after every update, and stops after some of them."""

  def __init__(self, stop_after=None):
    super().__init__()
    self.found, self._stop_after = [], stop_after

  def on_train_batch_end(self, batch, logs=None):
    self.found.append(self.model.distribution.kernel.numpy())
    if len(self.found) == self._stop_after:
      raise InterruptedError


def _updates(model, x):
  """Returns all updates of a fit but the first."""
  kernels = _Kernels()
  model.fit(x, verbose=0, callbacks=[kernels])
  return np.diff(np.stack(kernels.found), axis=0)


@pytest.mark.parametrize('compiled', [False, True])
def test_updates_have_this_noise(compiled, monkeypatch):
  # Before they are rounded.
  monkeypatch.setattr(step_noise, 'on_grid', lambda x, stddev: x)
  plan = _plan()
  model = small_training.linear_model(plan, jit_compile=compiled)
  kernels = _Kernels()
  model.fit(np.zeros([ROWS, 4], 'float32'), verbose=0, callbacks=[kernels])
  kernels = np.stack([np.zeros([4, 30]), *kernels.found])
  batch = plan.sampler.expected_batch_size
  noise = np.diff(kernels, axis=0).reshape(STEPS, -1) * -batch / 0.5 / 1.5
  coefficients = plan.mechanism.coefficients
  assert len(coefficients) == PARTS
  column = np.zeros(STEPS)
  column[:PARTS] = coefficients
  z = scipy.linalg.toeplitz(column, np.zeros(STEPS)) @ noise
  table = plan._steps.table
  path = 'noise', 'DP-SGD', table, 0, 120, 'float32'
  key = plan.randomness.key(*path)[:24]
  expected = [
    normal(StepStream(key, step), 120, 1.0, tf.float32) for step in range(STEPS)
  ]
  np.testing.assert_allclose(z, np.stack(expected), atol=2e-4)


def test_charges_are_for_as_many_steps_as_there_are_parts():
  plan = _plan()
  model = small_training.linear_model(plan)
  with pytest.raises(InterruptedError):
    model.fit(_rows(), verbose=0, callbacks=[_Kernels(4)])
  (entry,) = plan.ledger.entries
  assert entry.count in (2, 3)  # Two for four steps; some are drawn ahead.
  assert entry.reserved == 3
  model.fit(_rows(), verbose=0)
  (entry,) = plan.ledger.entries
  assert entry.count == 3 and plan.remaining_steps == 0
  whole = accounting.CyclicPoissonSampledDpEvent(
    0.8,
    PARTS,
    accounting.ToeplitzMechanismDpEvent(
      1.5, plan.mechanism.coefficients, steps=STEPS
    ),
  )
  expected = accounting.compute_epsilon(whole, 1e-3, accountant='pld')
  assert plan.ledger.epsilon() == pytest.approx(expected, rel=1e-9)
  assert plan.epsilon() == pytest.approx(expected, rel=1e-9)
  assert 0 == plan.epsilon(0) < plan.epsilon(1) == plan.epsilon(3)
  assert plan.epsilon(3) < plan.epsilon(4) == plan.epsilon(6)
  statement = str(plan.privacy_statement())
  assert 'cyclic Poisson: each row is in one of 3 parts' in statement
  assert '3 bands' in statement


@pytest.mark.core
@pytest.mark.parametrize('clipping', thinned(CLIPPING, 1))
def test_a_new_process_replays_bit_for_bit(clipping, tmp_path):
  path = tmp_path / 'ledger.jsonl'
  source = lambda: Randomness(secret=bytes(32))
  with small_training.ledger(path) as ledger:
    plan = _plan(clipping, ledger=ledger, randomness=source())
    model = small_training.linear_model(plan, 'adam', loss_bound=9.0)
    saved = small_training.checkpoint(model)
    with pytest.raises(InterruptedError):
      model.fit(_rows(), verbose=0, callbacks=[_Kernels(2)])
    saved.write(str(tmp_path / 'c'))
    kernels = _Kernels()
    model.fit(_rows(), verbose=0, callbacks=[kernels])
  # The noise is in no checkpoint.
  names = [n for n, _ in tf.train.list_variables(str(tmp_path / 'c'))]
  sizes = [
    tf.train.load_variable(str(tmp_path / 'c'), n).size
    for n in names
    if n != '_CHECKPOINTABLE_OBJECT_GRAPH'
  ]
  assert max(sizes) == 120
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(clipping, ledger=ledger, randomness=source())
    model = small_training.linear_model(plan, 'adam', loss_bound=9.0)
    saved = small_training.checkpoint(model)
    saved.read(str(tmp_path / 'c')).assert_consumed()
    plan.resume(model.optimizer, replay=True)
    assert plan.step == 2
    again = _Kernels()
    model.fit(_rows(), verbose=0, callbacks=[again])
    np.testing.assert_array_equal(again.found, kernels.found)
    assert [e.count for e in ledger.entries] == [3]


def test_a_new_process_goes_on_after_what_was_charged(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  zeros = np.zeros([ROWS, 4], 'float32')
  updates = _updates(small_training.linear_model(_plan()), zeros)
  with small_training.ledger(path) as ledger:
    plan = _plan(ledger=ledger)
    assert plan.steps == STEPS
    list(plan.dataset(zeros, 2))
    assert [e.count for e in ledger.entries] == [1]
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(ledger=ledger)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer)
    # Not the third step, of which an earlier process may have had the batch.
    assert plan.step == 3 and plan.remaining_steps == 4
    found = _updates(model, zeros)
    np.testing.assert_allclose(found, updates[3:], atol=1e-6)


def test_another_table_has_other_noise(tmp_path):
  """Rows in another order are in other parts, and meet no noise of before."""
  path = tmp_path / 'ledger.jsonl'
  zeros = np.zeros([ROWS, 4], 'float32')
  updates = _updates(small_training.linear_model(_plan()), zeros)
  with small_training.ledger(path) as ledger:
    list(_plan(ledger=ledger).dataset(zeros, 2))
  zeros[0] = np.nan  # Which moves nothing either.
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(ledger=ledger)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer)
    found = _updates(model, zeros)
  for one, other in zip(found, updates[3:]):
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.5


def test_vectors_of_another_size_have_other_noise():
  """As where a layer is frozen between two fits."""
  source = _plan().optimizer('sgd').noise_source
  source.steps.table = 'a'
  lengths = []
  for size in (64, 32):
    stream = StepStream(KEY, tf.constant(0, tf.int64))
    taken = stream, tf.constant(1.0, tf.float64)
    row = source.add(taken, tf.zeros([size]), 1.0, correlated=True)
    # Box and Muller made pairs of one length.
    lengths.append(np.linalg.norm(np.reshape(row, [2, -1]), axis=0)[:16])
  assert np.all(np.abs(lengths[0] - lengths[1]) > 1e-6)


def test_batches_of_steps_that_xla_compiles_have_few_sizes():
  sampler = sampling.CyclicPoissonSampler(
    num_examples=2000, sampling_probability=0.3, parts=2, chunk=1
  )
  plan = tfdpflows.TrainingPlan(
    sampler, CLIPPING['Flat'], noise_multiplier=2.0, steps=20, noise='banded'
  )
  dataset = plan._steps.dataset(np.zeros([2000, 1]), few_sizes=True)
  assert len({len(weights) for _, weights, _ in dataset}) <= 2


def _train(x, **kwargs):
  plan = _plan(randomness=Randomness(), **kwargs)
  model = small_training.linear_model(plan, loss_bound=10.0)
  model.fit(x, verbose=0)
  return model.distribution.kernel.numpy()


@pytest.mark.parametrize('clipping', thinned(CLIPPING, 1))
def test_one_row_moves_no_step_by_more_than_is_charged(clipping):
  rows = 3 * _rows()
  other = rows.copy()
  other[-1] = np.nan
  found = audit.replay(lambda x: _train(x, clipping=clipping), rows, other)
  assert found.passed, found
  (entry,) = found.entries
  assert 0.5 < entry.moved <= 1 + 1e-4
  # In steps of its part only, and less often than in all of them.
  assert 1 <= np.sum(np.array(entry.movements) > 0) <= 3


class _Loose(gradients.Flat):
  """Forgets half of its norm."""

  def clip_and_sum(self, per_example, weights=None):
    return [2 * x for x in super().clip_and_sum(per_example, weights)]


def test_clipping_too_little_is_found(monkeypatch):
  monkeypatch.setitem(CLIPPING, 'loose', _Loose(1.0))
  rows = 3 * _rows()
  other = rows.copy()
  other[-1] = np.nan
  found = audit.replay(lambda x: _train(x, clipping='loose'), rows, other)
  assert not found.passed and found.entries[0].exceeds


def test_a_row_in_steps_too_near_is_found(monkeypatch):
  def draw(self, randomness, label, step):
    return sampling.poisson.padded(np.arange(ROWS), 8)

  monkeypatch.setattr(sampling.CyclicPoissonSampler, 'draw_step', draw)
  rows = 3 * _rows()
  other = rows.copy()
  other[-1] = np.nan
  found = audit.replay(_train, rows, other)
  assert not found.passed
  assert 'steps 1 apart moved, and 3 are charged' in found.entries[0].problem


@pytest.mark.parametrize('epsilon', [0.3, 8.0])
def test_for_epsilon_chooses_the_bands(epsilon):
  kwargs = {
    'epsilon': epsilon,
    'delta': 1e-5,
    'num_examples': 2000,
    'expected_batch_size': 200,
    'steps': 100,
    'clipping': gradients.Flat(1.0),
  }
  plan = tfdpflows.TrainingPlan.for_epsilon(noise='banded', **kwargs)
  assert epsilon * 0.999 <= plan.epsilon() <= epsilon
  errors = {1: tfdpflows.TrainingPlan.for_epsilon(**kwargs)}
  for bands in (2, 4, 8):
    errors[bands] = tfdpflows.TrainingPlan.for_epsilon(
      noise='banded', bands=bands, **kwargs
    )
    assert errors[bands].sampler.expected_batch_size == pytest.approx(200)
    assert errors[bands].sampler.steps_per_epoch == 10
  errors = {b: p.mechanism.error(p.noise_multiplier) for b, p in errors.items()}
  assert plan.sampler.parts == min(errors, key=errors.get)
  assert (plan.mechanism.noise == 'banded') == (plan.sampler.parts > 1)
  assert (epsilon > 1) == (plan.sampler.parts > 1)


def test_for_epsilon_goes_on_with_the_noise_that_was_charged(tmp_path):
  kwargs = {
    'epsilon': 8.0,
    'delta': 1e-5,
    'num_examples': ROWS,
    'expected_batch_size': 30,
    'steps': 12,
    'clipping': gradients.Flat(1.0),
    'noise': 'banded',
  }
  budget = accounting.PrivacyBudget(epsilon=8.0, delta=1e-5)
  path = tmp_path / 'ledger.jsonl'
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    plan = tfdpflows.TrainingPlan.for_epsilon(ledger=ledger, **kwargs)
    list(plan.dataset(_rows(), 3))
    assert ledger.epsilon() <= 8.0
  with accounting.PrivacyLedger.open(path) as ledger:
    again = tfdpflows.TrainingPlan.for_epsilon(ledger=ledger, **kwargs)
    assert again.event == plan.event


def test_bad_input():
  def plan(**kwargs):
    return tfdpflows.TrainingPlan.for_epsilon(
      **{
        'epsilon': 1.0,
        'delta': 1e-5,
        'clipping': gradients.Flat(1.0),
        'num_examples': 100,
        'expected_batch_size': 25,
        'steps': 10,
        **kwargs,
      }
    )

  with pytest.raises(ValueError, match="noise is 'pink'; it must be"):
    plan(noise='pink')
  for bands in (1, 5):
    with pytest.raises(ValueError, match=f'bands is {bands}; it must be 2 or'):
      plan(noise='banded', bands=bands)
  with pytest.raises(ValueError, match="`bands` is for noise='banded'"):
    plan(bands=2)
  poisson = sampling.PoissonSampler(num_examples=9, sampling_probability=0.5)
  no_sizes = {'num_examples': None, 'expected_batch_size': None}
  with pytest.raises(ValueError, match='Give a CyclicPoissonSampler'):
    plan(noise='banded', sampler=poisson, **no_sizes)
  with pytest.raises(ValueError, match='Give a CyclicPoissonSampler'):
    _plan(parts=1)
  with pytest.raises(ValueError, match='noise_variance_correction is for'):
    _plan().optimizer('adabelief', noise_variance_correction=True)


def test_independent_noise_on_parts_that_take_turns():
  plan = _plan(noise='independent')
  block = dp_accounting.PoissonSampledDpEvent(
    0.8, dp_accounting.GaussianDpEvent(1.5)
  )
  expected = accounting.compute_epsilon(
    dp_accounting.SelfComposedDpEvent(block, 3), 1e-3, accountant='pld'
  )
  assert plan.epsilon() == pytest.approx(expected, rel=1e-6)
  small_training.linear_model(plan).fit(_rows(), verbose=0)
  assert plan.ledger.epsilon() == pytest.approx(expected, rel=1e-6)


def test_one_replica_of_a_strategy_trains():
  strategy = tf.distribute.MirroredStrategy(['CPU:0'])
  plan = _plan()
  with strategy.scope():
    model = small_training.linear_model(plan)
    model.fit(_rows(), verbose=0)
  assert plan.remaining_steps == 0
