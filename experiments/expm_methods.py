"""Three ways to train a classifier of PhysioNet: SGD, DP-SGD and ExpM+NF.

What the binaries `expm_auc`, `expm_timing` and `expm_bayes` share: the data of
a task, the models, one function for each method, and the score.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time

import numpy as np
import tensorflow as tf
from scipy import stats

import tfdpflows
from experiments import physionet
from tfdpflows import expm, gradients
from tfdpflows._keras import keras
from tfdpflows.expm import functional
from tfdpflows.randomness import Randomness

DELTA = 1e-5
CLIP = 1.0
EPSILONS = (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)
MODELS = ('lr', 'lr_summary', 'gru_d')
METHODS = ('sgd', 'dp_sgd', 'expm_nf')
_SMOKE_ROWS = 300
# Rows that are scored at once, and numbers that a state of them may take.
_SCORED_ROWS = 1000
_SCORED_AT_ONCE = 20


@dataclasses.dataclass
class Task:
  """Rows of a task, as a model takes them.

  Attributes:
    task: one of `physionet.TASKS`.
    model: one of `MODELS`.
    parts: dict of `(x, y)`: 'train' and 'validation', which are parts of
      'all', and 'test'.
  """

  task: str
  model: str
  parts: dict[str, tuple[np.ndarray, np.ndarray]]

  def functional(self, units=10):
    """Returns the model as a function of its parameters."""
    x, _ = self.parts['train']
    share = physionet.BASE_RATES[self.task]
    offset = math.log(share / (1 - share))
    if self.model == 'gru_d':
      return _grud(x.shape[3], x.shape[1], units, offset)
    return _logistic_regression(x.shape[1], offset)


# The same objects again, so that what is compiled for them is found again.
_grud = functools.lru_cache(functional.GRUD)
_logistic_regression = functools.lru_cache(functional.LogisticRegression)


def load(task, model, smoke=False):
  """Loads a `Task`: set a to learn from, of which a fifth validates, b to test.

  Args:
    task: one of `physionet.TASKS`.
    model: one of `MODELS`.
    smoke: whether to take few stays that are made up.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  parts = {}
  for number, part in enumerate('ab'):
    stays = _stays(part, number, smoke)
    x, y = stays.of_task(task)
    if model == 'lr':
      x = physionet.flat(x, stays.num_series)
    elif model == 'lr_summary':
      x = physionet.summary(x, stays.num_series)
    parts[part] = x, y
  x, y = parts['a']
  train, validation = physionet.split(y)
  return Task(
    task,
    model,
    {
      'train': (x[train], y[train]),
      'validation': (x[validation], y[validation]),
      'all': (x, y),
      'test': parts['b'],
    },
  )


@functools.lru_cache(maxsize=2)
def _stays(part, number, smoke):
  if smoke:
    return physionet.made(_SMOKE_ROWS, seed=number, hours=4)
  return physionet.load(part)


@dataclasses.dataclass
class Fit:
  """A trained classifier.

  Attributes:
    parameters: function of a number, returns that many vectors `[n, P]`; one
      and the same where the method trains one model.
    seconds: dict: 'calibration' of the noise, 'first_step' with
      its tracing, 'training' (the other steps, or all of them).
    steps: number of steps.
    statement: dict of what is known of the privacy, JSON-able.
    log_target: function of vectors `[n, P]`, returns `[n]`, the log density
      that a flow approximates; `None` for other methods.
  """

  parameters: object
  seconds: dict[str, float]
  steps: int
  statement: dict
  log_target: object = None


def fit(method, model, rows, settings, epsilon=None, seed=0):
  """Trains one classifier, or one flow over classifiers.

  Args:
    method: one of `METHODS`.
    model: a functional model.
    rows: `(x, y)`.
    settings: dict as in `candidates`.
    epsilon: budget of DP-SGD, parameter of ExpM+NF; `None` for SGD.
    seed: of everything.

  Returns:
    A `Fit`.
  """
  keras.utils.set_random_seed(seed)
  keras.backend.clear_session()
  if method == 'sgd':
    return _fit_sgd(model, rows, settings)
  if method == 'dp_sgd':
    return _fit_dp_sgd(model, rows, settings, epsilon, seed)
  return _fit_flow(model, rows, settings, epsilon, seed)


def _fit_sgd(model, rows, settings):
  x, y = rows
  network = model.keras_model(settings.get('dropout', 0.0))
  optimizer = keras.optimizers.Adam(
    settings['learning_rate'], weight_decay=settings['weight_decay'] or None
  )
  optimizer.exclude_from_weight_decay(var_names=['bias'])
  network.compile(optimizer, LOSSES[settings['loss']]())
  clock = _Clock()
  network.fit(
    x,
    y[:, None],
    batch_size=settings['batch_size'],
    epochs=settings['epochs'],
    verbose=0,
    callbacks=[clock],
  )
  vector = model.to_vector(network)
  return Fit(
    lambda count: vector[None], clock.seconds(), clock.steps, {'private': False}
  )


def _fit_dp_sgd(model, rows, settings, epsilon, seed):
  x, y = rows
  start = time.perf_counter()
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=epsilon,
    delta=DELTA,
    num_examples=len(x),
    expected_batch_size=settings['batch_size'],
    epochs=settings['epochs'],
    clipping=gradients.Flat(CLIP),
    seed=seed,
  )
  calibration = time.perf_counter() - start
  network = model.keras_model()
  private = tfdpflows.PrivateModel(network)
  private.compile(
    plan.optimizer('adam', learning_rate=settings['learning_rate']),
    LOSSES[settings['loss']](),
  )
  clock = _Clock()
  private.fit(x, y[:, None], verbose=0, callbacks=[clock])
  vector = model.to_vector(network)
  return Fit(
    lambda count: vector[None],
    {'calibration': calibration, **clock.seconds()},
    clock.steps,
    {
      'private': 'proven, up to the choice of the settings',
      'noise_multiplier': plan.noise_multiplier,
      'spent': plan.epsilon(),
      'delta': DELTA,
    },
  )


def _fit_flow(model, rows, settings, epsilon, seed):
  x, y = rows
  utility = expm.l2_utility(model, x, y)
  mechanism = expm.ExponentialMechanism(
    utility,
    sensitivity=1.0,
    epsilon=epsilon,
    l2=settings['l2_over_epsilon'] * epsilon,
  )
  sampler = expm.NoProofFlowSampler(
    mechanism,
    layers=settings['layers'],
    units=settings['sylvester_units'],
    base_scale=settings['base_scale'],
    randomness=Randomness(seed),
  )
  fit_some = functools.partial(
    sampler.fit,
    num_samples=settings['num_samples'],
    batch_size=settings['batch_size'],
    learning_rate=settings['learning_rate'],
    show_progress=False,
  )
  start = time.perf_counter()
  fit_some(steps=settings['steps'])
  seconds = {'training': time.perf_counter() - start}
  return Fit(
    functools.partial(_samples, sampler),
    seconds,
    settings['steps'],
    {'private': 'not proven', 'epsilon of the target': epsilon},
    mechanism.unnormalized_log_prob,
  )


def _samples(sampler, count):
  # In a ledger without a budget, which lists them: nothing is released here.
  return sampler.sample(count, ledger=tfdpflows.accounting.PrivacyLedger())


class _SquaredError(keras.losses.Loss):
  """The squared error of the probability, given the logit."""

  def call(self, y_true, y_pred):
    return tf.reduce_mean((y_true - tf.sigmoid(y_pred)) ** 2, axis=-1)


LOSSES = {
  'bce': lambda: keras.losses.BinaryCrossentropy(from_logits=True),
  'l2': _SquaredError,
}


class _Clock(keras.callbacks.Callback):
  """Takes the time of the first step, with its tracing, and of the others."""

  def __init__(self):
    super().__init__()
    self._begin = time.perf_counter()
    self._first = self._last = self._begin
    self.steps = 0

  def on_train_batch_end(self, batch, logs=None):
    self._last = time.perf_counter()
    if not self.steps:
      self._first = self._last
    self.steps += 1

  def seconds(self):
    return {
      'first_step': self._first - self._begin,
      'training': self._last - self._first,
    }


def candidates(method, model, count, seed=0):
  """Returns settings that are tried on the validation rows.

  Args:
    method: one of `METHODS`.
    model: one of `MODELS`.
    count: how many are drawn from the grid, without repetition.
    seed: of the draw.

  #### Example

  >>> sorted(candidates('sgd', 'lr', 3)[0])
  ['batch_size', 'epochs', 'learning_rate', 'loss', 'weight_decay']
  """
  grid = dict(_GRIDS[method])
  if model == 'gru_d':
    grid.update(_GRIDS_OF_GRU_D[method])
  sizes = [len(values) for values in grid.values()]
  rng = np.random.default_rng(seed)
  total = int(np.prod(sizes))
  chosen = rng.choice(total, min(count, total), replace=False)
  found = []
  for places in zip(*np.unravel_index(chosen, sizes)):
    found.append({k: v[i] for (k, v), i in zip(grid.items(), places)})
  return found


_GRIDS = {
  'sgd': {
    'loss': ('bce', 'l2'),
    'learning_rate': (3e-3, 1e-2, 3e-2),
    'weight_decay': (0.0, 1.0, 5.0),
    'epochs': (5, 15, 40),
    'batch_size': (64, 256),
  },
  'dp_sgd': {
    'loss': ('bce', 'l2'),
    'learning_rate': (3e-3, 1e-2, 5e-2),
    'epochs': (10, 20, 60),
    'batch_size': (256, 512, 1024),
  },
  'expm_nf': {
    'base_scale': (1e-3, 1e-2, 1e-1),
    'l2_over_epsilon': (0.1, 1.0, 10.0),
    'layers': (1, 2, 4),
    'sylvester_units': (None, 4),
    'steps': (500, 2000),
    'num_samples': (30,),
    'batch_size': (256, 1024),
    'learning_rate': (3e-4, 1e-3, 3e-3),
  },
}
_GRIDS_OF_GRU_D = {
  'sgd': {
    'learning_rate': (3e-3, 1e-2),
    'weight_decay': (0.0,),
    'epochs': (5, 10, 15),
    'batch_size': (64, 128),
    'units': (10, 32),
    'dropout': (0.0, 0.3),
  },
  'dp_sgd': {
    'learning_rate': (3e-3, 1e-2, 3e-2),
    'units': (10, 32),
  },
  'expm_nf': {
    'steps': (300,),
    'num_samples': (10,),
    'batch_size': (128,),
    'units': (10,),
  },
}


def aucs(model, parameters, x, y):
  """Returns the area under the ROC curve of every model.

  Args:
    model: a functional model.
    parameters: `[n, P]`.
    x: rows.
    y: `[rows]`, 0 or 1.

  Returns:
    `[n]`; ties count one half.
  """
  return auc(probabilities(model, parameters, x, logits=True), y)


def auc(scores, y):
  """Returns the area under the ROC curve of scores `[n, rows]`, `[n]`.

  #### Example

  >>> auc(np.array([[1., 2., 3., 3.]]), np.array([0, 0, 1, 0])).tolist()
  [0.8333333333333334]
  """
  positive = np.asarray(y) > 0.5
  ranks = stats.rankdata(scores, axis=1)[:, positive].sum(1)
  ones, zeros = positive.sum(), (~positive).sum()
  return (ranks - ones * (ones + 1) / 2) / (ones * zeros)


def probabilities(model, parameters, x, logits=False):
  """Returns `[n, rows]`: probabilities (or logits) of class 1, float32."""
  parameters = np.asarray(parameters, np.float32)
  apply = _compiled(model, logits)
  found = np.empty([len(parameters), len(x)], np.float32)
  for i in range(0, len(parameters), _SCORED_AT_ONCE):
    for j in range(0, len(x), _SCORED_ROWS):
      block = np.s_[i : i + _SCORED_AT_ONCE], np.s_[j : j + _SCORED_ROWS]
      found[block] = apply(parameters[block[0]], x[block[1]])
  return found


@functools.lru_cache(maxsize=4)
def _compiled(model, logits):
  return tf.function(
    model.logits if logits else model,
    input_signature=[
      tf.TensorSpec([None, model.num_parameters]),
      tf.TensorSpec([None, *model.row_shape]),
    ],
  )
