"""Conditional histograms: each column's bins given those of the ones before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import flows, sampling
from tfdpflows._keras import tfp
from tfdpflows.bijectors import marginal
from tfdpflows.mechanisms import histograms
from tfdpflows.stored_rows import BlockFile, MappedRows, StoredRows
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.encoding import EncodedColumn, number_of
from tfdpflows.tabular.models import adaptive_marginals, within_bins
from tfdpflows.tabular.models.base import (
  choice,
  positive,
  share,
  whole,
  widths,
)
from tfdpflows.tabular.models.flow import FlowModel
from tfdpflows.tabular.ordered_codes import (
  Bins,
  OrderedBins,
  OrderedCodes,
  Pair,
)

if TYPE_CHECKING:
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory

# Defaults: bins per square root of the number of rows over the noise of a count
# that costs the whole budget, and the fewest and most.
_BINS_PER_SIGNAL, _FEWEST_BINS, _MOST_BINS = 1 / 8, 4, 16
# Rounds: for each column, the fewest and the most, and how many standard
# deviations of the noise the mean count of a pair of columns is at least.
_ROUNDS_PER_COLUMN, _FEWEST_ROUNDS, _MOST_ROUNDS = 2, 2, 80
_LEAST_SIGNAL = 3.0
# Columns, beyond which only those that were measured together are connected,
# and the most steps of training then.
_WIDE, _WIDE_STEPS = 90, 400
# Rows over the noise from where on there are the most bins. What is above it is
# for training, which then bears a larger learning rate, up to three times as
# large: measurements get a share the smaller for it, and histograms up to a
# tenth of the budget less.
_MOST_SIGNAL = (_MOST_BINS / _BINS_PER_SIGNAL) ** 2
_FASTER, _FASTEST, _TAKEN = 0.6, 3.0, 0.1
# Without measurements training starts at independent columns, farther away.
_FROM_INDEPENDENCE = {'marginal_share': 0.25, 'learning_rate': 0.015}
_EPOCHS_ALONE = 64.0
# A bin with this multiple of an equal share is not joined to the ones before.
_HEAVY = 0.5
# How often values within bins are drawn again, to meet inequalities.
_MOST_MOVES = 200
# The number, folded into a seed, of draws within bins.
_WITHIN = 2**31 - 1
# Neighbouring categories have nothing in common: they are joined only where
# there are more than this many times `num_bins`.
_CATEGORIES = 4


@dataclasses.dataclass(frozen=True)
class HistogramModel(FlowModel):
  """One histogram for each column, a function of the bins before it.

  Marginals of pairs and triples of columns are selected and measured
  (`adaptive_marginals`); the network learns rows of a log-linear model that has
  them, and DP-SGD trains it from there.

  `for_table` sets the number of bins to `sqrt(n / s) / 8`, from 4 to 16, for n
  rows and a count's noise of standard deviation s, had it the whole budget: a
  pair of columns has the square of that number of cells, so that their mean
  count is in a fixed ratio to the noise of a measurement. (Where units may have
  m rows, each of which weighs 1/m, n is the weight of all rows, as the
  histograms tell it; until then s is `sqrt(m)` times that.) There are two
  rounds for each column; fewer where that mean count would be less than 3
  standard deviations of the noise.
  Beyond the `n / s` of 16,384 where there are 16 bins, training gets more of
  the budget and a larger learning rate.

  `num_bins` is the largest number of bins of an ordered column (`knots`).

  Attributes:
    target: name of the column to predict from the others; the last one in the
      order of the flow, so that it depends on all others.
    target_weight: how many times its log-probability counts in training.
    matching: whether the marginals of the trained flow are set to what is known
      of them.
    adaptive_marginals: how many joint marginals of columns are selected and
      measured; 0 for none, then training starts at independent columns.
    adaptive_share: share of the budget that goes to them, as `marginal_share`.
    connections: which columns the network connects directly, beside those that
      its hidden units do: 'all', whose number grows with the square of that of
      all bins; or 'measured', those that were measured together, with which a
      table of hundreds of columns is learned in minutes. By default 'measured'
      beyond 90 columns.
    within_bins: whether pairs of columns of which one is nearly a function of
      the other are measured within their bins too, in some of the rounds.

  #### Example

  >>> model = HistogramModel.for_table(32_000, 9, noise_multiplier=3.73)
  >>> model.num_bins, model.adaptive_marginals
  (12, 18)
  """

  name: ClassVar[str] = 'histogram'
  exact_density: ClassVar[bool] = True

  marginal_share: float = share(0.35)
  hidden_units: tuple = widths((64,))
  num_bins: int = whole(16, 2)
  epochs: float = positive(32.0)
  l2_norm_clip: float = positive(12.0)
  learning_rate: float = positive(0.003)
  target: str | None = None
  target_weight: float = positive(4.0)
  matching: bool = True
  adaptive_marginals: int = whole(0, 0)
  adaptive_share: float = share(0.4)
  connections: str = choice('all', ('all', 'measured'))
  within_bins: bool = True

  def __post_init__(self):
    super().__post_init__()
    shares = self.marginal_share + self.adaptive_share
    if self.adaptive_marginals and shares >= 1:
      raise ValueError(
        f'marginal_share is {self.marginal_share} and adaptive_share '
        f'{self.adaptive_share}; they must leave a share for training.'
      )

  @classmethod
  def _defaults(
    cls, num_examples, num_columns, noise_multiplier, hyperparameters
  ):
    found = super()._defaults(
      num_examples, num_columns, noise_multiplier, hyperparameters
    )
    rounds = min(_ROUNDS_PER_COLUMN * num_columns, _MOST_ROUNDS)
    if noise_multiplier is not None:
      signal = num_examples / noise_multiplier
      bins = _bins_of(signal)
      # Of R rounds each has noise sqrt(R / share) times that of the budget.
      most = cls.adaptive_share * (signal / (_LEAST_SIGNAL * bins**2)) ** 2
      rounds = int(np.clip(most, _FEWEST_ROUNDS, rounds))
      found['num_bins'] = bins
      faster = (signal / _MOST_SIGNAL) ** _FASTER
      faster = float(np.clip(faster, 1, _FASTEST))
      found['learning_rate'] = cls.learning_rate * faster
      found['adaptive_share'] = cls.adaptive_share / faster
      taken = _TAKEN * min(faster - 1, 1)
      found['marginal_share'] = cls.marginal_share - taken
    found['adaptive_marginals'] = rounds
    given = {**found, **hyperparameters}
    if num_columns > _WIDE and given['adaptive_marginals']:
      found['connections'] = 'measured'
      most = _WIDE_STEPS * given['expected_batch_size'] / max(num_examples, 1)
      found['epochs'] = min(found['epochs'], most)
    if not given['adaptive_marginals']:
      most = cls._most_epochs(num_examples, given['expected_batch_size'])
      found.update(_FROM_INDEPENDENCE, epochs=min(_EPOCHS_ALONE, most))
    return found

  def for_total(
    self, total: float, noise_multiplier: float, hyperparameters: dict[str, Any]
  ) -> HistogramModel:
    """See `TableModel`: with as many bins as that number of rows would have."""
    if 'num_bins' in hyperparameters:
      return self
    return dataclasses.replace(
      self, num_bins=_bins_of(max(total, 0) / noise_multiplier)
    )

  def expected_seconds(
    self,
    columns: Sequence[EncodedColumn],
    num_examples: int,
    spending: Spending,
  ) -> float | None:
    """See `TableModel`: a formula of public numbers, within a factor of two."""
    d, rounds = len(columns), len(spending.rounds)
    bins = sum(
      min(c.size, self.num_bins * (_CATEGORIES if not c.ordered else 1))
      if c.cell
      else self.num_bins
      for c in columns
    )
    dense = bins * bins if self.connections == 'all' else 0
    # Of a row in training: of what each bin takes, and each weight.
    row = 4e-8 * bins + 1.2e-10 * dense
    seconds = 12 + 0.06 * d
    if rounds:
      groups = min(d * (d - 1) / 2, adaptive_marginals.MOST_CANDIDATES)
      seconds += rounds * groups * (8e-5 + 2.5e-9 * num_examples)
      moved = d if self.connections == 'all' else min(d, 2 * rounds)
      seconds += (rounds + 16) * moved * 1.5e-3
      seconds += adaptive_marginals.LEARNED_ROWS * row
    if spending.plan is not None:
      batch = min(self.expected_batch_size, num_examples)
      seconds += spending.plan.steps * (0.01 + 1.5 * batch * row)
    return seconds

  def make_flow(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None,
  ) -> tfp.distributions.TransformedDistribution:
    """See `TableModel`; the target comes last."""
    places = [
      knots(column, m['probabilities'], self.num_bins)
      for column, m in zip(columns, marginals)
    ]
    order = list(range(len(columns)))
    target = number_of(columns, self.target)
    if target is not None:
      order.append(order.pop(target))
    connections = None
    if self.connections == 'measured':
      # Of a model that was learned; before, there are none.
      connections = [m.get('connected', []) for m in marginals]
    return flows.histogram_flow(
      places,
      self.hidden_units,
      order=order,
      seed=seed,
      connections=connections,
    )

  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> HistogramDensity:
    """See `TableModel`."""
    weights = [1.0] * len(columns)
    target = number_of(columns, self.target)
    if target is not None:
      weights[target] = self.target_weight
    cuts = [
      np.asarray(m['edges'], np.float64)[
        kept_edges(column, m['probabilities'], self.num_bins)
      ]
      for column, m in zip(columns, marginals)
    ]
    density = HistogramDensity(
      *self._density_arguments(columns, marginals, seed), cuts, weights
    )
    density.depend_within(
      within_bins.Edge(
        (j, other['column']), np.array(other['weights'], np.float32)
      )
      for j, m in enumerate(marginals)
      for other in m.get('within', ())
    )
    return density

  def plan_start(self, noise_multiplier: float) -> tuple:
    """See `TableModel`: the rounds of adaptive measurement."""
    if not self.adaptive_marginals:
      return ()
    return adaptive_marginals.plan_rounds(
      self.adaptive_marginals, noise_multiplier / np.sqrt(self.adaptive_share)
    )

  def train(
    self,
    distribution: HistogramDensity,
    codes: np.ndarray,
    spending: Spending,
    work: WorkDirectory,
    *,
    units: sampling.Units | None,
    total: float,
  ) -> None:
    """See `TableModel`: by measured marginals, DP-SGD and matching."""
    known = None
    if spending.rounds:
      known = self._measured(
        distribution, codes, spending.rounds, work, units, total
      )
    super().train(distribution, codes, spending, work, units=units, total=total)
    if self.matching:
      seed = int(work.randomness.numpy('matching').integers(2**31))
      flow = distribution.latent.bijector
      flow.match_marginals(seed=seed, probabilities=known)

  def _measured(self, density, codes, rounds, work, units, total):
    """Measures marginals; returns the probabilities of each column's bins."""
    flow = density.latent.bijector
    estimate = adaptive_marginals.Estimate(
      flow.masses,
      total,
      work.randomness.numpy('log-linear model'),
      lazy=self.connections == 'measured',
    )
    for pair, possible in density.possible_bins().items():
      estimate.model.forbid(pair[:2], ~possible)
    bins = density.bins(_present(codes))
    if isinstance(codes, StoredRows) and codes.path is not None:
      dtype = np.min_scalar_type(max(flow.num_bins) - 1)
      bins = BlockFile(bins, f'{codes.path}.bins', dtype)
    within = adaptive_marginals.measure(
      bins,
      flow.num_bins,
      estimate,
      rounds,
      work,
      finer=density.finer_rows(codes) if self.within_bins else None,
      units=units,
      target=number_of(density.columns, self.target),
    )
    if isinstance(bins, BlockFile):
      bins.remove()
    density.depend_within(within)
    if self.connections == 'measured':
      possible = [pair[:2] for pair in density.possible_bins()]
      density.connect([*estimate.groups, *possible])
    seed = int(work.randomness.numpy('learning rows').integers(2**31))
    adaptive_marginals.learn_rows(flow, estimate.model, seed, work.progress)
    return estimate.columns


class HistogramDensity(TableDensity):
  """A `TableDensity` whose flow is a `flows.histogram_flow`.

  Args:
    columns: see `TableDensity`.
    marginals: see there.
    latent: see there, a `flows.histogram_flow`.
    dequantization: see there.
    cuts: for each column the codes where its bins meet, float64; the knots of
      the flow are their normal scores.
    weights: factors of the columns' log-probabilities in training.
  """

  def __init__(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    latent: tfp.distributions.TransformedDistribution,
    dequantization: flows.dequantization.UniformDequantization | None,
    cuts: Sequence[np.ndarray],
    weights: Sequence[float],
  ):
    super().__init__(columns, marginals, latent, dequantization)
    self._weights = np.array(weights, np.float32)
    self._connected = None
    histogram = [
      Bins(
        np.asarray(cut, np.float64),
        histograms.search_edges(cut, column),
        np.asarray(m['edges'], np.float64),
        np.asarray(m['probabilities'], np.float64),
      )
      for column, m, cut in zip(columns, marginals, cuts)
    ]
    # As one function, which checkpoints do not look into.
    self._histograms = lambda: histogram
    self._ordered = self._within = None

  def constrain(self, order: OrderedCodes) -> None:
    """See `TableDistribution`.

    Rows keep their bins, where these can meet the inequalities, and get other
    values within them: no bin becomes less probable for being one in which few
    values meet them.
    """
    super().constrain(order)
    if self._order is not None:
      bins = {j: self._histograms()[j] for j in order.columns}
      self._ordered = OrderedBins(order, bins)

  def possible_bins(self) -> dict[Pair, np.ndarray]:
    """Returns which bins of two columns can meet an inequality, by `Pair`."""
    return {} if self._ordered is None else self._ordered.possible

  def _draw(
    self, shape: Sequence[int] | tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    if self._within is None and self._ordered is None:
      return super()._draw(shape, seed)
    scores = self.latent.sample(shape, seed=seed)
    rows = self.marginal.inverse(scores)
    # Of the codes, which are rounded, some would be others.
    bins = self._bins_of(scores)
    if self._within is not None:
      other = tf.random.experimental.stateless_fold_in(seed, _WITHIN)
      rows = self._within().moved(rows, bins, other)
    if self._ordered is None:
      return rows
    possible = self._ordered.is_possible(
      {j: bins[j] for j in self._order.columns}
    )

    def again(rows):
      return self._order.broken(rows) & possible

    def move(number, rows):
      # Other numbers than those of other rows.
      other = tf.random.experimental.stateless_fold_in(seed, -1 - number)
      return number + 1, self._ordered.moved(rows, bins, again(rows), other)

    _, rows = tf.while_loop(
      lambda number, rows: (number < _MOST_MOVES) & tf.reduce_any(again(rows)),
      move,
      [tf.constant(0), rows],
    )
    return rows

  def log_correction(self, x: tf.Tensor) -> tf.Tensor:
    """See `TableDensity`; here also of values within bins."""
    return self._log_order(x) + self.log_within(x)

  def _log_order(self, x):
    """What inequalities add to log-densities."""
    if self._ordered is None:
      return super().log_correction(x)
    share = self._ordered.log_share(x)
    met = ~self._order.broken(x, rounded=True) & (share > -np.inf)
    # Bins in which few values meet them are not always met in so many draws.
    draws = np.float64(1 + _MOST_MOVES)
    found = tf.math.log(
      -tf.math.expm1(draws * tf.math.log1p(-tf.math.exp(share)))
    )
    found = tf.where(met, found - share - self.log_normalizer, -np.inf)
    return tf.cast(found, tf.float32)

  def connect(self, groups: Sequence[Sequence[int]]) -> None:
    """Connects the columns of groups directly with each other.

    Args:
      groups: tuples of numbers of columns, as they were measured.
    """
    found = [set() for _ in self.columns]
    for group in groups:
      for j in group:
        found[j].update(i for i in group if i != j)
    connected = [sorted(others) for others in found]
    self.latent.bijector.connect(connected)
    # As a function: see above.
    self._connected = lambda: connected

  def finer_rows(self, codes: np.ndarray | StoredRows) -> within_bins.FinerRows:
    """Returns rows in parts of the bins of ordered columns.

    Those that inequalities compare are left out: values of theirs are drawn
    within bins until they meet them.

    Args:
      codes: private codes `[n, d]`.
    """
    compared = [] if self._ordered is None else self._order.columns
    parts = {
      j: within_bins.divide(histogram, column)
      for j, (histogram, column) in enumerate(
        zip(self._histograms(), self.columns)
      )
      if column.ordered and j not in compared
    }
    parts = {j: found for j, found in parts.items() if found.divided.any()}
    cuts = [
      parts[j].cuts if j in parts else cut
      for j, cut in enumerate(self._search_cuts())
    ]

    sizes = tuple(len(cut) + 1 for cut in cuts)
    return within_bins.FinerRows(
      parts, sizes, lambda: self.bins(_present(codes), cuts)
    )

  def depend_within(self, edges: Iterable[within_bins.Edge]) -> None:
    """Makes values of columns depend on each other within their bins.

    Args:
      edges: from `adaptive_marginals.measure`.

    Raises:
      ValueError: if their weights are not of the bins of these columns.
    """
    # In one order, however they come: seeds draw the same rows again.
    edges = sorted(edges, key=lambda edge: edge.columns)
    if edges:
      parts = {
        j: within_bins.divide(self._histograms()[j], self.columns[j])
        for edge in edges
        for j in edge.columns
      }
      for edge in edges:
        shape = tuple(len(parts[j].shares) for j in edge.columns)
        if edge.weights.shape[:-1] != shape:
          raise ValueError(
            f'The weights within bins of columns {edge.columns} have the shape '
            f'{edge.weights.shape}, and there are {shape} bins: model.json is '
            'damaged. Restore it from a copy.'
          )
      within = within_bins.WithinBins(parts, edges)
      # As a function: see above.
      self._within = lambda: within

  def log_within(
    self, x: tf.Tensor, scores: tf.Tensor | None = None
  ) -> tf.Tensor:
    """See `TableDensity`."""
    if self._within is None:
      return super().log_within(x, scores)
    flat = tf.reshape(x, [-1, x.shape[-1]])
    bins = None
    if scores is not None:
      bins = self._bins_of(tf.reshape(scores, [-1, x.shape[-1]]))
    found = self._within().log_prob(flat, bins)
    return tf.cast(tf.reshape(found, tf.shape(x)[:-1]), tf.float32)

  def _bins_of(self, scores):
    """Returns the bins of each column, of normal scores `[n, d]`."""
    bins = tf.unstack(self.latent.bijector.bins(scores), axis=1)
    return dict(enumerate(bins))

  def learned(self) -> list[dict]:
    """See `TableDistribution`."""
    found = [dict(of_one) for of_one in super().learned()]
    if self._connected is not None:
      for of_one, others in zip(found, self._connected()):
        of_one['connected'] = others
    for edge in [] if self._within is None else self._within().edges:
      j, other = edge.columns
      pair = {'column': other, 'weights': edge.weights.tolist()}
      found[j].setdefault('within', []).append(pair)
    return found

  def gains(self, points: tf.Tensor) -> tf.Tensor:
    """See `TableDensity`; here columns count by their weights."""
    return self._weighted(self.marginal.forward(points))

  def _search_cuts(self):
    return [histogram.search_cuts for histogram in self._histograms()]

  def bins(
    self,
    x: np.ndarray | StoredRows,
    cuts: Sequence[np.ndarray] | None = None,
  ) -> np.ndarray | StoredRows:
    """Returns the bin of each code `[n, d]`, int32 `[n, d]`.

    Exactly, where normal scores in float32 are not: a spike of a continuous
    column is a bin of a few units in the last place of its codes.

    Args:
      x: codes; of `StoredRows` the result is such too, uint16.
      cuts: for each column the codes where bins meet; those of the flow by
        default.
    """
    if cuts is None:
      cuts = self._search_cuts()
    return bins_of(x, cuts, self._cell)

  def estimate_log_prob(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """See `TableDensity`; exactly, since densities are even within cells."""
    del uniform
    bins, densities = [], []
    for j, (column, histogram) in enumerate(
      zip(self.columns, self._histograms())
    ):
      cells = histograms.search_edges(histogram.edges[1:-1], column)
      values = tf.cast(x[:, j], tf.float64)
      bins.append(
        tf.searchsorted(
          tf.constant(histogram.search_cuts), values, side='right'
        )
      )
      cell = tf.searchsorted(tf.constant(cells), values, side='right')
      densities.append(tf.gather(tf.constant(histogram.log_densities), cell))
    scores = self.latent.bijector.middle(tf.stack(bins, 1))
    ratios = tf.reduce_sum(self.latent.bijector.log_ratios(scores), -1)
    density = tf.cast(tf.add_n(densities), ratios.dtype)
    return ratios + density + self.volume(x) + self.log_correction(x)

  def training_rows(self, codes: np.ndarray) -> np.ndarray:
    """See `TableDensity`: normal scores in the middles of the bins."""
    if self.dequantization.variables:
      return codes
    if isinstance(codes, StoredRows):
      return MappedRows(
        codes,
        lambda x: self.latent.bijector.middle(self.bins(x)).numpy(),
        [
          *(h.search_cuts for h in self._histograms()),
          *self.latent.bijector.masses,
        ],
      )
    rows = self.latent.bijector.middle(self.bins(codes)).numpy()
    # Rows that are absent stay so.
    return np.where(np.isnan(codes), np.nan, rows).astype(np.float32)

  def row_losses(self, rows: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """See `TableDensity`."""
    if self.dequantization.variables:
      return super().row_losses(rows, uniform)
    return -self._weighted(rows)

  def _weighted(self, scores):
    ratios = self.latent.bijector.log_ratios(scores)
    return tf.reduce_sum(ratios * self._weights, -1)


def bins_of(
  codes: np.ndarray | StoredRows,
  cuts: Sequence[np.ndarray],
  cells: Sequence[float],
) -> np.ndarray | StoredRows:
  """Returns the bin of each code, see `HistogramDensity.bins`.

  Args:
    codes: `[n, d]`.
    cuts: for each column the codes where bins meet.
    cells: for each column `EncodedColumn.cell`.
  """
  if not isinstance(codes, StoredRows):
    found = [
      np.searchsorted(cut, codes[:, j].astype(np.float64), side='right')
      for j, cut in enumerate(cuts)
    ]
    return np.stack(found, 1).astype(np.int32)
  # The bin of each code where codes are cells; higher ones are in the last.
  tables = {
    j: np.searchsorted(
      cut, np.arange(np.ceil(cut.max(initial=0)) + 1), side='right'
    ).astype(np.uint16)
    for j, cut in enumerate(cuts)
    if cells[j]
  }

  def bins(x):
    found = np.empty(x.shape, np.uint16, order='F')
    for j, cut in enumerate(cuts):
      if cells[j]:
        table = tables[j]
        codes = np.minimum(x[:, j].astype(np.int64), len(table) - 1)
        found[:, j] = table[codes]
      else:
        found[:, j] = np.searchsorted(
          cut, x[:, j].astype(np.float64), side='right'
        )
    return found

  return MappedRows(codes, bins, cuts)


def _bins_of(signal):
  """Returns a number of bins for rows over the noise of a count."""
  bins = np.round(_BINS_PER_SIGNAL * np.sqrt(signal))
  return int(np.clip(bins, _FEWEST_BINS, _MOST_BINS))


def _present(codes):
  """Returns the rows of codes but those of NaN, which are absent.

  See `fitting.run_mechanisms`; of stored rows none are.
  """
  if isinstance(codes, StoredRows):
    return codes
  return codes[~np.isnan(codes).any(1)]


def knots(
  column: EncodedColumn, probabilities: Sequence[float], num_bins: int
) -> np.ndarray:
  """Returns the normal scores of the edges between the bins of a column.

  >>> from tfdpflows.tabular.encoding import EncodedColumn
  >>> age = EncodedColumn('age', 8., 1., missing=False, ordered=True)
  >>> knots(age, [1 / 8] * 8, num_bins=2)
  array([0.])
  """
  kept = kept_edges(column, probabilities, num_bins)
  return marginal.normal_scores(probabilities)[kept - 1]


def kept_edges(
  column: EncodedColumn, probabilities: Sequence[float], num_bins: int
) -> np.ndarray:
  """Returns the numbers of the inner edges of a histogram that bins keep.

  Neighbouring bins of the private histogram are joined until they hold about
  `1 / num_bins` of the rows; heavy ones, such as a spike at zero, stay single.
  Where spikes leave a share r of the rows, these get `num_bins * sqrt(r)` bins:
  fewer than a whole column, more than their share. Categories are not joined,
  up to four times as many.
  """
  if column.cell and not column.ordered:
    num_bins *= _CATEGORIES
  if len(probabilities) > num_bins:
    return _joined(np.asarray(probabilities), num_bins)
  return np.arange(1, len(probabilities))


def _joined(probabilities, num_bins):
  """Returns the numbers of the edges that remain between joined bins."""
  share = np.sum(probabilities) / num_bins
  spikes = probabilities >= share
  rest = np.sum(probabilities[~spikes]) / np.sum(probabilities)
  share *= np.sqrt(rest)
  kept, mass = [], 0.0
  for i, p in enumerate(probabilities):
    if mass and (p >= _HEAVY * share or mass + p > share):
      kept.append(i)
      mass = 0.0
    mass += p
  return np.array(kept, int)
