"""Flows of masked autoregressive blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors, networks
from tfdpflows._checks import check_integer
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
  transform: Callable[[tf.Tensor], tfb.Bijector] | None = None,
  shared: bool = False,
  actnorm: bool = False,
  linear: Callable[[int], tfb.Bijector] | None = None,
  marginal: tfb.Bijector | None = None,
  base: tfd.Distribution | None = None,
  activation: str = 'relu',
  conditional_event_size: int = 0,
  dtype: tf.DType | str = tf.float32,
  seed: int | None = None,
  name: str = 'masked_autoregressive_flow',
) -> tfd.TransformedDistribution:
  """Returns a stack of MADE blocks with the columns reversed in between (MAF).

  Papamakarios et al. 2017; with DP-SGD, Waites & Cummings 2021. It is
  initialised as the identity (after `marginal`, if that is given).

  With `conditional_event_size` it is a conditional density p(x | c), whose
  methods take `conditional_input=c`.

  Args:
    event_size: number of columns d.
    num_blocks: number of MADE blocks.
    hidden_units: width of each hidden layer of a block.
    transform: a univariate transform, `flows.Affine()` by default.
    shared: whether all blocks share one network, given an embedding of the
      block's number (DP-HFlow): fewer parameters, and so less noise.
    actnorm: whether there is a learned scale and shift before each block.
    linear: a function of the block's number that returns the linear bijector
      before the block; `None` for none.
    marginal: a bijector that is applied to the data first, such as
      `bijectors.MarginalCDF`.
    base: a distribution over `[d]`; standard normal by default.
    activation: name of a function in `tf.nn`.
    conditional_event_size: number k of values of a conditional input; 0 for a
      density that is not conditional. `log_prob(x, conditional_input=c)` takes
      c `[..., k]`, which is broadcast to the rows of x, and
      `sample(sample_shape, conditional_input=c)` is broadcast to
      `sample_shape`.
    dtype: of the variables and the data.
    seed: for the initial weights, or `None`.

  Returns:
    A `tfd.TransformedDistribution` with event shape `[d]`.

  Raises:
    TypeError: for sizes that are no numbers, or `hidden_units` that are no
      sequence.
    ValueError: for sizes that are not positive, or an activation that `tf.nn`
      has not.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.masked_autoregressive_flow(event_size=2, num_blocks=2)
  >>> flow.log_prob(tf.zeros([5, 2])).shape
  TensorShape([5])
  >>> flow = flows.masked_autoregressive_flow(2, 2, conditional_event_size=3)
  >>> flow.log_prob(tf.zeros([5, 2]), conditional_input=tf.ones([5, 3])).shape
  TensorShape([5])
  >>> flow.sample(4, conditional_input=tf.ones([3])).shape
  TensorShape([4, 2])
  """
  event_size = check_integer('event_size', event_size)
  num_blocks = check_integer('num_blocks', num_blocks)
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
      conditional_event_size=conditional_event_size,
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
  kwargs = {}
  if conditional_event_size:
    blocks = [
      part.name
      for part in parts
      if isinstance(part, bijectors.MaskedAutoregressive)
    ]
    kwargs['kwargs_split_fn'] = lambda given: _split(given, blocks)
  return tfd.TransformedDistribution(
    base, tfb.Chain(parts), name=name, **kwargs
  )


def _split(kwargs, blocks):
  """Splits keyword arguments into those of the base and of the bijector.

  As TFP does by default, with a conditional input given to each block.
  """
  found = dict(kwargs.get('bijector_kwargs', {}))
  if 'conditional_input' in kwargs:
    c = {'conditional_input': kwargs['conditional_input']}
    found = {**dict.fromkeys(blocks, c), **found}
  return kwargs.get('distribution_kwargs', {}), found


def histogram_flow(
  knots: Sequence[npt.ArrayLike],
  hidden_units: Sequence[int] = (64,),
  *,
  order: Sequence[int] | None = None,
  marginal: tfb.Bijector | None = None,
  dtype: tf.DType | str = tf.float32,
  seed: int | None = None,
  connections: Sequence[Sequence[int]] | None = None,
  name: str = 'histogram_flow',
) -> tfd.TransformedDistribution:
  """Returns a flow of one `bijectors.AutoregressiveHistogram`.

  Args:
    knots: as there, as `hidden_units`, `order`, `dtype`, `seed` and
      `connections`.
    hidden_units: see above.
    order: see above.
    marginal: a bijector that is applied to the data first, such as
      `bijectors.MarginalCDF`.
    dtype: see above.
    seed: see above.
    connections: see above.
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
    knots,
    hidden_units,
    dtype,
    seed=seed,
    order=order,
    connections=connections,
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
  """Returns a masked autoregressive flow of rational-quadratic splines.

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
