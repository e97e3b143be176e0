"""A network whose rows have a given mean embedding in every class."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_LATENT = 16
_DECAYED = 0.05  # of the learning rate at the end


class EmbeddingGenerator(tf.Module):
  """Maps noise and a label to numbers in [0, 1] and category probabilities.

  It sees the noisy embedding only, so that training it costs no privacy.

  Args:
    features: the `FeatureMap` of the embedding.
    hidden_units: widths of the hidden layers.
    seed: integer that weights and noise derive from.
  """

  def __init__(self, features, hidden_units=(256, 256), seed=0):
    super().__init__()
    self._features = features
    self._num_numbers = len(features.blocks.numbers)
    self._sizes = [size for _, size in features.blocks.groups]
    self._num_classes = features.blocks.num_classes
    self._rng = tf.random.Generator.from_seed(seed)
    widths = [
      _LATENT + self._num_classes,
      *hidden_units,
      self._num_numbers + sum(self._sizes),
    ]
    draw = np.random.default_rng(seed)
    self._kernels = [
      tf.Variable(draw.normal(0, np.sqrt(2 / a), [a, b]), dtype=tf.float32)
      for a, b in zip(widths, widths[1:])
    ]
    self._biases = [tf.Variable(tf.zeros([b])) for b in widths[1:]]

  def fit(self, embedding, *, steps, batch_size, learning_rate):
    """Matches the embedding, class by class, in mean square.

    Every class weighs the same, however rare it is, as the paper does for
    unbalanced labels.

    Args:
      embedding: `[c, f]`, mean features of every class.
      steps: number of steps.
      batch_size: rows of a step, spread evenly over the classes.
      learning_rate: of Adam, before it decays along half a cosine.

    Returns:
      The loss of the last step, a float.
    """
    target = tf.constant(embedding, tf.float32)
    rows = max(2, batch_size // self._num_classes)
    labels = tf.repeat(tf.range(self._num_classes), rows)
    variables = [*self._kernels, *self._biases]
    optimizer = tf.keras.optimizers.Adam(
      tf.keras.optimizers.schedules.CosineDecay(
        learning_rate, steps, alpha=_DECAYED
      )
    )

    @tf.function
    def step():
      with tf.GradientTape() as tape:
        found = self._embed(*self(labels))
        means = tf.reduce_mean(
          tf.reshape(found, [self._num_classes, rows, -1]), axis=1
        )
        loss = tf.reduce_mean(tf.reduce_sum((means - target) ** 2, axis=1))
      optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
      return loss

    loss = np.nan
    for _ in range(steps):
      loss = step()
    return float(loss)

  def __call__(self, labels):
    """Draws rows of given labels.

    Args:
      labels: int `[n]`.

    Returns:
      `(numbers [n, k], probabilities)`, the latter one float32 `[n, size]` for
      each one-hot block.
    """
    x = self._rng.normal([tf.shape(labels)[0], _LATENT])
    x = tf.concat([x, tf.one_hot(labels, self._num_classes)], axis=1)
    for kernel, bias in zip(self._kernels[:-1], self._biases[:-1]):
      x = tf.nn.relu(x @ kernel + bias)
    x = x @ self._kernels[-1] + self._biases[-1]
    numbers, *logits = tf.split(x, [self._num_numbers, *self._sizes], axis=1)
    return tf.sigmoid(numbers), [tf.nn.softmax(part) for part in logits]

  def _embed(self, numbers, probabilities):
    """Features in expectation over the categories: they are linear in them."""
    fourier_scale, one_hot_scale = self._features.scales
    parts = []
    if self._num_numbers:
      angles = numbers @ tf.constant(self._features.frequencies, tf.float32)
      parts += [tf.cos(angles) * fourier_scale, tf.sin(angles) * fourier_scale]
    parts += [part * one_hot_scale for part in probabilities]
    return tf.concat(parts, axis=1)
