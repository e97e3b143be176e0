"""How a Keras model trains on the batches that a plan draws."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import string
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tfdpflows._keras import keras
from tfdpflows.optimizers.noise import current_strategy
from tfdpflows.progress import is_logged
from tfdpflows.training.progress import EpsilonLogger, Progress
from tfdpflows.training.steps import arrays

DRAWN = 'The optimizer carries a plan, which draws the batches: '
_REFUSED = (
  *('y', 'batch_size', 'shuffle', 'validation_split'),
  *('steps_per_epoch', 'initial_epoch'),
)
_WEIGHTS = ('class_weight', 'sample_weight')
# The attribute of variables that were trained under a plan in this process.
_TRAINED = '_trained_under_a_plan'


def fit(
  model: keras.Model,
  data: Any,
  check: Callable,
  *args: Any,
  epochs: int | None = None,
  **kwargs: Any,
) -> keras.callbacks.History:
  """Trains a model under the plan that its optimizer carries.

  Data that the plan did not draw, and arguments that would draw other batches,
  are refused. Callbacks see the number of an epoch of the plan, not of this
  call.

  Args:
    model: compiled with the plan's optimizer.
    data: arrays, or what `plan.dataset` gave for them.
    check: a function of `data`, or of the `tf.TensorSpec`s of a dataset's rows,
      and of whether steps are replayed; called before anything is charged,
      raises an error for data that the model cannot train on.
    *args: refused.
    epochs: for how many of the plan's epochs to train; all that are left by
      default.
    **kwargs: of `keras.Model.fit`.

  Returns:
    Keras's `History`.
  """
  steps = model.optimizer.noise_source.steps
  strategy = model.distribute_strategy
  with strategy.scope():
    current_strategy()  # Refuses those that are not supported.
  if not is_dataset(data):
    data = arrays(data)
    check(data, steps.replays)
  elif steps.drew(data):
    check(data.origin.signature, steps.replays)
  given = [name for name in _REFUSED if kwargs.get(name) is not None]
  if args or given:
    given = ', '.join(sorted(given)) or (
      'positional arguments after the data (what a density is conditioned on '
      'is a part of it: fit((x, c)))'
    )
    raise ValueError(f'{DRAWN}drop {given}.')
  given = [name for name in _WEIGHTS if kwargs.pop(name, None) is not None]
  if given:
    raise ValueError(
      f'{given[0]} multiplies gradients after they are clipped: a row of '
      'weight 2 would move the sum by twice the bound that is charged. Put '
      'weights into the loss, where clipping comes after them: a function of '
      'labels and predictions that returns the weighted loss of each row.'
    )
  callbacks = tf.nest.flatten(kwargs.pop('callbacks', None) or [])
  validation = kwargs.pop('validation_data', None)
  if validation is not None:
    # Keras asks whether an array, or a table, is true.
    alone = hasattr(validation, '__array__')
    kwargs['validation_data'] = (validation,) if alone else validation
  _check_callbacks(callbacks, model, 'validation_data' in kwargs)
  if strategy.num_replicas_in_sync > 1 and model.jit_compile:
    raise ValueError(
      'XLA cannot compile an update of several replicas together: drop '
      'jit_compile=True, or train outside of the tf.distribute strategy.'
    )
  if model.optimizer.loss_bound is None and model._steps_per_execution > 1:
    raise ValueError(
      'Keras needs a training loss for steps_per_execution: give '
      'plan.optimizer(..., loss_bound=...), which releases it with noise, or '
      'compile with steps_per_execution=1.'
    )
  if model.optimizer.loss_bound is None and kwargs.get('verbose') != 0:
    logging.info(
      'The training loss is not shown: it is computed from private rows. '
      'plan.optimizer(..., loss_bound=...) releases it with noise.'
    )
  if is_logged() and not any(isinstance(c, Progress) for c in callbacks):
    callbacks.append(Progress(steps.plan, lines_only=True))
  with (
    strategy.scope(),
    steps.train(model.optimizer, bool(model.jit_compile)),
    _tried_validation(model, kwargs) as names,
  ):
    _check_validation_names(callbacks, names)
    dataset = _batches(steps, data, epochs, strategy, model.jit_compile)
    steps.train_on(dataset)
    _note_training(model, steps.plan)
    per_epoch = steps.plan.sampler.steps_per_epoch
    try:
      return keras.Model.fit(
        model,
        dataset,
        epochs=-(-dataset.origin.stop // per_epoch),
        steps_per_epoch=per_epoch,
        callbacks=[*callbacks, _Begin(steps)],
        **kwargs,
      )
    except tf.errors.OpError:
      if not dataset.origin.failures:
        raise
      failure = dataset.origin.failures[-1]
    # Outside of the `except`: what TensorFlow made of it is no context.
    raise failure


def _batches(steps, data, epochs, strategy, compiled):
  """Returns the plan's dataset of arrays, or `data` if it is one."""
  if not is_dataset(data):
    number = steps.plan.remaining_steps
    if epochs is not None:
      left, number = number, epochs * steps.plan.sampler.steps_per_epoch
      if 0 < left < number:
        raise ValueError(
          f'epochs={epochs} asks for {number} steps, and the plan has {left} '
          f'of {steps.plan.steps} left: drop epochs, which trains for all that '
          'are left. A longer training needs a new plan, with its own noise.'
        )
    return steps.dataset(data, number, few_sizes=bool(compiled))
  if not steps.drew(data):
    raise ValueError(
      'The optimizer carries a plan, which did not draw this dataset: its '
      'privacy cannot be accounted for. Pass the arrays themselves, or the '
      'unchanged result of plan.dataset(x), of a PrivateModel '
      'plan.dataset((x, y)).'
    )
  origin = data.origin
  number = origin.stop - steps.next
  per_epoch = steps.plan.sampler.steps_per_epoch
  if epochs is not None and epochs * per_epoch != number:
    raise ValueError(
      f'The dataset ends after {number} more steps, whatever epochs is: drop '
      'epochs, or pass the arrays themselves, of which fit draws as many '
      'batches as epochs asks for.'
    )
  replicas = {s.num_replicas_in_sync for s in (origin.strategy, strategy)}
  if origin.strategy is not strategy and replicas != {1}:
    raise ValueError(
      'The dataset was made outside of the tf.distribute strategy of the '
      'model, whose replicas would share its rows. Call plan.dataset(x) '
      'inside of strategy.scope(), or pass the array itself.'
    )
  if origin.stop <= steps.next:
    raise ValueError(
      f'All batches of this dataset were drawn: it ends at step {origin.stop}, '
      f'and the plan is at step {steps.next}. Pass the array itself.'
    )
  return data


def _note_training(model, plan):
  """Warns of weights of another training, which this ledger does not have."""
  variables = model._private_variables()
  trained = any(getattr(v, _TRAINED, False) for v in variables)
  others = {entry.label for entry in plan.ledger.entries} - {plan.label}
  if trained and not others and not plan.step:
    logging.warning(
      'The weights of %s were trained under another plan before. The ledger of '
      'this plan does not have that training, and its statement leaves it out: '
      'if that was on the same rows, the weights cost both. Then make this '
      'plan with spent=earlier.ledger.committed_event, a budget for both and '
      "label='another'; or start from new weights.",
      model.name,
    )
  for variable in variables:
    setattr(variable, _TRAINED, True)


def _check_callbacks(callbacks, model, validated):
  """Refuses callbacks that would fail, or never act, after the charge."""
  logged = set()
  ours = EpsilonLogger.names(model.optimizer.plan)
  for callback in callbacks:
    name = type(callback).__name__
    if isinstance(callback, EpsilonLogger):
      logged.update(ours)
    if isinstance(callback, keras.callbacks.TensorBoard) and (
      importlib.util.find_spec('tensorboard') is None
    ):
      raise ModuleNotFoundError(
        f"{name} needs TensorBoard: pip install 'tfdpflows[tensorboard]'."
      )
    if getattr(callback, '_should_trace', False):
      raise ValueError(
        f'{name}(profile_batch=...) would write down how many rows each batch '
        'has, which is private: set profile_batch=0, and profile a training on '
        'rows that are made up.'
      )
    checkpoint = isinstance(callback, keras.callbacks.ModelCheckpoint)
    if checkpoint and not callback.save_weights_only and not model.saves_whole:
      raise ValueError(
        f'{name} would save the whole model, which a {type(model).__name__} '
        'has no file for: set save_weights_only=True.'
      )
    shown = {'lr', *logged}
    if model.optimizer.loss_bound is not None:
      shown.add('loss')
    for field in _fields(callback):
      validation = field.startswith('val_')
      if (validation and validated) or field in shown:
        continue
      if all(map(_is_known, callbacks)):
        raise ValueError(
          f'{name}({str(callback.filepath)!r}) could not name its file: there '
          f'is no {field} in the logs of an epoch, since neither loss nor '
          'metrics of training rows are shown. Name it by {epoch}, or by what '
          'validation_data, which count as public, give: {val_loss:.2f}.'
        )
    if checkpoint and not callback.save_best_only:
      continue
    monitor = getattr(callback, 'monitor', None)
    if monitor == 'loss' and model.optimizer.loss_bound is None:
      raise ValueError(
        f"{name}(monitor='loss') would never act: the training loss is "
        'computed from private rows, and is not shown. plan.optimizer(..., '
        'loss_bound=...) releases it with noise.'
      )
    if str(monitor).startswith('val_') and not validated:
      raise ValueError(
        f'{name}(monitor={monitor!r}) would never act without validation_data. '
        "Give rows that are public, or set monitor='loss' and release the loss "
        'with noise: plan.optimizer(..., loss_bound=...).'
      )
    if monitor == 'epsilon' and monitor not in ours:
      raise ValueError(
        f'{name}(monitor={monitor!r}) would never act: by the accountant '
        f'{model.optimizer.plan.accountant!r} it is logged as {ours[0]!r}.'
      )
    if monitor in ours and monitor not in logged:
      raise ValueError(
        f'{name}(monitor={monitor!r}) would never act: put a '
        'tfdpflows.training.EpsilonLogger() before it in the list of callbacks.'
      )
    if (
      isinstance(monitor, str)
      and not monitor.startswith('val_')
      and monitor not in {'loss', *shown}
      and all(map(_is_known, callbacks))
    ):
      raise ValueError(
        f'{name}(monitor={monitor!r}) would never act: metrics of training '
        'rows are not computed, since they would show private rows. Give '
        f"validation_data, which count as public, and monitor='val_{monitor}'."
      )


def _check_validation_names(callbacks, names):
  """Refuses callbacks that would watch what validation does not give."""
  if names is None or not all(map(_is_known, callbacks)):
    return
  for callback in callbacks:
    for field in _fields(callback):
      if field.startswith('val_') and field not in names:
        raise ValueError(
          f'{type(callback).__name__}({str(callback.filepath)!r}) could not '
          f'name its file: validation gives {", ".join(names)}. Take one of '
          'these, or compile with the metric.'
        )
    if not getattr(callback, 'save_best_only', True):
      continue  # It saves whatever it is to monitor.
    monitor = getattr(callback, 'monitor', None)
    if str(monitor).startswith('val_') and monitor not in names:
      raise ValueError(
        f'{type(callback).__name__}(monitor={monitor!r}) would never act: '
        f'validation gives {", ".join(names)}. Take one of these, or compile '
        'with the metric.'
      )


def _fields(callback):
  """Returns what a checkpoint takes from the logs to name its file."""
  if not isinstance(callback, keras.callbacks.ModelCheckpoint):
    return []
  parts = string.Formatter().parse(str(callback.filepath))
  names = [field for _, field, _, _ in parts if field]
  return [name for name in names if name not in ('epoch', 'batch')]


@contextlib.contextmanager
def _tried_validation(model: keras.Model, kwargs: dict) -> Iterator[Any]:
  """Prepares `validation_data`, and traces the step that evaluates them.

  Keras would do so after the first epoch, which is charged by then. The step is
  not run: no metric changes, and no random number is drawn. What is prepared is
  what Keras takes then, so that an iterator loses nothing.

  Args:
    model: the model, built.
    kwargs: of `fit`.

  Yields:
    The names that validation adds to the logs; `None` if they are not known.

  Raises:
    ValueError: for data that the model cannot be evaluated on, or a metric that
      is not there.
  """
  if 'validation_data' not in kwargs:
    yield None
    return
  try:
    try:
      names = _validation_names(model, kwargs)
    except Exception as error:
      model.test_function = None  # Half of it is traced.
      raise ValueError(
        f'The model cannot be evaluated on validation_data: {_said(error)} '
        'Give rows of the shapes and dtypes that it trains on, as arrays or in '
        'a tf.data.Dataset of batches. This fit has charged nothing.'
      ) from error
    yield names
  finally:
    # After an error Keras would take these data in the next fit.
    if hasattr(model, '_eval_data_handler'):
      del model._eval_data_handler


def _validation_names(model, kwargs):
  x, y, weights = keras.utils.unpack_x_y_sample_weight(
    kwargs['validation_data']
  )
  given = {
    theirs: kwargs[ours]
    for theirs, ours in (
      ('batch_size', 'validation_batch_size'),
      ('steps_per_epoch', 'validation_steps'),
      *((name, name) for name in ('max_queue_size', 'workers')),
      ('use_multiprocessing', 'use_multiprocessing'),
    )
    if ours in kwargs
  }
  # Where Keras 2 is differs between versions of TensorFlow.
  data_adapter = sys.modules[keras.Model.__module__].data_adapter
  handler = data_adapter.get_data_handler(
    x=x,
    y=y,
    sample_weight=weights,
    model=model,
    steps_per_execution=model._steps_per_execution,
    **given,
  )
  model._eval_data_handler = handler
  if model.run_eagerly:
    return None
  batches = handler._dataset
  if isinstance(batches, tf.data.Dataset):
    # Keras runs this graph later.
    step = model.make_test_function()
    spec = tf.data.IteratorSpec(batches.element_spec)
  else:
    run = model.distribute_strategy.run
    step = tf.function(lambda batch: run(model.test_step, args=(batch,)))
    spec = batches.element_spec
  logs = step.get_concrete_function(spec).structured_outputs
  return [f'val_{name}' for name in logs] if isinstance(logs, dict) else None


def _said(error):
  """Returns what an error says, without the lines of the program."""
  lines = str(error).strip().splitlines()
  for i in reversed(range(len(lines))):
    found = re.match(r'\s+\w*(Error|Exception): (.*)', lines[i])
    if found:
      lines = [found.group(2), *lines[i + 1 :]]
      break
  said = ' '.join(line.strip() for line in lines if line.strip())
  # Keras says by which layers it came.
  said = re.sub(
    r'Exception encountered when calling layer [^.]*\)\. ', '', said
  )
  said = said.partition(' Call arguments received')[0]
  return said if said.endswith('.') else f'{said}.'


def _is_known(callback):
  """Whether a callback is of Keras, which adds nothing to watch, or ours."""
  module = type(callback).__module__
  return module.startswith(('keras.', 'tf_keras.', 'tfdpflows.'))


def is_dataset(data: Any) -> bool:
  """Whether `data` is a dataset, not arrays."""
  return isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset))


class _Begin(keras.callbacks.Callback):
  """Comes last, since others may restore the optimizer when a fit begins."""

  def __init__(self, steps):
    super().__init__()
    self._steps = steps

  def on_train_begin(self, logs=None):
    self._steps.begin()
