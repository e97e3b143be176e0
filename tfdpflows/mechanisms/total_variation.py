"""How far the marginals of a table are from those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_integer, check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms.marginals import (
  MOST_EXPECTED,
  BinnedRows,
  as_binned,
  checked_groups,
  listed_groups,
)
from tfdpflows.mechanisms.releases import charge_release
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness


def noisy_total_variation(
  codes: npt.ArrayLike | BinnedRows,
  sizes: Sequence[int],
  groups: Sequence[Sequence[int]],
  probabilities: Sequence[npt.ArrayLike],
  *,
  noise_multiplier: float,
  ledger: PrivacyLedger,
  num_examples: Optional[int] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'total variation',
  resume: bool = False,
) -> float:
  """Returns the mean total variation distance of marginals, with noise.

  It is the mean over the groups of `|counts_r / n - probabilities_r|_1 / 2`,
  and the standard deviation of its Gaussian noise `noise_multiplier / (2 n)`
  for n rows, whose number is public. Rows have a distance from their
  own distribution, too: about a third of the square root of cells over rows,
  and more where some cells are likelier than others.

  Args:
    codes: see `noisy_marginals`, as the errors.
    sizes: see there.
    groups: see there; one at least.
    probabilities: for each group those that the model gives its cells, of shape
      `sizes[group]`; public.
    noise_multiplier: noise over the sensitivity.
    ledger: see `tfdpflows.mechanisms`, as the errors.
    num_examples: the number to divide by, taken to be public; that of the rows
      by default.
    randomness: see there.
    label: see there.
    resume: see there.

  Returns:
    A float; noise may bring it below 0.

  Raises:
    ValueError: for arguments that `noisy_marginals` refuses, no groups, or
      probabilities that are none.

  #### Formal guarantee

  One row more or less changes one count of each group by one. So it moves the
  mean over the groups of `|counts_r - n probabilities_r|_1` by 1 at most, n
  being public: with noise of `noise_multiplier`,
  `GaussianDpEvent(noise_multiplier)`. Replacing one moves it by 2, which is how
  accountants take the event.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms
  >>> codes = np.repeat([[0, 0], [1, 1]], 5000, axis=0)
  >>> found = mechanisms.noisy_total_variation(
  ...   codes, [2, 2], [(0, 1)], [np.full([2, 2], .25)],
  ...   noise_multiplier=4., ledger=accounting.PrivacyLedger())
  >>> abs(found - .5) < .01
  True
  """
  rows = as_binned(codes, sizes)
  groups = checked_groups(groups, rows.sizes)
  if not groups or len(groups) != len(probabilities):
    raise ValueError(
      f'There are {len(groups)} groups and {len(probabilities)} arrays of '
      'probabilities; give one for each, and at least one.'
    )
  probabilities = [np.asarray(p, np.float64) for p in probabilities]
  for group, p in zip(groups, probabilities):
    shape = tuple(rows.sizes[j] for j in group)
    # NaN is not in range either.
    if p.shape != shape or not (p >= 0).all() or not abs(p.sum() - 1) < 1e-6:
      raise ValueError(
        f'The probabilities of columns {group} have shape {p.shape} and sum '
        f'{p.sum():g}; they must be of shape {shape}, 0 or more, and sum to 1.'
      )
  noise_multiplier = check_positive('noise_multiplier', noise_multiplier)
  if num_examples is None:
    num_examples = len(rows.codes)
    if not num_examples:
      raise ValueError('There are no rows, which have no marginals.')
  count = check_integer('num_examples', num_examples)
  if count > MOST_EXPECTED:
    raise ValueError(
      f'num_examples is {count}; it must be {MOST_EXPECTED:g} at most.'
    )
  randomness = charge_release(
    ledger,
    dp_accounting.GaussianDpEvent(noise_multiplier),
    label=label,
    randomness=randomness,
    facts={
      'release': 'total variation',
      'noise_multiplier': noise_multiplier,
      'num_examples': count,
      'sizes': rows.sizes,
      'groups': listed_groups(groups),
    },
    arrays=[
      rows.fingerprint(randomness),
      np.concatenate([p.ravel() for p in probabilities]),
    ],
    resume=resume,
  )
  distances = [
    np.abs(counts - count * p).sum()
    for counts, p in zip(rows.count_all(groups), probabilities)
  ]
  draw = randomness.numpy(str(label)).normal
  found = add_noise(np.mean(distances), noise_multiplier, draw)
  return float(found) / (2 * count)
