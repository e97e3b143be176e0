"""DP-NF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdpflows.flows.autoregressive import masked_autoregressive_flow
from tfdpflows.flows.transforms import Affine, Spline

if TYPE_CHECKING:
  from tfdpflows._keras import tfp


def dp_nf(
  event_size: int,
  num_blocks: int = 5,
  hidden_units: Sequence[int] = (100, 100),
  *,
  transform: str = 'affine',
  base: tfp.distributions.Distribution | None = None,
  train_base: bool = False,
  num_bins: int = 8,
  bound: float = 5.0,
  dtype: tf.DType | str | None = None,
  name: str = 'dp_nf',
  **kwargs: Any,
) -> tfp.distributions.TransformedDistribution:
  """Returns the flow of DP-NF: MADE blocks with reversals, on a given prior.

  Waites & Cummings 2021, "Differentially private normalizing flows for
  privacy-preserving density estimation". The prior may have been fitted
  privately, such as the mixture of a `models.DPMoG`. The flow is initialised as
  the identity, so that training begins with the density of the prior.

  Args:
    event_size: number of columns d.
    num_blocks: number of MADE blocks.
    hidden_units: width of each hidden layer of a block.
    transform: 'affine' as in the paper, or 'spline'.
    base: the prior, a distribution over `[d]`; standard normal by default.
    train_base: whether DP-SGD may train the variables of `base`.
    num_bins: bins of each spline.
    bound: the splines act on [-bound, bound] and are the identity outside.
    dtype: of the variables and the data; that of `base`, or float32.
    name: of the distribution.
    **kwargs: as in `masked_autoregressive_flow`, such as `actnorm`, for
      `flows.initialize_privately`.

  Returns:
    A `tfd.TransformedDistribution` with event shape `[d]`.

  Raises:
    ValueError: for another transform; if `base` has another event shape or
      dtype, or a batch shape; or if it has trainable variables and `train_base`
      is not set.

  #### Example

  A prior at noise multiplier 20, and a flow with the rest of (1, 1e-4). One
  ledger composes the two; adding epsilons would leave less for the flow.

  >>> import dp_accounting, numpy as np, tensorflow as tf
  >>> import tfdpflows
  >>> from tfdpflows._keras import tfp
  >>> tfd = tfp.distributions
  >>> x = np.random.default_rng(0).normal(size=[500, 2]).astype('float32')
  >>> ledger = tfdpflows.PrivacyLedger(
  ...   budget=tfdpflows.PrivacyBudget(epsilon=1., delta=1e-4))
  >>> ledger.charge(dp_accounting.GaussianDpEvent(20.), label='prior')
  True
  >>> prior = tfd.MixtureSameFamily(  # Stands for the fitted one.
  ...   tfd.Categorical(probs=[.5, .5]),
  ...   tfd.MultivariateNormalDiag([[-1., 0.], [1., 0.]], [[1., 1.], [1., 1.]]))
  >>> flow = tfdpflows.flows.dp_nf(2, 2, [16], base=prior)
  >>> plan = tfdpflows.TrainingPlan.for_epsilon(
  ...   epsilon=1., delta=1e-4, num_examples=500, expected_batch_size=100,
  ...   epochs=1, clipping=tfdpflows.gradients.Flat(5.),
  ...   spent=ledger.committed_event, ledger=ledger)
  >>> model = tfdpflows.DensityModel(flow)
  >>> model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-3))
  >>> history = model.fit(x, verbose=0)
  >>> ledger.epsilon() <= 1.
  True
  """
  transforms = {
    'affine': Affine,
    'spline': lambda: Spline(num_bins, bound),
  }
  if transform not in transforms:
    raise ValueError(
      f"transform is {transform!r}; it must be 'affine' or 'spline'. "
      'flows.masked_autoregressive_flow has others.'
    )
  if base is not None:
    dtype = base.dtype if dtype is None else tf.as_dtype(dtype)
    _check(base, event_size, dtype, train_base)
  return masked_autoregressive_flow(
    event_size,
    num_blocks,
    hidden_units,
    transform=transforms[transform](),
    base=base,
    dtype=tf.as_dtype(dtype or tf.float32),
    name=name,
    **kwargs,
  )


def _check(base, event_size, dtype, train_base):
  shapes = base.batch_shape, base.event_shape
  if [s.rank for s in shapes] != [0, 1] or shapes[1][0] != event_size:
    raise ValueError(
      f'base has event shape {base.event_shape} and batch shape '
      f'{base.batch_shape}; they must be [{event_size}] and [].'
    )
  if base.dtype != dtype:
    raise ValueError(
      f'base is of {base.dtype.name} and the flow of {dtype.name}.'
    )
  if base.trainable_variables and not train_base:
    names = ', '.join(v.name for v in base.trainable_variables)
    raise ValueError(
      f'base has trainable variables ({names}). Make it of constants or of '
      'variables with trainable=False, or set train_base=True.'
    )
