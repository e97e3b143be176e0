"""A noisy mean of bounded values, such as a score of a model."""

from __future__ import annotations

from typing import Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_integer, check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms.releases import (
  as_floats,
  charge_release,
  check_bounds,
  row_weights,
)
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units


def noisy_mean(
  values: npt.ArrayLike,
  *,
  lower: float,
  upper: float,
  noise_multiplier: float,
  ledger: PrivacyLedger,
  num_examples: Optional[int] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'mean',
  resume: bool = False,
  units: Optional[Units] = None,
) -> float:
  """Returns the mean of values, one for each row, with Gaussian noise.

  Its standard deviation is `noise_multiplier (upper - lower) / (2 n)` for n
  rows, or units, whose number is public. The values may depend on what was
  released before, such as the log-density of each row under a private model.

  Args:
    values: float array `[n]`. They are clipped to the bounds; NaN is `lower`.
    lower: public lower bound.
    upper: public upper bound, above `lower`.
    noise_multiplier: noise per half the distance of the bounds.
    ledger: see `tfdpflows.mechanisms`, as the errors.
    num_examples: the number to divide by, taken to be public; that of the
      values, or of the units, by default.
    randomness: see there.
    label: see there.
    resume: see there.
    units: see there; a unit then counts by the mean of its rows' values, by
      weight.

  Returns:
    A float; noise may bring it outside of the bounds.

  Raises:
    ValueError: for a shape, dtype or number out of range, or no values.

  #### Formal guarantee

  With the middle m of the bounds and half their distance r, adding or removing
  a row moves `sum (clip(v) - m) / r` by at most 1, and so does a unit, whose
  weights add up to 1 at most: `GaussianDpEvent(noise_multiplier)` under noise
  of `noise_multiplier`. Replacing one moves it by 2, which is how accountants
  take the event. In floats too each row is in [-1, 1], whatever the bounds.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms
  >>> found = mechanisms.noisy_mean(
  ...   np.full(5000, .25), lower=0., upper=1., noise_multiplier=4.,
  ...   ledger=accounting.PrivacyLedger())
  >>> abs(found - .25) < .01
  True
  """
  values = as_floats(values, 'values', ('n',))
  lower, upper = float(lower), float(upper)
  check_bounds(lower, upper)
  noise_multiplier = check_positive('noise_multiplier', noise_multiplier)
  weights = row_weights(units, len(values))
  if num_examples is None:
    num_examples = len(values) if units is None else units.num_units
    if not num_examples:
      raise ValueError('values is empty, and has no mean.')
  count = check_integer('num_examples', num_examples)
  randomness = charge_release(
    ledger,
    dp_accounting.GaussianDpEvent(noise_multiplier),
    label=label,
    randomness=randomness,
    facts={
      'release': 'mean',
      'lower': lower,
      'upper': upper,
      'noise_multiplier': noise_multiplier,
      'num_examples': count,
    },
    arrays=[values],
    resume=resume,
    units=units,
  )
  clipped = np.clip(np.where(np.isnan(values), lower, values), lower, upper)
  # Sums of the values themselves could overflow, and their distance to a
  # rounded middle be twice half that of the bounds.
  parts = 2 * ((clipped - lower) / (upper - lower)) - 1
  draw = randomness.numpy(str(label)).normal
  total = add_noise((parts * weights).sum(), noise_multiplier, draw)
  mean = float(total) / count
  return lower + (upper - lower) * ((mean + 1) / 2)
