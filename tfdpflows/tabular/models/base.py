"""The base class of table models, and the fields of their hyper-parameters."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import dp_accounting
import numpy as np

from tfdpflows import accounting, sampling
from tfdpflows._checks import FLOAT32_RANGE, IN_FLOAT32_RANGE
from tfdpflows.tabular.density import TableDistribution
from tfdpflows.tabular.encoding import EncodedColumn

if TYPE_CHECKING:
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory


def _checked(default, is_valid, message, convert=None):
  metadata = {'is_valid': is_valid, 'message': message, 'convert': convert}
  return dataclasses.field(default=default, metadata=metadata)


def share(default: float) -> Any:
  """A hyper-parameter between 0 and 1, neither of them."""
  return _checked(default, lambda v: 0 < v < 1, 'must be in (0, 1)')


def fraction(default: float) -> Any:
  """A hyper-parameter from 0 to below 1."""
  return _checked(default, lambda v: 0 <= v < 1, 'must be in [0, 1)')


def positive(default: float) -> Any:
  """A hyper-parameter above 0, in `FLOAT32_RANGE`."""
  low, high = FLOAT32_RANGE
  return _checked(default, lambda v: low <= v <= high, IN_FLOAT32_RANGE)


def whole(default: int, least: int) -> Any:
  """A hyper-parameter that is a whole number."""
  message = f'must be whole and at least {least}'
  return _checked(default, lambda v: v == int(v) >= least, message)


def widths(default: tuple) -> Any:
  """A hyper-parameter of whole numbers, one for each hidden layer."""
  is_valid = lambda v: len(v) and all(w == int(w) >= 1 for w in v)
  message = 'must be integers, one at least'
  return _checked(default, is_valid, message, tuple)


def choice(default: str, choices: Sequence[str]) -> Any:
  """A hyper-parameter that is one of some words."""
  choices = tuple(choices)
  return _checked(default, lambda v: v in choices, f'must be one of {choices}')


def _value_of(field, given):
  """Returns the value of a hyper-parameter, or refuses it by name."""
  metadata = field.metadata
  if not metadata:
    return given
  value = given
  try:
    if metadata['convert'] is not None:
      value = metadata['convert'](given)
    valid = metadata['is_valid'](value)
  except (TypeError, ValueError):
    valid = False  # Text for a number, a number for several, and the like.
  if not valid:
    is_digits = isinstance(given, str) and given[:1].isdigit()
    shown = f'the text {given!r}' if is_digits else repr(given)
    raise ValueError(f'{field.name} is {shown}; it {metadata["message"]}.')
  return value


@dataclasses.dataclass(frozen=True)
class TableModel(abc.ABC):
  """A table model: its hyper-parameters, how it is fitted, what it leaves.

  A fit measures the marginals of all columns and trains the model with the rest
  of the budget, on codes. What is left is a `TableDistribution`. A model
  declares its hyper-parameters with defaults and valid values (`share`,
  `positive`, `whole`, ...), and defines `plan_training`, `make_distribution`,
  `train` and `notes`. It has a row in `tabular.models.MODELS`.

  Attributes:
    name: name of the model.
    has_density: whether its distribution has a `log_prob`.
    exact_density: whether that is computed, and not estimated.
    takes_units: whether `train` protects units of several rows.
    takes_stored: whether `train` takes codes as `StoredRows`, which are not in
      memory.
    takes_replicas: whether several replicas can train it (`tabular.workers`).
    marginal_share: share of the budget (of the squared signal-to-noise ratio)
      that goes to the private marginals; the rest trains the model.

  Raises:
    ValueError: for a value out of range.
  """

  name: ClassVar[str]
  has_density: ClassVar[bool]
  exact_density: ClassVar[bool] = False
  takes_units: ClassVar[bool] = False
  takes_stored: ClassVar[bool] = False
  takes_replicas: ClassVar[bool] = False

  marginal_share: float = share(0.15)

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = _value_of(field, getattr(self, field.name))
      object.__setattr__(self, field.name, value)

  @classmethod
  def for_table(
    cls,
    num_examples: int,
    num_columns: int,
    noise_multiplier: float | None = None,
    **hyperparameters: Any,
  ) -> TableModel:
    """Returns the model for a table, a function of public numbers alone.

    Args:
      num_examples: number of rows, or of units.
      num_columns: number of columns.
      noise_multiplier: of the Gaussian mechanism that would cost the whole
        budget; `None` if that is not known.
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
    for field in dataclasses.fields(cls):
      if field.name in hyperparameters:  # What defaults are computed from.
        _value_of(field, hyperparameters[field.name])
    defaults = cls._defaults(
      num_examples, num_columns, noise_multiplier, hyperparameters
    )
    found = cls(**{**defaults, **hyperparameters})
    found.check_columns(num_columns)
    return found

  @classmethod
  def _defaults(
    cls, num_examples, num_columns, noise_multiplier, hyperparameters
  ):
    """Returns the defaults that are functions of `for_table`'s arguments."""
    del num_examples, num_columns, noise_multiplier, hyperparameters
    return {}

  def check_columns(  # noqa: B027 (most models have all)
    self, num_columns: int
  ) -> None:
    """Refuses a number of columns that the model cannot have."""

  def for_total(
    self, total: float, noise_multiplier: float, hyperparameters: dict[str, Any]
  ) -> TableModel:
    """Returns the model for a number of rows that only a release tells.

    Args:
      total: weight of the rows of all units, as it was released.
      noise_multiplier: see `for_table`.
      hyperparameters: those that were given; they stay as they are.
    """
    del total, noise_multiplier, hyperparameters
    return self

  def plan_start(self, noise_multiplier: float) -> tuple:
    """Returns measurements to make before training, each with its `event`.

    Args:
      noise_multiplier: of the Gaussian mechanism that would cost the whole
        budget.
    """
    del noise_multiplier
    return ()

  def expected_seconds(
    self,
    columns: Sequence[EncodedColumn],
    num_examples: int,
    spending: Spending,
  ) -> float | None:
    """Returns about how long a fit takes on two cores, where that is known.

    Args:
      columns: encoded columns, of a public schema.
      num_examples: the public number of rows, or of units.
      spending: what was planned.
    """
    del columns, num_examples, spending

  @abc.abstractmethod
  def plan_training(
    self,
    num_examples: int,
    *,
    budget: accounting.PrivacyBudget,
    spent: dp_accounting.DpEvent,
    accountant: str,
  ) -> Any:
    """Returns how the model is trained with what is left of a budget.

    Args:
      num_examples: the public number of rows, or of units.
      budget: the budget of the whole fit.
      spent: all other mechanisms of the fit.
      accountant: name of the accountant.
    """

  @abc.abstractmethod
  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> TableDistribution:
    """Returns the distribution before training: independent columns.

    Args:
      columns: encoded columns.
      marginals: for each a dict of its private `edges` and `probabilities`.
      seed: of the initial weights, or `None`.
    """

  @abc.abstractmethod
  def train(
    self,
    distribution: TableDistribution,
    codes: np.ndarray,
    spending: Spending,
    work: WorkDirectory,
    *,
    units: sampling.Units | None,
    total: float,
  ) -> None:
    """Trains a distribution; charges each mechanism before it reads codes.

    Args:
      distribution: from `make_distribution`.
      codes: private codes, float32 `[n, d]`, as an array or, if it
        `takes_stored`, as `StoredRows`.
      spending: the budget, with `plan_training` in `plan` and
        `plan_start` in `rounds`.
      work: randomness, ledger and checkpoints of the fit, whether it goes on
        with what was interrupted, and whether it shows progress.
      units: the units that are protected, `None` for rows.
      total: the public number of rows; or the weight of the rows of all units,
        as it was released.
    """

  @abc.abstractmethod
  def describe_sampling(
    self, plan: Any, privacy_unit: str | None
  ) -> str | None:
    """Returns how batches are drawn, or `None` if none are."""

  @abc.abstractmethod
  def notes(self) -> list[str]:
    """Returns what a privacy statement says of the training."""
