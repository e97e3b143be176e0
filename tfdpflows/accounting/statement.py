"""What was promised, in words that can be checked."""

from __future__ import annotations

import dataclasses
import decimal
import math
import textwrap
from collections.abc import Sequence
from typing import Any, Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json, registry

__all__ = ['PrivacyStatement', 'privacy_statement', 'round_up']

_RELATIONS = {
  'ADD_OR_REMOVE_ONE': (
    'two tables are neighbours if one is the other with one unit added or '
    'removed'
  ),
  'REPLACE_ONE': (
    'two tables are neighbours if one is the other with one unit replaced by '
    'another'
  ),
}
_ASSUMPTIONS = (
  'The schema (columns, types, bounds, categories) was public or chosen '
  'without looking at the table, except where a mechanism above pays for it.',
  'The number of rows is public.',
  'Every unit contributes one row at most.',
  'Nothing that was computed from the table was released or used to choose '
  'parameters, except through the mechanisms above.',
  'Noise, sampling and number of runs of the mechanisms were not chosen in '
  'view of the outputs of earlier ones.',
  'Noise is drawn in floating point, which is not proof against attacks on '
  'the low-order bits of floating-point noise.',
)


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


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
  """A claim of privacy with all that it rests on; see `privacy_statement`.

  Attributes:
    epsilon: Epsilon of the claim, not rounded.
    delta: Delta of the claim.
    accountant: Name of the accountant of the claim.
    guarantee: Its guarantee, 'upper_bound' or 'asymptotic'.
    unit: What one unit of privacy is.
    neighboring_relation: Name of the relation.
    sampling: How batches were drawn.
    mechanisms: For each, a dict with label, mechanism, event, count, reserved.
    epsilons: For each accountant, a dict with accountant, guarantee, epsilon
      (None if it supports not all events, or knows no finite one) and is_claim.
    budget: Dict with epsilon and delta, or None.
    num_examples: Number of rows, or None.
    seeded: Whether the random numbers came from a seed that may be known.
    assumptions: What must be true besides.
    notes: What else there is to say.
  """

  epsilon: float
  delta: float
  accountant: str
  guarantee: str
  unit: str
  neighboring_relation: str
  sampling: str
  mechanisms: tuple[dict[str, Any], ...]
  epsilons: tuple[dict[str, Any], ...]
  budget: Optional[dict[str, float]]
  num_examples: Optional[int]
  seeded: bool
  assumptions: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def claim(self) -> str:
    """The claim in one line, with epsilon rounded upwards."""
    words = self.guarantee.replace('_', ' ')
    if math.isinf(self.epsilon):
      return (
        f'no privacy: no finite epsilon holds at delta={self.delta!r} '
        f'({self.accountant}, {words})'
      )
    return (
      f'epsilon <= {round_up(self.epsilon)} at delta={self.delta!r} '
      f'({self.accountant}, {words})'
    )

  def to_dict(self) -> dict[str, Any]:
    """The statement for JSON; an epsilon that is not finite is None.

    Returns:
      A dict of dicts, lists, strings, numbers, booleans and None.
    """
    result = dataclasses.asdict(self)
    result['claim'] = self.claim
    if math.isinf(self.epsilon):
      result['epsilon'] = None
    for name, value in result.items():
      if isinstance(value, tuple):
        result[name] = list(value)
    return result

  def to_text(self) -> str:
    """The statement for people.

    Returns:
      Lines of at most 80 columns, but for long words.
    """
    lines = ['Privacy statement', '', f'Claim: {self.claim}']
    if self.seeded:
      lines.append('seeded: not private against anyone who knows the seed')
    lines += [
      '',
      f'Unit of privacy: {self.unit}',
      'Neighbouring relation: '
      f'{self.neighboring_relation.lower().replace("_", " ")} '
      f'({_RELATIONS[self.neighboring_relation]})',
      f'Sampling: {self.sampling}',
    ]
    if self.num_examples is not None:
      lines.append(f'Number of rows: {self.num_examples}')
    if self.budget is not None:
      lines.append(
        f'Budget: epsilon {self.budget["epsilon"]!r} at '
        f'delta={self.budget["delta"]!r}'
      )
    lines += ['', 'Mechanisms charged:']
    for mechanism in self.mechanisms:
      times = f'{mechanism["count"]} x ' if mechanism['count'] != 1 else ''
      rest = mechanism['reserved'] - mechanism['count']
      more = f'; {rest} more reserved and not used' if rest else ''
      lines.append(
        f'- {mechanism["label"]}: {times}{mechanism["mechanism"]}{more}'
      )
    if not self.mechanisms:
      lines.append('- none')
    lines += ['', f'Epsilon at delta={self.delta!r} by accountant:']
    for row in self.epsilons:
      value = row['reason']
      if value is None:
        value = round_up(row['epsilon'])
      kind = row['guarantee'].replace('_', ' ')
      mark = ', the claim' if row['is_claim'] else ''
      lines.append(f'- {row["accountant"]}: {value} ({kind}{mark})')
    lines += ['', 'Assumptions:']
    lines += [f'- {assumption}' for assumption in self.assumptions]
    if self.notes:
      lines += ['', 'Notes:', *(f'- {note}' for note in self.notes)]
    return '\n'.join(_wrapped(line) for line in lines)

  def __str__(self) -> str:
    return self.to_text()


def privacy_statement(
  ledger,
  *,
  unit: str = 'one row of the table',
  num_examples: Optional[int] = None,
  sampling: Optional[str] = None,
  notes: Sequence[str] = (),
  delta: Optional[float] = None,
  seeded: bool = False,
) -> PrivacyStatement:
  """States what the mechanisms of a ledger promise.

  Args:
    ledger: A `PrivacyLedger`.
    unit: What one unit of privacy is.
    num_examples: Number of rows, if it may be said.
    sampling: How batches were drawn, as it was really done. If None, the
      statement says what the mechanisms assume.
    notes: More lines.
    delta: Inside (0, 1); that of the budget if None.
    seeded: Whether random numbers came from a seed that may be known; also
      taken from the metadata of the ledger.

  Returns:
    A `PrivacyStatement`; its `str` is the text.

  Raises:
    ValueError: If the delta is missing or outside its range.

  #### Formal guarantee
  The claim is the epsilon of the ledger's own accountant for all that is
  charged, at the delta of the budget, rounded upwards. It holds under the
  assumptions that are listed, and says so where the guarantee of the accountant
  is only asymptotic.

  ```python
  >>> from tfdpflows.accounting import PrivacyBudget, PrivacyLedger
  >>> ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5))
  >>> _ = ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='histograms')
  >>> privacy_statement(ledger).claim
  'epsilon <= 0.7256 at delta=1e-05 (pld, upper bound)'

  ```
  """
  if delta is None:
    if ledger.budget is None:
      raise ValueError('The ledger has no budget; give the delta of the claim.')
    delta = ledger.budget.delta
  delta = budget_lib.check_delta(delta)
  seeded = bool(seeded or ledger.metadata.get('seeded', False))
  notes = [*notes, *ledger.notes]
  if num_examples is not None and delta * num_examples >= 1:
    notes.append(
      f'delta={delta:g} is not below one over the number of rows '
      f'({1 / num_examples:.3g}): a mechanism that publishes one row in full '
      'could satisfy this claim.'
    )
  if sampling is None:
    sampling = 'no sampling; every mechanism reads the whole table'
    if any('Sampled' in repr(entry.event) for entry in ledger.entries):
      sampling = (
        'as the mechanisms say; that the batches were really drawn that way is '
        'not recorded'
      )
  epsilons = [
    _epsilon_row(ledger, name, delta) for name in registry.accountant_names()
  ]
  claim = next(row for row in epsilons if row['is_claim'])
  return PrivacyStatement(
    epsilon=math.inf if claim['epsilon'] is None else claim['epsilon'],
    delta=delta,
    accountant=ledger.accountant,
    guarantee=claim['guarantee'],
    unit=str(unit),
    neighboring_relation=ledger.neighboring_relation.name,
    sampling=str(sampling),
    mechanisms=tuple(
      {
        'label': entry.label,
        'mechanism': events_lib.describe_event(entry.event),
        'event': events_json.event_to_dict(entry.event),
        'count': entry.count,
        'reserved': entry.reserved,
      }
      for entry in ledger.entries
    ),
    epsilons=tuple(epsilons),
    budget=None if ledger.budget is None else dataclasses.asdict(ledger.budget),
    num_examples=None if num_examples is None else int(num_examples),
    seeded=seeded,
    assumptions=_ASSUMPTIONS,
    notes=tuple(str(note) for note in notes),
  )


def _epsilon_row(ledger, name: str, delta: float) -> dict[str, Any]:
  made = registry.create_accountant(name, ledger.neighboring_relation)
  row = {
    'accountant': name,
    'guarantee': made.guarantee,
    'epsilon': None,
    'is_claim': name == ledger.accountant,
    'reason': None,
  }
  try:
    epsilon = ledger.epsilon(delta, name)
  except dp_accounting.UnsupportedEventError:
    row['reason'] = 'does not support every mechanism'
    return row
  if math.isinf(epsilon):
    row['reason'] = 'no finite epsilon'
  else:
    row['epsilon'] = epsilon
  return row


def _wrapped(line: str) -> str:
  indent = '  ' if line.startswith('- ') else ''
  return textwrap.fill(
    line, 80, subsequent_indent=indent, break_long_words=False
  )
