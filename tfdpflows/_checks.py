"""Checks of arguments, for all packages. Imports no TensorFlow."""

from __future__ import annotations

import math
from typing import Any


def check_positive(name: str, value: float) -> float:
  """Returns `value` as a float, if it is positive and finite.

  #### Example

  >>> from tfdpflows import _checks
  >>> _checks.check_positive('epsilon', 1)
  1.0
  """
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name} is {value}; it must be positive and finite.')
  return float(value)


def check_integer(name: str, value: float, least: int = 1) -> int:
  """Returns `value` as an int, if it is a whole number from `least` on."""
  if not (value >= least and value % 1 == 0):
    raise ValueError(f'{name} is {value}; it must be an integer >= {least}.')
  return int(value)


def check_type(name: str, value: Any, kind: type, example: str) -> None:
  """Raises a `TypeError` that does not show `value`, if it is of no `kind`."""
  if not isinstance(value, kind):
    raise TypeError(
      f'{name} is of type {type(value).__name__}; it must be a '
      f'{kind.__name__}, such as {example}.'
    )


def check_fraction(name: str, value: float) -> float:
  """Returns `value` as a float, if it is inside (0, 1)."""
  if not 0 < value < 1:
    raise ValueError(f'{name} is {value}; it must be in (0, 1).')
  return float(value)


class Fixed:
  """A base of objects whose public attributes are set once.

  What was charged was charged for what they were.
  """

  def __setattr__(self, name: str, value: Any) -> None:
    if not name.startswith('_') and name in self.__dict__:
      raise AttributeError(
        f'{name} of a {type(self).__name__} cannot be changed; make a new '
        f'{type(self).__name__} instead.'
      )
    super().__setattr__(name, value)

  def __delattr__(self, name: str) -> None:
    if not name.startswith('_'):
      raise AttributeError(
        f'{name} of a {type(self).__name__} cannot be removed.'
      )
    super().__delattr__(name)
