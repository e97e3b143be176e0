"""Ensembles of teachers: one vote per row, resumption, bad input."""

import functools
import itertools
import json
import random
import signal
import sys
import textwrap

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from sklearn import pipeline, preprocessing
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import NearestCentroid
from tensorflow.python.framework import ops

from tests import forked
from tests.grids import thinned
from tfdpflows import accounting, pate
from tfdpflows._keras import keras
from tfdpflows.pate import teacher_files
from tfdpflows.randomness import Randomness


def table(n=600, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[n, 3]).astype('float32')
  return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype('int64')


def keras_teacher():
  model = keras.Sequential([keras.layers.Dense(2)])
  model.compile(
    optimizer=keras.optimizers.SGD(0.3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  return model


def ensemble(make=GaussianNB, num=10, **kwargs):
  kwargs = {'randomness': Randomness(seed=0), **kwargs}
  return pate.TeacherEnsemble(make, num, 2, **kwargs)


def each_vote(trained, x):
  """The votes of each teacher alone, [teachers, rows]."""
  return trained._asked('_predictions', x + 0)


MODELS = {
  'bayes': (GaussianNB, {}),
  'forest': (functools.partial(RandomForestClassifier, n_estimators=3), {}),
  'keras': (keras_teacher, {'fit_options': {'epochs': 10}}),
}


@pytest.fixture(scope='module', params=sorted(MODELS))
def in_folder(request, tmp_path_factory):
  """A kind of model, five trained teachers of it, and their folder."""
  make, options = MODELS[request.param]
  x, y = table()
  y[:40] = 1
  folder = tmp_path_factory.mktemp(request.param) / 'teachers'
  trained = ensemble(make, 5, **options)
  trained.fit(x, y, folder=folder, progress=False)
  return request.param, trained, folder


def test_votes_of_every_kind_of_model(in_folder):
  _, trained, _ = in_folder
  queries, labels = table(200, seed=1)
  votes = trained.votes(queries)
  assert votes.shape == (200, 2)
  assert (votes.sum(1) == 5).all()
  assert np.mean(np.argmax(votes, 1) == labels) > 0.8


@pytest.mark.parametrize(
  ('how', 'name'),
  thinned(
    itertools.product(['remove', 'replace'], ['bayes', 'forest', 'keras']),
    # Of Keras, and harder: `test_random_predictions_are_those_of_each_teacher`.
    lambda point: point[1] != 'keras',
  ),
)
def test_a_row_changes_one_vote(name, how):
  """The worst row that there is, and the same random numbers."""
  make, options = MODELS[name]
  x, y = table(200)
  other_x, other_y = x.copy(), y.copy()
  other_x[-1], other_y[-1] = 1e6, 1 - y[-1]
  if how == 'remove':
    x, y = x[:-1], y[:-1]
  queries = table(50, seed=1)[0]
  options = {'num': 4, **options}
  votes = [
    each_vote(ensemble(make, **options).fit(*rows, progress=False), queries)
    for rows in ((x, y), (other_x, other_y))
  ]
  changed = (votes[0] != votes[1]).any(1)
  assert changed.sum() <= 1


def test_units_are_kept_together():
  x, y = table(400)
  units = np.arange(400) // 20
  other_x, other_y = x.copy(), y.copy()
  mine = units == 7
  other_x[mine], other_y[mine] = 50.0, 1 - y[mine]
  queries = table(50, seed=1)[0]
  votes = [
    each_vote(ensemble().fit(*rows, units=units, progress=False), queries)
    for rows in ((x, y), (other_x, other_y))
  ]
  assert (votes[0] != votes[1]).any(1).sum() <= 1


def test_units_are_those_of_the_ledger():
  x, y = table(200)
  people = lambda: accounting.PrivacyLedger(privacy_unit='person')
  aggregator = functools.partial(
    pate.TeacherEnsemble.aggregator, kind=pate.GNMax, sigma=30.0
  )
  fitted = ensemble().fit(x, y, units=np.arange(200) // 4, progress=False)
  ledger, queries = people(), x[:3] + 0
  aggregator(fitted, ledger=ledger).query(fitted.votes(queries))
  statement = accounting.privacy_statement(ledger, delta=1e-5)
  assert statement.unit == "all rows of the table with one value of 'person'"
  # What protects all rows of a person protects each.
  aggregator(fitted, ledger=accounting.PrivacyLedger()).query(
    fitted.votes(queries)
  )
  of_rows = ensemble().fit(x, y, progress=False)
  ledger = people()
  with pytest.raises(ValueError, match='protects rows'):
    aggregator(of_rows, ledger=ledger).query(of_rows.votes(queries))
  assert not ledger.entries


def test_processes_give_the_same_teachers():
  x, y = table(200)
  votes = [
    ensemble(LogisticRegression, num=4)
    .fit(x, y, num_processes=n, progress=False)
    .votes(x + 0)
    for n in (1, 2)
  ]
  np.testing.assert_array_equal(*votes)


def test_shards_are_trained_once():
  trained = ensemble().fit(*table(), progress=False)
  with pytest.raises(ValueError, match='trained already'):
    trained.fit(*table(), progress=False)


def test_a_shard_of_one_class_votes_for_it():
  x, y = table(300)
  y[:] = 1
  trained = ensemble(LogisticRegression).fit(x, y, progress=False)
  assert trained.votes(x + 0).tolist() == [[0, 10]] * 300


class Fails(GaussianNB):
  """Fails for a row with 666, and shows it in the error."""

  def fit(self, x, y):
    if (x == 666).any():
      raise ValueError(f'I saw {x}')
    return super().fit(x, y)


def test_no_row_ends_training(capfd):
  """Nor is it in what is written."""
  x, y = table()
  x[5], x[6], x[7], y[8] = 666, np.nan, np.inf, 17
  trained = ensemble(Fails).fit(x, y, progress=False)
  assert (trained.votes(table(50)[0]).sum(1) == 10).all()
  assert '666' not in ''.join(capfd.readouterr())


@pytest.mark.parametrize('model', [GaussianNB(), keras.Sequential()])
def test_a_model_in_place_of_a_function_is_refused(model):
  message = f'is of type {type(model).__name__}; it must be a function.*lambda'
  with pytest.raises(TypeError, match=message):
    ensemble(model)


def test_a_wrong_teacher_is_told_before_rows_are_read():
  class Broken(GaussianNB):
    def fit(self, x, y):
      raise RuntimeError('no such thing')

  with pytest.raises(ValueError, match='made up.*no such thing'):
    ensemble(Broken).fit(*table(), progress=False)
  wrong = lambda: keras.Sequential([keras.layers.Dense(5)])

  def compiled():
    model = wrong()
    model.compile(
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model

  with pytest.raises(ValueError, match=r'\[40, 2\]'):
    ensemble(compiled).fit(*table(), progress=False)


def test_public_rows_to_try_on():
  class Positive(GaussianNB):
    def fit(self, x, y):
      if (x < 0).any():
        raise ValueError('negative')
      return super().fit(x, y)

  x, y = table()
  x = np.abs(x)
  with pytest.raises(ValueError, match=r'example=\(x, y\)'):
    ensemble(Positive).fit(x, y, progress=False)
  public = np.abs(table(40, seed=5)[0]), np.arange(40) % 2
  ensemble(Positive, example=public).fit(x, y, progress=False)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda x, y: (x[:5], y[:5]), '5 rows for 10 shards'),
    (lambda x, y: (x, None), 'y is missing'),
    (lambda x, y: (x, y[:-1]), r'must be integers \[600\]'),
    (lambda x, y: (x, y.astype(float)), 'dtype float64'),
    (lambda x, y: (x.astype(str), y), 'dtype <U'),
  ],
)
def test_bad_rows(change, message):
  with pytest.raises(ValueError, match=message):
    ensemble().fit(*change(*table()), progress=False)


def test_bad_queries():
  x, y = table()
  with pytest.raises(ValueError, match='not trained yet'):
    ensemble().votes(x)
  trained = ensemble().fit(x, y, progress=False)
  for private in (x, x[10:20], x[:, ::-1]):
    with pytest.raises(ValueError, match='shares its memory with the private'):
      trained.votes(private)
  with pytest.raises(ValueError, match=r'must be \[n, 3\]'):
    trained.votes(np.zeros([4, 2]))
  with pytest.raises(ValueError, match='Row 2 of x is not finite'):
    trained.votes(np.array([[0.0] * 3, [1.0] * 3, [np.nan] * 3]))


# Folders.


def test_saved_and_loaded(in_folder):
  name, trained, folder = in_folder
  make, options = MODELS[name]
  assert not any(path.suffix == '.pkl' for path in folder.iterdir())
  assert not (folder / 'secret').exists()
  assert (folder.stat().st_mode & 0o077) == 0
  loaded = pate.TeacherEnsemble.load(folder, make, 5, 2, **options)
  queries = table(100, seed=2)[0]
  np.testing.assert_array_equal(loaded.votes(queries), trained.votes(queries))


def test_resumed_after_an_interrupt(tmp_path, monkeypatch):
  x, y = table()
  folder = tmp_path / 'teachers'
  calls, fit = [], GaussianNB.fit

  def interrupted(self, x, y):
    calls.append(len(x))
    if len(calls) == 7:
      raise KeyboardInterrupt
    return fit(self, x, y)

  monkeypatch.setattr(GaussianNB, 'fit', interrupted)
  with pytest.raises(KeyboardInterrupt):
    ensemble(randomness=None).fit(x, y, folder=folder, progress=False)
  monkeypatch.undo()
  done = {path.name: path.read_bytes() for path in folder.glob('0*')}
  assert done
  with pytest.raises(FileExistsError, match='resume its training'):
    ensemble(GaussianNB).fit(x, y, folder=folder, progress=False)
  with pytest.raises(ValueError, match='another rows or units'):
    ensemble().fit(x + 1, y, folder=folder, resume=True, progress=False)
  with pytest.raises(ValueError, match='another num_teachers'):
    ensemble(num=9).fit(x, y, folder=folder, resume=True, progress=False)
  with pytest.raises(ValueError, match='resume=True'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  secret = (folder / 'secret').read_bytes()
  whole = ensemble(GaussianNB, randomness=Randomness(secret=secret))
  whole.fit(x, y, progress=False)
  resumed = ensemble(GaussianNB, randomness=None).fit(
    x, y, folder=folder, resume=True, progress=False
  )
  for name, content in done.items():
    assert (folder / name).read_bytes() == content
  queries = table(100, seed=2)[0]
  np.testing.assert_array_equal(resumed.votes(queries), whole.votes(queries))


def test_resumed_after_a_kill(tmp_path):
  folder = tmp_path / 'teachers'
  code = f"""
    import os, signal, numpy as np
    from sklearn.naive_bayes import GaussianNB
    from tfdpflows import accounting, pate
    calls, fit = [], GaussianNB.fit
    def killed(self, x, y):
      calls.append(1)
      if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
      return fit(self, x, y)
    GaussianNB.fit = killed
    rng = np.random.default_rng(0)
    x = rng.normal(size=[600, 3]).astype('float32')
    y = (x[:, 0] > 0).astype('int64')
    pate.TeacherEnsemble(GaussianNB, 10, 2).fit(
      x, y, folder={str(folder)!r}, progress=False)
  """
  log = tmp_path / 'log.txt'
  status = forked.run(['-c', textwrap.dedent(code)], log)
  assert status == -signal.SIGKILL, log.read_text()
  assert not json.loads((folder / 'settings.json').read_text())['finished']
  rng = np.random.default_rng(0)
  x = rng.normal(size=[600, 3]).astype('float32')
  y = (x[:, 0] > 0).astype('int64')
  trained = ensemble(randomness=None).fit(
    x, y, folder=folder, resume=True, progress=False
  )
  assert np.mean(np.argmax(trained.votes(x + 0), 1) == y) > 0.9


def test_damaged_folders(tmp_path):
  x, y = table()
  folder = tmp_path / 'teachers'
  with pytest.raises(FileNotFoundError, match='has no ensemble'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  ensemble().fit(x, y, folder=folder, progress=False)
  with pytest.raises(ValueError, match='load it with the arguments'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 11, 2)
  with pytest.raises(ValueError, match='is finished'):
    ensemble().fit(x, y, folder=folder, resume=True, progress=False)
  (folder / '00003.npz').write_bytes(b'no')
  with pytest.raises(ValueError, match='00003.npz is damaged'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  (folder / '00003.npz').unlink()
  with pytest.raises(ValueError, match='no teacher 3'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  (folder / 'settings.json').write_text('{')
  with pytest.raises(ValueError, match='settings.json is damaged'):
    pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  with pytest.raises(ValueError, match='no folder to resume'):
    ensemble().fit(x, y, resume=True, progress=False)


def test_what_cannot_be_saved_says_so_before_training(tmp_path, monkeypatch):
  folder = tmp_path / 'teachers'
  monkeypatch.setitem(sys.modules, 'skops.io', None)
  monkeypatch.setitem(sys.modules, 'skops', None)
  with pytest.raises(ImportError, match=r'tfdpflows\[pate\]'):
    ensemble().fit(*table(), folder=folder, progress=False)
  assert not folder.exists()
  monkeypatch.undo()

  with pytest.raises(ValueError, match='does not load without being told'):
    ensemble(Fails).fit(*table(), folder=folder, progress=False)
  assert not folder.exists()


def test_resumed_with_the_same_units_and_models_alone(tmp_path, monkeypatch):
  x, y = table()
  units = np.arange(600) // 4
  calls, fit = [], GaussianNB.fit

  def interrupted(self, x, y):
    calls.append(len(x))
    if len(calls) == 6:
      raise KeyboardInterrupt
    return fit(self, x, y)

  monkeypatch.setattr(GaussianNB, 'fit', interrupted)
  folder = tmp_path / 'teachers'
  with pytest.raises(KeyboardInterrupt):
    ensemble().fit(x, y, units=units, folder=folder, progress=False)
  monkeypatch.undo()
  files = sorted(path.name for path in folder.iterdir())
  resumed = {'folder': folder, 'resume': True, 'progress': False}
  with pytest.raises(ValueError, match='another units'):
    ensemble().fit(x, y, **resumed)
  with pytest.raises(ValueError, match='another rows or units'):
    ensemble().fit(x, y, units=units[::-1], **resumed)
  for other in (LogisticRegression, lambda: GaussianNB(var_smoothing=1.0)):
    with pytest.raises(ValueError, match='another model'):
      ensemble(other).fit(x, y, units=units, **resumed)
  with pytest.raises(ValueError, match='trust'):
    ensemble(Fails).fit(x, y, units=units, **resumed)
  assert sorted(path.name for path in folder.iterdir()) == files
  ensemble().fit(x, y, units=units, **resumed)


def changed(make, y=None, **options):
  """How many teachers change for one row, the worst of two."""
  x, labels = table(200)
  labels = labels if y is None else y
  queries = table(60, seed=1)[0]
  votes = []
  for value in (None, 1e4):
    rows, marks = x.copy(), labels.copy()
    if value is not None:
      rows[-1], marks[-1] = value, 1 - marks[-1]
    trained = ensemble(make, num=5, **options).fit(rows, marks, progress=False)
    votes.append(each_vote(trained, queries))
  return (votes[0] != votes[1]).any(1).sum()


def test_parts_that_teachers_share_are_cloned():
  scaler = preprocessing.StandardScaler()
  one = GaussianNB()
  assert changed(lambda: pipeline.make_pipeline(scaler, GaussianNB())) <= 1
  assert changed(lambda: one) <= 1


def test_a_function_that_counts_is_called_once_for_each_teacher():
  def make():
    models = itertools.cycle([GaussianNB, NearestCentroid])
    return lambda: next(models)()

  # The shard of one teacher has one class but for the row that changes.
  y = table(200)[1]
  y[:] = 1
  assert changed(make(), y=y) <= 1
  trained = ensemble(make(), num=4).fit(*table(), progress=False)
  kinds = [type(teacher.model) for teacher in trained._teachers]
  assert kinds == [NearestCentroid, GaussianNB] * 2


def in_place():
  scaler = preprocessing.StandardScaler(copy=False)
  return pipeline.make_pipeline(scaler, GaussianNB())


def test_a_model_that_changes_its_input_changes_no_other():
  assert changed(in_place) <= 1
  x, y = table()
  queries = x[:5].copy()
  example = x[:20].copy(), np.arange(20) % 2
  given = [x, y, queries, *example]
  before = [array.copy() for array in given]
  ensemble(in_place, example=example).fit(x, y, progress=False).votes(queries)
  for array, kept in zip(given, before):
    np.testing.assert_array_equal(array, kept)


SHARED = keras.layers.Dense(2), keras.optimizers.SGD(0.1)


def with_layers(layer, optimizer):
  model = keras.Sequential([layer])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=optimizer, loss=loss)
  return model


def of_one_layer():
  return with_layers(SHARED[0], keras.optimizers.SGD(0.1))


def of_one_optimizer():
  return with_layers(keras.layers.Dense(2), SHARED[1])


@pytest.mark.parametrize('make', [of_one_layer, of_one_optimizer])
def test_keras_models_that_share_are_refused(make):
  with pytest.raises(ValueError, match='share|cannot be trained'):
    ensemble(make).fit(*table(), progress=False)


def recurrent_teacher(stateful=True):
  model = keras.Sequential(
    [
      keras.layers.Reshape([3, 1]),
      keras.layers.GRU(4, stateful=stateful),
      keras.layers.Dense(2),
    ]
  )
  model.build([1, 3])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
  return model


class Counting(keras.layers.Layer):
  """A layer with a state that Keras does not know."""

  def __init__(self):
    super().__init__()
    variable = tf.Variable(0.0)
    self._hidden = lambda: variable

  def call(self, x):
    return x + self._hidden().assign_add(tf.reduce_sum(tf.abs(x)))


def counting_teacher():
  model = keras.Sequential([Counting(), keras.layers.Dense(2)])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
  return model


def test_states_between_teachers_are_refused():
  example = np.zeros([1, 3], 'float32'), np.zeros(1, int)
  options = {'fit_options': {'batch_size': 1}, 'example': example, 'num': 2}
  x, y = table(12)
  with pytest.raises(ValueError, match="'gru.*' of make_teacher is stateful"):
    ensemble(recurrent_teacher, **options).fit(x, y, progress=False)
  make = functools.partial(recurrent_teacher, stateful=False)
  ensemble(make, **options).fit(x, y, progress=False)
  with pytest.raises(ValueError, match='in another way when it is asked'):
    ensemble(counting_teacher, num=2).fit(x, y, progress=False)


def test_layers_from_outside_of_the_function_are_refused():
  layer = keras.layers.Dense(2)
  make = lambda: with_layers(layer, keras.optimizers.SGD(0.1))
  with pytest.raises(ValueError, match='share|cannot be sent there'):
    ensemble(make).fit(*table(), progress=False)


class Mine(keras.callbacks.CSVLogger):
  """A callback of a user that writes files."""


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (
      {'callbacks': [keras.callbacks.ModelCheckpoint('a')]},
      'ModelCheckpoint writes files',
    ),
    ({'callbacks': keras.callbacks.TensorBoard('a')}, 'TensorBoard writes'),
    ({'callbacks': [Mine('a')]}, 'Mine writes files'),
    (
      {'callbacks': keras.callbacks.CallbackList([Mine('a')])},
      'CallbackList: give a list',
    ),
    ({'verbose': 2}, 'verbose is 2'),
    ({'verbose': 'auto'}, "verbose is 'auto'"),
  ],
)
def test_options_that_write_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    ensemble(keras_teacher, fit_options=options)


def test_estimators_that_print_are_refused():
  for make in (
    lambda: LogisticRegression(verbose=1),
    lambda: pipeline.make_pipeline(LogisticRegression(verbose=1)),
  ):
    with pytest.raises(ValueError, match='verbose is 1'):
      ensemble(make).fit(*table(), progress=False)


def test_estimators_that_cache_are_refused(tmp_path):
  folder = tmp_path / 'cache'
  make = lambda: pipeline.make_pipeline(
    preprocessing.StandardScaler(), GaussianNB(), memory=str(folder)
  )
  for outer in (make, lambda: pipeline.make_pipeline(make())):
    with pytest.raises(ValueError, match='memory is .*cache'):
      ensemble(outer).fit(*table(), progress=False)
  assert not folder.exists()


def test_callbacks_are_copied():
  class Counts(keras.callbacks.Callback):
    trainings = 0

    def on_train_begin(self, logs=None):
      self.trainings += 1

  callback = Counts()
  ensemble(keras_teacher, num=2, fit_options={'callbacks': [callback]}).fit(
    *table(), progress=False
  )
  assert not callback.trainings


class AlwaysRandom(keras.layers.Layer):
  """Dropout that does not stop."""

  def __init__(self):
    super().__init__()
    self._dropout = keras.layers.Dropout(0.5)

  def call(self, x):
    return self._dropout(x, training=True)


def test_random_predictions_are_those_of_each_teacher():
  def make():
    model = keras.Sequential([keras.layers.Dense(2), AlwaysRandom()])
    model.compile(
      optimizer=keras.optimizers.SGD(0.3),
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model

  y = table(200)[1]
  shards = pate.partition(200, 5, randomness=Randomness(seed=0))
  y[shards == shards[-1]] = y[-1]
  assert changed(make, y=y) <= 1


def test_what_the_logger_says_depends_on_no_row(caplog):
  caplog.set_level('DEBUG')
  texts = []
  for label in (0, 1):
    x, y = table(100)
    y[:-1] = 1
    y[-1] = label
    caplog.clear()
    trained = ensemble(keras_teacher, num=3).fit(x, y, progress=False)
    trained.votes(x + 0)
    texts.append(caplog.text)
  assert 'retracing' not in ''.join(texts)


def test_keras_teachers_leave_nothing_of_the_rows_in_this_process():
  """TensorFlow's counter is in the names of functions of saved models."""
  calls = []

  def make():
    calls.append(1)
    random.random()
    return keras_teacher()

  x, y = table(40)
  found = []
  for label in (0, 0, 1):
    y[:] = 0
    y[5] = label
    calls.clear()
    random.seed(1)
    before = ops.uid()
    ensemble(make, num=2).fit(x, y, progress=False).votes(x + 0)
    found.append((ops.uid() - before, len(calls), random.random()))
  assert found[1] == found[2]


def test_what_tensorflow_prints_is_not_shown(capfd):
  """Its C++ code prints a token of a row that is out of range."""

  def make():
    model = keras.Sequential(
      [
        keras.layers.Embedding(10, 2),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(2),
      ]
    )
    model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(True))
    return model

  x = np.arange(60).reshape([20, 3]).astype(np.int32) % 10
  y = np.arange(20) % 2
  public = x.copy(), y
  x[7, 1] = 123456
  trained = ensemble(make, num=2, example=public)
  trained.fit(x, y, progress=False).votes(public[0])
  assert '123456' not in ''.join(capfd.readouterr())


def test_seeds_and_units_are_known_to_the_ledger(tmp_path):
  x, y = table()
  folder = tmp_path / 'teachers'
  units = np.arange(600)
  seeded = ensemble().fit(x, y, units=units, folder=folder, progress=False)
  loaded = pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  free = ensemble(randomness=None).fit(x, y, progress=False)
  for trained, expected in ((seeded, True), (loaded, True), (free, False)):
    ledger = accounting.PrivacyLedger()
    aggregator = trained.aggregator(pate.GNMax, sigma=5.0, ledger=ledger)
    aggregator.query(trained.votes(x + 0))
    assert ledger.seeded == expected
  replace = accounting.PrivacyLedger(
    neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
  )
  for trained in (seeded, loaded):
    with pytest.raises(ValueError, match='Shards follow units'):
      trained.aggregator(pate.GNMax, sigma=5.0, ledger=replace)
  free.aggregator(pate.GNMax, sigma=5.0, ledger=replace)


def test_a_loaded_ensemble_knows_its_columns(tmp_path):
  folder = tmp_path / 'teachers'
  ensemble().fit(*table(), folder=folder, progress=False)
  loaded = pate.TeacherEnsemble.load(folder, GaussianNB, 10, 2)
  with pytest.raises(ValueError, match=r'must be \[n, 3\]'):
    loaded.votes(np.zeros([4, 2]))


class OddShape(GaussianNB):
  """Answers in another shape where its shard has an outlier."""

  shape = (1,)

  def fit(self, x, y):
    self.odd_ = x.max() > 1e3
    return super().fit(x, y)

  def predict(self, x):
    found = super().predict(x)
    return np.zeros(self.shape, int) if self.odd_ else found


@pytest.mark.parametrize('shape', [(), (1,), (7,), (60, 1, 1), (3, 2)])
def test_answers_of_another_shape_are_those_of_a_teacher_that_fails(shape):
  make = lambda: type('Odd', (OddShape,), {'shape': shape})()
  assert changed(make) == 1
  x, y = table(200)
  shards = pate.partition(200, 5, randomness=Randomness(seed=0))
  x[-1] = 1e4
  trained = ensemble(make, num=5).fit(x, y, progress=False)
  t = shards[-1]
  assert np.all(each_vote(trained, x[:60])[t] == t % 2)


class Leaves(GaussianNB):
  def fit(self, x, y):
    if (x == 666).any():
      sys.exit(f'SECRET {x}')
    return super().fit(x, y)


def test_a_model_cannot_leave_the_program(capfd):
  x, y = table()
  x[3] = 666
  ensemble(Leaves).fit(x, y, progress=False)
  assert 'SECRET' not in ''.join(capfd.readouterr())


def test_many_arrays_of_weights_keep_their_order(tmp_path):
  weights = [np.full(1, i) for i in range(1200)]
  teacher_files._write_settings(tmp_path, {})
  store = teacher_files.Store.__new__(teacher_files.Store)
  store._folder = tmp_path
  store.save(0, teacher_files.Teacher(weights, np.zeros(0)))
  found = teacher_files.load(tmp_path, 0)
  np.testing.assert_array_equal(found.model, weights)


def test_training_leaves_no_seed_behind():
  numbers = set()
  for _ in range(2):
    ensemble(num=2).fit(*table(), progress=False)
    dense = keras.layers.Dense(1)
    dense.build([None, 1])
    numbers.add(float(dense.kernel.numpy()))
  assert len(numbers) == 2


def test_nearest_centroid_has_no_seed():
  ensemble(NearestCentroid).fit(*table(), progress=False)
