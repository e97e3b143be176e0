"""A private quantile, by the exponential mechanism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional, Union

import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_positive
from tfdpflows.accounting import ExponentialMechanismDpEvent, PrivacyLedger
from tfdpflows.mechanisms.releases import (
  as_floats,
  as_numbers,
  charge_release,
  check_bounds,
  differing_rows,
  drawn_by_weight,
)
from tfdpflows.randomness import Randomness

_CELLS = 2**52


def private_quantile(
  values: Union[npt.ArrayLike, Callable[[], npt.ArrayLike]],
  q: float,
  *,
  lower: float,
  upper: float,
  epsilon: float,
  ledger: PrivacyLedger,
  nan: Optional[float] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'quantile',
  resume: bool = False,
  source: Optional[Sequence[npt.ArrayLike]] = None,
) -> float:
  """Returns a number below which about a share `q` of the values lies.

  Smith 2011, algorithm 2, with the sharper sensitivity of neighbours that add
  or remove a row. The error in rank is about `2 log(w) / epsilon` rows, where w
  is the ratio of the distance of the bounds to the gaps between values. A
  quantile with fewer rows than that above (or below) it may be drawn from the
  wide gap beyond the last value.

  Args:
    values: float array `[n]`, or a function that returns it and is called after
      the charge. Clipped to the bounds; may be empty. Each is a function of its
      row to the last bit: where rows are alike, one more or less must not round
      the others otherwise (as networks do in batches of another size).
    q: the share, in [0, 1].
    lower: public lower bound of the values, finite.
    upper: public upper bound of the values, finite and larger.
    epsilon: of the exponential mechanism.
    ledger: see `tfdpflows.mechanisms`, as the errors.
    nan: the public value that NaN stands for; `upper` by default.
    randomness: see `tfdpflows.mechanisms`.
    label: see there.
    resume: see there.
    source: where `values` is a function: all arrays that it computes the values
      from, which are compared to resume.

  Returns:
    A float in [lower, upper].

  Raises:
    ValueError: for a shape, dtype or number out of range.

  #### Formal guarantee

  The candidates are 2^52 cells of equal width, each released as its lower end,
  and values are rounded to the edges of cells, each by itself: whatever the
  values are, the same numbers may be released. A candidate r has the utility
  `u(r) = -|(1 - q) below(r) - q above(r)|`, of the numbers of values below and
  above it, and is drawn with a probability proportional to `exp(epsilon u(r) /
  (2 s))`. One more value adds 1 to `below(r)` or to `above(r)` and so moves
  u(r) by at most `s = max(q, 1 - q)`; the number of values is not taken to be
  public. Where the ledger's neighbours replace a row, both change at once, and
  `s = 1`. So this is the exponential mechanism,
  `ExponentialMechanismDpEvent(epsilon)`. u is constant between neighbouring
  values: an interval is drawn by its number of cells and u, then one of these.
  Equal values leave empty intervals, never drawn.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms
  >>> from tfdpflows.randomness import Randomness
  >>> x = np.random.default_rng(0).normal(size=10_000)
  >>> found = mechanisms.private_quantile(
  ...   x, .975, lower=-10., upper=10., epsilon=.5,
  ...   ledger=accounting.PrivacyLedger(), randomness=Randomness(seed=0))
  >>> 1.85 < found < 2.1
  True
  """
  if not 0 <= q <= 1:
    raise ValueError(f'q is {q}; it must be in [0, 1].')
  check_bounds(lower, upper)
  nan = upper if nan is None else nan
  if not lower <= nan <= upper:
    raise ValueError(f'nan is {nan}; it must be in [{lower}, {upper}].')
  event = ExponentialMechanismDpEvent(check_positive('epsilon', epsilon))
  if not callable(values):
    values = as_numbers(values, 'values', ('n',))
    source = [values]
  elif source is None:
    if resume:
      raise ValueError(
        'To resume with a function as `values`, give `source`, the arrays that '
        'it computes them from, in both calls.'
      )
    source = []
  randomness = charge_release(
    ledger,
    event,
    label=label,
    randomness=randomness,
    facts={
      'release': 'quantile',
      'q': q,
      'lower': lower,
      'upper': upper,
      'nan': nan,
      'epsilon': epsilon,
    },
    arrays=source,
    resume=resume,
  )
  if callable(values):
    values = values()
  values = as_floats(values, 'values', ('n',))
  values = np.where(np.isnan(values), nan, values)
  # One row adds to `above` or to `below`; two are added to one, taken from one.
  rows = differing_rows(ledger.neighboring_relation)
  sensitivity = max(q, 1 - q) if rows == 1 else 1.0
  edges, log_weights = _intervals(
    _edges(values, lower, upper), q, epsilon / (2 * sensitivity)
  )
  rng = randomness.numpy(str(label))
  chosen = drawn_by_weight(log_weights, rng)
  low, high = int(edges[chosen]), int(edges[chosen + 1])
  # By as many bits that all cells are equally likely, whatever their number.
  cell = low + (int.from_bytes(rng.bytes(16), 'big') * (high - low) >> 128)
  return float(np.clip(lower + (upper - lower) * (cell / _CELLS), lower, upper))


def _edges(values, lower, upper):
  """Returns the edges of cells that values are rounded to, numbered from 0."""
  shares = (np.clip(values, lower, upper) - lower) / (upper - lower)
  return np.rint(shares * _CELLS).astype(np.int64)


def _intervals(values, q, per_utility):
  """Returns edges `[n + 2]`, and log-weights `[n + 1]` of what lies between."""
  edges = np.concatenate([[0], np.sort(values), [_CELLS]])
  below = np.arange(len(values) + 1)
  above = len(values) - below
  utility = -np.abs((1 - q) * below - q * above)
  with np.errstate(divide='ignore'):
    lengths = np.log(np.diff(edges))
  return edges, lengths + per_utility * utility
