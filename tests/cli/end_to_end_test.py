"""The commands one after another, with the real synthesizer."""

import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tests import unproven
from tfdpflows import cli
from tfdpflows.tabular.models.histogram import HistogramModel
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.table import read_table

NUM_ROWS = 600
_END = '--- next command ---'
SCHEMA = {
  'fields': [
    {
      'name': 'age',
      'type': 'integer',
      'constraints': {'minimum': 0, 'maximum': 99, 'required': True},
    },
    {
      'name': 'income',
      'type': 'number',
      'constraints': {'minimum': 0, 'maximum': 200},
    },
    {
      'name': 'city',
      'type': 'string',
      'constraints': {'enum': ['Bonn', 'Köln'], 'required': True},
    },
  ]
}


# Commands, each of a line of arguments, in one program: TensorFlow is imported
# once. A fit is of 16 steps in place of 512, and proven in docs/learn/table.md.
_SHORT = f"""
import sys
from tfdpflows import cli
from tfdpflows.cli import quiet
quiet.configure()
with quiet.importing():
  from tfdpflows.tabular.models.histogram import HistogramModel
  from {unproven.__name__} import unproven
HistogramModel.epochs = 1.0
with unproven():
  for line in sys.argv[1:]:
    code = cli.main(line.split())
    if code:
      sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
      print('{_END}', file=stream, flush=True)
"""


def _run(folder, *commands):
  """Runs commands, and returns the standard output and error of each."""
  # As a user's shell has it, whatever other tests set in this process.
  env = {k: v for k, v in os.environ.items() if k != 'TF_CPP_MIN_LOG_LEVEL'}
  result = subprocess.run(
    [sys.executable, '-c', _SHORT, *commands],
    cwd=folder,
    env={**env, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=False,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  outputs = [x.split(f'{_END}\n') for x in (result.stdout, result.stderr)]
  assert [len(parts) for parts in outputs] == [len(commands) + 1] * 2
  # Nor does TensorFlow say anything at the end.
  assert [parts[-1] for parts in outputs] == ['', '']
  return list(zip(*outputs))[:-1]


@pytest.fixture
def run_here(folder, monkeypatch, capsys):
  """A function that runs a command in this process, and returns its output."""

  def run(*argv, code=0):
    monkeypatch.chdir(folder)
    # Of 16 steps.
    monkeypatch.setattr(HistogramModel, 'epochs', 1.0)
    capsys.readouterr()
    found = cli.main(list(argv))
    output = capsys.readouterr()
    assert found == code, output.err
    return output

  return run


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with people.csv, schema.json and the model fitted to them."""
  folder = tmp_path_factory.mktemp('people')
  rng = np.random.default_rng(0)
  age = rng.integers(18, 90, NUM_ROWS)
  people = pd.DataFrame(
    {
      'age': age,
      'income': (age + rng.normal(0, 5, NUM_ROWS)).clip(0, 200).round(2),
      'city': np.where(rng.random(NUM_ROWS) < age / 100, 'Bonn', 'Köln'),
    }
  )
  people.loc[::50, 'income'] = np.nan
  people.to_csv(folder / 'people.csv', index=False)
  TableSchema.from_dict(SCHEMA).to_json(folder / 'schema.json')
  (statement, log), (_, of_sample) = _run(
    folder,
    'fit --input=people.csv --schema=schema.json --epsilon=2 --delta=1e-4 '
    '--seed=1 --model_dir=model',
    f'sample --model_dir=model --num_rows={NUM_ROWS} --output=synthetic.csv '
    '--seed=1',
  )
  assert 'went' not in log  # As of a file that went while open.
  (folder / 'log.txt').write_text(log, encoding='utf-8')
  (folder / 'statement.txt').write_text(statement, encoding='utf-8')
  (folder / 'log of sample.txt').write_text(of_sample, encoding='utf-8')
  return folder


@pytest.mark.slow
def test_the_log_of_a_fit_has_a_line_for_each_phase(folder):
  lines = (folder / 'log.txt').read_text(encoding='utf-8').splitlines()
  assert all(line.startswith('tfdpflows: ') for line in lines)
  for line, match in (
    (
      lines[0],
      r'Fit: .* within epsilon 2 at delta 0.0001 \(pld\)\. It takes about 1 '
      r'minute on two free cores\. .* model\.partial\.$',
    ),
    (
      lines[1],
      r'Histograms of all columns: charged Gaussian mechanism, .* Epsilon is '
      r'1\.\d+ so far\.$',
    ),
    (
      lines[2],
      r'Marginals: \d+ are chosen and measured, the first charged as: .*',
    ),
    (
      next(line for line in lines if 'Training' in line),
      r'Training: (\d+) of \1 steps are left\. Each .* and 2\.00 at the end, '
      r'at delta 0\.0001 \(pld\)\. Ledger: .*model\.partial.ledger\.jsonl\.$',
    ),
    (lines[-2], r'step (\d+)/\1, epsilon 2\.00, .*nats gained, .* taken$'),
    (lines[-1], r'Fit: done\. Epsilon is 2\.00\. Model: model\.$'),
  ):
    assert re.match(f'tfdpflows: {match}', line), line


@pytest.mark.slow
def test_fit_states_its_privacy_and_leaves_nothing_unfinished(folder):
  statement = (folder / 'statement.txt').read_text(encoding='utf-8')
  assert 'epsilon' in statement
  assert '0.0001' in statement
  assert 'seed' in statement
  assert not (folder / 'model.partial').exists()
  model = folder / 'model'
  assert not [p for p in model.rglob('*') if p.suffix in ('.pkl', '.pickle')]


@pytest.mark.slow
def test_sample_score_and_report(folder, run_here):
  assert (folder / 'log of sample.txt').read_text(encoding='utf-8') == ''
  schema = TableSchema.from_dict(SCHEMA)
  synthetic = schema.validate(read_table(folder / 'synthetic.csv', schema))
  assert len(synthetic) == NUM_ROWS

  run_here(
    'score',
    '--model_dir=model',
    '--input=people.csv',
    '--output=log_prob.csv',
  )
  scores = read_table(folder / 'log_prob.csv')['log_prob']
  assert len(scores) == NUM_ROWS
  assert np.isfinite(scores).all()

  run_here(
    'report',
    '--model_dir=model',
    '--real=people.csv',
    '--synthetic=synthetic.csv',
    '--target=city',
    '--output=report.html',
  )
  report = (folder / 'report.html').read_text(encoding='utf-8')
  assert '<script' not in report
  assert 'Köln' in report


@pytest.mark.slow
def test_a_dry_run_charges_and_leaves_nothing(folder, run_here):
  people = pd.read_csv(folder / 'people.csv')
  people['person'] = [f'p{i // 3}' for i in range(len(people))]
  people.to_csv(folder / 'dry.csv', index=False)
  before = sorted(folder.iterdir())
  fit = (
    'fit',
    '--input=dry.csv',
    '--schema=schema.json',
    '--epsilon=2',
    '--delta=1e-4',
    '--model_dir=dry',
    '--dry_run',
  )
  fit += ('--privacy_unit=person', '--max_rows_per_unit=3')
  said = run_here(*fit).out
  assert said.startswith('A fit of 200 values of person within epsilon 2 at ')
  assert 'training, epsilon ' in said
  assert said.endswith('The same command without --dry_run fits.\n')
  refused = run_here(*fit, '--delta=.1', code=2).err
  assert 'delta is 0.1, and one over the number of units' in refused
  assert sorted(folder.iterdir()) == before


@pytest.mark.slow
def test_a_draft_is_paid_for(folder, run_here):
  """And a row that its types cannot hold neither ends the fit nor is read."""
  rows = (folder / 'people.csv').read_text(encoding='utf-8')
  (folder / 'more.csv').write_text(rows + 'my name,inf,"\n', encoding='utf-8')
  run_here('schema', '--input=people.csv', '--output=draft.json')
  fit = [
    'fit',
    '--input=more.csv',
    '--schema=draft.json',
    '--epsilon=50',
    '--delta=1e-4',
    '--accountant=rdp',
    '--model_dir=paid',
    '--out_of_range=clip',
  ]
  assert 'is a draft' in run_here(*fit, code=2).err
  said = run_here(*fit, '--bounds_epsilon=40').out
  assert 'bounds' in said
  assert re.search(r'age +integer, .*: about [\d,]+ of 6\d\d rows', said)
  assert 'Refusals' not in said
  found = TableSchema.from_json(folder / 'paid' / 'schema.json')
  assert [field.type for field in found] == ['integer', 'number', 'string']
  assert not found.is_draft


@pytest.mark.slow
def test_a_tampered_ledger_is_named(folder, run_here):
  ledgers = [p for p in (folder / 'model').rglob('*') if 'ledger' in p.name]
  assert len(ledgers) == 1
  text = ledgers[0].read_text(encoding='utf-8')
  try:
    ledgers[0].write_text(text.replace('0', '1', 3), encoding='utf-8')
    output = run_here(
      'sample',
      '--model_dir=model',
      '--num_rows=1',
      '--output=tampered.csv',
      code=2,
    )
  finally:
    ledgers[0].write_text(text, encoding='utf-8')
  assert 'ledger' in output.err
  assert 'Traceback' not in output.err


def test_people_with_several_rows(folder, run_here):
  """Drafted, fitted and audited by person; the number of rows is not told."""
  people = pd.read_csv(folder / 'people.csv')
  people['person'] = [f'p{i // 3}' for i in range(len(people))]
  people.iloc[:-1].to_csv(folder / 'visits.csv', index=False)
  draft = ('--input=visits.csv', '--output=v.json', '--privacy_unit=person')
  run_here('schema', *draft)
  assert TableSchema.from_json(folder / 'v.json').privacy_unit == 'person'
  fit = (
    'fit',
    '--input=visits.csv',
    '--schema=schema.json',
    '--epsilon=2',
    '--delta=1e-4',
    '--accountant=rdp',
    '--privacy_unit=person',
    '--model_dir=visits',
  )
  assert '--max_rows_per_unit' in run_here(*fit, code=2).err
  output = run_here(*fit, '--max_rows_per_unit=2')
  shown = output.out + output.err
  assert "value of 'person'" in shown
  assert 'Number of units: 200' in shown
  assert '--num_rows=200 ' in shown
  assert str(NUM_ROWS - 1) not in shown
  run_here('sample', '--model_dir=visits', '--num_rows=50', '--output=v.csv')
  assert 'person' not in read_table(folder / 'v.csv')
  score = ('--model_dir=visits', '--input=visits.csv', '--output=v_score.csv')
  run_here('score', *score)
  report = ('--synthetic=v.csv', '--real=visits.csv', '--output=v.html')
  run_here('report', '--model_dir=visits', *report)
  audit = ('audit', '--model_dir=visits', '--output=v_audit.html')
  for name, part in (
    ('a.parquet', people[:300]),
    ('b.parquet', people[300:-1]),
  ):
    part.to_parquet(folder / name)
  wrong = run_here(*audit, '--data=a.parquet', code=2).err
  assert '--data=a.parquet has 100 units, and the model was fitted on' in wrong
  both = ('--data=a.parquet', '--data=b.parquet')
  wrong = run_here(*audit, *both, '--row=600', code=2).err
  assert '--row=600 is not in --data=a.parquet --data=b.parquet' in wrong
  assert 'no such file' in run_here(*audit, '--data=c', code=2).err.lower()
  other = fit[:-2] + ('--model_dir=other', '--max_rows_per_unit=2')
  assert 'name the column' in run_here(*other, code=2).err
