"""Refuses what a budget does not hold, with the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import flatten, ledger_state, registry

if TYPE_CHECKING:
  from tfdpflows.accounting import ledger as ledger_lib

__all__ = [
  'check_charge',
  'check_merged',
  'describe_other_budget',
  'describe_reserved',
]


def check_charge(
  ledger: ledger_lib.PrivacyLedger,
  event: dp_accounting.DpEvent,
  count: int,
  label: str,
) -> None:
  """Refuses a charge that would pass the budget of a ledger.

  Args:
    ledger: The ledger, with all that was charged or reserved before.
    event: What one run costs; if that depends on private votes, it is priced
      without them.
    count: How many runs.
    label: What it is for.

  Raises:
    BudgetExceededError: If it would pass the budget.
    dp_accounting.UnsupportedEventError: If the accountant of the ledger does
      not support the event.
    ValueError: If a parameter is outside its range.
  """
  event = events_lib.data_independent(event)
  more = ledger_state.composed([(event, count)])
  relation = ledger.neighboring_relation
  if ledger.budget is None:
    registry.compose_event(more, ledger.accountant, relation)
    return
  before = ledger.committed_event
  asked = ledger._epsilon(ledger_state.composed([(before, 1), (more, 1)]))
  if asked <= ledger.budget.epsilon:
    return
  mechanisms = flatten.flatten(event, relation)
  no_noise = any(mechanism.kind == 'non_private' for mechanism in mechanisms)
  raise budget_lib.BudgetExceededError(
    ledger.budget,
    ledger._epsilon(before),
    asked,
    what=repr(label),
    no_noise=events_lib.describe_event(event) if no_noise else None,
    hint=''
    if no_noise or not ledger._state.open
    else describe_reserved(ledger),
  )


def check_merged(ledger: ledger_lib.PrivacyLedger) -> None:
  """Refuses a ledger whose budget is lower than what is in it.

  Args:
    ledger: A ledger that was merged and not written yet.

  Raises:
    BudgetExceededError: If the budget is lower.
    dp_accounting.UnsupportedEventError: If the accountant of the ledger does
      not support an event.
  """
  committed = ledger.committed_event
  if ledger.budget is None:
    registry.compose_event(
      committed, ledger.accountant, ledger.neighboring_relation
    )
    return
  asked = ledger._epsilon(committed)
  if asked <= ledger.budget.epsilon:
    return
  spent = ledger.epsilon()
  raise budget_lib.BudgetExceededError(
    ledger.budget,
    spent,
    asked,
    message=(
      f'The budget of epsilon {ledger.budget.epsilon:.7g} at '
      f'delta={ledger.budget.delta:g} is lower than what is spent already: '
      f'together the ledgers have charged {spent:.7g}, and {asked:.7g} with '
      'what is reserved. Nothing was merged. Give a larger budget, or release '
      'reservations first.'
    ),
  )


def describe_reserved(ledger: ledger_lib.PrivacyLedger) -> str:
  """Says which reservations hold a part of the budget.

  Args:
    ledger: The ledger.

  Returns:
    Sentences, with what to do about it.
  """
  held = [
    f'{x.label!r} ({x.limit - x.charged:,} of {x.limit:,} runs)'
    for x in ledger._state.open.values()
  ]
  if not held:
    return 'No reservation holds anything that is not charged.'
  more = f' and {len(held) - 5} more' if len(held) > 5 else ''
  return (
    f'Reserved and not charged: {", ".join(held[:5])}{more}. '
    'PrivacyLedger.release gives up what nobody will resume.'
  )


def describe_other_budget(
  ledger: ledger_lib.PrivacyLedger, budget: budget_lib.PrivacyBudget
) -> str:
  """Says why the budget of a ledger cannot become another one.

  Args:
    ledger: The ledger.
    budget: The other one.

  Returns:
    Sentences; with the numbers if it is spent already.
  """
  spent = ''
  epsilon = ledger._epsilon(ledger.committed_event, budget.delta)
  if not epsilon <= budget.epsilon:
    spent = (
      f'It is lower than what is spent already: epsilon {epsilon:.7g} at '
      f'delta={budget.delta:g}. '
    )
  return (
    f'The budget of {ledger.path} is {ledger.budget} and cannot become '
    f'{budget}. {spent}Continue with the same epsilon and delta.'
  )
