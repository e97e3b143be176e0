"""A student: a model that learns from the answers of an aggregator alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdpflows._checks import check_integer, check_type
from tfdpflows._keras import keras
from tfdpflows._memory import dataset_from_generator


def fit_student(
  model: keras.Model,
  x: npt.ArrayLike,
  answers: npt.ArrayLike,
  *,
  augment: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  steps: int = 1000,
  batch_size: int = 64,
  unlabeled_ratio: int = 4,
  confidence: float = 0.95,
  unlabeled_weight: float = 1.0,
  seed: Optional[int] = None,
  verbose: int = 0,
) -> keras.callbacks.History:
  """Trains a Keras classifier on answered and unanswered public inputs.

  FixMatch (Sohn et al. 2020): where the model is sure of the class of an
  unanswered input, it learns to predict the same for an augmented copy. Without
  `augment` the copy is the input, which is pseudo-labelling (Lee 2013).

  scikit-learn has other semi-supervised methods, for which the answer -1 stands
  for no label as well: `LabelSpreading().fit(x, answers)`.

  Args:
    model: compiled with an optimizer; its outputs are logits `[batch,
      classes]`. Its loss is not used.
    x: public inputs `[n, ...]`, all those that may be learned from.
    answers: int `[n]`, of an aggregator, -1 where there is none.
    augment: a function of a batch that returns a changed copy; the identity by
      default.
    steps: number of updates.
    batch_size: answered inputs per step.
    unlabeled_ratio: unanswered inputs per answered one; 0 for none.
    confidence: the probability above which the model is sure, in [0, 1].
    unlabeled_weight: weight of unanswered inputs in the loss.
    seed: of the batches, for tests and papers.
    verbose: as in Keras.

  Returns:
    Keras's `History`.

  Raises:
    TypeError: for a `model` that is none of Keras.
    ValueError: for a model that is not compiled, if no input is answered, or
      for a shape or number out of range.

  #### Formal guarantee

  The student is computed from public inputs and the answers: it is as private
  as these, and may be asked as often as one likes.

  #### Example

  >>> import numpy as np, tensorflow as tf
  >>> from tfdpflows import pate
  >>> x = np.random.default_rng(0).normal(size=[200, 2]).astype('float32')
  >>> answers = np.where(np.arange(200) < 20, x[:, 0] > 0, -1)
  >>> student = tf.keras.Sequential([tf.keras.layers.Dense(2)])
  >>> student.compile(optimizer=tf.keras.optimizers.Adam(.1))
  >>> history = pate.fit_student(student, x, answers, steps=100, seed=0)
  >>> predicted = np.argmax(student.predict(x, verbose=0), axis=1)
  >>> bool(np.mean(predicted == (x[:, 0] > 0)) > .9)
  True
  """
  check_type('model', model, keras.Model, 'tf.keras.Sequential([...])')
  if getattr(model, 'optimizer', None) is None:
    raise ValueError(
      'The model is not compiled: call model.compile(optimizer=...) before.'
    )
  x, answers = np.asarray(x), np.asarray(answers)
  if answers.shape != (len(x),) or answers.dtype.kind not in 'iu':
    raise ValueError(
      f'answers have shape {answers.shape} and dtype {answers.dtype}; they '
      f'must be integers [{len(x)}], -1 where there is no answer.'
    )
  if not 0 <= confidence <= 1:
    raise ValueError(f'confidence is {confidence}; it must be in [0, 1].')
  steps = check_integer('steps', steps)
  batch_size = check_integer('batch_size', batch_size)
  unlabeled_ratio = check_integer('unlabeled_ratio', unlabeled_ratio, 0)
  answered = np.flatnonzero(answers >= 0)
  if not len(answered):
    raise ValueError('No input is answered: there is nothing to learn from.')
  others = np.flatnonzero(answers < 0)
  if not len(others):
    others, unlabeled_ratio = answered, 0
  rng = np.random.default_rng(seed)

  def batches():
    while True:
      some = rng.choice(answered, batch_size)
      more = rng.choice(others, batch_size * unlabeled_ratio)
      yield x[some], answers[some], x[more]

  spec = lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
  data = dataset_from_generator(batches, (spec(x), spec(answers), spec(x)))
  trainer = _FixMatch(
    model, augment or tf.identity, confidence, unlabeled_weight, unlabeled_ratio
  )
  trainer.compile(optimizer=model.optimizer)
  return trainer.fit(data, steps_per_epoch=steps, verbose=verbose)


class _FixMatch(keras.Model):
  def __init__(self, model, augment, confidence, weight, ratio):
    super().__init__()
    self._student, self._augment = model, augment
    self._confidence, self._weight, self._ratio = confidence, weight, ratio

  def call(self, x: tf.Tensor, training: Optional[bool] = None) -> Any:
    return self._student(x, training=training)

  def train_step(self, data: Any) -> dict[str, tf.Tensor]:
    x, y, more = data
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.GradientTape() as tape:
      logits = self(self._augment(x), training=True)
      loss = tf.reduce_mean(entropy(y, logits))
      sure = tf.constant(0.0)
      if self._ratio:
        guessed = tf.stop_gradient(tf.nn.softmax(self(more, training=True)))
        taken = tf.reduce_max(guessed, -1) >= self._confidence
        weights = tf.cast(taken, loss.dtype)
        logits = self(self._augment(more), training=True)
        losses = entropy(tf.argmax(guessed, -1), logits)
        loss += self._weight * tf.reduce_mean(weights * losses)
        sure = tf.reduce_mean(weights)
    self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
    return {'loss': loss, 'sure': sure}
