"""What privacy costs an ordinary Keras classifier, as a ratio in one run."""

import time

import numpy as np
import tensorflow as tf

import tfdpflows
from tfdpflows import optimizers
from tfdpflows._keras import keras

L = keras.layers
_BATCH = 256


def _classifier():
  return keras.Sequential(
    [
      keras.Input([784]),
      L.Dense(256, 'relu'),
      L.Dense(256, 'relu'),
      L.Dense(10),
    ]
  )


def test_a_private_step_costs_a_few_plain_ones():
  """Generous: the machine may be busy. A jacobian costs a hundred times."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[_BATCH, 784]).astype('float32')
  rows = x, rng.integers(0, 10, _BATCH)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  plain, private = _classifier(), tfdpflows.PrivateModel(_classifier())
  plain.compile(keras.optimizers.legacy.SGD(0.1), loss)
  private.compile(
    optimizers.DPKerasSGD(
      l2_norm_clip=1.0,
      noise_multiplier=1.0,
      expected_batch_size=_BATCH,
      learning_rate=0.1,
    ),
    loss,
  )
  steps = []
  for model in (plain, private):
    data = iter(tf.data.Dataset.from_tensors(rows).repeat())
    function = model.make_train_function()
    function(data)  # Traces.
    steps.append(lambda function=function, data=data: function(data))
  seconds = np.array([[_time(step) for step in steps] for _ in range(15)])
  ratio = np.median(seconds[:, 1] / seconds[:, 0])
  print(f'private / plain: {ratio:.2f}')
  assert ratio < 4


def _time(step):
  start = time.perf_counter()
  tf.nest.map_structure(lambda x: x.numpy(), step())
  return time.perf_counter() - start
