"""Replays of fits on neighbouring tables: what passes, and what must not."""

import functools

import dp_accounting
import numpy as np
import pandas as pd
import pytest

from tfdpflows import (
  accounting,
  audit,
  gradients,
  mechanisms,
  optimizers,
  pate,
  training,
)
from tfdpflows._keras import keras
from tfdpflows.audit import replaying, watching
from tfdpflows.models import PrivateModel
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import PoissonSampler

CODES = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
RNG = np.random.default_rng(0)


def marginals(codes, ledger=None, std=4.0, charged=4.0):
  ledger = accounting.PrivacyLedger() if ledger is None else ledger
  randomness = Randomness()
  ledger.charge(dp_accounting.GaussianDpEvent(charged), label='counts')
  counts = np.bincount(codes[:, 0], minlength=2)
  return counts + std * randomness.numpy('counts').normal(size=2)


def test_noise_of_the_charge_passes():
  found = audit.replay(marginals, CODES, CODES[:-1])
  assert found.passed, found
  assert found.entries[0].moved == pytest.approx(1)
  assert found.entries[0].norm == 'l2'
  # A row that is replaced is two steps away, and moves a count less than both.
  other = CODES.copy()
  other[0] = 1, 0
  assert not audit.replay(marginals, CODES, other).passed
  found = audit.replay(marginals, CODES, other, distance=2)
  assert found.passed
  assert found.entries[0].moved == pytest.approx(0.5**0.5)


def test_tables_that_test_nothing_are_told():
  same = audit.replay(marginals, CODES, CODES.copy())
  assert 'these two tables test nothing' in str(same)
  other = audit.replay(marginals, CODES, CODES[:-1])
  assert 'test nothing' not in str(other)


def uncharged(codes):
  return np.bincount(codes[:, 0], minlength=2) + Randomness().numpy(
    'counts'
  ).normal(size=2)


def by_rows(codes):
  """Leaks the first code in the result."""
  return marginals(codes), codes[-1, 0] * codes[-1, 1] + len(codes)


def adaptive_rounds(codes):
  """As many rounds as there are rows."""
  ledger, randomness = accounting.PrivacyLedger(), Randomness()
  for i in range(len(codes)):
    mechanisms.noisy_marginals(
      codes, [2, 2], [(0,)], 4.0, randomness, ledger, label=f'round {i}'
    )


def rows_as_shape(codes):
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='rows')
  Randomness().numpy('rows').normal(loc=codes[:, 0] / 10)


def twice(codes):
  """Two releases for one charge."""
  ledger, randomness = accounting.PrivacyLedger(), Randomness()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='counts')
  counts = np.bincount(codes[:, 0], minlength=2)
  for i in range(2):
    counts + randomness.numpy('counts', i).normal(size=2)


def scaled_by_the_table(codes):
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='counts')
  counts = np.bincount(codes[:, 0], minlength=2)
  return counts + len(codes) * Randomness().numpy('counts').normal(size=2)


def sum_of_nan(codes):
  """The neighbour has another sum, NaN."""
  total = codes.sum(0) + (np.nan if len(codes) < 4 else 0)
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='counts')
  return total + Randomness().numpy('counts').normal(size=2)


def without_noise(codes):
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='counts')
  return codes.sum(0) + Randomness().numpy('counts').normal(0.0, 0.0, size=2)


class Fitted:
  def __init__(self, mean):
    self.mean_ = mean


def beside_the_release(codes):
  return marginals(codes), Fitted(codes.mean(0))


def in_a_function(codes):
  mean = codes.mean(0)
  return marginals(codes), lambda x: x - mean


class Called(Fitted):
  def __call__(self, x):
    return x - self.mean_


def in_an_object_that_is_called(codes):
  return marginals(codes), Called(codes.mean(0))


def in_a_method(codes):
  return marginals(codes), Called(codes.mean(0)).__call__


def in_a_partial(codes):
  return marginals(codes), functools.partial(np.subtract, codes.mean(0))


def in_the_index(codes):
  return pd.Series(marginals(codes), index=[0, codes.sum()])


def in_the_columns(codes):
  return pd.DataFrame([marginals(codes)], columns=['a', str(codes.sum())])


def chosen_by_the_table(codes):
  p = len(codes) / 10
  return marginals(codes), Randomness().numpy('choice').choice(2, p=[p, 1 - p])


def drawn_up_to_the_table(codes):
  drawn = Randomness().numpy('drawn').integers(0, high=10**6 * len(codes))
  return marginals(codes), drawn // 10**9


def scores_of_a_choice(codes):
  """The noisy scores are released, and only the choice is charged."""
  ledger = accounting.PrivacyLedger()
  event = accounting.ExponentialMechanismDpEvent(1.0)
  ledger.charge(event, label='choice')
  scores = np.bincount(codes[:, 0], minlength=2) / 2
  noisy = scores + Randomness().numpy('choice').gumbel(size=2)
  return np.argmax(noisy), noisy.max()


def noise_used_twice(codes):
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(1.0), count=2, label='counts')
  noise = Randomness().numpy('counts').normal(size=2)
  return codes[:2, 0] / 9 + noise, codes[-1] / 9 + noise


@pytest.mark.parametrize(
  'fit, text',
  [
    (sum_of_nan, 'EXCEEDS'),
    (without_noise, 'no noise'),
    (beside_the_release, r'result\[1\]'),
    (noise_used_twice, 'used twice'),
    (scores_of_a_choice, r'result\[1\] depends'),
    (in_a_function, r'result\[1\][0][0]'),
    (in_an_object_that_is_called, r"result\[1\]['mean_']"),
    (in_a_method, r"result\[1\]['mean_']"),
    (in_a_partial, r'result\[1\][1][0]'),
    (in_the_index, 'result.index depends'),
    (in_the_columns, 'result.columns depends'),
    (chosen_by_the_table, 'parameters of a draw of choice by `choice`'),
    (drawn_up_to_the_table, 'parameters of a draw of drawn by `integers`'),
    (lambda codes: marginals(codes, std=2.0), 'EXCEEDS'),
    (uncharged, 'nothing was charged'),
    (by_rows, r'result\[1\] depends'),
    (adaptive_rounds, 'charges depend'),
    (rows_as_shape, 'shape of a release'),
    (twice, 'EXCEEDS'),
    (scaled_by_the_table, 'scale of the noise'),
  ],
  ids=lambda x: getattr(x, '__name__', ''),
)
def test_leaks_are_found(fit, text):
  found = audit.replay(fit, CODES, CODES[:-1])
  assert not found.passed
  assert any(text.replace('\\', '') in line for line in str(found).split('\n'))


USED_AGAIN = {
  'whole': lambda noise: noise,
  'negated': lambda noise: -noise,
  'doubled': lambda noise: 2 * noise,
  'reversed': lambda noise: noise[::-1],
  'one number': lambda noise: noise[3:4],
  'a part': lambda noise: noise[5:9],
  'a part, reversed and negated': lambda noise: -noise[9:5:-1],
}


@pytest.mark.parametrize('dtype', ['float64', 'float32'])
@pytest.mark.parametrize('how', USED_AGAIN)
def test_noise_used_again_in_another_way(how, dtype):
  def fit(codes):
    ledger = accounting.PrivacyLedger()
    ledger.charge(dp_accounting.GaussianDpEvent(1.0), count=2, label='counts')
    noise = Randomness().numpy('counts').normal(size=10).astype(dtype)
    again = USED_AGAIN[how](noise)
    other = np.zeros(np.shape(again), dtype)
    return codes[0, 0] * np.zeros(10, dtype) + noise, other + again

  found = audit.replay(fit, CODES, CODES[:-1])
  whole = how in ('whole', 'negated', 'doubled', 'reversed')
  if whole or dtype == 'float64':
    assert 'used twice' in str(found)


def test_one_number_as_noise_of_several():
  def fit(codes):
    ledger = accounting.PrivacyLedger()
    ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='counts')
    return codes[0] + Randomness().numpy('counts').normal()

  assert 'used twice' in str(audit.replay(fit, CODES, CODES[:-1]))


@pytest.mark.parametrize('grid', [None, 'float32', 0.25, 1e-3])
def test_fresh_noise_is_not_taken_for_noise_used_twice(grid):
  """Large releases and small ones, of numbers that coincide by chance."""
  rng = np.random.default_rng(0)
  noises = watching.UsedNoise()
  for size in [500_000] * 2 + [5_000] * 20 + [50] * 100:
    noise = rng.normal(size=size)
    if grid == 'float32':
      noise = noise.astype(grid)
    elif grid:
      noise = grid * np.round(noise / grid)
    assert not noises.known(noise, noise / 3.0)
  assert len(noises._numbers) <= 2 * watching._MOST_NUMBERS
  if grid is None:
    # A part of what was used is seen among millions.
    rng = np.random.default_rng(0)
    noise = rng.normal(size=500_000)
    assert noises.known(-noise[1000:2000][::-1], noise[1000:2000][::-1] / 3.0)


def test_draws_that_do_not_depend_on_the_table_pass():
  def fit(codes):
    rng = Randomness().numpy('draws')
    rng.permutation(codes), rng.choice(codes, 2), rng.integers(5)
    weights = np.maximum(marginals(codes), 0) + 1
    chosen = rng.choice(2, 3, p=weights / weights.sum())
    return chosen, rng.uniform(size=2), {'draw': lambda: rng.random()}

  found = audit.replay(fit, CODES, CODES[:-1])
  assert found.passed, found


def centred(structure):
  """Changes its table in place, and shows how far it moved."""
  x = structure['x'][0]
  mean = x.mean()
  x -= mean
  return mean


def test_fits_that_change_their_table_see_it_as_it_was():
  x = np.array([1.0, 2.0, 6.0])
  found = audit.replay(centred, {'x': [x]}, {'x': [x[:2]]})
  assert 'The result depends on the table' in str(found)
  # The second mean is that of other rows, were they not copied.
  same = audit.replay(centred, {'x': [x]}, {'x': [x]})
  assert same.passed, same
  np.testing.assert_array_equal(x, [1, 2, 6])


def test_what_is_not_seen_is_listed():
  def fit(codes):
    ledger = accounting.PrivacyLedger()
    ledger.charge(dp_accounting.GaussianDpEvent(1.0), label='elsewhere')

  found = audit.replay(fit, CODES, CODES)
  assert not found.passed
  assert 'no release was observed' in str(found)


def test_replays_do_not_nest_and_leave_nothing():
  with pytest.raises(ValueError, match='do not nest'):
    audit.replay(lambda x: audit.replay(marginals, x, x), CODES, CODES)
  assert type(Randomness().numpy('a')) is np.random.Generator
  with pytest.raises(ValueError, match='distance'):
    audit.replay(marginals, CODES, CODES, distance=0)


def test_mechanisms():
  def fit(codes):
    ledger = accounting.PrivacyLedger()
    randomness = Randomness()
    chosen = mechanisms.select_marginal(
      codes,
      [2, 2],
      [(0,), (1,)],
      [np.ones(2)] * 2,
      1.0,
      0.5,
      randomness,
      ledger,
    )
    found = mechanisms.private_normalization(
      codes.astype(float),
      bound=1.0,
      ledger=ledger,
      epsilon=1.0,
      num_examples=4,
      randomness=randomness,
    )
    aggregator = pate.GNMax(
      4.0, num_teachers=len(CODES), num_classes=2, ledger=ledger
    )
    votes = np.bincount(codes[:, 1], minlength=2)
    votes[0] += len(CODES) - votes.sum()
    return chosen, found.mean, found.std, aggregator.query([votes])

  other = CODES.copy()
  other[-1] = 1, 0
  found = audit.replay(fit, CODES, other, distance=2)
  assert found.passed, found
  assert [entry.norm for entry in found.entries] == ['range', 'l1', 'l2']
  # A vote is moved: what GNMax is charged for.
  assert found.entries[2].moved == pytest.approx(0.5)


X = RNG.normal(size=[40, 3]).astype('float32')
X[-1] = 30.0


class Loose(gradients.Flat):
  """Forgets half of its norm."""

  def clip_and_sum(self, per_example, weights=None):
    return [2 * x for x in super().clip_and_sum(per_example, weights)]


def train(x, clipping=gradients.Flat, until=None):
  """Trains a linear model under a plan."""
  plan = training.TrainingPlan(
    PoissonSampler(num_examples=len(X), sampling_probability=0.5),
    clipping(1.0),
    noise_multiplier=2.0,
    steps=4,
  )
  keras.utils.set_random_seed(0)
  inner = keras.Sequential([keras.layers.Dense(1)])
  model = PrivateModel(inner)
  model.model(X[:1])
  optimizer = plan.optimizer('sgd', learning_rate=0.1, loss_bound=10.0)
  model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())
  epochs = None if until is None else until(x)
  model.fit(x, np.ones([len(x), 1], 'float32'), verbose=0, epochs=epochs)
  return inner.get_weights()


def without_last(x):
  x = x.copy()
  x[-1] = np.nan
  return x


def test_training():
  recorded = replaying.record(train, X)
  found = recorded.replay(without_last(X))
  assert found.passed, found
  (entry,) = found.entries
  # Of each step the gradient and the loss.
  assert entry.releases == 8
  assert 0.9 < entry.moved <= 1 + 1e-4
  other = X.copy()
  other[-1] *= -1
  assert recorded.replay(other, distance=2).passed


def test_a_row_of_nan_is_absent_from_the_count_of_a_quantile():
  # Little noise on the count: what it moves by too much would show.
  quantile = lambda clip: gradients.AdaptiveQuantile(clip, count_stddev=1.05)
  found = audit.replay(lambda x: train(x, quantile), X, without_last(X))
  assert found.passed, found
  assert 0.8 < found.entries[0].moved <= 1 + 1e-4


def test_training_that_clips_too_little():
  found = audit.replay(lambda x: train(x, Loose), X, without_last(X))
  assert not found.passed
  assert found.entries[0].exceeds


def test_steps_that_are_not_charged():
  """An optimizer without a plan, for which the user charges too few steps."""

  def fit(x, charged=8):
    ledger = accounting.PrivacyLedger()
    ledger.charge(dp_accounting.GaussianDpEvent(2.0), charged, label='steps')
    inner = keras.Sequential([keras.layers.Dense(1)])
    model = PrivateModel(inner)
    keras.utils.set_random_seed(0)
    model.model(X[:1])
    optimizer = optimizers.DPKerasSGD(
      l2_norm_clip=1.0, noise_multiplier=2.0, expected_batch_size=40.0
    )
    model.compile(optimizer, keras.losses.MeanSquaredError())
    ones = np.ones([len(x), 1], 'float32')
    model.fit(x, ones, batch_size=len(x), epochs=8, verbose=0)
    return inner.get_weights()

  assert audit.replay(fit, X, without_last(X)).passed
  few = functools.partial(fit, charged=2)
  assert not audit.replay(few, X, without_last(X)).passed


@pytest.mark.full
def test_training_that_ends_by_the_rows():
  until = lambda x: 1 if np.isnan(x).any() else None
  found = audit.replay(lambda x: train(x, until=until), X, without_last(X))
  assert 'number of releases' in str(found)
