"""Numbers that are none, on the command line of `account` and `calibrate`."""

import math
import re

import dp_accounting
import pytest

from tfdpflows import accounting, cli
from tfdpflows.accounting import event_bounds, events_json, rounding
from tfdpflows.cli import program, training

ACCOUNT = {
  'sampling_probability': '0.01',
  'noise_multiplier': '1',
  'steps': '10',
  'delta': '1e-5',
}
CALIBRATE = {**ACCOUNT, 'epsilon': '1'}
NEVER = [
  'nan',
  '-NaN',
  'inf',
  '-inf',
  '+Infinity',
  '-1',
  '-1e-9',
  '0',
  '-0',
  '0.0',
  '1e400',
  '-1e400',
  '1e-1000',
  '1' * 400,
  '-' + '1' * 400,
  '9' * 5000,
  '0.' + '0' * 400 + '1',
  '',
  ' ',
  'abc',
  '1,5',
  '1 2',
  '1\n2',
  '\x00',
  '--1',
  '1e',
  'None',
  '１',
  '٣',
  '²',
  '½',
]
FLAGS = [('account', name, value) for name in ACCOUNT for value in NEVER] + [
  ('calibrate', name, value) for name in CALIBRATE for value in NEVER
]


def refused(argv, capsys):
  assert cli.main(argv) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert err.count('\n') == 1
  assert len(err) < 500
  return err


@pytest.mark.parametrize(
  ('command', 'name', 'value'),
  FLAGS,
  ids=[f'{i}-{command}-{name}' for i, (command, name, _) in enumerate(FLAGS)],
)
def test_what_is_no_number_is_refused_by_the_name_of_its_flag(
  command, name, value, capsys
):
  flags = dict(ACCOUNT)
  if command == 'calibrate':
    flags = dict(CALIBRATE)
    del flags['steps' if name != 'steps' else 'noise_multiplier']
  flags[name] = value
  err = refused([command, *(f'--{k}={v}' for k, v in flags.items())], capsys)
  assert name in err


def test_the_next_number_of_steps_is_too_many(capsys):
  argv = ['account', *(f'--{k}={v}' for k, v in ACCOUNT.items())]
  assert cli.main([*argv, f'--steps={10**15}']) == 0
  assert 'epsilon = ' in capsys.readouterr().out
  assert 'steps' in refused([*argv, f'--steps={10**15 + 1}'], capsys)
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.GaussianDpEvent(1.0), training.MAX_STEPS
  )
  assert training.MAX_STEPS == event_bounds.MAX_RUNS
  assert events_json.event_to_dict(event)


@pytest.mark.parametrize('delta', ['2', '-1', '0', '1', 'nan', 'inf'])
def test_delta_of_a_ledger(delta, tmp_path, capsys):
  path = tmp_path / 'ledger'
  accounting.PrivacyLedger(path).close()
  argv = ['account', f'--ledger={path}', f'--delta={delta}']
  assert '--delta' in refused(argv, capsys)


@pytest.mark.parametrize('command', ['fit', 'sample', 'report', 'score'])
def test_other_commands_refuse_them_too(command, capsys):
  """Every flag that is a number, of every command."""
  options = program._command(command).options()
  for name in options._numbers:
    for value in ('nan', 'inf', '-inf', '1e400', '１', '1' * 5000):
      argv = [command, f'--{name}={value}']
      assert name in refused(argv, capsys)


@pytest.mark.parametrize(
  'number',
  [0.0, -0.0, 5e-324, 1e-4, 0.1, 1 / 3, 1.0, 1.8283, 12345.678, 1e15, 1e308],
)
def test_rounded_numbers_are_never_below(number):
  for near in (number, math.nextafter(number, math.inf)):
    shown = rounding.round_up_decimals(near)
    assert float(shown) >= near
    assert float(shown) <= near * 1.001 + 1e-4
    assert not re.match('-', shown)
    assert len(shown) < 30
