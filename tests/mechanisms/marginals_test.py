"""Joint marginals: their noise, the choice between them, what is refused."""

import dp_accounting
import numpy as np
import pytest
from scipy import special, stats

from tfdpflows import accounting, mechanisms
from tfdpflows.mechanisms import marginals
from tfdpflows.randomness import Randomness

SIZES = [2, 3, 4]
GROUPS = [(0, 1), (1, 2), (0, 1, 2)]


def _codes(n=300):
  rng = np.random.default_rng(0)
  return np.stack([rng.integers(0, size, n) for size in SIZES], 1)


def _measured(codes, noise=2.0, seed=1, groups=GROUPS):
  ledger = accounting.PrivacyLedger()
  found = mechanisms.noisy_marginals(
    codes, SIZES, groups, noise, Randomness(seed=seed), ledger
  )
  return found, ledger


def test_counts_are_those_of_a_crosstab():
  codes = _codes()
  found = marginals.count(codes, SIZES, (2, 0))
  expected = np.histogram2d(codes[:, 2], codes[:, 0], [range(5), range(3)])[0]
  np.testing.assert_array_equal(found, expected)
  weighted = marginals.count(codes, SIZES, (2, 0), np.full(300, 0.5))
  np.testing.assert_array_equal(weighted, expected / 2)


def test_one_row_moves_them_by_one_over_the_noise_multiplier():
  codes = _codes()
  one, ledger = _measured(codes)
  two, _ = _measured(codes[1:])
  moved = [(a.counts - b.counts) / a.std for a, b in zip(one, two)]
  norm = np.sqrt(sum(np.sum(m**2) for m in moved))
  assert norm == pytest.approx(1 / 2.0)
  assert [g.columns for g in one] == GROUPS
  assert ledger.epsilon(1e-5) == pytest.approx(
    accounting.create_accountant('pld')
    .compose(dp_accounting.GaussianDpEvent(2.0))
    .get_epsilon(1e-5)
  )


def test_noise_has_the_stated_scale():
  codes, noise = _codes(0), []
  for seed in range(100):
    found, _ = _measured(codes, 5.0, seed)
    assert found[0].std == pytest.approx(5 * np.sqrt(3))
    noise += [m.counts.ravel() / m.std for m in found]
  noise = np.concatenate(noise)
  statistic = np.sum(noise**2)
  assert 1e-4 < stats.chi2.cdf(statistic, len(noise)) < 1 - 1e-4


def _utilities(codes, expected, noise_std):
  return np.array(
    [
      np.abs(marginals.count(codes, SIZES, g) - e).sum()
      - np.sqrt(2 / np.pi) * noise_std * e.size
      for g, e in zip(GROUPS, expected)
    ]
  )


def test_choice_is_the_exponential_mechanism(monkeypatch):
  expected = [np.full([SIZES[j] for j in g], 12.0) for g in GROUPS]
  seen, choose = [], marginals.drawn_by_weight
  monkeypatch.setattr(
    marginals,
    'drawn_by_weight',
    lambda logs, rng: seen.append(logs) or choose(logs, rng),
  )
  mechanisms.select_marginal(
    _codes(), SIZES, GROUPS, expected, 3.0, 0.03, None,
    accounting.PrivacyLedger(),
  )  # fmt: skip
  (logs,) = seen
  utilities = _utilities(_codes(), expected, 3.0)
  np.testing.assert_allclose(logs, 0.03 / 2 * utilities)
  p = special.softmax(logs)
  rng = np.random.default_rng(0)
  chosen = [choose(logs, rng) for _ in range(20_000)]
  observed = np.bincount(chosen, minlength=3)
  assert stats.chisquare(observed, 20_000 * p).pvalue > 1e-3


def test_log_ratios_of_neighbours_have_the_bounded_range():
  expected = [np.full([SIZES[j] for j in g], 12.0) for g in GROUPS]
  codes, epsilon = _codes(), 0.5
  for row in range(20):
    moved = _utilities(codes, expected, 3.0) - _utilities(
      np.delete(codes, row, 0), expected, 3.0
    )
    assert np.abs(moved).max() <= 1
    assert np.ptp(epsilon / 2 * moved) <= epsilon


@pytest.mark.parametrize('weights', [[1e308, 1e308], [5e-324, 5e-324]])
def test_weights_of_any_size_leave_the_sensitivity(monkeypatch, weights):
  """Products with them would be infinite, or rounded to whole rows."""
  seen = []
  monkeypatch.setattr(
    marginals, 'drawn_by_weight', lambda logs, _: seen.append(logs) or 0
  )
  for codes in (_codes(), _codes()[:-1]):
    for factors in (weights, [1.0, 1.0]):
      mechanisms.select_marginal(
        codes, SIZES, GROUPS[:2], [np.full([2, 3], 0.7), np.full([3, 4], 0.3)],
        2.0, 1.0, Randomness(seed=0), accounting.PrivacyLedger(),
        weights=factors,
      )  # fmt: skip
  np.testing.assert_allclose(seen[::2], seen[1::2])
  assert np.abs(seen[0] - seen[2]).max() <= 0.5 + 1e-9


def test_weights_count_relative_to_the_largest(monkeypatch):
  seen = []
  monkeypatch.setattr(
    marginals, 'drawn_by_weight', lambda logs, _: seen.append(logs) or 0
  )
  for weights in (None, [3, 6]):
    mechanisms.select_marginal(
      _codes(), SIZES, GROUPS[:2], [np.zeros([2, 3]), np.zeros([3, 4])],
      2.0, 1.0, Randomness(seed=0), accounting.PrivacyLedger(),
      weights=weights,
    )  # fmt: skip
  np.testing.assert_allclose(seen[1], seen[0] * [0.5, 1.0])


@pytest.mark.parametrize('dtype', ['uint64', 'int8'])
def test_codes_may_be_of_any_integer_type(dtype):
  codes = np.array([[0, 1, 3], [1, 2, 100]], dtype)
  if dtype == 'uint64':
    codes[1, 2] = 2**64 - 1
  found = marginals.BinnedRows(codes, SIZES)
  assert found.codes.tolist() == [[0, 1, 3], [1, 2, 3]]
  assert found.count((2,)).tolist() == [0, 0, 0, 2]


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize(
  'sizes', [[1, 2**16 - 1], [1, 2**16], [2**8, 2**8], [2**8, 2**8 + 1]]
)
def test_cells_are_numbered_in_a_type_that_holds_them(sizes):
  codes = np.array([[0, 0], [sizes[0] - 1, sizes[1] - 1]])
  found = marginals.BinnedRows(codes, sizes).count((0, 1))
  assert found.sum() == 2
  assert found[0, 0] == found[-1, -1] == 1


def test_no_code_is_refused_for_its_value():
  codes = _codes()
  expected, _ = _measured(codes)
  codes[codes == 0] = -7
  codes[:, 2][codes[:, 2] == 3] = 2**40
  found, _ = _measured(codes)
  for one, two in zip(found, expected):
    np.testing.assert_array_equal(one.counts, two.counts)


def test_a_refused_charge_draws_nothing():
  class Refusing:
    neighboring_relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

    def charge(self, *args, **kwargs):
      raise RuntimeError('over budget')

  source = Randomness()
  source.numpy = lambda *path: pytest.fail('drawn')
  with pytest.raises(RuntimeError, match='over budget'):
    mechanisms.noisy_marginals(_codes(), SIZES, GROUPS, 1.0, source, Refusing())


@pytest.mark.parametrize(
  'codes, groups, noise, message',
  [
    (_codes().astype(float), GROUPS, 1.0, 'integers'),
    (_codes(), [(0, 3)], 1.0, r'The group \(0, 3\)'),
    (_codes(), [(1, 1)], 1.0, 'different columns'),
    (_codes(), GROUPS, 0.0, 'noise_multiplier is 0.0'),
    (_codes(), GROUPS, float('nan'), 'noise_multiplier is nan'),
  ],
)
def test_wrong_arguments_are_refused(codes, groups, noise, message):
  with pytest.raises(ValueError, match=message):
    _measured(codes, noise, groups=groups)


def test_expected_counts_must_fit():
  def select(groups, expected, epsilon=1.0, noise_std=1.0):
    mechanisms.select_marginal(
      _codes(),
      SIZES,
      groups,
      expected,
      noise_std,
      epsilon,
      None,
      accounting.PrivacyLedger(),
    )

  with pytest.raises(ValueError, match='one for each'):
    select([(0, 1)], [])
  with pytest.raises(ValueError, match=r'shape \(3, 2\)'):
    select([(0, 1)], [np.zeros([3, 2])])
  with pytest.raises(ValueError, match='epsilon is -1'):
    select([(0, 1)], [np.zeros([2, 3])], -1)
  # Where 1 is lost beside them.
  with pytest.raises(ValueError, match='noise_std is 1e'):
    select([(0, 1)], [np.zeros([2, 3])], noise_std=1e18)
