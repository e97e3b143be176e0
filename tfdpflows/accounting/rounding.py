"""Decimal text of numbers in claims, rounded to the safe side."""

from __future__ import annotations

import decimal
import math
from typing import Optional


def finite(number: Optional[float]) -> Optional[float]:
  """Returns a number for JSON, which has no infinity: `None` instead."""
  return None if number is None or not math.isfinite(number) else number


def round_up(value: float, digits: int = 4) -> str:
  """Writes a number of zero or more with few digits, never below it.

  >>> round_up(1.00001), round_up(0.12341), round_up(float('inf'))
  ('1.001', '0.1235', 'infinity')
  """
  if math.isinf(value):
    return 'infinity'
  context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
  rounded = context.create_decimal_from_float(float(value))
  plain = 1e-4 <= value < 1e9 or value == 0
  return f'{rounded:f}' if plain else f'{rounded:e}'


def round_up_decimals(value: float) -> str:
  """Writes a number with four digits after the point, never below it.

  >>> round_up_decimals(1.00001), round_up_decimals(2.0)
  ('1.0001', '2.0000')
  """
  if not math.isfinite(value):
    return str(value)
  exact = decimal.Decimal(float(value) + 0.0)  # Not -0.0.
  if exact >= 10**15:
    # More digits of a float that large carry no information.
    context = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    return str(context.plus(exact))
  context = decimal.Context(prec=50, rounding=decimal.ROUND_CEILING)
  unit = decimal.Decimal(1).scaleb(-4)
  return f'{exact.quantize(unit, context=context):f}'


def delta_text(delta: float) -> str:
  """Writes the delta of a claim with six digits, or all if that is below it.

  >>> delta_text(1e-05), delta_text(1 / 30162)
  ('1e-05', '3.315430011272462e-05')
  """
  text = f'{delta:.6g}'
  return text if float(text) >= delta else repr(float(delta))


def round_down(value: float) -> str:
  """Writes a number of zero or more with four digits, never above it.

  >>> round_down(0.0123456), round_down(1.0), round_down(1e-9)
  ('0.01234', '1', '1.000E-9')
  """
  context = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)
  return str(context.create_decimal_from_float(float(value)))
