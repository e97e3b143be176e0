"""Exact samplers against the laws that they are charged for."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from tests.grids import thinned
from tfdpflows import accounting, expm
from tfdpflows.expm import functional
from tfdpflows.randomness import Randomness

UTILITIES = np.array([0.0, 1.0, 1.5, -2.0, 1.5])
CANDIDATES = np.arange(5.0)[:, None]
EPSILON = 1.4


def table(utilities, **kwargs):
  """The mechanism that chooses an index by its utility."""
  kwargs = {'sensitivity': 1.0, 'epsilon': EPSILON, **kwargs}
  return expm.ExponentialMechanism(
    lambda theta: np.asarray(utilities)[np.asarray(theta)[:, 0].astype(int)],
    **kwargs,
  )


def permute_and_flip(utilities, epsilon):
  """Its law, by all orders of the candidates (McKenna and Sheldon 2020)."""
  p = np.exp(epsilon / 2 * (utilities - np.max(utilities)))
  found = np.zeros(len(p))
  for i, mine in enumerate(p):
    # Tried after a random set of others, all of which failed.
    others = np.delete(p, i)
    polynomial = np.ones(1)
    for q in others:
      polynomial = np.polymul(polynomial, [-(q), 1.0])
    powers = np.arange(len(polynomial))[::-1]
    found[i] = mine * np.sum(polynomial / (powers + 1))
  return found


def laws(utilities, epsilon=EPSILON):
  return {
    'exponential': special.softmax(epsilon / 2 * np.asarray(utilities)),
    'permute_and_flip': permute_and_flip(np.asarray(utilities), epsilon),
  }


def counts(draw, size, n=4000):
  ledger, randomness = accounting.PrivacyLedger(), Randomness(seed=3)
  found = np.zeros(size)
  for i in range(n):
    found[int(draw(ledger, randomness, str(i)))] += 1
  return found


@pytest.mark.parametrize('method', ['exponential', 'permute_and_flip'])
def test_samples_have_the_law(method):
  mechanism = table(UTILITIES)
  # One charge for all draws: the law is that of the same two lines.
  weights = mechanism.unnormalized_log_prob(CANDIDATES).numpy()
  rng = np.random.default_rng(0)
  draw = rng.gumbel if method == 'exponential' else rng.exponential
  many = np.argmax(weights + draw(size=[100_000, 5]), axis=1)
  law = laws(UTILITIES)[method]
  observed = np.bincount(many, minlength=5)
  assert stats.chisquare(observed, law * len(many)).pvalue > 1e-3
  observed = counts(
    lambda ledger, randomness, label: mechanism.sample_from(
      CANDIDATES,
      ledger=ledger,
      randomness=randomness,
      label=label,
      method=method,
    )[0],
    5,
    400,
  )
  assert stats.chisquare(observed, law * observed.sum()).pvalue > 1e-3


def test_the_laws_sum_to_one():
  for law in laws(UTILITIES).values():
    assert math.isclose(law.sum(), 1)


@pytest.mark.parametrize('method', ['exponential', 'permute_and_flip'])
def test_neighbours_are_within_the_charge(method):
  rng = np.random.default_rng(1)
  for _ in range(200):
    one = rng.integers(-3, 4, 5).astype(float)
    other = one + rng.uniform(-1, 1, 5).round()
    ratios = np.log(laws(one)[method]) - np.log(laws(other)[method])
    assert np.abs(ratios).max() <= EPSILON + 1e-9
    if method == 'exponential':
      # Bounded range, as the event of its charge has it.
      assert np.ptp(ratios) <= EPSILON + 1e-9


def test_a_prior_is_part_of_the_law():
  mechanism = table(UTILITIES, l1=0.3, l2=0.2)
  found = mechanism.unnormalized_log_prob(CANDIDATES).numpy()
  theta = CANDIDATES[:, 0]
  expected = EPSILON / 2 * UTILITIES - 0.3 * np.abs(theta) - 0.2 * theta**2
  np.testing.assert_allclose(found, expected)
  with pytest.raises(ValueError, match='constant prior'):
    mechanism.sample_from(
      CANDIDATES, ledger=accounting.PrivacyLedger(), method='permute_and_flip'
    )


def test_grid_is_the_set_of_its_points():
  axes = [np.linspace(-1, 1, 3), np.linspace(0, 1, 2), [5.0]]
  points = np.array([[a, b, c] for a in axes[0] for b in axes[1] for c in [5]])
  mechanism = expm.ExponentialMechanism(
    lambda theta: -tf.reduce_sum(theta**2, -1), sensitivity=1.0, epsilon=3.0
  )
  for seed in range(20):
    found = [
      draw(
        ledger=accounting.PrivacyLedger(),
        randomness=Randomness(seed=seed),
        block_size=2,
      )
      for draw in (
        lambda **kwargs: mechanism.sample_grid(axes, **kwargs),
        lambda **kwargs: mechanism.sample_from(points, **kwargs),
      )
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
  ('method', 'event'),
  [
    ('exponential', accounting.ExponentialMechanismDpEvent(EPSILON)),
    ('permute_and_flip', accounting.PermuteAndFlipDpEvent(EPSILON)),
  ],
)
def test_charged_before_anything_is_drawn(method, event):
  mechanism = table(UTILITIES)
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.5, delta=1e-6)
  )
  randomness = Randomness(seed=0)
  mechanism.sample_from(
    CANDIDATES, ledger=ledger, method=method, randomness=randomness
  )
  assert [entry.event for entry in ledger.entries] == [event]
  drawn = []

  class Watched(Randomness):
    def numpy(self, *path):
      drawn.append(path)
      return super().numpy(*path)

  with pytest.raises(accounting.BudgetExceededError):
    mechanism.sample_from(
      CANDIDATES, ledger=ledger, method=method, randomness=Watched(seed=1)
    )
  assert not drawn
  assert len(ledger.entries) == 1
  with pytest.raises(ValueError, match='used already'):
    mechanism.sample_from(CANDIDATES, ledger=ledger, randomness=randomness)


def test_a_draw_can_be_resumed(tmp_path):
  def draw(ledger, utilities=UTILITIES, resume=True):
    return table(utilities).sample_from(
      CANDIDATES, ledger=ledger, randomness=Randomness(seed=5), resume=resume
    )

  with accounting.PrivacyLedger(tmp_path / 'ledger') as ledger:
    first = draw(ledger, resume=False)
  with accounting.PrivacyLedger.open(tmp_path / 'ledger') as ledger:
    with pytest.raises(accounting.LedgerError, match='table'):
      draw(ledger, UTILITIES + 1)
    np.testing.assert_array_equal(draw(ledger), first)
    assert len(ledger.entries) == 1


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'sensitivity': 0.0}, 'sensitivity'),
    ({'sensitivity': -1.0}, 'sensitivity'),
    ({'sensitivity': math.nan}, 'sensitivity'),
    ({'epsilon': 0.0}, 'epsilon'),
    ({'epsilon': math.inf}, 'epsilon'),
    ({'l1': -1.0}, 'l1'),
    ({'l2': math.nan}, 'l2'),
  ],
)
def test_bad_parameters(kwargs, match):
  with pytest.raises(ValueError, match=match):
    table(UTILITIES, **kwargs)


@pytest.mark.parametrize(
  ('utilities', 'candidates', 'match'),
  [
    ([math.nan, 0.0], [[0], [1]], 'not finite'),
    ([math.inf, 0.0], [[0], [1]], 'not finite'),
    ([[0.0], [0.0]], [[0], [1]], 'has shape'),
    ([0.0, 0.0], [[0.0], [math.nan]], 'parameters are not all finite'),
    ([0.0, 0.0], np.zeros([0, 1]), 'no candidates'),
    ([0.0, 0.0], [0.0, 1.0], r'\[K, P\]'),
    ([0.0, 0.0], [['a'], ['b']], 'real numbers'),
  ],
)
def test_bad_input_is_refused_before_the_charge(utilities, candidates, match):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=match) as error:
    table(utilities).sample_from(candidates, ledger=ledger)
  assert not ledger.entries
  if match == 'not finite':
    # Nothing of the rows.
    assert str(error.value).startswith('The utility is not finite for some')


def test_bad_axes():
  mechanism = table(UTILITIES)
  for axes in ([], [[]], [[1.0], []], [[[1.0]]]):
    with pytest.raises(ValueError, match='ax'):
      mechanism.sample_grid(axes, ledger=accounting.PrivacyLedger())
  with pytest.raises(ValueError, match='method'):
    mechanism.sample_grid([[0.0]], ledger=accounting.PrivacyLedger(), method='')


# The l2 utility.


def rows(n=60, d=3, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[n, d])
  return x, (x[:, 0] + rng.normal(size=n) > 0).astype(float)


def parameters(n=7, d=3):
  return np.random.default_rng(5).normal(size=[n, d + 1]) * 2


@pytest.mark.parametrize('batch_size', [1000, 7, 1])
def test_l2_utility(batch_size):
  x, y = rows()
  model = functional.LogisticRegression(3)
  utility = expm.l2_utility(model, x, y, batch_size=batch_size)
  theta = parameters()
  odds = theta[:, :3] @ x.T + theta[:, 3:]
  expected = -np.sum((special.expit(odds) - y) ** 2, -1)
  np.testing.assert_allclose(utility(tf.constant(theta)), expected)
  np.testing.assert_allclose(utility.estimate(tf.constant(theta)), expected)
  # Batches of all rows have the utility as their mean.
  batches = np.arange(60).reshape(6, 10)
  found = [utility.estimate(tf.constant(theta), b) for b in batches]
  np.testing.assert_allclose(np.mean(found, 0), expected)


@pytest.mark.parametrize('seed', thinned(range(20), 5))
def test_a_row_changes_it_by_one_at_most(seed):
  x, y = rows(seed=seed)
  model = functional.LogisticRegression(3)
  theta = tf.constant(parameters() * 50)
  whole = expm.l2_utility(model, x, y)(theta)
  removed = expm.l2_utility(model, x[1:], y[1:])(theta)
  x[0], y[0] = -3 * x[0], 1 - y[0]
  replaced = expm.l2_utility(model, x, y)(theta)
  for other in (removed, replaced):
    assert np.abs(whole - other).max() <= 1 + 1e-12


def test_float32_does_not_lose_the_losses_of_many_rows():
  x, y = rows(n=300_000)
  utility = expm.l2_utility(functional.LogisticRegression(3), x, y)
  theta = np.float32(parameters())
  single, double = utility(tf.constant(theta)), utility(np.float64(theta))
  assert single.dtype == tf.float32
  # The spacing of float32 at 2^17 is 2^-6.
  assert np.abs(single - double.numpy()).max() <= 1 / 64


def test_gradients():
  x, y = rows()
  mechanism = expm.ExponentialMechanism(
    expm.l2_utility(functional.LogisticRegression(3), x, y),
    sensitivity=1.0,
    epsilon=2.0,
    l1=0.1,
    l2=0.2,
  )
  theta = tf.constant(parameters())
  with tf.GradientTape() as tape:
    tape.watch(theta)
    found = mechanism.unnormalized_log_prob(theta)
  gradient = tape.gradient(found, theta).numpy()
  for i in range(4):
    step = np.zeros([1, 4])
    step[0, i] = 1e-6
    difference = mechanism.unnormalized_log_prob(
      theta + step
    ) - mechanism.unnormalized_log_prob(theta - step)
    np.testing.assert_allclose(gradient[:, i], difference / 2e-6, rtol=1e-5)
  graph = tf.function(mechanism.unnormalized_log_prob)
  np.testing.assert_allclose(graph(theta), found)


class Raw:
  """A model whose outputs may be anything."""

  num_parameters = 1

  def __init__(self, output=lambda x: x):
    self.output = output

  def __call__(self, parameters, x):
    return tf.ones_like(parameters[:, :1]) * self.output(x[:, 0])


@pytest.mark.parametrize('bad', [1.0001, -0.1, math.nan, math.inf])
def test_outputs_out_of_range(bad):
  x = np.array([[0.2], [bad], [0.4]])
  utility = expm.l2_utility(Raw(), x, [0.0, 1.0, 1.0], batch_size=2)
  mechanism = expm.ExponentialMechanism(utility, sensitivity=1.0, epsilon=1.0)
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match='Nothing was charged') as error:
    mechanism.sample_from([[0.0]], ledger=ledger)
  # The text does not depend on the rows.
  assert str(error.value) == (
    'The outputs of the model are not all in [0, 1], or are not finite, so '
    'that the sensitivity of the utility is not known. Nothing was charged.'
  )
  assert not ledger.entries
  found = tf.function(utility)(tf.zeros([2, 1], tf.float64))
  assert np.isnan(found).all()


@pytest.mark.parametrize('bad', [1.5, -1e-9, math.nan, math.inf])
def test_targets_out_of_range(bad):
  with pytest.raises(ValueError, match='targets y must all be in') as error:
    expm.l2_utility(Raw(), np.zeros([2, 1]), [0.0, bad])
  assert str(bad) not in str(error.value)


def test_bad_shapes():
  with pytest.raises(ValueError, match='has shape'):
    expm.l2_utility(Raw(), np.zeros([3, 1]), [0.0, 1.0])
  with pytest.raises(ValueError, match='has shape'):
    expm.l2_utility(Raw(), np.zeros([0, 1]), [])
  wrong = expm.l2_utility(
    Raw(lambda x: tf.reduce_sum(x, 0, keepdims=True)), np.zeros([2, 1]), [0, 1]
  )
  with pytest.raises(ValueError, match=r'must be \[N, B\]'):
    wrong(tf.zeros([3, 1], tf.float64))
  utility = expm.l2_utility(Raw(), np.zeros([2, 1]), [0, 1])
  with pytest.raises(ValueError, match='that of the utility'):
    expm.ExponentialMechanism(utility, sensitivity=0.5, epsilon=1.0)


def test_models_that_mix_rows_are_refused():
  class Centred:
    num_parameters = 3

    def __call__(self, parameters, x):
      x = x - tf.reduce_mean(x, 0)
      return tf.sigmoid(tf.matmul(parameters, x, transpose_b=True))

  x, y = rows()
  with pytest.raises(ValueError, match='depends on the other rows'):
    expm.l2_utility(Centred(), x, y)


def test_utilities_of_several_candidates_are_refused():
  ledger = accounting.PrivacyLedger()
  mechanism = expm.ExponentialMechanism(
    lambda theta: theta[:, 0] - tf.reduce_max(theta[:, 0]),
    sensitivity=1.0,
    epsilon=EPSILON,
  )
  with pytest.raises(ValueError, match='which others'):
    mechanism.sample_from(CANDIDATES, ledger=ledger)
  with pytest.raises(ValueError, match='not finite'):
    table([1e308, 9e307, 0, 0, 0], sensitivity=1e-3).sample_from(
      CANDIDATES, ledger=ledger
    )
  assert not ledger.entries
