"""How many rows of a unit to use, chosen privately."""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from tfdpflows._checks import check_fraction, check_positive
from tfdpflows.accounting import ExponentialMechanismDpEvent, PrivacyLedger
from tfdpflows.mechanisms.releases import charge_release, drawn_by_weight
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units


def private_max_rows(
  units: Units,
  *,
  epsilon: float,
  ledger: PrivacyLedger,
  share_per_doubling: float = 0.1,
  randomness: Optional[Randomness] = None,
  label: str = 'max rows per unit',
  resume: bool = False,
) -> int:
  """Returns how many rows of a unit to use, for `units.limited`.

  Twice the number doubles the noise over the weight of a row, and must be worth
  that: it has to cover at least a share of all units, with all their rows or
  with as many as may be used.

  Args:
    units: the `sampling.Units`, with the largest number of rows to return.
    epsilon: of the exponential mechanism.
    ledger: see `tfdpflows.mechanisms`, as the errors.
    share_per_doubling: the share of the units, in (0, 1).
    randomness: see `tfdpflows.mechanisms`.
    label: see there.
    resume: see there.

  Returns:
    An integer in [1, units.max_rows_per_unit].

  Raises:
    ValueError: for a number out of range.

  #### Formal guarantee

  The number k is drawn with probability proportional to `exp(epsilon u(k))`,

      u(k) = -(number of units with more than k rows)
             - share_per_doubling num_units log2(k),

  where rows beyond the largest number count for nothing: with that all units
  are covered. The number of units is public. One unit more makes u(k) smaller
  by 1 for k below its number of rows and changes it for no other k; one that is
  replaced moves all u(k) that change by 1 in one direction. So the bounded
  range of the mechanism is epsilon, `ExponentialMechanismDpEvent(epsilon)`.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms, sampling
  >>> from tfdpflows.randomness import Randomness
  >>> ids = np.repeat(np.arange(1000), [*[2] * 900, *[50] * 100])
  >>> units = sampling.Units(ids, max_rows_per_unit=100, name='person')
  >>> ledger = accounting.PrivacyLedger(privacy_unit='person')
  >>> most = mechanisms.private_max_rows(
  ...   units, epsilon=.5, ledger=ledger, randomness=Randomness(seed=0))
  >>> units.limited(most).max_rows_per_unit
  2
  """
  share = check_fraction('share_per_doubling', share_per_doubling)
  upper = units.max_rows_per_unit
  randomness = charge_release(
    ledger,
    ExponentialMechanismDpEvent(check_positive('epsilon', epsilon)),
    label=label,
    randomness=randomness,
    facts={
      'release': 'max rows per unit',
      'share_per_doubling': share,
      'upper': upper,
      'epsilon': epsilon,
    },
    arrays=[units.rows_per_unit],
    resume=resume,
    units=units,
  )
  counts = np.minimum(units.rows_per_unit, upper)
  covered = np.cumsum(np.bincount(counts, minlength=upper + 1))[1:]
  doublings = [math.log2(k) for k in range(1, upper + 1)]
  utilities = covered - units.num_units * (1 + share * np.array(doublings))
  return drawn_by_weight(epsilon * utilities, randomness.numpy(str(label))) + 1
