"""A Keras model that fits a distribution by maximum likelihood."""

from __future__ import annotations

import tensorflow as tf
from absl import logging

from tfdpflows import gradients
from tfdpflows._keras import keras, tfp
from tfdpflows.models.averaging import WeightAverage
from tfdpflows.optimizers import DPOptimizer

_BATCH_STATISTICS = (
  tfp.bijectors.BatchNormalization,
  keras.layers.BatchNormalization,
)


class DensityModel(keras.Model):
  """Fits a `tfd.Distribution` with trainable variables through `model.fit`.

  With an optimizer of a `TrainingPlan`, `fit(x)` trains on batches that the
  plan draws and charges for; data that the plan did not draw is refused. The
  training loss that Keras would show is computed from private rows: under a
  plan it is shown only where the optimizer releases it with noise
  (`loss_bound`). With any other optimizer the model trains as Keras models do,
  and nothing is claimed.

  Args:
    distribution: a `tfd.Distribution` over `[event_size]`, such as a flow.
    preprocessing: a function of rows, applied to each batch before `log_prob`
      in training, such as dequantization. It must treat each row alone.
    ema_momentum: if given, weights are averaged over steps with this momentum
      and `fit` ends with the averages.

  Raises:
    ValueError: if `distribution` has no trainable variables.

  #### Example

  >>> import numpy as np, tfdpflows
  >>> x = np.random.default_rng(0).normal(size=[500, 2]).astype('float32')
  >>> flow = tfdpflows.flows.masked_autoregressive_flow(2, num_blocks=1)
  >>> plan = tfdpflows.TrainingPlan.for_epsilon(
  ...   epsilon=1., delta=1e-4, num_examples=500, expected_batch_size=100,
  ...   epochs=1, clipping=tfdpflows.gradients.Flat(5.))
  >>> model = tfdpflows.DensityModel(flow)
  >>> model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-3))
  >>> history = model.fit(x, verbose=0)
  >>> model.log_prob(x[:3]).shape
  TensorShape([3])
  """

  def __init__(
    self, distribution, preprocessing=None, ema_momentum=None, name=None
  ):
    super().__init__(name=name)
    self.distribution = distribution
    if not distribution.trainable_variables:
      raise ValueError(
        f'{distribution.name} has no trainable variables, nothing to fit.'
      )
    self._preprocessing = preprocessing
    self._average = None
    if ema_momentum is not None:
      self._average = WeightAverage(
        distribution.trainable_variables, ema_momentum
      )
    self._loss = keras.metrics.Mean(name='loss')

  @property
  def metrics(self):
    return [self._loss]

  def call(self, x):
    return self.log_prob(x)

  def log_prob(self, x):
    """Returns the log-density of rows `[..., event_size]`, in nats."""
    # TFP keeps results by input tensor: under another tape the same tensor
    # would give them without a gradient.
    return self.distribution.log_prob(tf.identity(x))

  def sample(self, sample_shape=(), seed=None):
    """Returns rows `sample_shape + [event_size]`, see TFP's `seed`."""
    return self.distribution.sample(sample_shape, seed=seed)

  def _row_losses(self, x):
    if self._preprocessing is not None:
      x = self._preprocessing(x)
    return -self.log_prob(x)

  def train_step(self, data):
    variables = self.distribution.trainable_variables
    if isinstance(self.optimizer, DPOptimizer):
      self._refuse_batch_statistics()
      logs = self._private_step(data, variables)
    else:
      logs = self._keras_step(data, variables)
    if self._average is not None:
      self._average.update()
    return logs

  def _private_step(self, data, variables):
    if self.optimizer.plan is None:
      x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    else:
      x, weights = data
    with gradients.PerExampleTape() as tape:
      losses = self._row_losses(x)
    means, loss = self.optimizer.private_gradients(
      losses, variables, tape, weights
    )
    self.optimizer.apply_gradients(zip(means, variables))
    if loss is None:
      return {}
    self._loss.update_state(loss)
    return {'loss': self._loss.result()}

  def _refuse_batch_statistics(self):
    """Refuses layers that mix examples, which no clipping could bound."""
    for part in (self.distribution, self._preprocessing):
      for module in getattr(part, 'submodules', ()):
        if isinstance(module, _BATCH_STATISTICS):
          raise ValueError(
            f'{type(module).__name__} {module.name!r} mixes the examples of a '
            'batch and keeps their mean: it cannot be trained privately. Use '
            'tfdpflows.bijectors.ActNorm, or no normalization.'
          )

  def _keras_step(self, data, variables):
    x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    # TF Privacy's optimizers take the jacobian of a vector, others its mean.
    private = hasattr(self.optimizer, '_was_dp_gradients_called')
    with tf.GradientTape(persistent=private) as tape:
      losses = self._row_losses(x)
      if weights is not None:
        losses *= tf.cast(weights, losses.dtype)
      loss = losses if private else tf.reduce_mean(losses)
    self.optimizer.minimize(loss, variables, tape=tape)
    self._loss.update_state(losses)
    return {'loss': self._loss.result()}

  def test_step(self, data):
    x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    self._loss.update_state(-self.log_prob(x), weights)
    return {'loss': self._loss.result()}

  def predict_step(self, data):
    return self.log_prob(keras.utils.unpack_x_y_sample_weight(data)[0])

  def fit(self, x=None, *args, **kwargs):
    """Trains, as `keras.Model.fit` does.

    Args:
      x: rows `[n, event_size]`; or, under a plan, what `plan.dataset` gave.
      *args: of `keras.Model.fit`, without a plan only.
      **kwargs: of `keras.Model.fit`. Under a plan `epochs` says for how many
        of the plan's epochs to train, by default for all that are left;
        validation data count as public.

    Returns:
      Keras's `History`.

    Raises:
      ValueError: under a plan, for data that it did not draw or arguments
        that would draw other batches than it says.
      BudgetExceededError: if the plan's ledger refuses the training.
    """
    plan = getattr(self.optimizer, 'plan', None)
    if plan is None:
      history = super().fit(x, *args, **kwargs)
    else:
      history = self._fit_plan(plan, x, *args, **kwargs)
    if self._average is not None:
      self._average.assign()
    return history

  def train_on_batch(self, *args, **kwargs):
    """As in Keras; refused under a plan, which draws the batches itself."""
    if getattr(self.optimizer, 'plan', None) is not None:
      raise ValueError(
        'The optimizer carries a plan, which draws the batches: use fit(x).'
      )
    return super().train_on_batch(*args, **kwargs)

  def _fit_plan(self, plan, x, *args, epochs=None, **kwargs):
    refused = {'y', 'batch_size', 'shuffle', 'validation_split'}
    refused |= {'class_weight', 'sample_weight', 'steps_per_epoch'}
    given = sorted(k for k in kwargs if k in refused and kwargs[k] is not None)
    if args or given:
      given = ', '.join(given) or 'positional arguments after `x`'
      raise ValueError(
        f'The optimizer carries a plan, which draws the batches: drop {given}.'
      )
    per_epoch = plan.sampler.steps_per_epoch
    if isinstance(x, tf.data.Dataset):
      if not plan.drew(x):
        raise ValueError(
          'The optimizer carries a plan, and this dataset is not of its '
          'drawing: its privacy could not be accounted for. Pass the array '
          'itself, or what plan.dataset(x) returned, unchanged.'
        )
      dataset, steps = x, x.steps
    else:
      steps = plan.left if epochs is None else epochs * per_epoch
      dataset = plan.dataset(x, steps)
    if self.optimizer.loss_bound is None and kwargs.get('verbose') != 0:
      logging.info(
        'The training loss is not shown: it is computed from private rows. '
        'plan.optimizer(..., loss_bound=...) releases it with noise.'
      )
    per_epoch = _divisor_near(steps, per_epoch)
    with plan.training(self.optimizer):
      return super().fit(
        dataset, epochs=steps // per_epoch, steps_per_epoch=per_epoch, **kwargs
      )


def _divisor_near(total, wanted):
  """Returns the divisor of `total` nearest to `wanted`."""
  divisors = [d for d in range(1, total + 1) if total % d == 0]
  return min(divisors, key=lambda d: abs(d - wanted))
