"""Rows of a model, weighted to have measured marginals, and learned again."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.mechanisms import marginals, smoothing

# No round moves the weight of a cell by a larger factor.
_MOST = 5.0
_ROUNDS = 50
_DONE = 1e-4
_TINY = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
  """A marginal that weighted rows should have.

  Attributes:
    columns: numbers of the columns, a tuple.
    probabilities: of the combinations of their bins, of sum 1.
  """

  columns: tuple
  probabilities: np.ndarray


def posterior(marginal, expected, num_rows):
  """Returns what a noisy marginal and the model together say: a `Target`.

  What the model misses in a cell is taken to have a variance in proportion to
  the cell's share m, `v = c m`. How much, is estimated from how much farther
  the measurement is from the model than its noise s would be. Each cell moves
  by its part of the variance, `v / (v + s^2)`, and all together to a sum of 1:
  where rows are the measurement is believed, where there are few the model.
  Post-processing.

  Args:
    marginal: a `mechanisms.Marginal`.
    expected: the model's probabilities, of the same shape.
    num_rows: number of rows that were measured.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import mechanisms
  >>> seen = mechanisms.Marginal((0,), np.array([800., 200., 20.]), 20.)
  >>> posterior(seen, np.array([.9, .1, 0.]), 1000).probabilities.round(2)
  array([0.81, 0.19, 0.  ])
  """
  expected = np.asarray(expected, np.float64)
  noise = marginal.std / num_rows
  gap = marginal.counts / num_rows - expected
  excess = np.sum(gap**2) - gap.size * noise**2
  if excess <= 0:
    return Target(tuple(marginal.columns), expected / expected.sum())
  variance = excess * expected
  trust = variance / (variance + noise**2)
  found = smoothing.match_total(
    (expected + trust * gap).ravel(), trust.ravel() + _TINY, 1.0
  )
  return Target(tuple(marginal.columns), found.reshape(expected.shape))


def tilt(bins, sizes, targets):
  """Weighs rows so that they have the target marginals: raking.

  Iterative proportional fitting of the weights, marginal by marginal, which
  among all weights that reach the targets finds those nearest to even ones in
  relative entropy, the exponential tilt. Cells without rows stay empty.

  Args:
    bins: integers `[n, d]`, the bins of rows of the model.
    sizes: number of bins of each column, `[d]`.
    targets: sequence of `Target`s. Those that contradict each other are met
      in turn.

  Returns:
    float64 weights `[n]` of mean 1.

  #### Example

  >>> import numpy as np
  >>> rows = np.array([[0], [1], [1], [1]])
  >>> tilt(rows, [2], [Target((0,), np.array([.5, .5]))]).round(3)
  array([2.   , 0.667, 0.667, 0.667])
  """
  weights = np.full(len(bins), 1 / max(len(bins), 1))
  cells = [marginals.cells(bins, sizes, t.columns) for t in targets]
  for _ in range(_ROUNDS):
    largest = 0.0
    for cell, target in zip(cells, targets):
      wanted = target.probabilities.ravel()
      share = np.bincount(cell, weights, minlength=len(wanted))
      factor = np.ones_like(share)
      np.divide(wanted, share, out=factor, where=share > 0)
      factor = np.clip(factor, 1 / _MOST, _MOST)
      largest = max(largest, np.sum(share * np.abs(factor - 1)))
      weights *= factor[cell]
      weights /= weights.sum()
    if largest < _DONE:
      break
  return weights * len(bins)


def effective_share(weights):
  """Returns how many even rows weighted ones are worth, as a share of all.

  #### Example

  >>> effective_share([1., 1., 0., 0.])
  0.5
  """
  weights = np.asarray(weights, np.float64)
  return float(weights.sum() ** 2 / (np.sum(weights**2) * len(weights)))


def distil(density, points, weights, *, steps, batch_size, learning_rate, seed):
  """Learns weighted rows of the model by maximum likelihood. Costs nothing.

  Args:
    density: the `TableDensity` whose flow is changed.
    points: points `[n, d]`, drawn from it.
    weights: `[n]`, by which they count.
    steps: of Adam.
    batch_size: rows of a step, drawn by weight.
    learning_rate: at the start; decays along half a cosine.
    seed: of the batches.
  """
  rng = np.random.default_rng(seed)
  optimizer = keras.optimizers.Adam(
    keras.optimizers.schedules.CosineDecay(learning_rate, steps, alpha=0.05)
  )
  variables = density.latent.trainable_variables

  @tf.function(autograph=False)
  def step(x):
    with tf.GradientTape() as tape:
      loss = -tf.reduce_mean(density.gains(x))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

  # Drawn at once: choosing by weight costs as much for one row as for many.
  chosen = rng.choice(
    len(points), (steps, batch_size), p=weights / np.sum(weights)
  )
  for rows in chosen:
    step(tf.constant(points[rows]))
