"""Types, ranges and categories of one column, of noisy counts of its values.

Nothing is charged here: `mechanisms.bounds` releases these of whole tables.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from tfdpflows.mechanisms.releases import as_floats
from tfdpflows.noise_grid import add_noise

# Bins of numbers end at powers of two: 0, 2**-32, 2**-31, ..., 2**120.
_NUMBER_EXPONENTS = (-32, 120)
_INTEGER_EXPONENTS = (0, 53)
_KINDS = ('boolean', 'integer', 'number', 'string')
# The largest share of other values in a column of numbers, and of values that
# are not whole in a column of integers.
_FOREIGN, _FRACTIONAL = 0.05, 0.01
# Probability that an empty count passes for a type.
_TYPE_ALARM = 0.01
# Probabilities that an empty bin passes: of all bins of a column together,
# where it would make the range absurd; of those of the other sign, where it
# makes it twice as wide; and next to the end of what is seen.
_FAR_ALARM, _BELOW_ALARM, _NEAR_ALARM = 1e-3, 2e-2, 5e-3
# Numbers of bins that are looked at together.
_WINDOWS = (1, 2, 4)
# So many bins are looked at together beyond an end, which is moved further out
# until no more than a share of the rows is expected there, if bins go on to
# become emptier as they do; but no more than so many bins.
_NEAR, _TAIL, _MOST_FURTHER = 3, 1e-3, 4
_SLOWEST_DECAY = 0.75


@dataclasses.dataclass(frozen=True)
class Noise:
  """Noise on counts of which a row changes one by 1.

  Attributes:
    scale: of the noise: the standard deviation of a Gaussian, or the `1 /
      epsilon` of Laplace noise.
    gaussian: whether it is Gaussian, or else Laplace noise.

  >>> round(Noise(10.0).quantile(0.01), 1)
  23.3
  """

  scale: float
  gaussian: bool = True

  @property
  def std(self) -> float:
    """Its standard deviation."""
    return self.scale if self.gaussian else math.sqrt(2) * self.scale

  def add(self, counts: npt.ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """Returns counts with noise."""
    counts = np.asarray(counts, np.float64)
    draw = rng.normal if self.gaussian else rng.laplace
    return add_noise(counts, self.scale, draw)

  def quantile(self, probability: float) -> float:
    """Returns what it exceeds with this probability, below 1/2."""
    if self.gaussian:
      return -statistics.NormalDist().inv_cdf(probability) * self.scale
    return -math.log(2 * probability) * self.scale


def private_type(
  kinds: Iterable[Any],
  noise: Noise,
  rng: np.random.Generator,
  weights: Optional[npt.ArrayLike] = None,
) -> Optional[str]:
  """Returns the narrowest type that holds all but a few values, privately.

  A few are as many as the noise may add, and 5 % of all where the others are
  numbers (1 % where the others are whole). `kinds [n]` has the apparent type of
  each value; entries that are no type are left out. `weights [n]` is what each
  counts, 1 by default. `None` is returned if no count rises above the noise.

  A row changes one of the four counts, by 1.

  >>> kinds = ['integer'] * 900 + ['number'] * 300 + ['string']
  >>> private_type(kinds, Noise(2.0), np.random.default_rng(0))
  'number'
  """
  counts = dict.fromkeys(_KINDS, 0.0)
  for kind, weight in zip(kinds, _weights(weights, kinds)):
    if kind in counts:
      counts[kind] += weight
  noisy = noise.add([*counts.values()], rng)
  boolean, integer, number, string = noisy
  high = noise.quantile(_TYPE_ALARM)
  total = max(noisy.sum(), 0.0)
  foreign = high + _FOREIGN * total
  if noisy.max() <= high:
    return None
  numeric = integer + number
  if string > foreign or (boolean > foreign and numeric > foreign):
    return 'string'
  if boolean > numeric:
    return 'boolean'
  return 'number' if number > high + _FRACTIONAL * total else 'integer'


class Bins:
  """Noisy counts of numbers by powers of two, and a range that is read off.

  Args:
    values: numbers; NaN and infinite ones count as missing.
    integer: whether bounds are to be whole.
    weights: what each value counts, 1 by default.
    limits: public bounds, infinite where there is none.

  A row changes one count, by 1; all that is read off them is post-processing.

  #### Example

  >>> ages = np.random.default_rng(0).integers(18, 91, 5000)
  >>> bins = Bins(ages, integer=True)
  >>> bins.measure(Noise(2.0), np.random.default_rng(1))
  >>> bins.range()
  (0, 127)
  """

  kind = 'range'

  def __init__(
    self,
    values: npt.ArrayLike,
    integer: bool = False,
    weights: Optional[npt.ArrayLike] = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
  ):
    values = as_floats(values, 'values')
    weights = _weights(weights, values)
    known = np.isfinite(values)
    self._edges = edges = _edges('integer' if integer else 'number')
    self._integer, self._limits = integer, limits
    values = np.clip(np.clip(values[known], *limits), *edges[[0, -1]])
    values = np.minimum(values, np.nextafter(edges[-1], 0))
    counts = np.histogram(values, edges, weights=weights[known])[0]
    self._counts = np.append(counts, weights[~known].sum())
    # The mean of noisy counts by precision, and its noise.
    self._noisy = self._noise = None

  def include(self, other: Bins) -> None:
    """Counts the rows of another part of the column too, before any noise."""
    self._counts = self._counts + other._counts

  def measure(self, noise: Noise, rng: np.random.Generator) -> None:
    """Counts with noise; more than once to be more exact."""
    noisy = noise.add(self._counts, rng)
    if self._noise is not None:
      noisy, scale = _joined(self._noisy, self._noise.scale, noisy, noise.scale)
      # Sums of Laplace noise have lighter tails than it has.
      noise = Noise(scale, noise.gaussian)
    self._noisy, self._noise = noisy, noise

  def explained(self) -> float:
    """About how many rows are missing, or in bins that stand out."""
    sides, seen = self._sides()
    inside = sum(side[places].sum() for side, places in zip(sides, seen))
    return inside + self._noisy[-1]

  def range(self) -> Optional[tuple[float, float]]:
    """Returns a range that holds nearly all values, `None` if too few.

    It holds all bins that stand out of the noise, alone or with neighbours, and
    goes on outwards: over bins close by that stand out less, and then as far as
    one value in a thousand is expected, had each further bin the share of the
    one before that the last two have, but by no more than four bins. A range
    that is too wide costs later histograms little, and one that is too narrow
    costs rows. Of the ends of a range of one sign the nearer one is zero.
    """
    noise, (sides, seen) = self._noise, self._sides()
    if not any(places.any() for places in seen):
      return None
    ends = [*map(_last, seen)]
    total = sum(side[places].sum() for side, places in zip(sides, seen))
    # As small values of the other sign cost little, less has to be seen of
    # them.
    highest = max(ends)
    below = noise.quantile(_BELOW_ALARM / highest)
    ends = [
      max(end, _last(side[:highest] > below)) for side, end in zip(sides, ends)
    ]
    ends = [
      _further(side, end, noise, total) if end else 0
      for side, end in zip(sides, ends)
    ]
    zero = len(self._edges) // 2
    low, high = self._edges[zero - ends[0]], self._edges[zero + ends[1]]
    if self._integer:
      # The last bin ends before its edge.
      return int(low), int(max(high - 1, low))
    return float(low), float(high)

  def constraints(self) -> Optional[dict[str, float]]:
    """Returns those of a field, within the limits."""
    found = self.range()
    if found is None:
      return None
    low, high = self._limits
    return {
      'minimum': min(max(found[0], low), high),
      'maximum': max(min(found[1], high), low),
    }

  def _sides(self):
    """Bins by distance from zero, the nearest first, and which stand out."""
    noisy, noise = self._noisy[:-1], self._noise
    zero = len(noisy) // 2
    sides = noisy[:zero][::-1], noisy[zero:]
    far = noise.quantile(_FAR_ALARM / len(noisy) / len(_WINDOWS))
    return sides, [_seen(side, far, noise.std) for side in sides]


def _seen(counts, threshold, std):
  """Which bins stand out of the noise, alone or with their neighbours."""
  seen = counts > threshold
  for width in _WINDOWS[1:]:
    left = np.where(seen, 0.0, counts)
    sums = np.convolve(left, np.ones(width), 'valid')
    for first in np.flatnonzero(sums > threshold * math.sqrt(width)):
      # Those of them that are likely to hold something.
      seen[first : first + width] |= left[first : first + width] > std
  return seen


def _last(passed):
  """How many bins lie up to the last one that passed."""
  places = np.flatnonzero(passed)
  return int(places[-1]) + 1 if len(places) else 0


def _further(counts, end, noise, total):
  """Moves an end outwards: bins are counted from zero, `end` is how many."""
  near, few, moved = noise.quantile(_NEAR_ALARM), _TAIL * total, True
  while moved:
    ahead = np.cumsum(counts[end : end + _NEAR])
    # Nor are bins followed that hold less than is given up in the end.
    least = np.maximum(near * np.sqrt(np.arange(len(ahead)) + 1), few)
    moved = _last(ahead > least)
    end += moved
  last = max(counts[end - 1], noise.std)
  following = counts[end] if end < len(counts) else 0.0
  ratio = (max(following, 0.0) + noise.std) / last
  ratio = min(ratio, _SLOWEST_DECAY)
  expected, further = last * ratio / (1 - ratio), 0
  while expected > few and further < _MOST_FURTHER:
    expected, further = expected * ratio, further + 1
  return min(end + further, len(counts))


def lowest_seen(noise: Noise) -> float:
  """Returns about how many equal numbers rise above the noise of `Bins`."""
  return noise.quantile(_FAR_ALARM / len(_WINDOWS) / len(_edges('number')))


def _edges(kind):
  low, high = _INTEGER_EXPONENTS if kind == 'integer' else _NUMBER_EXPONENTS
  positive = np.append(0.0, 2.0 ** np.arange(low, high + 1))
  return np.concatenate([-positive[:0:-1], positive])


class Categories:
  """Noisy counts of the categories that rows have, and those that many have.

  Categories are strings, booleans and numbers, integers up to 2**53; other
  values count as missing.

  Args:
    column: the values.
    weights: what each value counts, 1 by default.
    delta: probability with which a category that one row alone has may be shown
      in a look.

  #### Formal guarantee

  A row has one category (Korolova et al., 2009). If others have it too, it
  changes one noisy count by 1. If the row is the only one, it passes what the
  noise exceeds with probability `delta`, and 1 more, with probability `delta`
  at most in each look; but for that, its count is as good as absent.
  Replacing a row changes two categories, whose noise is independent, and either
  may be shown. Where a unit of k rows, whose weights add up to 1, is added or
  removed, it is the only one in k categories at most, of which any is shown
  with probability `k delta`.

  #### Example

  >>> colours = ['red'] * 500 + ['blue'] * 400 + ['my name']
  >>> categories = Categories(colours, delta=1e-6)
  >>> categories.measure(Noise(2.0), np.random.default_rng(0))
  >>> categories.enum()
  ('blue', 'red')
  """

  kind = 'enum'

  def __init__(
    self,
    column: Iterable[Any],
    weights: Optional[npt.ArrayLike] = None,
    *,
    delta: float,
  ):
    keys = _keys(column)
    self._known = sorted(set(keys) - {_key(None)})
    self._places = self._numbered(keys)
    self._names = [value for _, value in self._known]
    self._weights, self._delta = _weights(weights, column), delta
    # Of each category, and of what is missing: noisy counts, and the scale of
    # the noise of each.
    self._noisy = self._scales = None

  def measure(self, noise: Noise, rng: np.random.Generator) -> None:
    """Counts all rows with noise."""
    self._noisy = noise.add(self._counts(), rng)
    self._scales = np.full(self._noisy.shape, noise.scale)

  def _counts(self):
    return np.bincount(self._places, self._weights, len(self._names) + 1)

  def counted(self) -> dict[tuple[str, Any], float]:
    """Returns what the rows of each category count, by `_key` of it."""
    keys = [*self._known, _key(None)]
    return dict(zip(keys, self._counts()))

  def no_counts(self) -> np.ndarray:
    """Returns a zero for each category, and for what is missing."""
    return np.zeros(len(self._names) + 1)

  def places(self, column: Iterable[Any]) -> np.ndarray:
    """Returns which category each row of a part of the column has.

    The number of categories stands for none.
    """
    return self._numbered(_keys(column))

  def _numbered(self, keys):
    numbers = {key: number for number, key in enumerate(self._known)}
    return np.array([numbers.get(k, len(numbers)) for k in keys], np.int64)

  def left(self, places: np.ndarray) -> np.ndarray:
    """Returns which of the rows have a category that is not shown, `[n]`."""
    return np.append(~self._shown(), False)[places]

  def add_counts(
    self, counts: np.ndarray, noise: Noise, rng: np.random.Generator
  ) -> None:
    """Measures the counts of parts of the rows that are `left`."""
    again = np.append(~self._shown(), False)
    both, scales = _joined(
      self._noisy, self._scales, noise.add(counts, rng), noise.scale
    )
    self._noisy = np.where(again, both, self._noisy)
    self._scales = np.where(again, scales, self._scales)

  def explained(self) -> float:
    """About how many rows are missing, or in categories that are shown."""
    return float(self._noisy[np.append(self._shown(), True)].sum())

  def enum(self) -> tuple[Any, ...]:
    """Returns the categories that enough rows have, sorted."""
    return tuple(n for n, shown in zip(self._names, self._shown()) if shown)

  def constraints(self) -> Optional[dict[str, tuple]]:
    """Returns that of a field."""
    found = self.enum()
    return {'enum': found} if found else None

  def _shown(self):
    threshold = 1 + Noise(1.0).quantile(self._delta) * self._scales[:-1]
    return self._noisy[:-1] >= threshold


def measure_left(
  categories: Sequence[Categories],
  frames: Iterable[tuple[Sequence[Iterable[Any]], np.ndarray]],
  shares: Sequence[float],
  noise: Noise,
  rng: np.random.Generator,
) -> None:
  """Measures the categories of several columns that are not shown, together.

  Few rows have such a value, and most of them in one column: there it counts
  for as much as all columns have together. In several it counts by the square
  roots of the shares, divided by their l2 norm.

  Args:
    categories: of the columns of a table.
    frames: parts of the rows: those columns, and what each row counts.
    shares: positive, one for each.
    noise: on each of the counts.
    rng: its generator.

  #### Formal guarantee

  A row changes all these counts together by at most 1 in the l2 norm, whatever
  is shown before: this is one Gaussian mechanism. So it is for a unit, whose
  weights add up to 1 at most. A category that one row alone has is counted by
  at most 1; see `Categories`.
  """
  sums = [some.no_counts() for some in categories]
  for columns, weights in frames:
    places = [some.places(c) for some, c in zip(categories, columns)]
    left = [some.left(place) for some, place in zip(categories, places)]
    parts = parts_of_rows(left, shares) * weights[:, None]
    for counts, place, part in zip(sums, places, parts.T):
      # One row after the other: the sum does not depend on how they are cut.
      np.add.at(counts, place, part)
  for some, counts in zip(categories, sums):
    some.add_counts(counts, noise, rng)


def parts_of_rows(
  left: Sequence[np.ndarray], shares: Sequence[float]
) -> np.ndarray:
  """Returns what each row counts in each column where it is left, `[n, d]`.

  Args:
    left: bool `[n]` of each of the d columns, see `Categories.left`.
    shares: see `measure_left`.
  """
  left = np.stack(left, 1)
  parts = left * np.sqrt(np.asarray(shares, np.float64))
  norms = np.sqrt((parts**2).sum(1, keepdims=True))
  # Rounded, a quotient may have a norm above 1.
  return parts / np.where(norms > 0, norms * (1 + 1e-12), 1.0)


def _joined(noisy, scale, more, more_scale):
  """The mean of two noisy counts by precision, and the scale of its noise."""
  first, second = scale**-2, more_scale**-2
  both = first + second
  return (first * noisy + second * more) / both, both**-0.5


def _weights(weights, values):
  return np.ones(len(values)) if weights is None else np.asarray(weights)


def _keys(column):
  return [_key(_plain(value)) for value in column]


def _key(category):
  """Tells a category from those that Python takes for equal: 1, 1.0 and True.

  Which of them stood first, and gave the name, would tell of a row.
  """
  return type(category).__name__, category


def _plain(value):
  """A category as Python's own type; `None` for what is missing or none."""
  if isinstance(value, str):
    return str(value)
  if isinstance(value, (bool, np.bool_)):
    return bool(value)
  if isinstance(value, (int, np.integer)):
    # Fields have no larger ones.
    return int(value) if abs(value) <= 2 ** _INTEGER_EXPONENTS[1] else None
  if isinstance(value, (float, np.floating)) and np.isfinite(value):
    return float(value) + 0.0
  return None
