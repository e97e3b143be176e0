"""Students learn from answers and unanswered public inputs."""

import numpy as np
import pytest

from tfdpflows import pate
from tfdpflows._keras import keras


def student():
  model = keras.Sequential(
    [keras.layers.Dense(16, 'relu'), keras.layers.Dense(2)]
  )
  model.compile(optimizer=keras.optimizers.Adam(1e-2))
  return model


def inputs():
  """Two clusters, of which few points are answered, some of them wrong."""
  rng = np.random.default_rng(0)
  y = rng.integers(0, 2, 600)
  x = rng.normal(size=[600, 2]) * 0.6 + np.where(y[:, None], 1.5, -1.5)
  return x.astype('float32'), y


@pytest.mark.parametrize('answered', [20, 600])
def test_learns(answered):
  x, y = inputs()
  answers = np.where(np.arange(600) < answered, y, -1)
  keras.utils.set_random_seed(0)
  model = student()
  history = pate.fit_student(model, x, answers, steps=200, seed=0)
  predicted = np.argmax(model.predict(x, verbose=0), 1)
  assert np.mean(predicted == y) > 0.95
  assert (history.history['sure'][-1] > 0) == (answered < 600)


def test_unanswered_inputs_are_augmented():
  x, y = inputs()
  seen = []

  def augment(batch):
    seen.append(batch.shape)
    return batch + 0.0

  answers = np.where(np.arange(600) < 50, y, -1)
  pate.fit_student(student(), x, answers, augment=augment, steps=2)
  assert len(seen) >= 2


@pytest.mark.parametrize(
  ('answers', 'options', 'message'),
  [
    (-np.ones(600, int), {}, 'No input is answered'),
    (np.zeros(599, int), {}, r'must be integers \[600\]'),
    (np.zeros(600), {}, 'dtype float64'),
    (np.zeros(600, int), {'confidence': 2}, 'confidence is 2'),
    (np.zeros(600, int), {'steps': 0}, 'steps is 0'),
    (np.zeros(600, int), {'unlabeled_ratio': -1}, 'unlabeled_ratio is -1'),
  ],
)
def test_bad_input(answers, options, message):
  with pytest.raises(ValueError, match=message):
    pate.fit_student(student(), inputs()[0], answers, **options)


def test_a_student_is_a_compiled_model_of_keras():
  x, answers = inputs()[0], np.zeros(600, int)
  model = keras.Sequential([keras.layers.Dense(2)])
  with pytest.raises(ValueError, match='call model.compile'):
    pate.fit_student(model, x, answers)
  with pytest.raises(TypeError, match='model is of type object'):
    pate.fit_student(object(), x, answers)
