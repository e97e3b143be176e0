"""How the density experiments fit: a private prior, then a flow on top of it.

Everything that reads the rows goes through one `PrivacyLedger`:

1. A share of the budget fits a prior, a `models.DPMoG`: one Gaussian or a
   mixture. Its mean and covariance whiten the rows, for free.
2. DP-SGD trains a masked autoregressive flow on the whitened rows, from the
   identity on, for what that leaves of the budget.
3. The flow is mixed with a little of the prior, for free. An affine flow gives
   a handful of far rows log-densities of minus thousands, which would decide
   the mean of all others.
"""

from __future__ import annotations

import dataclasses
import math
import time

import dp_accounting
import numpy as np
import tensorflow as tf

import tfdpflows
from tfdpflows import accounting, flows, gradients, models
from tfdpflows._keras import keras, tfp
from tfdpflows.models.dp_mog import GaussianMixture
from tfdpflows.randomness import Randomness

tfb, tfd = tfp.bijectors, tfp.distributions

# Rows that are scored at one time.
_CHUNK = 8192
# Where whitened columns are clipped for DP-NF-INIT.
_INIT_BOUND = 4.0


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Everything that decides a fit besides the rows and the budget. Public.

  Attributes:
    prior_components: components of the prior; 1 for a Gaussian, `None` to let
      `DPMoG` choose.
    prior_share: share of the budget (of the squared signal-to-noise ratio)
      that goes to the prior.
    prior_weight: weight of the prior in the final mixture.
    init_share: share that goes to DP-NF-INIT, the private initialization of
      layers of scale and shift (`flows.initialize_privately`); 0 for a flow
      without such layers, that starts as the identity.
    init_layers: how many of these layers are initialised.
    transform: 'affine' or 'spline'.
    num_blocks: blocks of the flow.
    hidden_units: width of each hidden layer of a block.
    activation: name of a function in `tf.nn`.
    batches: expected batches in an epoch; the batch size follows.
    epochs: passes over the rows, on average.
    l2_norm_clip: bound of one row's gradient.
    learning_rate: of Adam, before it decays to a tenth along half a cosine.
    ema_momentum: of the average of the weights over the steps.
  """

  prior_components: int | None = None
  prior_share: float = 0.4
  prior_weight: float = 0.02
  init_share: float = 0.0
  init_layers: int = 2
  transform: str = 'affine'
  num_blocks: int = 5
  hidden_units: tuple = (100,)
  activation: str = 'swish'
  batches: float = 22.0
  epochs: float = 15.0
  l2_norm_clip: float = 100.0
  learning_rate: float = 3e-3
  ema_momentum: float = 0.99

  @classmethod
  def for_rows(cls, shape, epsilon, **overrides):
    """Returns the recipe for a table and a budget, by a public formula.

    Chosen on rows of the training part of split 0 of Life Science (and, for
    two columns, on generated data); see `experiments/RESULTS.md`.

    Args:
      shape: `(n, d)`, number of rows and columns.
      epsilon: of the whole fit.
      **overrides: values that replace those of the formula.
    """
    # More steps pay where each is little noised.
    found = {'epochs': 15.0 * min(max(epsilon, 1.0), 2.0)}
    # The covariances of a mixture drown in noise: d^2 numbers a component.
    if epsilon * shape[0] < 100 * shape[1] ** 2:
      found.update(prior_components=1, prior_share=0.1)
    return cls(**{**found, **overrides})


@dataclasses.dataclass(frozen=True)
class Fit:
  """A density, and what it cost.

  Attributes:
    distribution: a `tfd.Distribution` over `[d]`.
    flow: the flow alone, without the prior mixed in; `None` for a mixture of
      Gaussians.
    ledger: the `PrivacyLedger`; `None` for a fit that is not private.
    plan: the `TrainingPlan` of the flow, or `None`.
    seconds: wall time.
  """

  distribution: tfd.Distribution
  flow: tfd.Distribution | None = None
  ledger: tfdpflows.PrivacyLedger | None = None
  plan: tfdpflows.TrainingPlan | None = None
  seconds: float = math.nan

  def log_prob(self, x):
    """Returns the log-density of rows, in nats: float64 `[n]`."""
    return log_prob(self.distribution, x)

  def epsilons(self, delta, accountants=('pld', 'rdp', 'gdp')):
    """Returns epsilon of what was spent, by several accountants.

    Args:
      delta: at which to state it.
      accountants: their names.
    """
    event = self.ledger.committed_event
    return {
      name: float(accounting.compute_epsilon(event, delta, name))
      for name in accountants
    }


def log_prob(distribution, x):
  """Returns the log-density of rows `[n, d]`, in nats: float64 `[n]`."""
  x = np.asarray(x, distribution.dtype.as_numpy_dtype)
  parts = [
    distribution.log_prob(tf.constant(x[start : start + _CHUNK])).numpy()
    for start in range(0, len(x), _CHUNK)
  ]
  return np.concatenate(parts).astype(np.float64)


def fit_dp_nf(
  x, *, epsilon, delta, accountant='pld', recipe=None, prior=None, seed=None
):
  """Fits DP-NF with a private prior to rows of l2 norm at most 1.

  Args:
    x: rows `[n, d]`; longer ones are scaled down for the prior. n is public.
    epsilon: budget of everything together, with `delta`.
    delta: see `epsilon`.
    accountant: name of the accountant that sets the noise and states the cost.
    recipe: a `Recipe`; by default `Recipe.for_rows`.
    prior: a `GaussianMixture` that is public and costs nothing, in place of
      the private one. With DP-NF-INIT it must be wide enough for all rows to
      lie within 4 of its standard deviations, further ones are clipped there.
    seed: makes the fit reproducible, and not private against who knows it.

  Returns:
    A `Fit`.

  Raises:
    BudgetExceededError: if the budget cannot pay for it.
  """
  start = time.perf_counter()
  x = np.asarray(x, np.float32)
  recipe = Recipe.for_rows(x.shape, epsilon) if recipe is None else recipe
  randomness = Randomness(seed)
  budget = tfdpflows.PrivacyBudget(epsilon=epsilon, delta=delta)
  ledger = tfdpflows.PrivacyLedger(
    budget=budget,
    accountant=accountant,
    metadata={'seeded': randomness.seeded},
  )
  if prior is None:
    prior = (
      models.DPMoG(
        recipe.prior_components, 0 if recipe.prior_components == 1 else 10
      )
      .fit(
        x,
        epsilon=_share_of(budget, recipe.prior_share, accountant),
        delta=delta,
        ledger=ledger,
        randomness=randomness,
      )
      .parameters
    )
  flow = make_flow(prior, recipe, seed)
  if recipe.init_share:
    flows.initialize_privately(
      flow,
      x,
      bound=_INIT_BOUND,
      noise_multiplier=_noise_of(budget, recipe.init_share, accountant),
      num_layers=recipe.init_layers,
      ledger=ledger,
      randomness=randomness,
    )
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=epsilon,
    delta=delta,
    num_examples=len(x),
    expected_batch_size=len(x) / recipe.batches,
    epochs=recipe.epochs,
    clipping=gradients.Flat(recipe.l2_norm_clip),
    accountant=accountant,
    spent=ledger.committed_event if ledger.entries else None,
    ledger=ledger,
    randomness=randomness,
  )
  model = tfdpflows.DensityModel(flow, ema_momentum=recipe.ema_momentum)
  schedule = keras.optimizers.schedules.CosineDecay(
    recipe.learning_rate, plan.steps, alpha=0.1
  )
  model.compile(optimizer=plan.optimizer('adam', learning_rate=schedule))
  model.fit(x, verbose=0)
  return Fit(
    mix(flow, prior, recipe.prior_weight),
    flow,
    ledger,
    plan,
    time.perf_counter() - start,
  )


def fit_dp_mog(
  x, *, epsilon, delta, accountant='pld', num_components=None, seed=None
):
  """Fits `models.DPMoG` to rows of l2 norm at most 1.

  Args:
    x: see `fit_dp_nf`.
    epsilon: see `fit_dp_nf`.
    delta: see `fit_dp_nf`.
    accountant: see `fit_dp_nf`.
    num_components: 1 for a private full Gaussian; `None` to let it choose.
    seed: see `fit_dp_nf`.

  Returns:
    A `Fit`.
  """
  start = time.perf_counter()
  mixture = models.DPMoG(num_components, 0 if num_components == 1 else 10)
  mixture.fit(x, epsilon=epsilon, delta=delta, accountant=accountant, seed=seed)
  seconds = time.perf_counter() - start
  return Fit(mixture.distribution, ledger=mixture.ledger, seconds=seconds)


def fit_flow(x, recipe, *, batch_size=500, patience=5, seed=None):
  """Fits a flow without privacy: the ceiling of what DP-NF could reach.

  A tenth of the rows is held out and ends the training.

  Args:
    x: rows `[n, d]`.
    recipe: a `Recipe`; what concerns privacy is not used.
    batch_size: of Adam.
    patience: epochs without an improvement on the rows held out.
    seed: of everything.

  Returns:
    A `Fit`.
  """
  start = time.perf_counter()
  x = np.asarray(x, np.float32)
  held_out, rest = np.split(x, [len(x) // 10])
  prior = full_gaussian(rest)
  flow = make_flow(prior, recipe, seed)
  model = tfdpflows.DensityModel(flow)
  steps = math.ceil(recipe.epochs) * math.ceil(len(rest) / batch_size)
  schedule = keras.optimizers.schedules.CosineDecay(recipe.learning_rate, steps)
  model.compile(
    optimizer=keras.optimizers.legacy.Adam(schedule, global_clipnorm=10.0)
  )
  stop = keras.callbacks.EarlyStopping(
    patience=patience, restore_best_weights=True
  )
  keras.utils.set_random_seed(0 if seed is None else seed)
  model.fit(
    rest,
    batch_size=batch_size,
    epochs=math.ceil(recipe.epochs),
    validation_data=(held_out,),
    callbacks=[stop],
    verbose=0,
  )
  distribution = mix(flow, prior, recipe.prior_weight)
  return Fit(distribution, flow, seconds=time.perf_counter() - start)


def full_gaussian(x):
  """Returns the Gaussian of the rows' mean and covariance. Not private.

  Args:
    x: rows `[n, d]`.

  Returns:
    A `GaussianMixture` of one component.
  """
  x = np.asarray(x, np.float64)
  scale = np.linalg.cholesky(np.cov(x.T))
  return GaussianMixture(np.ones(1), x.mean(0)[None], scale[None])


def make_flow(prior, recipe, seed=None):
  """Returns a flow that starts as the prior, and is trained from there.

  Args:
    prior: a `GaussianMixture`. Its mean and covariance whiten the rows; where
      it has several components that matter, it is the base of the flow.
    recipe: a `Recipe`.
    seed: of the initial weights.
  """
  mean = prior.weights @ prior.means
  spread = prior.means - mean
  covariance = np.tensordot(prior.weights, prior.covariances, 1)
  covariance += (prior.weights[:, None] * spread).T @ spread
  scale = np.linalg.cholesky(covariance)
  base = None
  if recipe.prior_components != 1:
    inverse = np.linalg.inv(scale)
    base = to_distribution(
      GaussianMixture(prior.weights, spread @ inverse.T, inverse @ prior.scales)
    )
  whitening = tfb.Invert(
    tfb.Chain(
      [
        tfb.Shift(tf.constant(mean, tf.float32)),
        tfb.ScaleMatvecTriL(tf.constant(scale, tf.float32)),
      ]
    ),
    name='whitening',
  )
  return flows.dp_nf(
    len(mean),
    recipe.num_blocks,
    recipe.hidden_units,
    transform=recipe.transform,
    base=base,
    marginal=whitening,
    actnorm=recipe.init_share > 0,
    activation=recipe.activation,
    seed=seed,
  )


def mix(flow, prior, weight):
  """Returns `(1 - weight) flow + weight prior`, or the flow for weight 0."""
  if not weight:
    return flow
  return tfd.Mixture(
    tfd.Categorical(probs=[1 - weight, weight]), [flow, to_distribution(prior)]
  )


def to_distribution(mixture):
  """Returns a `GaussianMixture` as a `tfd.MixtureSameFamily`, in float32."""
  cast = lambda array: tf.constant(array, tf.float32)
  return tfd.MixtureSameFamily(
    tfd.Categorical(logits=cast(np.log(mixture.weights))),
    tfd.MultivariateNormalTriL(cast(mixture.means), cast(mixture.scales)),
  )


def _noise_of(budget, share, accountant):
  """Noise of a Gaussian mechanism with a share of what a budget pays for."""
  noise_multiplier = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent, budget, accountant=accountant
  )
  return noise_multiplier / math.sqrt(share)


def _share_of(budget, share, accountant):
  """Epsilon of such a mechanism by itself."""
  event = dp_accounting.GaussianDpEvent(_noise_of(budget, share, accountant))
  return accounting.compute_epsilon(event, budget.delta, accountant)
