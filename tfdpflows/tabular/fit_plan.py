"""What a fit will charge, before it reads a row."""

from __future__ import annotations

import dataclasses
import textwrap

import dp_accounting

from tfdpflows import accounting
from tfdpflows.accounting import registry
from tfdpflows.accounting.events import describe_event
from tfdpflows.accounting.rounding import delta_text, round_up
from tfdpflows.progress import about
from tfdpflows.tabular.models.base import TableModel

# Of the rows. With the first, synthetic pairs of columns were farther from the
# real ones than independent columns are, in tables that were drawn at random;
# with the second no bin of the coarsest histograms stands out.
_MUCH_NOISE, _MOST_NOISE = 0.05, 0.1
_BINS = (
  'As the number of rows is private, it is guessed for these; unless it is '
  'given, num_bins follows the number that the histograms release.'
)


def describe_time(seconds: float) -> str:
  """Returns a sentence on how long a fit takes."""
  return f'It takes about {about(seconds)} on two free cores.'


@dataclasses.dataclass(frozen=True)
class FitPlan:
  """How a fit splits its budget: a function of public numbers alone.

  `TabularSynthesizer.plan` returns it. Its text says all that follows.

  Attributes:
    num_examples: the public number of rows, or of units.
    unit: the column of the units of privacy, `None` for rows.
    model: the `TableModel`, with its hyper-parameters for so many; of units
      with several rows, `num_bins` follows their number when it is released.
    charges: of each mechanism, or of several of a kind, a name and the
      `DpEvent`.
    budget: the `PrivacyBudget` of the fit.
    accountant: name of the accountant.
    count_std: standard deviation of the noise on the number of rows in a bin of
      a histogram, the median of all columns; on the weight of these rows under
      `weighting='units'`, of `num_examples` in all; `None` where ranges or the
      number of rows per unit are private.
    seconds: about how long the fit takes on two free cores, `None` where that
      is not known.
    max_rows_per_unit: see `sampling.Units`; `None` for rows.
    weighting: likewise.
  """

  num_examples: int
  unit: str | None
  model: TableModel
  charges: tuple[tuple[str, dp_accounting.DpEvent], ...]
  budget: accounting.PrivacyBudget
  accountant: str
  count_std: float | None
  seconds: float | None
  max_rows_per_unit: int | None = None
  weighting: str | None = None

  def epsilon(self, name: str | None = None) -> float:
    """Returns epsilon of all charges, or of one alone, at the budget's delta.

    Args:
      name: that of the charge.

    Raises:
      ValueError: if no charge has that name.
    """
    events = [event for known, event in self.charges if name in (None, known)]
    if not events:
      raise ValueError(
        f'No charge is named {name!r}. They are '
        f'{[known for known, _ in self.charges]}.'
      )
    accountant = accounting.create_accountant(self.accountant)
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    return accountant.get_epsilon(self.budget.delta)

  def __str__(self):
    what = 'rows' if self.unit is None else f'values of {self.unit}'
    by = registry.credit(self.accountant)
    lines = textwrap.wrap(
      f'A fit of {self.num_examples:,} {what} within epsilon '
      f'{self.budget.epsilon:g} at delta {delta_text(self.budget.delta)}{by} '
      'would charge',
      88,
    )
    for name, event in self.charges:
      lines += _wrapped(
        f'{name}, epsilon {round_up(self.epsilon(name))} alone: '
        f'{_describe(event)}'
      )
    lines += _wrapped(f'all of it together, epsilon {round_up(self.epsilon())}')
    lines.append(f'with the hyper-parameters of model {self.model.name}')
    settings = dataclasses.asdict(self.model)
    shown = [
      f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
      for name, value in settings.items()
    ]
    lines += _wrapped(', '.join(shown))
    if self.weighting == 'rows' and self.model.name == 'histogram':
      lines += textwrap.wrap(_BINS, 88)
    if self.count_std is not None:
      lines += textwrap.wrap(self._say_count_std(), 88)
    if self.count_std is not None and self.unit is None:
      lines += textwrap.wrap(
        say_if_noise(self.count_std, self.num_examples), 88
      )
    if self.seconds is not None:
      lines.append(describe_time(self.seconds))
    return '\n'.join(lines)

  def _say_count_std(self):
    noise = f'noise of about {_rounded(self.count_std)}'
    if self.unit is None:
      return f'The number of rows in a bin of a histogram has {noise} rows.'
    if self.weighting == 'units':
      return (
        'The weight of the rows in a bin of a histogram, where all rows of one '
        f'{self.unit} weigh 1 together, has {noise}.'
      )
    return (
      f'The number of rows in a bin of a histogram has {noise} rows, in '
      f'proportion to max_rows_per_unit, {self.max_rows_per_unit}.'
    )


def say_if_noise(count_std: float | None, num_rows: int) -> str:
  """Returns a warning where noise is large beside a table, else an empty text.

  >>> say_if_noise(3.0, 10_000)
  ''
  """
  if count_std is None or count_std < _MUCH_NOISE * num_rows:
    return ''
  what = 'much of what connects the columns will be noise'
  if count_std >= _MOST_NOISE * num_rows:
    what = 'synthetic rows will be little but noise'
  return (
    f'The noise on a count, about {_rounded(count_std)} rows, is large beside '
    f'the {num_rows:,} of the table: {what}. '
    'That takes more rows, fewer columns or a larger epsilon.'
  )


def _rounded(std):
  return f'{std:,.0f}' if std >= 10 else f'{std:.2g}'


def _wrapped(text):
  return textwrap.wrap(text, 88, initial_indent='  ', subsequent_indent='    ')


def _describe(event):
  if isinstance(event, dp_accounting.ComposedDpEvent):
    first, *others = event.events
    if others:
      return f'first {describe_event(first)}, and {len(others)} more'
    event = first
  return describe_event(event)
