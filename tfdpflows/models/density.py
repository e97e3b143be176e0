"""A Keras model that fits a distribution by maximum likelihood."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows._autograph import converted
from tfdpflows._checks import check_integer
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

  Where rows are pairs, `fit((x, c))` learns the conditional density p(x | c),
  of a distribution whose methods take `conditional_input=c`: the flows of this
  package made with `conditional_event_size`, or any `tfd.Distribution`, such as
  a `tfd.TransformedDistribution` whose `kwargs_split_fn` passes it on to its
  bijector. Then c is as private as x.

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
    distribution: a `tfd.Distribution` over `[event_size]`, such as a flow. One
      without variables is called once on zeros, on which networks are built
      that are built on first use.
    preprocessing: a function of rows, applied to each batch before `log_prob`
      in training, such as dequantization. It must treat each row alone. Rows
      have the structure that `fit` or `plan.dataset` was given (arrays, tuples,
      dicts); it returns x, or (x, c).
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

  The density of the second column given the first:

  >>> flow = tfdpflows.flows.masked_autoregressive_flow(
  ...   1, num_blocks=1, conditional_event_size=1)
  >>> plan = tfdpflows.TrainingPlan.for_epsilon(
  ...   epsilon=1., delta=1e-4, num_examples=500, expected_batch_size=100,
  ...   epochs=1, clipping=tfdpflows.gradients.Flat(5.))
  >>> model = tfdpflows.DensityModel(flow)
  >>> model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-3))
  >>> history = model.fit((x[:, 1:], x[:, :1]), verbose=0)
  >>> model.checked_independence
  'proven'
  >>> model.log_prob(x[:3, 1:], x[:3, :1]).shape
  TensorShape([3])
  >>> model.sample(4, conditional_input=[0.5]).shape
  TensorShape([4, 1])
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
      _build(distribution)
    if not distribution.trainable_variables:
      raise ValueError(
        f'{distribution.name} has no trainable variables, nothing to fit. Its '
        'networks may be built on first use: call log_prob once on public '
        'rows, such as zeros. Or they are inside of functions, where '
        'TensorFlow does not find them, as in tfb.real_nvp_default_template: '
        'give the bijector a Keras layer or a tf.Module in place of a function.'
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

  def compile(
    self,
    optimizer: Any = 'rmsprop',
    loss: Any = None,
    metrics: Any = None,
    loss_weights: Any = None,
    weighted_metrics: Any = None,
    **kwargs: Any,
  ) -> None:
    """As in Keras, but that the loss is the negative log-density.

    Args:
      optimizer: of a plan, or any other, which trains without a privacy claim.
      loss: refused, as the next three are.
      metrics: refused.
      loss_weights: refused.
      weighted_metrics: refused.
      **kwargs: of `keras.Model.compile`.

    Raises:
      ValueError: for an argument that is refused.
    """
    for name, value in (
      ('loss', loss),
      ('metrics', metrics),
      ('loss_weights', loss_weights),
      ('weighted_metrics', weighted_metrics),
    ):
      if value is not None:
        raise ValueError(
          f'DensityModel.compile takes no {name}: its loss is the negative '
          'log-density, and it has no targets. Leave it out; compute other '
          'scores from log_prob or sample.'
        )
    super().compile(optimizer, **kwargs)

  def fit(
    self, x: Any = None, *args: Any, **kwargs: Any
  ) -> keras.callbacks.History:
    """See `PrivatelyTrained.fit`; without a DP optimizer it logs a warning."""
    _check_weights(args, kwargs)
    # TF Privacy's optimizers have that attribute.
    private = isinstance(self.optimizer, DPOptimizer) or hasattr(
      self.optimizer, '_was_dp_gradients_called'
    )
    if self.optimizer is not None and not private:
      logging.log_first_n(
        logging.WARNING,
        'DensityModel.fit with %s trains without privacy: compile it with '
        'plan.optimizer(...) of a TrainingPlan, unless its rows are public. '
        '(This is said once.)',
        1,
        type(self.optimizer).__name__,
      )
    return super().fit(x, *args, **kwargs)

  def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
    """As in Keras."""
    _check_weights(args, kwargs)
    return super().evaluate(x, *args, **kwargs)

  def call(self, x: Any) -> tf.Tensor:
    return self._log_prob_of(x)

  def log_prob(
    self, x: npt.ArrayLike, conditional_input: Optional[npt.ArrayLike] = None
  ) -> tf.Tensor:
    """Returns the log-density of rows, in nats.

    Args:
      x: rows `[..., event_size]`.
      conditional_input: `[..., conditional_event_size]`, which is broadcast to
        the rows; of a conditional density only.

    Raises:
      ValueError: for rows of another shape or that are no numbers; without a
        conditional input where one is needed, or with one where none is.
    """
    given = self._given(conditional_input)
    x = _tensor('x', x)
    self._check_x(x)
    # TFP caches results by input tensor, without a gradient on another tape.
    x = tf.identity(self._in_dtype(x))
    return converted(self.distribution.log_prob)(x, **given)

  def sample(
    self,
    sample_shape: Union[int, Sequence[int]] = (),
    seed: Optional[Union[int, tf.Tensor]] = None,
    conditional_input: Optional[npt.ArrayLike] = None,
  ) -> tf.Tensor:
    """Returns rows of the density.

    Args:
      sample_shape: how many.
      seed: see TFP.
      conditional_input: `[..., conditional_event_size]`, for so many rows of
        each value; of a conditional density only.

    Returns:
      `sample_shape + [event_size]`; with a conditional input `sample_shape +
      conditional_input.shape[:-1] + [event_size]`.

    Raises:
      TypeError: for a shape that is no integers.
      ValueError: for a shape that is no integers; see also `log_prob`.
    """
    for part in tf.nest.flatten(sample_shape):
      if not tf.is_tensor(part):
        for size in np.ravel(part).tolist():
          check_integer('sample_shape', size, 0)
    given = self._given(conditional_input)
    if given:
      shape = tf.reshape(tf.cast(sample_shape, tf.int32), [-1])
      of_each = tf.shape(given['conditional_input'])[:-1]
      sample_shape = tf.concat([shape, of_each], 0)
    return self.distribution.sample(sample_shape, seed=seed, **given)

  def _in_dtype(self, x):
    """Returns numbers as those of the distribution, as Keras casts floats."""
    # Joint distributions have several, other modules none.
    dtype = getattr(self.distribution, 'dtype', None)
    if dtype is None or tf.nest.is_nested(dtype):
      return x
    number = x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool
    return tf.cast(x, dtype) if number and tf.as_dtype(dtype).is_floating else x

  def _check_x(self, x, batch=False):
    """Refuses what the density is not of; in a batch, also a single row."""
    event = getattr(self.distribution, 'event_shape', None)
    # Joint distributions have several, other modules none.
    if not isinstance(event, tf.TensorShape) or event.rank is None:
      return
    _check_dtype('x', x)
    if x.shape.rank is None:
      return
    before = x.shape.rank - event.rank
    if before < batch or not x.shape[before:].is_compatible_with(event):
      shape = ['n', *x.shape[1:]] if batch else x.shape
      expected = ['n' if batch else '...', *event]
      raise ValueError(
        f'x has shape {_written(shape)}; the density {self.distribution.name} '
        f'is of rows {_written(expected)}.'
      )

  def _given(self, conditional_input):
    """Returns the keyword arguments of the distribution's methods."""
    if conditional_input is None:
      return {}
    c = _tensor('conditional_input', conditional_input)
    _check_dtype('conditional_input', c)
    given = {'conditional_input': self._in_dtype(c)}
    # The default of TFP drops what it does not know.
    split = getattr(self.distribution, '_kwargs_split_fn', lambda x: x)
    if not tf.nest.flatten(split(given)):
      raise ValueError(
        f'{self.distribution.name} takes no conditional_input. Make a flow '
        'with conditional_event_size=..., or a tfd.TransformedDistribution '
        'whose kwargs_split_fn passes it on to its bijector.'
      )
    return given

  def get_config(self) -> dict[str, Any]:
    """Raises a `NotImplementedError`: no `.keras` file holds a density."""
    raise NotImplementedError(
      f'{self.name}, a DensityModel, cannot be written to a .keras or .h5 '
      'file, nor a model that holds it: save that as a SavedModel, or its '
      'weights with save_weights(path).'
    )

  def _log_prob_of(self, rows):
    """Returns the log-density of x, or (x, c), as Keras and plans give it."""
    if not tf.nest.is_nested(rows):
      return self.log_prob(rows)
    if isinstance(rows, (tuple, list)) and len(rows) == 2:
      return self.log_prob(*rows)
    kind = type(rows).__name__
    raise ValueError(
      f'Rows are a {kind} of {len(rows)}, and a density is of x, or of the '
      'pair (x, c) if it is conditional: DensityModel(distribution, '
      'preprocessing=...) takes a function that returns one or the other.'
    )

  def _row_losses(self, rows):
    if self._preprocessing is not None:
      rows = converted(self._preprocessing)(rows)
    if not isinstance(rows, dict):
      x, *_ = rows if isinstance(rows, (tuple, list)) else [rows]
      self._check_x(_tensor('x', x), batch=True)
    return -self._log_prob_of(rows)

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
      rows, weights = _unpacked(data)
      step = None
    else:
      rows, weights, step = data
    self._checker.check_in_step(rows)
    return self._update(rows, weights, step, self._loss)

  def _private_variables(self):
    return self.distribution.trainable_variables

  def _keras_step(self, data):
    variables = list(self._private_variables())
    rows, weights = _unpacked(data)
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
      losses = self._row_losses(rows)
      if weights is not None:
        losses *= tf.cast(weights, losses.dtype)
      loss = losses if private else tf.reduce_mean(losses) / replicas
    self.optimizer.minimize(loss, variables, tape=tape)
    self._loss.update_state(losses)
    return {'loss': self._loss.result()}

  def test_step(self, data: Any) -> dict[str, tf.Tensor]:
    rows, weights = _unpacked(data)
    self._loss.update_state(-self._log_prob_of(rows), weights)
    return {'loss': self._loss.result()}

  def predict_step(self, data: Any) -> tf.Tensor:
    return self._log_prob_of(_unpacked(data)[0])


def _build(distribution):
  """Has networks built that are built on first use."""
  # What it cannot be computed on tells nothing that training would not.
  with contextlib.suppress(Exception):
    shape = [1, *distribution.batch_shape, *distribution.event_shape]
    distribution.log_prob(tf.zeros(shape, distribution.dtype))


def _check_weights(args, kwargs):
  """Refuses weights that Keras drops, since there are no targets."""
  if kwargs.get('sample_weight') is None or args:
    return
  if kwargs.get('y') is None:
    raise ValueError(
      'A DensityModel has no targets, and Keras drops sample_weight without '
      'them: leave it out, and give rows that count twice two times.'
    )


def _tensor(name, x):
  try:
    return tf.convert_to_tensor(x)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'{name} is of type {type(x).__name__}, of which TensorFlow makes no '
      'tensor; give an array of numbers.'
    ) from error


def _check_dtype(name, x):
  """Refuses text; NumPy's objects are text to TensorFlow."""
  if x.dtype == tf.string:
    raise ValueError(
      f'{name} is of text or other objects; a density is of numbers. Give one '
      'array of numbers, with categories as indicators (tf.one_hot).'
    )


def _written(shape):
  return f'[{", ".join("?" if n is None else str(n) for n in shape)}]'


def _unpacked(data):
  """Returns rows and weights; pairs come as Keras's inputs and targets."""
  x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
  return (x if y is None else (x, y)), weights
