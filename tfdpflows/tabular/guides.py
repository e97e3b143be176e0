"""Rounds of measuring what a trained model is most wrong about."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings

import dp_accounting
import numpy as np

from tfdpflows import mechanisms
from tfdpflows.tabular import tilt
from tfdpflows.tabular.progress import Line, Rounds

# Of each round's budget, as in AIM.
_SELECTION_SHARE = 0.1
# The last round has so many times the budget of the first: the model is less
# wrong by then, and only a finer measurement can say where.
_ANNEALING = 4.0
# More cells than that are not worth their noise, and their time.
_MOST_CELLS = 4096
_SAMPLE = 1 << 17
# Weighted rows are learned again until they are worth this share of even ones.
_HEALTHY, _MOST_DISTILLATIONS = 0.8, 3
_DISTILLATION = {'steps': 500, 'batch_size': 2048, 'learning_rate': 1e-3}


@dataclasses.dataclass(frozen=True)
class Round:
  """What a round spends.

  Attributes:
    epsilon: of the choice of columns.
    noise_multiplier: of the measurement.
  """

  epsilon: float
  noise_multiplier: float

  @property
  def event(self):
    """The `DpEvent` of the round."""
    return dp_accounting.ComposedDpEvent(
      [
        mechanisms.selection_event(self.epsilon),
        mechanisms.marginals_event(self.noise_multiplier),
      ]
    )


def plan_rounds(num_rounds, noise_multiplier):
  """Returns the `Round`s that together cost as much as one Gaussian mechanism.

  As zero-concentrated privacy counts it: a Gaussian of noise multiplier s costs
  `1 / (2 s^2)`, a choice of bounded range epsilon `epsilon^2 / 8` (Cesar and
  Rogers 2021). The accountant of the fit adds up the events themselves.

  Args:
    num_rounds: number of rounds, 0 or more.
    noise_multiplier: of that one mechanism.

  #### Example

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
  return rounds


def candidates(sizes, target=None):
  """Returns the groups of columns that a round chooses from, public ones.

  Args:
    sizes: number of bins of each column.
    target: number of the column whose dependence on two others is a candidate
      too; or `None`.

  Returns:
    A list of tuples: all pairs, and all triples with the target, that have
    4,096 cells at most.

  #### Example

  >>> candidates([2, 3, 2], target=2)
  [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
  """
  columns = range(len(sizes))
  groups = list(itertools.combinations(columns, 2))
  if target is not None:
    others = [j for j in columns if j != target]
    groups += [(*pair, target) for pair in itertools.combinations(others, 2)]
  return [g for g in groups if math.prod(sizes[j] for j in g) <= _MOST_CELLS]


def guide(
  density,
  codes,
  rounds,
  randomness,
  ledger,
  *,
  num_rows,
  target,
  resume,
  progress=False,
):
  """Measures the marginals that the model gets most wrong, and teaches it them.

  Each round weighs rows of the model to agree with what was measured so far
  (`tilt.tilt`), chooses the marginal that they are still most wrong about by
  the exponential mechanism, and measures it; the model is at last trained on
  the weighted rows.

  Args:
    density: the `TableDensity` of a `flows.histogram_flow`, trained, whose
      single columns are right.
    codes: private codes, float32 `[n, d]`.
    rounds: from `plan_rounds`.
    randomness: `Randomness`; streams 'guide ...' are used.
    ledger: `PrivacyLedger`, charged for every round before it looks at `codes`.
    num_rows: the public number of rows.
    target: see `candidates`.
    resume: whether rounds that were paid are repeated.
    progress: whether to show how far it is, in a terminal or notebook.

  Returns:
    A list of `tilt.Target`s, one for each marginal that was measured.

  #### Formal guarantee

  Only `mechanisms.select_marginal` and `mechanisms.noisy_marginals` see the
  codes; all else is made of the model and of what they released.
  """
  sizes = density.latent.bijector.num_bins
  groups = candidates(sizes, target)
  if not groups:
    warnings.warn(
      f'No pair of columns has {_MOST_CELLS} cells or fewer, so that there are '
      'no guides and their budget is not spent. Lower num_bins.',
      stacklevel=2,
    )
    return []
  bins = density.bins(codes)
  rng = randomness.numpy('guide rows')
  points = density.sample(_SAMPLE, rng)
  rows, weights = density.bins(points), np.ones(_SAMPLE)
  columns = _column_targets(rows, sizes)
  # A marginal may be measured again: the later target knows the earlier one.
  targets = {}
  line = Line(progress)
  shown = Rounds('guide', len(rounds), ledger, line)
  for number, spent in enumerate(rounds):
    expected = [
      mechanisms.count(rows, sizes, group, weights) / _SAMPLE
      for group in groups
    ]
    chosen = mechanisms.select_marginal(
      bins,
      sizes,
      groups,
      [num_rows * e for e in expected],
      spent.noise_multiplier,
      spent.epsilon,
      randomness,
      ledger,
      label=f'guide {number}: choice',
      resume=resume,
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
    )
    targets[groups[chosen]] = tilt.posterior(seen, expected[chosen], num_rows)
    weights = tilt.tilt(rows, sizes, [*targets.values(), *columns])
    shown.done()
  targets = list(targets.values())
  shown = Rounds('distillation', _MOST_DISTILLATIONS, ledger, line)
  _teach(density, points, weights, sizes, [*targets, *columns], rng, shown)
  line.close()
  return targets


def _column_targets(rows, sizes):
  """Single columns were measured with less noise than any pair: they stay."""
  return [
    tilt.Target((j,), mechanisms.count(rows, sizes, (j,)) / len(rows))
    for j in range(len(sizes))
  ]


def _teach(density, points, weights, sizes, targets, rng, shown):
  for _ in range(_MOST_DISTILLATIONS):
    seed = int(rng.integers(2**31))
    tilt.distil(density, points, weights, seed=seed, **_DISTILLATION)
    density.latent.bijector.match_marginals(seed=seed)
    points = density.sample(_SAMPLE, rng)
    weights = tilt.tilt(density.bins(points), sizes, targets)
    shown.done()
    if tilt.effective_share(weights) > _HEALTHY:
      break
