"""What the tests of distribution train: a table, a plan, two models."""

import numpy as np
import tensorflow as tf

import tfdpflows
from tfdpflows import _keras, accounting, gradients, sampling
from tfdpflows.randomness import Randomness

keras = _keras.keras
ROWS = 300
STEPS = 12


def table():
  """Returns float32 `[300, 3]` with two rows that count for nothing."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[ROWS, 3]) @ rng.normal(size=[3, 3])
  x[7], x[8, 1] = np.nan, np.inf
  return x.astype('float32')


def plan(seed=0, steps=STEPS, clip=3.0, rows=ROWS, q=0.25, **kwargs):
  """A plan; `clip` is a norm or a clipping strategy."""
  kwargs.setdefault('randomness', Randomness(seed=seed))
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=rows, sampling_probability=q),
    gradients.Flat(clip) if isinstance(clip, float) else clip,
    noise_multiplier=1.0,
    steps=steps,
    delta=1e-4,
    **kwargs,
  )


def flow_model(plan, strategy, **kwargs):
  """A flow under Adam, compiled, with its slots."""
  with strategy.scope():
    flow = tfdpflows.flows.masked_autoregressive_flow(3, 1, [8], seed=0)
    model = tfdpflows.DensityModel(flow, ema_momentum=0.9)
    model.compile(
      optimizer=plan.optimizer('adam', learning_rate=1e-2, loss_bound=50.0),
      **kwargs,
    )
    model.optimizer._create_all_weights(flow.trainable_variables)
  return model


def noise_of_one_update(strategy, rows=ROWS, q=0.25, **kwargs):
  """Returns one update's noise in units of what it is planned to be.

  Of 10,000 coordinates that no row of zeros moves: the update is all noise.
  """
  one = plan(steps=1, clip=0.5, rows=rows, q=q)
  with strategy.scope():
    model = tfdpflows.DensityModel(_Still())
    model.compile(optimizer=one.optimizer('sgd', learning_rate=1.0), **kwargs)
  model.fit(np.zeros([rows, 100], 'float32'), verbose=0)
  update = -model.distribution.kernel.numpy()
  return update * one.sampler.expected_batch_size / 0.5


class Checkpoints(keras.callbacks.Callback):
  """Writes a checkpoint after every epoch, before averages take the place."""

  def __init__(self, model, folder):
    super().__init__()
    self.checkpoint = tf.train.Checkpoint(
      model=model, optimizer=model.optimizer
    )
    self.manager = tf.train.CheckpointManager(self.checkpoint, folder, 9)

  def on_epoch_end(self, epoch, logs=None):
    self.manager.save()

  def restore(self, number):
    """Takes the checkpoint of an epoch back, -1 for the latest."""
    path = self.manager.checkpoints[number]
    self.checkpoint.restore(path).assert_consumed()


def weights_of(model):
  return [v.numpy() for v in model.trainable_variables]


class Linear(tf.Module):
  """Rows of zeros move nothing: an update is its noise."""

  def __init__(self):
    super().__init__('linear')
    self.kernel = tf.Variable(tf.zeros([4, 30]))

  def log_prob(self, x):
    return tf.reduce_sum(tf.sin(gradients.linear(x, self.kernel)), -1)


def linear_model(plan, name='sgd', jit_compile=False, **kwargs):
  """`Linear` under an optimizer of a plan, compiled, with its slots."""
  model = tfdpflows.DensityModel(Linear())
  optimizer = plan.optimizer(name, learning_rate=0.5, **kwargs)
  model.compile(optimizer=optimizer, jit_compile=jit_compile)
  optimizer._create_all_weights(model.trainable_variables)
  return model


def ledger(path):
  """The ledger in a file, or a new one with a budget for everything."""
  if path.exists():
    return accounting.PrivacyLedger.open(path)
  budget = accounting.PrivacyBudget(epsilon=1000.0, delta=1e-3)
  return accounting.PrivacyLedger(path, budget=budget)


def checkpoint(model):
  return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


class _Still(tf.Module):
  def __init__(self):
    super().__init__('still')
    self.kernel = tf.Variable(tf.zeros([100, 100]))

  def log_prob(self, x):
    return tf.reduce_sum(gradients.linear(x, self.kernel), -1)
