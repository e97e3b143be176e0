"""Adaptive marginals: their budget, raking, and a model that learns them."""

import functools
import itertools
import math
import shutil
import types

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting, flows, mechanisms, sampling
from tfdpflows.mechanisms import marginals
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import adaptive_marginals
from tfdpflows.tabular.models.adaptive_marginals import Candidates, Measured
from tfdpflows.tabular.models.histogram import HistogramDensity


def _epsilon(events):
  accountant = accounting.create_accountant('pld')
  accountant.compose(dp_accounting.ComposedDpEvent(events))
  return accountant.get_epsilon(1e-5)


def test_rounds_cost_as_much_as_one_gaussian_mechanism():
  rounds = adaptive_marginals.plan_rounds(10, 4.0)
  rho = sum(r.epsilon**2 / 8 + 1 / (2 * r.noise_multiplier**2) for r in rounds)
  assert rho == pytest.approx(1 / 32)
  ratio = rounds[0].noise_multiplier / rounds[-1].noise_multiplier
  assert ratio == pytest.approx(2)
  together = _epsilon([r.event for r in rounds])
  alone = _epsilon([dp_accounting.GaussianDpEvent(4.0)])
  assert together == pytest.approx(alone, rel=0.1)


def _candidates(sizes, measured=(), target=None):
  found = Candidates(sizes, target)
  for group in measured:
    found.add(group)
  return found.some(np.arange(len(found)))


def test_groups_with_too_many_cells_are_no_candidates():
  assert _candidates([70, 70, 2]) == [(0, 2), (1, 2)]
  assert _candidates([5]) == _candidates([5000, 2]) == []


def test_triples_hold_the_target_or_a_pair_that_was_measured():
  pairs = [(0, 1), (0, 2), (1, 2)]
  assert _candidates([2, 2, 2]) == pairs
  assert _candidates([2, 2, 2], target=0) == [*pairs, (0, 1, 2)]
  found = _candidates([2] * 4, [(1, 3), (0, 1, 2)])
  assert found[6:] == [(0, 1, 3), (1, 2, 3)]


@pytest.mark.parametrize('target', [None, 4])
def test_candidates_are_those_that_a_list_of_all_would_have(target):
  """In the same order, so that a fit of a seed selects the same ones."""
  rng = np.random.default_rng(0)
  sizes = rng.integers(2, 40, 12).tolist()
  measured = [(0, 3), (3, 7), (1, 2, 5), (4, 11), (3, 7)]
  triples = {
    group
    for group in itertools.combinations(range(12), 3)
    if target in group
    or any(len(m) == 2 and set(m) <= set(group) for m in measured)
  }
  groups = [*itertools.combinations(range(12), 2), *sorted(triples)]
  wanted = [g for g in groups if math.prod(sizes[j] for j in g) <= 4096]
  assert _candidates(sizes, measured, target) == wanted
  found = Candidates(sizes, target)
  numbers = np.array([0, 5, len(found) - 1])
  every = found.some(np.arange(len(found)))
  assert found.some(numbers) == [every[i] for i in numbers]


def test_a_measurement_is_believed_where_rows_are():
  """Closer to the truth than the model, and than the measurement."""
  rng = np.random.default_rng(1)
  model = np.sort(rng.dirichlet(np.full(60, 0.3)))
  errors = []
  for _ in range(30):
    truth = np.maximum(model * (1 + 0.3 * rng.normal(size=60)), 0)
    truth /= truth.sum()
    seen = Measured(truth + 0.01 * rng.normal(size=60), 0.01)
    both = adaptive_marginals.shrunken(seen, model)
    assert both.sum() == pytest.approx(1)
    assert both.min() > 0
    errors.append(
      [np.sum((p - truth) ** 2) for p in (both, model, seen.probabilities)]
    )
  both, alone, noisy = np.mean(errors, 0)
  assert both < 0.8 * min(alone, noisy)


def test_of_columns_that_determine_each_other_most_cells_are_empty():
  """The mean of noise above zero, in 132 of them, was 7 percent of the rows."""
  rng = np.random.default_rng(2)
  truth = np.diag(rng.dirichlet(np.full(12, 5.0)))
  independent = np.outer(truth.sum(1), truth.sum(0))
  for _ in range(5):
    seen = Measured(truth + 0.004 * rng.normal(size=truth.shape), 0.004)
    found = adaptive_marginals.shrunken(seen, independent)
    assert found.sum() == pytest.approx(1)
    assert found.min() > 0
    assert found[truth == 0].sum() < 0.03
    assert np.abs(found - truth).sum() / 2 < 0.04


@pytest.mark.parametrize(
  ('size', 'std'), thinned([(6, 0.006), (2, 0.02), (8, 0.005)], 2)
)
def test_a_correlation_is_not_lost_in_the_noise_of_cells(size, std):
  """Of one of .46 a fifth to a half was lost; its own noise is .04."""
  rng = np.random.default_rng(0)
  numbers = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 200_000)
  ranks = numbers.argsort(0).argsort(0) * size // len(numbers)
  truth = marginals.count(ranks, [size, size], (0, 1)) / len(ranks)
  even = np.full([size, size], size**-2)
  score = np.arange(size) - (size - 1) / 2
  score /= np.sqrt(np.mean(score**2))
  found = []
  for _ in range(100):
    seen = Measured(truth + std * rng.normal(size=truth.shape), std)
    both = adaptive_marginals.shrunken(seen, even)
    assert both.sum() == pytest.approx(1)
    for axis in (0, 1):
      np.testing.assert_allclose(both.sum(axis), 1 / size, atol=0.05)
    found.append(score @ both @ score)
  assert np.mean(found) == pytest.approx(score @ truth @ score, abs=0.04)


def test_a_correlation_that_noise_hides_is_left_alone():
  """Of a column with one value the ranks hardly vary, and noise is large."""
  rng = np.random.default_rng(1)
  model = np.outer([1 - 1e-6, 1e-6], [0.1, 0.2, 0.3, 0.4])
  for _ in range(20):
    seen = Measured(model + 0.01 * rng.normal(size=model.shape), 0.01)
    found = adaptive_marginals.shrunken(seen, model)
    np.testing.assert_allclose(found[0], model[0], atol=0.05)
    assert found.min() > 0


def test_of_three_columns_correlations_are_those_that_were_measured():
  rng = np.random.default_rng(2)
  scale = np.array([[1, 0.6, 0.3], [0.6, 1, -0.4], [0.3, -0.4, 1]])
  numbers = rng.multivariate_normal([0, 0, 0], scale, 200_000)
  ranks = numbers.argsort(0).argsort(0) * 4 // len(numbers)
  truth = marginals.count(ranks, [4, 4, 4], (0, 1, 2)) / len(ranks)
  score = np.array([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25)
  products = ['abc,a,b->', 'abc,a,c->', 'abc,b,c->']
  found = []
  for _ in range(40):
    seen = Measured(truth + 0.008 * rng.normal(size=truth.shape), 0.008)
    both = adaptive_marginals.shrunken(seen, np.full([4, 4, 4], 1 / 64))
    found.append([np.einsum(p, both, score, score) for p in products])
  wanted = [np.einsum(p, truth, score, score) for p in products]
  np.testing.assert_allclose(np.mean(found, 0), wanted, atol=0.06)


def test_without_a_difference_the_model_stays():
  model = np.array([0.5, 0.3, 0.2])
  seen = Measured(model, 0.01)
  np.testing.assert_allclose(adaptive_marginals.shrunken(seen, model), model)


@pytest.mark.filterwarnings('error')
def test_no_bin_is_left_without_any_probability():
  """Noise that says less than nothing of a bin made the model NaN."""
  seen = Measured(np.array([0.6, 0.5, -0.02]), 0.01)
  found = adaptive_marginals.shrunken(seen, np.array([0.5, 0.49, 0.01]))
  assert found.min() > 0
  assert found.sum() == pytest.approx(1)
  estimate = adaptive_marginals.Estimate(
    [[0.3, 0.69, 0.01], [0.5, 0.5]], 1000, np.random.default_rng(0)
  )
  counts = np.array([[600.0, 0.0], [0.0, 400.0], [-5.0, -5.0]])
  for _ in range(5):
    estimate.add(mechanisms.Marginal((0, 1), counts, 5.0))
  assert min(column.min() for column in estimate.columns) > 0
  np.testing.assert_allclose(
    estimate.model.marginal((0, 1)), counts / 1000, atol=0.1
  )


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('std', [1e-12, 1e-10, 1e-4, 10.0])
def test_noise_may_be_tiny_or_huge(std):
  """A billion standard deviations below zero gave NaN."""
  for seen in ([-0.5, -0.5], [1.5, -0.5], [0.0, 0.0]):
    expected = np.array([0.7, 0.3])
    found = adaptive_marginals.shrunken(Measured(np.array(seen), std), expected)
    assert found.min() > 0
    assert found.sum() == pytest.approx(1)


def test_marginals_agree_about_the_columns_that_they_share():
  """And know more of them than each does, and than the histogram."""
  rng, errors = np.random.default_rng(0), []
  truth = np.array([0.4, 0.3, 0.2, 0.1])
  for _ in range(20):
    histogram = np.abs(truth + 0.05 * rng.normal(size=4))
    estimate = adaptive_marginals.Estimate(
      [histogram / histogram.sum(), [0.5, 0.5], [0.5, 0.5]], 1000, rng
    )
    seen = []
    for j in (1, 2):
      counts = 1000 * np.outer(truth, [0.5, 0.5])
      counts += 40 * rng.normal(size=[4, 2])
      estimate.add(mechanisms.Marginal((0, j), counts, 40.0))
      seen.append(counts.sum(1) / 1000)
    for _ in range(5):
      estimate.model.fit()
    for j in (1, 2):
      np.testing.assert_allclose(
        estimate.model.marginal((0, j)).sum(1), estimate.columns[0], atol=0.02
      )
    found = (estimate.columns[0], histogram, *seen)
    errors.append([np.sum((p - truth) ** 2) for p in found])
  best, *others = np.mean(errors, 0)
  assert best < 0.8 * min(others)
  assert estimate.groups == [(0, 1), (0, 2)]


def test_noise_larger_than_the_table_does_not_spoil_a_column():
  """The sum of a noisy marginal may be 0, and is nothing to divide by."""
  rng, errors = np.random.default_rng(0), []
  truth = np.array([0.4, 0.3, 0.2, 0.1])
  for _ in range(20):
    histogram = np.maximum(truth + 0.1 * rng.normal(size=4), 0.01)
    histogram /= histogram.sum()
    estimate = adaptive_marginals.Estimate([histogram, [0.25] * 4], 500, rng)
    counts = 500 * np.outer(truth, [0.25] * 4) + 150 * rng.normal(size=[4, 4])
    estimate.add(mechanisms.Marginal((0, 1), counts, 150.0))
    found = (estimate.columns[0], histogram)
    errors.append([np.abs(p - truth).sum() for p in found])
  errors = np.mean(errors, 0)
  assert errors[0] < 1.2 * errors[1]


def test_a_marginal_that_is_measured_again_counts_once_and_for_more():
  def after(stds):
    estimate = adaptive_marginals.Estimate(
      [[0.5, 0.5]] * 2, 1000, np.random.default_rng(0)
    )
    for std in stds:
      counts = np.array([[400.0, 100.0], [100.0, 400.0]])
      estimate.add(mechanisms.Marginal((0, 1), counts, std))
    return estimate

  assert after([50.0, 50.0]).groups == [(0, 1)]
  measured = after([30.0, 40.0])._measured[0, 1]
  assert measured.std == pytest.approx(24 / 1000)


def _independent():
  """A density of four even columns of four values."""
  columns = [
    EncodedColumn(name, 4.0, 1.0, missing=False, ordered=True)
    for name in 'abcd'
  ]
  even = special.ndtri([0.25, 0.5, 0.75])
  marginals = [{'edges': np.arange(5.0), 'probabilities': np.full(4, 0.25)}] * 4
  latent = flows.histogram_flow([even] * 4, [8], seed=0)
  cuts = [[1.0, 2.0, 3.0]] * 4
  return HistogramDensity(columns, marginals, latent, None, cuts, [1.0] * 4)


def _started(codes, rounds, target=None, learned=True):
  density, ledger = _independent(), accounting.PrivacyLedger()
  flow, rng = density.latent.bijector, np.random.default_rng(1)
  estimate = adaptive_marginals.Estimate(flow.masses, 5000, rng)
  work = types.SimpleNamespace(
    randomness=Randomness(seed=0), ledger=ledger, resume=False, progress=False
  )
  adaptive_marginals.measure(
    codes, flow.num_bins, estimate, rounds, work, target=target
  )
  if learned:
    adaptive_marginals.learn_rows(flow, estimate.model, 0)
  return density, estimate, ledger


def test_a_flow_learns_the_pair_that_is_not_independent():
  rng = np.random.default_rng(0)
  codes = rng.integers(0, 4, [5000, 4])
  codes[:, 2] = np.where(rng.random(5000) < 0.7, codes[:, 0], codes[:, 2])
  rounds = adaptive_marginals.plan_rounds(2, 3.0)
  density, estimate, ledger = _started(codes, rounds)
  assert estimate.groups[0] == (0, 2)
  rows = density.bins(density.sample(20_000, rng))
  found = marginals.count(rows, [4] * 4, (0, 2)) / 20_000
  real = marginals.count(codes, [4] * 4, (0, 2)) / 5000
  assert np.abs(found - real).sum() / 2 < 0.03
  assert ledger.epsilon(1e-5) == pytest.approx(
    _epsilon([r.event for r in rounds])
  )


def test_all_triples_are_candidates_where_the_worst_would_stand_out():
  found = Candidates([2] * 4)
  found.widen(0.01, 1000)
  assert len(found) == 6
  # Half of .1 * 1000 times epsilon, for the logarithm of 10.
  found.widen(0.04605, 1000)
  assert len(found) == 6
  found.widen(0.04606, 1000)
  assert found.some(np.arange(6, 10)) == [*itertools.combinations(range(4), 3)]
  few, wide = Candidates([2, 2]), Candidates([2] * 30)
  few.widen(1.0, 1e6)
  wide.widen(1.0, 1e6)
  assert (len(few), len(wide)) == (1, 435)


@pytest.mark.parametrize('target', thinned([None, 3], 1))
def test_a_flow_learns_what_no_pair_shows(target):
  """One column is the parity of two."""
  rng = np.random.default_rng(0)
  codes = rng.integers(0, 4, [5000, 4])
  codes[:, 3] = 2 * ((codes[:, 0] // 2) ^ (codes[:, 1] // 2))
  codes[:, 3] += rng.integers(0, 2, 5000)
  rounds = adaptive_marginals.plan_rounds(1, 3.0)
  density, estimate, _ = _started(codes, rounds, target=target)
  assert estimate.groups == [(0, 1, 3)]
  rows = density.bins(density.sample(20_000, rng)) // 2
  assert np.mean(rows[:, 3] == rows[:, 0] ^ rows[:, 1]) > 0.9


def test_a_round_of_a_wide_table_selects_from_some_groups(monkeypatch):
  seen, select = [], mechanisms.select_marginal

  def spy(rows, sizes, groups, *args, **kwargs):
    seen.append(list(groups))
    return select(rows, sizes, groups, *args, **kwargs)

  monkeypatch.setattr(mechanisms, 'select_marginal', spy)
  monkeypatch.setattr(adaptive_marginals, 'MOST_CANDIDATES', 3)
  rounds = adaptive_marginals.plan_rounds(6, 3.0)
  codes = np.random.default_rng(0).integers(0, 4, [200, 4])
  _, estimate, _ = _started(codes, rounds, learned=False)
  assert all(len(set(groups)) == 3 for groups in seen)
  assert all(groups == sorted(groups, key=len) for groups in seen)
  assert len({tuple(groups) for groups in seen}) > 1
  first = list(seen)
  seen.clear()
  # Not by the rows: the same for others.
  _started(codes[::-1] // 2, rounds[:1], learned=False)
  assert seen == first[:1]
  assert set(estimate.groups) <= {g for groups in first for g in groups}


def test_rounds_without_a_pair_to_measure_are_charged_all_the_same():
  rounds = adaptive_marginals.plan_rounds(3, 3.0)
  codes, spent = np.zeros([9, 2], int), []
  units = sampling.Units(range(9), max_rows_per_unit=1, name='person')
  # How many bins there are was found with noise, and epsilon must not tell.
  for sizes in ([8, 8], [65, 64]):
    estimate = adaptive_marginals.Estimate(
      [np.full(size, 1 / size) for size in sizes], 9, np.random.default_rng(0)
    )
    work = types.SimpleNamespace(
      randomness=Randomness(seed=0),
      ledger=accounting.PrivacyLedger(privacy_unit='person'),
      resume=False,
      progress=False,
    )
    measure = functools.partial(
      adaptive_marginals.measure, codes, sizes, estimate, rounds, work
    )
    if sizes[0] > 8:
      with pytest.warns(UserWarning, match='Lower num_bins'):
        measure(units=units)
      assert not estimate.groups
    else:
      measure(units=units)
    spent.append(work.ledger.epsilon(1e-5))
  assert spent[0] == pytest.approx(spent[1])


def _fit(work_dir, resume=False):
  people = small_table.make()
  synthesizer = TabularSynthesizer(
    people.schema,
    **people.budget,
    target='member',
    adaptive_marginals=2,
    seed=0,
    **people.tiny,
  )
  # They are compared with each other.
  with small_table.short():
    return synthesizer.fit(people.table, work_dir, resume, progress=False)


@pytest.fixture(scope='module')
def work(tmp_path_factory):
  return tmp_path_factory.mktemp('fitted') / 'work'


@pytest.fixture(scope='module')
def fitted(work):
  return _fit(work)


def test_a_fit_pays_for_its_marginals(fitted):
  labels = [entry.label for entry in fitted.ledger.entries]
  assert labels[:5] == [
    'marginals', 'selection 1', 'marginal 1', 'selection 2', 'marginal 2',
  ]  # fmt: skip
  assert 0.95 * 8 < fitted.ledger.epsilon() <= 8


def test_a_fit_that_was_killed_between_marginals_goes_on(fitted, tmp_path):
  number, original = 0, adaptive_marginals.shrunken

  def dies(*args):
    nonlocal number
    number += 1
    if number == 2:
      raise KeyboardInterrupt
    return original(*args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(adaptive_marginals, 'shrunken', dies)
    with pytest.raises(KeyboardInterrupt):
      _fit(tmp_path / 'work')
  resumed = _fit(tmp_path / 'work', resume=True)
  assert resumed.ledger.epsilon() == fitted.ledger.epsilon()
  assert len(resumed.ledger.entries) == len(fitted.ledger.entries)
  np.testing.assert_array_equal(
    resumed._fitted.distribution.bins(
      resumed._fitted.distribution.sample(50, np.random.default_rng(0))
    ),
    fitted._fitted.distribution.bins(
      fitted._fitted.distribution.sample(50, np.random.default_rng(0))
    ),
  )


def test_steps_are_not_repeated_from_other_weights(fitted, work, tmp_path):
  """Without a checkpoint rows are learned anew, and elsewhere otherwise."""
  work = shutil.copytree(work, tmp_path / 'work')
  shutil.rmtree(work / 'checkpoints')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(adaptive_marginals, '_LEARNING_RATE', 4.9e-3)
    with pytest.raises(ValueError, match='begin at other weights'):
      _fit(work, resume=True)
  assert not list(work.glob('checkpoints/*.index'))
  resumed = _fit(work, resume=True)
  assert 0.95 * 8 < resumed.ledger.epsilon() <= 8


@pytest.mark.parametrize(
  'wrong, message',
  [
    ({'model': 'spline'}, r"\['adaptive_marginals'\] of model 'spline'"),
    ({'adaptive_share': 0.9}, 'leave a share'),
    ({'adaptive_marginals': 1.5}, 'whole'),
  ],
)
def test_wrong_settings_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    TabularSynthesizer(
      small_table.make().schema, **{'adaptive_marginals': 3, **wrong}
    )
