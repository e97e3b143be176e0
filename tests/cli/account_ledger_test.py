"""`tfdpflows account --ledger`, and accountants side by side."""

import json

import dp_accounting
import pytest

from tfdpflows import accounting, cli

TRAINING = [
  'account',
  '--sampling_probability=0.01',
  '--noise_multiplier=1',
  '--steps=1000',
  '--delta=1e-5',
]
STEP = dp_accounting.PoissonSampledDpEvent(
  0.05, dp_accounting.GaussianDpEvent(2.0)
)


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    ledger.charge(dp_accounting.GaussianDpEvent(9.0), label='histograms')
    ledger.reserve(STEP, 50, 'training').ensure(20)
  return path


def printed(argv, capsys):
  assert cli.main(argv) == 0
  out, err = capsys.readouterr()
  assert err == ''
  return out


def test_statement_of_a_ledger(path, capsys):
  with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
    statement = accounting.privacy_statement(ledger)
    other = accounting.privacy_statement(ledger, delta=1e-7)
  before = path.read_bytes()
  argv = ['account', f'--ledger={path}']
  assert printed(argv, capsys) == f'{statement}\n'
  assert printed([*argv, '--delta=1e-7'], capsys) == f'{other}\n'
  markdown = printed([*argv, '--format=markdown'], capsys)
  assert markdown == f'{statement.to_markdown()}\n'
  data = json.loads(printed([*argv, '--format=json'], capsys))
  assert data == json.loads(json.dumps(statement.to_dict()))
  assert path.read_bytes() == before


def test_a_ledger_that_is_in_use_is_read(path, capsys):
  with accounting.PrivacyLedger.open(path) as ledger:
    ledger.charge(dp_accounting.GaussianDpEvent(9.0), label='meanwhile')
    out = printed(['account', f'--ledger={path}'], capsys)
    assert '- meanwhile: Gaussian mechanism' in out
    ledger.charge(dp_accounting.GaussianDpEvent(9.0), label='afterwards')


@pytest.mark.parametrize(
  'flag',
  [
    '--steps=3',
    '--noise_multiplier=1',
    '--sampling_probability=0.1',
    '--accountant=pld',
    '--neighboring_relation=replace_one',
  ],
)
def test_flags_that_contradict_a_ledger(path, flag, capsys):
  assert cli.main(['account', f'--ledger={path}', flag]) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert f'{flag.split("=")[0]} does not go with --ledger' in err
  assert err.count('\n') == 1


def test_bad_ledgers(path, capsys):
  unlimited = path.with_name('unlimited')
  accounting.PrivacyLedger(unlimited).close()
  edited = path.with_name('edited')
  edited.write_bytes(path.read_bytes().replace(b'histograms', b'histogramz'))
  for argv, message in (
    ([f'--ledger={path}x'], 'There is no ledger at'),
    ([f'--ledger={edited}'], 'line 2: the hash does not match'),
    ([f'--ledger={unlimited}'], 'has no budget and so no delta: give one'),
    ([f'--ledger={path}', '--delta=2'], 'delta must lie inside (0, 1)'),
    ([f'--ledger={path}', '--format=xml'], 'format=xml'),
    ([f'--ledger={path}', f'--ledger={unlimited}'], 'has no budget and so no'),
    ([f'--ledger={path}'] * 2, 'is given 2 times, and would count as often'),
    (
      [f'--ledger={path}', f'--ledger={unlimited}', '--release=training'],
      'is for a reservation of one --ledger',
    ),
  ):
    assert cli.main(['account', *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert message in err
    assert err.count('\n') == 1
  assert 'epsilon <= 0' in printed(
    ['account', f'--ledger={unlimited}', '--delta=1e-5'], capsys
  )


def test_several_ledgers_are_composed(path, capsys):
  """All that they spent, with what each has reserved; they stay as they are."""
  second = path.with_name('second')
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with accounting.PrivacyLedger(second, budget=budget) as ledger:
    ledger.charge(dp_accounting.GaussianDpEvent(7.0), label='histograms')
  before = path.read_bytes(), second.read_bytes()
  both = ['account', f'--ledger={path}', f'--ledger={second}']
  out = printed(both, capsys)
  accountant = accounting.create_accountant('pld')
  for event in (
    dp_accounting.GaussianDpEvent(9.0),
    dp_accounting.GaussianDpEvent(7.0),
    dp_accounting.SelfComposedDpEvent(STEP, 20),
  ):
    accountant.compose(event)
  found = json.loads(printed([*both, '--format=json'], capsys))
  assert found['epsilon'] == pytest.approx(
    accountant.get_epsilon(1e-5), rel=1e-6
  )
  assert found['budget'] is None
  for part in ('histograms (1)', 'histograms (2)', 'training', 'second'):
    assert part in out
  rdp = json.loads(
    printed([*both, '--format=json', '--accountant=rdp'], capsys)
  )
  assert rdp['accountant'] == 'rdp' and rdp['epsilon'] > found['epsilon']
  assert (path.read_bytes(), second.read_bytes()) == before
  # Their order changes nothing but the numbers of labels.
  other = json.loads(printed([both[0], *both[:0:-1], '--format=json'], capsys))
  assert other['epsilon'] == found['epsilon']


@pytest.mark.parametrize(
  'made, message',
  [
    ({'privacy_unit': 'person'}, 'cannot be added up; keep them apart'),
    ({'accountant': 'rdp'}, 'have different accountants'),
    ({'delta': 1e-6}, 'give the --delta of all together'),
    ({'copy': True}, 'copies of one'),
    ({'merged': True}, 'merged'),
    ({'link': True}, 'is given 2 times'),
  ],
)
def test_ledgers_that_are_not_composed(path, made, message, capsys):
  second = path.with_name('second')
  if 'link' in made:
    second.hardlink_to(path)
  elif 'copy' in made:
    budget = accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)
    first = path.with_name('first')
    with accounting.PrivacyLedger(first, budget=budget) as ledger:
      ledger.reserve(STEP, 50, 'run', randomness_id='a').ensure(9)
    path.write_bytes(first.read_bytes())
    second.write_bytes(first.read_bytes())
  else:
    delta = made.pop('delta', 1e-5)
    merged = made.pop('merged', False)
    budget = accounting.PrivacyBudget(epsilon=3.0, delta=delta)
    accounting.PrivacyLedger(second, budget=budget, **made).close()
    if merged:
      accounting.merge_ledgers([second], path.with_name('all')).close()
  assert cli.main(['account', f'--ledger={path}', f'--ledger={second}']) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert message in err
  assert err.count('\n') == 1


def test_a_training_has_to_be_said_in_full(capsys):
  assert cli.main(['account', '--steps=3', '--delta=1e-5']) == 2
  err = capsys.readouterr().err
  assert 'Missing: --sampling_probability=N, --noise_multiplier=N; or' in err
  assert cli.main([*TRAINING, '--format=markdown']) == 2
  assert 'give a --ledger' in capsys.readouterr().err


def test_all_accountants_as_json(capsys):
  rows = json.loads(
    printed([*TRAINING, '--accountant=all', '--format=json'], capsys)
  )
  assert [row['accountant'] for row in rows] == list(
    accounting.accountant_names()
  )
  for row in rows:
    argv = [*TRAINING, f'--accountant={row["accountant"]}', '--format=json']
    supported = row.pop('supported')
    if not supported:
      assert row['epsilon'] is None
      assert row['remarks'] == ['does not support this training']
      assert cli.main(argv) == 2
      assert row['accountant'] in capsys.readouterr().err
      continue
    assert row == json.loads(printed(argv, capsys))
    assert row['epsilon'] <= row['epsilon_without_amplification']


def test_all_accountants_as_text(capsys):
  out = printed([*TRAINING, '--accountant=all'], capsys)
  assert max(map(len, out.splitlines())) <= 80
  rows = {line.split()[0]: line for line in out.splitlines()[4:]}
  for name in accounting.accountant_names():
    guarantee = accounting.create_accountant(name).guarantee
    assert rows[name].endswith(guarantee.replace('_', ' '))
  assert ' 1.8283 ' in rows['pld']


def test_remarks_stand_beside_the_epsilon(capsys):
  out = printed([*TRAINING, '--accountant=gdp'], capsys)
  assert max(map(len, out.splitlines())) <= 80
  assert 'asymptotic' in out
  made = accounting.create_accountant('gdp')
  made.compose(
    dp_accounting.PoissonSampledDpEvent(0.01, STEP.event), count=1000
  )
  assert len(made.remarks(1e-5)) > 0
  data = json.loads(
    printed([*TRAINING, '--accountant=gdp', '--format=json'], capsys)
  )
  assert len(data['remarks']) == len(made.remarks(1e-5))
