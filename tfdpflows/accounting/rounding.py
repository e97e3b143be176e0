"""Numbers in claims, never below what they stand for."""

from __future__ import annotations

import decimal
import math

__all__ = ['round_up']


def round_up(value: float, digits: int = 4) -> str:
  """Writes a number with few digits, never below it.

  Args:
    value: A number that is not negative; may be infinite.
    digits: Significant digits.

  Returns:
    Text whose value is at least `value`.

  ```python
  >>> round_up(1.00001), round_up(0.12341), round_up(float('inf'))
  ('1.001', '0.1235', 'infinity')

  ```
  """
  if math.isinf(value):
    return 'infinity'
  context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
  rounded = context.create_decimal_from_float(float(value))
  plain = 1e-4 <= value < 1e9 or value == 0
  return f'{rounded:f}' if plain else f'{rounded:e}'
