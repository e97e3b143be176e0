import itertools
import math
import types

import dp_accounting
import numpy as np
import pytest

from tfdpflows import randomness
from tfdpflows.mechanisms import histograms, smoothing


class Ledger:
  """Remembers what was charged, and refuses when told to."""

  neighboring_relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

  def __init__(self, refuse=False):
    self.charges = []
    self.refuse = refuse

  def charge(self, event, count=1, *, label, **extra):
    if self.refuse:
      raise RuntimeError('over budget')
    self.charges.append((event, count, label, extra))


def column(
  size,
  cell=1.0,
  missing=False,
  ordered=True,
  name='x',
  resolution=1.0,
  likely=(),
):
  return types.SimpleNamespace(
    likely=likely,
    name=name,
    size=float(size),
    cell=cell,
    missing=missing,
    ordered=ordered,
    resolution=resolution,
  )


def noisy_histogram(x, col, stds, rng):
  """A histogram of one column with given noise, which is not charged."""
  stds = stds[: len(histograms._level_bins(col, 64))]
  release = histograms._release(np.asarray(x), col, stds, rng, 64)
  total = max(float(release[0][1].sum()), 1.0)
  return histograms._estimate(release, col, stds, total)


def total_variation(x, col, histogram):
  """Distance of the histogram from the rows, on a fine grid."""
  k = int(col.size) if col.cell else 256
  grid = np.linspace(0, col.size, k + 1)
  true = np.histogram(x + 0.5 * col.cell, grid)[0] / len(x)
  cdf = np.append(0, np.cumsum(histogram.probabilities()))
  private = np.diff(np.interp(grid, histogram.edges, cdf))
  return 0.5 * np.abs(private - true).sum()


def plain(x, col, std, rng, bins=64):
  """The histogram to beat: equal bins, noise, a floor."""
  bins = min(bins, int(col.size) if col.cell else bins)
  edges = np.linspace(0, col.size, bins + 1)
  if col.cell:
    edges = np.round(edges)
  counts = np.histogram(x + 0.5 * col.cell, edges)[0]
  counts = np.maximum(counts + std * rng.normal(size=bins), 0.02 * std)
  return histograms.Histogram('x', edges, counts, std)


def shapes():
  rng = np.random.default_rng(5)
  n = 32561
  gains = np.where(
    rng.random(n) < 0.92,
    0,
    rng.choice([3103, 5178, 7298, 7688, 15024, 99999], n),
  )
  hours = np.clip(np.round(rng.normal(40, 14, n)), 0, 98)
  hours[rng.random(n) < 0.45] = 40
  return {
    'atoms in a wide range': (gains, column(100_000), 0.1),
    'atom on a bell': (hours, column(99), 0.9),
    'lognormal': (
      np.minimum(rng.lognormal(9, 1, n), 1e6 - 1),
      column(1e6, cell=0.0),
      0.6,
    ),
    # Most of what is left is the sampling error of the rows themselves.
    'uniform': (rng.random(n) * 7, column(7, cell=0.0), 0.9),
    'many rare categories': (
      np.minimum(rng.geometric(0.6, n) * 7 % 42, 41),
      column(42, ordered=False),
      0.9,
    ),
    'few categories, one rare': (
      rng.choice(4, n, p=[0.6, 0.3, 0.099, 0.001]),
      column(4, ordered=False),
      1.3,
    ),
  }


@pytest.mark.parametrize('name', shapes())
def test_beats_a_plain_histogram(name):
  x, col, share = shapes()[name]
  ours, theirs = [], []
  for seed in range(3):
    rng = np.random.default_rng(seed)
    histogram = noisy_histogram(x, col, [37.0] * 3, rng)
    p = histogram.probabilities()
    assert p.sum() == pytest.approx(1)
    assert (p > 0).all()
    assert (np.diff(histogram.edges) > 0).all()
    assert histogram.edges[0] == 0
    assert histogram.edges[-1] == col.size
    assert len(p) <= 256
    ours.append(total_variation(x, col, histogram))
    theirs.append(total_variation(x, col, plain(x, col, 37.0, rng)))
  assert np.mean(ours) < share * np.mean(theirs)


def test_without_noise_every_atom_is_found():
  x, col, _ = shapes()['atoms in a wide range']
  rng = np.random.default_rng(0)
  histogram = noisy_histogram(x, col, [1e-6] * 3, rng)
  assert total_variation(x, col, histogram) < 1e-6
  last = (histogram.edges >= 99999) & (histogram.edges < 100000)
  assert last.sum() == 1


def test_of_a_billion_rows_not_every_bin_is_refined():
  col = column(1e9, cell=0.0, resolution=1e-3)
  levels = histograms._levels(
    col, [50.0] * 6, np.random.default_rng(0), max_bins=64
  )
  # Half of the rows are one value, the others anywhere.
  spike, most, bounds = 123_456_789.0, 0, next(levels)
  while bounds is not None:
    most, finest = max(most, len(bounds)), bounds
    low, high = bounds.T
    counts = 0.5 * (high - low) + 5e8 * ((low <= spike) & (spike < high))
    try:
      bounds = levels.send(counts)
    except StopIteration:
      bounds = None
  # The spike is found to the last level, and no other bin lighter than 1e-4.
  assert 64**3 <= most < 64**3 + 1000
  # The last level has no more bins than float32 has numbers there.
  (widths,) = np.diff(finest).T
  assert len(finest) > 1 and widths.min() >= np.spacing(np.float32(spike))
  assert finest[0, 0] <= spike < finest[-1, 1]


@pytest.mark.parametrize(
  'size, resolution, spike',
  [
    (1e6, 0.1, 0.0),
    (1e6, 0.1, 2.5e5),
    (1e6, 0.1, 1e6),
    (20_500_000.0, 1.0, 500_000.0),
    (2.0**31, 1.0, 0.0),
  ],
)
def test_a_spike_is_told_from_the_tail(size, resolution, spike):
  """Half of the rows have one value, others are near it and far away."""
  rng = np.random.default_rng(0)
  col = column(size, cell=0.0, resolution=resolution)
  tail = abs(spike - np.minimum(100 * rng.pareto(1.1, 20_000) + 5, size / 2))
  x = np.where(rng.random(20_000) < 0.5, spike, tail).astype(np.float32)
  (std,) = histograms.noise_stds([col], 10.0)
  histogram = noisy_histogram(x, col, std, rng)
  place = np.searchsorted(histogram.edges, spike, 'right') - 1
  place = min(place, len(histogram.counts) - 1)
  p = histogram.probabilities()[place]
  assert p == pytest.approx((x == np.float32(spike)).mean(), abs=0.05)
  # Nothing but the spike, to the precision of the value or of float32.
  width = np.diff(histogram.edges)[place]
  assert width < max(resolution, 2 * np.spacing(np.float32(spike)))
  assert (np.diff(histogram.edges.astype(np.float32)) > 0).all()


def _with_likely(x, std=12.0):
  """The histogram of 3,000 rows, with bounds and zero as likely spikes."""
  likely = [(x, float(np.spacing(np.float32(x)))) for x in (5e8, 2e9)]
  col = column(2e9, cell=0.0, likely=[(0.0, 0.5), *likely])
  multiplier = std / histograms.noise_stds([col], 1.0)[0][0]
  (stds,) = histograms.noise_stds([col], multiplier)
  return noisy_histogram(x, col, stds, np.random.default_rng(0))


@pytest.mark.parametrize('spike', [0.0, 5e8, 2e9])
def test_a_likely_spike_is_found_among_few_rows(spike):
  """An eighth of them; the levels that tell it from others are too noisy."""
  rng = np.random.default_rng(0)
  x = rng.uniform(0, 2e9, 3000)
  x[:375] = spike
  histogram = _with_likely(x.astype(np.float32))
  place = np.searchsorted(histogram.edges, spike, 'right') - 1
  place = min(place, len(histogram.counts) - 1)
  assert (
    np.diff(histogram.edges)[place] <= 2 * np.spacing(np.float32(spike)) + 1
  )
  assert histogram.probabilities()[place] == pytest.approx(0.125, abs=0.02)


def test_a_likely_spike_of_integers_is_a_bin_of_its_own():
  """Wages by the hour, to the hundredth of a cent, of those who have any."""
  col = column(1_000_001, likely=[(0.5, 0.5), (1_000_000.5, 0.5)])
  (stds,) = histograms.noise_stds([col], 25.0)
  zeros = []
  for seed in range(6):
    rng = np.random.default_rng(seed)
    x = np.floor(rng.lognormal(10.5, 0.7, 1500))
    x[rng.random(1500) < 0.4] = 0
    histogram = noisy_histogram(x, col, stds, rng)
    assert histogram.edges[1] == 1
    zeros.append(histogram.probabilities()[0])
  assert np.mean(zeros) == pytest.approx(0.37, abs=0.05)


@pytest.mark.parametrize('place', [0.0, 5e8, 2e9])
def test_where_no_spike_is_likely_ones_are_no_bins(place):
  rng = np.random.default_rng(0)
  # Many rows are near, so that bins are divided there.
  x = np.abs(place - np.abs(rng.normal(0, 2e8, 3000))).clip(0, 2e9)
  histogram = _with_likely(x.astype(np.float32))
  assert np.diff(histogram.edges).min() > 1000
  assert histogram.counts.sum() == pytest.approx(3000, abs=150)


@pytest.mark.parametrize('cell', [1.0, 0.0])
def test_a_range_much_wider_than_the_values_costs_little(cell):
  """Noise in empty bins far away would move the mean by several spreads."""
  col = column(1200, cell=cell)
  (stds,) = histograms.noise_stds([col], 20.0)
  errors = []
  for seed in range(8):
    rng = np.random.default_rng(seed)
    x = np.floor(rng.normal(125, 25, 2000).clip(0))
    # Spikes, as of rounded numbers.
    x[rng.random(len(x)) < 0.5] = 100
    histogram = noisy_histogram(x.astype(np.float32), col, stds, rng)
    middles = (histogram.edges[1:] + histogram.edges[:-1]) / 2
    errors.append((histogram.probabilities() @ middles - x.mean()) / x.std())
  assert np.abs(errors).mean() < 0.5


@pytest.mark.parametrize('cell', [1.0, 0.0])
def test_missing_values_have_a_bin_of_their_own(cell):
  rng = np.random.default_rng(0)
  col = column(65.0 if not cell else 1001.0, cell=cell, missing=True)
  end = 64.0 if not cell else 1000.0
  # As they are encoded: the code after the last value, or mid-interval.
  missing = end if cell else (end + col.size) / 2
  x = np.where(rng.random(20000) < 0.3, missing, 0.0)
  # The largest value, rounded up to float32, is still no missing one.
  x[:4000] = np.nextafter(np.float32(end), np.float32(np.inf)) - bool(cell)
  histogram = noisy_histogram(x.astype(np.float32), col, [20.0] * 3, rng)
  assert histogram.edges[-2] == pytest.approx(end)
  share = (x == missing).mean()
  assert histogram.probabilities()[-1] == pytest.approx(share, abs=0.01)


def test_missing_values_are_counted_as_well_as_their_bin_is():
  """The noise of all other bins together is no part of the estimate."""
  col = column(65.0, cell=0.0, missing=True)
  x = np.where(np.arange(2000) % 20, np.linspace(0, 64, 2000), 64.5)
  errors = []
  for seed in range(30):
    rng = np.random.default_rng(seed)
    histogram = noisy_histogram(x, col, [10.0] * 3, rng)
    errors.append(histogram.probabilities()[-1] * 2000 - 100)
  assert np.sqrt(np.mean(np.square(errors))) < 15


def test_noise_adds_up_to_the_joint_event():
  columns = [
    column(2, ordered=False),
    column(74),
    column(100_000),
    column(3.5, cell=0.0, missing=True, resolution=1e-7),
  ]
  stds = histograms.noise_stds(columns, 9.6)
  assert [len(s) for s in stds] == [1, 1, 3, 5]
  # Levels behind the third have a quarter of the weight of the one before.
  assert stds[3][3] == pytest.approx(2 * stds[3][2])
  precision = sum(1 / s**2 for row in stds for s in row)
  assert 1 / math.sqrt(precision) == pytest.approx(9.6)


def test_noise_of_a_release_has_the_stated_scale():
  col = column(200)
  x = np.repeat(np.arange(200.0), 10)
  seen = [
    histograms._release(x, col, (5.0,), np.random.default_rng(s), 64)[0][1]
    for s in range(40)
  ]
  errors = np.asarray(seen) - 10
  assert errors.std() == pytest.approx(5, rel=0.05)
  assert abs(errors.mean()) < 0.3


@pytest.mark.parametrize(
  'col',
  [
    column(2, ordered=False),
    column(100_000),
    column(901, missing=True),
    column(65.0, cell=0.0, missing=True, resolution=1e-5),
    column(
      65.0,
      cell=0.0,
      resolution=1e-5,
      likely=((0.0, 1e-5), (0.5, 1e-5), (65.0, 1e-5)),
    ),
  ],
)
def test_one_row_moves_one_bin_per_level_by_one(col):
  rng = np.random.default_rng(1)
  x = np.floor(rng.random(5000) ** 4 * col.size)
  for row in (0.0, col.size / 3, col.size - 0.5):
    more = np.append(x, np.floor(row) if col.cell else row)
    one = histograms._release(x, col, (20.0,) * 3, _rng(), 64)
    two = histograms._release(more, col, (20.0,) * 3, _rng(), 64)
    for (bounds, noisy, _), (others, noisier, _) in zip(one, two):
      if not np.array_equal(bounds, others):
        break
      moved = np.abs(noisier - noisy)
      assert moved.sum() <= 1 + 1e-9
    first = np.abs(two[0][1] - one[0][1])
    assert first.sum() == pytest.approx(1)
    for bounds, _, _ in one:
      order = np.argsort(bounds[:, 0])
      assert (bounds[order][1:, 0] >= bounds[order][:-1, 1]).all()


def _rng():
  return np.random.default_rng(7)


def test_the_table_is_charged_once_and_before_it_is_read():
  columns = [column(3, name='a'), column(500, name='b')]
  x = np.random.default_rng(0).integers(0, 3, (400, 2)).astype(np.float32)
  ledger = Ledger()
  first = histograms.noisy_histograms(
    x, columns, 2.0, randomness.Randomness(seed=3), ledger
  )
  event = dp_accounting.GaussianDpEvent(2.0)
  assert [charge[:3] for charge in ledger.charges] == [(event, 1, 'marginals')]
  again = histograms.noisy_histograms(
    x, columns, 2.0, randomness.Randomness(seed=3), ledger, resume=True
  )
  extra = ledger.charges[0][3]
  assert extra['seeded'] and not extra['resume']
  assert ledger.charges[1][3] == {**extra, 'resume': True}
  for one, two in zip(first, again):
    np.testing.assert_array_equal(one.counts, two.counts)
  # Pooled: every column holds the same rows.
  assert first[0].counts.sum() == pytest.approx(first[1].counts.sum())
  drawn = []
  source = randomness.Randomness()
  source.numpy = lambda *path: drawn.append(path)
  with pytest.raises(RuntimeError, match='over budget'):
    histograms.noisy_histograms(x, columns, 2.0, source, Ledger(refuse=True))
  assert not drawn


def test_noise_is_used_once():
  columns, x = [column(3, name='a')], np.zeros((40, 1), np.float32)
  source = randomness.Randomness()
  histograms.noisy_histograms(x, columns, 2.0, source, Ledger())
  with pytest.raises(ValueError, match='used already'):
    histograms.noisy_histograms(x, columns, 4.0, source, Ledger())
  with pytest.raises(ValueError, match='the same name'):
    histograms.noisy_histograms(
      np.zeros((40, 2), np.float32), columns * 2, 4.0, source, Ledger()
    )


def test_wrong_arguments_are_refused():
  columns = [column(3)]
  with pytest.raises(ValueError, match='shape'):
    histograms.noisy_histograms(np.zeros((3, 2)), columns, 1.0, None, Ledger())
  for bad in (0.0, -1.0, math.inf, math.nan):
    with pytest.raises(ValueError, match='noise_multiplier'):
      histograms.noisy_histograms(
        np.zeros((3, 1)), columns, bad, None, Ledger()
      )


def test_nothing_but_noise_still_gives_a_distribution():
  for col in (
    column(3, ordered=False),
    column(70),
    column(1e5),
    column(2, 0.0),
  ):
    for seed in range(5):
      rng = np.random.default_rng(seed)
      histogram = noisy_histogram(np.zeros(2), col, [1000.0] * 3, rng)
      p = histogram.probabilities()
      assert np.isfinite(p).all()
      assert (p > 0).all()


@pytest.mark.parametrize('ends', [False, True])
def test_partitions_are_all_counted(ends):
  # Against the sum over all partitions of all bins from one to another, one by
  # one.
  rng = np.random.default_rng(0)
  k, change = 5, 0.3
  above = np.triu(np.ones((k, k))) > 0
  table = np.where(above, rng.normal(size=(k, k)), -np.inf)
  before, behind = rng.normal(size=(2, k + 1)) if ends else [[-np.inf] * 6] * 2
  before, behind = np.array(before), np.array(behind)
  before[0] = behind[k] = 0
  total, runs = 0.0, np.zeros((k, k))
  for start, end in itertools.combinations(range(k + 1), 2):
    for code in range(2 ** (end - start - 1)):
      cuts = [start + i + 1 for i in range(end - start - 1) if code >> i & 1]
      pairs = list(zip([start, *cuts], [*cuts, end]))
      weight = math.exp(sum(table[i, j - 1] for i, j in pairs))
      weight *= math.exp(before[start] + behind[end]) * change ** len(cuts)
      weight *= (1 - change) ** (end - start - 1 - len(cuts))
      total += weight
      for i, j in pairs:
        runs[i, j - 1] += weight
  log_z, chance = smoothing._partitions(
    table, before, behind, np.array([change])
  )
  assert log_z[0] == pytest.approx(math.log(total))
  np.testing.assert_allclose(chance[0], runs / total, atol=1e-12)


def test_a_long_tail_is_not_taken_to_be_empty():
  """Whether runs may be empty is a matter of the release, tried in turn."""
  truth = 20 * np.exp(-np.arange(32) / 6.4)
  away = []
  for seed in range(20):
    noise = np.random.default_rng(seed).normal(0, 20, 32)
    found = smoothing.posterior_counts(
      truth + noise, 20.0, truth.sum(), ordered=True, may_end=True
    )
    away.append(np.abs(found - truth).sum() / (2 * truth.sum()))
  # .2858 where half of all runs are taken to be empty.
  assert np.mean(away) < 0.28


def test_a_spike_keeps_its_rows_beside_many_empty_bins():
  """The sum says of all empty bins together that they are empty."""
  found = []
  for seed in range(5):
    noisy = 30 * np.random.default_rng(seed).normal(size=64)
    noisy[20] += 350
    found.append(
      smoothing.posterior_counts(noisy, 30.0, 350.0, ordered=True)[20]
    )
  assert np.mean(found) == pytest.approx(330, abs=20)


def test_totals_are_met_above_a_floor():
  counts = smoothing.match_total([50.0, -3.0, 1.0], np.ones(3), 40.0, floor=0.5)
  assert counts.sum() == pytest.approx(40)
  assert counts.min() == pytest.approx(0.5)
