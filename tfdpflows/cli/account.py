"""`tfdpflows account`: epsilon of noisy training steps, or of a ledger."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap

from tfdpflows.cli import training
from tfdpflows.cli.command import Command, UsageError

_TRAINING = ('sampling_probability', 'noise_multiplier', 'steps')
_OF_LEDGERS = ('accountant', 'neighboring_relation')
_USAGE = """\
Usage: tfdpflows account --sampling_probability=N --noise_multiplier=N --steps=N
         --delta=N [flags]
   or: tfdpflows account --ledger=FILE [--ledger=FILE ...] [--delta=N]
         [--accountant=NAME] [--format=FORMAT]
   or: tfdpflows account --ledger=FILE --release=LABEL"""


def _define(options):
  options.section('Training')
  training.add_steps(options)
  options.section('What was spent')
  options.text(
    'ledger',
    'Ledger to print the privacy statement of, instead of a training. Of '
    'several, of one table, the statement is that of all that they spent '
    'together. Without --release they are only read, and may be in use.',
    repeated=True,
    metavar='FILE',
  )
  options.text(
    'release',
    'Reservation of --ledger that nobody will resume: what it has not charged '
    'is returned to the budget, and what it has charged stays. Only this flag '
    'writes to the ledger, which must not be in use.',
    metavar='LABEL',
  )
  options.section('Accounting')
  training.add_delta(
    options,
    ' By default that of the budget of --ledger, if several have the same.',
  )
  training.add_accountant(
    options,
    'one that you registered, or all to compare them. One --ledger has its '
    'own, and several if they have the same',
  )
  training.add_relation(options)
  options.choice(
    'format',
    ['text', 'json', 'markdown'],
    'How the answer is printed; markdown is for a --ledger.',
    default='text',
  )


def _run(values):
  if values.release is not None:
    _release(values)
  if values.ledger is not None:
    print(_statement(values))
    return
  _check(values)
  from tfdpflows.accounting import accountant_names

  if values.accountant != 'all':
    result = _result(values, values.accountant)
    text = _text(result)
  else:
    result = [_result(values, name) for name in accountant_names()]
    text = _comparison(result)
  if values.format == 'json':
    text = json.dumps(result, indent=2, allow_nan=False)
  print(text)


def _release(values):
  if len(values.ledger or ()) != 1:
    raise UsageError('--release is for a reservation of one --ledger=FILE.')
  with training.open_ledger(values.ledger[0], read_only=False) as ledger:
    runs = ledger.release(values.release)
  print(f'{values.release!r} released {runs:,} runs.', file=sys.stderr)


def _statement(values):
  """Returns the privacy statement of a ledger in the format asked for."""
  of_ledger = _OF_LEDGERS if len(values.ledger) == 1 else _OF_LEDGERS[1:]
  given = [x for x in (*_TRAINING, *of_ledger) if values[x].present]
  if given:
    raise UsageError(
      f'--{given[0]} does not go with --ledger, which records what was done '
      'and how it is accounted. Leave one of them out.'
    )
  if values.delta is not None:
    training.check_delta(values.delta)
  from tfdpflows.accounting import privacy_statement

  with contextlib.ExitStack() as stack:
    ledgers = [
      stack.enter_context(training.open_ledger(path, read_only=True))
      for path in values.ledger
    ]
    delta = _delta(values, ledgers)
    ledger = ledgers[0]
    if len(ledgers) > 1:
      ledger = _composed(values, ledgers)
    statement = privacy_statement(ledger, delta=delta)
  if values.format == 'json':
    return json.dumps(statement.to_dict(), indent=2, allow_nan=False)
  if values.format == 'markdown':
    return statement.to_markdown()
  return statement.to_text()


def _delta(values, ledgers):
  """Returns the delta of the flag, or of the budgets of ledgers."""
  if values.delta is not None:
    return values.delta
  found = [ledger.budget and ledger.budget.delta for ledger in ledgers]
  for path, delta in zip(values.ledger, found):
    if delta is None:
      raise UsageError(
        f'--ledger={path} has no budget and so no delta: give one, such as '
        '--delta=1e-5.'
      )
    if delta != found[0]:
      raise UsageError(
        f'--ledger={values.ledger[0]} is for delta {found[0]:g}, and '
        f'--ledger={path} for {delta:g}: give the --delta of all together.'
      )
  return found[0]


def _composed(values, ledgers):
  """Returns what several ledgers spent, in memory."""
  from tfdpflows.accounting import LedgerError, create_accountant
  from tfdpflows.accounting.ledger.merge import compose_ledgers

  accountant = None
  if values['accountant'].present:
    if values.accountant == 'all':
      raise UsageError(
        '--accountant=all is for a training; give one for --ledger.'
      )
    accountant = create_accountant(values.accountant).name
  elif len({ledger.accountant for ledger in ledgers}) > 1:
    named = ', '.join(
      f'{path} {ledger.accountant}'
      for path, ledger in zip(values.ledger, ledgers)
    )
    raise UsageError(
      f'The ledgers have different accountants ({named}): give one that '
      'counts all of them, such as --accountant=pld.'
    )
  try:
    return compose_ledgers(ledgers, accountant)
  except (LedgerError, ValueError) as error:
    raise UsageError(f'--ledger: {error}') from error


def _check(values):
  """Refuses flags that do not determine a training."""
  missing = [
    f'--{name}=N'
    for name in (*_TRAINING, 'delta')
    if values[name].value is None
  ]
  if missing:
    raise UsageError(
      f'Missing: {", ".join(missing)}; or --ledger=FILE. See '
      '`tfdpflows account --help`.'
    )
  if values.format == 'markdown':
    raise UsageError('--format=markdown is for a statement: give a --ledger.')
  if values.sampling_probability == 0:
    raise UsageError(
      '--sampling_probability=0 takes no example into any batch: give a number '
      'above 0.'
    )
  if values.noise_multiplier == 0:
    raise UsageError(
      '--noise_multiplier=0 adds no noise, and no epsilon holds without noise.'
    )
  training.check_delta(values.delta)


def _result(values, name):
  """Returns the epsilons of the training by one accountant, for JSON."""
  from dp_accounting import UnsupportedEventError

  from tfdpflows.accounting import create_accountant, registry
  from tfdpflows.accounting.rounding import finite

  relation = training.relation(values.neighboring_relation)
  made = create_accountant(name, relation)
  result = {
    'epsilon': None,
    'delta': values.delta,
    'accountant': made.name,
    'guarantee': made.guarantee,
    'neighboring_relation': values.neighboring_relation,
    'sampling': 'poisson',
    'sampling_probability': values.sampling_probability,
    'noise_multiplier': values.noise_multiplier,
    'steps': values.steps,
    'epsilon_without_amplification': None,
  }
  supported, remarks = True, []
  for key, probability in (
    ('epsilon_without_amplification', 1.0),
    ('epsilon', values.sampling_probability),
  ):
    event = training.training_event(
      sampling_probability=probability,
      noise_multiplier=values.noise_multiplier,
      steps=values.steps,
    )
    try:
      made = create_accountant(name, relation).compose(event)
    except UnsupportedEventError:
      if values.accountant != 'all':
        raise
      supported, remarks = False, ['does not support this training']
      continue
    supported = True
    result[key] = finite(made.get_epsilon(values.delta))
    remarks = registry.remarks(made, values.delta)
  if values.accountant == 'all':
    result['supported'] = supported
  if remarks:
    result['remarks'] = list(remarks)
  return result


def _text(result):
  lines = [training.answer(result), *_described(result)]
  if result['sampling_probability'] < 1:
    lines.append(
      '  without amplification by sampling: epsilon = '
      f'{training.shown(result["epsilon_without_amplification"])}'
    )
  lines += _indented(result.get('remarks', ()), 2)
  return '\n'.join(lines)


def _comparison(results):
  from tfdpflows.accounting.rounding import delta_text

  first = results[0]
  lines = [
    f'epsilon at delta = {delta_text(first["delta"])}, rounded up',
    *_described(first),
    '',
    f'{"":12}{"epsilon":>12}{"unamplified":>14}  guarantee',
  ]
  for result in results:
    shown = [
      '-'
      if result[key] is None and not result['supported']
      else training.shown(result[key])
      for key in ('epsilon', 'epsilon_without_amplification')
    ]
    guarantee = result['guarantee'].replace('_', ' ')
    lines.append(
      f'{result["accountant"]:12}{shown[0]:>12}{shown[1]:>14}  {guarantee}'
    )
    lines += _indented(result.get('remarks', ()), 4)
  return '\n'.join(lines)


def _described(result):
  return [
    f'  {result["steps"]:,} steps, noise multiplier '
    f'{result["noise_multiplier"]:g}, '
    f'each example in a batch with probability '
    f'{result["sampling_probability"]:g}',
    '  for tables that differ by '
    f'{training.RELATIONS[result["neighboring_relation"]]}',
  ]


def _indented(remarks, margin):
  first, rest = ' ' * margin, ' ' * (margin + 2)
  margins = {'initial_indent': first, 'subsequent_indent': rest}
  return [textwrap.fill(remark, 80, **margins) for remark in remarks]


COMMAND = Command(
  name='account',
  summary='Epsilon of a number of noisy steps',
  description="""
    Computes epsilon of DP-SGD: in each step every example enters the batch with
    the same probability, gradients are clipped and Gaussian noise is added to
    their sum.

    Or, with --ledger, prints what was really spent: the privacy statement of a
    ledger, such as the ledger.jsonl of a model, or of several together.
  """,
  example="""
    tfdpflows account --sampling_probability=0.01 --noise_multiplier=1 \\
      --steps=1000 --delta=1e-5 --accountant=pld
  """,
  define=_define,
  run=_run,
  usage=_USAGE,
)
