"""`tfdpflows schema`, `fit`, `sample`, `score` and `report`.

The synthesizer is a stand-in here: what is tested is what the commands ask of
it, refuse and write. `end_to_end_test.py` runs them with the real one.
"""

import json
import os
import shutil
import sys
import types

import numpy as np
import pandas as pd
import pytest

from tfdpflows import accounting, cli
from tfdpflows.tabular.code_store import CodeStore
from tfdpflows.tabular.draft_rows import DraftRows
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.table import read_table

ROWS = 40


class Synthesizer:
  """What the commands use of a `TabularSynthesizer`."""

  calls = []

  def __init__(self, schema, table):
    self.schema = schema
    self.table = table
    self.num_examples = len(table)
    self.bounds = ()

  def privacy_statement(self):
    return 'epsilon <= 1 at delta=1e-05'

  def sample(self, num_rows, seed=None, conditions=None):
    self.calls.append(('sample', num_rows, seed, conditions))
    rows = self.table.sample(num_rows, replace=True, random_state=seed)
    if conditions:
      method = 'exact' if len(conditions) == 1 else 'importance'
      rows.attrs['conditions'] = {'method': method, 'effective_rows': 3.2}
    return rows

  def sample_frames(self, num_rows, seed=None):
    yield self.sample(num_rows, seed, {})

  def log_prob_frames(self, frames):
    for df in frames:
      yield np.linspace(-2.0, -1.0, len(df))


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder with people.csv, schema.json and, once fitted, a model."""
  monkeypatch.chdir(tmp_path)
  Synthesizer.calls.clear()
  rng = np.random.default_rng(0)
  people = pd.DataFrame(
    {
      'age': rng.integers(18, 90, ROWS),
      'income': rng.normal(30, 10, ROWS).round(2),
      'sex': rng.choice(['f', 'm'], ROWS),
    }
  )
  people.to_csv('people.csv', index=False)
  schema = {
    'fields': [
      _field('age', 'integer', minimum=0, maximum=120),
      _field('income', 'number', minimum=-100, maximum=200),
      _field('sex', 'string', enum=['f', 'm']),
    ]
  }
  (tmp_path / 'schema.json').write_text(json.dumps(schema))
  fitted = {}

  def fit_to_directory(table, schema, model_dir, **arguments):
    if isinstance(table, CodeStore):
      table = TableEncoder(schema).decode(table[:])
    elif isinstance(table, DraftRows):
      table = pd.concat(table.frames(), ignore_index=True)
    Synthesizer.calls.append(('fit', len(table), model_dir, arguments))
    (tmp_path / model_dir).mkdir(exist_ok=True)
    (tmp_path / model_dir / 'model.json').touch()
    fitted['model'] = Synthesizer(schema, schema.validate(table))
    return fitted['model']

  module = types.ModuleType('tfdpflows.tabular.synthesizer')
  module.fit_to_directory = fit_to_directory
  module.TabularSynthesizer = types.SimpleNamespace(
    load=lambda model_dir: fitted['model']
  )
  monkeypatch.setitem(sys.modules, module.__name__, module)
  return tmp_path


def _field(name, kind, **constraints):
  constraints['required'] = True
  return {'name': name, 'type': kind, 'constraints': constraints}


FIT = [
  'fit',
  '--input=people.csv',
  '--schema=schema.json',
  '--epsilon=1',
  '--delta=1e-5',
  '--model_dir=model',
]


def _refused(argv, message, capsys):
  capsys.readouterr()
  assert cli.main(argv) == 2
  err = capsys.readouterr().err
  assert message in err
  assert err.count('\n') == 1


def test_a_name_of_a_column_is_printed_in_one_line(folder, capsys):
  (folder / 'names.csv').write_text(
    'age,"two\nlines",' + 'x' * 300 + '\n1,2,3\n'
  )
  assert cli.main(['schema', '--input=names.csv', '--output=names.json']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert f'  {"age":<40}  integer, 1 to 1' in lines
  assert f'  {"two lines":<40}  integer, 2 to 2' in lines


def test_schema_writes_a_draft_that_fit_refuses(folder, capsys):
  argv = ['schema', '--input=people.csv', '--output=draft.json']
  assert cli.main(argv) == 0
  out = capsys.readouterr().out
  assert 'draft for 3 columns to draft.json' in out
  assert 'sex     string, 2 values: f, m' in out
  assert TableSchema.from_json('draft.json').is_draft
  _refused(argv, 'draft.json exists: pass --overwrite', capsys)
  assert cli.main([*argv, '--overwrite']) == 0

  draft = [w.replace('schema.json', 'draft.json') for w in FIT]
  _refused(draft, "draft.json is a draft: column 'age' marks minimum", capsys)
  assert cli.main([*draft, '--bounds_epsilon=0.1']) == 0
  assert Synthesizer.calls[0][3]['bounds_epsilon'] == 0.1
  _refused([*draft, '--bounds_epsilon=1', '--overwrite'], 'below', capsys)
  _refused([*draft, '--bounds_epsilon=0', '--overwrite'], 'above 0', capsys)


MESSY = 'Kunde;Alter;Lohn;Beginn;Mitglied;Notiz\n' + ''.join(
  f'K{i:03};{20 + i % 7};1.{i:03},5{i % 3} €;{i % 28 + 1:02}.03.2024;'
  f'{"ja" if i % 2 else "nein"};kam am Tag {i} an\n'
  for i in range(ROWS)
)


def test_schema_of_a_file_as_it_comes(folder, capsys):
  (folder / 'messy.csv').write_text(MESSY, encoding='utf-8-sig')
  argv = [
    'schema',
    '--input=messy.csv',
    '--output=messy.json',
    '--decimal_char=,',
    '--group_char=.',
    '--nobare_number',
    '--date_format=%d.%m.%Y',
    '--overwrite',
  ]
  assert cli.main(argv) == 0
  out = capsys.readouterr().out
  assert "utf-8-sig, with ';' between" in out
  assert 'Lohn      number, 1000.5 to 1039.5' in out
  assert 'Beginn    date, 2024-03-01 to 2024-03-28' in out
  assert 'an identifier: 40 different texts in 40 rows' in out
  assert '  --drop=Kunde --drop=Notiz' in out
  draft = [w.replace('schema.json', 'messy.json') for w in FIT]
  draft[1] = '--input=messy.csv'
  paid = [*draft, '--bounds_epsilon=0.1']
  _refused(paid, "'Beginn' of type date marks maximum, minimum, type", capsys)

  (folder / 'public.csv').write_text(
    'name,type,minimum,maximum,enum,required,decimals,trueValues,falseValues\n'
    'Alter,integer,0,120,,true,,,\n'
    'Lohn,number,0,1e5,,true,2,,\n'
    'Beginn,date,2020-01-01,2030-01-01,,true,,,\n'
    'Mitglied,boolean,,,,true,,ja,nein\n'
  )
  more = ['--drop=Kunde', '--drop=Notiz', '--overrides=public.csv']
  assert cli.main([*argv, *more]) == 0
  out = capsys.readouterr().out
  assert 'schema for 4 columns' in out
  assert 'fromData' not in out
  assert not TableSchema.from_json('messy.json').is_draft
  assert cli.main(draft) == 0
  argv = ['sample', '--model_dir=model', '--num_rows=5', '--output=new.csv']
  assert cli.main(argv) == 0
  lines = (folder / 'new.csv').read_text('utf-8').splitlines()
  assert lines[0] == '\ufeffAlter;Lohn;Beginn;Mitglied'
  assert lines[1].split(';')[1].partition(',')[2]
  assert lines[1].split(';')[2].endswith('.03.2024')
  assert lines[1].split(';')[3] in ('ja', 'nein')
  argv = ['score', '--model_dir=model', '--output=log_prob.csv']
  for name in ('messy.csv', 'new.csv'):
    assert cli.main([*argv, f'--input={name}', '--overwrite']) == 0
  _refused(
    ['schema', '--input=messy.csv', '--output=a.json', '--drop=age'],
    "no column 'age'",
    capsys,
  )
  argv = ['schema', '--input=messy.csv', '--output=a.json', '--columns=Kunde']
  assert cli.main(argv) == 2
  out, err = capsys.readouterr()
  assert 'Kunde   an identifier' in out
  assert 'No column of messy.csv can be described' in err
  assert not (folder / 'a.json').exists()


@pytest.mark.parametrize(
  ('content', 'flag', 'message'),
  [
    (b'a,b\n1,\xdf\n', '', 'name its encoding (--encoding=cp1252), or conv'),
    (MESSY.encode('utf-16-le'), '', 'its encoding (--encoding=utf-16-le), or'),
    (b'a;b\n1;2,3\n', '--delimiter=,', "name them (--delimiter=';'), else"),
    (b'a,b\n1,2\n', '--date_format=DD.MM.YYYY', "date_format has format 'DD.M"),
  ],
)
def test_schema_names_flags(content, flag, message, folder, capsys):
  (folder / 'other.csv').write_bytes(content)
  argv = ['schema', '--input=other.csv', '--output=draft.json', flag]
  _refused([word for word in argv if word], message, capsys)


def test_a_wrong_delimiter_is_pointed_out(folder, capsys):
  (folder / 'visits.csv').write_text('visits,poor\n' + '1,2\n3,4\n' * 20)
  argv = ['schema', '--input=visits.csv', '--output=draft.json']
  assert cli.main([*argv, '--delimiter=;']) == 0
  out = capsys.readouterr().out
  assert "one column, 'visits,poor'.\nIf these are several, pass" in out
  assert '--delimiter=,' in out


def test_a_table_with_another_delimiter_is_told_from_one_without_columns(
  folder, capsys
):
  people = (folder / 'people.csv').read_text().replace(',', ';')
  (folder / 'semicolons.csv').write_text(people)
  said = 'add "dialect": {"delimiter": ";"} to the schema before a fit; for'
  said += " a model that is fitted, separate them by ','."
  _refused(['fit', '--input=semicolons.csv', *FIT[2:]], said, capsys)


def test_all_formats_are_read_and_written(folder, capsys):
  for name in ('a.parquet', 'a.tfrecord', 'a.csv.gz'):
    cli.main([*FIT, '--overwrite'])
    argv = ['sample', '--model_dir=model', '--num_rows=9', f'--output={name}']
    assert cli.main([*argv, '--seed=5']) == 0
    assert f'Wrote 9 rows to {name}' in capsys.readouterr().out
    argv = ['schema', f'--input={name}', '--output=draft.json', '--overwrite']
    assert cli.main(argv) == 0
    assert 'sex     string, 2 values: f, m' in capsys.readouterr().out
    fit = [*FIT[:1], f'--input={name}', '--input=people.csv', *FIT[2:]]
    assert cli.main([*fit, '--overwrite']) == 0
    assert Synthesizer.calls[-1][:2] == ('fit', 9 + ROWS)
  (folder / 'parts').mkdir()
  shutil.copy('people.csv', 'parts/1.csv')
  shutil.copy('people.csv', 'parts/2.csv')
  for given in ('parts', 'parts/*.csv'):
    fit = [*FIT[:1], f'--input={given}', *FIT[2:], '--overwrite']
    assert cli.main(fit) == 0
    assert Synthesizer.calls[-1][:2] == ('fit', 2 * ROWS)
  (folder / 'parts' / '2.csv').write_text('age,income,sex\n30,20.5,f\n30,1,x\n')
  _refused(fit, "parts/2.csv: Column 'sex', row 2 (line 3 of", capsys)


def test_score_and_report_read_what_fit_reads(folder, capsys):
  cli.main(FIT)
  people = pd.read_csv('people.csv')
  for year, part in enumerate((people[:25], people[25:])):
    (folder / 'parts' / f'year={year}').mkdir(parents=True)
    part.to_parquet(folder / 'parts' / f'year={year}' / 'a.parquet')
  model = ['--model_dir=model', '--overwrite']
  twice = ['people.csv', 'parts/year=0', 'parts/*/a.parquet']
  score = ['score', *model, '--output=s.parquet']
  for paths, message in (
    (twice, 'parts/year=0/a.parquet is given twice: its rows would count'),
    (['parts', 'people.csv'], "a.parquet: The schema has no field 'year'"),
    (['none'], 'none: No such file or directory'),
  ):
    _refused([*score, *(f'--input={p}' for p in paths)], message, capsys)
  assert not (folder / 's.parquet').exists()
  both = ['people.csv', 'parts/*/a.parquet']
  assert cli.main([*score, *(f'--input={path}' for path in both)]) == 0
  assert f'Wrote {2 * ROWS} log-densities' in capsys.readouterr().out
  assert len(pd.read_parquet('s.parquet')['log_prob']) == 2 * ROWS

  report = ['report', *model, '--output=r.html', '--synthetic=people.csv']
  report += [f'--real={path}' for path in both]
  assert cli.main(report) == 0
  assert 'drawn uniformly' not in capsys.readouterr().out
  for how in ('clip', 'error'):
    assert cli.main([*report, '--max_rows=30', f'--out_of_range={how}']) == 0
    out = capsys.readouterr().out
    assert 'Of the 80 real rows 30 are compared, drawn uniformly' in out
    assert 'Of the 40 synthetic rows 30 are compared' in out
    html = (folder / 'r.html').read_text(encoding='utf-8')
    assert '30 synthetic rows compared with 30 real rows' in html
    assert 'The real table has 80 rows: 30 of them, drawn uniformly' in html
  _refused([*report, '--max_rows=1'], '--max_rows=1', capsys)


def test_what_begins_with_a_row_is_not_taken_for_names(folder, capsys):
  """Names are public, and would hold somebody's values."""
  folder.joinpath('bare.csv').write_text('7,Bonn\n8,Trier\n9,Bonn\n')
  argv = ['schema', '--input=bare.csv', '--output=bare.json']
  assert cli.main(argv) == 0
  out = capsys.readouterr().out
  assert '1 of 2 columns have a number for a name (7)' in out
  argv = ['schema', '--input=bare.csv', '--output=bare.csv', '--overwrite']
  _refused(argv, '--output=bare.csv is read too, by --input', capsys)
  assert folder.joinpath('bare.csv').read_text().startswith('7,Bonn')


def test_a_schema_of_several_files(folder, capsys):
  people = pd.read_csv('people.csv')
  (folder / 'parts' / 'year=2024').mkdir(parents=True)
  people[:20].to_parquet('parts/year=2024/a.parquet')
  people[20:].to_csv('b.csv', index=False, sep=';')
  argv = ['schema', '--output=d.json', '--overwrite']
  assert cli.main([*argv, '--input=parts']) == 0
  assert 'year    integer, 2024 to 2024' in capsys.readouterr().out
  both = ['--input=parts/year=2024', '--input=b.csv']
  assert cli.main([*argv, *both]) == 0
  out = capsys.readouterr().out
  low, high = people['age'].min(), people['age'].max()
  assert f'age     integer, {low} to {high}' in out
  assert "with ';' between the" in out
  assert f'tfdpflows fit {" ".join(both)} --schema=d.json' in out
  _refused([*argv, *both, '--input=people.csv'], "a.parquet has ['age'", capsys)


def test_no_row_decides_whether_a_fit_ends(folder, capsys):
  people = folder / 'people.csv'
  whole = people.read_bytes()
  for line in (
    b'abc,inf,f\n',
    b'1,2\n',
    b'1,2,3,4\n',
    b'\xff,,"\n',
    b'\0,1,f\n',
  ):
    people.write_bytes(whole + line)
    _refused([*FIT, '--overwrite'], 'people.csv', capsys)
    assert cli.main([*FIT, '--overwrite', '--out_of_range=clip']) == 0
    name, rows, *_ = Synthesizer.calls[-1]
    assert (name, rows) == ('fit', ROWS + 1)


def test_fit_passes_the_flags_on(folder, capsys):
  flags = [
    '--seed=3',
    '--accountant=rdp',
    '--out_of_range=clip',
    '--noprogress',
    '--model=hflow',
  ]
  assert cli.main([*FIT, *flags]) == 0
  assert Synthesizer.calls == [
    (
      'fit',
      ROWS,
      'model',
      {
        'epsilon': 1.0,
        'delta': 1e-5,
        'model': 'hflow',
        'target': None,
        'bounds_epsilon': None,
        'out_of_range': 'clip',
        'privacy_unit': None,
        'max_rows_per_unit': None,
        'max_rows_epsilon': None,
        'unit_weighting': 'rows',
        'accountant': 'rdp',
        'allow_large_delta': False,
        'seed': 3,
        'overwrite': False,
        'resume': False,
        'progress': False,
        'team': None,
      },
    )
  ]
  out = capsys.readouterr().out
  assert 'epsilon <= 1 at delta=1e-05' in out
  assert f'tfdpflows sample --model_dir=model --num_rows={ROWS}' in out


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--epsilon=0', 'epsilon must be'),
    ('--epsilon=nan', '--epsilon=nan must be a finite number'),
    ('--delta=0', 'delta must'),
    ('--input=none.csv', 'none.csv: No such file'),
    ('--schema=none.json', 'none.json: No such file'),
    ('--schema=people.csv', 'people.csv is not JSON'),
    ('--model_dir=none/model', 'does not exist: make it first'),
    ('--bounds_epsilon=.1', 'has no such marks'),
    ('--resume', 'nothing to resume: model.partial does not exist'),
    ('--out_of_range=ignore', 'out_of_range=ignore'),
    ('--max_rows_per_unit=0', '--max_rows_per_unit=0'),
    ('--max_rows_per_unit=1001', '--max_rows_per_unit=1001'),
  ],
)
def test_fit_refuses(flag, message, folder, capsys):
  _refused([*FIT, flag], message, capsys)
  assert Synthesizer.calls == []


def test_fit_and_what_is_there_already(folder, capsys):
  (folder / 'model.partial').mkdir()
  _refused(FIT, 'model.partial holds a fit that was not finished', capsys)
  # Also for a command that had --overwrite when it was interrupted.
  assert cli.main([*FIT, '--overwrite', '--resume']) == 0
  assert Synthesizer.calls[-1][3]['resume']
  shutil.rmtree(folder / 'model')
  assert cli.main([*FIT, '--resume']) == 0
  assert Synthesizer.calls[-1][3]['resume']
  (folder / 'model.partial').rmdir()
  _refused(FIT, 'model exists: pass --overwrite', capsys)
  assert cli.main([*FIT, '--overwrite']) == 0
  assert Synthesizer.calls[-1][3]['overwrite']


def test_fit_that_stops_says_how_to_go_on(folder, monkeypatch, capsys):
  synthesizer = sys.modules['tfdpflows.tabular.synthesizer']

  def stop(error, partial):
    def fit_to_directory(*_, **__):
      if partial:
        (folder / 'model.partial').mkdir()
      raise error

    monkeypatch.setattr(synthesizer, 'fit_to_directory', fit_to_directory)

  stop(KeyboardInterrupt(), partial=False)
  assert cli.main(FIT) == 130
  err = capsys.readouterr().err
  assert 'Nothing was spent. The rows that were read are in model.pa' in err
  stop(OSError(28, 'No space left on device', 'model.partial/x'), partial=True)
  assert cli.main(FIT) == 2
  err = capsys.readouterr().err
  assert 'run the same command with --resume' in err
  assert 'model.partial/x: No space left on device' in err
  # Also where the ledger failed; but to resume is no advice for a resumption.
  (folder / 'model.partial').rmdir()
  stop(accounting.LedgerError('Cannot write to it.'), partial=True)
  assert cli.main(FIT) == 2
  err = capsys.readouterr().err
  assert 'run the same command with --resume' in err
  assert err.endswith('Cannot write to it.\n')
  stop(accounting.LedgerError('It was edited.'), partial=False)
  _refused([*FIT, '--resume'], 'It was edited.', capsys)
  # Nor is what another fit has at this moment.
  stop(BlockingIOError('model.partial.rows is in use.'), partial=False)
  _refused(FIT[:-1] + ['--model_dir=other'], 'is in use.', capsys)
  (folder / 'model.partial').rmdir()
  stop(KeyboardInterrupt(), partial=True)
  assert cli.main(FIT) == 130
  assert 'are in model.partial: run the same command' in capsys.readouterr().err
  _refused(
    ['sample', '--model_dir=model', '--num_rows=1', '--output=a.csv'],
    'holds a fit that was not finished',
    capsys,
  )


def test_fit_passes_hyperparameters_on(folder):
  values = '{"num_bins": 8, "hidden_units": [16, 8]}'
  assert cli.main([*FIT, f'--hyperparameters={values}']) == 0
  (*_, arguments) = Synthesizer.calls[-1]
  assert (arguments['num_bins'], arguments['hidden_units']) == (8, [16, 8])
  assert 'hyperparameters' not in arguments


TUNE = '--tune={"num_bins": [8, 16]}'


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ('{', '--hyperparameters is no JSON'),
    ('[8]', 'is no JSON object. Give values by name'),
    ('{"epochs": 1, "epochs": 2}', "names 'epochs' twice"),
    ('{"num_bin": 8}', "Unknown hyper-parameters ['num_bin'] of model 'hist"),
    ('{"num_bins": "8"}', "num_bins is the text '8'"),
    ('{"expected_batch_size": null}', 'expected_batch_size is None; it must'),
    ('{"epsilon": 9}', "Unknown hyper-parameters ['epsilon']"),
    ('{"target": "sex"}', 'the target has a flag'),
  ],
)
def test_fit_refuses_hyperparameters(values, message, folder, capsys):
  flag = f'--hyperparameters={values}'
  _refused([*FIT, flag], message, capsys)
  assert Synthesizer.calls == []


def test_a_search_takes_no_other_hyperparameters(folder, capsys):
  flag = '--hyperparameters={"epochs": 4}'
  _refused([*FIT, TUNE, flag], 'give them in --tune', capsys)


def test_fit_passes_a_search_on(folder, monkeypatch, capsys):
  synthesizer = sys.modules['tfdpflows.tabular.synthesizer']
  module = types.ModuleType('tfdpflows.tabular.tuning')

  def tune_to_directory(paths, schema, model_dir, **arguments):
    table = read_table(paths[0], schema)
    return synthesizer.fit_to_directory(table, schema, model_dir, **arguments)

  module.tune_to_directory = tune_to_directory
  module.check_search = lambda *_: None
  monkeypatch.setitem(sys.modules, module.__name__, module)
  assert cli.main([*FIT, TUNE, '--target=sex', '--tune_mean_trials=3']) == 0
  (*_, arguments) = Synthesizer.calls[-1]
  assert arguments['space'] == {'num_bins': [8, 16]}
  assert arguments['mean_trials'] == 3
  assert arguments['target'] == 'sex'


@pytest.mark.parametrize(
  ('places', 'message'),
  [
    ([], 'Nothing was written and nothing was spent'),
    (['model.partial'], 'another one begins with --overwrite'),
    (['model', 'model.partial'], 'model is complete; remove model.partial'),
    (['model'], 'The model in model is complete.'),
  ],
)
def test_a_search_that_stops_says_what_it_left(
  places, message, folder, monkeypatch, capsys
):
  module = types.ModuleType('tfdpflows.tabular.tuning')

  def stop(*_, **__):
    for place in places:
      (folder / place).mkdir()
      path = str(folder / place / 'ledger.jsonl')
      with accounting.PrivacyLedger(path, metadata={'fit': 'this'}) as ledger:
        ledger.charge(accounting.EpsilonDeltaDpEvent(1.0, 1e-5))
    raise KeyboardInterrupt

  module.tune_to_directory = stop
  module.check_search = lambda *_: None
  monkeypatch.setitem(sys.modules, module.__name__, module)
  assert cli.main([*FIT, TUNE]) == 130
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--tune={'], '--tune is no JSON'),
    (['--tune={"num_bins": 8}'], 'neither an object of lists nor a list of'),
    (['--tune=[]'], '--tune=\'{"num_bins": [8, 16], "epochs": [16, 64]}\''),
    ([TUNE, '--privacy_unit=person', '--max_rows_per_unit=2'], 'protects rows'),
    ([TUNE, '--tune_mean_trials=0'], '--tune_mean_trials=0'),
    (['--tune_mean_trials=2'], 'is the number of trials of --tune'),
    ([TUNE, '--dry_run'], 'for a fit that is begun in one process'),
  ],
)
def test_fit_refuses_a_search(flags, message, folder, capsys):
  _refused([*FIT, *flags], message, capsys)
  assert Synthesizer.calls == []


def test_sample(folder, capsys):
  cli.main(FIT)
  argv = ['sample', '--model_dir=model', '--num_rows=7', '--output=s.csv']
  assert cli.main([*argv, '--seed=5']) == 0
  assert Synthesizer.calls[-1] == ('sample', 7, 5, {})
  assert 'Wrote 7 rows to s.csv' in capsys.readouterr().out
  table = read_table('s.csv')
  assert list(table.columns) == ['age', 'income', 'sex']
  assert len(table) == 7
  _refused(argv, 's.csv exists: pass --overwrite', capsys)
  assert cli.main([*argv, '--overwrite']) == 0
  _refused(
    ['sample', '--model_dir=mode', '--num_rows=7', '--output=t.csv'],
    'mode does not exist: make it with `tfdpflows fit`',
    capsys,
  )


def test_sample_with_conditions(folder, capsys):
  cli.main(FIT)
  argv = ['sample', '--model_dir=model', '--num_rows=7', '--output=s.csv']
  assert cli.main([*argv, '--condition=sex=f']) == 0
  assert Synthesizer.calls[-1][3] == {'sex': 'f'}
  assert 'rows of the model that meet the' in capsys.readouterr().out
  argv.append('--overwrite')
  assert cli.main([*argv, '--condition=sex=', '--condition=age=a=b']) == 0
  assert Synthesizer.calls[-1][3] == {'sex': None, 'age': 'a=b'}
  assert 'worth about 3 independent rows' in capsys.readouterr().out
  # Not more than there are, however many they were drawn from.
  few = [w.replace('=7', '=2') for w in argv]
  assert cli.main([*few, '--condition=sex=', '--condition=age=a=b']) == 0
  assert 'worth about 2 independent rows' in capsys.readouterr().out
  _refused([*argv, '--condition=sex'], '--condition=sex has no =', capsys)
  twice = ['--condition=sex=f', '--condition=sex=m']
  _refused([*argv, *twice], "two conditions on column 'sex'", capsys)


def test_score(folder, capsys):
  cli.main(FIT)
  argv = ['score', '--model_dir=model', '--output=log_prob.csv']
  assert cli.main([*argv, '--input=people.csv']) == 0
  out = capsys.readouterr().out
  assert '-1.5000 nats per row' in out
  assert 'private' in out
  scores = read_table('log_prob.csv')
  assert list(scores.columns) == ['log_prob']
  np.testing.assert_allclose(
    scores['log_prob'], np.linspace(-2, -1, ROWS), rtol=1e-12
  )

  # One row can be scored; what the schema does not allow is counted, or named.
  (folder / 'one.csv').write_text('age,income,sex\n130,3.5,f\n')
  argv = ['score', '--model_dir=model', '--output=one_log_prob.csv']
  argv.append('--input=one.csv')
  said = "'age', row 1 (line 2 of a CSV file): 130 is outside [0, 120]; pass"
  _refused([*argv, '--out_of_range=error'], said, capsys)
  assert not (folder / 'one_log_prob.csv').exists()
  assert cli.main(argv) == 0
  assert 'age  1 (100.00% of the rows)' in capsys.readouterr().out


def test_report(folder, capsys):
  cli.main(FIT)
  argv = [
    'report',
    '--model_dir=model',
    '--real=people.csv',
    '--synthetic=people.csv',
    '--output=report.html',
  ]
  _refused([*argv, '--target=wage'], "it has 'age', 'income', 'sex'", capsys)
  # Synthetic rows are those of the model; real ones are compared as they are.
  (folder / 'other.csv').write_text(
    'age,income,sex\n' + '130,3.5,x\n30,1e6,f\n40,none,m\n' * 2
  )
  other = [*argv, '--output=other.html', '--out_of_range=error']
  for flag in ('--real', '--synthetic'):
    _refused([*other, f'{flag}=other.csv'], "other.csv: Column '", capsys)
  clip = [w.replace('people', 'other') if 'real' in w else w for w in other]
  assert cli.main(clip[:-1]) == 0
  out = capsys.readouterr().out
  assert 'age     2 (33.33% of the rows)' in out
  assert 'income  4 (66.67% of the rows)' in out
  html = (folder / 'other.html').read_text(encoding='utf-8')
  assert 'outside, real' in html and '2 (33.33%)' in html
  assert cli.main([*argv, '--title=People & incomes']) == 0
  assert 'Wrote report.html' in capsys.readouterr().out
  html = (folder / 'report.html').read_text(encoding='utf-8')
  assert 'People &amp; incomes' in html
  assert 'epsilon &lt;= 1' in html
  _refused(argv, 'report.html exists: pass --overwrite', capsys)
  # The same columns, which another model may have at another epsilon.
  several = [*argv[:-1], '--output=several.html', '--compare=again']
  _refused(several, 'again', capsys)
  shutil.copytree('model', 'again')
  assert cli.main(several) == 0
  html = (folder / 'several.html').read_text(encoding='utf-8')
  assert 'Several fits' in html
  assert '<th scope="row">again</th><td>–' in html


@pytest.mark.parametrize(
  'argv, flag',
  [
    (['score', '--input=*.csv', '--output=people.csv'], 'input'),
    (
      ['report', '--real=./people.csv', '--synthetic=s.csv', '--output=link'],
      'real',
    ),
    (
      ['report', '--real=people.csv', '--synthetic=s.csv', '--output=s.csv'],
      'synthetic',
    ),
    (['sample', '--num_rows=3', '--output=model/model.json'], 'model_dir'),
  ],
)
def test_nothing_that_is_read_is_replaced(argv, flag, folder, capsys):
  cli.main(FIT)
  shutil.copy('people.csv', 's.csv')
  os.symlink('people.csv', 'link')
  output = argv[-1].partition('=')[2]
  before = (folder / output).read_bytes()
  said = f'--output={output} is read too, by --{flag}: give another file.'
  _refused([*argv, '--model_dir=model', '--overwrite'], said, capsys)
  assert (folder / output).read_bytes() == before


def test_a_report_names_the_file_without_values(folder, capsys):
  schema = json.loads((folder / 'schema.json').read_text())
  for field in schema['fields']:
    field['constraints']['required'] = False
  (folder / 'schema.json').write_text(json.dumps(schema))
  assert cli.main(FIT) == 0
  (folder / 'empty.csv').write_text('age,income,sex\n,,f\n,,m\n')
  argv = ['report', '--model_dir=model', '--output=r.html']
  argv += ['--real=people.csv', '--synthetic=empty.csv']
  message = "empty.csv: Column 'age' has no values, only missing ones; drop"
  # --out_of_range, which is of real rows, would not help.
  _refused(
    argv, f'{message} the column and its field, or give rows of the', capsys
  )
