"""An ensemble of models, each trained on its own shard of the private rows."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import warnings
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from tfdpflows import atomic
from tfdpflows._checks import Fixed, check_integer
from tfdpflows._keras import keras
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms.releases import as_numbers, differing_rows
from tfdpflows.pate import processes
from tfdpflows.pate.aggregators import Aggregator, count_votes
from tfdpflows.pate.partition import partition
from tfdpflows.pate.teacher_files import Store, Teacher, load, settings_of
from tfdpflows.progress import bar
from tfdpflows.randomness import Randomness

# Made-up rows of each class that a teacher is tried on.
_TRIAL_ROWS = 20
# Rows whose votes are taken at one time.
_CHUNK = 8192
# Callbacks of Keras that write files, or send what they learn elsewhere.
_WRITING = (
  'BackupAndRestore',
  'CSVLogger',
  'ModelCheckpoint',
  'RemoteMonitor',
  'TensorBoard',
)
_NOT_FITTED = 'The teachers are not trained yet: call fit.'


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

  Keras models are trained and asked in other processes, of which only weights
  and votes come back: how long a teacher was trained would else show in the
  numbers that TensorFlow gives to functions of models that are saved later, and
  in its log.

  Args:
    make_teacher: a function without arguments that returns a new model: a
      compiled Keras model with outputs `[batch, num_classes]`, or an estimator
      of scikit-learn. No two models may share anything: layers and optimizers
      of Keras that they share are refused, estimators are cloned. For Keras
      models the function is pickled (by cloudpickle, which lambdas can be) and
      called in another process: layers, and settings of Keras such as a policy
      of mixed precision, must be made inside of it. Layers that keep a state
      besides their weights, such as recurrent ones with stateful=True, are
      refused: one model answers with the weights of all teachers.
    num_teachers: number of teachers, and of shards.
    num_classes: number of classes; public.
    fit_options: dict of arguments of the model's `fit`, such as `epochs`,
      copied for each teacher. Callbacks that write files and `verbose` are
      refused: what is written is computed from private rows, and a file would
      carry something from one teacher to the next.
    randomness: `tfdpflows.randomness.Randomness` of the shards and of the
      teachers' seeds; by default one that nobody knows.
    example: public rows (x, y) to try a teacher on; by default rows are made up
      from shapes and dtypes.

  Raises:
    TypeError: if `make_teacher` is a model, and no function.
    ValueError: for numbers or `fit_options` that cannot be.

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
    # A Keras model is called with rows.
    if not callable(make_teacher) or isinstance(make_teacher, keras.Model):
      name = type(make_teacher).__name__
      raise TypeError(
        f'make_teacher is of type {name}; it must be a function without '
        'arguments that makes a new teacher each time, such as lambda: '
        f'{name}(...).'
      )
    self._make_teacher = make_teacher
    self._fit_options = dict(fit_options or {})
    self._randomness = Randomness() if randomness is None else randomness
    self._example = example
    self._teachers: Optional[list[Teacher]] = None
    self._private_rows: Optional[np.ndarray] = None
    self._shape: Optional[tuple[int, ...]] = None
    self._seeded = self._randomness.seeded
    self._has_units = False
    self._is_keras = False
    _check_options(self._fit_options)

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
      num_processes: how many teachers are trained at one time, each in another
        process; with 1, Keras models too are trained in another process.
      progress: whether to show a progress bar, in a terminal or notebook.

    Returns:
      The ensemble.

    Raises:
      ValueError: for rows or labels of another shape or dtype, without `units`
        for fewer rows than teachers, if a teacher cannot be trained on made-up
        rows, if `make_teacher` or `fit_options` cannot be pickled for another
        process, if the ensemble is trained already, or to resume with other
        rows or arguments.
      RuntimeError: if another process crashes or is killed.
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
    model = self._make_teacher()
    self._is_keras = isinstance(model, keras.Model)
    for _ in self._each('_try_two', [self._trial_rows(x, y)]):
      pass
    store = None
    if folder is not None:
      store = Store(folder, resume, model, self._randomness)
      self._randomness = store.randomness
    elif resume:
      raise ValueError('There is no folder to resume from; give one.')
    shards = partition(
      len(x), self.num_teachers, randomness=self._randomness, units=units
    )
    self._shape, self._has_units = x.shape[1:], units is not None
    self._seeded = self._randomness.seeded
    if self._seeded:
      logging.warning(
        'tfdpflows: shards come from a seed: not private against anyone who '
        'knows it. teachers.aggregator(...) tells the ledger.'
      )
    if store is not None:
      # The shards too: with other units, rows would go to other teachers.
      arrays = [part for part in (x, y, shards) if part is not None]
      store.begin(self._settings(), arrays)
    teachers: list = [None] * self.num_teachers
    if store is not None:
      teachers = [load(folder, t) for t in range(self.num_teachers)]
    left = [t for t, teacher in enumerate(teachers) if teacher is None]
    tasks = self._tasks(left, shards, x, y)
    shown = bar('teacher', self.num_teachers, progress)
    shown.update(self.num_teachers - len(left))
    try:
      for t, teacher in self._each('_train', tasks, num_processes):
        teachers[t] = teacher
        if store is not None:
          store.save(t, teacher)
        shown.update()
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
    ensemble._is_keras = isinstance(make_teacher(), keras.Model)
    settings = settings_of(folder)
    facts = ('shape', 'seeded', 'units')
    for name, value in json.loads(json.dumps(ensemble._settings())).items():
      if name not in facts and settings.get(name) != value:
        raise ValueError(
          f'{folder} has an ensemble with {name} {settings.get(name)}, and not '
          f'{value}: load it with the arguments of then.'
        )
    if not settings.get('finished'):
      raise ValueError(
        f'{folder} has the beginning of a training: fit with resume=True.'
      )
    found = [load(folder, t) for t in range(ensemble.num_teachers)]
    if None in found:
      raise ValueError(f'{folder} has no teacher {found.index(None)} any more.')
    ensemble._teachers = found
    ensemble._shape = tuple(settings['shape'])
    ensemble._seeded = settings['seeded']
    ensemble._has_units = settings['units']
    return ensemble

  def aggregator(
    self,
    kind: type[Aggregator],
    *args: Any,
    ledger: PrivacyLedger,
    **kwargs: Any,
  ) -> Aggregator:
    """Returns an aggregator of the votes of these teachers.

    It knows how many they are, whether their shards came from a seed (a
    ledger's statement then says so), and whether they are of `units`: then the
    ledger may have a `privacy_unit`, which these have to be.

    Args:
      kind: such as `pate.GNMax`.
      *args: its parameters.
      ledger: see the module `aggregators`.
      **kwargs: its parameters, and those of all aggregators.

    Raises:
      ValueError: before `fit`; or where `units` have shards and the ledger's
        neighbours replace a row, which may move it to the shard of another.

    #### Example

    >>> from sklearn.linear_model import LogisticRegression
    >>> from tfdpflows import accounting, pate
    >>> teachers = pate.TeacherEnsemble(LogisticRegression, 2, 2)
    >>> teachers = teachers.fit(
    ...   [[0.], [1.]] * 20, [0, 1] * 20, progress=False)
    >>> aggregator = teachers.aggregator(
    ...   pate.GNMax, sigma=1., ledger=accounting.PrivacyLedger())
    >>> aggregator.num_teachers
    2
    """
    if self._teachers is None:
      raise ValueError(_NOT_FITTED)
    if self._has_units and differing_rows(ledger.neighboring_relation) > 1:
      raise ValueError(
        'Shards follow units, and the neighbours of the ledger replace a row: '
        'with another unit it would change two teachers. Take a ledger with '
        'ADD_OR_REMOVE_ONE, where a neighbour is one unit more.'
      )
    return kind(
      *args,
      num_teachers=self.num_teachers,
      num_classes=self.num_classes,
      ledger=ledger,
      seeded=self._seeded,
      # What protects all rows of a unit protects each.
      privacy_unit=ledger.privacy_unit if self._has_units else None,
      **kwargs,
    )

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
      RuntimeError: if the process in which Keras models are asked crashes.
    """
    return count_votes(self._asked('_predictions', x), self.num_classes)

  def _asked(self, name, x):
    """Returns what a method makes of rows and teachers."""
    [found] = self._each(name, [(self._queries(x), self._teachers)])
    return found

  def _each(self, name, tasks, num_processes=1):
    """Yields what a method returns for each task, maybe of other processes."""
    num_processes = check_integer('num_processes', num_processes)
    if num_processes == 1 and not self._is_keras:
      return map(getattr(self, name), tasks)
    # No more than is needed there.
    bare = copy.copy(self)
    bare._teachers = bare._private_rows = bare._randomness = None
    return processes.each(getattr(bare, name), tasks, num_processes)

  def _predictions(self, task):
    """Returns the class that each teacher votes for, int32 `[t, queries]`."""
    x, teachers = task
    predictions = np.empty([self.num_teachers, len(x)], np.int32)
    for t, teacher, model in self._models(x, teachers):
      for start in range(0, len(x), _CHUNK):
        part = slice(start, start + _CHUNK)
        predictions[t, part] = self._vote(t, teacher, model, x[part])
    return predictions

  def _models(self, x, teachers):
    """Yields each teacher with its number and its model, ready to predict."""
    keras_model = None
    with _quiet():
      if any(isinstance(t.model, list) for t in teachers):
        keras_model = self._make_teacher()
        keras_model(np.array(x[:1]))
        _check_stateless(keras_model)
      for t, teacher in enumerate(teachers):
        # Where layers draw at random, each teacher has numbers of its own,
        # however many the teachers before it have drawn.
        with _seeded(t):
          if isinstance(teacher.model, list):
            keras_model.set_weights(teacher.model)
          # One with a single answer is asked too, for that reason.
          is_keras = teacher.model is None or isinstance(teacher.model, list)
          yield t, teacher, keras_model if is_keras else teacher.model

  def _queries(self, x):
    """Returns rows that may be asked for."""
    if self._teachers is None:
      raise ValueError(_NOT_FITTED)
    x = as_numbers(x)
    rows = self._private_rows
    if rows is not None and np.shares_memory(x, rows):
      raise ValueError(
        'x shares its memory with the private rows that the teachers were '
        'trained on. Queries must be public: which rows are asked for, and '
        'the rows themselves, would be known to all who see the answers.'
      )
    if x.ndim != len(self._shape) + 1 or x.shape[1:] != self._shape:
      shape = ', '.join(map(str, ('n', *self._shape)))
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
      if model is not None:
        with contextlib.suppress(Exception):
          self._outputs(model, x)
      return np.full(len(x), int(teacher.facts[0]))
    try:
      found = self._classes(self._outputs(model, x), teacher.facts)
      # One that learned to answer in another shape, from its shard, fails too.
      if found.shape != (len(x),):
        raise ValueError
    except KeyboardInterrupt:
      raise
    except BaseException:  # As in training.
      found = np.full(len(x), -1)
    valid = (found >= 0) & (found < self.num_classes)
    return np.where(valid, found, t % self.num_classes)

  def _outputs(self, model, x):
    """Returns what a model gives for rows: classes, or numbers for each."""
    # A model may change its input in place, as a scaler with copy=False does;
    # the next teacher, and the caller, must not see that.
    x = np.array(x)
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
      'fit_options': sorted(self._fit_options),
      'shape': list(self._shape or ()),
      'seeded': self._seeded,
      'units': self._has_units,
    }

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

  def _tasks(self, numbers, shards, x, y):
    """Yields what `_train` takes, for each of these teachers."""
    ends = np.cumsum(np.bincount(shards, minlength=self.num_teachers))
    shards = np.split(np.argsort(shards, kind='stable'), ends[:-1])
    for t in numbers:
      rows = shards[t]
      yield t, x[rows], None if y is None else y[rows], self._seed(t)

  def _train(self, task):
    """Trains one teacher; never fails for what is in the rows."""
    t, x, y, seed = task
    with _quiet(), _seeded(seed):
      # Once for each teacher, whatever its shard holds: a function may count.
      model = self._make_teacher()
      if y is not None:
        usable = (y >= 0) & (y < self.num_classes)
        x, y = x[usable], y[usable]
        classes = np.unique(y)
        if len(classes) == 1:
          return t, Teacher(None, classes.astype(np.float64))
      try:
        if not len(x):
          raise ValueError
        return t, self._fitted(model, x, y, seed)
      except KeyboardInterrupt:
        raise
      except BaseException:  # Whatever a row holds, training goes on.
        return t, Teacher(None, np.array([float(t % self.num_classes)]))

  def _fitted(self, model, x, y, seed):
    """Returns a teacher; raises what its model raises."""
    options = copy.deepcopy(self._fit_options)
    # Copies: x is looked at again, and public examples are the caller's.
    own_x, own_y = np.array(x), None if y is None else np.array(y)
    if isinstance(model, keras.Model):
      model.fit(own_x, own_y, **{'verbose': 0, **options})
      return Teacher(model.get_weights(), self._facts_of(model, x))
    model = _own(model)
    _seed_estimator(model, seed)
    model.fit(*([own_x] if y is None else [own_x, own_y]), **options)
    return Teacher(model, self._facts_of(model, x))

  def _trial_rows(self, x, y):
    """Returns rows that are made up, or public."""
    if self._example is not None:
      return [
        None if part is None else np.asarray(part) for part in self._example
      ]
    rng = np.random.default_rng(0)
    n = _TRIAL_ROWS * self.num_classes
    made = rng.normal(size=[n, *x.shape[1:]])
    if x.dtype.kind != 'f':
      made = np.abs(made).round()
    labels = None if y is None else np.arange(n) % self.num_classes
    return [made.astype(x.dtype), labels]

  def _try_two(self, rows):
    """Trains two teachers on made-up rows, where all may be seen."""
    models = [self._make_teacher() for _ in range(2)]
    if hasattr(models[0], 'get_params'):
      _check_silent(models[0].get_params())
    try:
      for model in models:
        with _seeded(0), warnings.catch_warnings():
          warnings.simplefilter('ignore')
          teacher = self._fitted(model, *rows, seed=0)
          is_keras = isinstance(model, keras.Model)
          ready = model if is_keras else teacher.model
          found = self._outputs(ready, rows[0])
    except Exception as error:
      raise ValueError(
        f'A teacher cannot be trained on rows made up from shapes and dtypes: '
        f'{error} If that is for the values of these rows, give public ones '
        'that it can work with: example=(x, y).'
      ) from error
    self._check_outputs(found, len(rows[0]))
    if not is_keras:
      return
    if _shared(*models):
      raise ValueError(
        'Two models of make_teacher share variables or an optimizer: what one '
        'teacher learns would be known to the next. Make all layers, and the '
        'optimizer, inside of make_teacher.'
      )
    _check_stateless(ready)
    # One model answers with the weights of all teachers.
    weights = [model.get_weights() for model in models]
    first, _, again = (
      self._outputs_of(ready, each, rows[0]) for each in (*weights, weights[0])
    )
    if not np.allclose(first, again, 1e-3, 1e-5, equal_nan=True):
      raise ValueError(
        'The model of make_teacher answers the same rows in another way when '
        'it is asked again with the same weights and seeds: what it keeps '
        'besides its weights would go from one teacher to the next. Keep '
        'nothing in layers that predicting changes.'
      )

  def _outputs_of(self, keras_model, weights, x):
    with _seeded(0), warnings.catch_warnings():
      warnings.simplefilter('ignore')
      keras_model.set_weights(weights)
      return self._outputs(keras_model, x)

  def _check_outputs(self, found, n):
    classes = found.shape == (n,) and found.dtype.kind in 'biu'
    if not (classes or found.shape == (n, self.num_classes)):
      raise ValueError(
        f'A teacher predicts {found.dtype} of shape {list(found.shape)} for '
        f'{n} rows; it must predict a class for each, or [{n}, '
        f'{self.num_classes}].'
      )


def _check_options(options):
  _check_silent(options)
  callbacks = options.get('callbacks') or []
  if hasattr(callbacks, 'callbacks'):
    raise ValueError(
      f'callbacks are a {type(callbacks).__name__}: give a list of callbacks, '
      'of which each teacher has copies.'
    )
  for callback in np.ravel(callbacks):
    # By name: Keras 2, its tf-keras and Keras 3 each have these classes.
    kinds = [kind.__name__ for kind in type(callback).__mro__]
    if any(name in kinds for name in _WRITING):
      raise ValueError(
        f'{kinds[0]} writes files or sends what it learns elsewhere, which '
        'would carry something from one teacher to the next. Leave it out of '
        'fit_options.'
      )


def _check_silent(options):
  for name, value in options.items():
    # Some libraries are silent for 0, others for -1.
    silent = isinstance(value, (int, np.integer)) and value <= 0
    if name.split('__')[-1] == 'verbose' and not silent:
      raise ValueError(
        f'{name} is {value!r}: what is printed in training is computed from '
        f'private rows. Set it to 0.'
      )
    if name.split('__')[-1] == 'memory' and value is not None:
      raise ValueError(
        f'{name} is {value!r}: what is cached in a folder is computed from '
        'private rows, and read again by other teachers. Set it to None.'
      )


def _shared(one, other):
  """Whether two Keras models share anything that training changes."""

  def parts(model):
    # A method of Keras's legacy optimizers, a property of others.
    held = model.optimizer.variables
    held = held() if callable(held) else held
    return {v.ref() for v in (*model.variables, *held)}

  return one.optimizer is other.optimizer or bool(parts(one) & parts(other))


def _check_stateless(model):
  """Raises a `ValueError` if a layer of Keras keeps a state between batches."""
  for layer in model.submodules:
    # All metrics are stateful, and no output depends on them.
    own = not isinstance(layer, (keras.Model, keras.metrics.Metric))
    if own and getattr(layer, 'stateful', False):
      raise ValueError(
        f'Layer {layer.name!r} of make_teacher is stateful: its state is no '
        'weight, and would go from one teacher to the next, and from one query '
        'to another. Make it with stateful=False.'
      )


def _own(model):
  """Returns an estimator that shares nothing with others."""
  if hasattr(model, 'get_params'):
    from sklearn.base import clone  # noqa: PLC0415 (slow to import)

    return clone(model)
  return copy.deepcopy(model)


@contextlib.contextmanager
def _quiet():
  """No warning, in Python: some depend on what rows there are."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel('CRITICAL')
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      yield
  finally:
    logger.setLevel(level)


@contextlib.contextmanager
def _seeded(seed):
  """Seeds what models draw from, for the time of one training."""
  states = random.getstate(), np.random.get_state()
  keras.utils.set_random_seed(seed)
  try:
    yield
  finally:
    # TensorFlow does not tell its seed of before; a known one must not stay.
    keras.utils.set_random_seed(int.from_bytes(os.urandom(4), 'big'))
    random.setstate(states[0])
    np.random.set_state(states[1])


def _seed_estimator(model, seed):
  if hasattr(model, 'get_params'):
    names = [
      n for n in model.get_params() if n.split('__')[-1] == 'random_state'
    ]
    model.set_params(**dict.fromkeys(names, seed))
