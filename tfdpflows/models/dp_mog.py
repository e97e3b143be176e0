"""Mixtures of Gaussians fitted privately by noisy expectation maximization."""

from __future__ import annotations

import json
import math
import os

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting
from tfdpflows._keras import tfp
from tfdpflows.mechanisms.checks import touched
from tfdpflows.mechanisms.moments import MomentNoise, check_radius
from tfdpflows.models import mixture_file, mixture_rounds, mixture_updates
from tfdpflows.models.mixture_rows import as_matrix
from tfdpflows.randomness import Randomness

tfd = tfp.distributions

_TAIL_WEIGHT = 0.005
# A smaller one would let rounding grow: rows are divided by its square root.
_SMALLEST_FLOOR = 1e-10


class DPMoG:
  """A private mixture of Gaussians (DP-EM, Park et al. 2017).

  Each iteration of expectation maximization releases the noisy counts, means
  and second moments of all components at once; everything else follows from
  these. Two things differ from the paper unless `adaptive=False`:

  - One Gaussian is found first, then split at random into components, and each
    component sees the rows in its own coordinates, where it has mean 0 and
    covariance I, and clips them there. The noise is then as small as the
    component, not as large as the ball. (For one Gaussian: Biswas et al. 2020,
    "CoinPress".)
  - What a round says is believed only as far as its noise allows; see
    `mixture_updates.refine`.

  Args:
    num_components: number of components K. By default as many as the noise
      leaves room for, from 1 (a private full Gaussian) to 48: chosen from the
      noisy count of the first rounds, which is free, as the price of a round
      does not depend on K. Time grows with K: where the noise leaves room for
      48 components, from about epsilon 2 for tens of thousands of rows, a fit
      takes seconds.
    num_iterations: iterations after the first rounds; 0 for one Gaussian. Part
      of the price, so it must not be chosen by looking at the rows.
    l2_norm_bound: public bound of the l2 norm of a row, in [1e-100, 1e100];
      longer rows are scaled down to it.
    noise: 'gaussian', or 'laplace' for Laplace noise in counts and means.
    adaptive: whether components use coordinates of their own. `False` is DP-EM
      as in the paper, with noise as large as the ball.
    covariance_floor: smallest eigenvalue of a covariance, in squared units of
      the rows; public. By default 1e-8 of the squared norm bound, and at least
      1e-10 of it. It is what keeps the model finite on duplicates and constant
      columns.
    tail_weight: weight of a wide component from the first round that is added
      at the end, for rare rows.
    dtype: of `distribution`, 'float32' or 'float64'.
    name: label of the charge in the ledger.

  Raises:
    ValueError: for values out of range.

  #### Formal guarantee

  All that is derived from the rows are the releases of `noisy_moments`, one a
  round. A round looks at each row alone, through parameters from earlier
  rounds, so that it costs what that function says, whatever K is; the noise of
  all rounds is fixed before the first. The number of rows is not used: what
  divides is a noisy count. Rows with anything that is not finite are left out,
  which is zero contribution. The whole is `event`, charged before the rows are
  read. Neighbouring tables differ by one row added or removed or, where the
  ledger says so, by one row replaced, which is priced as twice the shift and
  gets twice the noise. Every fit draws noise of its own, also from copies of
  one `Randomness`, unless there is a seed.

  This holds for real numbers. Sums are rounded, and how one row is rounded may
  depend on how many others there are: differences of about 1e-10 of the
  sensitivity were found at the default floor. Noise in floating point is not
  proof against floating-point attacks.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.models import DPMoG
  >>> x = .1 * np.random.default_rng(0).normal(size=[2000, 2])
  >>> mixture = DPMoG().fit(x, epsilon=1., delta=1e-5)
  >>> mixture.distribution.event_shape
  TensorShape([2])
  >>> mixture.log_prob(x[:3]).shape
  TensorShape([3])
  >>> mixture.privacy_statement().epsilon <= 1.
  True
  """

  def __init__(
    self,
    num_components=None,
    num_iterations=10,
    *,
    l2_norm_bound=1.0,
    noise='gaussian',
    adaptive=True,
    covariance_floor=None,
    tail_weight=_TAIL_WEIGHT,
    dtype='float32',
    name='DP-MoG',
  ):
    if num_components is not None:
      num_components = _whole('num_components', num_components, 1)
    check_radius('l2_norm_bound', l2_norm_bound)
    if covariance_floor is None:
      covariance_floor = 1e-8 * l2_norm_bound**2
    least = _SMALLEST_FLOOR * l2_norm_bound**2
    if not least <= covariance_floor < math.inf:
      raise ValueError(
        f'covariance_floor is {covariance_floor}; it must be finite and at '
        f'least {least:g}, which is {_SMALLEST_FLOOR:g} times the square of '
        'l2_norm_bound.'
      )
    if not 0 <= tail_weight < 1:
      raise ValueError(f'tail_weight is {tail_weight}; it must be in [0, 1).')
    self.dtype = tf.as_dtype(dtype).name
    if self.dtype not in ('float32', 'float64'):
      raise ValueError(f"dtype is {self.dtype}; use 'float32' or 'float64'.")
    limits, largest = (
      np.finfo(self.dtype),
      max(l2_norm_bound**2, covariance_floor),
    )
    if not (limits.tiny <= covariance_floor and largest <= limits.max):
      raise ValueError(
        f'{self.dtype} holds no variances from {covariance_floor:g} to '
        f"{largest:g}; give dtype='float64', or the rows another unit."
      )
    self.num_components = num_components
    self.num_iterations = _whole('num_iterations', num_iterations, 0)
    self.l2_norm_bound = float(l2_norm_bound)
    self.noise = MomentNoise(1.0, 1, 1.0, noise).kind
    self.adaptive = bool(adaptive)
    self.covariance_floor = float(covariance_floor)
    self.tail_weight = float(tail_weight)
    self.name = str(name)
    self._parameters = None
    self._distribution = None
    self._event = None
    self._budget = None
    self._ledger = None
    self._seeded = False

  def fit(
    self,
    x,
    *,
    epsilon,
    delta,
    ledger=None,
    accountant=None,
    seed=None,
    randomness=None,
  ):
    """Fits the mixture, charged before the rows are read. Once.

    Args:
      x: rows `[n, d]`, an array of numbers or a `DataFrame` of columns of
        numbers. The number of columns is public, the number of rows is not.
      epsilon: what the fit may cost by itself, together with `delta`.
      delta: see `epsilon`.
      ledger: `PrivacyLedger` to charge; by default one in memory with
        (`epsilon`, `delta`) as its budget. What else its budget pays for is
        composed by its accountant, not by adding.
      accountant: name of the accountant that sets the noise; by default that of
        the ledger, or 'pld'.
      seed: for tests and papers; a seeded fit is not private against anyone
        who knows the seed, and every later statement of the ledger says so.
      randomness: a `Randomness` that replaces `seed`. Unless it has a seed, its
        secret alone does not repeat the fit.

    Returns:
      `self`.

    Raises:
      ValueError: if `x` is no matrix of numbers, a value is out of range, or
        `randomness` has a seed and was used under this name before; nothing
        was charged or read then.
      BudgetExceededError: if no noise is enough for the budget, or the ledger
        refuses the charge; nothing was charged or read then.
      RuntimeError: if it was fitted before.
    """
    if self._parameters is not None:
      raise RuntimeError(
        'This DPMoG was fitted already. A second fit spends again: make a new '
        'one, and give both the same `ledger`.'
      )
    if seed is not None and randomness is not None:
      raise ValueError('Give either `seed` or `randomness`, not both.')
    budget = accounting.PrivacyBudget(epsilon, delta)
    if randomness is None:
      randomness = Randomness(seed)
    if ledger is None:
      ledger = accounting.PrivacyLedger(
        budget=budget,
        accountant=accountant or 'pld',
        metadata={'seeded': randomness.seeded},
      )
    touched(ledger.neighboring_relation)  # Refuses what is not proven.
    x = as_matrix(x)
    noises = self._calibrate(
      x.shape[1],
      budget,
      accountant=accountant or ledger.accountant,
      neighboring_relation=ledger.neighboring_relation,
    )
    event = _composed(noises)
    seeded = randomness.seeded
    label = f'{self.name} (seeded)' if seeded else self.name
    # A copy of a `Randomness` knows nothing of what the original was used for.
    # There is no fit to resume, so that no two need ever have the same noise.
    salt = () if seeded else (os.urandom(32).hex(),)
    with randomness.claiming(self.name, *salt):
      ledger.charge(event, label=label, seeded=seeded)
    self._event, self._budget, self._ledger = event, budget, ledger
    self._seeded = seeded
    mixture, tail = mixture_rounds.run_rounds(
      x,
      noises,
      self.num_iterations,
      self.num_components,
      self.adaptive,
      self.covariance_floor,
      randomness.numpy(self.name, *salt),
    )
    self._parameters = mixture_updates.add_tail(mixture, tail, self.tail_weight)
    return self

  @property
  def event(self):
    """The `DpEvent` of the fit."""
    self._check_fitted()
    return self._event

  @property
  def ledger(self):
    """The `PrivacyLedger` that was charged."""
    self._check_fitted()
    return self._ledger

  @property
  def parameters(self):
    """The `GaussianMixture` that was released."""
    self._check_fitted()
    return self._parameters

  @property
  def distribution(self):
    """The released `tfd.MixtureSameFamily` over `[d]`, also a flow's `base`."""
    if self._distribution is None:
      found = self.parameters
      cast = lambda array: tf.constant(array, self.dtype)
      # A strategy's scope or a graph must not own what is kept here.
      with tf.init_scope():
        self._distribution = tfd.MixtureSameFamily(
          tfd.Categorical(logits=cast(np.log(found.weights))),
          tfd.MultivariateNormalTriL(cast(found.means), cast(found.scales)),
          name='dp_mog',
        )
    return self._distribution

  def log_prob(self, x):
    """Returns the log-density of rows `[..., d]`, in nats."""
    return self.distribution.log_prob(tf.cast(x, self.dtype))

  def sample(self, sample_shape=(), seed=None):
    """Returns rows `sample_shape + [d]`. Costs no privacy."""
    return self.distribution.sample(sample_shape, seed=seed)

  def privacy_statement(self):
    """Returns all that the ledger spent, as a `PrivacyStatement`.

    At the delta of the ledger's budget; of the fit, if the ledger has none.
    """
    self._check_fitted()
    kind = 'added Gaussian noise'
    if self.noise == 'laplace':
      kind = 'added Laplace noise (counts, means) and Gaussian noise'
    return accounting.privacy_statement(
      self._ledger,
      notes=[
        f'{self.name}: every round reads all rows, clipped to an l2 norm of '
        f'{self.l2_norm_bound:g}; {kind}.'
      ],
      delta=self._budget.delta if self._ledger.budget is None else None,
      seeded=self._seeded,
    )

  def get_config(self):
    """Returns the arguments of the constructor, for JSON."""
    return {
      'num_components': self.num_components,
      'num_iterations': self.num_iterations,
      'l2_norm_bound': self.l2_norm_bound,
      'noise': self.noise,
      'adaptive': self.adaptive,
      'covariance_floor': self.covariance_floor,
      'tail_weight': self.tail_weight,
      'dtype': self.dtype,
      'name': self.name,
    }

  def save(self, path):
    """Writes the released mixture and what was spent to a JSON file.

    Nothing in it depends on private votes or tells of the ledger's metadata:
    the file may be published as the mixture may.

    Args:
      path: the file; it is replaced.
    """
    self._check_fitted()
    content = mixture_file.to_dict(
      self.get_config(),
      self._parameters,
      self._event,
      self._budget,
      self._ledger,
      self._seeded,
    )
    text = json.dumps(content, indent=1, allow_nan=False)
    with open(path, 'w', encoding='utf-8') as file:
      file.write(text + '\n')

  @classmethod
  def load(cls, path):
    """Reads what `save` wrote.

    Args:
      path: the file.

    Returns:
      A fitted `DPMoG`. Its ledger tells what was spent, and what was reserved,
      when the file was written; it refuses charges, which belong into the
      original.

    Raises:
      ValueError: if the file is of another kind, or damaged.
    """
    with open(path, encoding='utf-8') as file:
      saved = mixture_file.from_text(file.read(), path)
    mixture = cls(**saved.config)
    mixture._parameters = saved.parameters
    mixture._event = saved.event
    mixture._budget = saved.budget
    mixture._ledger = saved.ledger
    mixture._seeded = saved.seeded
    return mixture

  def _check_fitted(self):
    if self._parameters is None:
      raise RuntimeError('This DPMoG is not fitted yet: call `fit`.')

  def _calibrate(self, event_size, budget, **pricing):
    """The noise of each round, the least that the budget pays for."""

    def make(noise_multiplier):
      return mixture_rounds.round_noises(
        noise_multiplier,
        event_size,
        self.num_iterations,
        self.l2_norm_bound,
        self.noise,
        self.adaptive,
      )

    return make(
      accounting.calibrate_noise_multiplier(
        lambda multiplier: _composed(make(multiplier)), budget, **pricing
      )
    )


def _composed(noises):
  return dp_accounting.ComposedDpEvent([noise.event for noise in noises])


def _whole(name, value, least):
  if isinstance(value, bool) or value != int(value) or value < least:
    raise ValueError(
      f'{name} is {value}; it must be a whole number >= {least}.'
    )
  return int(value)
