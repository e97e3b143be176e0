"""DP-NF-INIT: scales and shifts of a flow from private moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import numpy as np

from tfdpflows import bijectors
from tfdpflows._keras import tfp
from tfdpflows.independence.comparison import check_function
from tfdpflows.independence.keras_layers import refuse_batch_statistics
from tfdpflows.mechanisms.normalization import (
  normalization_event,
  private_normalization,
)
from tfdpflows.mechanisms.releases import as_numbers
from tfdpflows.randomness import Randomness

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger

tfb = tfp.bijectors

# `tfb.Chain(...)` is of this class where a part is no CompositeTensor.
_CHAIN = tfb.Chain.__mro__[1]
# Rows that pass through a layer at one time.
_CHUNK = 8192


def initialize_privately(
  flow: tfp.distributions.TransformedDistribution,
  x: npt.ArrayLike,
  *,
  bound: npt.ArrayLike,
  ledger: PrivacyLedger,
  epsilon: Optional[float] = None,
  noise_multiplier: Optional[float] = None,
  num_layers: Optional[int] = None,
  later_bound: float = 4.0,
  num_examples: Optional[int] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'initialization',
  resume: bool = False,
) -> list[bijectors.ActNorm]:
  """Initialises the `ActNorm` layers of a flow from the data, privately.

  DP-NF-INIT of Waites & Cummings 2021: from the data to the base, the private
  mean and standard deviation of what reaches a layer become its shift and its
  scale, and the rows pass through it to the next one. Do this before training,
  and before a `DensityModel` with `ema_momentum` is made of the flow.

  Where blocks start as the identity, as those of this package do, later layers
  see the same columns again, in units that are smaller by now: what the first
  one left in its noise, since the bound is wide for the data, they refine (as
  CoinPress does, Biswas et al. 2020). Where the bound fits, or the budget is
  too small for several rounds, take fewer: `num_layers=1`.

  Args:
    flow: a `tfd.TransformedDistribution`, such as `flows.dp_nf(...,
      actnorm=True)`.
    x: float array `[n, d]`.
    bound: public bound that what reaches the first layer is clipped to, in its
      own units: a number, or one per column. (Behind `marginal` that is a
      bound on normal scores.)
    ledger: `PrivacyLedger`, charged for each layer before anything of its rows
      is released.
    epsilon: adds Laplace noise, for this epsilon in all; or
    noise_multiplier: adds Gaussian noise, as of one release with this noise
      multiplier in all.
    num_layers: how many layers, from the data on; all by default.
    later_bound: bound for the layers after the first, whose inputs have been
      normalised once.
    num_examples: the number of rows, taken to be public; that of `x` by
      default.
    randomness: `tfdpflows.randomness.Randomness`; by default one that nobody
      knows.
    label: begins the labels of the charges.
    resume: whether charges of these labels that are already in the ledger pay
      for this call: a repeated one, with the same table, parameters, flow and
      `randomness`.

  Returns:
    A list of the layers that were initialised, `bijectors.ActNorm`s.

  Raises:
    ValueError: if the flow has no `ActNorm` layer, one that a bijector hides
      which is no chain, or a layer that mixes rows; for a shape, dtype or
      number out of range; or to resume without `randomness`.
    BudgetExceededError: if the ledger refuses a layer; those before it are
      initialised and paid.
    LedgerError: to resume with another table, parameter, flow or secret.

  #### Formal guarantee

  One release per layer, by `mechanisms.private_normalization`. What reaches a
  layer is a function of a row and of earlier releases, row by row; so the whole
  is an adaptive composition of as many Laplace mechanisms of `epsilon /
  num_layers` (`epsilon` in all), or Gaussian ones of `noise_multiplier *
  sqrt(num_layers)` (`GaussianDpEvent(noise_multiplier)` in all).

  That the parts of the flow treat each row by itself is checked on probe rows
  before anything is charged. That finds mistakes; it is no proof for a
  bijector that means to deceive.

  #### Example

  >>> import numpy as np
  >>> import tfdpflows
  >>> x = np.random.default_rng(0).normal(3., .5, [2000, 2]).astype('float32')
  >>> flow = tfdpflows.flows.dp_nf(2, num_blocks=2, actnorm=True)
  >>> before = np.mean(flow.log_prob(x))
  >>> ledger = tfdpflows.PrivacyLedger()
  >>> layers = tfdpflows.flows.initialize_privately(
  ...   flow, x, bound=5., epsilon=.5, ledger=ledger, num_layers=1)
  >>> bool(np.mean(flow.log_prob(x)) > before + 5)
  True
  """
  parts, layers = _parts(flow)
  if num_layers is not None:
    if not (1 <= num_layers <= len(layers) and num_layers % 1 == 0):
      raise ValueError(
        f'num_layers is {num_layers}; it must be an integer in [1, '
        f'{len(layers)}], the number of ActNorm layers of the flow.'
      )
    layers = layers[: int(num_layers)]
  normalization_event(epsilon=epsilon, noise_multiplier=noise_multiplier)
  if epsilon is not None:
    epsilon = epsilon / len(layers)
  else:
    noise_multiplier = noise_multiplier * np.sqrt(len(layers))
  if randomness is None and not resume:
    randomness = Randomness()
  x = as_numbers(x)
  size = flow.event_shape[0]
  if x.ndim != 2 or x.shape[1] != size:
    raise ValueError(f'x has shape {x.shape}; it must be [n, {size}].')
  with np.errstate(over='ignore'):
    rows = x.astype(flow.dtype.as_numpy_dtype)
  _check_parts(parts, layers[-1], flow.event_shape, flow.dtype)
  done = []
  for part in parts:
    if len(done) == len(layers):
      break
    if part is layers[len(done)]:
      found = private_normalization(
        rows,
        bound=later_bound if done else bound,
        ledger=ledger,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        num_examples=num_examples,
        randomness=randomness,
        label=f'{label}: {part.name} ({len(done) + 1} of {len(layers)})',
        resume=resume,
      )
      part.normalize(found.mean, found.std)
      done.append(part)
    rows = _inverse(part, rows)
  return done


def _parts(flow):
  """Returns the bijectors of a flow from data to base, and its `ActNorm`s."""
  parts = list(_unchained(flow.bijector))
  layers = [part for part in parts if isinstance(part, bijectors.ActNorm)]
  modules = [flow.bijector, *flow.bijector.submodules]
  refuse_batch_statistics(flow.bijector)
  hidden = [
    m
    for m in modules
    if isinstance(m, bijectors.ActNorm) and not any(m is x for x in layers)
  ]
  if hidden:
    raise ValueError(
      f'The layer {hidden[0].name} is inside of a bijector that is no '
      'tfb.Chain, where what reaches it is not known. Put it into the chain '
      'itself.'
    )
  if not layers:
    raise ValueError(
      f'{flow.name} has no ActNorm layer to initialise. Build the flow with '
      'actnorm=True.'
    )
  return parts, layers


def _check_parts(parts, last, event_shape, dtype):
  """Checks all parts up to the last layer, on the way from the data."""
  for part in parts:
    if part is last:
      return
    check_function(
      part.inverse,
      f'{type(part).__name__} {part.name!r}',
      event_shape.as_list(),
      dtype,
      part.variables,
    )
    event_shape = part.inverse_event_shape(event_shape)


def _unchained(bijector):
  if not isinstance(bijector, _CHAIN):
    return [bijector]
  return [x for part in bijector.bijectors for x in _unchained(part)]


def _inverse(part, rows):
  chunks = np.array_split(rows, max(1, -(-len(rows) // _CHUNK)))
  return np.concatenate([part.inverse(chunk).numpy() for chunk in chunks])
