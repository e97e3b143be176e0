"""Flags, event and ledger of noisy training steps, for several commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from tfdpflows.cli.command import Options, UsageError

if TYPE_CHECKING:
  import dp_accounting
  from absl import flags

  from tfdpflows.accounting import PrivacyLedger

# What an event may count; not imported, as accountants take a second.
MAX_STEPS = 10**15

# What two neighbouring tables differ by.
RELATIONS = {
  'add_or_remove_one': 'one row added or removed',
  'replace_one': 'one row replaced',
  'replace_special': 'one row replaced by a null row',
}


def add_steps(options: Options) -> None:
  """Adds the flags of sampling, steps and noise."""
  options.number(
    'sampling_probability',
    'Probability with which each example enters a batch, independently '
    '(Poisson sampling): expected batch size over number of examples. Use 1 '
    'where batches are drawn in another way.',
    lower_bound=0.0,
    upper_bound=1.0,
  )
  options.number(
    'steps',
    'Number of steps, 1 or more.',
    whole=True,
    lower_bound=1,
    upper_bound=MAX_STEPS,
  )
  options.number(
    'noise_multiplier',
    'Standard deviation of the noise over the clipping norm, above 0.',
    lower_bound=0.0,
  )


def add_delta(options: Options, more: str = '') -> None:
  """Adds `--delta`."""
  options.number(
    'delta',
    'Delta of the guarantee, such as 1e-5: nobody learns more than if '
    'everything were published with this probability, and epsilon held '
    f'else.{more}',
  )


def add_accountant(options: Options, last: str) -> None:
  """Adds `--accountant`, the help of which ends with what else it takes."""
  options.text(
    'accountant',
    'How epsilon is computed: pld (tight), rdp, zcdp, advanced, basic, gdp '
    f'(asymptotic: no upper bound), {last}.',
    default='pld',
    metavar='NAME',
  )


def add_relation(options: Options) -> None:
  """Adds `--neighboring_relation`."""
  options.choice(
    'neighboring_relation',
    list(RELATIONS),
    'How two neighbouring tables differ: by one row added or removed, replaced '
    'by another, or replaced by a null row, which counts as a row and '
    'contributes nothing.',
    default='add_or_remove_one',
  )


def relation(name: str) -> dp_accounting.NeighboringRelation:
  """Returns the `dp_accounting.NeighboringRelation` of a name."""
  import dp_accounting

  return dp_accounting.NeighboringRelation[name.upper()]


def training_event(
  *, sampling_probability: float, noise_multiplier: float, steps: int
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of DP-SGD; `noise_multiplier` is over the clip."""
  import dp_accounting

  event = dp_accounting.GaussianDpEvent(noise_multiplier)
  if sampling_probability < 1:
    event = dp_accounting.PoissonSampledDpEvent(sampling_probability, event)
  return dp_accounting.SelfComposedDpEvent(event, steps)


def check_delta(delta: float) -> float:
  """Returns a valid delta; else the `UsageError` names the flag."""
  from tfdpflows.accounting import budget

  try:
    return budget.check_delta(delta)
  except ValueError as error:
    raise UsageError(f'--{error}') from error


def shown(epsilon: Optional[float]) -> str:
  """Returns epsilon, which is `None` if none is finite, rounded up."""
  from tfdpflows.accounting.rounding import round_up_decimals

  return 'inf' if epsilon is None else round_up_decimals(epsilon)


def answer(result: dict[str, Any]) -> str:
  """Returns the line that states epsilon, delta and whose epsilon it is."""
  from tfdpflows.accounting.rounding import delta_text

  guarantee = result['guarantee'].replace('_', ' ')
  return (
    f'epsilon = {shown(result["epsilon"])} at delta = '
    f'{delta_text(result["delta"])} ({result["accountant"]}, {guarantee}; '
    'rounded up)'
  )


def check_one_ledger(values: flags.FlagValues, why: str) -> None:
  """Refuses several ledgers: the last would be taken, for all of them."""
  if values['ledger'].present > 1:
    raise UsageError(f'give --ledger once: {why}')


@contextlib.contextmanager
def open_ledger(path: str, *, read_only: bool) -> Iterator[PrivacyLedger]:
  """Yields the ledger of `--ledger`, whose errors name the flag."""
  from tfdpflows.accounting import LedgerError, PrivacyLedger

  try:
    with PrivacyLedger.open(path, read_only=read_only) as ledger:
      yield ledger
  except LedgerError as error:
    raise UsageError(f'--ledger={path}: {error}') from error
