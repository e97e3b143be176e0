"""Neighbours with a null row in the place of a row: REPLACE_SPECIAL."""

import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from scipy import stats

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import mechanisms
from tfdpflows.accounting.mechanisms import Gaussian, NullRowGaussian, decompose

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
GAUSSIAN = dp_accounting.GaussianDpEvent(4.0)
LAPLACE = dp_accounting.LaplaceDpEvent(4.0)
DISCRETE = accounting.DiscreteLaplaceDpEvent(0.25, 2)
# These cost the same as where a row is added or removed.
AS_IF_REMOVED = [
  GAUSSIAN,
  LAPLACE,
  DISCRETE,
  accounting.EpsilonDeltaDpEvent(0.5, 1e-7),
  accounting.ZCDpEvent(0.1),
  accounting.ExponentialMechanismDpEvent(0.5),
  accounting.PermuteAndFlipDpEvent(0.5),
  accounting.ReportNoisyMaxDpEvent(0.5),
  accounting.SparseVectorDpEvent(0.1, 0.2),
  accounting.LNMaxDpEvent(0.1),
  accounting.GNMaxDpEvent(10.0),
  accounting.ConfidentGNMaxDpEvent(10.0, 10.0, 10.0),
  accounting.VoteThresholdDpEvent(10.0),
  accounting.SmoothSensitivityDpEvent(10.0, 0.02),
  accounting.RenyiDpEvent(20.0, 0.1),
  accounting.ObjectivePerturbationDpEvent(10.0, 0.1),
  dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN),
  dp_accounting.PoissonSampledDpEvent(0.1, LAPLACE),
  dp_accounting.PoissonSampledDpEvent(0.1, DISCRETE),
  dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, 1.0),
]


@pytest.mark.parametrize('event', AS_IF_REMOVED, ids=repr)
def test_costs_what_a_removed_row_does(event):
  assert decompose(event, SPECIAL) == decompose(event, ADD)
  for name in accounting.accountant_names():
    removed = accounting.create_accountant(name, ADD)
    null = accounting.create_accountant(name, SPECIAL)
    assert removed.supports(event) == null.supports(event)
    if removed.supports(event):
      assert accounting.compute_epsilon(
        event, 1e-5, name, SPECIAL
      ) == accounting.compute_epsilon(event, 1e-5, name, ADD)
    else:
      with pytest.raises(dp_accounting.UnsupportedEventError, match=name):
        null.compose(event)


VOTES = accounting.GNMaxDpEvent(4.0)


@pytest.mark.parametrize('noise', [GAUSSIAN, LAPLACE, DISCRETE, VOTES])
def test_samples_of_fixed_size_are_as_of_a_replaced_row(noise):
  some = dp_accounting.SampledWithoutReplacementDpEvent(8, 2, noise)
  if noise is GAUSSIAN:
    assert decompose(some, SPECIAL) == {NullRowGaussian(4.0, 0.25): 1}
  else:
    assert decompose(some, SPECIAL) == decompose(some, REPLACE)
  # Nearly all rows: as if it were known who is drawn.
  most = dp_accounting.SampledWithoutReplacementDpEvent(100, 99, noise)
  if noise in (LAPLACE, DISCRETE):
    assert decompose(most, SPECIAL) == decompose(noise, SPECIAL)
  for name in ('pld', 'rdp', 'basic', 'advanced'):
    null, replaced = (
      accounting.compute_epsilon(
        dp_accounting.SelfComposedDpEvent(some, 50), 1e-5, name, relation
      )
      for relation in (SPECIAL, REPLACE)
    )
    assert null <= replaced
  # Of all rows, nothing else takes the place of the row.
  whole = dp_accounting.SampledWithoutReplacementDpEvent(8, 8, noise)
  assert decompose(whole, SPECIAL) == decompose(noise, ADD)
  unamplified = mechanisms.without_amplification(some)
  assert decompose(unamplified, SPECIAL) == decompose(noise, ADD)


@pytest.mark.parametrize(
  ('event', 'words'),
  [
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1, accounting.EpsilonDeltaDpEvent(0.1)
      ),
      'REPLACE_SPECIAL',
    ),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1, accounting.ExponentialMechanismDpEvent(0.1)
      ),
      'REPLACE_SPECIAL',
    ),
    (
      dp_accounting.SampledWithoutReplacementDpEvent(
        10, 5, accounting.ExponentialMechanismDpEvent(0.1)
      ),
      'REPLACE_SPECIAL',
    ),
    (accounting.ParallelDpEvent([GAUSSIAN, LAPLACE]), 'REPLACE_SPECIAL'),
  ],
)
def test_what_is_not_proven_is_refused_by_name(event, words):
  for name in accounting.accountant_names():
    with pytest.raises(dp_accounting.UnsupportedEventError, match=words):
      accounting.compute_epsilon(event, 1e-5, name, SPECIAL)


def steps(count, q, event):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, event), count
  )


def mixture(samples):
  """Means of the noise, with their weights."""
  found = {}
  for rows, weight in samples:
    found[sum(rows)] = found.get(sum(rows), 0) + weight
  return found


def poisson(rows, q):
  return mixture(
    (sample, q**size * (1 - q) ** (len(rows) - size))
    for size in range(len(rows) + 1)
    for sample in itertools.combinations(rows, size)
  )


def fixed(rows, m):
  samples = list(itertools.combinations(rows, m))
  return mixture((sample, 1 / len(samples)) for sample in samples)


def capped(rows, q, cap):
  """A Poisson sample cut down to `cap` rows at random, null rows counting."""
  samples = []
  for size in range(len(rows) + 1):
    for sample in itertools.combinations(rows, size):
      weight = q**size * (1 - q) ** (len(rows) - size)
      kept = list(itertools.combinations(sample, min(size, cap)))
      samples += [(cut, weight / len(kept)) for cut in kept]
  return mixture(samples)


def hockey_stick(epsilon, first, second, noise, laplace):
  x = np.linspace(-30, 30, 60_001)
  density = stats.laplace.pdf if laplace else stats.norm.pdf
  p, q = (
    sum(w * density(x, mean, noise) for mean, w in law.items())
    for law in (first, second)
  )
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * (x[1] - x[0]))


@pytest.mark.parametrize('laplace', [False, True])
@pytest.mark.parametrize('seed', thinned(range(4), 1))
def test_sampling_is_covered(seed, laplace):
  rng = np.random.default_rng(seed)
  noise = float(rng.uniform(0.5, 2))
  kind = (
    dp_accounting.LaplaceDpEvent if laplace else dp_accounting.GaussianDpEvent
  )
  n = int(rng.integers(3, 6))
  m = int(rng.integers(1, n + 1))
  q = float(rng.uniform(0.1, 0.9))
  # Other rows against the row, with it, and null ones.
  for rest in ([-1.0] * (n - 1), rng.choice([-1.0, 0.0, 1.0], n - 1).tolist()):
    row, null = [*rest, 1.0], [*rest, 0.0]
    cases = [
      (
        dp_accounting.PoissonSampledDpEvent(q, kind(noise)),
        (poisson(row, q), poisson(null, q)),
      ),
      (
        dp_accounting.SampledWithoutReplacementDpEvent(n, m, kind(noise)),
        (fixed(row, m), fixed(null, m)),
      ),
    ]
    if not laplace:
      cap = int(rng.integers(1, n + 1))
      cases.append(
        (
          accounting.TruncatedSubsampledGaussianDpEvent(n, q, cap, noise),
          (capped(row, q, cap), capped(null, q, cap)),
        )
      )
    for sampled, pair in cases:
      made = accounting.create_accountant('pld', SPECIAL).compose(sampled)
      # The full tests, of other seeds, look at more.
      for epsilon in (0.0, 0.7) if seed == 0 else (0.0, 0.2, 0.7, 1.5):
        claimed = made.get_delta(epsilon)
        for one, two in (pair, pair[::-1]):
          true = hockey_stick(epsilon, one, two, noise, laplace)
          assert true <= claimed + 2e-5


def test_fixed_size_with_the_sensitivity_of_a_sum_would_be_too_little():
  # The only other row is -1, the row is 1; one of the two is drawn.
  noise, epsilon = 0.5, 2.0
  pair = fixed((-1.0, 1.0), 1), fixed((-1.0, 0.0), 1)
  true = hockey_stick(epsilon, *pair, noise, False)
  claimed = accounting.create_accountant('pld', SPECIAL).compose(
    dp_accounting.SampledWithoutReplacementDpEvent(
      2, 1, dp_accounting.GaussianDpEvent(noise)
    )
  )
  assert true == pytest.approx(claimed.get_delta(epsilon), rel=1e-5)
  small = accounting.create_accountant('pld', ADD).compose(
    dp_accounting.PoissonSampledDpEvent(
      0.5, dp_accounting.GaussianDpEvent(noise)
    )
  )
  assert true > small.get_delta(epsilon) * 1.05


@pytest.mark.parametrize('q', thinned([0.01, 0.99, 1e-6, 0.5], 2))
@pytest.mark.parametrize('noise', thinned([5.0, 0.3, 1.0], 1))
def test_pair_of_a_null_row(q, noise):
  # One step of it is exact, from above.
  number = 10**6
  made = accounting.create_accountant('pld', SPECIAL).compose(
    dp_accounting.SampledWithoutReplacementDpEvent(
      number, round(q * number), dp_accounting.GaussianDpEvent(noise)
    )
  )

  def masses(x):
    other, null, row = (stats.norm.sf(x, mean, noise) for mean in (-1, 0, 1))
    return (1 - q) * other + q * row, (1 - q) * other + q * null

  def ratio(x):
    other, null, row = (
      stats.norm.logpdf(x, mean, noise) for mean in (-1, 0, 1)
    )
    low, high = math.log1p(-q) + other, math.log(q)
    return np.logaddexp(low, high + row) - np.logaddexp(low, high + null)

  for x in (0.6, 1.0, 1.5, 2.0):
    epsilon = float(ratio(x))
    first, second = masses(x)
    true = first - math.exp(epsilon) * second
    claimed = made.get_delta(epsilon)
    assert true * (1 - 1e-9) <= claimed
    if true > 1e-9 and q > 1e-3:
      assert claimed <= true * 1.001


@pytest.mark.parametrize('seed', thinned(range(4), 1))
def test_vectors_on_a_sample_of_fixed_size(seed):
  """Rows in the plane, and one or two steps of the same table."""
  rng = np.random.default_rng(seed)
  noise = float(rng.uniform(0.6, 1.5))
  n = int(rng.integers(2, 4))
  m = int(rng.integers(1, n))
  angles = rng.uniform(0, 2 * math.pi, n)
  if seed % 2:
    angles = rng.choice([0.0, 2.5, math.pi], n)
  table = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  null = table.copy()
  null[0] = 0
  axis = np.linspace(-8, 8, 321)
  plane = np.stack(np.meshgrid(axis, axis, indexing='ij'), axis=-1)
  area = (axis[1] - axis[0]) ** 2

  def density(rows):
    means = [sum(sample) for sample in itertools.combinations(rows, m)]
    squares = [np.sum((plane - mean) ** 2, axis=-1) for mean in means]
    values = sum(np.exp(-square / 2 / noise**2) for square in squares)
    return np.ravel(values) / len(means) / (2 * math.pi * noise**2) * area

  event = dp_accounting.SampledWithoutReplacementDpEvent(
    n, m, dp_accounting.GaussianDpEvent(noise)
  )
  pair = density(table), density(null)
  found = []
  for epsilon in (0.0, 0.8) if seed == 0 else (0.0, 0.3, 0.8, 1.6):
    for p, q in (pair, pair[::-1]):
      once = float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)))
      # Two steps, by the law of the loss of one, in narrow bins.
      loss = np.log(p + 1e-300) - np.log(q + 1e-300)
      bins = np.clip(np.floor(loss / 0.01), -3000, 3000).astype(int) + 3000
      law = np.bincount(bins, p, 6001)
      both = np.convolve(law, law)
      low = 0.01 * (np.arange(len(both)) - 6000)
      twice = float(np.sum(both * np.maximum(-np.expm1(epsilon - low), 0)))
      found.append((epsilon, once, twice))
  for name in ('pld', 'rdp', 'basic', 'advanced'):
    one = accounting.create_accountant(name, SPECIAL).compose(event)
    two = accounting.create_accountant(name, SPECIAL).compose(event, 2)
    for epsilon, once, twice in found:
      assert once <= one.get_delta(epsilon) + 1e-4
      assert twice <= two.get_delta(epsilon) + 1e-4


@pytest.mark.parametrize('order', [1.1, 2.0, 6.0])
@pytest.mark.parametrize(
  ('q', 'noise'),
  [(0.01, 1.0), (1e-5, 1.5), (0.5, 0.6), (0.99, 3.0), (0.3, 0.5), (1e-3, 50.0)],
)
def test_renyi_divergences_of_a_null_row(q, noise, order):
  """By the trapezoid rule in extended precision."""
  a, x = np.longdouble(order), np.longdouble(0.5)
  x = np.linspace(x, x + a + 14 * noise, 20_001)

  def density(mean):
    scale = noise * np.sqrt(2 * np.longdouble(np.pi))
    return np.exp(-((x - mean) ** 2) / 2 / noise**2) / scale

  other, null, row = map(density, (-1, 0, 1))
  pairs = [
    ((1 - q) * other + q * row, (1 - q) * other + q * null),
    (null, (1 - q) * null + q * row),
  ]
  true = -math.inf
  for b in (a, 1 - a):
    excess = np.longdouble(0)
    for top, below in pairs:
      loss = np.log(top) - np.log(below)
      values = below * (np.expm1(b * loss) - b * np.expm1(loss))
      excess += (np.sum(values) - (values[0] + values[-1]) / 2) * (x[1] - x[0])
    true = max(true, float(np.log1p(excess) / (a - 1)))
    assert math.isfinite(true)
  curve = mechanisms.renyi_curve(NullRowGaussian(noise, q), (order,))
  assert true * (1 - 1e-7) <= curve[0] <= true * 1.01


def test_both_directions_of_a_null_row_in_a_sample():
  event = dp_accounting.SampledWithoutReplacementDpEvent(
    100, 20, dp_accounting.GaussianDpEvent(1.0)
  )
  (mechanism,) = decompose(event, SPECIAL)
  remove, add = mechanisms.loss_distributions(mechanism, 1e-3)
  for one in (remove, add):
    x = 1e-3 * (one.lower + np.arange(len(one.masses)))
    assert np.sum(one.masses) + one.infinity == pytest.approx(1, rel=1e-12)
    # What one has at a loss, the other one has at minus it, times exp(-loss).
    assert np.sum(one.masses * np.exp(-x)) <= 1 + 1e-9
    assert np.sum(one.masses * np.exp(-x)) == pytest.approx(1, rel=1e-9)
  # A row can be told from nothing with more certainty than nothing from it.
  assert remove.lower + len(remove.masses) > add.lower + len(add.masses)


def test_ledger_and_statement(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=5.0, delta=1e-5)
  tree = dp_event.SingleEpochTreeAggregationDpEvent(6.0, [20, 20])
  response = accounting.RandomizedResponseDpEvent(0.8, 3)
  with accounting.PrivacyLedger(
    path, budget=budget, neighboring_relation=SPECIAL
  ) as ledger:
    ledger.charge(tree, label='training')
    ledger.charge(response, label='survey')
    spent = ledger.epsilon()
  text = path.read_text()
  assert '"neighboring_relation":"REPLACE_SPECIAL"' in text.replace(' ', '')
  with accounting.PrivacyLedger.open(path) as ledger:
    assert ledger.neighboring_relation is SPECIAL
    assert ledger.epsilon() == spent
    assert [entry.event for entry in ledger.entries] == [tree, response]
    with pytest.raises(accounting.BudgetExceededError):
      ledger.charge(tree, count=50, label='more')
    with pytest.raises(ValueError, match='REPLACE_SPECIAL.*REPLACE_ONE'):
      accounting.best_epsilon(ledger, 1e-5, REPLACE)
    best = accounting.best_epsilon(ledger, 1e-5)
    assert best.epsilon <= spent
    statement = accounting.privacy_statement(ledger)
  assert statement.neighboring_relation == 'REPLACE_SPECIAL'
  words = ' '.join(statement.to_text().split())
  for part in (
    'replace special (two tables are neighbours if one is the other with one '
    'unit replaced by a null unit',
    'tree aggregation',
    'randomized response of every row over 3 buckets',
    'A null unit adds nothing to a sum',
    'Which steps of a stream a unit takes part in',
  ):
    assert part in words, part
  assert json.loads(json.dumps(statement.to_dict()))
  assert 'null unit' in statement.to_markdown()


def test_other_statements_do_not_speak_of_null_units():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=5.0, delta=1e-5)
  )
  ledger.charge(GAUSSIAN, label='sum')
  text = accounting.privacy_statement(ledger).to_text()
  assert 'null unit' not in text and 'stream' not in text


def test_ledgers_of_different_relations_are_not_merged(tmp_path):
  ledgers = []
  for i, relation in enumerate((ADD, SPECIAL)):
    path = tmp_path / f'{i}.jsonl'
    with accounting.PrivacyLedger(
      path,
      budget=accounting.PrivacyBudget(epsilon=5.0, delta=1e-5),
      neighboring_relation=relation,
    ) as ledger:
      ledger.charge(GAUSSIAN, label='sum')
    ledgers.append(path)
  with pytest.raises(ValueError, match='neighboring_relation'):
    accounting.merge_ledgers(ledgers, tmp_path / 'both.jsonl')


def test_calibration_takes_the_relation():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  found = [
    accounting.calibrate_noise_multiplier(
      dp_accounting.GaussianDpEvent, budget, neighboring_relation=relation
    )
    for relation in (ADD, REPLACE, SPECIAL)
  ]
  assert found[0] == found[2] and found[1] == pytest.approx(2 * found[0], 2e-3)


def test_command_line_names_the_relation(tmp_path):
  from tfdpflows.cli import calibrate

  path = tmp_path / 'ledger.jsonl'
  with accounting.PrivacyLedger(
    path,
    budget=accounting.PrivacyBudget(epsilon=5.0, delta=1e-5),
    neighboring_relation=SPECIAL,
  ) as ledger:
    ledger.charge(GAUSSIAN, label='sum')
  result = {
    'noise_multiplier': 1.0,
    'epsilon': 2.0,
    'delta': 1e-5,
    'accountant': 'pld',
    'guarantee': 'upper_bound',
    'sampling_probability': 0.1,
    'steps': 10,
    'ledger': str(path),
    'epsilon_of_ledger': 1.0,
    'neighboring_relation': 'replace_special',
  }
  assert 'one row replaced by a null row' in calibrate._text(result, 'steps')


def test_mechanisms():
  event = dp_accounting.PoissonSampledDpEvent(0.25, GAUSSIAN)
  assert decompose(event, SPECIAL) == {Gaussian(4.0, 0.25): 1}


@pytest.mark.parametrize(
  ('event', 'pld', 'rdp'),
  # dp_accounting 0.6.0 at delta = 1e-6 under REPLACE_SPECIAL.
  [
    (
      dp_accounting.GaussianDpEvent(2.0),
      2.2540846566590376,
      2.4191024886939205,
    ),
    (
      steps(1000, 0.01, dp_accounting.GaussianDpEvent(1.0)),
      2.1245225256749363,
      2.4366938030221523,
    ),
    (
      steps(50, 0.2, dp_accounting.GaussianDpEvent(3.0)),
      2.3551001208267692,
      2.556573115406535,
    ),
    (
      steps(20, 1.0, dp_accounting.LaplaceDpEvent(10.0)),
      1.7739915553441512,
      1.835073713428911,
    ),
    (
      steps(30, 0.1, dp_accounting.LaplaceDpEvent(2.0)),
      1.1079146251237817,
      None,
    ),
  ],
)
def test_beside_dp_accounting(event, pld, rdp):
  found = accounting.compute_epsilon(event, 1e-6, 'pld', SPECIAL)
  assert 0.98 * pld <= found <= pld * 1.001
  if rdp is not None:
    found = accounting.compute_epsilon(event, 1e-6, 'rdp', SPECIAL)
    assert 0.95 * rdp <= found <= rdp * 1.001


@pytest.mark.parametrize('cap', [90, 110, 150])
def test_a_null_row_takes_a_place_of_a_capped_sample(cap):
  """Only where others do not fill the sample is it as if it were removed."""
  event = accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.1, cap, 2.0)
  (null,) = decompose(event, SPECIAL)
  (replaced,) = decompose(event, REPLACE)
  plain = dp_accounting.PoissonSampledDpEvent(
    0.1, dp_accounting.GaussianDpEvent(2.0)
  )
  (uncapped,) = decompose(plain, REPLACE)
  (removed,) = decompose(plain, SPECIAL)
  assert dict(null.parts).keys() - dict(replaced.parts).keys() == {removed}
  assert dict(replaced.parts).keys() - dict(null.parts).keys() == {uncapped}
  epsilons = [
    accounting.compute_epsilon(event, 1e-5, 'pld', relation)
    for relation in (ADD, SPECIAL, REPLACE)
  ]
  assert epsilons[1] <= epsilons[2]
  assert epsilons[1] >= accounting.compute_epsilon(plain, 1e-5, 'pld', SPECIAL)
