"""Noisy sums on a public grid: their low bits tell nothing of the sums.

Which numbers a sum with floating-point noise can be depends on the sum: the low
bits of one result may tell two sums apart with certainty (Mironov 2012, "On
significance of the least significant bits for differential privacy"). Rounded
to a grid that depends on the scale of the noise alone, which is
post-processing, every result can be reached from every sum. A sum of two
floats is their exact sum, rounded, and many of the values that noise in float64
has fall into each step of the grid: about 2^40 within 4 standard deviations (or
1 scale of Laplace noise), 2^20 within 8 (15). Every result has the probability
that it should have, but for one part in as many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ['add_noise', 'grid_step', 'round_to_grid']

# A step is from a 2,048th to a 1,024th of the scale: rounding adds less than
# 1e-7 of it to the variance.
_BITS = 10
# Numbers of more steps than this are multiples of one.
_MOST_STEPS = 2.0**53


def add_noise(
  sums: npt.ArrayLike, scale: npt.ArrayLike, draw: Callable[..., npt.ArrayLike]
) -> npt.ArrayLike:
  """Returns sums with noise, on the grid of its scale.

  Args:
    sums: a float64 number or array.
    scale: of the noise (a standard deviation, or that of Laplace noise),
      positive and public.
    draw: `normal` or `laplace` of an `np.random.Generator`.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.noise_grid import add_noise
  >>> found = 512 * add_noise(
  ...   np.zeros(3), 2., np.random.default_rng(0).normal)
  >>> bool(np.all(found == np.rint(found)))
  True
  """
  return round_to_grid(sums + draw(scale=scale, size=np.shape(sums)), scale)


def round_to_grid(x: npt.ArrayLike, scale: npt.ArrayLike) -> npt.ArrayLike:
  """Returns `x`, rounded to multiples of a power of two.

  Args:
    x: a float64 number or array with noise in it.
    scale: of the noise (a standard deviation, or that of Laplace noise),
      positive and public; it is broadcast.

  #### Example

  >>> from tfdpflows.noise_grid import round_to_grid
  >>> float(round_to_grid(1234.567, 1024.))
  1235.0
  """
  step = grid_step(scale, _BITS)
  with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
    rounded = np.rint(np.asarray(x) / step) * step
  return np.where(np.abs(x) < _MOST_STEPS * step, rounded, x)[()]


def grid_step(scale: npt.ArrayLike, bits: int) -> npt.ArrayLike:
  """Returns the power of two up to a scale, over 2 to the `bits`."""
  _, exponent = np.frexp(np.asarray(scale, np.float64))
  return np.ldexp(1.0, exponent - 1 - bits)
