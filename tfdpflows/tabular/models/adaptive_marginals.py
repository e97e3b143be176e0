"""Adaptive marginals: measured where a model is most wrong, and fitted.

In rounds, as in AIM (McKenna, Mullins, Sheldon and Miklau 2022), the marginal
that a model is most wrong about is selected and measured. The model is a
`LogLinearModel` of all that was measured before; a flow learns its rows.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf
from absl import logging
from scipy import special

from tfdpflows import accounting, bijectors, mechanisms, sampling
from tfdpflows import progress as bars
from tfdpflows._keras import keras
from tfdpflows.accounting.events import describe_event
from tfdpflows.mechanisms import smoothing
from tfdpflows.mechanisms.marginals import BinnedRows
from tfdpflows.tabular.models import within_bins
from tfdpflows.tabular.models.log_linear import LogLinearModel

if TYPE_CHECKING:
  from tfdpflows.tabular.work_directory import WorkDirectory

# Share of the selection in the budget of a round, as in AIM.
_SELECTION_SHARE = 0.1
# Budget of the last round over that of the first: the model is less wrong by
# then, and only a finer measurement can show where.
_ANNEALING = 4.0
# Rows of the model for each of the table, the fewest and the most: their error
# of sampling is to be small beside the noise.
_ROWS_PER_ROW, _FEWEST_ROWS, _MOST_ROWS = 16, 4096, 1 << 15
# Rounds at the end in which pairs may be measured within their bins, of all.
_FINER_SHARE = 1 / 4
# Larger marginals are not worth their noise and their time.
_MOST_CELLS = 4096
# Groups that a round selects from.
MOST_CANDIDATES = 4096
# A round selects from all triples if an error of this share of the rows would
# stand out of so many: else they would hide the pairs.
_VISIBLE = 0.1
# After the last measurement: fits, and the rows of the model for each of the
# table, the most, and the most values in all of them.
_LAST_FITS = 6
_LAST_ROWS_PER_ROW, _MOST_LAST_ROWS, _MOST_LAST_VALUES = 4, 1 << 17, 1 << 21
_TINY = 1e-12
# Empty cells: multiples of the moment estimate of c that are tried, the share
# to begin with, steps of EM, and by how much the logarithm of the likelihood
# must grow.
_FACTORS = np.logspace(-1.5, 2, 15)
_EMPTY, _EM_STEPS, _EVIDENCE = 0.2, 12, 3.0
# Of raking to the probabilities of columns, and to correlations.
_PASSES = 3
# Rank correlations: steps of Newton's method, how much of one is tried, and
# what bounds the weights where noise asks for more than there can be.
_NEWTON_STEPS, _TRIED, _RIDGE = 30, 0.5 ** np.arange(12), 1e-3
# The most variance of the noise of a correlation that is estimated: more there
# is of columns that nearly all rows have one value of, or of very few rows.
_MOST_NOISE = 1 / 16
# Learning rows: steps of Adam, and how many of them see the same rows.
_STEPS, _BATCH, _LEARNING_RATE, _SAME_ROWS = 600, 1024, 5e-3, 60
# Steps of one call of TensorFlow, a divisor of those with the same rows. Calls
# would take a third of the time of a small table, and batches of all steps at
# once too much memory of a wide one.
_STEPS_OF_CALL = 20
_BETA_1, _BETA_2 = 0.9, 0.999
LEARNED_ROWS = _STEPS * _BATCH


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


class Measured(NamedTuple):
  """Measured probabilities, of unknown sum, and the std of their noise."""

  probabilities: np.ndarray
  std: float


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


class Candidates:
  """The groups of columns that a round selects from.

  These are all pairs, all triples with the target, and the triples that hold a
  pair which was measured; after `widen` all triples. They have at most 4,096
  cells each. Groups are rows of arrays of numbers: a wide table has millions.

  Args:
    sizes: number of bins of each column.
    target: number of the target column, or `None`.

  #### Example

  >>> found = Candidates([2, 3, 2, 2])
  >>> found.add((0, 1))
  >>> len(found)
  8
  >>> found.some(np.arange(5, 8))
  [(2, 3), (0, 1, 2), (0, 1, 3)]
  """

  def __init__(self, sizes: Sequence[int], target: int | None = None):
    self._sizes = np.asarray(sizes, np.int64)
    one, two = np.triu_indices(len(sizes), 1)
    few = self._sizes[one] * self._sizes[two] <= _MOST_CELLS
    self._pairs = np.stack([one[few], two[few]], 1)
    self._triples = np.empty(0, np.int64)
    if target is not None:
      others = (one != target) & (two != target)
      self._add(one[others], two[others], target)

  def add(self, group: Sequence[int]) -> None:
    """Adds the triples that hold a group that was measured, if it is a pair."""
    if len(group) == 2:
      others = np.setdiff1d(np.arange(len(self._sizes)), group)
      self._add(*group, others)

  def widen(self, epsilon: float, total: float) -> None:
    """Adds all triples, if they are few and the worst would stand out.

    One that no pair shows, as a parity of three columns, is never a candidate
    otherwise.
    """
    d = len(self._sizes)
    groups = len(self._pairs) + math.comb(d, 3)
    if d < 3 or groups > MOST_CANDIDATES:
      return
    if epsilon * _VISIBLE * total / 2 >= math.log(groups):
      self._add(*np.array([*itertools.combinations(range(d), 3)]).T)

  def __len__(self) -> int:
    return len(self._pairs) + len(self._triples)

  def some(self, numbers: np.ndarray) -> list[tuple[int, ...]]:
    """Returns the groups of some ascending numbers below `len`."""
    d, pairs = len(self._sizes), len(self._pairs)
    triples = self._triples[numbers[numbers >= pairs] - pairs]
    triples = np.stack([triples // d**2, triples // d % d, triples % d], 1)
    found = [self._pairs[numbers[numbers < pairs]], triples]
    return [tuple(group) for part in found for group in part.tolist()]

  def _add(self, *columns):
    """Adds triples; numbers in base d, they are in the order of tuples."""
    found = np.sort(np.stack(np.broadcast_arrays(*columns), 1), 1)
    few = np.prod(self._sizes[found], 1) <= _MOST_CELLS
    d = len(self._sizes)
    self._triples = np.union1d(
      self._triples, found[few] @ np.array([d**2, d, 1])
    )


class Estimate:
  """What is known of a table's marginals, and a model that has them.

  Args:
    probabilities: for each column those of its bins, as they were released.
    total: number of rows of the table.
    rng: `np.random.Generator` of the model's rows.
    lazy: see `LogLinearModel`.

  Attributes:
    total: as given.
    model: the `LogLinearModel`.
    columns: for each column the probabilities of its bins, as they are known
      from all that was measured: float64 arrays of sum 1.
  """

  def __init__(
    self,
    probabilities: Sequence[np.ndarray],
    total: float,
    rng: np.random.Generator,
    lazy: bool = False,
  ):
    self.total = total
    self._released = [np.asarray(p, np.float64) for p in probabilities]
    self._measured = {}
    self._targets = {}
    self.columns = list(self._released)
    rows = np.clip(_ROWS_PER_ROW * total, _FEWEST_ROWS, _MOST_ROWS)
    self.model = LogLinearModel(self.columns, rng, int(rows), lazy)

  @property
  def groups(self) -> list[tuple[int, ...]]:
    """The groups of columns that were measured."""
    return list(self._measured)

  def measured_pairs(
    self, columns: Iterable[int]
  ) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Returns pairs of some columns that were measured together.

    Returns:
      Pairs of their two numbers and the model's probabilities of their bins.
    """
    columns = set(columns)
    found = {
      pair
      for group in self.groups
      for pair in itertools.combinations(sorted(columns & {*group}), 2)
    }
    pairs = sorted(found)
    return list(zip(pairs, self.model.marginals(pairs)))

  def expected(self, groups: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Returns the counts that the model expects, each `sizes[group]`."""
    return [self.total * p for p in self.model.marginals(groups)]

  def updated(self, marginal: mechanisms.Marginal) -> np.ndarray:
    """Returns the counts that the model expects, given a noisy marginal too."""
    found = self._shrunken(self._measured_of(marginal), marginal.columns)
    return self.total * found

  def add(self, marginal: mechanisms.Marginal) -> None:
    """Adds a noisy marginal of the table, and fits the model."""
    group = tuple(marginal.columns)
    new = self._measured_of(marginal)
    self._targets[group] = self._shrunken(new, group)
    if group in self._measured:
      new = _average([self._measured[group], new])
    self._measured[group] = new
    # Noise makes marginals that share a column disagree about it. All are set
    # to one estimate.
    for j in group:
      self.columns[j] = self._column(j)
    for known, target in self._targets.items():
      wanted = [self.columns[j] for j in known]
      self._targets[known] = with_columns(target, wanted)
      self.model.set_marginal(known, self._targets[known])
    for j, column in enumerate(self.columns):
      self.model.set_marginal((j,), column)
    self.model.fit()

  def _measured_of(self, marginal):
    return Measured(marginal.counts / self.total, marginal.std / self.total)

  def _shrunken(self, measured, group):
    return shrunken(measured, self.model.marginal(group))

  def _column(self, j):
    """Returns what a histogram and the marginals say of a column together."""
    seen = []
    for group, measured in self._measured.items():
      if j in group:
        p = measured.probabilities
        column = p.sum(_other_axes(p, group.index(j)))
        std = measured.std * math.sqrt(p.size / column.size)
        # Divided by their sum, which may be near 0 or less, they would be off
        # by much more than that.
        column = column + (1 - column.sum()) / column.size
        seen.append(Measured(column, std))
    return shrunken(_average(seen), self._released[j])


def measure(
  bins: np.ndarray,
  sizes: Sequence[int],
  estimate: Estimate,
  rounds: Sequence[Round],
  work: WorkDirectory,
  *,
  finer: within_bins.FinerRows | None = None,
  units: sampling.Units | None = None,
  target: int | None = None,
) -> list[within_bins.Edge]:
  """Runs the rounds: each selects a marginal and adds it to an estimate.

  Where columns turn out to be nearly functions of each other, such pairs are
  measured in parts of their bins in the last of these rounds, a quarter of them
  at most.

  Args:
    bins: private bins of the rows, int `[n, d]`.
    sizes: number of bins of each column.
    estimate: an `Estimate`.
    rounds: from `plan_rounds`.
    work: see `TableModel.train`; its ledger is charged for every round.
    finer: the rows in parts of bins; `None` to measure bins alone.
    units: see `TableModel.train`.
    target: number of the target column, or `None`.

  Returns:
    What was learned of values within bins, for `within_bins.WithinBins`.

  #### Formal guarantee

  Only `mechanisms.select_marginal` and `mechanisms.noisy_marginals` see the
  bins; all else is post-processing. Whatever is measured in a round, its events
  are those that were planned. They are charged too where no pair has few enough
  cells to be measured: how many bins a column has is read off noisy counts, and
  what is claimed of a fit must not depend on these.
  """
  sizes = tuple(sizes)
  candidates = Candidates(sizes, target)
  if not len(candidates):
    warnings.warn(
      f'No pair of columns has {_MOST_CELLS} cells or fewer, so that no '
      'marginal is measured. The budget of marginals is spent all the same: '
      'how many bins there are was found with noise. Lower num_bins.',
      stacklevel=2,
    )
    work.ledger.charge(
      dp_accounting.ComposedDpEvent([planned.event for planned in rounds]),
      label='marginals that were not measured',
      resume=work.resume,
      privacy_unit=None if units is None else units.name,
    )
    return []
  logging.info(
    'Marginals: %d are chosen and measured, the first charged as: %s.',
    len(rounds),
    describe_event(rounds[0].event),
  )
  rows, finer_rows = BinnedRows(bins, sizes, units), None
  finer_rounds = 0
  if finer is not None:
    # A tree of all columns comes first.
    left = max(len(rounds) - len(sizes), 0)
    finer_rounds = min(int(_FINER_SHARE * len(rounds)), left)
  pairs, seen_within = [], []
  shown = bars.bar('marginal', len(rounds), work.progress)
  charged = {
    'randomness': work.randomness,
    'ledger': work.ledger,
    'resume': work.resume,
    'units': units,
  }

  def select_and_measure(number, rows, groups, expected):
    chosen = mechanisms.select_marginal(
      rows,
      rows.sizes,
      groups,
      expected,
      rounds[number - 1].noise_multiplier,
      rounds[number - 1].epsilon,
      label=f'selection {number}',
      **charged,
    )
    (seen,) = mechanisms.noisy_marginals(
      rows,
      rows.sizes,
      [groups[chosen]],
      rounds[number - 1].noise_multiplier,
      label=f'marginal {number}',
      **charged,
    )
    bars.add_one(shown, work.ledger)
    return seen

  for number, spent in enumerate(rounds, 1):
    left = len(rounds) - number + 1
    if left == finer_rounds:
      pairs = within_bins.dependent_pairs(
        estimate.measured_pairs(finer.parts), finer.parts
      )
      finer_rounds = min(finer_rounds, within_bins.forest_size(pairs))
    if pairs and left <= finer_rounds:
      if finer_rows is None:
        finer_rows = BinnedRows(finer.load(), finer.sizes, units)
      groups = within_bins.open_pairs(pairs, [m.columns for m in seen_within])
      expected = [
        finer.expected(pair, counts)
        for pair, counts in zip(groups, estimate.expected(groups))
      ]
      seen = select_and_measure(number, finer_rows, groups, expected)
      seen_within.append(seen)
      estimate.add(finer.of_bins(seen))
      continue
    candidates.widen(spent.epsilon, estimate.total)
    kept = np.arange(len(candidates))
    if len(kept) > MOST_CANDIDATES:
      # Drawn without the rows: of a wide table all would take minutes.
      rng = work.randomness.numpy('candidates', number)
      kept = np.sort(rng.choice(len(kept), MOST_CANDIDATES, replace=False))
    groups = candidates.some(kept)
    seen = select_and_measure(number, rows, groups, estimate.expected(groups))
    estimate.add(seen)
    candidates.add(seen.columns)
  shown.close()
  most = min(_MOST_LAST_ROWS, _MOST_LAST_VALUES // len(sizes))
  wanted = int(min(_LAST_ROWS_PER_ROW * estimate.total, most))
  estimate.model.grow(max(wanted, len(estimate.model.rows)))
  for number in range(_LAST_FITS):
    estimate.model.fit(rate=1 / (number + 1))
  return [
    finer.edge(seen, estimate.updated(finer.of_bins(seen)))
    for seen in seen_within
  ]


def shrunken(measured: Measured, expected: np.ndarray) -> np.ndarray:
  """Returns probabilities between what was measured and what was expected.

  Empirical Bayes: the error of the expectation in a cell of probability m is
  given the variance `v = c m`, with c estimated from how much farther the
  measurement is from it than its noise s explains. The posterior given that no
  probability is negative has mean and variance of a truncated normal; cells
  move to a sum of 1 by their variance. All are positive: a bin without any
  could not be raked (`with_columns`).

  Most cells of columns that (nearly) determine each other are empty, and the
  positive means of the noise there would add up to many rows. Where it makes
  the measurement clearly more likely, each cell is therefore empty with a
  probability that is estimated along with c, by maximum likelihood.

  All cells move towards the expectation alike, and correlations with them,
  though noise hides these least: they are sums over all cells. Where it makes
  the measurement clearly more likely, the expectation first gets the rank
  correlations that were measured (`_correlations`).

  Args:
    measured: the `Measured` marginal.
    expected: probabilities of a model, of the same shape.

  >>> seen = Measured(np.array([.8, .2, .02]), .02)
  >>> shrunken(seen, np.array([.9, .1, 0.])).round(2)
  array([0.81, 0.19, 0.  ])
  """
  expected = np.maximum(np.asarray(expected, np.float64), _TINY)
  found, likelihood = _towards(measured, expected)
  correlations = _correlations(measured, expected)
  if len(correlations[1]):
    correlated = _with_means(expected, *correlations)
    other, other_likelihood = _towards(measured, correlated)
    if other_likelihood > likelihood + _EVIDENCE:
      return other
  return found


def _towards(measured, expected):
  """Returns `shrunken`, but for correlations, and the log-likelihood."""
  gap = measured.probabilities - expected
  excess = np.sum(gap**2) - gap.size * measured.std**2
  # If the expectation were the truth; up to the constant of `_Posterior`.
  exact = -np.sum((gap / measured.std) ** 2) / 2
  exact -= gap.size * math.log(measured.std)
  if excess <= 0:
    return expected / expected.sum(), exact
  cells, empty = _posterior(measured, expected, excess), 0.0
  others = [_posterior(measured, expected, f * excess) for f in _FACTORS]
  likelihood = max(found.log_likelihood.sum() for found in others)
  mixed = [_with_empty(measured, found) for found in others]
  best = int(np.argmax([likelihood for likelihood, _ in mixed]))
  if mixed[best][0] > likelihood + _EVIDENCE:
    cells = others[best]
    likelihood, empty = mixed[best]
  mean = np.maximum((1 - empty) * cells.mean, _TINY)
  variance = (1 - empty) * (cells.variance + empty * cells.mean**2)
  variance = variance / measured.std**2 + _TINY
  found = smoothing.match_total(mean.ravel(), variance.ravel(), 1.0)
  found = np.maximum(found, _TINY).reshape(expected.shape)
  return found, max(likelihood, exact)


def _correlations(measured, expected):
  """Estimates the rank correlation of each two columns of a marginal.

  It is between those measured and expected, the closer to what was measured the
  farther their difference stands out of its noise (James and Stein). Of columns
  without an order it is of their bins as they come, which is seldom much.

  Returns:
    Functions of the cells, `[cells, k]`, the products of two columns' ranks of
    mean 0 and variance 1; and what their means are to be, `[k]`.
  """
  total = expected.sum()
  ranks = []
  for axis in range(expected.ndim):
    p = expected.sum(_other_axes(expected, axis)) / total
    rank = np.cumsum(p) - p / 2
    rank = rank - p @ rank
    spread = math.sqrt(p @ rank**2)
    if spread > _TINY:
      shape = [-1 if i == axis else 1 for i in range(expected.ndim)]
      ranks.append((rank / spread).reshape(shape))
  products = [
    np.broadcast_to(one * other, expected.shape).ravel()
    for one, other in itertools.combinations(ranks, 2)
  ]
  functions = np.reshape(products, (-1, expected.size)).T
  known = (expected.ravel() / total) @ functions
  gap = measured.probabilities.ravel() @ functions - known
  noise = measured.std**2 * np.sum(functions**2, 0)
  seen = (gap**2 > noise) & (noise < _MOST_NOISE)
  kept = gap[seen] - noise[seen] / gap[seen]
  return functions[:, seen], np.clip(known[seen] + kept, -1.0, 1.0)


def _with_means(probabilities, functions, wanted):
  """Returns probabilities of the same columns, of which functions have means.

  They are the nearest ones in relative entropy, but for the ridge.
  """
  columns = [
    probabilities.sum(_other_axes(probabilities, axis))
    for axis in range(probabilities.ndim)
  ]
  found = probabilities
  for _ in range(_PASSES):
    logits = np.log(found.ravel())
    logits += functions @ _weights(logits, functions, wanted)
    # More of the corners is more of the ends of both columns, too.
    found = with_columns(special.softmax(logits).reshape(found.shape), columns)
  return found


def _weights(logits, functions, wanted):
  """Returns by which weights of functions these get means: `[k]`."""

  def loss(weights):
    total = special.logsumexp(logits + weights @ functions.T, axis=-1)
    return total - weights @ wanted + _RIDGE / 2 * np.sum(weights**2, -1)

  weights = np.zeros(len(wanted))
  for _ in range(_NEWTON_STEPS):
    p = special.softmax(logits + functions @ weights)
    mean = p @ functions
    slope = mean - wanted + _RIDGE * weights
    bend = (functions.T * p) @ functions - np.outer(mean, mean)
    move = np.linalg.solve(bend + _RIDGE * np.eye(len(mean)), slope)
    # A whole step may go too far.
    tried = weights - np.append(_TRIED, 0.0)[:, None] * move
    best = np.argmin(loss(tried))
    if best == len(_TRIED):
      break
    weights = tried[best]
  return weights


class _Posterior(NamedTuple):
  """Mean and variance of cells that are not empty, and what was seen of them.

  The logarithm of the likelihood of each cell is up to one constant.
  """

  mean: np.ndarray
  variance: np.ndarray
  log_likelihood: np.ndarray


def _posterior(measured, expected, factor):
  """Returns the `_Posterior` of cells with prior variances `factor m`."""
  gap, prior = measured.probabilities - expected, factor * expected
  seen = prior + measured.std**2
  trust = prior / seen
  mean, std = expected + trust * gap, np.sqrt(trust) * measured.std
  # The mean of what is above zero: mean plus std times the inverse Mills ratio.
  z = mean / std
  hazard = math.sqrt(2 / math.pi) / special.erfcx(-z / math.sqrt(2))
  return _Posterior(
    mean + std * hazard,
    std**2,
    -(gap**2 / seen + np.log(seen)) / 2
    + special.log_ndtr(z)
    - special.log_ndtr(expected / np.sqrt(prior)),
  )


def _with_empty(measured, cells):
  """Lets cells be empty, with the likeliest probability of that (by EM).

  Returns:
    The log-likelihood of the measurement, and the probability that each cell is
    empty.
  """
  seen, variance = measured.probabilities, measured.std**2
  log_empty = -(seen**2 / variance + np.log(variance)) / 2
  share = _EMPTY
  for _ in range(_EM_STEPS):
    one = np.log(share) + log_empty
    other = np.log1p(-share) + cells.log_likelihood
    both = np.logaddexp(one, other)
    empty = np.exp(one - both)
    share = np.clip(empty.mean(), _TINY, 1 - _TINY)
  return both.sum(), empty


def with_columns(
  probabilities: np.ndarray, columns: Sequence[np.ndarray]
) -> np.ndarray:
  """Returns a marginal whose columns have given probabilities (raking).

  >>> with_columns(np.full([2, 2], .25), [[.5, .5], [.9, .1]]).round(2)
  array([[0.45, 0.05],
         [0.45, 0.05]])
  """
  found = np.maximum(probabilities, _TINY)
  for _ in range(_PASSES):
    for axis, wanted in enumerate(columns):
      rest = _other_axes(found, axis)
      ratio = np.asarray(wanted) / found.sum(rest)
      found = found * np.expand_dims(ratio, rest)
  return found / found.sum()


def _other_axes(array, axis):
  return tuple(i for i in range(array.ndim) if i != axis)


def learn_rows(
  flow: bijectors.AutoregressiveHistogram,
  model: LogLinearModel,
  seed: int,
  progress: bool = False,
) -> None:
  """Trains a flow on rows of a log-linear model, by maximum likelihood.

  The flow is over its columns, with its bins; its rows move on.
  """
  rng = np.random.default_rng(seed)
  variables = flow.trainable_variables
  adam = [
    (tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v)))
    for v in variables
  ]
  rate = keras.optimizers.schedules.CosineDecay(
    _LEARNING_RATE, _STEPS, alpha=0.02
  )

  # TensorFlow's kernel of Adam: a Keras optimizer in a graph keeps the graph
  # for ever, and outside of one takes most of the time of a small table.
  def update(bins, step):
    with tf.GradientTape() as tape:
      ratios = flow.log_ratios(flow.middle(bins))
      loss = -tf.reduce_mean(tf.reduce_sum(ratios, -1))
    for v, (m, s), g in zip(variables, adam, tape.gradient(loss, variables)):
      tf.raw_ops.ResourceApplyAdam(
        var=v.handle,
        m=m.handle,
        v=s.handle,
        beta1_power=_BETA_1 ** (step + 1),
        beta2_power=_BETA_2 ** (step + 1),
        lr=rate(step),
        beta1=_BETA_1,
        beta2=_BETA_2,
        epsilon=1e-7,
        grad=g,
      )

  @tf.function(autograph=False)
  def update_all(batches, first):
    def body(i):
      update(batches[i], first + tf.cast(i, tf.float32))
      return (i + 1,)

    tf.while_loop(lambda i: i < _STEPS_OF_CALL, body, (0,))

  shown = bars.bar('learning', _STEPS // _SAME_ROWS, progress)
  for step in range(0, _STEPS, _STEPS_OF_CALL):
    batches = [model.batch(rng, _BATCH) for _ in range(_STEPS_OF_CALL)]
    update_all(tf.constant(np.stack(batches)), tf.constant(step, tf.float32))
    if (step + _STEPS_OF_CALL) % _SAME_ROWS == 0:
      model.fit(rate=1 / _LAST_FITS)
      model.redraw_others()
      shown.update()
  shown.close()


def _average(measured):
  """Returns the mean of some `Measured`, by precision."""
  precision = np.array([m.std**-2 for m in measured])
  mean = sum(m.probabilities * p for m, p in zip(measured, precision))
  return Measured(mean / precision.sum(), float(precision.sum() ** -0.5))
