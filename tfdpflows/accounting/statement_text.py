"""The words of a privacy statement, as plain text and as Markdown."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from tfdpflows.accounting.rounding import round_up

if TYPE_CHECKING:
  from tfdpflows.accounting import statement as statement_lib

__all__ = ['assumptions', 'sign', 'to_markdown', 'to_text']

TRUST_MODEL = (
  'central: whoever runs the code sees the table and all random numbers, and '
  'is trusted; the guarantee is towards everybody else, who may see all that '
  'the mechanisms released'
)
NO_SAMPLING = 'no mechanism is charged as if it read a sample of the rows'
SAMPLING_UNKNOWN = (
  'as the mechanisms say; that the batches were really drawn that way is not '
  'recorded'
)
NO_SEARCH = (
  'no search over hyper-parameters is charged; if they were chosen by results '
  'on this table, those runs cost privacy too and are not in this statement'
)
NOT_PUBLIC = (
  'computed from private votes: it must not be published as it is, nor decide '
  'what is published'
)
_SEEDED = 'seeded: not private against anyone who knows the seed'
_ASYMPTOTIC = (
  'asymptotic: an approximation for many steps, which may lie below the truth; '
  'no proof of privacy'
)
_RELATIONS = {
  'ADD_OR_REMOVE_ONE': (
    'two tables are neighbours if one is the other with one unit added or '
    'removed'
  ),
  'REPLACE_ONE': (
    'two tables are neighbours if one is the other with one unit replaced by '
    'another'
  ),
  'REPLACE_SPECIAL': (
    'two tables are neighbours if one is the other with one unit replaced by a '
    'null unit, which counts as a row and contributes nothing'
  ),
}
_ASSUMPTIONS = (
  'The schema (columns, types, bounds, categories) was public or chosen '
  'without looking at the table, except where a mechanism above pays for it.',
  'The number of rows is public.',
  'Every unit contributes one row at most; for whoever is in more rows, the '
  'guarantee is weaker.',
  'Every mechanism bounds what a unit contributes (clipping, sensitivity) and '
  'adds its noise as described above.',
  'Nothing that was computed from the table was released or used to choose '
  'parameters, except through the mechanisms above.',
  'Noise, sampling and number of runs of the mechanisms were not chosen in '
  'view of the outputs of earlier ones.',
  'Noise is drawn in floating point, which is not proof against attacks on '
  'the low-order bits of floating-point noise.',
  'Nobody outside observes running times, memory, errors or other side '
  'channels of the computation.',
  'The table, logs, checkpoints and everything else that is no output of a '
  'mechanism are kept from the readers of the results, and for no longer than '
  'needed; the guarantee does not protect them, nor how they were collected.',
)
_SHARDS = (
  'Which shard a row belongs to depends on nothing but the row itself, or was '
  'drawn at random without looking at the rows.'
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


def assumptions(
  seeded: bool, sharded: bool, null: bool = False, streamed: bool = False
) -> tuple[str, ...]:
  """What must be true for a claim to hold.

  Args:
    seeded: Whether the random numbers came from a seed that may be known.
    sharded: Whether mechanisms are charged as reading disjoint shards.
    null: Whether neighbours have a null unit in the place of another.
    streamed: Whether tree aggregation or a matrix mechanism is charged.

  Returns:
    Sentences.
  """
  return (
    *_ASSUMPTIONS,
    *([_SHARDS] if sharded else []),
    *([_NULL] if null else []),
    *([_STREAM] if streamed else []),
    *([] if seeded else [_SECRET]),
  )


def sign(guarantee: str) -> str:
  """How a claim with this guarantee relates to the true epsilon."""
  return '<=' if guarantee == 'upper_bound' else 'about'


def to_text(statement: statement_lib.PrivacyStatement) -> str:
  """A statement as lines of at most 80 columns, but for long words.

  Args:
    statement: The statement.

  Returns:
    The text, without a newline at its end.
  """
  lines = ['Privacy statement', '', f'Claim: {statement.claim}']
  lines += [f'- {line}' for line in _below_claim(statement)]
  lines.append('')
  lines += [f'{name}: {text}' for name, text in _facts(statement)]
  lines += ['', 'Mechanisms charged:']
  for row in statement.mechanisms:
    times = f'{row["count"]} x ' if row['count'] != 1 else ''
    rest = row['reserved'] - row['count']
    unused = f'; {rest} more reserved and not used' if rest else ''
    lines.append(f'- {row["label"]}: {times}{row["mechanism"]}{unused}')
  if not statement.mechanisms:
    lines.append('- none')
  lines += ['', f'Epsilon at delta={statement.delta!r} by accountant:']
  for row in statement.epsilons:
    lines.append(f'- {row["accountant"]}: {_value(row)} ({_kind(row)})')
    lines += [f'  {remark}' for remark in row['remarks']]
  lines += ['', _unamplified(statement)]
  lines += ['', f'Epsilon at other deltas ({statement.accountant}):']
  lines += [
    f'- delta={row["delta"]:.6g}{_which(statement, row["delta"])}: '
    f'{_number(row["epsilon"])}'
    for row in statement.epsilon_by_delta
  ]
  lines += ['', 'Assumptions:', *(f'- {x}' for x in statement.assumptions)]
  if statement.notes:
    lines += ['', 'Notes:', *(f'- {note}' for note in statement.notes)]
  return '\n'.join(map(_wrapped, lines))


def to_markdown(statement: statement_lib.PrivacyStatement) -> str:
  """A statement as Markdown.

  Args:
    statement: The statement.

  Returns:
    The text, without a newline at its end.
  """
  blocks = [
    '# Privacy statement',
    f'**Claim:** {_escaped(statement.claim)}',
    _items(_below_claim(statement)),
    _items(f'**{name}:** {_escaped(text)}' for name, text in _facts(statement)),
    '## Mechanisms charged',
    _table(
      ('Label', 'Mechanism', 'Runs', 'Reserved, not used'),
      (
        (
          row['label'],
          row['mechanism'],
          row['count'],
          row['reserved'] - row['count'],
        )
        for row in statement.mechanisms
      ),
    ),
    f'## Epsilon at delta={statement.delta!r} by accountant',
    _table(
      ('Accountant', 'Epsilon', 'Guarantee', 'Remarks'),
      (
        (row['accountant'], _value(row), _kind(row), ' '.join(row['remarks']))
        for row in statement.epsilons
      ),
    ),
    _escaped(_unamplified(statement)),
    f'## Epsilon at other deltas ({_escaped(statement.accountant)})',
    _table(
      ('Delta', 'Epsilon'),
      (
        (
          f'{row["delta"]:.6g}{_which(statement, row["delta"])}',
          _number(row['epsilon']),
        )
        for row in statement.epsilon_by_delta
      ),
    ),
    '## Assumptions',
    _items(map(_escaped, statement.assumptions)),
  ]
  if statement.notes:
    blocks += ['## Notes', _items(map(_escaped, statement.notes))]
  return '\n\n'.join(block for block in blocks if block)


def _below_claim(statement) -> list[str]:
  """What may not be left out where the claim is repeated."""
  claim = next(row for row in statement.epsilons if row['is_claim'])
  lines = list(claim['remarks'])
  said = any('asymptotic' in line for line in lines)
  if statement.guarantee == 'asymptotic' and not said:
    lines.append(_ASYMPTOTIC)
  if statement.seeded:
    lines.append(_SEEDED)
  if statement.data_dependent is not None:
    private = statement.data_dependent
    lines.append(
      f'not for publication: epsilon {round_up(private["epsilon"])} at '
      f'delta={statement.delta!r} ({private["accountant"]}), '
      f'{private["warning"]}'
    )
  return lines


def _facts(statement) -> list[tuple[str, str]]:
  relation = statement.neighboring_relation
  facts = [
    ('Unit of privacy', statement.unit),
    (
      'Neighbouring relation',
      f'{relation.lower().replace("_", " ")} ({_RELATIONS[relation]})',
    ),
    ('Trust model', statement.trust_model),
    ('Sampling', statement.sampling),
    ('Hyper-parameters', statement.hyperparameter_search),
  ]
  if statement.num_examples is not None:
    facts.append(('Number of rows', str(statement.num_examples)))
  if statement.budget is not None:
    budget = statement.budget
    text = f'epsilon {budget["epsilon"]!r} at delta={budget["delta"]!r}'
    facts.append(('Budget', text))
  return facts


def _value(row: dict[str, Any]) -> str:
  return row['reason'] or round_up(row['epsilon'])


def _kind(row: dict[str, Any]) -> str:
  mark = ', the claim' if row['is_claim'] else ''
  return row['guarantee'].replace('_', ' ') + mark


def _number(epsilon: Optional[float]) -> str:
  return 'no finite epsilon' if epsilon is None else round_up(epsilon)


def _which(statement, delta: float) -> str:
  marks = []
  if delta == statement.delta:
    marks.append('the claim')
  n = statement.num_examples
  if n is not None and n > 1 and delta == 1 / n:
    marks.append('one over the number of rows')
  return f' ({", ".join(marks)})' if marks else ''


def _unamplified(statement) -> str:
  if not statement.sampled:
    return 'No mechanism is amplified by sampling.'
  epsilon = statement.epsilon_without_amplification
  if epsilon is None:
    text = 'not supported by this accountant'
  elif math.isinf(epsilon):
    text = 'no finite epsilon'
  else:
    text = f'epsilon {sign(statement.guarantee)} {round_up(epsilon)}'
  return (
    f'Without amplification by sampling: {text} at delta={statement.delta!r} '
    f'({statement.accountant}), towards anyone who knows which rows were drawn.'
  )


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
