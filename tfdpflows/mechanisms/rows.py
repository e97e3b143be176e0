"""What comes in as a table of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import numpy.typing as npt


def as_numbers(x: npt.ArrayLike, name: str = 'x') -> np.ndarray:
  """Returns `x` as an array of real numbers.

  NumPy clips and orders complex numbers by their real parts, so that the rest
  of them would pass every bound. The dtype counts as public, as a statement of
  the caller: that of a list depends on its values, so give private ones as an
  array of numbers.

  Args:
    x: what NumPy makes an array of: bool, integers or floats.
    name: what it is called in messages.

  Raises:
    ValueError: for another dtype, or a masked array.

  #### Example

  >>> from tfdpflows.mechanisms.rows import as_numbers
  >>> as_numbers([[1, 2]]).shape
  (1, 2)
  >>> as_numbers([1j])
  Traceback (most recent call last):
  ...
  ValueError: x has dtype complex128; it must hold real numbers ...
  """
  if isinstance(x, np.ma.MaskedArray):
    raise ValueError(
      f'{name} is a masked array, and NumPy would count what is masked: fill '
      'it first, such as with x.filled(np.nan).'
    )
  x = np.asarray(x)
  if x.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} has dtype {x.dtype}; it must hold real numbers (bool, integers '
      "or floats). Encode other columns first, or x.astype('float64')."
    )
  return x
