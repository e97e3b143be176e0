"""DP-HFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors
from tfdpflows._checks import check_integer
from tfdpflows.flows.autoregressive import neural_spline_flow
from tfdpflows.flows.dequantization import (
  Dequantized,
  UniformDequantization,
  VariationalDequantization,
)

if TYPE_CHECKING:
  from tfdpflows._keras import tfp
  from tfdpflows.tabular.encoding import EncodedColumn

_LINEAR = ('low_rank', 'lu')
_DEQUANTIZATIONS = ('uniform', 'variational')


def dp_hflow(
  columns: int | Sequence[int | tuple[float, float] | EncodedColumn],
  num_blocks: int = 3,
  hidden_units: Sequence[int] = (128, 128),
  *,
  linear: str = 'low_rank',
  rank: int = 1,
  dequantization: str = 'uniform',
  shared: bool = True,
  marginal: tfp.bijectors.Bijector | None = None,
  dtype: tf.DType | str = tf.float32,
  seed: int | None = None,
  name: str = 'dp_hflow',
  **kwargs: Any,
) -> tfp.distributions.TransformedDistribution | Dequantized:
  """Returns the flow of DP-HFlow, for tables of categories and numbers.

  Lee et al. 2022, "Differentially private normalizing flows for synthetic
  tabular data generation" (AAAI). From data to base each block is a linear
  layer, which mixes the columns, and an autoregressive map of
  rational-quadratic splines; the columns are reversed between blocks. All
  blocks share one network, given an embedding of the block's number: fewer
  parameters, and so less noise. It is initialised as the identity, after
  `marginal`.

  Args:
    columns: number of columns of unbounded numbers; or a list with, for each
      column, its number of cells (categories or integers, coded from 0), the
      range `(low, high)` of a number, or an `EncodedColumn`, as in
      `tabular.TableEncoder(schema).columns`.
    num_blocks: number of blocks.
    hidden_units: width of each hidden layer of the network.
    linear: 'low_rank' for `bijectors.LowRankLinear`, 'lu' for `LULinear`.
    rank: of 'low_rank'.
    dequantization: of columns that have cells: 'uniform', or 'variational',
      which is learned as well.
    shared: whether all blocks share one network.
    marginal: a bijector that is applied to the points first, such as
      `bijectors.MarginalCDF`. By default, for a list of columns, that of
      uniform distributions over their declared ranges.
    dtype: of the variables and the data.
    seed: for the initial weights, or `None`.
    name: of the distribution.
    **kwargs: as in `flows.neural_spline_flow`, such as `num_bins`.

  Returns:
    A `tfd.TransformedDistribution` over points `[d]`; where columns have cells,
    a distribution over codes `[d]`, whose `log_prob` is a random lower bound
    (`dequantization.Dequantized`).

  Raises:
    ValueError: naming the argument, or the number of the column.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.dp_hflow([2, 7, (0., 10.)], dequantization='variational')
  >>> flow.sample(4).shape
  TensorShape([4, 3])
  >>> flows.dp_hflow(14).log_prob(tf.zeros([5, 14])).shape
  TensorShape([5])
  """
  if linear not in _LINEAR:
    raise ValueError(f'linear is {linear!r}; it must be one of {_LINEAR}.')
  if dequantization not in _DEQUANTIZATIONS:
    raise ValueError(
      f'dequantization is {dequantization!r}; it must be one of '
      f'{_DEQUANTIZATIONS}.'
    )
  num_blocks = check_integer('num_blocks', num_blocks)
  rank = check_integer('rank', rank)
  dtype = tf.as_dtype(dtype)
  sizes, edges = _declared(columns)
  if edges and marginal is None:
    even = [[1.0]] * len(sizes)
    marginal = bijectors.MarginalCDF(edges, even, dtype)
  rng = np.random.default_rng(seed)
  seeds = iter(rng.integers(2**31, size=num_blocks + 2).tolist())
  network_seed, dequantization_seed = next(seeds), next(seeds)
  size = len(sizes)

  def layer(block):
    label = f'linear_{block}'
    if linear == 'lu':
      return bijectors.LULinear(size, dtype=dtype, name=label)
    return bijectors.LowRankLinear(size, rank, dtype, next(seeds), name=label)

  flow = neural_spline_flow(
    size,
    num_blocks,
    hidden_units,
    linear=layer,
    shared=shared,
    marginal=marginal,
    dtype=dtype,
    seed=network_seed,
    name=name,
    **kwargs,
  )
  if dequantization == 'variational':
    found = VariationalDequantization(
      sizes, dtype=dtype, seed=dequantization_seed
    )
  elif any(sizes):
    found = UniformDequantization(sizes, dtype)
  else:
    return flow
  return Dequantized(flow, found, name=name)


def _declared(columns):
  """Returns cells and edges of each column; no edges if unbounded."""
  if not isinstance(columns, (list, tuple, np.ndarray)):
    if isinstance(columns, (int, np.integer)) and columns >= 1:
      return [0] * int(columns), []
    hint = ''
    if hasattr(columns, 'fields'):
      hint = ' Of a schema, give tabular.TableEncoder(schema).columns.'
    raise ValueError(
      f'columns is {columns!r}; it must be a positive number, or a list with '
      f'one declaration for each column.{hint}'
    )
  if not len(columns):
    raise ValueError('columns is empty; declare at least one.')
  return tuple(zip(*[_one(j, column) for j, column in enumerate(columns)]))


def _one(j, column):
  if hasattr(column, 'cell'):
    size = int(column.size) if column.cell else 0
    return size, [0.0, float(column.size)]
  if isinstance(column, (int, np.integer)) and column >= 1:
    return int(column), [0.0, float(column)]
  if isinstance(column, (tuple, list)) and len(column) == 2:
    low, high = map(float, column)
    if -np.inf < low < high < np.inf:
      return 0, [low, high]
  raise ValueError(
    f'Column {j} is declared as {column!r}; give its number of cells, or the '
    'pair (low, high) of the range of a number.'
  )
