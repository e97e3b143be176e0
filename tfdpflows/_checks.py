"""Checks of arguments, for all packages. Imports no TensorFlow."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any

# Squares and sums of numbers in between neither underflow nor overflow in
# float32, also for the share that a layer of a million parameters has.
FLOAT32_RANGE = 1e-9, 1e9
IN_FLOAT32_RANGE = 'must be a number from 1e-9 to 1e9'


def check_number(name: str, value: Any) -> None:
  """Raises a `TypeError` that does not show `value`, if it is no number."""
  # A scalar of an array library has this shape.
  scalar = getattr(value, 'shape', None) == ()
  if not (isinstance(value, numbers.Number) or scalar):
    raise TypeError(
      f'{name} is of type {type(value).__name__}; it must be a number.'
    )


def check_positive(name: str, value: float) -> float:
  """Returns `value` as a float, if it is positive and finite.

  #### Example

  >>> from tfdpflows import _checks
  >>> _checks.check_positive('epsilon', 1)
  1.0
  """
  check_number(name, value)
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name} is {value}; it must be positive and finite.')
  return float(value)


def check_nonnegative(name: str, value: float) -> float:
  """Returns `value` as a float, if it is zero or more, and finite."""
  check_number(name, value)
  if not (value >= 0 and math.isfinite(value)):
    raise ValueError(f'{name} is {value}; it must be zero or more, and finite.')
  return float(value)


def check_float32_range(name: str, value: float, why: str) -> float:
  """Returns `value` as a float, if it is in `FLOAT32_RANGE`."""
  check_number(name, value)
  low, high = FLOAT32_RANGE
  if not low <= value <= high:
    raise ValueError(f'{name} is {value:g}; it {IN_FLOAT32_RANGE}. {why}')
  return float(value)


def check_integer(name: str, value: float, least: int = 1) -> int:
  """Returns `value` as an int, if it is a whole number from `least` on."""
  check_number(name, value)
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
  check_number(name, value)
  if not 0 < value < 1:
    raise ValueError(f'{name} is {value}; it must be in (0, 1).')
  return float(value)


class Home:
  """The process that made an object which must not go on in a fork of it."""

  def __init__(self):
    self._process = os.getpid()

  @property
  def is_here(self) -> bool:
    """Whether this is that process."""
    return os.getpid() == self._process

  def check(
    self,
    what: str,
    why: str = 'and both would draw the same noise. Make it here.',
    error: type[Exception] = RuntimeError,
  ) -> None:
    """Raises `error`, of what was made and why it stays, in a forked process.

    #### Example

    >>> from tfdpflows import _checks
    >>> _checks.Home().check('This plan was made', 'and draws noise.')
    """
    if not self.is_here:
      raise error(f'{what} by the process that this one was forked from, {why}')


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
