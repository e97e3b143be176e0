"""Grids of parameters: some points for `make test`, all in the full tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Union

import pytest


def thinned(points: Iterable, keep: Union[int, Callable]) -> list:
  """Marks the further points of a grid `full`.

  Args:
    points: Values for `pytest.mark.parametrize`; tuples for several names.
    keep: How many of the first ones `make test` has, or which, as a function
      of a point.

  Returns:
    A list for `pytest.mark.parametrize`.
  """
  found = []
  for i, point in enumerate(points):
    kept = keep(point) if callable(keep) else i < keep
    marks = () if kept else pytest.mark.full
    values = point if isinstance(point, tuple) else (point,)
    found.append(pytest.param(*values, marks=marks))
  return found
