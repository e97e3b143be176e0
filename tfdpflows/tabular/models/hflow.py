"""DP-HFlow: a linear layer before each spline, one network for all blocks."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfdpflows.tabular.models.base import choice, whole
from tfdpflows.tabular.models.spline import SplineModel


@dataclasses.dataclass(frozen=True)
class HFlowModel(SplineModel):
  """DP-HFlow (`flows.dp_hflow`): splines, and these defaults.

  #### Example

  >>> HFlowModel.for_table(32_000, 9).linear
  'low_rank'
  """

  name: ClassVar[str] = 'hflow'

  num_blocks: int = whole(3, 1)
  shared: bool = True
  linear: str = choice('low_rank', ('none', 'low_rank', 'lu'))
