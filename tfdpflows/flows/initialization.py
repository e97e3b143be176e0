"""DP-NF-INIT: scales and shifts of a flow from private moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
  epsilon: float | None = None,
  noise_multiplier: float | None = None,
  num_layers: int | None = None,
  later_bound: float = 4.0,
  num_examples: int | None = None,
  randomness: Randomness | None = None,
  label: str = 'initialization',
  resume: bool = False,
) -> list[bijectors.ActNorm]:
  """Initialises the `ActNorm` layers of a flow from the data, privately.

  DP-NF-INIT of Waites & Cummings 2021: from data to base, the private mean and
  standard deviation of the inputs of a layer become its shift and its scale,
  and the rows are passed through it to the next one. Do this before training,
  and before a `DensityModel` with `ema_momentum` is made of the flow.

  Where blocks are initialised as the identity, as those of this package, later
  layers refine the estimates of the first one with a tighter bound (as in
  CoinPress, Biswas et al. 2020). Where the bound is tight already, or the
  budget too small for several rounds, use `num_layers=1`.

  Args:
    flow: a `tfd.TransformedDistribution`, such as `flows.dp_nf(...,
      actnorm=True)`.
    x: float array `[n, d]`.
    bound: public bound that the inputs of the first layer are clipped to: a
      number, or one per column. (After `marginal` these are normal scores.)
    ledger: `PrivacyLedger`, charged for each layer before its release.
    epsilon: adds Laplace noise, for this epsilon in total; or
    noise_multiplier: adds Gaussian noise, for this noise multiplier in total.
    num_layers: how many layers, from the data on; all by default.
    later_bound: bound for the layers after the first, whose inputs have been
      normalized once.
    num_examples: the number of rows, taken to be public; that of `x` by
      default.
    randomness: `tfdpflows.randomness.Randomness`; secret by default.
    label: prefix of the labels of the charges.
    resume: whether to use charges of these labels that are in the ledger
      already: for a repeated call, with the same table, parameters, flow and
      `randomness`.

  Returns:
    A list of the layers that were initialised, `bijectors.ActNorm`s.

  Raises:
    ValueError: if the flow has no `ActNorm` layer, one inside of a bijector
      that is not a chain, or a layer that mixes rows; for a shape, dtype or
      number out of range; or to resume without `randomness`.
    BudgetExceededError: if the ledger refuses a layer; those before it are
      initialised and charged.
    LedgerError: to resume with another table, parameter, flow or secret.

  #### Formal guarantee

  One release per layer, by `mechanisms.private_normalization`. The input of a
  layer is, row by row, a function of the row and of earlier releases; so this
  is an adaptive composition of as many Laplace mechanisms of `epsilon /
  num_layers` (`epsilon` in total), or Gaussian ones of `noise_multiplier *
  sqrt(num_layers)` (`GaussianDpEvent(noise_multiplier)` in total).

  That the parts of the flow treat each row by itself is tested on probe rows
  before anything is charged. This finds mistakes; it is no proof for a
  malicious bijector.

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
      'tfb.Chain. Put it into the chain itself.'
    )
  if not layers:
    raise ValueError(
      f'{flow.name} has no ActNorm layer. Build it with actnorm=True.'
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
