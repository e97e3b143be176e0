"""Private means and standard deviations of columns."""

from __future__ import annotations

from typing import NamedTuple, Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_integer, check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms.releases import as_numbers, charge_release
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness

# Where squares are counted from, as a share of the squared bound: see the
# guarantee for why these need the least noise.
_LAPLACE_CENTRE = 0.875
_GAUSSIAN_CENTRE = 1.0


class Normalization(NamedTuple):
  """What `private_normalization` releases.

  Attributes:
    mean: float64 `[d]`.
    std: float64 `[d]`, positive.
  """

  mean: np.ndarray
  std: np.ndarray


def normalization_event(
  *, epsilon: Optional[float] = None, noise_multiplier: Optional[float] = None
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of `private_normalization`; see its arguments."""
  if (epsilon is None) == (noise_multiplier is None):
    raise ValueError(
      'Give one of `epsilon`, for Laplace noise, and `noise_multiplier`, for '
      'Gaussian noise.'
    )
  if epsilon is not None:
    return dp_accounting.LaplaceDpEvent(1 / check_positive('epsilon', epsilon))
  return dp_accounting.GaussianDpEvent(
    check_positive('noise_multiplier', noise_multiplier)
  )


def private_normalization(
  x: npt.ArrayLike,
  *,
  bound: npt.ArrayLike,
  ledger: PrivacyLedger,
  epsilon: Optional[float] = None,
  noise_multiplier: Optional[float] = None,
  num_examples: Optional[int] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'normalization',
  resume: bool = False,
) -> Normalization:
  """Returns a private mean and standard deviation of every column.

  Values are clipped to [-bound, bound], and those that are not finite count as
  zero. A variance below the noise cannot be told from zero: it is set to the
  standard deviation of the noise in it.

  Args:
    x: float array `[n, d]`.
    bound: the public bound, in the units of `x`: a number, or one per column.
    ledger: see `tfdpflows.mechanisms`, as the errors.
    epsilon: of Laplace noise, where a row is added or removed, or replaced by
      the null row; where a row is replaced by another (`REPLACE_ONE`), the
      ledger charges `LaplaceDpEvent(1 / epsilon)` at twice that; or
    noise_multiplier: of Gaussian noise, charged as
      `GaussianDpEvent(noise_multiplier)`.
    num_examples: the number of rows to divide by, taken to be public; that of
      `x` by default.
    randomness: see `tfdpflows.mechanisms`.
    label: see there.
    resume: see there.

  Returns:
    A `Normalization`.

  Raises:
    ValueError: for a shape, dtype or number out of range.

  #### Formal guarantee

  Let `t = clip(x / bound, -1, 1)`. For each column, `sum(t)` and
  `sum(t^2 - c)` are released with noise, c a constant; the rest is computed
  from these and the number of rows, a public constant. Adding or removing one
  row changes the sums of a column by `(t, t^2 - c)`:

  - Laplace, `c = 7/8`. In `l1` that is `t + c - t^2 <= 1/4 + c` for
    `0 <= t <= sqrt(c)` (largest at `t = 1/2`), and `t + t^2 - c <= 2 - c`
    above: `9/8` either way. For d columns the l1 sensitivity is `9 d / 8`, and
    noise of scale `9 d / (8 epsilon)` makes the release a vector of Laplace
    mechanisms. It costs what one of sensitivity 1 and scale `1 / epsilon` does:
    on a walk from one table's sums to the other's, coordinate by coordinate,
    each step of length a is a Laplace mechanism with some trade-off function
    f_a, the whole walk is at least as private as f_b(1 - f_a) for each two of
    them (Dong, Roth and Su 2022, group privacy), and for a log-concave density
    on the line that is f_(a + b), the step of the summed length.
  - Gaussian, `c = 1`. With `u = t^2` the squared `l2` change is
    `u + (1 - u)^2 = 1 - u (1 - u) <= 1`, so that the l2 sensitivity of d
    columns is `sqrt(d)`, and noise of `noise_multiplier * sqrt(d)` makes it
    `GaussianDpEvent(noise_multiplier)`.

  Replacing a row moves the sums by at most twice that, so that under
  `REPLACE_ONE` the release costs `2 * epsilon`, or what half the
  `noise_multiplier` costs, which is how accountants take these events.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms
  >>> from tfdpflows.randomness import Randomness
  >>> x = np.random.default_rng(0).normal(3., .5, [20_000, 2])
  >>> found = mechanisms.private_normalization(
  ...   x, bound=5., epsilon=.5, ledger=accounting.PrivacyLedger(),
  ...   randomness=Randomness(seed=0))
  >>> np.round(found.mean, 1).tolist()
  [3.0, 3.0]
  """
  x = as_numbers(x, shape=('num_rows', 'columns'))
  size = x.shape[1]
  if not size:
    raise ValueError('x has no columns.')
  bound = _checked_bound(bound, size)
  count = len(x) if num_examples is None else num_examples
  count = check_integer('num_examples', count)
  event = normalization_event(
    epsilon=epsilon, noise_multiplier=noise_multiplier
  )
  randomness = charge_release(
    ledger,
    event,
    label=label,
    randomness=randomness,
    facts={
      'release': 'normalization',
      'epsilon': epsilon,
      'noise_multiplier': noise_multiplier,
      'bound': bound,
      'num_examples': num_examples,
    },
    arrays=[x],
    resume=resume,
  )
  rng = randomness.numpy(str(label))
  if epsilon is not None:
    centre, scale = _LAPLACE_CENTRE, event.noise_multiplier * 9 * size / 8
    draw, noise_std = rng.laplace, scale * 2**0.5
  else:
    centre, scale = _GAUSSIAN_CENTRE, event.noise_multiplier * size**0.5
    draw, noise_std = rng.normal, scale
  sums = add_noise(_sums(x, bound, centre), scale, draw)
  mean = np.clip(sums[0] / count, -1, 1)
  variance = np.clip(sums[1] / count + centre, 0, 1) - mean**2
  std = np.sqrt(np.maximum(variance, min(noise_std / count, 1)))
  return Normalization(mean * bound, std * bound)


def _sums(x, bound, centre):
  """What is noised: sums of values and of centred squares, float64 `[2, d]`."""
  t = np.clip(np.where(np.isfinite(x), x, 0), -bound, bound) / bound
  return np.stack([t.sum(0), (t * t - centre).sum(0)])


def _checked_bound(bound, size):
  bound = np.asarray(bound, np.float64)
  if bound.shape not in ((), (size,)):
    raise ValueError(
      f'bound has shape {bound.shape}; it must be a number, or one for each of '
      f'the {size} columns.'
    )
  bound = np.broadcast_to(bound, [size])
  if not np.all((bound > 0) & np.isfinite(bound)):
    raise ValueError(f'bound is {bound}; it must be positive and finite.')
  return bound
