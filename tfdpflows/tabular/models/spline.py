"""Neural spline flows: blocks of autoregressive splines, and DP-HFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from tfdpflows import flows
from tfdpflows._keras import tfp
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models.base import choice, whole
from tfdpflows.tabular.models.flow import FlowModel


@dataclasses.dataclass(frozen=True)
class SplineModel(FlowModel):
  """A neural spline flow, of blocks with or without a linear layer.

  `num_bins` is the number of bins of each spline.

  Attributes:
    num_blocks: autoregressive blocks of the flow.
    shared: whether one network serves all blocks.
    linear: the linear layer before each block: 'none', 'low_rank' or 'lu'.
    rank: of the 'low_rank' one, at most the number of columns.

  #### Example

  >>> SplineModel.for_table(32_000, 9).expected_batch_size
  2000.0
  """

  name: ClassVar[str] = 'spline'

  num_blocks: int = whole(2, 1)
  shared: bool = False
  linear: str = choice('none', ('none', 'low_rank', 'lu'))
  rank: int = whole(1, 1)

  def check_columns(self, num_columns: int) -> None:
    """Refuses a rank above the number of columns."""
    if self.linear == 'low_rank' and self.rank > num_columns:
      raise ValueError(
        f'rank is {self.rank}; the table has {num_columns} columns, and it '
        'can be no more than that.'
      )

  def make_flow(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None,
  ) -> tfp.distributions.TransformedDistribution:
    """See `TableModel`."""
    recipe, options = flows.neural_spline_flow, {}
    if self.linear != 'none':
      recipe = flows.dp_hflow
      options = {'linear': self.linear, 'rank': self.rank}
    return recipe(
      len(columns),
      self.num_blocks,
      self.hidden_units,
      num_bins=self.num_bins,
      shared=self.shared,
      seed=seed,
      **options,
    )


@dataclasses.dataclass(frozen=True)
class HFlowModel(SplineModel):
  """DP-HFlow (`flows.dp_hflow`): `SplineModel` with other defaults.

  #### Example

  >>> HFlowModel.for_table(32_000, 9).linear
  'low_rank'
  """

  name: ClassVar[str] = 'hflow'

  num_blocks: int = whole(3, 1)
  shared: bool = True
  linear: str = choice('low_rank', ('none', 'low_rank', 'lu'))
