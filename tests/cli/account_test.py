"""`tfdpflows account` and `tfdpflows calibrate`."""

import json
import math
import re

import dp_accounting
import pytest

from tfdpflows import accounting, cli

ACCOUNT = [
  'account',
  '--sampling_probability=0.01',
  '--noise_multiplier=1',
  '--steps=1000',
  '--delta=1e-5',
]
CALIBRATE = [
  'calibrate',
  '--sampling_probability=0.01',
  '--epsilon=1',
  '--steps=1000',
  '--delta=1e-5',
]
# dp_accounting 0.6.0; prv_accountant 0.2.0 certifies 1.8181 to 1.8384.
PLD, RDP = 1.82824, 2.10137


def _json(argv, capsys):
  assert cli.main([*argv, '--format=json']) == 0
  return json.loads(capsys.readouterr().out)


def test_account_as_json(capsys):
  result = _json(ACCOUNT, capsys)
  assert result['epsilon'] == pytest.approx(PLD, rel=1e-3)
  assert result['epsilon_without_amplification'] > 600
  del result['epsilon'], result['epsilon_without_amplification']
  assert result == {
    'delta': 1e-5,
    'accountant': 'pld',
    'guarantee': 'upper_bound',
    'neighboring_relation': 'add_or_remove_one',
    'sampling': 'poisson',
    'sampling_probability': 0.01,
    'noise_multiplier': 1.0,
    'steps': 1000,
  }


def test_aliases_name_the_accountant(capsys):
  result = _json([*ACCOUNT, '--accountant=moments'], capsys)
  assert result['accountant'] == 'rdp'
  assert result['epsilon'] == pytest.approx(RDP, rel=1e-3)


def test_text_rounds_epsilon_up(capsys):
  exact = _json(ACCOUNT, capsys)['epsilon']
  assert cli.main(ACCOUNT) == 0
  out = capsys.readouterr().out
  shown = float(re.match(r'epsilon = (\S+) at delta = 1e-05 \(pld', out)[1])
  assert exact <= shown <= exact + 1e-4
  assert 'upper bound' in out
  assert 'without amplification by sampling: epsilon = 6' in out


@pytest.mark.parametrize('command', [ACCOUNT, CALIBRATE])
def test_a_delta_is_not_shown_below_what_it_is(command, capsys):
  assert cli.main([*command[:-1], '--delta=1.2345649e-5']) == 0
  (shown,) = re.findall(r'at delta = (\S+)', capsys.readouterr().out)
  assert float(shown) >= 1.2345649e-5


def test_no_amplification_to_speak_of(capsys):
  argv = [w for w in ACCOUNT if 'sampling' not in w]
  assert cli.main([*argv, '--sampling_probability=1']) == 0
  assert 'without amplification' not in capsys.readouterr().out


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--sampling_probability=1.5', 'sampling_probability=1.5'),
    ('--noise_multiplier=0', 'adds no noise'),
    ('--noise_multiplier=-1', 'noise_multiplier=-1'),
    ('--noise_multiplier=nan', 'noise_multiplier'),
    ('--steps=0', 'steps=0'),
    ('--delta=0', 'delta'),
    ('--delta=1', 'delta'),
    ('--accountant=pdl', "Did you mean 'pld'"),
    ('--format=xml', 'format=xml'),
    ('--neighboring_relation=replace', 'neighboring_relation=replace'),
  ],
)
def test_account_refuses(flag, message, capsys):
  assert cli.main([*ACCOUNT, flag]) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert message in err
  assert err.count('\n') == 1


def test_calibrate_is_the_reverse(capsys):
  result = _json(CALIBRATE, capsys)
  assert result['epsilon'] <= 1
  assert result['epsilon'] == pytest.approx(1, abs=5e-3)
  back = _json(
    [*ACCOUNT, f'--noise_multiplier={result["noise_multiplier"]}'], capsys
  )
  assert back['epsilon'] == pytest.approx(result['epsilon'], rel=1e-6)

  assert cli.main(CALIBRATE) == 0
  out = capsys.readouterr().out
  shown = float(re.match(r'noise multiplier = (\S+) \(rounded up\)', out)[1])
  assert shown >= result['noise_multiplier']


@pytest.mark.parametrize(
  'flag',
  ['--epsilon=0', '--epsilon=nan', '--delta=2', '--neighboring_relation=all'],
)
def test_calibrate_refuses(flag, capsys):
  assert cli.main([*CALIBRATE, flag]) == 2
  assert capsys.readouterr().err.count('\n') == 1


RELATIONS = {
  'add_or_remove_one': 'one row added or removed',
  'replace_one': 'one row replaced',
  'replace_special': 'one row replaced by a null row',
}


@pytest.mark.parametrize('name', RELATIONS)
def test_the_neighboring_relation_is_a_flag(name, capsys):
  flag = f'--neighboring_relation={name}'
  relation = dp_accounting.NeighboringRelation[name.upper()]
  result = _json([*ACCOUNT, flag], capsys)
  step = dp_accounting.PoissonSampledDpEvent(
    0.01, dp_accounting.GaussianDpEvent(1.0)
  )
  event = dp_accounting.SelfComposedDpEvent(step, 1000)
  assert result['neighboring_relation'] == name
  assert result['epsilon'] == accounting.compute_epsilon(
    event, 1e-5, neighboring_relation=relation
  )
  # Twice the move is half the noise.
  whole = dp_accounting.GaussianDpEvent(1.0 / math.sqrt(1000))
  assert result['epsilon_without_amplification'] == pytest.approx(
    accounting.compute_epsilon(whole, 1e-5, neighboring_relation=relation)
  )
  assert cli.main([*ACCOUNT, flag]) == 0
  words = f'for tables that differ by {RELATIONS[name]}\n'
  assert words in capsys.readouterr().out

  found = _json([*CALIBRATE, flag], capsys)
  assert found['neighboring_relation'] == name
  back = _json(
    [*ACCOUNT, flag, f'--noise_multiplier={found["noise_multiplier"]}'], capsys
  )
  assert back['epsilon'] == pytest.approx(found['epsilon'], rel=1e-9)
  assert back['epsilon'] == pytest.approx(1, abs=5e-3)
  assert cli.main([*CALIBRATE, flag]) == 0
  assert words in capsys.readouterr().out
