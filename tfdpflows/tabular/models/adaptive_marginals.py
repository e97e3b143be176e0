"""Adaptive marginals: measured where a trained model is most wrong.

In rounds, as in AIM (McKenna et al. 2022), the marginal that the model is most
wrong about is selected and measured. Rows of the model are raked (iterative
proportional fitting) to all that was measured, and the model is trained on the
weighted rows (distillation).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf
from absl import logging

from tfdpflows import accounting, mechanisms, sampling
from tfdpflows import progress as bars
from tfdpflows._keras import keras
from tfdpflows.accounting.events import describe_event
from tfdpflows.mechanisms import marginals, smoothing
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.density import TableDensity

# Share of the selection in the budget of a round, as in AIM.
_SELECTION_SHARE = 0.1
# Budget of the last round over that of the first: the model is less wrong by
# then, and only a finer measurement can show where.
_ANNEALING = 4.0
# Larger marginals are not worth their noise and their time.
_MOST_CELLS = 4096
_SAMPLE = 1 << 17
# The model is distilled until the effective sample size of the weighted rows is
# this share of their number.
_ENOUGH, _MOST_DISTILLATIONS = 0.8, 3
_DISTILLATION = {'steps': 500, 'batch_size': 2048, 'learning_rate': 1e-3}
# Raking: the largest factor of a cell's weight in one pass.
_LARGEST_FACTOR = 5.0
_PASSES, _CONVERGED = 50, 1e-4
_TINY = 1e-12


class Round(NamedTuple):
  """Epsilon of the selection, and noise multiplier of the measurement."""

  epsilon: float
  noise_multiplier: float

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of the round."""
    return dp_accounting.ComposedDpEvent(
      [
        accounting.ExponentialMechanismDpEvent(self.epsilon),
        dp_accounting.GaussianDpEvent(self.noise_multiplier),
      ]
    )


class Target(NamedTuple):
  """Probabilities, of sum 1, of the combinations of bins of some columns."""

  columns: tuple
  probabilities: np.ndarray


def plan_rounds(num_rounds: int, noise_multiplier: float) -> tuple[Round, ...]:
  """Returns `Round`s with the same zCDP cost as one Gaussian mechanism.

  A Gaussian mechanism of noise multiplier s has `rho = 1 / (2 s^2)`, a
  selection of bounded range epsilon `rho = epsilon^2 / 8` (Cesar and Rogers
  2021). The accountant of the fit composes the events themselves.

  >>> one, = plan_rounds(1, 2.)
  >>> round(one.epsilon, 3), round(one.noise_multiplier, 3)
  (0.316, 2.108)
  """
  weights = _ANNEALING ** np.linspace(0, 1, num_rounds)
  rounds = []
  for weight in weights / weights.sum():
    rho = weight / (2 * noise_multiplier**2)
    rounds.append(
      Round(
        math.sqrt(8 * _SELECTION_SHARE * rho),
        math.sqrt(1 / (2 * (1 - _SELECTION_SHARE) * rho)),
      )
    )
  return tuple(rounds)


def candidates(
  sizes: Sequence[int], target: int | None = None
) -> list[tuple[int, ...]]:
  """Returns the groups of columns that a round selects from.

  These are all pairs, and all triples with the target, of at most 4,096 cells.

  >>> candidates([2, 3, 2], target=2)
  [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
  """
  columns = range(len(sizes))
  groups = list(itertools.combinations(columns, 2))
  if target is not None:
    others = [j for j in columns if j != target]
    groups += [(*pair, target) for pair in itertools.combinations(others, 2)]
  return [g for g in groups if math.prod(sizes[j] for j in g) <= _MOST_CELLS]


def refine(
  density: TableDensity,
  codes: np.ndarray,
  rounds: Sequence[Round],
  randomness: Randomness,
  ledger: accounting.PrivacyLedger,
  *,
  total: float,
  units: sampling.Units | None,
  target: int | None,
  resume: bool,
  progress: bool = False,
) -> list[Target]:
  """Runs the rounds, and trains the model on what they measured.

  Args:
    density: a trained `HistogramDensity` with the released marginals.
    codes: private codes, float32 `[n, d]`; rows with NaN are left out.
    rounds: from `plan_rounds`.
    randomness: see `TableModel.refine`, as the other arguments.
    ledger: charged for every round.
    total: see `TableModel.train`.
    units: see there.
    target: number of the target column, or `None`.
    resume: whether rounds that were charged are repeated.
    progress: whether to show progress bars.

  Returns:
    A list of `Target`s, one for each marginal that was measured.

  #### Formal guarantee

  Only `mechanisms.select_marginal` and `mechanisms.noisy_marginals` see the
  codes; all else is post-processing.
  """
  sizes = density.latent.bijector.num_bins
  groups = candidates(sizes, target)
  if not groups:
    warnings.warn(
      f'No pair of columns has {_MOST_CELLS} cells or fewer, so that no '
      'marginal is measured and its budget is not spent. Lower num_bins.',
      stacklevel=2,
    )
    return []
  # Rows of NaN are absent, see `fitting.run_mechanisms`.
  bins = density.bins(codes[~np.isnan(codes).any(1)])
  # Names of streams and ledger entries are those of the first version, so that
  # seeded fits, and fits that were interrupted, come out the same.
  rng = randomness.numpy('guide rows')
  points = density.sample(_SAMPLE, rng)
  rows, weights = density.bins(points), np.ones(_SAMPLE)
  # Single columns were measured with less noise than any pair: they stay.
  columns = [
    Target((j,), marginals.count(rows, sizes, (j,)) / _SAMPLE)
    for j in range(len(sizes))
  ]
  # A marginal may be measured again: the later target knows the earlier one.
  targets = {}
  logging.info(
    'Refinement: %d marginals are chosen and measured, each charged as: %s.',
    len(rounds),
    describe_event(rounds[0].event),
  )
  shown = bars.bar('marginal', len(rounds), progress)
  for number, spent in enumerate(rounds):
    expected = [
      marginals.count(rows, sizes, group, weights) / _SAMPLE for group in groups
    ]
    chosen = mechanisms.select_marginal(
      bins,
      sizes,
      groups,
      [total * e for e in expected],
      spent.noise_multiplier,
      spent.epsilon,
      randomness,
      ledger,
      label=f'guide {number}: choice',
      resume=resume,
      units=units,
    )
    (seen,) = mechanisms.noisy_marginals(
      bins,
      sizes,
      [groups[chosen]],
      spent.noise_multiplier,
      randomness,
      ledger,
      label=f'guide {number}: marginal',
      resume=resume,
      units=units,
    )
    targets[groups[chosen]] = shrunken(seen, expected[chosen], total)
    weights = rake(rows, sizes, [*targets.values(), *columns])
    bars.add_one(shown, ledger)
  shown.close()
  targets = list(targets.values())
  shown = bars.bar('distillation', _MOST_DISTILLATIONS, progress)
  for _ in range(_MOST_DISTILLATIONS):
    seed = int(rng.integers(2**31))
    distill(density, points, weights, seed=seed, **_DISTILLATION)
    density.latent.bijector.match_marginals(seed=seed)
    points = density.sample(_SAMPLE, rng)
    weights = rake(density.bins(points), sizes, [*targets, *columns])
    bars.add_one(shown, ledger)
    if effective_share(weights) > _ENOUGH:
      break
  shown.close()
  return targets


def shrunken(
  marginal: mechanisms.Marginal, expected: np.ndarray, total: float
) -> Target:
  """Returns a noisy marginal shrunk towards the model's, as a `Target`.

  Empirical Bayes: the error of the model in a cell of probability m is given
  the variance `v = c m`, with c estimated from how much farther the measurement
  is from the model than its noise s explains. Each cell moves towards the
  measurement by the share `v / (v + s^2)`, and all together to a sum of 1.

  >>> from tfdpflows import mechanisms
  >>> seen = mechanisms.Marginal((0,), np.array([800., 200., 20.]), 20.)
  >>> shrunken(seen, np.array([.9, .1, 0.]), 1000).probabilities.round(2)
  array([0.81, 0.19, 0.  ])
  """
  expected = np.asarray(expected, np.float64)
  noise = marginal.std / total
  gap = marginal.counts / total - expected
  excess = np.sum(gap**2) - gap.size * noise**2
  if excess <= 0:
    return Target(tuple(marginal.columns), expected / expected.sum())
  variance = excess * expected
  trust = variance / (variance + noise**2)
  found = smoothing.match_total(
    (expected + trust * gap).ravel(), trust.ravel() + _TINY, 1.0
  )
  return Target(tuple(marginal.columns), found.reshape(expected.shape))


def rake(
  bins: np.ndarray, sizes: Sequence[int], targets: Sequence[Target]
) -> np.ndarray:
  """Returns weights `[n]`, of mean 1, with which rows have the targets.

  Raking (iterative proportional fitting), marginal by marginal. Of all weights
  that reach the targets it finds those of least relative entropy to equal ones.
  Cells without rows stay empty; contradictory targets are met in turn.

  >>> rows = np.array([[0], [1], [1], [1]])
  >>> rake(rows, [2], [Target((0,), np.array([.5, .5]))]).round(3)
  array([2.   , 0.667, 0.667, 0.667])
  """
  weights = np.full(len(bins), 1 / max(len(bins), 1))
  cells = [marginals.cells(bins, sizes, t.columns) for t in targets]
  for _ in range(_PASSES):
    largest = 0.0
    for cell, target in zip(cells, targets):
      wanted = target.probabilities.ravel()
      share = np.bincount(cell, weights, minlength=len(wanted))
      factor = np.ones_like(share)
      np.divide(wanted, share, out=factor, where=share > 0)
      factor = np.clip(factor, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
      largest = max(largest, np.sum(share * np.abs(factor - 1)))
      weights *= factor[cell]
      weights /= weights.sum()
    if largest < _CONVERGED:
      break
  return weights * len(bins)


def effective_share(weights: np.ndarray) -> float:
  """Returns the effective sample size of weighted rows, as a share of all.

  >>> effective_share([1., 1., 0., 0.])
  0.5
  """
  weights = np.asarray(weights, np.float64)
  return float(weights.sum() ** 2 / (np.sum(weights**2) * len(weights)))


def distill(
  density: TableDensity,
  points: np.ndarray,
  weights: np.ndarray,
  *,
  steps: int,
  batch_size: int,
  learning_rate: float,
  seed: int,
) -> None:
  """Trains the flow of `density` on points drawn from it, by weight."""
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
