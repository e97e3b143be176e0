"""A Keras model that fits a distribution by maximum likelihood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.independence import Checker
from tfdpflows.models.base import PrivatelyTrained
from tfdpflows.optimizers import DPOptimizer

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows._keras import tfp


class DensityModel(PrivatelyTrained):
  """Fits a `tfd.Distribution` with trainable variables through `model.fit`.

  With an optimizer of a `TrainingPlan`, `fit(x)` trains on batches that the
  plan draws and charges; other data are refused. The training loss is computed
  from private rows, and is shown only if the optimizer releases it with noise
  (`loss_bound`). With any other optimizer the model trains as Keras models do,
  without a privacy claim.

  #### Formal guarantee

  Under a DP optimizer an update is that of `optimizers.DPOptimizer`, provided
  that the loss of a row, preprocessing included, depends on no other row.
  `independence.Checker` checks this before the first step: it is proven, for
  any weights and rows, where `checked_independence` is 'proven', and otherwise
  tested on probe rows, which finds mistakes and proves nothing. Operations that
  fail for some rows or write rows down (`validate_args=True` makes such) are
  refused.

  A row whose loss or gradient is not finite adds nothing. That there is an
  error in a step is outside of the guarantee; its text quotes no row.

  Args:
    distribution: a `tfd.Distribution` over `[event_size]`, such as a flow.
    preprocessing: a function of rows, applied to each batch before `log_prob`
      in training, such as dequantization. It must treat each row alone.
    ema_momentum: if given, weights are averaged over steps with this momentum
      and `fit` ends with the averages.
    example: public rows to try the density on, at least two and no two of them
      alike; by default rows are made up from shape and dtype.
    examples_independent: `True` declares that no row changes the loss of
      another where this cannot be checked, because random numbers are drawn in
      a way that cannot be repeated, or where an operation takes rows together
      without a change to any. What runs on probe rows find is refused anyway.

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
    self,
    distribution: tfp.distributions.Distribution,
    preprocessing: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
    ema_momentum: Optional[float] = None,
    name: Optional[str] = None,
    *,
    example: Optional[npt.ArrayLike] = None,
    examples_independent: bool = False,
  ):
    super().__init__(name=name)
    self.distribution = distribution
    if not distribution.trainable_variables:
      raise ValueError(
        f'{distribution.name} has no trainable variables, nothing to fit.'
      )
    self._preprocessing = preprocessing
    self._start_average(ema_momentum)
    self._loss = keras.metrics.Mean(name='loss')
    self._checker = Checker(
      self,
      lambda rows, training: (self._row_losses(rows), []),
      self._private_variables,
      [distribution, preprocessing],
      'The log-density',
      example=example,
      independent=examples_independent,
    )

  @property
  def metrics(self) -> list[keras.metrics.Metric]:
    return [self._loss]

  def compile(self, *args: Any, **kwargs: Any) -> None:
    self._checker.forget()
    super().compile(*args, **kwargs)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    return self.log_prob(x)

  def log_prob(self, x: npt.ArrayLike) -> tf.Tensor:
    """Returns the log-density of rows `[..., event_size]`, in nats."""
    # TFP caches results by input tensor, without a gradient on another tape.
    return self.distribution.log_prob(tf.identity(x))

  def sample(
    self,
    sample_shape: Union[int, Sequence[int]] = (),
    seed: Optional[Union[int, tf.Tensor]] = None,
  ) -> tf.Tensor:
    """Returns rows `sample_shape + [event_size]`, see TFP's `seed`."""
    return self.distribution.sample(sample_shape, seed=seed)

  def _row_losses(self, x):
    if self._preprocessing is not None:
      x = self._preprocessing(x)
    return -self.log_prob(x)

  def train_step(self, data: Any) -> dict[str, tf.Tensor]:
    if isinstance(self.optimizer, DPOptimizer):
      logs = self._private_step(data)
    else:
      logs = self._keras_step(data)
    if self._average is not None:
      self._average.update()
    return logs

  def _private_step(self, data):
    if self.optimizer.plan is None:
      x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
      step = None
    else:
      x, weights, step = data
    self._checker.check_in_step(x)
    return self._update(x, weights, step, self._loss)

  def _private_variables(self):
    return self.distribution.trainable_variables

  def _keras_step(self, data):
    variables = list(self._private_variables())
    x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    # TF Privacy's optimizers take the jacobian of a vector, others its mean.
    private = hasattr(self.optimizer, '_was_dp_gradients_called')
    replicas = self.distribute_strategy.num_replicas_in_sync
    if private and replicas > 1:
      raise ValueError(
        f"TF Privacy's {self.optimizer._name} would add the noise of a whole "
        f'update on each of {replicas} replicas. Take the optimizer of a '
        'TrainingPlan, or train outside of the tf.distribute strategy.'
      )
    with tf.GradientTape(persistent=private) as tape:
      losses = self._row_losses(x)
      if weights is not None:
        losses *= tf.cast(weights, losses.dtype)
      loss = losses if private else tf.reduce_mean(losses) / replicas
    self.optimizer.minimize(loss, variables, tape=tape)
    self._loss.update_state(losses)
    return {'loss': self._loss.result()}

  def test_step(self, data: Any) -> dict[str, tf.Tensor]:
    x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    self._loss.update_state(-self.log_prob(x), weights)
    return {'loss': self._loss.result()}

  def predict_step(self, data: Any) -> tf.Tensor:
    return self.log_prob(keras.utils.unpack_x_y_sample_weight(data)[0])
