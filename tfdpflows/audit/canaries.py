"""Canaries in the table of a Keras training, and the audit that finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import dp_accounting
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdpflows import models
from tfdpflows._checks import check_integer, check_positive
from tfdpflows._keras import keras
from tfdpflows.audit.one_run import OneRunBounds, audit_one_run
from tfdpflows.randomness import Randomness

# Rows whose losses are computed at one time.
_BLOCK = 4096
_IN_NO_TABLE = 'These canaries are in no table: train on canaries.insert(...).'


class Canaries:
  """Made-up rows, each of which is put into the table with probability 1/2.

  A canary that is left out is a row of NaN: its loss is not finite, so that it
  adds nothing to an update, and the table has as many rows whatever the coins
  say. That is the neighbouring relation of adding or removing a row. A model
  that fills in what is missing, and so has a loss for it, is refused.

  #### Formal guarantee

  Canaries are rows of the private table like any others, and the claim holds
  for real rows as it would without them. The result of an audit depends on the
  trained model, on the canaries and on the coin flips: it costs real rows no
  privacy beyond what the training is charged for, if scores are computed from
  released weights alone, as `OneRunAudit` does. So it may be published, other
  than what is computed from intermediate, unreleased states. The model does
  learn the canaries, as it would any other wrong rows.

  Args:
    rows: what `fit` takes, with `[num_canaries, ...]` arrays: `(x, y)` for a
      `PrivateModel`, an array for a `DensityModel`. Some array of the inputs
      must be of floats. Rows that are unlike all others are found most easily,
      such as those with a wrong label.
    seed: of the coins, for tests and papers.

  Attributes:
    rows: see above.
    included: bool `[num_canaries]`, whether each canary is in the table; known
      to the auditor alone.

  Raises:
    ValueError: for arrays of different lengths, or inputs without floats.
  """

  def __init__(self, rows: Any, *, seed: Optional[int] = None):
    self.rows = tf.nest.map_structure(np.asarray, rows)
    sizes = {len(array) for array in tf.nest.flatten(self.rows)}
    if len(sizes) != 1 or 0 in sizes:
      raise ValueError(
        f'The arrays of the canaries have {sorted(sizes)} rows; all must have '
        'the same number, at least one.'
      )
    (self._size,) = sizes
    random = Randomness(seed).numpy('canaries')
    self.included = random.random(self._size) < 0.5
    self._is_inserted = False

  def __len__(self) -> int:
    return self._size

  def insert(self, table: Any) -> Any:
    """Returns the table with `len(self)` more rows, in the structure of `rows`.

    A plan for it has `num_examples = len(x) + len(canaries)`.
    """
    joined = tf.nest.map_structure(
      lambda x, more: np.concatenate([x, more.astype(np.asarray(x).dtype)]),
      table,
      self._inserted(),
    )
    self._is_inserted = True
    return joined

  def _check_training(self, model: keras.Model) -> None:
    """Raises a `ValueError` where a training could not see the canaries."""
    if not self._is_inserted:
      raise ValueError(_IN_NO_TABLE)
    out = ~self.included
    rows = tf.nest.map_structure(lambda array: array[out], self._inserted())
    if out.any() and np.isfinite(losses_of(model, rows)).any():
      raise ValueError(
        'Canaries that are left out are rows of NaN, and this model gives them '
        'a loss: it fills in what is missing. They would move it too, so that '
        'to leave one out is not to remove a row, and a true claim could be '
        'refuted. Give PrivateModel usable=, a function that is false for rows '
        'with NaN, or audit with GradientCanaries.'
      )

  def _inserted(self):
    first = self.rows[0] if isinstance(self.rows, tuple) else self.rows
    inputs = {id(array) for array in tf.nest.flatten(first)}
    floats = [a for a in tf.nest.flatten(first) if a.dtype.kind == 'f']
    if not floats:
      raise ValueError(
        'The inputs of the canaries hold no floats, so that none of their rows '
        'can be left out as NaN.'
      )

    def left_out(array):
      if id(array) not in inputs or array.dtype.kind != 'f':
        return array
      array = array.copy()
      array[~self.included] = np.nan
      return array

    return tf.nest.map_structure(left_out, self.rows)


class GradientCanaries:
  """Canaries with a known gradient: white-box, the strongest of one run.

  The model gets a linear head of its own for them. A canary is a row whose loss
  is the head's output times `scale` and does not depend on the model's own
  weights; a real row adds nothing to the head. So the gradient of a canary is
  what was chosen, in weights that nothing but canaries and noise ever moves,
  through the same sampling, clipping, noise, optimizer and ledger as all rows:
  no part of the training is simulated. With gradients along the axes (Dirac
  canaries) the weights are as many independent Gaussian mechanisms.

  A `PrivateModel` with one output is supported, and every strategy of clipping
  but `AdaptiveQuantile`, which counts rows with a loss of zero. The formal
  guarantee of `Canaries` holds; the model's own weights learn nothing of these
  canaries.

  Args:
    gradients: `[num_canaries, size]`, directions other than zero, or an
      integer: that many Dirac canaries, each with a weight of its own. Fewer
      weights than canaries are crafted canaries that share them.
    scale: each gradient has this length before clipping. Much longer than the
      clip it also finds a training that does not clip.
    seed: of the coins, for tests and papers.

  Attributes:
    included: bool `[num_canaries]`.

  Raises:
    ValueError: for gradients of another shape, or of zero.

  #### Example

  >>> import numpy as np, tensorflow as tf, tfdpflows
  >>> from tfdpflows import audit
  >>> rng = np.random.default_rng(0)
  >>> x = rng.normal(size=[100, 3]).astype('float32')
  >>> y = (x[:, 0] > 0).astype('int64')
  >>> canaries = audit.GradientCanaries(200, scale=10.)
  >>> plan = tfdpflows.TrainingPlan(
  ...   tfdpflows.sampling.PoissonSampler(
  ...     num_examples=300, sampling_probability=1.),
  ...   tfdpflows.gradients.Flat(1.), noise_multiplier=5., steps=3)
  >>> model = tfdpflows.PrivateModel(
  ...   canaries.model(tf.keras.Sequential([tf.keras.layers.Dense(2)])))
  >>> model.compile(plan.optimizer('sgd', learning_rate=1.), canaries.loss(
  ...   tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)))
  >>> one_run = audit.OneRunAudit(canaries)
  >>> _ = model.fit(*canaries.insert((x, y)), callbacks=[one_run], verbose=0)
  >>> one_run.result().refuted
  False
  """

  def __init__(
    self,
    gradients: Union[int, npt.ArrayLike],
    *,
    scale: float = 100.0,
    seed: Optional[int] = None,
  ):
    if np.ndim(gradients) == 0:
      gradients = np.eye(check_integer('gradients', gradients))
    gradients = np.asarray(gradients, np.float64)
    if gradients.ndim != 2 or not np.isfinite(gradients).all():
      raise ValueError(
        f'gradients has shape {list(gradients.shape)}; it must be '
        '[num_canaries, size], of finite numbers.'
      )
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    if not norms.all():
      raise ValueError('A gradient is zero: nothing could be found of it.')
    self._gradients = (gradients / norms).astype(np.float32)
    self._scale = check_positive('scale', scale)
    random = Randomness(seed).numpy('canaries')
    self.included = random.random(len(gradients)) < 0.5
    self.rows = None

  def __len__(self) -> int:
    return len(self._gradients)

  def model(self, model: keras.Model) -> keras.Model:
    """Returns the Keras model with the head; `.model` is the model itself."""
    return _WithHead(model)

  def loss(self, loss: Any) -> list:
    """Returns the losses to compile with, where `loss` is that of the model."""
    return [loss, _linear]

  def insert(self, table: tuple[Any, npt.ArrayLike]) -> tuple[Any, Any]:
    """Returns inputs and targets `(x, y)` with `len(self)` more rows.

    They have the gradients and scales beside the model's own. A canary that is
    left out is a row with a loss of zero.
    """
    x, y = tf.nest.map_structure(np.asarray, tuple(table))
    n, m = len(tf.nest.flatten(x)[0]), len(self)
    size = self._gradients.shape[1]
    own = tf.nest.map_structure(
      lambda a: np.zeros((m, *a.shape[1:]), a.dtype), (x, y)
    )
    scale = np.full([m, 1], self._scale, np.float32)
    self.rows = ((own[0], self._gradients), (own[1], scale))
    joined = tf.nest.map_structure(
      lambda a, b: np.concatenate([a, b]), (x, y), own
    )
    gradients = np.zeros([n + m, size], np.float32)
    gradients[n:] = self._gradients
    scales = np.zeros([n + m, 1], np.float32)
    scales[n:] = np.where(self.included[:, None], scale, 0.0)
    return (joined[0], gradients), (joined[1], scales)

  def _check_training(self, model: keras.Model) -> None:
    """Raises a `ValueError` where a training could not see the canaries."""
    if self.rows is None:
      raise ValueError(_IN_NO_TABLE)
    losses = tf.nest.flatten(getattr(model, 'loss', None))
    if not any(loss is _linear for loss in losses):
      raise ValueError(
        'The model is not compiled with the loss of these canaries, which '
        'would have no gradient of their own: compile it with '
        'canaries.loss(loss).'
      )
    plan = getattr(getattr(model, 'optimizer', None), 'plan', None)
    # Other strategies release nothing that a row with a loss of zero changes.
    if plan is not None and plan.clipping.statistic_sensitivity:
      raise ValueError(
        f'{type(plan.clipping).__name__} counts GradientCanaries that are '
        'left out, whose loss is zero, so that leaving one out is more than '
        'removing a row. Train with gradients.Flat, or take Canaries, which '
        'are left out as NaN.'
      )


class OneRunAudit(keras.callbacks.Callback):
  """Audits a training of a `PrivateModel` or `DensityModel` in its one run.

  It computes the losses of all canaries before and after the training (of a
  `DensityModel`, exact negative log-densities), and scores a canary by how much
  its loss fell. That reads the weights as they are released, and nothing else.

  Args:
    canaries: `Canaries` or `GradientCanaries` that were inserted into the
      table.
    num_guesses: see `audit_one_run`; the number of canaries is the protocol of
      Steinke et al. with k+ = k- = m/2 guesses of each kind.
    confidence: of each bound.
    claim: what the training costs, for an optimizer without a plan; by default
      what its plan has charged.
    delta: of the bounds, for an optimizer without a plan.

  Attributes:
    scores: `[num_canaries]`, `None` before the end of the training.
  """

  def __init__(
    self,
    canaries: Union[Canaries, GradientCanaries],
    *,
    num_guesses: Union[int, Sequence[int], None] = None,
    confidence: float = 0.95,
    claim: Optional[dp_accounting.DpEvent] = None,
    delta: Optional[float] = None,
  ):
    super().__init__()
    self._canaries = canaries
    self._num_guesses = num_guesses
    self._confidence = confidence
    self._claim, self._delta = claim, delta
    self._before, self.scores = None, None

  def on_train_begin(self, logs=None):
    # Canaries that no training sees refute no claim, however wrong it is.
    self._canaries._check_training(self.model)
    if self._before is None:
      self._before = self._losses()

  def on_train_end(self, logs=None):
    scores = self._before - self._losses()
    # A loss that is not finite any more was changed by something.
    self.scores = np.nan_to_num(scores, nan=-np.inf, neginf=-np.inf)

  def _losses(self):
    return losses_of(self.model, self._canaries.rows)

  def result(self) -> OneRunBounds:
    """Returns the bounds, beside the claim.

    Raises:
      ValueError: before the end of a training, or without a delta.
    """
    if self.scores is None:
      raise ValueError('There is no result before the end of the training.')
    claim, delta, kwargs = self._claim, self._delta, {}
    plan = getattr(self.model.optimizer, 'plan', None)
    if plan is not None and claim is None:
      claim = plan.event_after(plan.step)
      delta = plan.delta if delta is None else delta
      kwargs = {
        'accountant': plan.accountant,
        'neighboring_relation': plan.ledger.neighboring_relation,
      }
    if delta is None:
      raise ValueError('The optimizer has no plan: give OneRunAudit a delta.')
    return audit_one_run(
      self.scores,
      self._canaries.included,
      delta=delta,
      claim=claim,
      num_guesses=self._num_guesses,
      confidence=self._confidence,
      **kwargs,
    )


def losses_of(
  model: Union[models.PrivateModel, models.DensityModel], rows: Any
) -> npt.NDArray:
  """Returns the loss of every row, `[num_rows]`, without training.

  Rows are what its `fit` takes, as arrays. Of a `DensityModel` it is the exact
  negative log-density; a `PrivateModel` must be compiled. Nothing is noised:
  losses of real rows are private.

  Raises:
    ValueError: for another model.
  """
  if isinstance(model, models.DensityModel):
    of_batch = lambda rows: -model.log_prob(rows)
  elif isinstance(model, models.PrivateModel):
    of_batch = lambda rows: model._losses_of(rows, False)[0]
  else:
    raise ValueError(
      f'{type(model).__name__} is neither a PrivateModel nor a DensityModel.'
    )
  size = len(tf.nest.flatten(rows)[0])
  found = []
  for start in range(0, size, _BLOCK):
    part = tf.nest.map_structure(
      lambda array, start=start: tf.convert_to_tensor(
        array[start : start + _BLOCK]
      ),
      rows,
    )
    found.append(of_batch(part).numpy())
  return np.concatenate(found).astype(np.float64)


class _WithHead(keras.Model):
  """A model, and a linear head that only canaries reach."""

  def __init__(self, model):
    super().__init__(name=f'{model.name}_with_canaries')
    self.model = model
    self.head = keras.layers.Dense(
      1, use_bias=False, kernel_initializer='zeros'
    )

  def call(self, inputs, training=None):
    x, gradients = inputs
    outputs = self.model(x, training=training)
    if not tf.is_tensor(outputs):
      raise ValueError(
        f'{self.model.name} has several outputs; gradient canaries need one.'
      )
    is_canary = tf.reduce_any(gradients != 0, -1)
    is_canary = tf.reshape(is_canary, [-1] + [1] * (outputs.shape.rank - 1))
    own = tf.where(is_canary, tf.zeros_like(outputs), outputs)
    return [own, self.head(gradients)]


def _linear(scale: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """The loss of the head, `[batch]`."""
  return tf.reduce_sum(scale * output, -1)
