"""What models are told that no step could be private of."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfdpflows
from tfdpflows import flows, gradients, sampling
from tfdpflows._keras import keras, tfp

L, tfb, tfd = keras.layers, tfp.bijectors, tfp.distributions
_ROWS = 40


class _Function(L.Layer):
  """A layer of a function, with one weight beside it."""

  def __init__(self, function):
    super().__init__(name='bad')
    self._function = function

  def build(self, shape):
    self.gate = self.add_weight(
      'gate', [], initializer=keras.initializers.Constant(0.0)
    )
    self.kept = self.add_weight('kept', [], trainable=False)

  def call(self, x, training=None):
    # So that a gradient reaches the weight.
    return self._function(self, x) * (1 + self.gate)


def _keeps(self, x):
  self.kept.assign(tf.reduce_max(x))
  return x


def _sorts(self, x):
  return x + self.gate * tf.sort(x, axis=0)


def _prints(self, x):
  tf.print(x)
  return x


def _asserts(self, x):
  with tf.control_dependencies([tf.debugging.assert_less(x, 1e30)]):
    return tf.identity(x)


def _straight_through(self, x):
  mean = tf.reduce_mean(x, 0)
  return x + mean - tf.stop_gradient(mean)


def _shuffles(self, x):
  return (x + tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))) / 2


def _layer(function):
  return lambda: [_Function(function)]


LAYERS = {
  'batch normalization': lambda: [L.BatchNormalization()],
  'mean over rows, gated': _layer(
    lambda self, x: x + self.gate * tf.reduce_mean(x, 0)
  ),
  'straight through': _layer(_straight_through),
  'sorts rows': _layer(_sorts),
  'sum of rows': _layer(lambda self, x: x + tf.reduce_sum(x, 0)),
  'softmax over rows': _layer(lambda self, x: tf.nn.softmax(x, axis=0)),
  'reverses rows': _layer(lambda self, x: x + 0.1 * x[::-1]),
  'cumulative sum': _layer(lambda self, x: tf.cumsum(x, axis=0)),
  'norm of the batch': _layer(lambda self, x: x / tf.norm(x)),
  'number of rows': _layer(
    lambda self, x: x * tf.cast(tf.shape(x)[0], tf.float32)
  ),
  'mixup': _layer(_shuffles),
  'keeps the largest': _layer(_keeps),
  'prints': _layer(_prints),
  'asserts': _layer(_asserts),
  'python function': _layer(
    lambda self, x: tf.ensure_shape(
      tf.numpy_function(lambda y: y - y.mean(0), [x], tf.float32), x.shape
    )
  ),
  'gathers by value': _layer(
    lambda self, x: tf.gather(x, tf.cast(x[:, 0], tf.int32) % 2)
  ),
  'embedding of a value': lambda: [
    L.Lambda(lambda x: tf.cast(x[:, 0], tf.int32)),
    L.Embedding(3, 4),
  ],
  'category encoding': lambda: [
    L.Lambda(lambda x: tf.cast(x[:, :1], tf.int32)),
    L.CategoryEncoding(4),
  ],
  'boolean mask': _layer(lambda self, x: tf.boolean_mask(x, x[:, 0] > 0)),
  'dropout': lambda: [L.Dropout(0.5)],
  'layer normalization': lambda: [L.LayerNormalization()],
  'batch renormalization': lambda: [
    L.BatchNormalization(renorm=False, momentum=0.9, trainable=True)
  ],
  'spectral normalization': lambda: [L.UnitNormalization(axis=0)],
  'gaussian noise': lambda: [L.GaussianNoise(0.1)],
  'activity regularizer': lambda: [
    L.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))
  ],
  'kernel regularizer': lambda: [
    L.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1))
  ],
}
LOSSES = {
  'mean of all': lambda y, x: tf.reduce_mean(tf.square(x)),
  'row against mean': lambda y, x: tf.reduce_sum(
    tf.square(x - tf.reduce_mean(x, 0)), -1
  ),
  'contrastive': lambda y, x: tf.nn.sparse_softmax_cross_entropy_with_logits(
    tf.range(tf.shape(x)[0]), tf.matmul(x, x, transpose_b=True)
  ),
  'hinge': lambda y, x: keras.losses.hinge(
    tf.one_hot(tf.cast(y[:, 0], tf.int32), 3), x
  ),
  'of each row': keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


class _Centred(tfb.Bijector):
  """Takes the mean of the batch off, as a flow must not."""

  def __init__(self):
    super().__init__(forward_min_event_ndims=1, name='centred')
    self.scale = tf.Variable(1.0, name='scale')

  def _forward(self, x):
    return x * self.scale

  def _inverse(self, y):
    return (y - tf.reduce_mean(y, 0)) / self.scale

  def _inverse_log_det_jacobian(self, y):
    return -tf.math.log(self.scale) * 4


def _transformed(bijector):
  base = tfd.MultivariateNormalDiag(tf.zeros([4]))
  return tfd.TransformedDistribution(base, bijector)


DENSITIES = {
  'centred': lambda: _transformed(_Centred()),
  'batch normalization': lambda: _transformed(
    tfb.BatchNormalization(training=True)
  ),
  'validate_args': lambda: tfd.MultivariateNormalDiag(
    tf.Variable(tf.zeros([4])), validate_args=True
  ),
  'one for all rows': lambda: tfd.Independent(
    tfd.Normal(tf.Variable(tf.zeros([_ROWS, 4])), 1.0), 2
  ),
  'a flow': lambda: flows.masked_autoregressive_flow(
    4, num_blocks=1, hidden_units=(8,), seed=0
  ),
}


def _plan():
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=_ROWS, sampling_probability=0.5),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=1,
    delta=1e-4,
    seed=0,
  )


def cases():
  """What is tried: kind and name.

  Returns:
    A list of pairs.
  """
  kinds = {'layer': LAYERS, 'loss': LOSSES, 'density': DENSITIES}
  return [(kind, name) for kind, found in kinds.items() for name in found]


def value(kind, name):
  """What fitting says.

  Args:
    kind: 'layer', 'loss' or 'density'.
    name: Of the table of that kind.

  Returns:
    Class and text of the error, or 'trains'.
  """
  tf.random.set_seed(0)
  keras.backend.clear_session()
  rng = np.random.default_rng(4)
  x = rng.normal(size=[_ROWS, 4]).astype('float32')
  plan, y = _plan(), rng.integers(0, 3, _ROWS)
  try:
    if kind == 'density':
      model, targets = tfdpflows.DensityModel(DENSITIES[name]()), ()
      model.compile(optimizer=plan.optimizer('sgd', learning_rate=0.1))
    else:
      layers = LAYERS[name]() if kind == 'layer' else []
      loss = LOSSES['of each row' if kind == 'layer' else name]
      network = keras.Sequential([*layers, L.Dense(3)])
      model, targets = tfdpflows.PrivateModel(network), (y,)
      model.compile(plan.optimizer('sgd', learning_rate=0.1), loss)
    model.fit(x, *targets, verbose=0)
  except Exception as error:
    return f'{type(error).__name__}: {error}'.splitlines()[0]
  return 'trains'


def make():
  """Everything that the file holds.

  Returns:
    What `json.dumps` takes.
  """
  return {f'{kind}: {name}': value(kind, name) for kind, name in cases()}
