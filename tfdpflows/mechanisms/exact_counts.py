"""Noise on counts that another engine has computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.mechanisms.releases import (
  as_floats,
  charge_release,
  differing_rows,
)
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness

# Counts over their sensitivity, for both to have digits in a float64.
_MOST_DIGITS = 2.0**40


def from_exact_counts(
  counts: Mapping[str, npt.ArrayLike],
  noise_multiplier: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  l2_sensitivity: Optional[float] = None,
  label: str = 'counts',
  resume: bool = False,
) -> dict[str, np.ndarray]:
  """Returns counts with Gaussian noise, that a distributed engine has computed.

  Spark, BigQuery, Beam or PipelineDP count exactly; noise is added here, once,
  by the process that has the ledger. Every array has a count for each of a
  public list of groups: also of those that no row is in, since a group that is
  left out would tell of that. Keep the exact counts private, and throw them
  away.

  Args:
    counts: for each name an array of counts (or sums), of any shape. They are
      clipped to 2^40 times `l2_sensitivity`.
    noise_multiplier: noise multiplier of the joint release; each count gets
      noise of standard deviation `noise_multiplier * l2_sensitivity`.
    randomness: see `tfdpflows.mechanisms`, as the errors; each array draws from
      its stream `(label, name)`.
    ledger: see there. Of one for units that have several rows, give
      `l2_sensitivity` for all the rows of a unit.
    l2_sensitivity: by how much a row (or unit) changes all counts together, in
      the l2 norm: a statement of the caller about the query. By default a row
      is counted at most once in each array, so that it is the square root of
      their number.
    label: see there.
    resume: see there.

  Returns:
    A dict of float64 arrays; they may be negative.

  Raises:
    ValueError: for counts that are no finite numbers, two arrays of one name, a
      number that is not positive, or a ledger of units without
      `l2_sensitivity`.

  #### Formal guarantee

  If adding or removing a row moves the counts by at most `l2_sensitivity`, this
  is `GaussianDpEvent(noise_multiplier)`. Where the ledger's neighbours replace
  a row, it moves them by at most twice as much, which is how accountants take
  the event.

  #### Example

  >>> from tfdpflows import accounting, mechanisms
  >>> by_age = [120, 340, 0, 77]  # SELECT age_group, COUNT(*) ...
  >>> found = mechanisms.from_exact_counts(
  ...   {'age_group': by_age}, 2., None, accounting.PrivacyLedger())
  >>> found['age_group'].shape
  (4,)
  """
  check_ledger(ledger)
  differing_rows(ledger.neighboring_relation)  # Refuses others.
  noise_multiplier = check_positive('noise_multiplier', noise_multiplier)
  arrays = {}
  for name, some in counts.items():
    if str(name) in arrays:
      raise ValueError(
        f'Two arrays of counts are named {str(name)!r}; rename one.'
      )
    arrays[str(name)] = as_floats(some, f'counts[{name!r}]')
  if l2_sensitivity is None:
    if ledger.privacy_unit is not None:
      raise ValueError(
        f'The ledger protects units ({ledger.privacy_unit}), which may have '
        'several rows: give the l2_sensitivity of the counts to all rows of a '
        'unit.'
      )
    l2_sensitivity = math.sqrt(max(len(arrays), 1))
  l2_sensitivity = check_positive('l2_sensitivity', l2_sensitivity)
  if not 1e-100 < noise_multiplier * l2_sensitivity < 1e100:
    raise ValueError(
      f'noise_multiplier is {noise_multiplier:g} and l2_sensitivity '
      f'{l2_sensitivity:g}; their product, the noise, must be from 1e-100 to '
      '1e100: count in another unit.'
    )
  largest = _MOST_DIGITS * l2_sensitivity
  for name, some in arrays.items():
    # NaN and infinity would pass any noise; they tell of a failed query.
    if not np.isfinite(some).all():
      raise ValueError(
        f'counts[{name!r}] has a count that is no finite number; count again, '
        'with 0 where no row is.'
      )
    # Beyond, float64 rounds what a row adds. An error would tell of a count.
    arrays[name] = np.clip(some, -largest, largest)
  if not arrays:
    return {}
  randomness = charge_release(
    ledger,
    dp_accounting.GaussianDpEvent(noise_multiplier),
    label=label,
    randomness=randomness,
    facts={
      'release': 'exact counts',
      'noise_multiplier': noise_multiplier,
      'l2_sensitivity': l2_sensitivity,
      'shapes': {name: list(some.shape) for name, some in arrays.items()},
    },
    # By name, as the noise is: under another name the same array has other
    # noise, and the difference of two arrays with the same noise has none.
    arrays=[arrays[name] for name in sorted(arrays)],
    resume=resume,
    privacy_unit=ledger.privacy_unit,
  )
  std = noise_multiplier * l2_sensitivity
  return {
    name: add_noise(some, std, randomness.numpy(str(label), name).normal)
    for name, some in arrays.items()
  }
