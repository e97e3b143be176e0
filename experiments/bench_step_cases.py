"""What the benchmark of a training step times: models, and ways to train them.

The blocks of the spline flow share one network, as those of DP-HFlow do. The
table is what `TabularSynthesizer` trains by default.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfdpflows
from tfdpflows import _keras, gradients
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models.flow import TableDensityModel
from tfdpflows.tabular.models.histogram import HistogramModel

keras = _keras.keras

MODELS = {
  'maf': {
    'event_size': 10,
    'num_blocks': 5,
    'hidden_units': (256, 256),
    'batch': 1024,
  },
  'spline': {
    'event_size': 14,
    'num_blocks': 3,
    'hidden_units': (128, 128),
    'batch': 1024,
  },
  'mlp': {
    'event_size': 784,
    'hidden_units': (256, 256),
    'num_classes': 10,
    'batch': 1024,
  },
  'table': {
    'event_size': 15,
    'num_bins': 16,
    'hidden_units': (64,),
    'batch': 2048,
  },
}
FLOOR = 'not private'
XLA = ', XLA'
STRATEGIES = {
  'Flat': lambda: gradients.Flat(1.0),
  'Automatic': lambda: gradients.Automatic(1.0),
  'PerLayer': lambda: gradients.PerLayer(1.0),
  'PerUnit': lambda: gradients.PerUnit(1.0),
  'StochasticSparsification': lambda: gradients.StochasticSparsification(
    1.0, sparsity=0.5
  ),
  'AdaptiveQuantile': lambda: gradients.AdaptiveQuantile(1.0),
}
# The same step in the memory of a part of the batch.
CHUNK = 512
CHUNKED = f'tfdpflows Flat, chunks of {CHUNK}'
VECTORIZED = 'TF Privacy VectorizedDPKerasAdam'
DP_MODEL = 'TF Privacy DPModel'
# Norms by a second backward pass, for the Keras layers in its registry.
DP_MODEL_FAST = 'TF Privacy DPModel, layer registry'

_PRIVACY = {'l2_norm_clip': 1.0, 'noise_multiplier': 1.0}
_LEARNING_RATE = 1e-3


def ours(strategy):
  """Returns the name of a variant: the library with a clipping strategy."""
  return f'tfdpflows {strategy}'


def variants(model, xla=True, tf_privacy=True):
  """Returns the names of all variants of a model.

  Args:
    model: one of `MODELS`.
    xla: whether to have those compiled by XLA too.
    tf_privacy: whether to have those of TF Privacy.
  """
  found = [FLOOR, *map(ours, STRATEGIES)]
  # `PrivateModel` takes its batch whole.
  found += [] if model == 'mlp' else [CHUNKED]
  if xla:
    found += [name + XLA for name in found]
  if tf_privacy:
    # Of splines that share a network it takes more than 24 GB, at this batch.
    found += [] if model == 'spline' else [VECTORIZED]
    found += [DP_MODEL]
    found += [DP_MODEL + XLA] if xla else []
    found += [DP_MODEL_FAST] if model == 'mlp' else []
  return found


class Step:
  """One training step, to be called with `data`.

  Args:
    train_step: of a compiled Keras model.
    variables: that it trains.
    data: what it takes, a structure of arrays.
    jit_compile: whether XLA compiles it.
    any_batch: whether the first axis of the data may change from call to call.

  Attributes:
    function: the `tf.function`; it returns a number that the step leaves in
      the variables, so that having it means that the step is done.
    data: the arguments of `function`.
  """

  def __init__(self, train_step, variables, data, jit_compile, any_batch=False):
    data = tf.nest.map_structure(tf.constant, data)
    signature = None
    if any_batch:
      signature = [
        tf.nest.map_structure(
          lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), data
        )
      ]

    def run(data):
      train_step(data)
      return tf.reshape(variables[-1], [-1])[0]

    self.function = tf.function(
      run, input_signature=signature, jit_compile=jit_compile
    )
    self.train_step, self.variables = train_step, variables
    self.data = (data,)

  def __call__(self):
    return float(self.function(*self.data).numpy())

  def on_first_rows(self, count):
    """As calling it, with the first rows of its data; needs `any_batch`."""
    data = tf.nest.map_structure(lambda x: x[:count], self.data)
    return float(self.function(*data).numpy())


def make_step(model, variant, *, any_batch=False, **shape):
  """Returns the `Step` of one variant.

  Args:
    model: one of `MODELS`.
    variant: one of `variants(model)`.
    any_batch: as in `Step`.
    **shape: what to change in `MODELS[model]`.

  Raises:
    ValueError: if there is no such model or variant.
  """
  if model not in MODELS or variant not in variants(model):
    raise ValueError(
      f'There is no {variant!r} of {model!r}. Models: {list(MODELS)}; '
      f'variants: {variants("mlp")}.'
    )
  shape = {**MODELS[model], **shape}
  jit_compile = variant.endswith(XLA)
  way = variant[: -len(XLA)] if jit_compile else variant
  rng = np.random.default_rng(0)
  rows = rng.normal(size=[shape['batch'], shape['event_size']])
  rows = rows.astype('float32')
  if model == 'mlp':
    labels = rng.integers(shape['num_classes'], size=[shape['batch']])
    trained, variables = _classifier(way, shape)
    data = (rows, labels)
  else:
    trained, variables = _density(model, way, shape)
    # `DPModel` learns from pairs only.
    data = (rows, rows[:, :1]) if way == DP_MODEL else (rows,)
  return Step(trained.train_step, variables, data, jit_compile, any_batch)


def _optimizer(way, batch):
  if way in (FLOOR, DP_MODEL, DP_MODEL_FAST):
    return keras.optimizers.legacy.Adam(_LEARNING_RATE)
  if way == VECTORIZED:
    return _keras.VectorizedDPKerasAdamOptimizer(
      learning_rate=_LEARNING_RATE, **_PRIVACY
    )
  strategy = way.split(',')[0].split()[-1]
  return tfdpflows.optimizers.DPKerasAdam(
    clipping=STRATEGIES[strategy](),
    chunk_size=CHUNK if way == CHUNKED else None,
    noise_multiplier=_PRIVACY['noise_multiplier'],
    expected_batch_size=batch,
    learning_rate=_LEARNING_RATE,
  )


def _density(model, way, shape):
  """Returns a compiled model of a flow, and its variables."""
  optimizer = _optimizer(way, shape['batch'])
  if model == 'table':
    density = _table(shape)
    flow = density.latent
  else:
    flow = _flow(model, shape)
  if way == DP_MODEL:
    trained = _dp_class(_LogProb)(use_xla=False, distribution=flow, **_PRIVACY)
    trained.compile(optimizer, loss=lambda unused_y, log_prob: -log_prob)
  elif model == 'table':
    points = tf.random.Generator.from_seed(0)
    trained = TableDensityModel(density, points, HistogramModel.ema_momentum)
    trained.compile(optimizer)
  else:
    trained = tfdpflows.DensityModel(flow)
    trained.compile(optimizer)
  return trained, flow.trainable_variables


def _table(shape):
  """Returns a table's density; its columns have as many values as bins."""
  size = shape['num_bins']
  columns = [
    EncodedColumn(f'x{j}', float(size), 1.0, missing=False, ordered=True)
    for j in range(shape['event_size'])
  ]
  marginal = {
    'edges': np.arange(size + 1.0),
    'probabilities': np.full(size, 1 / size),
  }
  model = HistogramModel(num_bins=size, hidden_units=shape['hidden_units'])
  return model.make_distribution(columns, [marginal] * len(columns), seed=0)


def _flow(model, shape):
  make_flow, arguments = {
    'maf': (tfdpflows.flows.masked_autoregressive_flow, {}),
    'spline': (tfdpflows.flows.neural_spline_flow, {'shared': True}),
  }[model]
  sizes = shape['event_size'], shape['num_blocks'], shape['hidden_units']
  return make_flow(*sizes, seed=0, **arguments)


def _classifier(way, shape):
  """Returns a compiled multi-layer perceptron, and its variables."""
  layers = [keras.layers.Input([shape['event_size']])]
  layers += [keras.layers.Dense(n, 'relu') for n in shape['hidden_units']]
  layers += [keras.layers.Dense(shape['num_classes'])]
  if way in (DP_MODEL, DP_MODEL_FAST):
    registry = _layer_registry() if way == DP_MODEL_FAST else None
    # The registry needs to know the layers before the model is made.
    outputs = layers[0]
    for layer in layers[1:]:
      outputs = layer(outputs)
    network = _dp_class(keras.Model)(
      use_xla=False,
      layer_registry=registry,
      inputs=layers[0],
      outputs=outputs,
      **_PRIVACY,
    )
    trained = network
  else:
    network = keras.Sequential(layers)
    private = way.startswith('tfdpflows')
    trained = tfdpflows.PrivateModel(network) if private else network
  reduction = 'none' if way == VECTORIZED else 'sum_over_batch_size'
  loss = keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction=reduction
  )
  trained.compile(_optimizer(way, shape['batch']), loss=loss)
  return trained, network.trainable_variables


class _LogProb(keras.Model):
  """The log-density as what a Keras model returns.

  In this way `DPModel` can train a flow: what is given to `add_loss` it would
  neither clip nor noise.
  """

  def __init__(self, distribution):
    super().__init__()
    self.distribution = distribution

  def call(self, x, training=None):
    del training
    return self.distribution.log_prob(tf.identity(x))[:, None]


def _dp_class(model_class):
  _import_tf_privacy()
  from tensorflow_privacy.privacy.keras_models import dp_keras_model

  return dp_keras_model.make_dp_model_class(model_class)


def _layer_registry():
  _import_tf_privacy()
  from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry

  return layer_registry.make_default_layer_registry()


def _import_tf_privacy():
  # `tensorflow_privacy` itself cannot be imported on TensorFlow >= 2.16; after
  # this its parts can.
  return _keras.VectorizedDPKerasAdamOptimizer
