"""The privacy budget, and the error of a charge that exceeds it."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import numpy as np

from tfdpflows._checks import check_type


def _float(name, number) -> float:
  """A number as a float, infinite where it is too large for one."""
  # Which `float` would take: a text of a file, or the answer to a question.
  if isinstance(number, (str, bytes, bool, np.bool_)):
    raise ValueError(f'{name} must be a number, not {number!r}.')
  try:
    return float(number)
  except OverflowError:
    return math.inf if number > 0 else -math.inf
  except (TypeError, ValueError):
    raise ValueError(f'{name} must be a number, not {number!r}.') from None


def check_time_limit(seconds: float) -> float:
  """Returns seconds as a float; raises `ValueError` below zero."""
  seconds = float(seconds)
  if not seconds >= 0:
    raise ValueError(f'time_limit must be zero or more seconds, not {seconds}.')
  return seconds


def check_delta(delta: float) -> float:
  """Returns delta as a float; raises `ValueError` if it is outside (0, 1)."""
  delta = _float('delta', delta)
  if not 0 < delta < 1:
    raise ValueError(
      f'delta must lie inside (0, 1), not {delta}. Choose it well below one '
      'over the number of rows, for example 1e-5 for 20,000 rows.'
    )
  return delta


def check_epsilon(epsilon: float) -> float:
  """Returns epsilon as a float; raises `ValueError` if negative or NaN."""
  epsilon = _float('epsilon', epsilon)
  if not epsilon >= 0:
    raise ValueError(f'epsilon must be zero or more, not {epsilon}.')
  return epsilon


@dataclasses.dataclass(frozen=True, init=False)
class PrivacyBudget:
  """The largest (epsilon, delta) of all mechanisms together.

  Attributes:
    epsilon: in nats; finite and above zero.
    delta: inside (0, 1).

  Raises:
    ValueError: if either is outside its range, or no number.

  #### Example

  >>> PrivacyBudget(epsilon=1.0, delta=1e-5)
  PrivacyBudget(epsilon=1.0, delta=1e-05)
  """

  epsilon: float
  delta: float

  def __init__(self, *, epsilon: float, delta: float):
    epsilon = _float('epsilon', epsilon)
    if not (math.isfinite(epsilon) and epsilon > 0):
      raise ValueError(
        f'epsilon must be a finite number above zero, not {epsilon}. '
        'Values between 0.1 and 10 are usual.'
      )
    object.__setattr__(self, 'epsilon', epsilon)
    object.__setattr__(self, 'delta', check_delta(delta))


def check_budget(budget: PrivacyBudget) -> None:
  """Raises a `TypeError` for what is no `PrivacyBudget`, such as a pair."""
  example = 'PrivacyBudget(epsilon=1.0, delta=1e-5)'
  check_type('budget', budget, PrivacyBudget, example)


class BudgetExceededError(ValueError):
  """A charge was refused because it would exceed the budget.

  Nothing was written, and the mechanism must not run.

  Attributes:
    budget: the `PrivacyBudget`; None if the ledger has none.
    spent: epsilon, at the delta of the budget, of all that was charged or
      reserved before; None if it is not known.
    asked: the same with the refused charge; None if it is not known.
  """

  def __init__(
    self,
    budget: Optional[PrivacyBudget],
    spent: Optional[float],
    asked: Optional[float],
    message: str,
  ):
    super().__init__(message)
    self.budget = budget
    self.spent = spent
    self.asked = asked
