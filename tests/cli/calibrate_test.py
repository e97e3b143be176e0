"""`tfdpflows calibrate` finds whichever number is left out."""

import json
import re

import dp_accounting
import pytest

from tfdpflows import accounting, cli
from tfdpflows.accounting.rdp import RDPAccountant

GAUSSIAN = dp_accounting.GaussianDpEvent
FLAGS = {
  'sampling_probability': '0.01',
  'noise_multiplier': '1.5',
  'steps': '1000',
  'epsilon': '1',
  'delta': '1e-5',
}
BUDGET = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def _argv(*left_out, **flags):
  flags = {**FLAGS, **flags}
  kept = {k: v for k, v in flags.items() if k not in left_out}
  return ['calibrate', *(f'--{k}={v}' for k, v in kept.items())]


def _json(argv, capsys):
  assert cli.main([*argv, '--format=json']) == 0
  return json.loads(capsys.readouterr().out)


def _text(argv, capsys):
  assert cli.main(argv) == 0
  return capsys.readouterr().out


def _refused(argv, message, capsys):
  assert cli.main(argv) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert err.count('\n') == 1
  assert re.search(message, err), err


def _cost(result, spent=None, name='pld', **kwargs):
  q, sigma, steps = (
    result[k] for k in ('sampling_probability', 'noise_multiplier', 'steps')
  )
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(sigma)), steps
  )
  events = [event] if spent is None else [spent, event]
  return accounting.compute_epsilon(
    dp_accounting.ComposedDpEvent(events), 1e-5, name, **kwargs
  )


@pytest.fixture
def ledger(tmp_path):
  """Makes a ledger, and its file, of one charge and one reservation."""

  def make(budget=BUDGET, sigma=9.0, **kwargs):
    path = tmp_path / 'rows.ledger'
    with accounting.PrivacyLedger(path, budget=budget, **kwargs) as made:
      unit = {'privacy_unit': made.privacy_unit}
      made.charge(GAUSSIAN(sigma), label='histograms', **unit)
      made.reserve(GAUSSIAN(50.0), 4, 'bounds', **unit).ensure(1)
    return str(path)

  return make


SPENT = dp_accounting.ComposedDpEvent(
  [
    GAUSSIAN(9.0),
    dp_accounting.SelfComposedDpEvent(GAUSSIAN(50.0), 4),
  ]
)


@pytest.mark.parametrize(
  'unknown', ['noise_multiplier', 'sampling_probability', 'steps', 'epsilon']
)
def test_what_is_left_out_is_found(unknown, capsys):
  result = _json(_argv(unknown), capsys)
  assert set(result) == {
    'noise_multiplier',
    'epsilon',
    'delta',
    'accountant',
    'guarantee',
    'neighboring_relation',
    'sampling_probability',
    'steps',
  }
  for name in set(FLAGS) - {unknown, 'epsilon'}:
    assert result[name] == float(FLAGS[name])
  cost = _cost(result)
  if unknown == 'epsilon':
    assert cost <= result['epsilon'] <= cost * (1 + 1e-8)
  else:
    assert result['epsilon'] == pytest.approx(cost, rel=1e-12)
    assert cost <= 1
  if unknown in ('noise_multiplier', 'sampling_probability'):
    assert cost > 1 - 1e-3
  if unknown == 'steps':
    assert _cost({**result, 'steps': result['steps'] + 1}) > 1


def test_answers_in_words(capsys):
  out = _text(_argv('noise_multiplier'), capsys)
  assert re.fullmatch(
    r'noise multiplier = 1\.41\d\d \(rounded up\)\n'
    r'  1,000 steps, every example in a batch with probability 0\.01\n'
    r'  epsilon = 0\.99\d\d at delta = 1e-05 '
    r'\(pld, upper bound; rounded up\)\n'
    r'  for tables that differ by one row added or removed\n',
    out,
  )
  out = _text(_argv('steps'), capsys)
  assert re.match(
    r'steps = 1,\d\d\d\n  noise multiplier 1\.5, every example in a batch with '
    r'probability 0\.01\n  epsilon = ',
    out,
  )
  out = _text(_argv('sampling_probability'), capsys)
  assert re.match(
    r'sampling probability = 0\.01\d+ \(rounded down\)\n'
    r'  1,000 steps, noise multiplier 1\.5\n  epsilon = ',
    out,
  )
  out = _text(_argv('epsilon'), capsys)
  assert re.fullmatch(
    r'epsilon = 0\.9\d+ at delta = 1e-05 \(pld, upper bound; rounded up\)\n'
    r'  1,000 steps, noise multiplier 1\.5, every example in a batch with '
    r'probability 0\.01\n'
    r'  for tables that differ by one row added or removed\n',
    out,
  )


def test_what_is_shown_is_rounded_to_the_safe_side(capsys):
  argv = _argv('sampling_probability', epsilon='0.37')
  exact = _json(argv, capsys)['sampling_probability']
  shown = float(_text(argv, capsys).split()[3])
  assert exact * (1 - 1e-3) < shown <= exact


def test_more_than_is_looked_for(capsys):
  argv = _argv('steps', sampling_probability='1e-9', noise_multiplier='1000')
  argv.append('--accountant=rdp')
  assert 'The search ends there' in _text(argv, capsys)
  result = _json(argv, capsys)
  assert result['steps'] == 10**9
  assert len(result['remarks']) == 1
  argv = _argv('sampling_probability', noise_multiplier='1000')
  assert _text(argv, capsys).startswith('sampling probability = 1 (')


def test_an_asymptotic_accountant_says_so(capsys, monkeypatch):
  class Rough(RDPAccountant):
    name = 'rough'
    guarantee = 'asymptotic'

    def remarks(self, target_delta):
      return (f'Rough at {target_delta:g}.',)

  registry = accounting.registry
  monkeypatch.setattr(registry, '_aliases', dict(registry._aliases))
  monkeypatch.setitem(registry._classes, 'rough', Rough)
  accounting.register_accountant('rough', Rough)
  argv = [*_argv('noise_multiplier'), '--accountant=rough']
  out = _text(argv, capsys)
  assert '(rough, asymptotic;' in out
  assert '\n  Rough at 1e-05.\n' in out
  result = _json(argv, capsys)
  assert result['guarantee'] == 'asymptotic'
  assert result['remarks'] == ['Rough at 1e-05.']


@pytest.mark.parametrize('unknown', ['noise_multiplier', 'steps'])
def test_a_ledger_is_paid_for_too(unknown, ledger, capsys):
  path = ledger()
  with open(path, 'rb') as file:
    before = file.read()
  argv = [*_argv(unknown, 'epsilon', 'delta'), f'--ledger={path}']
  result = _json(argv, capsys)
  with open(path, 'rb') as file:
    assert file.read() == before
  alone = accounting.compute_epsilon(SPENT, 1e-5)
  assert result['epsilon_of_ledger'] == pytest.approx(alone, rel=1e-9)
  assert result['delta'] == 1e-5
  assert result['ledger'] == path
  assert result['neighboring_relation'] == 'add_or_remove_one'
  cost = _cost(result, SPENT)
  assert result['epsilon'] == pytest.approx(cost, rel=1e-9)
  assert 0.9 < cost <= 1
  out = _text(argv, capsys)
  assert 'has charged or reserved, which alone costs epsilon = 0.4' in out
  assert 'one row added or removed' in out
  # The ledger agrees.
  with accounting.PrivacyLedger.open(path) as opened:
    step = dp_accounting.PoissonSampledDpEvent(
      result['sampling_probability'], GAUSSIAN(result['noise_multiplier'])
    )
    assert opened.reserve(step, result['steps'], 'training')


def test_a_ledger_sets_accountant_and_relation(ledger, capsys):
  path = ledger(accountant='rdp', neighboring_relation=REPLACE, sigma=30.0)
  argv = _argv('steps', 'epsilon', 'delta', noise_multiplier='5')
  argv.append(f'--ledger={path}')
  result = _json(argv, capsys)
  assert result['accountant'] == 'rdp'
  assert result['neighboring_relation'] == 'replace_one'
  assert _json([*argv, '--accountant=moments'], capsys) == result
  assert 'one row replaced' in _text(argv, capsys)


def test_a_ledger_of_people(ledger, capsys):
  argv = [*_argv('noise_multiplier'), f'--ledger={ledger(privacy_unit="who")}']
  assert 'by all rows of one value of who added or' in _text(argv, capsys)
  assert _json(argv, capsys)['privacy_unit'] == 'who'


def test_a_ledger_without_a_budget(ledger, capsys):
  path = ledger(budget=None)
  argv = [*_argv('noise_multiplier'), f'--ledger={path}']
  assert _cost(_json(argv, capsys), SPENT) <= 1
  argv = [*_argv('noise_multiplier', 'delta'), f'--ledger={path}']
  _refused(argv, r'Missing: --delta=N.*has no budget', capsys)


def test_epsilon_of_a_ledger_and_more(ledger, capsys):
  path = ledger()
  argv = [*_argv('epsilon', 'delta', steps='100'), f'--ledger={path}']
  result = _json(argv, capsys)
  assert result['epsilon'] == pytest.approx(_cost(result, SPENT), rel=1e-8)
  assert 'remarks' not in result
  argv = [*_argv('epsilon', 'delta', steps='5000'), f'--ledger={path}']
  out = _text(argv, capsys)
  assert 'The budget of the ledger is epsilon = 1: it would refuse' in out


def test_contradictions_with_a_ledger(ledger, tmp_path, capsys):
  path = ledger(accountant='rdp')
  for left_out, flags, message in (
    ('steps', ['--delta=1e-6'], '--delta=1e-06 is not that of the budget'),
    ('steps', ['--epsilon=1.5'], '--epsilon=1.5 is more than the budget'),
    ('steps', ['--accountant=pld'], '--accountant=pld is not that of --ledger'),
    ('steps', ['--accountant=xyz'], 'Unknown accountant'),
    (
      'steps',
      ['--neighboring_relation=replace_one'],
      '--neighboring_relation=replace_one is not that of --ledger',
    ),
  ):
    argv = [*_argv(left_out), f'--ledger={path}', *flags]
    _refused(argv, message, capsys)
  argv = [*_argv('steps'), f'--ledger={path}', '--epsilon=0.9']
  assert _cost(_json(argv, capsys), SPENT, 'rdp') <= 0.9
  argv = [*_argv('steps'), f'--ledger={path}', '--epsilon=0.1']
  _refused(argv, r'--epsilon=0\.1: .*Nothing is left', capsys)
  none = tmp_path / 'none'
  argv = [*_argv('steps'), f'--ledger={none}']
  _refused(argv, '--ledger=.*There is no ledger', capsys)
  none.write_text('{}\n')
  _refused(argv, '--ledger=', capsys)


def test_a_full_ledger(ledger, capsys):
  path = ledger(accounting.PrivacyBudget(epsilon=0.55, delta=1e-5), sigma=8.0)
  argv = [*_argv('steps', 'epsilon', 'delta'), f'--ledger={path}']
  argv.append('--noise_multiplier=0.5')
  argv.append('--sampling_probability=1')
  _refused(argv, r'--ledger=.*: Not even one step fits', capsys)


def test_a_ledger_that_is_asymptotic(ledger, capsys):
  path = ledger(accountant='gdp', sigma=100.0)
  argv = [*_argv('steps', 'epsilon', 'delta'), f'--ledger={path}']
  _refused(argv, 'asymptotic.*--accountant=gdp', capsys)
  assert _json([*argv, '--accountant=gdp'], capsys)['guarantee'] == 'asymptotic'


@pytest.mark.parametrize(
  ('left_out', 'message'),
  [
    ((), 'Leave out one of --noise_multiplier, --steps, .*tfdpflows account'),
    (('steps', 'epsilon'), 'all but one of --steps, --epsilon'),
    (tuple(FLAGS), 'all but one of --noise_multiplier, --steps, --sampling'),
    (('steps', 'delta'), 'Missing: --delta'),
  ],
)
def test_too_few_or_too_many_flags(left_out, message, capsys):
  _refused(_argv(*left_out), message, capsys)


@pytest.mark.parametrize(
  ('left_out', 'flag', 'message'),
  [
    ('steps', '--noise_multiplier=0', '--noise_multiplier=0 must'),
    ('steps', '--noise_multiplier=-1', 'noise_multiplier=-1'),
    ('steps', '--noise_multiplier=nan', '--noise_multiplier=nan'),
    ('steps', '--noise_multiplier=inf', '--noise_multiplier=inf'),
    ('steps', '--sampling_probability=0', '--sampling_probability=0 must'),
    ('steps', '--sampling_probability=nan', '--sampling_probability=nan'),
    ('steps', '--sampling_probability=1.1', 'sampling_probability=1.1'),
    ('steps', '--epsilon=0', '--epsilon=0 must'),
    ('steps', '--epsilon=inf', '--epsilon=inf must'),
    ('steps', '--epsilon=0.001', '--epsilon=0.001: Not even one step fits'),
    ('steps', '--delta=0', '--delta must'),
    ('epsilon', '--delta=nan', '--delta=nan must be'),
    ('epsilon', '--steps=0', 'steps=0'),
    ('epsilon', '--steps=1.5', 'steps=1.5'),
    ('epsilon', '--noise_multiplier=1e-300', '--delta=1e-05: No finite'),
    ('sampling_probability', '--accountant=pdl', "Did you mean 'pld'"),
  ],
)
def test_flags_that_make_no_sense(left_out, flag, message, capsys):
  argv = _argv(left_out, flag.split('=')[0][2:])
  _refused([*argv, flag], message, capsys)
