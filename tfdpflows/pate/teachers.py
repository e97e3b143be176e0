"""An ensemble of models, each trained on its own shard of the private rows."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows import atomic
from tfdpflows._checks import Fixed, check_integer
from tfdpflows._keras import keras
from tfdpflows.mechanisms.releases import as_numbers
from tfdpflows.pate.aggregators import count_votes
from tfdpflows.pate.partition import partition
from tfdpflows.progress import bar
from tfdpflows.randomness import Randomness
from tfdpflows.version import __version__

if TYPE_CHECKING:
  import numpy.typing as npt

_SETTINGS, _SECRET = 'settings.json', 'secret'
# Made-up rows of each class that a teacher is tried on.
_TRIAL_ROWS = 20
# Rows whose votes are taken at one time.
_CHUNK = 8192
_NOT_FITTED = 'The teachers are not trained yet: call fit.'


class Teacher(NamedTuple):
  """A trained teacher.

  Attributes:
    model: a scikit-learn estimator; the weights of a Keras model, as a list; or
      `None` for a teacher with one answer.
    facts: float64 `[k]`, what else it learned from its shard.
  """

  model: Any
  facts: np.ndarray


class TeacherEnsemble(Fixed):
  """Teachers of PATE: models trained without noise, on disjoint shards.

  The ensemble owns the rows: `fit` draws the shards once, trains each teacher
  on its own, and can be called once. `votes` are private; give them to an
  aggregator, which charges for them.

  A shard of one class has a teacher that always votes for it, and one whose
  training fails, a teacher that always votes for class `t % num_classes` of its
  number t: which rows there are must not decide whether training ends. What is
  wrong with `make_teacher` itself shows before any row is read, on made-up
  rows. Rows with a label that is no class are left out.

  Args:
    make_teacher: a function without arguments that returns a new model: a
      compiled Keras model with outputs `[batch, num_classes]`, or an estimator
      of scikit-learn.
    num_teachers: number of teachers, and of shards.
    num_classes: number of classes; public.
    fit_options: dict of arguments of the model's `fit`, such as `epochs`.
    randomness: `tfdpflows.randomness.Randomness` of the shards and of the
      teachers' seeds; by default one that nobody knows.
    example: public rows (x, y) to try a teacher on; by default rows are made up
      from shapes and dtypes.

  #### Formal guarantee

  A teacher is a function of its shard, its number and random numbers that
  depend on no row. So a row that is added, removed or replaced changes one
  teacher, see `partition`, and one vote in each query.

  #### Example

  >>> import numpy as np
  >>> from sklearn.linear_model import LogisticRegression
  >>> from tfdpflows import accounting, pate
  >>> rng = np.random.default_rng(0)
  >>> x = rng.normal(size=[2000, 3])
  >>> y = (x[:, 0] > 0).astype(int)
  >>> teachers = pate.TeacherEnsemble(LogisticRegression, 20, 2)
  >>> aggregator = pate.GNMax(
  ...   sigma=2., num_teachers=20, num_classes=2,
  ...   ledger=accounting.PrivacyLedger())
  >>> teachers = teachers.fit(x, y, progress=False)
  >>> votes = teachers.votes([[2., 0, 0], [-2., 0, 0]])
  >>> aggregator.query(votes).tolist()
  [1, 0]
  """

  def __init__(
    self,
    make_teacher: Callable[[], Any],
    num_teachers: int,
    num_classes: int,
    *,
    fit_options: Optional[dict[str, Any]] = None,
    randomness: Optional[Randomness] = None,
    example: Optional[tuple[npt.ArrayLike, npt.ArrayLike]] = None,
  ):
    self.num_teachers = check_integer('num_teachers', num_teachers)
    self.num_classes = check_integer('num_classes', num_classes, 2)
    self._make_teacher = make_teacher
    self._fit_options = dict(fit_options or {})
    self._randomness = Randomness() if randomness is None else randomness
    self._example = example
    self._teachers: Optional[list[Teacher]] = None
    self._private_rows: Optional[np.ndarray] = None

  def fit(
    self,
    x: npt.ArrayLike,
    y: Optional[npt.ArrayLike] = None,
    *,
    units: Optional[npt.ArrayLike] = None,
    folder: Optional[atomic.PathLike] = None,
    resume: bool = False,
    num_processes: int = 1,
    progress: bool = True,
  ) -> TeacherEnsemble:
    """Trains all teachers.

    Args:
      x: private rows `[n, ...]`, numbers.
      y: private labels, int `[n]`.
      units: `[n]`, such as the person of each row: all rows of one unit train
        one teacher, see `partition`.
      folder: where each trained teacher is saved, so that training can go on
        after a crash; made, for this user alone. It is as private as the rows.
      resume: whether to go on with a training that `folder` has the beginning
        of, on the same rows.
      num_processes: how many teachers are trained at one time.
      progress: whether to show a progress bar, in a terminal or notebook.

    Returns:
      The ensemble.

    Raises:
      ValueError: for rows or labels of another shape or dtype, for fewer rows
        than teachers, if a teacher cannot be trained on made-up rows, if the
        ensemble is trained already, or to resume with other rows or arguments.
      FileExistsError: if `folder` exists and is not to be resumed.
      ImportError: to save scikit-learn estimators without the package skops.
    """
    if self._teachers is not None:
      raise ValueError(
        'The teachers are trained already. Trained again on other rows, or on '
        'other shards, a row would change more than one vote: make a new '
        'ensemble, with a new charge for each of its queries.'
      )
    x = as_numbers(x)
    y = self._labels(x, y)
    store = None
    if folder is not None:
      store = _Store(folder, resume, self._known_by(x, y), self._randomness)
      self._randomness = store.randomness
    elif resume:
      raise ValueError('There is no folder to resume from; give one.')
    self._try_one(x, y)
    shards = partition(
      len(x), self.num_teachers, randomness=self._randomness, units=units
    )
    if store is not None:
      store.try_saving(self._make_teacher())
    teachers: list = [None] * self.num_teachers
    left = range(self.num_teachers)
    if store is not None:
      for t in left:
        teachers[t] = store.load(t)
      left = [t for t in left if teachers[t] is None]
    order = np.argsort(shards, kind='stable')
    ends = np.cumsum(np.bincount(shards, minlength=self.num_teachers))
    starts = ends - np.bincount(shards, minlength=self.num_teachers)

    def tasks():
      for t in left:
        rows = order[starts[t] : ends[t]]
        yield t, x[rows], None if y is None else y[rows], self._seed(t)

    shown = bar('teacher', self.num_teachers, progress)
    shown.update(self.num_teachers - len(left))
    try:
      done = self.num_teachers - len(left)
      for t, teacher in _each(self._train, tasks(), num_processes):
        teachers[t] = teacher
        if store is not None:
          store.save(t, teacher)
        shown.update()
        done += 1
        if done % max(self.num_teachers // 10, 1) == 0:
          logging.info('tfdpflows: teacher %d of %d', done, self.num_teachers)
    finally:
      shown.close()
    self._teachers = teachers
    self._private_rows = x
    if store is not None:
      store.finish()
    return self

  @classmethod
  def load(
    cls,
    folder: atomic.PathLike,
    make_teacher: Callable[[], Any],
    *args: Any,
    **kwargs: Any,
  ) -> TeacherEnsemble:
    """Returns an ensemble that `fit` has saved.

    Args:
      folder: of `fit`.
      make_teacher: as of then, and all other arguments of the class.
      *args: see there.
      **kwargs: see there.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it was not trained to its end, or with other arguments, or
        a file is damaged.
    """
    ensemble = cls(make_teacher, *args, **kwargs)
    settings = _Store.settings_of(folder)
    if settings.get('ensemble') != ensemble._settings():
      raise ValueError(
        f'{folder} has another ensemble, {settings.get("ensemble")}, and not '
        f'{ensemble._settings()}: load it with the arguments of then.'
      )
    if not settings.get('finished'):
      raise ValueError(
        f'{folder} has the beginning of a training: fit with resume=True.'
      )
    store = _Store.__new__(_Store)
    store.folder = pathlib.Path(folder)
    found = [store.load(t) for t in range(ensemble.num_teachers)]
    if None in found:
      raise ValueError(f'{folder} has no teacher {found.index(None)} any more.')
    ensemble._teachers = found
    return ensemble

  def votes(self, x: npt.ArrayLike) -> np.ndarray:
    """Returns how many teachers vote for each class; private.

    Args:
      x: public rows `[queries, ...]`, or those that a generator drew, which do
        not depend on the private rows but through earlier answers.

    Returns:
      int32 `[queries, num_classes]`, for an aggregator and for nothing else.

    Raises:
      ValueError: for rows of another shape or dtype; for an array that shares
        its memory with the private rows (rows of equal values are not looked
        for: an answer to whether there are some would not be private); or
        before `fit`.
    """
    x = self._queries(x)
    predictions = np.empty([self.num_teachers, len(x)], np.int16)
    model = self._make_teacher() if self._is_keras() else None
    for t, teacher in enumerate(self._teachers):
      ready = with_weights(model, teacher, x)
      for start in range(0, len(x), _CHUNK):
        part = slice(start, start + _CHUNK)
        predictions[t, part] = self._vote(t, teacher, ready, x[part])
    return count_votes(predictions, self.num_classes)

  def _queries(self, x):
    """Returns rows that may be asked for."""
    if self._teachers is None:
      raise ValueError(_NOT_FITTED)
    x = as_numbers(x)
    if self._private_rows is not None:
      if np.shares_memory(x, self._private_rows):
        raise ValueError(
          'x shares its memory with the private rows that the teachers were '
          'trained on. Queries must be public: which rows are asked for, and '
          'the rows themselves, would be known to all who see the answers.'
        )
      wanted = self._private_rows.shape[1:]
      if x.shape[1:] != wanted or x.ndim != len(wanted) + 1:
        shape = ', '.join(map(str, ('n', *wanted)))
        raise ValueError(f'x has shape {x.shape}; it must be [{shape}].')
    if not np.isfinite(x).all():
      bad = ~np.isfinite(x.reshape(len(x), -1)).all(1)
      raise ValueError(
        f'Row {int(np.argmax(bad))} of x is not finite: fill in what is '
        'missing, as for training.'
      )
    return x

  def _vote(self, t, teacher, model, x):
    """Returns the votes of teacher t, int `[n]`."""
    if teacher.model is None:
      return np.full(len(x), int(teacher.facts[0]))
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        found = self._classes(self._outputs(model, x), teacher.facts)
    except Exception:  # As in training.
      found = np.full(len(x), -1)
    valid = (found >= 0) & (found < self.num_classes)
    return np.where(valid, found, t % self.num_classes)

  def _outputs(self, model, x):
    """Returns what a model gives for rows: classes, or numbers for each."""
    if hasattr(model, 'predict_on_batch'):
      return np.asarray(model.predict_on_batch(x))
    return np.asarray(model.predict(x))

  def _classes(self, outputs, facts):
    """Returns the classes that a teacher votes for, int `[n]`."""
    del facts
    if outputs.ndim == 2:
      outputs = np.argmax(np.where(np.isnan(outputs), -np.inf, outputs), axis=1)
    return outputs.astype(np.int64)

  def _facts_of(self, model, x):
    """Returns what a teacher learns of its shard besides its model."""
    del model, x
    return np.zeros(0)

  def _settings(self):
    """Returns what a saved ensemble is known by."""
    return {
      'class': type(self).__name__,
      'num_teachers': self.num_teachers,
      'num_classes': self.num_classes,
    }

  def _known_by(self, x, y):
    arrays = [x] if y is None else [x, y]
    return self._settings(), arrays

  def _labels(self, x, y):
    if y is None:
      raise ValueError('y is missing: teachers learn from rows and labels.')
    y = np.asarray(y)
    if y.shape != (len(x),) or y.dtype.kind not in 'biu':
      raise ValueError(
        f'y has shape {y.shape} and dtype {y.dtype}; it must be integers '
        f'[{len(x)}], from 0 to {self.num_classes - 1}.'
      )
    return y.astype(np.int64)

  def _seed(self, t):
    return int.from_bytes(self._randomness.key('teacher', t)[:4], 'big')

  def _is_keras(self):
    return any(isinstance(t.model, list) for t in self._teachers)

  def _train(self, task):
    """Trains one teacher; never fails for what is in the rows."""
    t, x, y, seed = task
    if y is not None:
      usable = (y >= 0) & (y < self.num_classes)
      x, y = x[usable], y[usable]
      classes = np.unique(y)
      if len(classes) == 1:
        return t, Teacher(None, classes.astype(np.float64))
    try:
      if not len(x):
        raise ValueError
      return t, self._fitted(x, y, seed)
    except Exception:  # Whatever a row holds, training goes on.
      return t, Teacher(None, np.array([float(t % self.num_classes)]))

  def _fitted(self, x, y, seed):
    """Returns a teacher; raises what its model raises."""
    with _seeded(seed), warnings.catch_warnings():
      warnings.simplefilter('ignore')
      model = self._make_teacher()
      if isinstance(model, keras.Model):
        model.fit(x, y, **{'verbose': 0, **self._fit_options})
        facts = self._facts_of(model, x)
        return Teacher(model.get_weights(), facts)
      _seed_estimator(model, seed)
      model.fit(*([x] if y is None else [x, y]), **self._fit_options)
      return Teacher(model, self._facts_of(model, x))

  def _try_one(self, x, y):
    """Trains a teacher on rows that are made up, where all may be seen."""
    if self._example is not None:
      rows = [
        None if part is None else np.asarray(part) for part in self._example
      ]
    else:
      rng = np.random.default_rng(0)
      n = _TRIAL_ROWS * self.num_classes
      made = rng.normal(size=[n, *x.shape[1:]])
      rows = [
        np.abs(made).round().astype(x.dtype)
        if x.dtype.kind != 'f'
        else made.astype(x.dtype),
        None if y is None else np.arange(n) % self.num_classes,
      ]
    try:
      teacher = self._fitted(*rows, seed=0)
      model = self._make_teacher() if isinstance(teacher.model, list) else None
      model = with_weights(model, teacher, rows[0])
      found = self._outputs(model, rows[0])
    except Exception as error:
      raise ValueError(
        f'A teacher cannot be trained on rows made up from shapes and dtypes: '
        f'{error} If that is for the values of these rows, give public ones '
        'that it can work with: example=(x, y).'
      ) from error
    self._check_outputs(found, len(rows[0]))

  def _check_outputs(self, found, n):
    classes = found.shape == (n,) and found.dtype.kind in 'biu'
    if not (classes or found.shape == (n, self.num_classes)):
      raise ValueError(
        f'A teacher predicts {found.dtype} of shape {list(found.shape)} for '
        f'{n} rows; it must predict a class for each, or [{n}, '
        f'{self.num_classes}].'
      )


class _Store:
  """The folder of an ensemble: its settings, and each trained teacher."""

  def __init__(self, folder, resume, known_by, randomness):
    self.folder = pathlib.Path(folder)
    settings, arrays = known_by
    if resume:
      found = self.settings_of(folder)
      if found['ensemble'] != settings or found['version'] != __version__:
        raise ValueError(
          f'{folder} was begun as {found["ensemble"]} by tfdpflows '
          f'{found["version"]}, this is {settings} of {__version__}. Resume '
          'with the same arguments.'
        )
      if found['finished']:
        raise ValueError(
          f'{folder} is finished: TeacherEnsemble.load opens it.'
        )
      self.randomness = Randomness(secret=(self.folder / _SECRET).read_bytes())
      if found['table'] != self.randomness.table_fingerprint(arrays):
        raise ValueError(
          f'{folder} was begun with other rows. Teachers of two tables would '
          'not be those of disjoint shards: resume with the same rows.'
        )
      return
    if os.path.lexists(folder):
      raise FileExistsError(
        f'{folder} exists: resume its training, load it, or remove it.'
      )
    self.randomness = randomness
    parent, name = os.path.split(os.path.abspath(folder))
    with atomic.folder_aside(parent, name) as aside:
      self.folder = pathlib.Path(aside)
      self._write(_SECRET, lambda file: file.write(randomness.secret))
      self._settings = {
        'version': __version__,
        'ensemble': settings,
        'table': randomness.table_fingerprint(arrays),
        'finished': False,
      }
      self._write_settings()
      os.rename(aside, folder)
    self.folder = pathlib.Path(folder)

  @staticmethod
  def settings_of(folder):
    path = pathlib.Path(folder) / _SETTINGS
    try:
      found = json.loads(path.read_text('utf-8'))
      return {k: found[k] for k in ('version', 'ensemble', 'table', 'finished')}
    except FileNotFoundError as error:
      raise FileNotFoundError(
        f'{folder} has no ensemble of teachers.'
      ) from error
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f'{path} is damaged: {error}') from error

  def try_saving(self, model):
    """Fails before training, where a teacher could not be saved after it."""
    if not isinstance(model, keras.Model):
      try:
        skops = _skops()
        unknown = skops.get_untrusted_types(data=skops.dumps(model))
        unknown = [name for name in unknown if not _is_known(name)]
        if unknown:
          raise ValueError(
            f'{type(model).__name__} has parts that skops does not load '
            f'without being told to trust them, {unknown}: give no folder.'
          )
      except (ImportError, ValueError):
        shutil.rmtree(self.folder)
        raise

  def save(self, t, teacher):
    path = f'{t:05}.npz'
    weights = teacher.model if isinstance(teacher.model, list) else []
    if teacher.model is not None and not weights:
      content = _skops().dumps(teacher.model)
      self._write(f'{t:05}.skops', lambda file: file.write(content))
    arrays = {f'weight_{i:03}': w for i, w in enumerate(weights)}
    self._write(
      path, lambda file: np.savez(file, facts=teacher.facts, **arrays)
    )

  def load(self, t):
    path = self.folder / f'{t:05}.npz'
    if not path.exists():
      return None
    try:
      with np.load(path, allow_pickle=False) as file:
        facts = file['facts']
        model = [file[name] for name in sorted(file.files) if name != 'facts']
    except (ValueError, KeyError, OSError, EOFError) as error:
      raise ValueError(f'{path} is damaged: {error}') from error
    saved = path.with_suffix('.skops')
    if saved.exists():
      content, skops = saved.read_bytes(), _skops()
      unknown = skops.get_untrusted_types(data=content)
      model = skops.loads(content, trusted=list(filter(_is_known, unknown)))
    return Teacher(model if model != [] else None, facts)

  def finish(self):
    self._settings = {**self.settings_of(self.folder), 'finished': True}
    self._write_settings()
    # It would tell which rows a teacher was trained on.
    (self.folder / _SECRET).unlink()

  def _write_settings(self):
    text = json.dumps(self._settings, indent=1)
    self._write(_SETTINGS, lambda file: file.write(text.encode()))

  def _write(self, name, write):
    atomic.write_file(self.folder / name, write, private=True)


def _each(train, tasks, num_processes):
  """Yields what `train` returns for each task, in several processes."""
  if check_integer('num_processes', num_processes) == 1:
    yield from map(train, tasks)
    return
  import joblib  # noqa: PLC0415 (slow to import)

  parallel = joblib.Parallel(num_processes, return_as='generator_unordered')
  yield from parallel(joblib.delayed(train)(task) for task in tasks)


def with_weights(model, teacher, x):
  """Returns the model of a teacher, ready to predict."""
  if not isinstance(teacher.model, list):
    return teacher.model
  if not model.built:
    model(x[:1])
  model.set_weights(teacher.model)
  return model


@contextlib.contextmanager
def _seeded(seed):
  """Seeds what models draw from, for the time of one training."""
  states = random.getstate(), np.random.get_state()
  keras.utils.set_random_seed(seed)
  try:
    yield
  finally:
    random.setstate(states[0])
    np.random.set_state(states[1])
    # TensorFlow does not tell its seed of before; a known one must not stay.
    tf.random.set_seed(int.from_bytes(os.urandom(4), 'big'))


def _seed_estimator(model, seed):
  if hasattr(model, 'get_params'):
    names = [
      n for n in model.get_params() if n.split('__')[-1] == 'random_state'
    ]
    model.set_params(**dict.fromkeys(names, seed))


def _is_known(name):
  # The folder is the user's own: trees are loaded, which skops asks about.
  return name.startswith('sklearn.')


def _skops():
  try:
    import skops.io  # noqa: PLC0415 (optional)
  except ImportError as error:
    raise ImportError(
      'scikit-learn teachers are saved by the package skops, without pickle: '
      'pip install "tfdpflows[pate]", or give no folder.'
    ) from error
  return skops.io
