"""`tfdpflows calibrate`: noise, steps, sampling or epsilon of a training."""

from __future__ import annotations

import json
import math

from tfdpflows.cli import training
from tfdpflows.cli.command import Command, UsageError

_UNKNOWNS = ('noise_multiplier', 'steps', 'sampling_probability', 'epsilon')
_MAX_STEPS = 10**9
_USAGE = """\
Usage: tfdpflows calibrate --delta=N [flags] and three of --epsilon=N
  --sampling_probability=N --steps=N --noise_multiplier=N"""


def _define(options):
  options.section('Training')
  training.add_steps(options)
  options.section('Accounting')
  options.number(
    'epsilon',
    'Largest epsilon of everything together, above 0. By default that of the '
    'budget of --ledger, if another flag is left out too.',
  )
  training.add_delta(options)
  training.add_accountant(options, 'or one that you registered')
  options.choice(
    'format', ['text', 'json'], 'How the answer is printed.', default='text'
  )
  training.add_relation(options)
  options.text(
    'ledger',
    'Ledger of the same rows: all that it has charged or reserved counts too. '
    'Accountant, neighboring relation and the delta of its budget are used. It '
    'is only read.',
    metavar='FILE',
  )


def _run(values):
  training.check_one_ledger(
    values,
    'the epsilon of one is not that of all. `account` has that of several; in '
    'Python accounting.merge_ledgers makes one of them, with a budget.',
  )
  from tfdpflows import accounting

  ledger = budget = None
  if values.ledger is not None:
    with training.open_ledger(values.ledger, read_only=True) as ledger:
      budget = ledger.budget
  known, unknown = _parameters(values, budget)
  delta = _delta(values, budget)
  name = _accountant(values, ledger)
  relation = _relation(values, ledger)
  accountant = accounting.create_accountant(name, training.relation(relation))
  before = 0.0
  if ledger is not None:
    accountant.compose(
      accounting.events.data_independent(ledger.committed_event)
    )
    before = accountant.get_epsilon(delta)

  def event(value=None):
    return training.training_event(
      **{k: v for k, v in {**known, unknown: value}.items() if k != 'epsilon'}
    )

  found = _solve(
    event, unknown, known['epsilon'], delta, accountant, ledger, values
  )
  accountant.compose(event(found))
  known[unknown] = found
  if unknown != 'epsilon':
    known['epsilon'] = float(accountant.get_epsilon(delta))
  result = {
    'noise_multiplier': known['noise_multiplier'],
    'epsilon': known['epsilon'],
    'delta': delta,
    'accountant': accountant.name,
    'guarantee': accountant.guarantee,
    'neighboring_relation': relation,
    'sampling_probability': known['sampling_probability'],
    'steps': known['steps'],
  }
  if ledger is not None:
    if ledger.privacy_unit is not None:
      result['privacy_unit'] = ledger.privacy_unit
    result['ledger'] = values.ledger
    result['epsilon_of_ledger'] = float(before)
  remarks = accounting.registry.remarks(accountant, delta)
  remarks = [*_own_remarks(known, unknown, budget), *remarks]
  if remarks:
    result['remarks'] = remarks
  if values.format == 'json':
    print(json.dumps(result, indent=2, allow_nan=False))
  else:
    print(_text(result, unknown))


def _parameters(values, budget):
  """Returns the parameters, None for the unknown one, and its name."""
  known = {name: values[name].value for name in _UNKNOWNS}
  for name, value in known.items():
    if value is not None and not 0 < value < math.inf:
      raise UsageError(f'--{name}={value:g} must be a finite number above 0.')
  missing = [name for name in _UNKNOWNS if known[name] is None]
  if budget is not None:
    if 'epsilon' in missing and len(missing) == 2:
      known['epsilon'] = budget.epsilon
      missing.remove('epsilon')
    elif 'epsilon' not in missing and known['epsilon'] > budget.epsilon:
      raise UsageError(
        f'--epsilon={known["epsilon"]:g} is more than the budget of '
        f'--ledger={values.ledger}, {budget.epsilon:g}: ask for that or less.'
      )
  if len(missing) == 1:
    return known, missing[0]
  listed = ', '.join(f'--{name}' for name in missing or _UNKNOWNS)
  if missing:
    raise UsageError(
      f'Give all but one of {listed}: the one that is left out is looked for.'
    )
  raise UsageError(
    f'Leave out one of {listed}: that one is looked for. With all of them '
    'known, `tfdpflows account` computes epsilon.'
  )


def _delta(values, budget):
  """Returns the delta of the flag, or of the budget of the ledger."""
  if budget is None:
    if values.delta is not None:
      return training.check_delta(values.delta)
    raise UsageError(
      'Missing: --delta=N. See `tfdpflows calibrate --help`.'
      if values.ledger is None
      else f'Missing: --delta=N. --ledger={values.ledger} has no budget.'
    )
  if values.delta not in (None, budget.delta):
    raise UsageError(
      f'--delta={values.delta:g} is not that of the budget of '
      f'--ledger={values.ledger}, {budget.delta:g}: leave it out.'
    )
  return budget.delta


def _accountant(values, ledger):
  """Returns the name of the accountant of the flag, or of the ledger."""
  from tfdpflows.accounting import create_accountant

  name = create_accountant(values.accountant).name
  if ledger is None or name == ledger.accountant:
    return name
  if values['accountant'].present:
    raise UsageError(
      f'--accountant={values.accountant} is not that of --ledger='
      f'{values.ledger}, {ledger.accountant}: leave it out.'
    )
  if create_accountant(ledger.accountant).guarantee != 'upper_bound':
    raise UsageError(
      f'--ledger={values.ledger} is accounted by {ledger.accountant}, which is '
      'asymptotic: the true epsilon may be larger. Ask for it with '
      f'--accountant={ledger.accountant}.'
    )
  return ledger.accountant


def _relation(values, ledger):
  """Returns the name of the relation of the flag, or of the ledger."""
  name = values.neighboring_relation
  if ledger is None:
    return name
  kept = ledger.neighboring_relation.name.lower()
  if values['neighboring_relation'].present and name != kept:
    raise UsageError(
      f'--neighboring_relation={name} is not that of --ledger='
      f'{values.ledger}, {kept}: leave it out.'
    )
  return kept


def _own_remarks(known, unknown, budget):
  """Yields what is to be said of an answer, beside what its accountant says."""
  if unknown == 'steps' and known['steps'] == _MAX_STEPS:
    yield 'The search ends there: more steps would fit.'
  elif budget is not None and known['epsilon'] > budget.epsilon:
    yield (
      f'The budget of the ledger is epsilon = {budget.epsilon:g}: it would '
      'refuse these steps.'
    )


def _solve(event, unknown, epsilon, delta, accountant, ledger, values):
  """Returns the value of the unknown parameter."""
  from tfdpflows import accounting
  from tfdpflows.accounting import calibration

  kwargs = {
    'accountant': accountant.name,
    'neighboring_relation': accountant.neighboring_relation,
  }
  if ledger is not None:
    kwargs['spent'] = ledger.committed_event
  if unknown == 'epsilon':
    try:
      return calibration.calibrate_epsilon(event(), delta, **kwargs)
    except ValueError as error:
      raise UsageError(f'--delta={delta:g}: {error}') from error
  search = getattr(calibration, f'calibrate_{unknown}')
  if unknown == 'steps':
    kwargs['max_steps'] = _MAX_STEPS
  budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
  try:
    return search(event, budget, **kwargs)
  except accounting.BudgetExceededError as error:
    flag = f'--epsilon={epsilon:g}'
    if values.epsilon is None:
      flag = f'--ledger={values.ledger}'
    raise UsageError(f'{flag}: {error}') from error


def _text(result, unknown):
  from tfdpflows.accounting.rounding import round_down, round_up_decimals

  q = result['sampling_probability']
  epsilon = training.answer(result)
  noise = result['noise_multiplier']
  answer = {
    'noise_multiplier': (
      f'noise multiplier = {round_up_decimals(noise)} (rounded up)'
    ),
    'steps': f'steps = {result["steps"]:,}',
    'sampling_probability': (
      f'sampling probability = {round_down(q)} (rounded down)'
    ),
    'epsilon': epsilon,
  }
  given = {
    'steps': f'{result["steps"]:,} steps',
    'noise_multiplier': f'noise multiplier {noise:g}',
    'sampling_probability': (
      f'every example in a batch with probability {q:g}'
    ),
  }
  given.pop(unknown, None)
  lines = [answer[unknown], ', '.join(given.values())]
  if unknown != 'epsilon':
    lines.append(epsilon)
  if 'ledger' in result:
    before = round_up_decimals(result['epsilon_of_ledger'])
    lines.append(
      f'with all that {result["ledger"]} has charged or reserved, which alone '
      f'costs epsilon = {before}'
    )
  change = training.RELATIONS[result['neighboring_relation']]
  if 'privacy_unit' in result:
    whole = f'all rows of one value of {result["privacy_unit"]}'
    change = change.replace('one row', whole, 1)
  lines.append(f'for tables that differ by {change}')
  return '\n  '.join([*lines, *result.get('remarks', [])])


COMMAND = Command(
  name='calibrate',
  summary='Noise, steps or batches that fit a budget',
  description="""
    The reverse of `tfdpflows account`: of --noise_multiplier, --steps,
    --sampling_probability and --epsilon, leave out the one that is looked for.
    Finds the smallest noise multiplier, the largest number of steps or the
    largest sampling probability with which DP-SGD stays within a budget, or the
    smallest budget. With --ledger, what was spent before counts too.
  """,
  example="""
    tfdpflows calibrate --epsilon=1 --delta=1e-5 --sampling_probability=0.01 \\
      --steps=1000
  """,
  define=_define,
  run=_run,
  usage=_USAGE,
)
