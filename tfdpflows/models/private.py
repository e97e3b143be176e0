"""An ordinary Keras model, trained privately."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
from absl import logging

from tfdpflows import _saved_model
from tfdpflows._autograph import converted
from tfdpflows._keras import keras
from tfdpflows.independence import Checker, keras_layers
from tfdpflows.independence.losses import RowLosses, left_out
from tfdpflows.models.base import PrivatelyTrained
from tfdpflows.optimizers import DPOptimizer
from tfdpflows.training.fit import is_dataset
from tfdpflows.training.steps import arrays

# Which of its metrics Keras takes for these depends on labels and outputs.
_ANY_METRICS = 'accuracy', 'acc', 'crossentropy', 'ce'
# What a subclass of Keras's model may define, and `fit` would call.
_TRAINING = 'train_step', 'compute_loss', 'make_train_function'
_OTHER = 'test_step', 'predict_step', 'compute_metrics'


class PrivateModel(PrivatelyTrained):
  """Trains a Keras model with per-example gradients in one backward pass.

  The model may be functional, Sequential or a subclass (without a `train_step`
  or `compute_loss` of its own), and is itself trained: save it, or predict with
  it. Layers with a rule (`gradients.register_rule`) take little more time than
  without privacy; gradients of others are computed example by example, slowly
  and with one log line for each variable.

  Under the optimizer of a `TrainingPlan`, `fit(x, y)` trains on batches that
  the plan draws and charges. The mean loss is shown only if the optimizer
  releases it with noise (`loss_bound`), and metrics are computed for
  `validation_data` only, which count as public. With another DP optimizer the
  model trains on the batches it is given, and nothing is charged.

  Every loss is taken for each example by itself, whatever its reduction.
  Regularizers of weights depend on nothing private, and add their gradient
  after the noise.

  With `augmentation_multiplicity` of the optimizer each example is repeated in
  the batch, and random layers (augmentation, dropout) draw for each copy: the
  gradients are averaged before the example is clipped, at no privacy cost.

  #### Formal guarantee

  An update is that of `optimizers.DPOptimizer`, provided that the loss of an
  example depends on no other example and that the layers store nothing of the
  rows. `independence.Checker` checks both before the first step. It refuses
  layers that violate them (batch normalization, losses and metrics added in
  `call`, stateful layers, half precision), and operations that fail for some
  rows or write rows down. The first is proven, for any weights and rows, where
  `checked_independence` is 'proven', and otherwise tested on probe rows, as
  the second is: that finds mistakes and proves nothing.

  A row with a label that is no class, or with a loss or gradient that is not
  finite, adds nothing, without a message. That there is an error in a step is
  outside of the guarantee; its text quotes no row.

  Args:
    model: a `tf.keras.Model`.
    example: public rows (x, y) to try the model on, at least two and no two of
      them alike; by default rows are made up from shapes and dtypes.
    examples_independent: `True` declares that no example changes the loss of
      another where this cannot be checked, because the model draws random
      numbers in a way that cannot be repeated, or where an operation takes
      examples together without a change to any. What runs on probe rows find is
      refused anyway.
    ema_momentum: if given, weights are averaged over steps with this momentum
      and `fit` ends with the averages.
    usable: a function of rows (x, y) that returns bool `[batch]`: whether a row
      can be learned from. The model gets zeros for all others, and they add
      nothing to an update. It is for layers and losses of your own that fail
      for some values, and must look at each row by itself.

  #### Example

  >>> import numpy as np, tensorflow as tf, tfdpflows
  >>> rng = np.random.default_rng(0)
  >>> x = rng.normal(size=[400, 5]).astype('float32')
  >>> y = (x[:, 0] > 0).astype('int64')
  >>> plan = tfdpflows.TrainingPlan.for_epsilon(
  ...   epsilon=2., delta=1e-4, num_examples=400, expected_batch_size=100,
  ...   epochs=1, clipping=tfdpflows.gradients.Flat(1.))
  >>> classifier = tf.keras.Sequential([
  ...   tf.keras.layers.Dense(8, 'relu'), tf.keras.layers.Dense(2)])
  >>> model = tfdpflows.PrivateModel(classifier)
  >>> model.compile(
  ...   optimizer=plan.optimizer('adam', learning_rate=1e-2),
  ...   loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  ...   metrics=['accuracy'])
  >>> history = model.fit(x, y, verbose=0)
  >>> model.predict(x[:3], verbose=0).shape
  (3, 2)
  """

  def __init__(
    self,
    model: keras.Model,
    example: Optional[tuple[Any, Any]] = None,
    *,
    examples_independent: bool = False,
    ema_momentum: Optional[float] = None,
    usable: Optional[Callable[[Any, Any], tf.Tensor]] = None,
    name: Optional[str] = None,
  ):
    if type(model).__name__ == 'KerasTensor':
      raise TypeError(
        'PrivateModel takes a Keras model, and this is the input of one: '
        'PrivateModel(tf.keras.Model(inputs, outputs)).'
      )
    if not isinstance(model, keras.Model):
      raise TypeError(
        f'PrivateModel trains models of tf_keras (Keras 2), and this is a '
        f'{type(model).__module__}.{type(model).__qualname__}. Build it with '
        'tf_keras, or with tf.keras after importing tfdpflows first.'
      )
    if isinstance(getattr(model, '_checker', None), Checker):
      raise ValueError(
        f'{model.name} is a {type(model).__name__} and trains privately by '
        'itself. Give PrivateModel the Keras model: that of a PrivateModel is '
        'its attribute `model`.'
      )
    _check_methods(model)
    super().__init__(name=name or f'private_{model.name}')
    self.model = model
    self._usable = usable

    def when_built():
      self.built = True  # For Keras, which asks before it reads weights.
      self._start_average(ema_momentum)

    if model.built:
      when_built()
    self._released = keras.metrics.Mean(name='loss')
    self._checker = Checker(
      self,
      self._losses_of,
      self._private_variables,
      [model],
      'The loss',
      example=example,
      independent=examples_independent,
      use_rules=True,
      when_built=when_built,
    )

  @property
  def metrics(self) -> list[keras.metrics.Metric]:
    return [m for m in super().metrics if m is not self._released]

  def reset_metrics(self) -> None:
    super().reset_metrics()
    self._released.reset_state()

  def call(self, inputs: Any, training: Optional[bool] = None) -> Any:
    return self.model(inputs, training=training)

  def compile(
    self,
    optimizer: DPOptimizer,
    loss: Any,
    metrics: Any = None,
    loss_weights: Any = None,
    **kwargs: Any,
  ) -> None:
    """As in Keras.

    Args:
      optimizer: of a plan, or a `DPOptimizer` by itself.
      loss: as in Keras; the reduction does not matter. Keras's sparse
        cross-entropy skips rows with labels that are no class; other losses
        have to give every row a number, or see `usable`.
      metrics: as in Keras; computed for validation data and by `evaluate`.
      loss_weights: as in Keras.
      **kwargs: of `keras.Model.compile`.

    Raises:
      ValueError: for another optimizer, without a loss, or for the name of a
        metric that Keras does not have.
    """
    if not isinstance(optimizer, DPOptimizer):
      given = type(optimizer).__name__
      if isinstance(optimizer, str):
        given = f'The optimizer {optimizer!r} of Keras'
      why = 'does not train privately'
      if hasattr(optimizer, '_was_dp_gradients_called'):
        given = 'An optimizer of TF Privacy'
        why = 'divides by the number of rows of a batch, which is private here'
      raise ValueError(
        f'{given} {why}. Make a plan, '
        'tfdpflows.TrainingPlan.for_epsilon(...), and take '
        "plan.optimizer('adam', learning_rate=...), or "
        'tfdpflows.optimizers.DPKerasAdam(...); without privacy, train the '
        'model itself.'
      )
    if loss is None:
      raise ValueError('PrivateModel needs a loss: compile(optimizer, loss).')
    for metric in tf.nest.flatten([metrics, kwargs.get('weighted_metrics')]):
      if (
        isinstance(metric, str)
        and metric.lower() not in _ANY_METRICS
        and not callable(keras.metrics.get(metric))
      ):
        raise ValueError(
          f"There is no metric {metric!r} in Keras; there are 'accuracy', and "
          'those of tf.keras.metrics.'
        )
    self._row_losses = RowLosses(loss, loss_weights)
    # Losses, metrics and targets may be given by these names, and logs have
    # them. Past Keras, which would track the list.
    vars(self)['output_names'] = getattr(self.model, 'output_names', None)
    super().compile(
      optimizer=optimizer,
      loss=loss,
      metrics=metrics,
      loss_weights=loss_weights,
      **kwargs,
    )

  def fit(
    self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
  ) -> keras.callbacks.History:
    """Trains, as `keras.Model.fit` does.

    Args:
      x: inputs, an array or a tuple, list or dict of arrays; or, under a plan,
        what `plan.dataset((x, y))` gave.
      y: targets, as `x`.
      *args: see `DensityModel.fit`, which has returns and errors too.
      **kwargs: see `DensityModel.fit`.
    """
    self._check_compiled()
    if self.optimizer.plan is None:
      return super().fit(x, y, *args, **kwargs)
    metrics = self.compiled_metrics and self.compiled_metrics._user_metrics
    if metrics and kwargs.get('validation_data') is None:
      logging.warning(
        'Metrics are not computed in training, since they would show private '
        'rows: the history has none. They are computed for validation_data, '
        'which count as public.'
      )
    if is_dataset(x):
      return super().fit(x, *args, **kwargs)
    x = arrays(_tuples(x), 'x')
    if y is None:
      raise ValueError(
        'y is missing: PrivateModel learns from pairs, fit(x, y).'
      )
    return super().fit((x, arrays(_tuples(y), 'y')), *args, **kwargs)

  saves_whole = True

  def save(self, *args: Any, **kwargs: Any) -> None:
    """Saves the Keras model that is trained, without the optimizer.

    `keras.models.load_model` gives that model. To go on with a training, see
    `TrainingPlan.resume`.

    Args:
      *args: of `keras.Model.save`.
      **kwargs: of `keras.Model.save`.
    """
    self.model.save(*args, **kwargs)
    path = args[0] if args else kwargs.get('filepath')
    if os.path.exists(os.path.join(path, 'saved_model.pb')):
      _saved_model.renumber(path)

  def summary(self, *args: Any, **kwargs: Any) -> None:
    """Prints the summary of the Keras model that is trained."""
    self.model.summary(*args, **kwargs)

  def get_config(self) -> dict[str, Any]:
    """Raises a `NotImplementedError`: the file would be of no use."""
    raise NotImplementedError(
      f'{self.name} cannot be made again from a configuration. Save what it '
      'trains, with model.save(path), or with keras.models.save_model of the '
      'Keras model itself, its attribute `model`.'
    )

  def _private_variables(self):
    return self.model.trainable_variables

  def _check_rows(self, rows, replays):
    if not (isinstance(rows, tuple) and len(rows) == 2):
      raise ValueError(
        'The rows of the dataset are no pairs of inputs and targets: it must '
        'come from plan.dataset((x, y)).'
      )
    super()._check_rows(rows, replays)

  def _named(self, rows):
    return dict(zip(('x', 'y'), rows))

  def train_step(self, data: Any) -> dict[str, tf.Tensor]:
    if self.optimizer.plan is None:
      rows = keras.utils.unpack_x_y_sample_weight(data)
      weights = step = None
    else:
      rows, weights, step = data
    x, y = rows[:2]
    if y is None:
      raise ValueError('PrivateModel learns from pairs: fit(x, y).')
    self._checker.check_in_step((x, y))
    if rows[-1] is None:
      rows = (x, y)
    penalties = keras_layers.penalties_of(self._checker.layers)
    penalties = _gradients(penalties, self._private_variables())
    logs = self._update(rows, weights, step, self._released, penalties)
    if self._average is not None:
      self._average.update()
    return logs

  def _losses_of(self, rows, training):
    """Returns losses and outputs of rows (x, y) or (x, y, weights of rows)."""
    (x, y), usable = rows[:2], None
    if self._usable is not None:
      usable = tf.convert_to_tensor(converted(self._usable)(x, y))
      if usable.shape.rank != 1 or usable.dtype != tf.bool:
        raise ValueError(
          f'`usable` gives {usable.dtype.name} of shape {usable.shape}; it '
          'must give one bool for each row, [batch].'
        )
      x, y = tf.nest.map_structure(lambda rows: _zeroed(rows, usable), (x, y))
    outputs = converted(self.model)(x, training=training)
    names = getattr(self.model, 'output_names', None)
    losses = self._row_losses(y, outputs, names)
    if losses.shape.rank != 1:
      raise ValueError(
        f'The loss has shape {losses.shape}; it must be one per example.'
      )
    if usable is not None:
      losses = left_out(losses, usable)
    if len(rows) > 2:
      losses *= tf.cast(rows[2], losses.dtype)
    return losses, outputs


def _check_methods(model):
  """Refuses a model with a training of its own, which would not be called."""

  def own(names):
    return [
      name
      for name in names
      if name in vars(model)
      or getattr(type(model), name) is not getattr(keras.Model, name)
    ]

  for name in own(_TRAINING):
    raise ValueError(
      f'{model.name} has a {name} of its own, which PrivateModel never calls: '
      'it computes a loss for each row from the outputs of call. Give the loss '
      'to compile(optimizer, loss), put what else there is into layers or '
      f'call, and drop {name}.'
    )
  for name in own(_OTHER):
    logging.warning(
      '%s has a %s of its own, which PrivateModel does not call: %s',
      model.name,
      name,
      'give loss and metrics to compile, or evaluate and predict with the '
      'model itself.',
    )


def _zeroed(x, usable):
  """Returns rows with zeros in place of those that are not usable."""
  x = tf.convert_to_tensor(x)
  usable = tf.reshape(usable, [-1] + [1] * (x.shape.rank - 1))
  return tf.where(usable, x, tf.zeros_like(x))


def _tuples(x):
  """Lists of arrays are several inputs to Keras, and one array to a plan."""
  if isinstance(x, list) and any(getattr(part, 'shape', ()) for part in x):
    return tuple(x)
  return x


def _gradients(penalties, variables):
  """Returns the gradient of all penalties, `None` where there is none."""
  if not penalties:
    return [None] * len(variables)
  with tf.GradientTape() as tape:
    total = tf.add_n([penalty() for penalty in penalties])
  found = tape.gradient(total, variables)
  return [None if g is None else tf.convert_to_tensor(g) for g in found]
