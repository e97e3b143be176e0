"""Rows for the density experiments, scaled in one place by public constants.

Log-likelihoods in nats mean nothing without the units of the rows, and every
data set here has its scaling in `Rows.scaling`. All rows end up in the unit
ball, whose radius is what private priors clip to.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np

from experiments import datasets

NUM_POINTS = 30_000
GENERATED = ('gaussians', 'half_moons', 'pinwheel')
SHARED = ('lifesci', 'gowalla_nyc', 'gowalla_users', 'power')
NAMES = (*SHARED, *GENERATED)

# Follow from how the points are made: all but a few per million lie within, and
# those are moved to the edge.
_RADII = {'gaussians': 5.0, 'half_moons': 2.0, 'pinwheel': 5.0}

# Ranges of what the meter reports and resolutions it reports in: kW, kvar,
# volts, amperes, three times watt-hours, and the minute of the day.
_POWER_RANGES = (
  (0.0, 12.0, 0.002),
  (0.0, 1.5, 0.002),
  (220.0, 260.0, 0.01),
  (0.0, 50.0, 0.2),
  (0.0, 100.0, 1.0),
  (0.0, 100.0, 1.0),
  (0.0, 100.0, 1.0),
  (0.0, 1440.0, 1.0),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
  """A data set for density estimation.

  Attributes:
    name: one of `NAMES`.
    x: float32 `[n, d]`, of l2 norm at most 1.
    delta: the delta at which its experiments state epsilon.
    scaling: what was done to the rows, and why it counts as public.
    note: what else one has to know, such as which part of it this is.
  """

  name: str
  x: np.ndarray
  delta: float
  scaling: str
  note: str = ''

  def split(self, index):
    """Returns `(train, test)`, the rows of one of ten splits; see `split`."""
    train, test = split(len(self.x), index)
    return self.x[train], self.x[test]


def load(name):
  """Loads one of `NAMES`.

  Args:
    name: one of `SHARED`, from the folder `shared` beside the repository, or
      one of `GENERATED`.

  Returns:
    `Rows`.

  Raises:
    FileNotFoundError: if it needs the shared folder and that is not there.
    ValueError: if there is no such data set.
  """
  if name in GENERATED:
    return _generated(name)
  if name not in SHARED:
    raise ValueError(f'No data set {name!r}. Choose one of {NAMES}.')
  loaders = {
    'lifesci': _lifesci,
    'gowalla_nyc': _gowalla_nyc,
    'gowalla_users': _gowalla_users,
    'power': _power,
  }
  return loaders[name](_shared_loader(name))


def split(n, index, num_splits=10):
  """Returns the rows of one split of cross-validation.

  Args:
    n: number of rows.
    index: which split, from 0.
    num_splits: into how many parts the rows are cut, after one public shuffle.

  Returns:
    `(train, test)`, row numbers; part `index` is for testing.

  Raises:
    ValueError: if `index` is out of range.

  #### Example

  >>> train, test = split(100, 0)
  >>> len(train), len(test), len(set(train) & set(test))
  (90, 10, 0)
  """
  if not 0 <= index < num_splits:
    raise ValueError(f'index is {index}; it must be in [0, {num_splits}).')
  order = np.random.default_rng(0).permutation(n)
  start, stop = index * n // num_splits, (index + 1) * n // num_splits
  return np.concatenate([order[:start], order[stop:]]), order[start:stop]


def gaussians(n, rng):
  """Eight round Gaussians on a circle (the toy of FFJORD), `[n, 2]`."""
  angle = rng.integers(8, size=n) * np.pi / 4
  centers = 4 * np.stack([np.cos(angle), np.sin(angle)], 1)
  return (centers + 0.5 * rng.normal(size=[n, 2])) / np.sqrt(2)


def half_moons(n, rng):
  """Two interlocking half circles with noise 0.1, `[n, 2]`."""
  angle, lower = np.pi * rng.random(n), rng.random(n) < 0.5
  x = np.where(lower, 1 - np.cos(angle), np.cos(angle))
  y = np.where(lower, 0.5 - np.sin(angle), np.sin(angle))
  return np.stack([x - 0.5, y - 0.25], 1) + 0.1 * rng.normal(size=[n, 2])


def pinwheel(n, rng):
  """A pinwheel of five arms (Johnson et al. 2016), `[n, 2]`."""
  radial = 1 + 0.3 * rng.normal(size=n)
  tangential = 0.1 * rng.normal(size=n)
  angle = 2 * np.pi * rng.integers(5, size=n) / 5 + 0.25 * np.exp(radial)
  cos, sin = np.cos(angle), np.sin(angle)
  x = radial * cos - tangential * sin
  y = radial * sin + tangential * cos
  return 2 * np.stack([x, y], 1)


def generate(name, n, rng):
  """Makes points of one of `GENERATED`, scaled into the unit ball.

  Args:
    name: one of `GENERATED`.
    n: number of points.
    rng: `np.random.Generator`.

  Returns:
    float32 `[n, 2]`.
  """
  makers = {
    'gaussians': gaussians,
    'half_moons': half_moons,
    'pinwheel': pinwheel,
  }
  x = makers[name](n, rng) / _RADII[name]
  x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
  return x.astype(np.float32)


def _generated(name):
  return Rows(
    name,
    generate(name, NUM_POINTS, np.random.default_rng(0)),
    delta=1e-5,
    scaling=f'divided by {_RADII[name]:g}, known from how the points are made',
    note=f'{NUM_POINTS:,} points, generated with seed 0',
  )


def _lifesci(shared):
  x = shared.lifesci()
  norm = np.linalg.norm(x, axis=1).max()
  return Rows(
    'lifesci',
    (x / norm).astype(np.float32),
    delta=1.52e-5,
    scaling=f'divided by {norm:.4f}, the largest l2 norm of a row, which is '
    'declared public as in DP-EM (Park et al. 2017)',
  )


def _gowalla_nyc(shared):
  center, half = (-73.981, 40.701), (0.279, 0.218)
  return Rows(
    'gowalla_nyc',
    _to_unit_ball(shared.gowalla_nyc(), center, half),
    delta=1e-6,
    scaling='longitude and latitude: the public box of New York City, '
    '-73.981 +- 0.279 and 40.701 +- 0.218 degrees, to [-1, 1], over sqrt 2',
    note='partial: 138,957 check-ins inside of New York City; the guarantee is '
    'for one check-in; points repeat, so that there is no highest likelihood',
  )


def _gowalla_users(shared):
  return Rows(
    'gowalla_users',
    _to_unit_ball(shared.gowalla_users(), (0, 0), (180, 90)),
    delta=1e-5,
    scaling='longitude over 180 and latitude over 90 degrees, over sqrt 2',
    note='partial: the last check-in of the first 10,000 users that have one; '
    'the guarantee is for one user',
  )


def _power(shared):
  x = shared.power_minutes()
  low, high, resolution = np.array(_POWER_RANGES).T
  x = x + resolution * np.random.default_rng(0).random(x.shape)
  return Rows(
    'power',
    _to_unit_ball(x, (low + high) / 2, (high - low) / 2),
    delta=1e-6,
    scaling="uniform noise of the meter's resolution (0.002 kW, 0.002 kvar, "
    '0.01 V, 0.2 A, 1 Wh, 1 min), then declared ranges (0-12 kW, 0-1.5 kvar, '
    '220-260 V, 0-50 A, 0-100 Wh, 0-1440 min) to [-1, 1], over sqrt 8',
    note='partial: the complete minutes of 2006-12-16 to 2007-06-30; the '
    'guarantee is for one minute of one household',
  )


def _to_unit_ball(x, center, half):
  """Moves a box to [-1, 1]^d, clips what is outside, divides by sqrt(d)."""
  x = np.clip((x - np.asarray(center)) / np.asarray(half), -1, 1)
  return (x / np.sqrt(x.shape[1])).astype(np.float32)


def _shared_loader(name):
  path = datasets.SHARED / 'data' / 'load.py'
  if not path.exists():
    raise FileNotFoundError(
      f'Data set {name!r} is read with {path}, which does not exist. Put the '
      f'shared folder there, or use one of {GENERATED}.'
    )
  spec = importlib.util.spec_from_file_location('_tfdpflows_load', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
