"""`tfdpflows audit`: refusals, and the two files that it writes."""

import json

import dp_accounting
import pytest

from tfdpflows import accounting, cli


@pytest.fixture
def ledger(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=3.0, delta=1e-2)
  with accounting.PrivacyLedger(path, budget=budget) as made:
    made.charge(dp_accounting.GaussianDpEvent(2.0), label='counts')
  return path


def test_writes_a_page_and_json(ledger, tmp_path, capsys):
  page = tmp_path / 'audit.html'
  flags = [f'--ledger={ledger}', f'--output={page}', '--seed=0']
  assert cli.main(['audit', *flags, '--num_runs=2000']) == 0
  assert 'Claim: epsilon <= 0.9195' in capsys.readouterr().out
  content = json.loads((tmp_path / 'audit.json').read_text())
  assert content['epsilon_lower'] <= content['epsilon_claimed']
  assert page.read_text(encoding='utf-8').startswith('<!doctype html>')
  # What is there is not replaced.
  assert cli.main(['audit', *flags]) == 2
  assert 'pass --overwrite' in capsys.readouterr().err


@pytest.mark.parametrize(
  'flags, message',
  [
    ([], 'Give one of --ledger=FILE and --model_dir=FOLDER'),
    (['--ledger={ledger}', '--model_dir=m'], 'Give one of --ledger'),
    (['--ledger={ledger}', '--ledger={ledger}'], 'give --ledger once'),
    (['--ledger={ledger}', '--data=x.csv'], '--data is for a --model_dir'),
    (['--ledger={ledger}', '--row=1'], '--row is a row of --data'),
    (['--ledger={ledger}', '--confidence=1'], '--confidence=1 must be'),
    (['--ledger={ledger}', '--delta=2'], '--delta'),
    (['--ledger={folder}/none'], 'There is no ledger at'),
    (['--ledger={cut}'], 'is cut off or edited now'),
    (['--ledger={ledger}', '--output={folder}/no/a.html'], 'does not exist'),
    (['--model_dir={folder}/none'], 'correct --model_dir'),
    (['--ledger={ledger}', '--output={folder}/a.txt'], 'must end in .html'),
  ],
)
def test_refusals_leave_nothing(flags, message, ledger, tmp_path, capsys):
  cut = tmp_path / 'cut.jsonl'
  cut.write_bytes(ledger.read_bytes()[:-40])
  places = {'ledger': ledger, 'folder': tmp_path, 'cut': cut}
  given = ['--output={folder}/a.html', *flags]
  code = cli.main(['audit', *(flag.format(**places) for flag in given)])
  assert code == 2
  assert message in capsys.readouterr().err
  left = sorted(x.name for x in tmp_path.iterdir())
  assert left == ['cut.jsonl', 'ledger.jsonl']


def test_an_empty_ledger(tmp_path, capsys):
  path = tmp_path / 'empty.jsonl'
  accounting.PrivacyLedger(path).close()
  output = tmp_path / 'a.html'
  assert cli.main(['audit', f'--ledger={path}', f'--output={output}']) == 2
  assert 'has charged nothing' in capsys.readouterr().err
  assert not output.exists()
