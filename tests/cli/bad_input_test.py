"""What a user may get wrong: one line that says what and where, and no harm.

All of it is found before TensorFlow is loaded, in a second.
"""

import json
import os
import sys

import numpy as np
import pandas as pd
import pytest

from tfdpflows import cli
from tfdpflows.cli import fit

SCHEMA = {
  'fields': [
    {
      'name': 'age',
      'type': 'integer',
      'constraints': {'minimum': 0, 'maximum': 120, 'required': True},
    },
    {
      'name': 'wage',
      'type': 'number',
      'constraints': {'minimum': 0, 'maximum': 50, 'required': True},
    },
    {
      'name': 'sex',
      'type': 'string',
      'constraints': {'enum': ['f', 'm'], 'required': True},
    },
  ]
}
FLAGS = {
  'input': 'people.csv',
  'schema': 'schema.json',
  'epsilon': '1',
  'delta': '1e-5',
  'model_dir': 'model',
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """A folder with a table and a schema; the synthesizer cannot be loaded."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(sys.modules, 'tfdpflows.tabular.synthesizer', None)
  rng = np.random.default_rng(0)
  people = pd.DataFrame(
    {
      'age': rng.integers(18, 90, 30),
      'wage': rng.uniform(5, 45, 30).round(2),
      'sex': rng.choice(['f', 'm'], 30),
    }
  )
  people.to_csv('people.csv', index=False)
  (tmp_path / 'schema.json').write_text(json.dumps(SCHEMA))
  return tmp_path


def _refused(argv, message, capsys):
  before = sorted(os.listdir())
  assert cli.main(argv) == 2
  out, err = capsys.readouterr()
  assert message in err
  assert err.count('\n') == 1
  assert out == ''
  assert sorted(os.listdir()) == before


def _fit(**flags):
  return ['fit', *(f'--{k}={v}' for k, v in {**FLAGS, **flags}.items())]


@pytest.mark.parametrize(('epsilon', 'told'), [(50, True), (10, False)])
def test_a_large_epsilon_is_told(epsilon, told, folder, capsys):
  assert cli.main(_fit(epsilon=epsilon, target='size')) == 2
  said = f'--epsilon={epsilon} protects little: values up to 10 are usual'
  assert (said in capsys.readouterr().err) is told


def test_a_pipe_is_not_replaced(folder, capsys):
  os.mkfifo('pipe.csv')
  argv = ['schema', '--input=people.csv', '--output=pipe.csv', '--overwrite']
  _refused(argv, '--output=pipe.csv is a device, pipe or socket', capsys)


def test_a_draft_of_a_header_alone(folder, capsys):
  (folder / 'header.csv').write_text('age,wage\n')
  argv = ['schema', '--input=header.csv', '--output=draft.json']
  _refused(argv, 'no rows; header.csv: a header but no rows', capsys)


def _edited(change):
  people = pd.read_csv('people.csv', dtype=object)
  return change(people).to_csv(index=False)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('', 'the file is empty'),
    ('age,wage,sex\n', 'a header but no rows'),
    ('age,wage,sex\n30,10,f\n', 'one row'),
    ('age,wage,age\n30,10,f\n', "two columns are named 'age'"),
    ('age,wage,sex\n30,10\n', 'line 2 has 2 cells, the header has 3'),
    ('age;wage;sex\n30;10;f\n', "has no column 'age'"),
    (
      'age,wage,sex\n\n30,10,"f"\n31,10,"f\nf"\n32,10,x\n',
      "'sex', row 2 (line 4 of a CSV file)",
    ),
    (
      'age,wage,sex\n\n30,"\n10",f\n31,10,f\n32,10,x\n',
      "'sex', row 3 (line 6 of a CSV file)",
    ),
    (b'age,wage,sex\n30,10,\xe9\n', 'line 2 is not UTF-8'),
    (lambda t: t.assign(more=1), "no field 'more'; describe it, or drop"),
    (lambda t: t.drop(columns='sex'), "no column 'sex'"),
    (
      lambda t: t.assign(age=t['age'].where(t.index != 4, 130)),
      "'age', row 5 (line 6 of a CSV file): 130 is outside [0, 120]; widen the "
      'bounds, or pass --out_of_range=clip',
    ),
    (
      lambda t: t.assign(sex=t['sex'].where(t.index != 4, 'x')),
      "'sex', row 5 (line 6 of a CSV file): 'x' is not in the enum",
    ),
    (
      lambda t: t.assign(wage=t['wage'].where(t.index != 4)),
      "'wage', row 5 (line 6 of a CSV file): the value is missing",
    ),
    (
      lambda t: t.assign(age=t['age'].where(t.index != 4, 'old')),
      "'age', row 5 (line 6 of a CSV file): 'old' is no integer",
    ),
    (
      lambda t: t.assign(wage=np.nan),
      "'wage', row 1 (line 2 of a CSV file): the value is missing",
    ),
  ],
)
def test_bad_tables(content, message, folder, capsys):
  if callable(content):
    content = _edited(content)
  if isinstance(content, str):
    content = content.encode()
  (folder / 'people.csv').write_bytes(content)
  _refused(_fit(), message, capsys)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ({'epsilon': '-1'}, 'epsilon must be a finite number above zero'),
    ({'epsilon': 'nan'}, '--epsilon=nan must be a finite number'),
    ({'epsilon': 'one'}, '--epsilon=one'),
    ({'delta': '0'}, 'delta must lie inside (0, 1)'),
    ({'delta': '1'}, 'delta must lie inside (0, 1)'),
    ({'accountant': 'pdl'}, 'pld'),
    ({'schema': 'people.csv'}, 'people.csv is not JSON'),
    ({'target': 'wages'}, '--target=wages is no column of schema.json; it has'),
    ({'model_dir': ''}, '--model_dir is empty'),
    ({'schema': ''}, '--schema is empty: give the name of a file.'),
    ({'input': ''}, '--input is empty: give the name of a file.'),
    ({'model_dir': 'people.csv', 'overwrite': True}, 'is not a model'),
    ({'model_dir': 'people.csv'}, 'people.csv exists: pass --overwrite'),
  ],
)
def test_bad_flags_of_fit(flags, message, capsys):
  _refused(_fit(**flags), message, capsys)


def test_a_folder_that_is_no_model_is_not_overwritten(folder, capsys):
  (folder / 'photos').mkdir()
  argv = _fit(model_dir='photos', overwrite=True)
  _refused(argv, 'photos exists and is not a model of tfdpflows', capsys)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--num_rows=0'], 'num_rows=0'),
    (['--num_rows=-1'], 'num_rows=-1'),
    (['--num_rows=abc'], 'num_rows=abc'),
    (['--seed=-1'], 'seed=-1'),
    (['--model_dir=none'], 'none does not exist'),
    (['--model_dir=people.csv'], '--model_dir=people.csv is no folder'),
    (['--output='], '--output is empty'),
    (['--output=s.xlsx'], 's.xlsx has a name that stands for no format'),
    (['--output=photos', '--overwrite'], '--output=photos is a folder'),
    (['--output=none/x.csv'], 'does not exist: make it first'),
    ([], 'model holds no model: model/model.json is missing. Give a folder'),
  ],
)
def test_bad_flags_of_sample(flags, message, folder, capsys):
  for name in ('photos', 'model'):
    (folder / name).mkdir()
  argv = ['sample', '--model_dir=model', '--num_rows=3', '--output=s.csv']
  _refused([*argv, *flags], message, capsys)


@pytest.mark.parametrize(
  ('condition', 'message'),
  [
    ('wages=3', "on column 'wages'"),
    ('age>=abc', "--condition=age>=abc is a range, and 'abc' is no number"),
    (
      'age>130',
      'is (130.0, inf], in which no value of the schema is: it has 0',
    ),
    ('sex=x|f', "'x' is not in the enum. It has 'f', 'm'."),
    ('sex=x', "'x' is not in the enum. It has 'f', 'm'."),
    ('wage>5,5', "'5,5' is no number."),
  ],
)
def test_bad_conditions(condition, message, folder, capsys):
  (folder / 'model').mkdir()
  (folder / 'model' / 'schema.json').write_text(json.dumps(SCHEMA))
  argv = ['sample', '--model_dir=model', '--num_rows=3', '--output=s.csv']
  _refused([*argv, f'--condition={condition}'], message, capsys)


def test_a_bad_target_of_a_report(folder, capsys):
  (folder / 'model').mkdir()
  (folder / 'model' / 'schema.json').write_text(json.dumps(SCHEMA))
  argv = ['report', '--model_dir=model', '--output=r.html', '--target=wages']
  argv += ['--real=people.csv', '--synthetic=people.csv']
  _refused(argv, '--target=wages is no column of the model; it has', capsys)


def test_resuming_may_meet_a_complete_model(folder, monkeypatch, capsys):
  """A kill between completing the model and removing the work."""
  (folder / 'model').mkdir()
  (folder / 'model.partial').mkdir()
  monkeypatch.setattr(fit.files, 'check_place', None)
  _refused(_fit(resume=True), 'tfdpflows.tabular.synthesizer', capsys)
