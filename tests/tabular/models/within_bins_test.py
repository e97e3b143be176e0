"""Values within bins: parts, their weights, and a model that has them."""

import dataclasses
import itertools
import os
import types

import dp_accounting
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from scipy import stats

from tests.tabular import small_table
from tfdpflows import accounting, audit, mechanisms
from tfdpflows.audit import replaying
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import (
  Field,
  Inequality,
  TableSchema,
  TabularSynthesizer,
)
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import adaptive_marginals, within_bins
from tfdpflows.tabular.models.within_bins import PARTS, Edge, WithinBins
from tfdpflows.tabular.ordered_codes import Bins

_NUMBER = EncodedColumn(
  'x', 8.0, 0.0, missing=False, ordered=True, resolution=1e-6
)
_INTEGER = EncodedColumn('x', 8.0, 1.0, missing=False, ordered=True)


def _bins(cuts=(2.0, 5.0), edges=None, probabilities=None):
  edges = np.arange(9.0) if edges is None else np.asarray(edges, float)
  if probabilities is None:
    probabilities = np.arange(1.0, len(edges)) / np.arange(len(edges)).sum()
  cuts = np.asarray(cuts, float)
  return Bins(cuts, cuts, edges, np.asarray(probabilities))


def test_parts_of_a_bin_are_equally_probable():
  parts = within_bins.divide(_bins(), _NUMBER)
  np.testing.assert_allclose(parts.shares, np.full([3, PARTS], 1 / PARTS))
  assert parts.divided.all()
  # Every one of these bins begins with a part.
  assert parts.cuts[PARTS - 1 :: PARTS].tolist() == [2.0, 5.0]


def test_parts_of_integers_are_whole_ones():
  parts = within_bins.divide(_bins(), _INTEGER)
  assert np.all(parts.cuts == np.round(parts.cuts))
  histogram = np.arange(1.0, 9.0)
  for k, (low, high) in enumerate([(0, 2), (2, 5), (5, 8)]):
    # Each integer is in one part, which has as much as its bin has of it.
    found = parts.find(np.arange(low, high)).numpy()
    assert set(found // PARTS) == {k}
    shares = np.zeros(PARTS)
    np.add.at(shares, found % PARTS, histogram[low:high])
    np.testing.assert_allclose(parts.shares[k], shares / shares.sum())


def test_spikes_and_missing_values_are_not_divided():
  missing = dataclasses.replace(_NUMBER, missing=True)
  value, top = missing.value_size, missing.size
  edges = [0, 3, np.nextafter(np.float32(3), np.float32(4)), value, top]
  histogram = _bins([3.0, edges[2]], edges, [0.2, 0.4, 0.1, 0.3])
  parts = within_bins.divide(histogram, missing)
  counts = (parts.shares > 0).sum(1)
  # The last bin has values and, in one of its parts, what is missing.
  assert counts.tolist() == [PARTS, 1, 2]
  assert parts.divided.tolist() == [True, False, True]
  # All codes that stand for a missing value are in one part.
  codes = np.linspace(value + (top - value) / 3, top, 9)[:-1]
  assert len(set(parts.find(codes).numpy())) == 1
  assert parts.find([np.float32(3.0)]).numpy() // PARTS == 1
  # Nor at zero, where float32 has many numbers, or what rounding makes of one.
  edges = [0, 1e-6, 8]
  zero = within_bins.divide(_bins([1e-6], edges, [0.5, 0.5]), _NUMBER)
  assert zero.divided.tolist() == [False, True]
  beside = parts.find(np.float32([2.99, 3.01]), np.int32([1, 1])).numpy()
  assert (np.diff(parts.ends)[beside] > 0).all()
  assert (beside // PARTS == 1).all()


@pytest.mark.parametrize('column', [_NUMBER, _INTEGER])
def test_draws_stay_in_their_parts(column):
  parts = within_bins.divide(_bins(), column)
  number = np.flatnonzero(np.diff(parts.ends))
  number = np.repeat(number, 200)
  uniform = np.tile(np.linspace(0, 1 - 1e-16, 200), len(number) // 200)
  drawn = parts.draw(tf.constant(number), tf.constant(uniform))
  assert drawn.dtype == tf.float32
  np.testing.assert_array_equal(parts.find(drawn), number)


def _edge(rng, parts, i, j, scale=2.0):
  sizes = (len(parts[i].shares), len(parts[j].shares))
  return Edge((i, j), scale * rng.normal(size=[*sizes, 5]).astype('float32'))


def _forest(pairs, columns=(_NUMBER, _INTEGER, _NUMBER, _NUMBER, _INTEGER)):
  rng = np.random.default_rng(0)
  cuts = [(2.0, 5.0), (3.0,), (4.0, 6.0), (1.0,), (4.0,)]
  parts = {
    j: within_bins.divide(_bins(cut), column)
    for j, (cut, column) in enumerate(zip(cuts, columns))
  }
  return parts, WithinBins(parts, [_edge(rng, parts, *p) for p in pairs])


_FORESTS = [
  [(0, 1)],
  [(0, 1), (1, 2)],
  [(1, 0), (1, 2), (3, 1)],
  [(0, 1), (3, 4)],
  [(2, 3), (0, 1), (1, 2), (4, 3)],
]


@pytest.mark.parametrize('pairs', _FORESTS)
def test_densities_are_those_of_the_product_and_sum_to_one(pairs):
  """In each combination of bins, by all combinations of parts."""
  parts, within = _forest(pairs)
  used = sorted({j for pair in pairs for j in pair})
  places = {j: np.flatnonzero(np.diff(parts[j].ends)) for j in used}
  # A code of every part that has values.
  codes = {
    j: parts[j].draw(places[j], np.full(len(places[j]), 0.5)).numpy()
    for j in used
  }
  combined = [*itertools.product(*(range(len(places[j])) for j in used))]
  x = np.zeros([len(combined), 5], np.float32)
  number, share = {}, np.ones(len(combined))
  for position, j in enumerate(used):
    chosen = np.array([c[position] for c in combined])
    x[:, j], number[j] = codes[j][chosen], places[j][chosen]
    share *= parts[j].shares.ravel()[number[j]]
  factor = np.ones(len(combined))
  functions = within_bins.statistics()
  for edge in within.edges:
    one, other = (number[j] for j in edge.columns)
    shares = [parts[j].shares for j in edge.columns]
    cells = np.exp(np.einsum('pqk,abk->abpq', functions, edge.weights))
    base = np.einsum('ap,bq->abpq', *shares)
    cells /= (cells * base).sum((2, 3), keepdims=True)
    factor *= cells[one // PARTS, other // PARTS, one % PARTS, other % PARTS]
  density = np.exp(within.log_prob(tf.constant(x)).numpy())
  groups = np.stack([number[j] // PARTS for j in used], 1)
  for group in np.unique(groups, axis=0):
    same = (groups == group).all(1)
    assert (density * share)[same].sum() == pytest.approx(1)
    wanted = factor[same] / (factor * share)[same].sum()
    np.testing.assert_allclose(density[same], wanted, rtol=1e-5)


@pytest.mark.parametrize('pairs', _FORESTS[1:])
def test_draws_have_these_densities_and_keep_their_bins(pairs):
  parts, within = _forest(pairs)
  rng = np.random.default_rng(0)
  x = np.tile(rng.uniform(0, 8, [1, 5]).astype(np.float32), (40_000, 1))
  used = sorted({j for pair in pairs for j in pair})
  bins = {j: parts[j].find(x[:, j]) // PARTS for j in used}
  moved = within.moved(tf.constant(x), bins, tf.constant([1, 2])).numpy()
  # Fewer rows are the first of them.
  few = {j: some[:100] for j, some in bins.items()}
  first = within.moved(tf.constant(x[:100]), few, tf.constant([1, 2]))
  np.testing.assert_array_equal(first, moved[:100])
  others = [j for j in range(5) if j not in used]
  np.testing.assert_array_equal(moved[:, others], x[:, others])
  numbers = np.stack([parts[j].find(moved[:, j]) for j in used], 1)
  before = np.stack([parts[j].find(x[:, j]) for j in used], 1)
  np.testing.assert_array_equal(numbers // PARTS, before // PARTS)
  found, first, counts = np.unique(
    numbers, axis=0, return_index=True, return_counts=True
  )
  share = np.prod(
    [parts[j].shares.ravel()[found[:, i]] for i, j in enumerate(used)], 0
  )
  density = np.exp(within.log_prob(tf.constant(moved[first])).numpy())
  wanted = density * share * len(x)
  # Together they are nearly all that there is.
  assert wanted.sum() > 0.995 * len(x)
  often = wanted > 10
  chi_squared = ((counts - wanted)[often] ** 2 / wanted[often]).sum()
  assert stats.chi2.sf(chi_squared, often.sum() - 1) > 1e-3


def test_weights_are_found_again_and_less_of_them_in_noise():
  rng = np.random.default_rng(0)
  parts, within = _forest([(0, 2)])
  weights = within.edges[0].weights
  shares = [parts[0].shares, parts[2].shares]
  base = np.einsum('ap,bq->abpq', *shares)
  functions = within_bins.statistics()
  p = base * np.exp(np.einsum('pqk,abk->abpq', functions, weights))
  p /= p.sum((2, 3), keepdims=True)
  rows = rng.uniform(2e4, 4e4, [3, 3])
  counts = rng.poisson(rows[:, :, None, None] * p).transpose(0, 2, 1, 3)
  counts = counts.reshape(3 * PARTS, 3 * PARTS)
  found = within_bins.fit_weights(counts, rows, shares, 1.0)
  q = base * np.exp(np.einsum('pqk,abk->abpq', functions, found))
  q /= q.sum((2, 3), keepdims=True)
  assert np.abs(p - q).sum((2, 3)).max() < 0.03
  noisy = counts + 2e4 * rng.normal(size=counts.shape)
  found = within_bins.fit_weights(noisy, rows, shares, 2e4)
  assert np.abs(found).max() < 1
  nothing = within_bins.fit_weights(0 * counts, 0 * rows, shares, 1.0)
  assert np.abs(nothing).max() < 1


@pytest.mark.parametrize('known', [1.0, 0.6])
def test_near_functions_of_few_values_are_found(known):
  """Also where too few rows were expected: it went to the corners."""
  shares = [
    np.array([[0.33, 0, 0.33, 0.34], [0.34, 0, 0.33, 0.33]]),
    np.array([[0.33, 0, 0.33, 0.34], [0.33, 0, 0.33, 0.34]]),
  ]
  rows = np.zeros([2, 2, PARTS, PARTS])
  rows[0, 0] = np.diag([3500, 0, 3100, 3500])
  rows[0, 0, [0, 2, 3], [2, 3, 2]] = 100, 50, 320
  rows[1, 1] = np.diag([3800, 0, 2700, 2800]) + 100 * np.outer(
    [1, 0, 1, 1], [1, 0, 1, 1]
  )
  noise = np.random.default_rng(0).normal(0, 65, [8, 8])
  counts = rows.transpose(0, 2, 1, 3).reshape(8, 8) + noise
  expected = known * rows.sum((2, 3))
  weights = within_bins.fit_weights(counts, expected, shares, 65.0)
  base = np.einsum('ap,bq->abpq', *shares)
  p = base * np.exp(np.einsum('pqk,abk', within_bins.statistics(), weights))
  p /= p.sum((2, 3), keepdims=True)
  ratio = np.where(rows > 0, p, 1) / np.where(rows > 0, base, 1)
  gained = np.sum(rows * np.log(ratio), (2, 3)) / np.maximum(expected, 1)
  # Independent values gain nothing.
  assert gained[0, 0] > (0.7 if known == 1 else 0.1)
  assert gained[1, 1] > (0.6 if known == 1 else 0.1)


def test_measured_parts_say_how_many_rows_are_in_bins():
  counts = np.arange(2 * PARTS * 3 * PARTS, dtype=float)
  counts = counts.reshape(2 * PARTS, 3 * PARTS)
  finer = within_bins.FinerRows({}, (2 * PARTS, 5, 3 * PARTS), lambda: None)
  found = finer.of_bins(mechanisms.Marginal((0, 2), counts, 2.0))
  assert found.columns == (0, 2) and found.std == 2.0 * PARTS
  assert found.counts.shape == (2, 3)
  assert found.counts[1, 2] == counts[PARTS:, 2 * PARTS :].sum()


def test_pairs_that_are_nearly_functions():
  even = np.full([8, 8], 1 / 64)
  near, equal = 0.9 * np.eye(8) / 8 + 0.1 * even, np.eye(8) / 8
  histogram = _bins(np.arange(1.0, 8))
  parts = {j: within_bins.divide(histogram, _NUMBER) for j in range(3)}
  found = within_bins.dependent_pairs(
    [((0, 1), even), ((0, 2), near), ((1, 2), equal)], parts
  )
  assert found == [(1, 2), (0, 2)]
  # Only what is in bins that have parts counts.
  half = np.kron(np.diag([0.5, 0.5]), np.ones([4, 4])) / 16
  half[:4, :4] = np.eye(4) / 8
  assert within_bins.dependent_pairs([((0, 1), half)], parts) == [(0, 1)]
  for undivided in (slice(4), slice(7)):
    divided = np.ones(8, bool)
    divided[undivided] = False
    few = types.SimpleNamespace(divided=divided)
    found = within_bins.dependent_pairs([((0, 1), half)], {0: few, 1: few})
    assert found == []


def _codes(size=6000, seed=0):
  """Four columns of 32 values; the second is nearly the first."""
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, 32, [size, 4]).astype(np.float32)
  codes[:, 1] = np.clip(codes[:, 0] + rng.integers(-1, 2, size), 0, 31)
  return codes


def _finer(codes, columns=4):
  histogram = _bins(np.arange(4.0, 32, 4), np.arange(33.0), np.full(32, 1 / 32))
  column = EncodedColumn('x', 32.0, 1.0, missing=False, ordered=True)
  parts = {j: within_bins.divide(histogram, column) for j in range(columns)}
  sizes = tuple(8 * PARTS if j in parts else 8 for j in range(4))
  return within_bins.FinerRows(
    parts,
    sizes,
    lambda: codes.astype(int) // [1 if j in parts else 4 for j in range(4)],
  )


def _measured(codes, finer, num_rounds=8):
  rounds = adaptive_marginals.plan_rounds(num_rounds, 2.0)
  estimate = adaptive_marginals.Estimate(
    [np.full(8, 1 / 8)] * 4, len(codes), np.random.default_rng(0)
  )
  ledger = accounting.PrivacyLedger()
  work = types.SimpleNamespace(
    randomness=Randomness(seed=0), ledger=ledger, resume=False, progress=False
  )
  edges = adaptive_marginals.measure(
    codes.astype(int) // 4, [8] * 4, estimate, rounds, work, finer=finer
  )
  return edges, estimate, ledger, rounds


def test_a_round_measures_a_dependent_pair_in_parts_at_the_same_cost():
  codes = _codes()
  edges, estimate, ledger, rounds = _measured(codes, _finer(codes))
  assert [edge.columns for edge in edges] == [(0, 1)]
  events = dp_accounting.ComposedDpEvent([r.event for r in rounds])
  accountant = accounting.create_accountant('pld').compose(events)
  assert ledger.epsilon(1e-5) == accountant.get_epsilon(1e-5)
  # One round of the eight; the others are those that there would be without.
  same, without, _, _ = _measured(codes, None)
  assert same == []
  assert without.groups[: len(estimate.groups)] == estimate.groups
  parts = _finer(codes).parts
  within = WithinBins(parts, edges)
  held_out = tf.constant(_codes(seed=1))
  assert np.mean(within.log_prob(held_out)) > 0.4


def test_nothing_changes_where_no_pair_is_so():
  codes = np.random.default_rng(0).integers(0, 32, [4000, 4]).astype('float32')
  codes[:, 1] = np.where(codes[:, 2] < 9, codes[:, 0], codes[:, 1])
  with_finer, without = (_measured(codes, f) for f in (_finer(codes), None))
  assert with_finer[0] == []
  assert with_finer[1].groups == without[1].groups
  np.testing.assert_array_equal(with_finer[1].model.rows, without[1].model.rows)


def test_columns_that_are_not_divided_are_not_measured_so():
  codes = _codes()
  assert _measured(codes, _finer(codes, columns=1))[0] == []
  # With three rounds there is none to give.
  assert _measured(codes, _finer(codes), num_rounds=3)[0] == []


_SCHEMA = TableSchema(
  [
    Field('length', 'number', minimum=0, maximum=10, required=True),
    Field('weight', 'number', minimum=0, maximum=100),
    Field('year', 'integer', minimum=0, maximum=99, required=True),
    Field('kind', 'string', enum=('a', 'b', 'c'), required=True),
  ]
)


def _table(size, seed):
  rng = np.random.default_rng(seed)
  length = rng.beta(2, 3, size) * 10
  weight = length**2 * rng.normal(1, 0.02, size).clip(0.9, 1.1)
  weight = np.minimum(weight, 100)
  weight[::11] = np.nan
  year = np.clip(length * 9 + rng.integers(0, 3, size), 0, 99).astype(int)
  return pd.DataFrame(
    {
      'length': length,
      'weight': weight,
      'year': year,
      'kind': rng.choice(['a', 'b', 'c'], size),
    }
  )


def _fitted(schema=_SCHEMA, epsilon=4.0, **settings):
  settings = {'epochs': 1, 'num_bins': 8, 'hidden_units': (16,), **settings}
  return TabularSynthesizer(
    schema,
    epsilon=epsilon,
    delta=1e-5,
    accountant='rdp',
    seed=0,
    allow_large_delta=True,
    **settings,
  )


def _untrained(schema, table, epsilon):
  synthesizer = _fitted(schema, epsilon, adaptive_marginals=8)
  with small_table.untrained():
    return synthesizer.fit(table, progress=False)


@pytest.fixture(scope='module')
def fitted():
  return _fitted().fit(_table(6000, 0), progress=False)


@pytest.fixture(scope='module')
def without():
  found = _fitted(within_bins=False)
  return found.fit(_table(6000, 0), progress=False)


def _edges(synthesizer):
  distribution = synthesizer._fitted.distribution
  if distribution._within is None:
    return []
  names = [column.name for column in distribution.columns]
  edges = distribution._within().edges
  return [{names[j] for j in edge.columns} for edge in edges]


def _tau(table):
  known = table.dropna()
  return stats.kendalltau(known['length'], known['weight'])[0]


def test_a_fit_learns_a_near_function(fitted, without):
  assert {'length', 'weight'} in _edges(fitted)
  assert _edges(without) == []
  held_out = _table(2000, 1)
  gain = fitted.log_prob(held_out) - without.log_prob(held_out)
  assert gain.mean() > 0.5
  # Kendall's tau of the two numbers is nearer to that of real rows.
  tables = held_out, fitted.sample(8000), without.sample(8000)
  tau = [_tau(table) for table in tables]
  assert abs(tau[1] - tau[0]) < 0.75 * abs(tau[2] - tau[0])
  # Both spend what was asked for.
  assert fitted.ledger.epsilon() == without.ledger.epsilon()


def test_the_density_is_one(fitted, without):
  """Rows drawn without it have a mean ratio of 1, in the model and saved."""
  rows = without._fitted.distribution.sample(20_000, np.random.default_rng(0))
  log_within = fitted._fitted.distribution.log_within
  ratio = np.exp(log_within(tf.constant(rows)).numpy())
  assert ratio.mean() == pytest.approx(1, abs=0.03)
  assert ratio.std() > 0.5


def test_a_saved_model_has_it(fitted, tmp_path):
  # What is exported below has the same graphs.
  with small_table.unexported():
    fitted.save(tmp_path / 'model')
  loaded = TabularSynthesizer.load(tmp_path / 'model')
  assert _edges(loaded) == _edges(fitted)
  held_out = _table(300, 2)
  np.testing.assert_array_equal(
    loaded.log_prob(held_out), fitted.log_prob(held_out)
  )
  wanted = fitted.sample(500, seed=3)
  pd.testing.assert_frame_equal(loaded.sample(500, seed=3), wanted)
  fitted.export(tmp_path / 'saved_model')
  sample = tf.saved_model.load(str(tmp_path / 'saved_model')).signatures
  drawn = sample['sample'](
    num_rows=tf.constant(500, tf.int64), seed=tf.constant(3, tf.int64)
  )
  for name in ('length', 'weight'):
    np.testing.assert_allclose(drawn[name], wanted[name], rtol=1e-5)


def test_edges_have_one_order():
  with small_table.untrained(), small_table.short():
    fitted = _fitted(adaptive_marginals=2).fit(_table(300, 0), progress=False)
  distribution = fitted._fitted.distribution
  assert distribution._within is None
  sizes = [len(h.cuts) + 1 for h in distribution._histograms()]
  edges = [
    Edge((i, j), np.zeros([sizes[i], sizes[j], 5])) for i, j in [(1, 2), (0, 1)]
  ]
  with pytest.raises(ValueError, match='damaged'):
    distribution.depend_within([edges[0]._replace(columns=(1, 3))])
  distribution.depend_within(edges)
  found = [edge.columns for edge in distribution._within().edges]
  assert found == [(0, 1), (1, 2)]


@pytest.fixture(scope='module')
def spiky():
  """Two numbers, nearly equal, of which many are 6.2 and some are missing."""
  rng = np.random.default_rng(0)
  x = rng.uniform(0, 10, 12_000)
  x[:4000] = 6.2
  y = x + rng.normal(0, 0.05, len(x))
  y[x < 3] = np.nan
  table = pd.DataFrame({'x': x, 'y': np.clip(y, 0, 10)})
  schema = TableSchema(
    [
      Field('x', 'number', minimum=0, maximum=10, required=True),
      Field('y', 'number', minimum=0, maximum=10),
    ]
  )
  fitted = _untrained(schema, table, epsilon=8.0)
  assert len(fitted._fitted.distribution._within().edges) == 1
  return table, fitted


def test_spikes_and_missing_values_stay_what_they_are(spiky):
  """Codes of a spike that were rounded out of it became other values."""
  table, fitted = spiky
  rows = fitted.sample(20_000, seed=1)
  for share in (
    lambda t: np.mean(np.abs(t['x'] - 6.2) < 1e-4),
    lambda t: np.mean((t['x'] > 5.5) & (t['x'] < 6.199)),
    lambda t: t['y'].isna().mean(),
  ):
    assert share(rows) == pytest.approx(share(table), abs=0.02)
  assert rows['y'][rows['x'] > 4].isna().mean() < 0.02
  assert rows['y'][rows['x'] < 2.5].isna().mean() > 0.97


def test_the_density_is_that_of_the_rows_beside_spikes(spiky, monkeypatch):
  """Of rows drawn without it, weighted by it, as many have a high density."""
  _, fitted = spiky
  distribution = fitted._fitted.distribution

  def drawn(seed):
    rows = distribution.draw([50_000], tf.constant([0, seed])).numpy()
    # Codes that were rounded out of a spike are in the bin beside it.
    apart = (np.abs(rows - 6.2) > 0.01).all(1) & (rows[:, 1] < 10)
    return rows[apart], distribution.bins(rows[apart])

  rows, bins = drawn(0)
  with monkeypatch.context() as patch:
    patch.setattr(distribution, '_within', None)
    others, bins_of_others = drawn(1)
  cells, counts = np.unique(bins, axis=0, return_counts=True)
  assert (counts > 1000).sum() >= 4
  for cell in cells[counts > 1000]:
    found, density = (
      np.exp(distribution.log_within(tf.constant(x[(y == cell).all(1)])))
      for x, y in ((rows, bins), (others, bins_of_others))
    )
    assert len(density) > 500
    assert density.mean() == pytest.approx(1, abs=0.1)
    high = np.sum(density[density > 1]) / np.sum(density)
    assert np.mean(found > 1) == pytest.approx(high, abs=0.05)


@pytest.mark.filterwarnings('ignore:.*independent ones')
def test_rows_of_a_given_value_have_it(fitted):
  """The weight of a given length, by importance resampling."""
  given = fitted.sample(2000, seed=0, conditions={'length': 5.03})
  found = given['weight'].dropna()
  assert found.median() == pytest.approx(25.3, rel=0.1)
  # Two in three are within 2 percent; bins are 20 percent wide.
  assert np.mean(np.abs(found / 25.3 - 1) < 0.1) > 0.5


def test_columns_of_inequalities_are_left_out():
  table = _table(3000, 0).drop(columns=['weight', 'kind'])
  table['end'] = np.minimum(table['year'] + 1, 99)
  schema = TableSchema(
    [
      _SCHEMA['length'],
      _SCHEMA['year'],
      Field('end', 'integer', minimum=0, maximum=99, required=True),
    ],
    constraints=[Inequality('year', 'end')],
  )
  with small_table.short():
    fitted = _untrained(schema, table, epsilon=4.0)
  assert _edges(fitted) == []
  rows = fitted.sample(1000)
  assert (rows['year'] <= rows['end']).all()


def test_rows_on_disk_give_the_same_model(tmp_path):
  table = _table(2000, 0)
  with small_table.untrained(), small_table.short():
    fits = [
      _fitted(adaptive_marginals=8).fit(data, work_dir=work, progress=False)
      for data, work in (
        (table, None),
        (pa.Table.from_pandas(table), tmp_path / 'work'),
      )
    ]
  assert _edges(fits[0]) == _edges(fits[1]) != []
  for edges in zip(*(f._fitted.distribution._within().edges for f in fits)):
    np.testing.assert_array_equal(edges[0].weights, edges[1].weights)
  assert sorted(os.listdir(tmp_path)) == ['work']


@pytest.fixture(scope='module')
def recorded():
  """A fit with a round within bins, and how it is replayed on other rows."""
  table = _table(1500, 0)

  def fit(given):
    fitted = audit.fit_without(
      _fitted(adaptive_marginals=8),
      given.get('table', table),
      given.get('absent', ()),
    )
    assert _edges(fitted) != []
    return fitted

  with small_table.short():
    return replaying.record(fit, {})


def test_one_row_moves_every_release_by_its_sensitivity(recorded):
  with small_table.short():
    found = recorded.replay({'absent': [7]})
  assert found.passed, found
  rounds = found.entries[1:-1]
  assert [x.norm for x in rounds] == ['range', 'l2'] * 8
  # Of one candidate there is nothing to select.
  moved = np.array([x.moved for x in rounds[::2]])
  assert (moved <= 1 + 1e-9).all() and np.count_nonzero(moved) >= 6
  np.testing.assert_allclose([x.moved for x in rounds[1::2]], 1)


def test_nothing_but_the_releases_depends_on_the_rows(recorded):
  """Rows of which no pair is a function, and the same releases."""
  other = _table(1500, 1)
  other['weight'] = other['weight'].sample(frac=1, random_state=0).values
  other['year'] = other['year'].sample(frac=1, random_state=1).values
  with small_table.short():
    found = recorded.replay({'table': other})
  assert not found.differences
  assert not any(entry.problem for entry in found.entries)
