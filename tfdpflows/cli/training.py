"""Flags, event and words of noisy training steps, for several commands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

from tfdpflows.cli.command import Options, UsageError

if TYPE_CHECKING:
  import dp_accounting

# What an event may count; not imported, as accountants take a second.
MAX_STEPS = 10**15


def add_steps(options: Options, required: bool = True) -> None:
  """Adds the flags that say how batches are drawn and how often."""
  options.number(
    'sampling_probability',
    'Probability with which each example enters a batch, independently '
    '(Poisson sampling): expected batch size over number of examples. Use 1 '
    'where batches are drawn in another way.',
    required=required,
    lower_bound=0.0,
    upper_bound=1.0,
  )
  options.number(
    'steps',
    'Number of steps, 1 or more.',
    whole=True,
    required=required,
    lower_bound=1,
    upper_bound=MAX_STEPS,
  )


def add_noise(options: Options, required: bool = True) -> None:
  """Adds the flag that says how much noise each step has."""
  options.number(
    'noise_multiplier',
    'Standard deviation of the noise over the clipping norm, above 0.',
    required=required,
    lower_bound=0.0,
  )


# What two tables that must look alike may differ by, in words.
RELATIONS = {
  'add_or_remove_one': 'one row added or removed',
  'replace_one': 'one row replaced',
  'replace_special': 'one row replaced by a null row',
}


def add_relation(options: Options) -> None:
  """Adds the flag that says which tables are neighbours."""
  options.choice(
    'neighboring_relation',
    list(RELATIONS),
    'What two tables that must look alike may differ by: one row added or '
    'removed, replaced by another, or replaced by a null row, which counts as '
    'a row and contributes nothing.',
    default='add_or_remove_one',
  )


def relation(name: str) -> dp_accounting.NeighboringRelation:
  """Returns the `dp_accounting.NeighboringRelation` of a name."""
  import dp_accounting

  return dp_accounting.NeighboringRelation[name.upper()]


def add_accounting(options: Options, required: bool = True) -> None:
  """Adds the flags that say how epsilon is computed and printed."""
  options.number(
    'delta',
    'Probability with which epsilon may not hold, such as 1e-5.',
    required=required,
  )
  options.text(
    'accountant',
    'How epsilon is computed: pld (tight), rdp, zcdp, advanced, basic, gdp '
    '(asymptotic: no upper bound), or one that you registered.',
    default='pld',
    metavar='NAME',
  )
  options.choice(
    'format',
    ['text', 'json'],
    'How the answer is printed.',
    default='text',
  )


def training_event(
  *, sampling_probability: float, noise_multiplier: float, steps: int
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of that many steps of noisy gradients.

  Args:
    sampling_probability: probability with which an example enters a batch.
    noise_multiplier: standard deviation of the noise over the l2 sensitivity.
    steps: number of steps.

  Returns:
    A `dp_accounting.DpEvent`.
  """
  import dp_accounting

  event = dp_accounting.GaussianDpEvent(noise_multiplier)
  if sampling_probability < 1:
    event = dp_accounting.PoissonSampledDpEvent(sampling_probability, event)
  return dp_accounting.SelfComposedDpEvent(event, steps)


def check_delta(delta: float) -> float:
  """Refuses a delta that is none; the message names the flag."""
  from tfdpflows.accounting import budget

  try:
    return budget.check_delta(delta)
  except ValueError as error:
    raise UsageError(f'--{error}') from error


def remarks(
  accountant: dp_accounting.PrivacyAccountant, delta: float
) -> tuple[str, ...]:
  """Returns what has to stand beside the epsilon of an accountant.

  Args:
    accountant: a `dp_accounting.PrivacyAccountant` that was handed all events.
    delta: the delta of that epsilon.

  Returns:
    A tuple of sentences.
  """
  # One that a user registered may have none to make.
  return tuple(getattr(accountant, 'remarks', lambda _: ())(delta))


def finite(number: float) -> Optional[float]:
  """Returns `number` for JSON, which has no infinity: `None` instead."""
  return number if math.isfinite(number) else None
