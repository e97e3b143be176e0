"""A check that all mechanisms make of what they are to spend."""

from __future__ import annotations

import math


def check_positive(name, value):
  """Returns `value` as a float, if it is positive and finite.

  Args:
    name: what it is called in the message.
    value: a number.

  Raises:
    ValueError: if it is not positive and finite.

  #### Example

  >>> from tfdpflows.mechanisms.checks import check_positive
  >>> check_positive('epsilon', 1)
  1.0
  """
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name} is {value}; it must be positive and finite.')
  return float(value)
