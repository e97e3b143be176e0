"""Adaptive marginals: their budget, raking, and a model that learns them."""

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tests.tabular import small_table
from tfdpflows import accounting, flows, mechanisms
from tfdpflows.mechanisms import marginals
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import adaptive_marginals
from tfdpflows.tabular.models.adaptive_marginals import Target, candidates
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


def test_groups_with_too_many_cells_are_no_candidates():
  assert candidates([70, 70, 2]) == [(0, 2), (1, 2)]
  assert candidates([5]) == candidates([5000, 2]) == []
  assert candidates([2, 2, 2], 0)[-1] == (1, 2, 0)


def test_raking_meets_marginals_that_agree():
  rng = np.random.default_rng(0)
  rows = rng.integers(0, 3, [4000, 3])
  truth = rng.dirichlet(np.ones(27)).reshape(3, 3, 3)
  targets = [
    Target((0, 1), truth.sum(2)),
    Target((1, 2), truth.sum(0)),
    Target((2,), truth.sum((0, 1))),
  ]
  weights = adaptive_marginals.rake(rows, [3] * 3, targets)
  assert weights.mean() == pytest.approx(1)
  for target in targets:
    found = marginals.count(rows, [3] * 3, target.columns, weights) / 4000
    np.testing.assert_allclose(found, target.probabilities, atol=2e-3)


def test_cells_without_rows_stay_empty():
  rows = np.zeros([10, 1], int)
  weights = adaptive_marginals.rake(
    rows, [2], [Target((0,), np.array([0.5, 0.5]))]
  )
  np.testing.assert_allclose(weights, 1)


def test_a_measurement_is_believed_where_rows_are():
  """Closer to the truth than the model, and than the measurement."""
  rng = np.random.default_rng(1)
  model = np.sort(rng.dirichlet(np.full(60, 0.3)))
  errors = []
  for _ in range(30):
    truth = np.maximum(model * (1 + 0.3 * rng.normal(size=60)), 0)
    truth /= truth.sum()
    seen = mechanisms.Marginal(
      (0,), 1000 * truth + 10 * rng.normal(size=60), 10.0
    )
    both = adaptive_marginals.shrunken(seen, model, 1000).probabilities
    assert both.sum() == pytest.approx(1)
    errors.append(
      [np.sum((p - truth) ** 2) for p in (both, model, seen.counts / 1000)]
    )
  both, alone, noisy = np.mean(errors, 0)
  assert both < 0.8 * min(alone, noisy)


def test_without_a_difference_the_model_stays():
  model = np.array([0.5, 0.3, 0.2])
  seen = mechanisms.Marginal((0,), 1000 * model, 10.0)
  np.testing.assert_allclose(
    adaptive_marginals.shrunken(seen, model, 1000).probabilities, model
  )


def _independent():
  """A density of four even columns of four values."""
  columns = [
    EncodedColumn(name, 4.0, 1.0, missing=False, ordered=True)
    for name in 'abcd'
  ]
  even = special.ndtri([0.25, 0.5, 0.75])
  return HistogramDensity(
    columns, [np.arange(5.0)] * 4, [np.full(4, 0.25)] * 4,
    flows.histogram_flow([even] * 4, [8], seed=0),
  )  # fmt: skip


def _refined(density, codes, rounds):
  ledger = accounting.PrivacyLedger()
  targets = adaptive_marginals.refine(
    density, codes.astype(np.float32), rounds, Randomness(seed=0), ledger,
    total=5000, units=None, target=None, resume=False,
  )  # fmt: skip
  return targets, ledger


def test_the_model_learns_what_it_got_wrong(monkeypatch):
  """Independent columns to begin with; one pair is not."""
  monkeypatch.setattr(adaptive_marginals, '_SAMPLE', 8192)
  faster = {'steps': 200, 'batch_size': 512, 'learning_rate': 0.02}
  monkeypatch.setattr(adaptive_marginals, '_DISTILLATION', faster)
  rng = np.random.default_rng(0)
  codes = rng.integers(0, 4, [5000, 4])
  codes[:, 2] = np.where(rng.random(5000) < 0.7, codes[:, 0], codes[:, 2])
  density, rounds = _independent(), adaptive_marginals.plan_rounds(2, 3.0)
  targets, ledger = _refined(density, codes, rounds)
  assert targets[0].columns == (0, 2)
  rows = density.bins(density.sample(20_000, rng))
  found = marginals.count(rows, [4] * 4, (0, 2)) / 20_000
  real = marginals.count(codes, [4] * 4, (0, 2)) / 5000
  assert np.abs(found - real).sum() / 2 < 0.05
  assert ledger.epsilon(1e-5) == pytest.approx(
    _epsilon([r.event for r in rounds])
  )


def test_a_marginal_that_is_measured_again_counts_once(monkeypatch):
  monkeypatch.setattr(adaptive_marginals, '_SAMPLE', 1024)
  monkeypatch.setitem(adaptive_marginals._DISTILLATION, 'steps', 1)
  monkeypatch.setattr(adaptive_marginals, 'candidates', lambda *_: [(0, 1)])
  targets, ledger = _refined(
    _independent(), np.zeros([5000, 4]), adaptive_marginals.plan_rounds(3, 3.0)
  )
  assert [t.columns for t in targets] == [(0, 1)]
  assert len(ledger.entries) == 6


def test_without_pairs_it_says_that_nothing_is_spent(monkeypatch):
  monkeypatch.setattr(adaptive_marginals, '_MOST_CELLS', 8)
  with pytest.warns(UserWarning, match='Lower num_bins'):
    targets, ledger = _refined(
      _independent(), np.zeros([10, 4]), adaptive_marginals.plan_rounds(1, 3.0)
    )
  assert not targets
  assert not ledger.entries


@pytest.fixture(scope='module')
def fast():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(adaptive_marginals, '_SAMPLE', 2048)
    patch.setitem(adaptive_marginals._DISTILLATION, 'steps', 5)
    yield


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
  return synthesizer.fit(people.table, work_dir, resume, progress=False)


@pytest.fixture(scope='module')
def fitted(fast, tmp_path_factory):
  return _fit(tmp_path_factory.mktemp('fitted') / 'work')


def test_a_fit_pays_for_its_marginals(fitted):
  labels = [entry.label for entry in fitted.ledger.entries]
  assert labels[-4:] == [
    'guide 0: choice', 'guide 0: marginal', 'guide 1: choice',
    'guide 1: marginal',
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
    resumed._distribution.bins(
      resumed._distribution.sample(50, np.random.default_rng(0))
    ),
    fitted._distribution.bins(
      fitted._distribution.sample(50, np.random.default_rng(0))
    ),
  )


@pytest.mark.parametrize(
  'wrong, message',
  [
    ({'model': 'spline'}, r"\['adaptive_marginals'\] of model 'spline'"),
    ({'matching': False}, 'and matching'),
    ({'adaptive_share': 0.9}, 'leave a share'),
    ({'adaptive_marginals': 1.5}, 'whole'),
  ],
)
def test_wrong_settings_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    TabularSynthesizer(
      small_table.make().schema, **{'adaptive_marginals': 3, **wrong}
    )
