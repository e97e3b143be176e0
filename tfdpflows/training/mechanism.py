"""The mechanism of a training: its sampling, its noise and what they cost.

What a training makes of its gradients depends on their sums over many steps.
Noise of which later steps take back a part is smaller in these sums than
independent noise at the same epsilon and delta. With independent noise z and a
lower triangular Toeplitz matrix C the noise of all steps is C^-1 z. Added to
the sums x of the steps that is as private as C x + z, of which it is C^-1
times: a matrix mechanism (Denisov, McMahan, Rush, Smith and Thakurta 2022).
Sampling amplifies it where C has no more bands than there are parts of the rows
that take turns: `accounting.CyclicPoissonSampledDpEvent` has the proof.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import dp_accounting
import numpy as np

if TYPE_CHECKING:
  from tfdpflows.sampling.sampler import Sampler

INDEPENDENT, BANDED = 'independent', 'banded'
# Exponents that are tried; 0 is independent noise.
_EXPONENTS = tuple(k / 20 for k in range(41))


def banded_coefficients(bands: int, steps: int) -> tuple[float, ...]:
  """Returns the first column of C, of norm 1.

  Those of the power series of (1 - x)^-a, as many as there are bands, with the
  a of 0, .05, ..., 2 that makes `prefix_error` least. With a = 1/2 and all
  bands it is the square root of the matrix of prefix sums (Henzinger, Upadhyay
  and Upadhyay 2023). From 2 to 32 bands and for 500 and 2,000 steps the error
  is at most half a percent above that of the best coefficients.

  Args:
    bands: number of coefficients, 1 or more.
    steps: number of steps.

  #### Example

  >>> from tfdpflows.training.mechanism import banded_coefficients
  >>> [round(c, 3) for c in banded_coefficients(3, steps=100)]
  [0.708, 0.531, 0.465]
  """
  found = [_unit(_power_series(a, bands)) for a in _EXPONENTS]
  return min(found, key=lambda c: prefix_error(c, steps))


def prefix_error(coefficients: tuple[float, ...], steps: int) -> float:
  """Returns the error of the sums of the steps, over that of one step's noise.

  The root of the mean over t of the variance of the sum of the noise of the
  first t steps, where z has variance 1.

  Args:
    coefficients: of C, see `banded_coefficients`.
    steps: number of steps.

  #### Example

  >>> from tfdpflows.training.mechanism import prefix_error
  >>> round(prefix_error((1.,), steps=3)**2, 6)  # (1 + 2 + 3) / 3
  2.0
  """
  import scipy.signal  # noqa: PLC0415 (for plans with this noise only)

  impulse = np.zeros(steps)
  impulse[0] = 1.0
  with np.errstate(over='ignore', invalid='ignore'):
    # Row t of the prefix sums of C^-1 has the first t of these.
    sums = np.cumsum(scipy.signal.lfilter([1.0], coefficients, impulse))
    error = math.sqrt(np.mean(np.cumsum(sums**2)))
  return error if error < math.inf else math.inf  # Of NaN too.


def _power_series(a, bands):
  found = [1.0]
  for k in range(1, bands):
    found.append(found[-1] * (a + k - 1) / k)
  return found


def _unit(coefficients):
  norm = math.sqrt(math.fsum(c * c for c in coefficients))
  return tuple(c / norm for c in coefficients)


class Mechanism:
  """Noised sums over the batches of a sampler, step by step.

  Args:
    sampler: a sampler of `tfdpflows.sampling`.
    noise: 'independent' or 'banded'.
    steps: number of steps.

  Attributes:
    sampler: see above.
    noise: see above.
    steps: see above.
    coefficients: of the first column of C; one where noise is independent.

  Raises:
    ValueError: for another noise, or a sampler that it does not go with.
  """

  def __init__(
    self,
    sampler: Sampler,
    noise: str,
    steps: int,
  ):
    if noise not in (INDEPENDENT, BANDED):
      raise ValueError(
        f"noise is {noise!r}; it must be 'independent' or 'banded'."
      )
    self.sampler, self.noise, self.steps = sampler, noise, steps
    self.coefficients = (1.0,)
    if noise == BANDED:
      if sampler.parts < 2:
        raise ValueError(
          "noise is 'banded', and the rows are not in parts that take turns: "
          'a row would be in steps whose noise depends on each other. Give a '
          'CyclicPoissonSampler with two parts or more.'
        )
      self.coefficients = banded_coefficients(sampler.parts, steps)

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of one charge: of one step for each part."""
    if self.noise == INDEPENDENT:
      return self.sampler.event(noise_multiplier)
    return self.sampler.event(noise_multiplier, self.coefficients)

  def charges(self, steps: int) -> int:
    """Returns how many charges the first steps have."""
    return -(-steps // self.sampler.parts)

  def event_of_all(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of all steps."""
    return dp_accounting.SelfComposedDpEvent(
      self.event(noise_multiplier), self.charges(self.steps)
    )

  def error(self, noise_multiplier: float) -> float:
    """Returns the error of sums over steps, see `prefix_error`."""
    return noise_multiplier * prefix_error(self.coefficients, self.steps)
