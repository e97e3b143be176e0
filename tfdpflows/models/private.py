"""An ordinary Keras model, trained privately."""

from __future__ import annotations

import contextlib
from concurrent import futures

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._keras import keras
from tfdpflows.models import checks
from tfdpflows.models.planned import PlannedModel
from tfdpflows.models.row_losses import RowLosses
from tfdpflows.optimizers import DPOptimizer


class PrivateModel(PlannedModel):
  """Trains a Keras model with per-example gradients in one backward pass.

  The model may be functional, Sequential or a subclass, and is itself what is
  trained: keep it, save it, predict with it. Layers that have a rule
  (`gradients.register_rule`) cost little more than without privacy; variables
  of others come from `tape.jacobian`, slowly and with one log line each.

  Under the optimizer of a `TrainingPlan`, `fit(x, y)` trains on batches that
  the plan draws and charges for. Losses and metrics of private batches are not
  shown: the mean loss is where the optimizer releases it with noise
  (`loss_bound`), metrics are those of `validation_data`, which count as
  public. With another DP optimizer the model trains on what it is given, and
  nothing is accounted for.

  Every loss is taken for each example by itself, whatever its reduction, and
  regularizers of weights add their gradient after the noise, since they depend
  on nothing private.

  #### Formal guarantee

  An update is that of `optimizers.DPOptimizer`, provided that the loss of an
  example depends on no other example and that the layers keep nothing of what
  they see. Before the first step both are tried on a few made-up rows; layers
  known to break it (batch normalization, losses and metrics added in `call`,
  stateful layers, half precision) are refused by name. That finds mistakes; it
  is no proof for a model that means to deceive.

  Args:
    model: a `tf.keras.Model`.
    example: public rows (x, y) to try the model on, at least two and no two of
      them alike; by default rows are made up from shapes and dtypes.

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

  def __init__(self, model, example=None, name=None):
    super().__init__(name=name or f'private_{model.name}')
    self.model = model
    # Hidden from Keras, which tracks what it finds in attributes.
    self._example = lambda: example
    self._ruled = None
    self._known = None
    self._released = keras.metrics.Mean(name='loss')

  @property
  def metrics(self):
    return [m for m in super().metrics if m is not self._released]

  def reset_metrics(self):
    super().reset_metrics()
    self._released.reset_state()

  def call(self, inputs, training=None):
    return self.model(inputs, training=training)

  def compile(self, optimizer, loss, metrics=None, loss_weights=None, **kwargs):
    """As in Keras.

    Args:
      optimizer: of a plan, or a `DPOptimizer` by itself.
      loss: as in Keras; the reduction does not matter.
      metrics: as in Keras; computed for validation data and by `evaluate`.
      loss_weights: as in Keras.
      **kwargs: of `keras.Model.compile`.

    Raises:
      ValueError: for another optimizer, or without a loss.
    """
    if not isinstance(optimizer, DPOptimizer):
      raise ValueError(
        f'{type(optimizer).__name__} does not train privately. Take '
        "plan.optimizer('adam', ...) or tfdpflows.optimizers.DPKerasAdam(...); "
        'without privacy, train the model itself.'
      )
    if loss is None:
      raise ValueError('PrivateModel needs a loss: compile(optimizer, loss).')
    self._row_losses = RowLosses(loss, loss_weights)
    self._ruled = self._known = None
    super().compile(
      optimizer=optimizer,
      loss=loss,
      metrics=metrics,
      loss_weights=loss_weights,
      **kwargs,
    )

  def fit(self, x=None, y=None, *args, **kwargs):
    """Trains, as `keras.Model.fit` does.

    Args:
      x: inputs, an array or a tuple, list or dict of arrays; or, under a plan,
        what `plan.dataset((x, y))` gave.
      y: targets, as `x`.
      *args: of `keras.Model.fit`, without a plan only.
      **kwargs: of `keras.Model.fit`. Under a plan `epochs` says for how many
        of the plan's epochs to train, by default for all that are left;
        validation data count as public.

    Returns:
      Keras's `History`.

    Raises:
      ValueError: for a model that could not be private, naming the layer; and
        under a plan for data that it did not draw, or arguments that would
        draw other batches than it says.
      BudgetExceededError: if the plan's ledger refuses the training.
    """
    plan = getattr(self.optimizer, 'plan', None)
    if plan is None:
      return super().fit(x, y, *args, **kwargs)
    if isinstance(x, tf.data.Dataset):
      spec = x.element_spec[0]
      if not isinstance(spec, tuple) or len(spec) != 2:
        raise ValueError(
          'The rows of the dataset are no pairs of inputs and targets: it must '
          'come from plan.dataset((x, y)).'
        )
      data = x
    else:
      data = (_tuples(x), _tuples(y))
      spec = tf.nest.map_structure(_spec, data)
    # Before anything is charged.
    self._check(*spec)
    return self._fit_plan(plan, data, *args, **kwargs)

  def train_step(self, data):
    if self.optimizer.plan is None:
      x, y, row_weights = keras.utils.unpack_x_y_sample_weight(data)
      weights = None
    else:
      (x, y), weights = data
      row_weights = None
    if y is None:
      raise ValueError('PrivateModel learns from pairs: fit(x, y).')
    _eagerly(self._check, *tf.nest.map_structure(_spec, (x, y)))
    variables = self.model.trainable_variables
    layers = checks.layers_of(self.model)
    penalties = _gradients(checks.penalties_of(layers), variables)
    ruled = [layer for layer in layers if id(layer) in self._ruled]
    with gradients.layer_rules(ruled), gradients.PerExampleTape() as tape:
      losses, _ = self._losses_of(x, y, training=True)
      if row_weights is not None:
        losses *= tf.cast(row_weights, losses.dtype)
    checks.refuse_batch_losses(layers)
    means, loss = self.optimizer.private_gradients(
      losses, variables, tape, weights
    )
    means = [m if p is None else m + p for m, p in zip(means, penalties)]
    self.optimizer.apply_gradients(zip(means, variables))
    if loss is None:
      return {}
    self._released.update_state(loss)
    return {'loss': self._released.result()}

  def _losses_of(self, x, y, training):
    outputs = self.model(x, training=training)
    names = getattr(self.model, 'output_names', None)
    losses = self._row_losses(y, outputs, names)
    if losses.shape.rank != 1:
      raise ValueError(
        f'The loss has shape {losses.shape}; it must be one per example.'
      )
    return losses, outputs

  def _check(self, x, y):
    """Checks the model once, and later that it is still the one checked.

    Args:
      x: structure of `tf.TensorSpec`.
      y: as `x`.
    """
    if self._known is None:
      with self.distribute_strategy.scope():
        self._try(x, y)
    now = {v.ref(): v.name for v in self.model.trainable_variables}
    if now.keys() != self._known:
      new = sorted(now[v] for v in now.keys() - self._known) or 'fewer'
      raise ValueError(
        f'The trainable variables have changed since the first step: {new}. '
        'Compile the model again.'
      )

  def _try(self, x, y):
    """Runs the model on rows that are not private, in all ways that matter."""
    layers = checks.layers_of(self.model)
    checks.refuse_layers(layers)
    example = self._example()
    if example is None:
      rows, others = checks.made_up((x, y))
    else:
      rows = tf.nest.map_structure(tf.convert_to_tensor, example)
      others = tf.nest.map_structure(lambda a: tf.roll(a, 1, 0), rows)
    train = lambda rows: self._losses_of(*rows, training=True)
    test = lambda rows: self._losses_of(*rows, training=False)[0]
    # Makes the variables, and layers that are made in `call`.
    test(rows)
    layers = checks.layers_of(self.model)
    checks.refuse_layers(layers)
    checks.refuse_batch_losses(layers)
    checks.penalties_of(layers)
    variables = self.model.trainable_variables
    if not variables:
      raise ValueError(f'{self.model.name} has no trainable variables.')
    with _one_replica():
      checks.check_examples_apart(train, layers, rows, others)
      checks.refuse_batch_losses(layers)
      ruled = checks.check_rules(test, layers, rows, variables)
    self._ruled = frozenset(map(id, ruled))
    self._known = frozenset(v.ref() for v in variables)


@tf.autograph.experimental.do_not_convert
def _eagerly(function, *args):
  """Calls a function outside of the graph that is being traced, if one is."""
  with futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(function, *args).result()


def _one_replica():
  """A context in which variables of several replicas are those of the first."""
  if not tf.distribute.has_strategy():
    return contextlib.nullcontext()
  return tf.distribute.ReplicaContext(tf.distribute.get_strategy(), 0)


def _tuples(x):
  """Lists are several inputs to Keras, and arrays to a plan."""
  return tuple(x) if isinstance(x, list) else x


def _spec(x):
  """What is public of an array: its shape and dtype."""
  if isinstance(x, (tf.Tensor, tf.TensorSpec)):
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)
  x = np.asarray(x)
  return tf.TensorSpec((None,) + x.shape[1:], tf.as_dtype(x.dtype))


def _gradients(penalties, variables):
  """Returns the gradient of all penalties, `None` where there is none."""
  if not penalties:
    return [None] * len(variables)
  with tf.GradientTape() as tape:
    total = tf.add_n([penalty() for penalty in penalties])
  found = tape.gradient(total, variables)
  return [None if g is None else tf.convert_to_tensor(g) for g in found]
