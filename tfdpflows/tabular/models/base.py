"""The base class of table models, and the fields of its hyper-parameters."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from tfdpflows import accounting, flows, gradients
from tfdpflows._keras import tfp
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.density import TableDensity, cells
from tfdpflows.tabular.encoding import EncodedColumn

# Larger tables gain nothing by larger batches or more steps.
_LARGEST_BATCH, _MOST_STEPS = 4000.0, 1000
_CLIPPING = {
  'flat': gradients.Flat,
  'per_layer': gradients.PerLayer,
  'per_unit': gradients.PerUnit,
  'sparsification': gradients.StochasticSparsification,
}


def _checked(default, is_valid, message):
  metadata = {'is_valid': is_valid, 'message': message}
  return dataclasses.field(default=default, metadata=metadata)


def share(default: float) -> Any:
  """A hyper-parameter between 0 and 1, neither of them."""
  return _checked(default, lambda v: 0 < v < 1, 'must be in (0, 1)')


def fraction(default: float) -> Any:
  """A hyper-parameter from 0 to below 1."""
  return _checked(default, lambda v: 0 <= v < 1, 'must be in [0, 1)')


def positive(default: float) -> Any:
  """A hyper-parameter above 0, and finite."""
  return _checked(default, lambda v: 0 < v < math.inf, 'must be > 0')


def whole(default: int, least: int) -> Any:
  """A hyper-parameter that is a whole number."""
  message = f'must be whole and at least {least}'
  return _checked(default, lambda v: v == int(v) >= least, message)


def widths(default: tuple) -> Any:
  """A hyper-parameter of whole numbers, one for each hidden layer."""
  is_valid = lambda v: len(v) and all(w == int(w) >= 1 for w in v)
  return _checked(default, is_valid, 'must be whole numbers, one at least')


def choice(default: str, choices: Sequence[str]) -> Any:
  """A hyper-parameter that is one of some words."""
  choices = tuple(choices)
  return _checked(default, lambda v: v in choices, f'must be one of {choices}')


@dataclasses.dataclass(frozen=True)
class TableModel(abc.ABC):
  """A table model: its hyper-parameters, its flow, what it adds to a fit.

  A fit measures the marginals of all columns, trains the flow with the rest of
  the budget, and lets the model refine what was trained. A model declares its
  hyper-parameters with defaults and valid values (`share`, `positive`, `whole`,
  ...), and defines `make_flow` and, where needed, `plan_refinement` and
  `refine`. It has a row in `tabular.models.MODELS`.

  Attributes:
    name: name of the model.
    marginal_share: share of the budget (of the squared signal-to-noise ratio)
      that goes to the private marginals; the rest trains the flow.
    hidden_units: width of each hidden layer.
    num_bins: number of bins, see the model.
    expected_batch_size: mean size of a Poisson batch.
    epochs: passes over the table, on average.
    l2_norm_clip: bound of one row's gradient.
    clipping: 'flat', 'per_layer', 'per_unit' or 'sparsification', see
      `tfdpflows.gradients`.
    sparsity: share of the coordinates that each step drops, for clipping
      'sparsification'.
    learning_rate: of Adam, before it decays along half a cosine.
    ema_momentum: of the average of the weights over the steps.
    loss_bound: bound of one row's loss in the released progress, in nats.
    dequantization: how points are placed in the cells of discrete columns in
      training and for log-probabilities: 'uniform' or 'variational'.
    augmentation_multiplicity: points per row and step, whose gradients are
      averaged before they are clipped.

  Raises:
    ValueError: for a value out of range.
  """

  name: ClassVar[str]

  marginal_share: float = share(0.15)
  hidden_units: tuple = widths((128, 128))
  num_bins: int = whole(8, 2)
  expected_batch_size: float = positive(2000.0)
  epochs: float = positive(20.0)
  l2_norm_clip: float = positive(10.0)
  clipping: str = choice('flat', _CLIPPING)
  sparsity: float = fraction(0.0)
  learning_rate: float = positive(2e-3)
  ema_momentum: float = fraction(0.99)
  loss_bound: float = positive(20.0)
  dequantization: str = choice('uniform', ('uniform', 'variational'))
  augmentation_multiplicity: int = whole(1, 1)

  def __post_init__(self):
    object.__setattr__(self, 'hidden_units', tuple(self.hidden_units))
    for field in dataclasses.fields(self):
      value, metadata = getattr(self, field.name), field.metadata
      if metadata and not metadata['is_valid'](value):
        raise ValueError(
          f'{field.name} is {value!r}; it {metadata["message"]}.'
        )
    if self.sparsity and self.clipping != 'sparsification':
      raise ValueError(
        f'sparsity is {self.sparsity} and clipping {self.clipping!r}; only '
        "clipping='sparsification' drops coordinates."
      )

  @classmethod
  def for_table(
    cls, num_examples: int, num_columns: int, **hyperparameters: Any
  ) -> TableModel:
    """Returns the model for a table, a function of public sizes alone.

    Args:
      num_examples: number of rows.
      num_columns: number of columns.
      **hyperparameters: values that replace the defaults.

    Raises:
      ValueError: for an unknown hyper-parameter or a bad value.

    >>> from tfdpflows.tabular.models.spline import SplineModel
    >>> SplineModel.for_table(32_561, 15, epochs=5).epochs
    5
    """
    names = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(hyperparameters) - names)
    if unknown:
      raise ValueError(
        f'Unknown hyper-parameters {unknown} of model {cls.name!r}; it has '
        f'{sorted(names)}.'
      )
    # A sixteenth of a small table, so that 16 steps make an epoch at most.
    batch = max(1.0, min(_LARGEST_BATCH, num_examples / 16))
    found = cls(**{'expected_batch_size': batch, **hyperparameters})
    if 'epochs' not in hyperparameters:
      most = _MOST_STEPS * found.expected_batch_size / max(num_examples, 1)
      found = dataclasses.replace(found, epochs=min(found.epochs, most))
    found.check_columns(num_columns)
    return found

  def check_columns(  # noqa: B027 (most flows have all)
    self, num_columns: int
  ) -> None:
    """Refuses a number of columns that the flow cannot have."""

  def clipping_strategy(self) -> gradients.Strategy:
    """Returns the `gradients.Strategy` of `clipping` and its settings."""
    settings = {}
    if self.clipping == 'sparsification':
      settings['sparsity'] = self.sparsity
    return _CLIPPING[self.clipping](self.l2_norm_clip, **settings)

  @abc.abstractmethod
  def make_flow(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None,
  ) -> tfp.distributions.TransformedDistribution:
    """Returns the flow over the columns' normal scores, still the identity.

    Args:
      columns: encoded columns.
      marginals: for each a dict of its private `edges` and `probabilities`.
      seed: of the initial weights, or `None`.
    """

  def make_density(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> TableDensity:
    """Returns the density of a table; see `make_flow`.

    Its columns are independent before training.
    """
    return TableDensity(*self._density_arguments(columns, marginals, seed))

  def _density_arguments(self, columns, marginals, seed):
    flow = self.make_flow(columns, marginals, seed)
    dequantization = None
    if self.dequantization == 'variational' and any(cells(columns)):
      dequantization = flows.dequantization.VariationalDequantization(
        cells(columns), seed=seed
      )
    return (
      columns,
      [m['edges'] for m in marginals],
      [m['probabilities'] for m in marginals],
      flow,
      dequantization,
    )

  def plan_refinement(self, noise_multiplier: float) -> tuple:
    """Returns the measurements that `refine` will make, each with its `event`.

    Args:
      noise_multiplier: of the Gaussian mechanism that would cost the whole
        budget.
    """
    del noise_multiplier
    return ()

  def refine(  # noqa: B027 (most models add nothing)
    self,
    density: TableDensity,
    codes: Any,
    rounds: tuple,
    randomness: Randomness,
    ledger: accounting.PrivacyLedger,
    *,
    num_rows: int,
    resume: bool,
    progress: bool,
  ) -> None:
    """Refines a trained density, by post-processing and further measurements.

    Args:
      density: from `make_density`, trained.
      codes: private codes, float32 `[n, d]`: for mechanisms in `rounds` only.
      rounds: from `plan_refinement`.
      randomness: the `Randomness` of the fit.
      ledger: charged for every mechanism before it looks at `codes`.
      num_rows: the public number of rows.
      resume: whether mechanisms that were charged are repeated.
      progress: whether to show progress bars, in a terminal or notebook.
    """
