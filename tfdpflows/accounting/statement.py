"""The privacy statement: a claim, and what it rests on."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import attr
import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json, mechanisms, registry
from tfdpflows.accounting.ledger import PrivacyLedger, check_ledger
from tfdpflows.accounting.ledger.entries import composed
from tfdpflows.accounting.mechanisms import no_proof
from tfdpflows.accounting.rounding import delta_text, finite, round_up

# A label with a number at its end, if there is one, and a number in a text.
_NUMBERED = re.compile(r'(.*?)(?: (\d+))?', re.DOTALL)
_NUMBER = re.compile(r'(?<!\w)\d+(?:\.\d+)?(?:e[+-]?\d+)?')
_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
_TRUST_MODEL = (
  'central: whoever runs the code sees the table and all random numbers, and '
  'is trusted; the guarantee is towards everybody else, who may see all that '
  'the mechanisms released'
)
_NO_SAMPLING = 'no mechanism is charged as if it read a sample of the rows'
_SAMPLING_UNKNOWN = (
  'as the mechanisms say; that the batches were really drawn that way is not '
  'recorded'
)
_NO_SEARCH = (
  'no search over hyper-parameters is charged; if they were chosen by results '
  'on this table, those runs cost privacy too and are not in this statement'
)
_NOT_PUBLIC = (
  'computed from private votes: it must not be published as it is, nor decide '
  'what is published'
)
_SEEDED = 'seeded: not private against anyone who knows the seed'
_ASYMPTOTIC = (
  'asymptotic: an approximation for many steps, which may lie below the truth; '
  'no proof of privacy'
)
_PROVEN = ' (proven releases alone)'
_NOMINAL = (
  'a nominal epsilon is a parameter of a method, and no guarantee: a release '
  'without a privacy proof may reveal any row'
)
_NEIGHBOURS = 'two tables are neighbours if one is the other with one unit '
_RELATIONS = {
  'ADD_OR_REMOVE_ONE': _NEIGHBOURS + 'added or removed',
  'REPLACE_ONE': _NEIGHBOURS + 'replaced by another',
  'REPLACE_SPECIAL': _NEIGHBOURS
  + 'replaced by a null unit, which counts as a row and contributes nothing',
}
_ASSUMPTIONS = (
  'The schema (columns, types, bounds, categories) was public or chosen '
  'without looking at the table, except where a mechanism above pays for it.',
  'Every mechanism bounds what a unit contributes (clipping, sensitivity) and '
  'adds its noise as described above.',
  'Nothing that was computed from the table was released or used to choose '
  'parameters, except through the mechanisms above.',
  'Noise, sampling and number of runs of the mechanisms were not chosen in '
  'view of the outputs of earlier ones.',
  'Noise is drawn in floating point; noisy sums of this library are rounded '
  'to a public grid, against attacks on their low-order bits.',
  'Nobody outside observes running times, memory, errors or other side '
  'channels of the computation.',
  'The table, logs, checkpoints and everything else that is no output of a '
  'mechanism are kept from the readers of the results, and for no longer than '
  'needed; the guarantee does not protect them, nor how they were collected.',
)
_ROWS = (
  'The number of rows is public.',
  'Every unit contributes one row at most; for whoever is in more rows, the '
  'guarantee is weaker.',
)
_UNITS = (
  'The number of units is public; that of rows is not.',
  'All rows of a unit have its identifier, and which identifier a row has does '
  'not depend on other units. For whoever has several identifiers, the '
  'guarantee is weaker.',
)
_SHARDS = (
  'Which shard a row belongs to depends on nothing but the row itself, or was '
  'drawn at random without looking at the rows.'
)
_SHARDS_OF_UNITS = (
  'All rows of a unit are in one shard, and which one that is depends on '
  'nothing but the unit itself, or was drawn at random without looking at the '
  'rows.'
)
_NULL = (
  'A null unit adds nothing to a sum or count and changes no score or vote; '
  'asked for an answer of its own, it gives any with the same probability.'
)
_STREAM = (
  'Which steps of a stream a unit takes part in does not depend on other '
  'units, and they are as few and as far apart as the mechanisms say.'
)
_SECRET = (
  'Noise and sampling come from random numbers that nobody outside knows or '
  'can guess; secrets they were made from are kept like the table, or deleted.'
)


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
  """A privacy claim with all that it rests on; see `privacy_statement`.

  Attributes:
    epsilon: epsilon of the claim, not rounded; infinite if a release has no
      privacy proof.
    delta: delta of the claim.
    accountant: name of the accountant of the claim.
    guarantee: its guarantee, 'upper_bound' or 'asymptotic'.
    unit: the unit of privacy.
    neighboring_relation: name of the relation.
    sampling: how batches were drawn.
    mechanisms: for each, a dict with label, mechanism, event, count, reserved;
      at its data-independent cost.
    epsilons: for each accountant, a dict with accountant, guarantee, epsilon
      (None if it does not support all events, or knows no finite one),
      is_claim, reason (why it has no epsilon, or None) and remarks on it.
    budget: dict with epsilon and delta, or None.
    num_examples: number of rows, or of units of several rows; or None.
    seeded: whether the random numbers came from a seed that may be known.
    assumptions: conditions of the claim.
    notes: further remarks.
    trust_model: who is trusted with what.
    hyperparameter_search: cost of a search over hyper-parameters.
    epsilon_by_delta: for each of several deltas, a dict with delta and epsilon
      of the accountant of the claim (None if no finite one is known).
    sampled: whether a mechanism is amplified by sampling.
    epsilon_without_amplification: epsilon of the claim without amplification by
      sampling; None if the accountant does not support that.
    data_dependent: dict with accountant, epsilon and warning where costs were
      computed from private votes, else None. It must not be published.
    privacy_unit: name of the column whose values are the units of privacy, or
      None for rows.
    no_proof: dict with releases (how many have no privacy proof), mechanisms (a
      dict with name, nominal_epsilon and count for each) and proven_epsilon (of
      all others) where there are any, else None. Then the rows of `epsilons`
      and `epsilon_by_delta` have an epsilon of None, and a proven_epsilon.
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
  trust_model: str
  hyperparameter_search: str
  epsilon_by_delta: tuple[dict[str, Any], ...]
  sampled: bool
  epsilon_without_amplification: Optional[float]
  data_dependent: Optional[dict[str, Any]]
  no_proof: Optional[dict[str, Any]] = None
  privacy_unit: Optional[str] = None

  @property
  def claim(self) -> str:
    """The claim in one line, with epsilon rounded upwards."""
    if self.no_proof is None:
      return self._claimed(self.epsilon)
    found = self.no_proof
    count, proven = found['releases'], found['proven_epsilon']
    each = ', '.join(
      f'{x["count"]} x {x["name"]} (nominal epsilon {x["nominal_epsilon"]:.6g})'
      for x in found['mechanisms']
    )
    return (
      f'no privacy proof: {count} release{"s" * (count != 1)} not covered by '
      f'any epsilon: {each}. Of the proven releases alone: '
      + self._claimed(math.inf if proven is None else proven)
    )

  def _claimed(self, epsilon: float) -> str:
    words = self.guarantee.replace('_', ' ')
    if math.isinf(epsilon):
      return (
        f'no privacy: no finite epsilon holds at delta={self.delta!r} '
        f'({self.accountant}, {words})'
      )
    return (
      f'epsilon {self._sign} {round_up(epsilon)} at '
      f'delta={self.delta!r} ({self.accountant}, {words})'
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns a JSON-able dict; an epsilon that is not finite is None."""
    result = dataclasses.asdict(self)
    result['claim'] = self.claim
    for name in ('no_proof', 'privacy_unit'):
      if result[name] is None:
        del result[name]
    for name, value in result.items():
      if isinstance(value, tuple):
        result[name] = list(value)
      elif isinstance(value, float) and math.isinf(value):
        result[name] = None
    return result

  def to_text(self) -> str:
    """Returns plain text in lines of at most 80 columns, but for long words."""
    lines = ['Privacy statement', '', f'Claim: {self.claim}']
    lines += [f'- {line}' for line in self._below_claim()]
    lines += ['', *(f'{name}: {text}' for name, text in self._facts())]
    lines += ['', 'Mechanisms charged:']
    for label, mechanism, count, rest in _grouped(self.mechanisms):
      times = f'{count} x ' if count != 1 else ''
      unused = f'; {rest} more reserved and not used' if rest else ''
      lines.append(f'- {label}: {times}{mechanism}{unused}')
    if not self.mechanisms:
      lines.append('- none')
    lines += ['', f'Epsilon at delta={self.delta!r} by accountant:']
    for row in self.epsilons:
      lines.append(f'- {row["accountant"]}: {_value(row)} ({_kind(row)})')
      lines += [f'  {remark}' for remark in row['remarks']]
    lines += ['', self._unamplified()]
    lines += ['', f'Epsilon at other deltas ({self.accountant}):']
    lines += [f'- delta={x}: {epsilon}' for x, epsilon in self._by_delta()]
    lines += ['', 'Assumptions:', *(f'- {x}' for x in self.assumptions)]
    if self.notes:
      lines += ['', 'Notes:', *(f'- {note}' for note in self.notes)]
    return '\n'.join(map(_wrapped, lines))

  def to_markdown(self) -> str:
    """Returns Markdown, for a README or a model card."""
    blocks = [
      '# Privacy statement',
      f'**Claim:** {_escaped(self.claim)}',
      _items(self._below_claim()),
      _items(f'**{name}:** {_escaped(text)}' for name, text in self._facts()),
      '## Mechanisms charged',
      _table(
        ('Label', 'Mechanism', 'Runs', 'Reserved, not used'),
        _grouped(self.mechanisms),
      ),
      f'## Epsilon at delta={self.delta!r} by accountant',
      _table(
        ('Accountant', 'Epsilon', 'Guarantee', 'Remarks'),
        (
          (x['accountant'], _value(x), _kind(x), ' '.join(x['remarks']))
          for x in self.epsilons
        ),
      ),
      _escaped(self._unamplified()),
      f'## Epsilon at other deltas ({_escaped(self.accountant)})',
      _table(('Delta', 'Epsilon'), self._by_delta()),
      '## Assumptions',
      _items(map(_escaped, self.assumptions)),
    ]
    if self.notes:
      blocks += ['## Notes', _items(map(_escaped, self.notes))]
    return '\n\n'.join(block for block in blocks if block)

  def __str__(self) -> str:
    return self.to_text()

  @property
  def _examples(self) -> str:
    return 'rows' if self.privacy_unit is None else 'units'

  @property
  def _sign(self) -> str:
    return '<=' if self.guarantee == 'upper_bound' else 'about'

  def _below_claim(self) -> list[str]:
    """What must be repeated wherever the claim is."""
    claim = next(row for row in self.epsilons if row['is_claim'])
    lines = list(claim['remarks'])
    if self.no_proof is not None:
      lines.insert(0, _NOMINAL)
    said = any('asymptotic' in line for line in lines)
    if self.guarantee == 'asymptotic' and not said:
      lines.append(_ASYMPTOTIC)
    if self.seeded:
      lines.append(_SEEDED)
    if self.data_dependent is not None:
      private = self.data_dependent
      lines.append(
        f'not for publication: epsilon {round_up(private["epsilon"])} at '
        f'delta={self.delta!r} ({private["accountant"]}), '
        f'{private["warning"]}'
      )
    return lines

  def _facts(self) -> list[tuple[str, str]]:
    relation = self.neighboring_relation
    facts = [
      ('Unit of privacy', self.unit),
      (
        'Neighbouring relation',
        f'{relation.lower().replace("_", " ")} ({_RELATIONS[relation]})',
      ),
      ('Trust model', self.trust_model),
      ('Sampling', self.sampling),
      ('Hyper-parameters', self.hyperparameter_search),
    ]
    if self.num_examples is not None:
      facts.append((f'Number of {self._examples}', str(self.num_examples)))
    if self.budget is not None:
      budget = self.budget
      text = f'epsilon {budget["epsilon"]!r} at delta={budget["delta"]!r}'
      facts.append(('Budget', text))
    return facts

  def _by_delta(self) -> list[tuple[str, str]]:
    """Each of several deltas, with what it is, and its epsilon."""
    rows = []
    for row in self.epsilon_by_delta:
      delta, marks = row['delta'], []
      if delta == self.delta:
        marks.append('the claim')
      if (self.num_examples or 0) > 1 and delta == 1 / self.num_examples:
        marks.append(f'one over the number of {self._examples}')
      shown = delta_text(delta) + (f' ({", ".join(marks)})' if marks else '')
      number = _number(row.get('proven_epsilon', row['epsilon']))
      if self.no_proof is not None:
        number += _PROVEN
      rows.append((shown, number))
    return rows

  def _unamplified(self) -> str:
    if not self.sampled:
      return 'No mechanism is amplified by sampling.'
    epsilon, text = self.epsilon_without_amplification, 'no finite epsilon'
    if self.no_proof is not None:
      text = 'no epsilon, as releases without a privacy proof are listed'
    elif epsilon is None:
      text = 'not supported by this accountant'
    elif math.isfinite(epsilon):
      text = f'epsilon {self._sign} {round_up(epsilon)}'
    return (
      f'Without amplification by sampling: {text} at delta={self.delta!r} '
      f'({self.accountant}), towards anyone who knows which {self._examples} '
      'were drawn.'
    )


def _grouped(mechanisms):
  """Returns (label, mechanism, count, rest); like ones as one.

  Those are like whose labels differ in a number at the end, and whose texts
  differ in numbers: 'marginal 1' and 'marginal 2' become 'marginal 1 to 2',
  with the least and the largest of their numbers.
  """
  groups = {}
  for row in mechanisms:
    stem, number = _NUMBERED.fullmatch(row['label']).groups()
    pattern = _NUMBER.sub('#', row['mechanism'])
    alone = None if number else row['label']
    groups.setdefault((stem, pattern, alone), []).append((number, row))
  found = []
  for (stem, pattern, _), rows in groups.items():
    label, mechanism = rows[0][1]['label'], rows[0][1]['mechanism']
    if len(rows) > 1:
      label = f'{stem} {rows[0][0]} to {rows[-1][0]}'
      texts = zip(*(_NUMBER.findall(row['mechanism']) for _, row in rows))
      parts = pattern.split('#')
      mechanism = ''.join(
        part + _range(numbers) for part, numbers in zip(parts, texts)
      )
      mechanism += parts[-1]
    count = sum(row['count'] for _, row in rows)
    rest = sum(row['reserved'] for _, row in rows) - count
    found.append((label, mechanism, count, rest))
  return found


def _range(numbers):
  least, largest = min(numbers, key=float), max(numbers, key=float)
  return least if least == largest else f'{least} to {largest}'


def privacy_statement(
  ledger: PrivacyLedger,
  *,
  unit: Optional[str] = None,
  num_examples: Optional[int] = None,
  sampling: Optional[str] = None,
  notes: Sequence[str] = (),
  delta: Optional[float] = None,
  seeded: bool = False,
  hyperparameter_search: Optional[str] = None,
  data_dependent: bool = False,
) -> PrivacyStatement:
  """Returns the privacy guarantee of the mechanisms of a ledger.

  It holds what NIST SP 800-226 (Near, Darais, Lefkovitz and Howarth 2025) asks
  to be reported of a guarantee, and what the statement of TF Privacy does.

  Args:
    ledger: a `PrivacyLedger`.
    unit: the unit of privacy; that of the ledger if None.
    num_examples: number of rows, or of the units of the ledger, if it may be
      published.
    sampling: how batches were really drawn; what the mechanisms assume if None.
    notes: further remarks.
    delta: inside (0, 1); that of the budget if None.
    seeded: whether random numbers came from a seed that may be known; also
      taken from the ledger.
    hyperparameter_search: the search over hyper-parameters, and its cost; what
      the mechanisms are charged for if None.
    data_dependent: whether to add the epsilon of costs that were computed from
      private votes, where there are any. A statement with it is private.

  Returns:
    A `PrivacyStatement`; its `str` is the text.

  Raises:
    ValueError: if the delta is missing or outside its range.

  #### Formal guarantee
  The claim is the epsilon of the ledger's own accountant for all that is
  charged, at the delta of the budget, rounded upwards. It holds under the
  assumptions that are listed, and is marked where the guarantee of the
  accountant is only asymptotic. Nothing but `data_dependent` depends on private
  votes. The other deltas are a fixed list and one over the number of rows.
  Where the ledger lists a `NoProofDpEvent`, `epsilon` is infinite, and the
  claim states how many releases have no proof before the epsilon of the others.

  #### Example

  >>> from tfdpflows.accounting import PrivacyBudget, PrivacyLedger
  >>> ledger = PrivacyLedger(budget=PrivacyBudget(epsilon=1.0, delta=1e-5))
  >>> _ = ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='histograms')
  >>> privacy_statement(ledger).claim
  'epsilon <= 0.7256 at delta=1e-05 (pld, upper bound)'
  """
  check_ledger(ledger)
  if delta is None:
    if ledger.budget is None:
      raise ValueError('The ledger has no budget; give the delta of the claim.')
    delta = ledger.budget.delta
  delta = budget_lib.check_delta(delta)
  # One snapshot, whoever charges meanwhile.
  spent = _Spent(ledger)
  seeded = bool(seeded or ledger.seeded)
  notes = [*notes, *ledger.notes]
  if num_examples is not None and delta * num_examples >= 1:
    notes.append(
      f'delta={delta:g} is not below one over the number of '
      f'{"rows" if ledger.privacy_unit is None else "units"} '
      f'({1 / num_examples:.3g}): a mechanism that publishes one of them in '
      'full could satisfy this claim.'
    )
  unamplified = mechanisms.without_amplification(spent.event)
  sampled = unamplified != spent.event
  if sampling is None:
    sampling = _SAMPLING_UNKNOWN if sampled else _NO_SAMPLING
  epsilons = [
    _epsilon_row(spent, name, delta) for name in registry.accountant_names()
  ]
  assumptions = [
    _ASSUMPTIONS[0],
    *(_ROWS if ledger.privacy_unit is None else _UNITS),
    *_ASSUMPTIONS[1:],
  ]
  if 'ParallelDpEvent' in repr(spent.event):
    rows = ledger.privacy_unit is None
    assumptions.append(_SHARDS if rows else _SHARDS_OF_UNITS)
  if ledger.neighboring_relation.name == 'REPLACE_SPECIAL':
    assumptions.append(_NULL)
  if mechanisms.has_stream(spent.event):
    assumptions.append(_STREAM)
  if not seeded:
    assumptions.append(_SECRET)
  claim = next(row for row in epsilons if row['is_claim'])
  epsilon = math.inf if claim['epsilon'] is None else claim['epsilon']
  listed = _no_proof(spent, claim)
  return PrivacyStatement(
    epsilon=epsilon,
    delta=delta,
    accountant=ledger.accountant,
    guarantee=claim['guarantee'],
    unit=_unit_of(ledger) if unit is None else str(unit),
    neighboring_relation=ledger.neighboring_relation.name,
    sampling=str(sampling),
    mechanisms=spent.mechanisms,
    epsilons=tuple(epsilons),
    budget=None if ledger.budget is None else dataclasses.asdict(ledger.budget),
    num_examples=None if num_examples is None else int(num_examples),
    seeded=seeded,
    assumptions=tuple(assumptions),
    notes=tuple(str(note) for note in notes),
    trust_model=_TRUST_MODEL,
    hyperparameter_search=_search(spent, hyperparameter_search),
    epsilon_by_delta=_by_delta(spent, delta, num_examples),
    sampled=sampled,
    epsilon_without_amplification=(
      _without_amplification(spent, unamplified, delta)
      if sampled and not listed
      else epsilon
    ),
    data_dependent=_data_dependent(spent, delta) if data_dependent else None,
    no_proof=listed,
    privacy_unit=ledger.privacy_unit,
  )


def _unit_of(ledger: PrivacyLedger) -> str:
  if ledger.privacy_unit is None:
    return 'one row of the table'
  return f'all rows of the table with one value of {ledger.privacy_unit!r}'


class _Spent:
  """All that a ledger has charged, at one moment."""

  def __init__(self, ledger: PrivacyLedger):
    self.accountant = ledger.accountant
    self.relation = ledger.neighboring_relation
    self.searches = ledger.searches
    events, mechanisms = [], {}
    for entry in ledger.entries:
      event = events_lib.data_independent(entry.event)
      # Equal events under one label are one mechanism.
      row = mechanisms.setdefault(
        (entry.label, repr(event)),
        {
          'label': entry.label,
          'mechanism': events_lib.describe_event(event),
          'event': events_json.event_to_dict(event),
          'count': 0,
          'reserved': 0,
        },
      )
      row['count'] += entry.count
      row['reserved'] += entry.reserved
      if entry.count:
        events.append((entry.event, entry.count))
    self.mechanisms = tuple(mechanisms.values())
    self.private_event, self.unproven = no_proof.split(composed(events))
    self.event = events_lib.data_independent(self.private_event)


def _epsilon_row(spent: _Spent, name: str, delta: float) -> dict[str, Any]:
  made = registry.create_accountant(name, spent.relation)
  row = {
    'accountant': name,
    'guarantee': made.guarantee,
    'epsilon': None,
    'is_claim': name == spent.accountant,
    'reason': None,
    'remarks': [],
  }
  for mechanism in spent.mechanisms:
    event, _ = no_proof.split(events_json.event_from_dict(mechanism['event']))
    if mechanism['count'] and not made.supports(event):
      row['reason'] = (
        'does not support every mechanism; the first that it refuses: '
        f'{mechanism["label"]} ({mechanism["mechanism"]})'
      )
      return row
  made.compose(spent.event)
  epsilon = float(made.get_epsilon(delta))
  row['remarks'] = list(registry.remarks(made, delta))
  row['epsilon'] = finite(epsilon)
  if row['epsilon'] is None:
    row['reason'] = 'no finite epsilon'
  if spent.unproven:
    row['reason'] = _number(row['epsilon']) + _PROVEN
    row['proven_epsilon'], row['epsilon'] = row['epsilon'], None
  return row


def _by_delta(
  spent: _Spent, delta: float, num_examples: Optional[int]
) -> tuple[dict[str, Any], ...]:
  deltas = {*_DELTAS, delta}
  if num_examples is not None and num_examples > 1:
    deltas.add(1 / num_examples)
  made = registry.compose_event(spent.event, spent.accountant, spent.relation)
  rows = []
  for value in sorted(deltas, reverse=True):
    epsilon = finite(float(made.get_epsilon(value)))
    row = {'delta': value, 'epsilon': epsilon}
    if spent.unproven:
      row = {**row, 'epsilon': None, 'proven_epsilon': epsilon}
    rows.append(row)
  return tuple(rows)


def _without_amplification(
  spent: _Spent, event: dp_accounting.DpEvent, delta: float
) -> Optional[float]:
  try:
    return registry.compute_epsilon(
      event, delta, spent.accountant, spent.relation
    )
  except dp_accounting.UnsupportedEventError:
    return None


def _search(spent: _Spent, given: Optional[str]) -> str:
  charged = [
    f'{mechanism["label"]} ({mechanism["mechanism"]})'
    for mechanism in spent.mechanisms
    if mechanism['count']
    and (
      mechanism['label'] in spent.searches
      or 'RepeatAndSelect' in repr(mechanism['event'])
    )
  ]
  lines = [str(given)] if given is not None else []
  if charged:
    lines.append(f'paid for as {"; ".join(charged)}')
  return '; '.join(lines) or _NO_SEARCH


def _data_dependent(spent: _Spent, delta: float) -> Optional[dict[str, Any]]:
  if spent.private_event == spent.event or spent.unproven:
    return None
  try:
    epsilon, name = registry.smallest_epsilon(
      spent.private_event, delta, spent.relation
    )
  except dp_accounting.UnsupportedEventError:
    return None
  if math.isinf(epsilon):
    return None
  return {'accountant': name, 'epsilon': epsilon, 'warning': _NOT_PUBLIC}


def _no_proof(spent: _Spent, claim: dict[str, Any]) -> Optional[dict[str, Any]]:
  if not spent.unproven:
    return None
  counts = {}
  for event, count in spent.unproven:
    counts[event] = counts.get(event, 0) + count
  return {
    'releases': sum(counts.values()),
    'mechanisms': [
      {**attr.asdict(event), 'count': count} for event, count in counts.items()
    ],
    'proven_epsilon': claim['proven_epsilon'],
  }


def _value(row: dict[str, Any]) -> str:
  return row['reason'] or round_up(row['epsilon'])


def _kind(row: dict[str, Any]) -> str:
  mark = ', the claim' if row['is_claim'] else ''
  return row['guarantee'].replace('_', ' ') + mark


def _number(epsilon: Optional[float]) -> str:
  return 'no finite epsilon' if epsilon is None else round_up(epsilon)


def _wrapped(line: str) -> str:
  # Continued lines of an item stand under its text.
  margin = re.match(r'(- |  )?', line)[0]
  return textwrap.fill(
    line[len(margin) :],
    80,
    initial_indent=margin,
    subsequent_indent=' ' * len(margin),
    break_long_words=False,
  )


def _items(lines: Iterable[str]) -> str:
  return '\n'.join(f'- {line}' for line in lines)


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
  head = list(head)
  lines = [head, ['---'] * len(head)]
  lines += [[_escaped(str(cell)) for cell in row] for row in rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _escaped(text: str) -> str:
  """Text as it is, whatever marks a label has in it."""
  text = re.sub(r'([\\`*_\[\]<>|#])', r'\\\1', ' '.join(text.split()))
  # Only for these does nobody mistake them for marks.
  return text.replace(r'\<=', '<=')
