"""Exported models: alone with TensorFlow, and equal to the library."""

import filecmp
import json
import os
import shutil
import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.tabular import alone, small_table
from tfdpflows.tabular import TableSchema, serving
from tfdpflows.tabular.raw_values import RawTable
from tfdpflows.tabular.synthesizer import TabularSynthesizer

_ALONE = """
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
sample = model.signatures['sample'](
  num_rows=tf.constant(9000, tf.int64), seed=tf.constant(5, tf.int64))
arrays = {f'sample_{k}': v.numpy() for k, v in sample.items()}
for k, v in arrays.items():
  if v.dtype == object:
    arrays[k] = np.array([x.decode() for x in v])
if 'log_prob' in model.signatures:
  arrays['log_prob'] = model.signatures['log_prob'](
    **{k: tf.constant(v) for k, v in given.items()})['log_prob'].numpy()
np.savez(sys.argv[3], **arrays)

# `saved_model_cli` for one list of arguments after another.
import json
from tensorflow.python.tools import saved_model_cli
for argv in json.loads(sys.argv[4]):
  sys.argv = ['saved_model_cli', *argv]
  try:
    saved_model_cli.main()
  except SystemExit as end:
    if end.code:
      raise
"""


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def fitted(people):
  """Of measured marginals alone: that is enough for columns that depend."""
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, seed=0, **people.tiny, adaptive_marginals=2
  )
  with small_table.untrained(), small_table.short():
    return synthesizer.fit(people.table, progress=False)


@pytest.fixture(scope='module')
def exported(fitted, tmp_path_factory):
  path = tmp_path_factory.mktemp('exported') / '1'
  fitted.export(path, metrics={'tstr_auc': 0.75})
  return path


def _raw(synthesizer):
  schema = synthesizer.schema
  return RawTable(schema, clip=False)


def _arrays(raw, table):
  """The columns of a table as an exported model takes them."""
  found = {}
  for name, column, (_, cells) in zip(raw.names, raw.columns, table.items()):
    cells = cells.astype(object)
    if column.missing is not None:
      cells = cells.where(~cells.isna(), column.missing)
    kind = column.dtype.as_numpy_dtype
    found[name] = cells.to_numpy(str if kind is object else kind)
  return found


def _run_alone(synthesizer, path, table, folder, commands=()):
  """Runs an exported model, and commands of TensorFlow's tool, alone.

  Returns:
    A namespace of
    - raw: the `RawTable`;
    - found: what the signatures gave;
    - output: of the commands;
    - folder: the same.
  """
  raw = _raw(synthesizer)
  rows = synthesizer.schema.validate(table, fitting=False)
  np.savez(folder / 'given.npz', **_arrays(raw, rows))
  files = [path, folder / 'given.npz', folder / 'found.npz']
  output = alone.run(_ALONE, *files, json.dumps(commands))
  found = np.load(folder / 'found.npz')
  return types.SimpleNamespace(
    raw=raw, found=found, output=output, folder=folder
  )


@pytest.fixture(scope='module')
def table(people):
  """More rows than are worked on at once."""
  return pd.concat([people.table] * 2, ignore_index=True)


@pytest.fixture(scope='module')
def ran(fitted, exported, people, table, tmp_path_factory):
  """What the exported model gives in a process of TensorFlow alone."""
  folder = tmp_path_factory.mktemp('alone')

  def command(signature, expressions):
    return [
      'run',
      f'--dir={exported}',
      '--tag_set=serve',
      f'--signature_def={signature}',
      f'--input_exprs={expressions}',
      f'--outdir={folder / signature}',
    ]

  rows = people.schema.validate(people.table[1:4], fitting=False)
  given = _arrays(_raw(fitted), rows)
  lists = ';'.join(f'{k}={v.tolist()!r}' for k, v in given.items())
  commands = [
    ['show', '--all', '--dir', str(exported)],
    command('sample', 'num_rows=20;seed=5'),
    command('log_prob', lists),
  ]
  return _run_alone(fitted, exported, table, folder, commands)


def _assert_same_sample(synthesizer, ran):
  found = ran.found
  want = _arrays(ran.raw, synthesizer.sample(9000, seed=5))
  for name, values in want.items():
    # Rounding of the flow may turn a last digit, or cross a cell's border.
    if values.dtype == np.float64:
      same = np.isclose(found[f'sample_{name}'], values, 1e-5, 1e-3, True)
    else:
      same = found[f'sample_{name}'] == values
    assert np.mean(same) > 0.999, name


@pytest.mark.core
def test_alone_it_gives_what_the_library_gives(fitted, table, ran):
  _assert_same_sample(fitted, ran)
  np.testing.assert_allclose(
    ran.found['log_prob'], fitted.log_prob(table), rtol=1e-5, atol=1e-5
  )


def test_saved_model_cli_shows_the_signatures(ran):
  for line in (
    "signature_def['log_prob']",
    "signature_def['sample']",
    "inputs['city']",
    "outputs['income']",
  ):
    assert line in ran.output


def test_saved_model_cli_runs_the_signatures(fitted, people, ran):
  def results(signature):
    return {
      path.stem: np.load(path, allow_pickle=True)
      for path in (ran.folder / signature).glob('*.npy')
    }

  found = results('sample')
  want = _arrays(ran.raw, fitted.sample(20, seed=5))
  assert sorted(found) == sorted(want)
  np.testing.assert_array_equal(found['age'], want['age'])
  cities = [city.decode() for city in found['city']]
  assert cities == want['city'].tolist()
  np.testing.assert_allclose(
    results('log_prob')['log_prob'],
    fitted.log_prob(people.table[1:4]),
    rtol=1e-5,
    atol=1e-5,
  )


def test_clip_is_exported_too(people, tmp_path):
  schema = TableSchema([people.schema['age']])
  fitted = TabularSynthesizer(
    schema, **people.budget, seed=0, out_of_range='clip'
  ).fit(people.table[['age']], progress=False)
  fitted.export(tmp_path / 'exported')
  score = tf.saved_model.load(str(tmp_path / 'exported')).signatures['log_prob']
  found = score(age=tf.constant([99, 200], tf.int64))['log_prob'].numpy()
  table = pd.DataFrame({'age': [99, 200]})
  np.testing.assert_allclose(found, fitted.log_prob(table), rtol=1e-5)


def test_it_depends_on_nothing_but_the_weights(fitted, exported, tmp_path):
  tf.function(lambda x: x + 1)(tf.constant(1))  # All counters move on.
  fitted.sample(1)
  fitted.export(tmp_path / 'again', metrics={'tstr_auc': 0.75})
  files = sorted(
    path.relative_to(exported) for path in exported.rglob('*') if path.is_file()
  )
  assert [str(f) for f in files] == [
    'model_card.json',
    'model_card.md',
    'saved_model.pb',
    'variables/variables.data-00000-of-00001',
    'variables/variables.index',
  ]
  for file in files:
    assert filecmp.cmp(exported / file, tmp_path / 'again' / file, False), file


def test_model_card(fitted, exported):
  card = json.loads((exported / 'model_card.json').read_text('utf-8'))
  statement = fitted.privacy_statement()
  assert card['privacy'] == json.loads(json.dumps(statement.to_dict()))
  assert card['data']['num_rows'] == 400
  assert card['data']['schema'] == fitted.schema.to_dict()
  assert card['metrics'] == {'tstr_auc': 0.75}
  assert card['tensors'][2] == {
    'tensor': 'visits',
    'column': 'visits',
    'dtype': 'float64',
    'missing': 'NaN',
  }
  text = (exported / 'model_card.md').read_text('utf-8')
  parts = (
    '400 rows',
    '## Privacy statement',
    f'**Claim:** {statement.claim}',
    'add or remove one',
    'fit was seeded',
  )
  assert [part for part in parts if part not in text] == []
  assert '| city | `city` | string | Trier, Köln, Bonn | empty |' in text


def test_bad_requests_and_folders(fitted, exported, people, tmp_path):
  signatures = tf.saved_model.load(str(exported)).signatures
  with pytest.raises(tf.errors.InvalidArgumentError, match='num_rows'):
    signatures['sample'](
      num_rows=tf.constant(-1, tf.int64), seed=tf.constant(0, tf.int64)
    )
  rows = people.schema.validate(people.table, fitting=False)
  given = _arrays(_raw(fitted), rows)
  given['age'][3] = 100
  tensors = {name: tf.constant(column) for name, column in given.items()}
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'age.*row\] \[4\]'):
    signatures['log_prob'](**tensors)
  none = {name: column[:0] for name, column in tensors.items()}
  assert signatures['log_prob'](**none)['log_prob'].shape == [0]
  with pytest.raises(FileExistsError, match='pass overwrite=True'):
    fitted.export(exported)
  (tmp_path / 'notes.txt').touch()
  with pytest.raises(
    FileExistsError, match='not a model that tfdpflows exported'
  ):
    fitted.export(tmp_path, overwrite=True)
  # A card of something else, and an export with a file of the user's.
  (tmp_path / 'model_card.json').write_text('{"format": "other"}')
  with pytest.raises(
    FileExistsError, match='not a model that tfdpflows exported'
  ):
    fitted.export(tmp_path, overwrite=True)
  shutil.copytree(exported, tmp_path / 'mixed')
  (tmp_path / 'mixed' / 'notes.txt').touch()
  with pytest.raises(FileExistsError, match=r'notes\.txt.*would be lost'):
    fitted.export(tmp_path / 'mixed', overwrite=True)
  (tmp_path / 'link').symlink_to(exported)
  with pytest.raises(FileExistsError, match='symbolic link'):
    fitted.export(tmp_path / 'link', overwrite=True)
  fresh = TabularSynthesizer(people.schema, **people.budget)
  with pytest.raises(ValueError, match='not fitted'):
    fresh.export(tmp_path / 'new')
  for metrics in ({'auc': np.nan}, {'auc': '.8'}, {1: 0.5}):
    with pytest.raises(ValueError, match='finite numbers by name'):
      fitted.export(tmp_path / 'new', metrics=metrics)
  assert not (tmp_path / 'new').exists()


def test_a_replacement_that_fails_leaves_what_was_there(
  fitted, exported, tmp_path, monkeypatch
):
  path = tmp_path / 'model'
  shutil.copytree(exported, path)
  before = (path / 'saved_model.pb').read_bytes()
  # Written again it is the same, and traced again it takes long.
  monkeypatch.setattr(
    serving,
    'save',
    lambda folder, *_: shutil.copytree(exported, folder, dirs_exist_ok=True),
  )
  rename, calls = os.rename, []

  def failing(source, target):
    calls.append(source)
    if len(calls) == 2:
      raise OSError('no')
    rename(source, target)

  with monkeypatch.context() as patch:
    patch.setattr(os, 'rename', failing)
    with pytest.raises(OSError, match='no'):
      fitted.export(path, overwrite=True)
  assert (path / 'saved_model.pb').read_bytes() == before
  assert os.listdir(tmp_path) == ['model']
  fitted.export(path, overwrite=True)
  assert os.listdir(tmp_path) == ['model']
  with monkeypatch.context() as patch:
    patch.setattr(shutil, 'rmtree', lambda _: os.rmdir(tmp_path / 'none'))
    with pytest.warns(UserWarning, match='was replaced, but'):
      fitted.export(path, overwrite=True)


@pytest.mark.full
@pytest.mark.parametrize(
  ('model', 'options'),
  [
    ('histogram', {'adaptive_marginals': 2, 'out_of_range': 'clip'}),
    ('spline', {'dequantization': 'variational'}),
    ('hflow', {'linear': 'lu'}),
    ('dpgan', {}),
    ('pategan', {}),
  ],
)
def test_every_model(people, model, options, tmp_path):
  tiny = people.tiny if model in ('histogram', 'spline', 'hflow') else {}
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, model=model, seed=0, **tiny, **options
  )
  synthesizer.fit(people.table, progress=False)
  path = tmp_path / 'exported'
  synthesizer.export(path)
  ran = _run_alone(synthesizer, path, people.table, tmp_path)
  _assert_same_sample(synthesizer, ran)
  found = ran.found
  assert ('log_prob' in found) == synthesizer.model.has_density
  if synthesizer.model.has_density:
    np.testing.assert_allclose(
      found['log_prob'],
      synthesizer.log_prob(people.table),
      rtol=1e-5,
      atol=1e-4,
    )
    exact = 'computed exactly' in (path / 'model_card.md').read_text()
    assert exact == (model == 'histogram') == synthesizer.model.exact_density
  else:
    assert 'has no density' in (path / 'model_card.md').read_text()
