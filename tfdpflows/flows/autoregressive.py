"""Flows of masked autoregressive blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors, networks
from tfdpflows._keras import tfp
from tfdpflows.flows.transforms import Affine, Spline

if TYPE_CHECKING:
  import numpy.typing as npt

tfb, tfd = tfp.bijectors, tfp.distributions


def masked_autoregressive_flow(
  event_size: int,
  num_blocks: int = 5,
  hidden_units: Sequence[int] = (100, 100),
  *,
  transform: Optional[Callable[[tf.Tensor], tfb.Bijector]] = None,
  shared: bool = False,
  actnorm: bool = False,
  linear: Optional[Callable[[int], tfb.Bijector]] = None,
  marginal: Optional[tfb.Bijector] = None,
  base: Optional[tfd.Distribution] = None,
  activation: str = 'relu',
  dtype: Union[tf.DType, str] = tf.float32,
  seed: Optional[int] = None,
  name: str = 'masked_autoregressive_flow',
) -> tfd.TransformedDistribution:
  """A stack of MADE blocks with the columns reversed in between (MAF).

  Papamakarios et al. 2017; with DP-SGD, Waites & Cummings 2021. It starts as
  the identity: before training it is the base distribution (behind
  `marginal`, where that is given).

  Args:
    event_size: number of columns d.
    num_blocks: number of MADE blocks.
    hidden_units: width of each hidden layer of a block.
    transform: a univariate transform, `flows.Affine()` by default.
    shared: whether one network serves all blocks, told which by an embedding
      of the block's number (DP-HFlow): a fraction of the parameters, and so of
      the noise.
    actnorm: whether a learned scale and shift stands before each block.
    linear: a function of the block's number, which gives the linear bijector
      that stands before the block; `None` for none.
    marginal: a bijector from data to something near the base, applied to the
      data first, such as `bijectors.MarginalCDF`.
    base: a distribution over `[d]`; standard normal by default.
    activation: name of a function in `tf.nn`.
    dtype: of the variables and the data.
    seed: for the initial weights, or `None`.

  Returns:
    A `tfd.TransformedDistribution` with event shape `[d]`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.masked_autoregressive_flow(event_size=2, num_blocks=2)
  >>> flow.log_prob(tf.zeros([5, 2])).shape
  TensorShape([5])
  """
  dtype = tf.as_dtype(dtype)
  transform = Affine() if transform is None else transform
  rng = np.random.default_rng(seed)
  reverse = np.arange(event_size)[::-1].astype(np.int32)
  parts = [] if marginal is None else [tfb.Invert(marginal)]

  def network(num_conditions, name):
    return networks.MADE(
      transform.num_params,
      event_size,
      hidden_units,
      activation=activation,
      dtype=dtype,
      seed=int(rng.integers(2**31)),
      num_conditions=num_conditions,
      name=name,
    )

  if shared:
    one = network(num_blocks, 'made')
  for block in range(num_blocks):
    if block:
      parts.append(tfb.Permute(reverse, name=f'reverse_{block}'))
    if actnorm:
      parts.append(
        bijectors.ActNorm(event_size, dtype, name=f'actnorm_{block}')
      )
    if linear is not None:
      parts.append(linear(block))
    made = one.conditioned(block) if shared else network(1, f'made_{block}')
    parts.append(
      bijectors.MaskedAutoregressive(made, transform, name=f'block_{block}')
    )
  if base is None:
    base = tfd.MultivariateNormalDiag(tf.zeros([event_size], dtype))
  elif num_blocks % 2 == 0:
    # So that the columns of the base are those of the data.
    parts.append(tfb.Permute(reverse, name='reverse_back'))
  return tfd.TransformedDistribution(base, tfb.Chain(parts), name=name)


def histogram_flow(
  knots: Sequence[npt.ArrayLike],
  hidden_units: Sequence[int] = (64,),
  *,
  order: Optional[Sequence[int]] = None,
  marginal: Optional[tfb.Bijector] = None,
  dtype: Union[tf.DType, str] = tf.float32,
  seed: Optional[int] = None,
  name: str = 'histogram_flow',
) -> tfd.TransformedDistribution:
  """A flow of one autoregressive map of conditional histograms.

  Args:
    knots: see `bijectors.AutoregressiveHistogram`, one array per column.
    hidden_units: width of each hidden layer.
    order: see `bijectors.AutoregressiveHistogram`.
    marginal: a bijector from points to something near the base, such as
      `bijectors.MarginalCDF`.
    dtype: of the variables and the data.
    seed: for the initial weights, or `None`.
    name: of the distribution.

  Returns:
    A `tfd.TransformedDistribution` with event shape `[len(knots)]`.

  #### Example

  >>> from tfdpflows import flows
  >>> flows.histogram_flow([[0.], [-1., 1.]]).sample(5).shape
  TensorShape([5, 2])
  """
  dtype = tf.as_dtype(dtype)
  histogram = bijectors.AutoregressiveHistogram(
    knots, hidden_units, dtype, seed=seed, order=order
  )
  if marginal is not None:
    histogram = tfb.Chain([tfb.Invert(marginal), histogram])
  base = tfd.MultivariateNormalDiag(tf.zeros([len(knots)], dtype))
  return tfd.TransformedDistribution(base, histogram, name=name)


def neural_spline_flow(
  event_size: int,
  num_blocks: int = 2,
  hidden_units: Sequence[int] = (128, 128),
  *,
  num_bins: int = 8,
  bound: float = 5.0,
  name: str = 'neural_spline_flow',
  **kwargs: Any,
) -> tfd.TransformedDistribution:
  """A masked autoregressive flow of rational-quadratic splines.

  Durkan et al. 2019, "Neural spline flows", in its autoregressive form.

  Args:
    event_size: number of columns d.
    num_blocks: number of MADE blocks.
    hidden_units: width of each hidden layer of a block.
    num_bins: bins of each spline.
    bound: the splines act on [-bound, bound] and are the identity outside.
    name: of the distribution.
    **kwargs: as in `masked_autoregressive_flow`, except `transform`.

  Returns:
    A `tfd.TransformedDistribution` with event shape `[d]`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.neural_spline_flow(event_size=2)
  >>> flow.sample(5).shape
  TensorShape([5, 2])
  """
  return masked_autoregressive_flow(
    event_size,
    num_blocks,
    hidden_units,
    transform=Spline(num_bins, bound),
    name=name,
    **kwargs,
  )
