"""What mechanisms move by, on all neighbours of tiny tables, and is charged.

Every mechanism is run on both tables of every pair, its noise replaced by an
object that notes what it is added to and with which scale. How far apart the
noted sums are, in units of the noise, is what the mechanism costs; it must not
be more than the event in the ledger, as accountants take it under the
neighbouring relation of the ledger. Exponential mechanisms are compared by
their log-weights and choices of categories by their exact distributions.

A new mechanism is one row of `MECHANISMS`.
"""

import dataclasses
import functools
import itertools
import math
import statistics
import sys
import types

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting import NeighboringRelation

from tests.grids import thinned
from tfdpflows import accounting, flows, mechanisms, models, sampling
from tfdpflows._keras import tfp
from tfdpflows.accounting.mechanisms import decompose
from tfdpflows.flows import initialization
from tfdpflows.mechanisms import bounds, moments, releases
from tfdpflows.models.dp_mog import em as em_lib
from tfdpflows.noise_grid import round_to_grid
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema

RELATIONS = (
  NeighboringRelation.ADD_OR_REMOVE_ONE,
  NeighboringRelation.REPLACE_ONE,
)
# Of made noise there is much, and it is warned of.
pytestmark = pytest.mark.filterwarnings('ignore:Private bounds may leave')
BOTH = pytest.mark.parametrize('relation', RELATIONS, ids=lambda r: r.name)
# For what takes seconds: the other relation is in the full tests.
ONE = pytest.mark.parametrize(
  'relation', thinned(RELATIONS, 1), ids=lambda r: r.name
)
# Noise that makes every count of a first run large, so that what is looked into
# adaptively is looked into to the end.
_LIFT = 100.0


class Noise:
  """Stands for an array of noise; notes what it is added to."""

  __array_ufunc__ = None

  def __init__(self, kind, scale, noted):
    self._kind, self._scale, self._noted = kind, scale, noted

  def __mul__(self, factor):
    return Noise(self._kind, self._scale * factor, self._noted)

  __rmul__ = __mul__

  def __add__(self, other):
    return self._noted.add(
      self._kind, np.asarray(other, np.float64), self._scale
    )

  __radd__ = __add__


class Noted:
  """What one run added noise to; hands out what an earlier run released."""

  def __init__(self, earlier=None, first=None):
    self.sums, self.released = [], []
    self._earlier, self._first = earlier, first

  def add(self, kind, sums, scale):
    number = len(self.sums)
    self.sums.append((kind, sums, scale))
    if self._earlier is not None:
      found = self._earlier.released[number]
    elif number == 0 and self._first is not None:
      found = self._first
    else:
      found = sums + (0.0 if kind == 'gumbel' else _LIFT * scale)
    self.released.append(found)
    return found

  # What a generator has.

  def normal(self, loc=0.0, scale=1.0, size=None):
    return Noise('gaussian', scale, self)

  def laplace(self, loc=0.0, scale=1.0, size=None):
    return Noise('laplace', scale, self)

  def gumbel(self, loc=0.0, scale=1.0, size=None):
    return Noise('gumbel', scale, self)

  def random(self):
    return 0.5

  def bytes(self, length):
    return bytes(length)


class Source(Randomness):
  """A `Randomness` whose streams note."""

  def __init__(self, stream):
    super().__init__(0)  # Without a seed a release would make one of its own.
    self._stream = stream

  def numpy(self, *path):
    return self._stream


@dataclasses.dataclass
class Price:
  """What two runs are apart, or what an event costs.

  Attributes:
    gaussian: squared distance in units of the noise.
    pure: epsilon of Laplace noise and of what is known to cost epsilon.
    chosen: bounded range of exponential mechanisms.
  """

  gaussian: float = 0.0
  pure: float = 0.0
  chosen: float = 0.0

  def covers(self, other):
    return all(
      a <= b * (1 + 1e-9) + 1e-9
      for a, b in zip(dataclasses.astuple(other), dataclasses.astuple(self))
    )


def charged(ledger):
  """The `Price` of all entries of a ledger, under its relation."""
  price = Price()
  for entry in ledger.entries:
    for mechanism, count in decompose(
      entry.event, ledger.neighboring_relation
    ).items():
      if mechanism.name == 'gaussian':
        price.gaussian += count / mechanism.noise_multiplier**2
      elif mechanism.name == 'laplace':
        price.pure += count / mechanism.noise_multiplier
      elif mechanism.name == 'epsilon_delta':
        price.pure += count * mechanism.epsilon
      else:
        assert mechanism.name == 'bounded_range'
        price.chosen += count * mechanism.epsilon
  return price


def apart(one, two):
  """The `Price` of two runs, of which the second replayed the first."""
  price = Price()
  assert len(one.sums) == len(two.sums)
  for (kind, a, scale), (same, b, as_large) in zip(one.sums, two.sums):
    assert (kind, scale) == (same, as_large)
    moved = np.abs(a - b) / scale
    if kind == 'gaussian':
      price.gaussian += (moved**2).sum()
    elif kind == 'laplace':
      price.pure += moved.sum()
    else:
      price.chosen += np.ptp(a - b)
  return price


def neighbours(rows, most, relation):
  """All pairs of neighbouring tables of up to `most` of the given rows."""
  for n in range(1, most + 1):
    for table in itertools.combinations_with_replacement(rows, n):
      table = list(table)
      for place in range(n):
        rest = table[:place] + table[place + 1 :]
        if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
          yield table, rest
          yield rest, table
        else:
          yield from ((table, [*rest, row]) for row in rows)


# Each takes a table (a list of rows), a ledger and a Randomness.

COLUMNS = [
  types.SimpleNamespace(
    name='few', size=4.0, cell=1.0, missing=True, ordered=False, resolution=1.0
  ),
  types.SimpleNamespace(
    name='long',
    size=9.0,
    cell=0.0,
    missing=True,
    ordered=True,
    resolution=0.5,
    likely=((0.0, 0.25), (3.0, 0.25)),
  ),
]


def _histograms(table, ledger, source, **units):
  x = np.reshape(np.array(table, np.float32), [-1, 2])
  mechanisms.noisy_histograms(
    x, COLUMNS, 2.0, source, ledger, max_bins=4, **units
  )


def _marginals(table, ledger, source, **units):
  codes = np.reshape(np.array(table, int), [-1, 2])
  groups = [(0,), (1,), (0, 1)]
  mechanisms.noisy_marginals(
    codes, [2, 3], groups, 2.0, source, ledger, **units
  )


def _counts(table, ledger, source):
  rows = np.reshape(np.array(table, int), [-1, 2])
  counts = {
    name: np.bincount(rows[:, j], minlength=3)
    for j, name in enumerate(('a', 'b'))
  }
  mechanisms.from_exact_counts(counts, 2.0, source, ledger)


def _mean(table, ledger, source, **units):
  mechanisms.noisy_mean(
    np.array(table, float),
    lower=-1.0,
    upper=2.0,
    noise_multiplier=0.5,
    num_examples=4,
    ledger=ledger,
    randomness=source,
    **units,
  )


SHAPES = [(2, [2]), (3, [3]), (6, [2, 3])]


def _total_variation(table, ledger, source):
  codes = np.reshape(np.array(table, int), [-1, 2])
  groups = [(0,), (1,), (0, 1)]
  mechanisms.noisy_total_variation(
    codes,
    [2, 3],
    groups,
    # Of (0, 0) alone: any other row is as far from it as one can be.
    [np.eye(1, size).reshape(shape) for size, shape in SHAPES],
    noise_multiplier=0.5,
    num_examples=4,
    ledger=ledger,
    randomness=source,
  )


def _selection(table, ledger, source, **units):
  codes = np.reshape(np.array(table, int), [-1, 2])
  groups = [(0,), (1,), (0, 1)]
  expected = [np.full(shape, 0.5) for shape in (2, 3, (2, 3))]
  mechanisms.select_marginal(
    codes, [2, 3], groups, expected, 1.0, 0.5, source, ledger, **units
  )


def _laplace(table, ledger, source):
  x = np.reshape(np.array(table, float), [-1, 2])
  mechanisms.private_normalization(
    x, bound=2.0, ledger=ledger, epsilon=0.5, num_examples=4, randomness=source
  )


def _gaussian(table, ledger, source):
  x = np.reshape(np.array(table, float), [-1, 2])
  mechanisms.private_normalization(
    x,
    bound=[2.0, 0.5],
    ledger=ledger,
    noise_multiplier=0.5,
    num_examples=4,
    randomness=source,
  )


def _bounds(table, ledger, source, delta=0.0, **units):
  """Ranges, and whether values are missing."""
  marks = ('minimum', 'maximum', 'required')
  schema = TableSchema(
    [
      Field('a', 'integer', 0, 9, from_data=marks),
      Field('b', 'number', 0, 9, from_data=marks),
    ]
  )
  df = pd.DataFrame(table, columns=['a', 'b'])
  df['a'] = df['a'].astype('Int64')
  df['b'] = df['b'].astype(float)
  mechanisms.private_bounds(df, schema, 0.5, delta, source, ledger, **units)


def _initialization(table, ledger, source):
  flow = flows.dp_nf(1, num_blocks=2, actnorm=True, seed=0)
  flows.initialize_privately(
    flow,
    np.reshape(np.array(table, np.float32), [-1, 1]),
    bound=2.0,
    ledger=ledger,
    epsilon=0.5,
    num_examples=3,
    randomness=source,
  )


def _types(table, ledger, source, **units):
  """Types, the ranges of what they turn out to be, and missing values."""
  marks = ('enum', 'required', 'type')
  schema = TableSchema([Field('a', 'string', enum=('?',), from_data=marks)])
  df = pd.DataFrame({'a': table}, dtype=object)
  mechanisms.private_bounds(df, schema, 0.5, 0.01, source, ledger, **units)


BOUNDED = [(0, 0.5), (None, 1e300), (7, None), (2**60, -1.0), (-1, 0.0)]

MECHANISMS = {
  'histograms': (
    _histograms,
    [(0, 0.0), (3, 9.0), (4, 5.0), (np.nan, -1.0)],
  ),
  'marginals': (_marginals, [(0, 0), (0, 1), (1, 1), (1, 2)]),
  'exact counts': (_counts, [(0, 0), (0, 1), (1, 1), (2, 2)]),
  'mean': (_mean, [-1.0, 2.0, 0.5, 7.0, -np.inf, np.nan]),
  'total variation': (_total_variation, [(0, 0), (0, 1), (1, 1), (1, 2)]),
  'selection': (_selection, [(0, 0), (0, 1), (1, 1), (1, 2)]),
  'normalization, Laplace': (
    _laplace,
    [(0, 0), (1, -1), (-2, 3), (2, 2), (np.nan, np.inf), (0.4, 1.9)],
  ),
  'normalization, Gaussian': (
    _gaussian,
    [(0, 0), (1, -1), (-2, 3), (2, 2), (np.nan, np.inf), (1.4, 0.3)],
  ),
  'bounds, Laplace': (_bounds, BOUNDED),
  'bounds, Gaussian': (functools.partial(_bounds, delta=0.01), BOUNDED),
  # What is released of the type is that it is one of numbers.
  'types': (
    _types,
    ['7', '7.5', None, 'true', 8, 'x'],
    np.array([0.0, 1e6, 0.0, 0.0]),
  ),
}


# Rows at random for pairs of larger tables, from a generator.
_INTEGERS = [None, 0, 1, -1, 7, 255, 10**9, 2**53, -(2**60)]
_NUMBERS = [None, np.nan, np.inf, 0.0, -0.0, 1e-300, -3.7, 0.1, 1e9, -1e300]


def _number(rng):
  """A number of any size, or one that a check might miss."""
  if rng.random() < 0.3:
    return _NUMBERS[1 + rng.integers(len(_NUMBERS) - 1)]
  return rng.normal() * 10.0 ** rng.integers(-3, 4)


def _bounded(rng):
  return (
    _INTEGERS[rng.integers(len(_INTEGERS))],
    _NUMBERS[rng.integers(len(_NUMBERS))],
  )


ROWS = {
  'histograms': lambda rng: (
    rng.choice([np.nan, -1.0, 0.0, 1.0, 2.5, 3.0, 4.0, 1e30]),
    _number(rng),
  ),
  'marginals': lambda rng: tuple(rng.integers(-2, 5, 2)),
  'exact counts': lambda rng: tuple(rng.integers(0, 3, 2)),
  'mean': _number,
  'total variation': lambda rng: tuple(rng.integers(-2, 5, 2)),
  'selection': lambda rng: tuple(rng.integers(-2, 5, 2)),
  'normalization, Laplace': lambda rng: (_number(rng), _number(rng)),
  'normalization, Gaussian': lambda rng: (_number(rng), _number(rng)),
  'bounds, Laplace': _bounded,
  'bounds, Gaussian': _bounded,
  'types': lambda rng: [
    *('7', '-3', '7.5', '1e400', None, 'true', 8, 2.5, 'x', '', 10**300)
  ][rng.integers(11)],
}


def random_neighbours(draw, pairs, relation):
  """Pairs of neighbouring tables of 1 to 30 rows, five for each first table."""
  rng = np.random.default_rng(0)
  for number in range(pairs):
    if number % 5 == 0:
      table = [draw(rng) for _ in range(rng.integers(1, 31))]
    place = rng.integers(len(table))
    rest = table[:place] + table[place + 1 :]
    rng.shuffle(rest)
    if relation is NeighboringRelation.REPLACE_ONE:
      yield table, [*rest, draw(rng)]
    elif number % 2:
      yield table, rest
    else:
      yield table, [draw(rng), *table]


def _check(run, tables, relation, first=None, least=0.2, **of_ledger):
  worst, of, pairs = Price(), None, 0
  for one, two in tables:
    pairs += 1
    if one != of:
      of, noted = one, Noted(first=first)
      ledger = accounting.PrivacyLedger(
        neighboring_relation=relation, **of_ledger
      )
      run(one, ledger, Source(noted))
    replayed = Noted(noted)
    again = accounting.PrivacyLedger(neighboring_relation=relation, **of_ledger)
    run(two, again, Source(replayed))
    price = charged(ledger)
    found = apart(noted, replayed)
    assert price.covers(found), (one, two, price, found)
    worst = Price(
      *map(max, dataclasses.astuple(worst), dataclasses.astuple(found))
    )
  # Of tables made for it: something was measured, and not much more is charged
  # than is needed.
  both = list(zip(dataclasses.astuple(worst), dataclasses.astuple(price)))
  for most_apart, cost in both:
    assert most_apart >= least * cost
  return pairs, max(found / cost for found, cost in both if cost)


@pytest.mark.parametrize(
  ('name', 'relation'),
  thinned(
    itertools.product(MECHANISMS, RELATIONS),
    # Of what takes seconds, either noise and either relation once.
    lambda point: (
      point
      not in (
        ('histograms', RELATIONS[1]),
        ('bounds, Gaussian', RELATIONS[0]),
        ('bounds, Laplace', RELATIONS[1]),
      )
    ),
  ),
  ids=lambda part: getattr(part, 'name', part),
)
def test_no_pair_is_further_apart_than_is_charged(name, relation):
  run, rows, *first = MECHANISMS[name]
  _check(run, neighbours(rows, 2, relation), relation, *first)


@pytest.mark.parametrize('name', MECHANISMS)
def test_every_noisy_sum_is_rounded_to_a_public_grid(name, monkeypatch):
  """Else its low bits tell of the sum."""
  run, rows, *first = MECHANISMS[name]
  rounded = []

  def note(x, scale):
    rounded.append(scale)
    return round_to_grid(x, scale)

  for place, module in list(sys.modules.items()):
    if place.startswith('tfdpflows.') and hasattr(module, 'round_to_grid'):
      monkeypatch.setattr(module, 'round_to_grid', note)
  noted = Noted(first=first[0] if first else None)
  run(rows[:3], accounting.PrivacyLedger(), Source(noted))
  scales = [scale for kind, _, scale in noted.sums if kind != 'gumbel']
  assert rounded == scales


@BOTH
@pytest.mark.full
@pytest.mark.parametrize('name', MECHANISMS)
def test_no_pair_of_larger_tables_is_either(name, relation):
  run, rows, *first = MECHANISMS[name]
  found = _check(run, neighbours(rows, 3, relation), relation, *first)
  _print(name, relation, *found)


def _print(name, relation, pairs, largest):
  print(
    f'{name}, {relation.name}: {pairs} pairs, at most {largest:.9f} of what is '
    'charged'
  )


@BOTH
@pytest.mark.parametrize(
  'pairs', [10, pytest.param(100, marks=pytest.mark.full)]
)
@pytest.mark.parametrize('name', MECHANISMS)
def test_no_random_pair_is_either(name, pairs, relation):
  run, _, *first = MECHANISMS[name]
  tables = random_neighbours(ROWS[name], pairs, relation)
  _print(name, relation, *_check(run, tables, relation, *first, least=0))


# Units of several rows: tables are dicts of the rows of each identifier.


def _of_units(run, **kwargs):
  def of_units(table, ledger, source):
    rows = [row for unit in table.values() for row in unit]
    ids = np.repeat(list(table), [len(unit) for unit in table.values()])
    units = sampling.Units(ids, name='person', **kwargs)
    run(rows, ledger, source, units=units)

  return of_units


def unit_neighbours(draw, pairs, relation):
  """Pairs of tables of 2 to 8 units of 1 to 6 rows, half of them all alike."""
  rng = np.random.default_rng(0)

  def unit():
    count = rng.integers(1, 7)
    if rng.random() < 0.5:
      return [draw(rng)] * count
    return [draw(rng) for _ in range(count)]

  for number in range(pairs):
    if number % 5 == 0:
      table = {int(name): unit() for name in range(rng.integers(2, 9))}
    name = int(rng.integers(len(table)))
    rest = {key: table[key] for key in table if key != name}
    if relation is NeighboringRelation.REPLACE_ONE:
      # Under its own identifier, or another one.
      yield table, {**rest, int(rng.choice([name, 9])): unit()}
    elif number % 2:
      yield table, rest
    else:
      yield table, {9: unit(), **table}


@BOTH
@pytest.mark.parametrize(
  ('most', 'weighting'),
  thinned([(4, 'units'), (1, 'rows'), (4, 'rows'), (1, 'units')], 2),
)
@pytest.mark.parametrize(
  'name',
  [
    n
    for n in MECHANISMS
    if 'normal' not in n and n not in ('exact counts', 'total variation')
  ],
)
def test_no_pair_that_differs_by_a_unit_is_either(
  name, weighting, most, relation
):
  run, _, *first = MECHANISMS[name]
  run = _of_units(run, weighting=weighting, max_rows_per_unit=most)
  tables = unit_neighbours(ROWS[name], 20, relation)
  kwargs = {'least': 0, 'privacy_unit': 'person'}
  _print(name, relation, *_check(run, tables, relation, *first, **kwargs))


def test_max_rows():
  """The number of units is public: one is replaced."""
  relation = NeighboringRelation.REPLACE_ONE

  def run(table, ledger, source):
    ids = np.repeat(list(table), [len(unit) for unit in table.values()])
    units = sampling.Units(ids, max_rows_per_unit=5, name='person')
    mechanisms.private_max_rows(
      units, epsilon=0.5, ledger=ledger, randomness=source
    )

  tables = unit_neighbours(ROWS['marginals'], 40, relation)
  _check(run, tables, relation, least=0.9, privacy_unit='person')


@ONE
def test_initialization(relation, monkeypatch):
  check, checked = initialization._check_parts, []

  def check_once(*arguments):
    # It sees no row, and the flow is the same for all tables.
    if not checked:
      check(*arguments)
      checked.append(True)

  monkeypatch.setattr(initialization, '_check_parts', check_once)
  tables = neighbours([-3.0, 0.5, np.nan], 1, relation)
  _check(_initialization, tables, relation)
  assert checked


# Choices among candidates that depend on the table: their densities.


def _log_density(values, lower, upper, log_weights, at):
  edges = np.concatenate(
    [[lower], np.sort(np.clip(values, lower, upper)), [upper]]
  )
  with np.errstate(divide='ignore', invalid='ignore'):
    density = log_weights - np.log(np.diff(edges))
  return density[np.searchsorted(edges, at, side='right') - 1]


def _check_quantile(run, values_of, rows, most, relation):
  """`run` releases a quantile of `values_of(table)` in [0, 4]."""
  at = np.arange(0.05, 4.0, 0.1)
  worst = 0.0
  for one, two in neighbours(rows, most, relation):
    densities = []
    for table in (one, two):
      noted = Noted()
      ledger = accounting.PrivacyLedger(neighboring_relation=relation)
      run(table, ledger, Source(noted))
      ((_, log_weights, _),) = noted.sums
      densities.append(
        _log_density(values_of(table), 0.0, 4.0, log_weights, at)
      )
    found = np.ptp(densities[0] - densities[1])
    price = charged(ledger)
    assert found <= price.chosen * (1 + 1e-9), (one, two)
    worst = max(worst, found)
  assert worst > 0.2 * price.chosen


@BOTH
@pytest.mark.parametrize('q', [0.0, 0.3, 0.5, 1.0])
def test_quantile(q, relation):
  def run(table, ledger, source):
    mechanisms.private_quantile(
      np.array(table, float),
      q,
      lower=0.0,
      upper=4.0,
      epsilon=0.5,
      ledger=ledger,
      randomness=source,
    )

  values_of = lambda table: np.where(np.isnan(table), 4.0, table)
  _check_quantile(run, values_of, [-1.0, 1.0, 2.5, np.nan], 3, relation)


@ONE
def test_anomaly_threshold(relation):
  normal = tfp.distributions.MultivariateNormalDiag([0.0], [1.0])
  detector = models.AnomalyDetector(normal, 0.0)

  def run(table, ledger, source):
    models.AnomalyDetector.from_private(
      normal,
      np.reshape(np.array(table, np.float32), [-1, 1]),
      false_positive_rate=0.2,
      epsilon=0.5,
      bounds=(0.0, 4.0),
      ledger=ledger,
      randomness=source,
    )

  def values_of(table):
    rows = np.reshape(np.array(table, np.float32), [-1, 1])
    scores = detector._scores(rows) if len(rows) else np.zeros(0)
    return np.where(np.isnan(rows[:, 0]), 4.0, scores)

  _check_quantile(run, values_of, [0.0, 1.5, np.nan], 1, relation)


# Categories: the exact chance of every set that may be shown.


class Scripted:
  """A generator whose Gaussian noise is given: that of all looks, then none."""

  def __init__(self, script):
    self._script, self.scales = script, []

  def normal(self, scale, size):
    if len(self.scales) == bounds._LOOKS:
      return np.zeros(size)
    self.scales.append(scale)
    return self._script(size)


ENUM = TableSchema([Field('c', 'string', enum=('x',), from_data=('enum',))])
EVENT = {r: bounds.bounds_event(ENUM, 1.0, 0.01, r) for r in RELATIONS}


def _shown(table, place, noise, relation, ids=None):
  """Whether a category of a table is shown, given its noise; and the scale."""

  def script(size):
    drawn = np.full(size, -1e9)
    drawn[place] = noise
    return drawn

  source = Source(Scripted(script))
  units = None
  if ids is not None:
    units = sampling.Units(ids, max_rows_per_unit=3, name='person')
  ledger = accounting.PrivacyLedger(
    neighboring_relation=relation, privacy_unit=units and units.name
  )
  df = pd.DataFrame({'c': table}, dtype=object)
  shown = True
  try:
    mechanisms.private_bounds(df, ENUM, 1.0, 0.01, source, ledger, units=units)
  except ValueError as error:
    if 'above the noise for the enum' not in str(error):
      raise
    shown = False
  # The same noise in all looks is as likely as one at their joint precision.
  scale = sum(s**-2 for s in source._stream.scales) ** -0.5
  return shown, scale, ledger


def _distribution(table, categories, relation, ids=None):
  """The chance of every set of categories, and the ledger."""
  seen = sorted(set(table))
  chances, ledger = {}, None
  for place, category in enumerate(seen):
    low, high = -30.0, 30.0
    for _ in range(32):
      middle = (low + high) / 2
      shown, scale, ledger = _shown(table, place, middle, relation, ids)
      low, high = (low, middle) if shown else (middle, high)
    chances[category] = statistics.NormalDist().cdf(-low / scale)
  return {
    shown: math.prod(
      chances.get(c, 0.0) if c in shown else 1 - chances.get(c, 0.0)
      for c in categories
    )
    for k in range(len(categories) + 1)
    for shown in itertools.combinations(categories, k)
  }, ledger


@ONE
@pytest.mark.parametrize(
  'sizes', [(1,), pytest.param((1, 2, 3), marks=pytest.mark.full)]
)
def test_categories(sizes, relation):
  """Of 20,000 runs with a row replaced, .441 showed what .088 showed before."""
  categories = ('a', 'b', 'c')
  found = {}

  def distribution(table):
    table = tuple(sorted(table))
    if table not in found:
      found[table] = _distribution(table, categories, relation)
    return found[table]

  worst = 0.0
  for size in sizes:
    # The last counts are near the threshold, where both tails matter.
    for common in ('', 'aaa', 'aaaaabbbbb'):
      for pair in neighbours(categories, size, relation):
        one, two = ([*table, *common] for table in pair)
        if not (one and two):
          continue
        (p, ledger), (q, _) = distribution(one), distribution(two)
        epsilon, delta = 1.0, 0.01
        assert ledger.entries[0].event == EVENT[relation]
        lost = sum(max(p[s] - math.exp(epsilon) * q[s], 0.0) for s in p)
        assert lost <= delta * (1 + 1e-6), (one, two)
        worst = max(worst, lost)
  # Of the tenth of delta for categories, half is for another look.
  assert worst > 0.02 * delta


@pytest.mark.parametrize(
  'own', thinned(['ddd', 'ade', 'aad', 'd', 'def', 'de'], 3)
)
def test_categories_of_a_unit(own):
  """A unit that alone has several categories, or shares some of them."""
  relation = NeighboringRelation.ADD_OR_REMOVE_ONE
  categories = ('a', 'b', 'd', 'e', 'f')
  common = 'aaaaabb'
  ids = [*range(len(common)), *[99] * len(own)]
  p, _ = _distribution([*common, *own], categories, relation, ids)
  q, _ = _distribution([*common], categories, relation, ids[: len(common)])
  for one, two in ((p, q), (q, p)):
    lost = sum(max(one[s] - math.exp(1.0) * two[s], 0.0) for s in one)
    assert lost <= 0.01 * (1 + 1e-6)
  if own == 'ddd':
    lost = sum(max(p[s] - math.exp(1.0) * q[s], 0.0) for s in p)
    assert lost > 0.01 * 0.01


# Moments, of which a private mixture is made.


def _distance(sums, others, noise):
  """How far two `Moments` are apart, in units of the noise, as a `Price`."""
  count, first, second = (
    np.abs(getattr(sums, name) - getattr(others, name)) / std
    for name, std in zip(('counts', 'first', 'second'), noise.stds)
  )
  # Off the diagonal there is half the variance, of one number in two places.
  price = Price(gaussian=(second**2).sum())
  if noise.kind == 'gaussian':
    price.gaussian += (count**2).sum() + (first**2).sum()
  else:
    price.pure = math.sqrt(2) * (count.sum() + first.sum())
  return price


BAD_ROWS = [[0.0, 0.0], [2.0, -1.0], [0.3, 0.4], [1e200, 1.0], [np.nan, 0.0]]


@BOTH
@pytest.mark.parametrize('kind', ['gaussian', 'laplace'])
def test_moments(kind, relation):
  noise = moments.MomentNoise(2.0, 2, 1.5, kind)
  ledger = accounting.PrivacyLedger(neighboring_relation=relation)
  ledger.charge(noise.event, label='moments')
  price, worst = charged(ledger), Price()
  weights = [[1.0, 0.0], [0.5, 0.5], [3.0, -1.0]]
  rows = list(itertools.product(map(tuple, weights), map(tuple, BAD_ROWS)))

  def sums(table):
    w = np.reshape([w for w, _ in table], [-1, 2])
    x = np.reshape([x for _, x in table], [-1, 2])
    return moments._sums([(w, np.stack([x, x]))], 2, 2, noise.radius)

  for one, two in neighbours(rows, 2, relation):
    found = _distance(sums(one), sums(two), noise)
    assert price.covers(found), (one, two)
    worst = Price(
      *map(max, dataclasses.astuple(worst), dataclasses.astuple(found))
    )
  assert worst.gaussian > 0.2 * price.gaussian
  assert worst.pure >= 0.2 * price.pure


@pytest.mark.parametrize(
  ('kind', 'relation'),
  thinned(
    itertools.product(['gaussian', 'laplace'], RELATIONS),
    # Each kind and each relation.
    lambda point: (point[0] == 'gaussian') == (point[1] is RELATIONS[0]),
  ),
  ids=lambda part: getattr(part, 'name', part),
)
def test_private_mixtures(kind, relation, monkeypatch):
  mixture = models.DPMoG(2, 2, noise=kind)
  ledger = accounting.PrivacyLedger(neighboring_relation=relation)
  mixture.fit(np.zeros([4, 2]), epsilon=4.0, delta=1e-3, ledger=ledger, seed=0)
  em = mixture._calibrate(
    2,
    accounting.PrivacyBudget(epsilon=4.0, delta=1e-3),
    accountant='pld',
    neighboring_relation=relation,
  )
  noises = em.noises
  assert ledger.entries[0].event == em.event
  assert em.event == dp_accounting.ComposedDpEvent(
    [noise.event for noise in noises]
  )
  price, seen = charged(ledger), []

  def look(parts, k, noise, rng):
    sums = moments._sums(parts, k, noise.event_size, noise.radius)
    seen[-1].append((sums, noise))
    return given[len(seen[-1]) - 1]

  monkeypatch.setattr(em_lib, 'noisy_moments', look)
  # Whatever rounds release, here of components that are apart: the same for
  # both tables.
  rng = np.random.default_rng(0)
  given = [
    moments.noisy_moments(
      [(np.full([200, k], 1 / k), rng.normal(size=[k, 200, 2]))],
      k,
      noise,
      rng,
    )
    for k, noise in zip((1, 1, 1, 2, 2), noises)
  ]
  for pair in neighbours([tuple(row) for row in BAD_ROWS], 2, relation):
    seen.clear()
    for rows in pair:
      seen.append([])
      em.run(
        np.reshape(np.array(rows, float), [-1, 2]),
        2,
        1e-6,
        np.random.default_rng(1),
      )
    found = Price()
    for (one, noise), (two, _) in zip(seen[0], seen[1]):
      moved = _distance(one, two, noise)
      found.gaussian += moved.gaussian
      found.pure += moved.pure
    assert len(seen[0]) == len(noises)
    assert price.covers(found), pair


# Relations that no proof here knows.


def test_other_relations_are_refused_by_name():
  special = NeighboringRelation.REPLACE_SPECIAL
  ledger = accounting.PrivacyLedger(neighboring_relation=special)
  with pytest.raises(ValueError, match='REPLACE_SPECIAL is not supported'):
    models.DPMoG(2).fit(
      np.zeros([9, 2]), epsilon=1.0, delta=1e-5, ledger=ledger
    )
  assert not ledger.entries

  class Ledger:
    neighboring_relation = special

    def charge(self, *args, **kwargs):
      pytest.fail('charged')

  for run, rows, *_ in (*MECHANISMS.values(), (_initialization, [0.5, 1.0])):
    with pytest.raises(ValueError, match='REPLACE_SPECIAL is not supported'):
      run(rows[:2], Ledger(), Source(Noted()))
  for relation in NeighboringRelation:
    if relation not in RELATIONS:
      with pytest.raises(ValueError, match=relation.name):
        releases.differing_rows(relation)


def test_there_is_a_row_for_every_mechanism():
  """Whatever the package exports that draws noise is tried above.

  So is `moments.noisy_moments`, which mixtures charge for.
  """
  tried = {
    'from_exact_counts',
    'noisy_histograms',
    'noisy_marginals',
    'noisy_mean',
    'noisy_total_variation',
    'select_marginal',
    'private_normalization',
    'private_bounds',
    'private_max_rows',
    'private_quantile',
  }
  drawing = ('private_', 'noisy_', 'select_', 'from_')
  assert {n for n in mechanisms.__all__ if n.startswith(drawing)} == tried
