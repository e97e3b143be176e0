"""Mixtures of Gaussians fitted privately by noisy expectation maximization."""

from __future__ import annotations

import math
import os
import sys
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting
from tfdpflows._checks import check_integer
from tfdpflows._keras import tfp
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.atomic import PathLike
from tfdpflows.mechanisms.moments import MomentNoise, check_radius
from tfdpflows.mechanisms.releases import as_floats, differing_rows
from tfdpflows.models.dp_mog import file as file_lib
from tfdpflows.models.dp_mog.em import GaussianMixture, NoisyEM
from tfdpflows.randomness import Randomness

__all__ = ['DPMoG', 'as_matrix']

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
  - Each round's estimate is weighed against its noise; see `em.refine`.

  Args:
    num_components: number of components K. By default from 1 (a private full
      Gaussian) to 48, the more the smaller the noise: chosen from the noisy
      count of the first rounds, at no cost, since that of a round does not
      depend on K. With 48, from about epsilon 2 for tens of thousands of rows,
      a fit takes seconds.
    num_iterations: iterations after the first rounds; 0 for one Gaussian. Part
      of the cost, so it must not be chosen by looking at the rows.
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
  ledger says so, by one row replaced, which is accounted as twice the shift and
  gets twice the noise. Every fit draws noise of its own, also from copies of
  one `Randomness`, unless there is a seed.

  This holds for real numbers. Sums are rounded, and how one row is rounded may
  depend on how many others there are: differences of about 1e-10 of the
  sensitivity were found at the default floor.

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
    num_components: Optional[int] = None,
    num_iterations: int = 10,
    *,
    l2_norm_bound: float = 1.0,
    noise: str = 'gaussian',
    adaptive: bool = True,
    covariance_floor: Optional[float] = None,
    tail_weight: float = _TAIL_WEIGHT,
    dtype: str = 'float32',
    name: str = 'DP-MoG',
  ):
    if num_components is not None:
      num_components = check_integer('num_components', num_components)
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
    limits = np.finfo(self.dtype)
    largest = max(l2_norm_bound**2, covariance_floor)
    if not (limits.tiny <= covariance_floor and largest <= limits.max):
      raise ValueError(
        f'{self.dtype} holds no variances from {covariance_floor:g} to '
        f"{largest:g}; give dtype='float64', or the rows another unit."
      )
    self.num_components = num_components
    self.num_iterations = check_integer('num_iterations', num_iterations, 0)
    self.l2_norm_bound = float(l2_norm_bound)
    self.noise = MomentNoise(1.0, 1, 1.0, noise).kind
    self.adaptive = bool(adaptive)
    self.covariance_floor = float(covariance_floor)
    self.tail_weight = float(tail_weight)
    self.name = str(name)
    self._fit: Optional[file_lib.Fit] = None
    self._distribution = None

  def fit(
    self,
    x: Any,
    *,
    epsilon: float,
    delta: float,
    ledger: Optional[accounting.PrivacyLedger] = None,
    accountant: Optional[str] = None,
    seed: Optional[int] = None,
    randomness: Optional[Randomness] = None,
  ) -> DPMoG:
    """Fits the mixture, charged before the rows are read. Once.

    Args:
      x: rows `[n, d]`, an array of numbers or a `DataFrame` of columns of
        numbers. The number of columns is public, the number of rows is not.
      epsilon: of the fit by itself, together with `delta`.
      delta: see `epsilon`.
      ledger: `PrivacyLedger` to charge; by default one in memory with
        (`epsilon`, `delta`) as its budget.
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
    if self._fit is not None:
      raise RuntimeError(
        'This DPMoG was fitted already. A second fit spends again: make a new '
        'one, and give both the same `ledger`.'
      )
    if seed is not None and randomness is not None:
      raise ValueError('Give either `seed` or `randomness`, not both.')
    budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    if randomness is None:
      randomness = Randomness(seed)
    if ledger is None:
      ledger = accounting.PrivacyLedger(
        budget=budget,
        accountant=accountant or 'pld',
        metadata={'seeded': randomness.seeded},
      )
    check_ledger(ledger)
    differing_rows(ledger.neighboring_relation)  # Refuses what is not proven.
    x = as_matrix(x)
    em = self._calibrate(
      x.shape[1],
      budget,
      accountant=accountant or ledger.accountant,
      neighboring_relation=ledger.neighboring_relation,
    )
    seeded = randomness.seeded
    label = f'{self.name} (seeded)' if seeded else self.name
    # A copy of a `Randomness` knows nothing of what the original was used for.
    # There is no fit to resume, so that no two need ever have the same noise.
    salt = () if seeded else (os.urandom(32).hex(),)
    with randomness.claiming(self.name, *salt):
      ledger.charge(em.event, label=label, seeded=seeded)
    mixture, tail = em.run(
      x,
      self.num_components,
      self.covariance_floor,
      randomness.numpy(self.name, *salt),
    )
    parameters = mixture.with_tail(tail, self.tail_weight)
    self._fit = file_lib.Fit(parameters, em.event, budget, ledger, seeded)
    return self

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of the fit."""
    return self._fitted().event

  @property
  def ledger(self) -> accounting.PrivacyLedger:
    """The `PrivacyLedger` that was charged."""
    return self._fitted().ledger

  @property
  def parameters(self) -> GaussianMixture:
    """The `GaussianMixture` that was released."""
    return self._fitted().parameters

  @property
  def distribution(self) -> tfd.Distribution:
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

  def log_prob(self, x: Any) -> tf.Tensor:
    """Returns the log-density of rows `[..., d]`, in nats."""
    return self.distribution.log_prob(tf.cast(x, self.dtype))

  def sample(self, sample_shape: Any = (), seed: Any = None) -> tf.Tensor:
    """Returns rows `sample_shape + [d]`. Costs no privacy."""
    return self.distribution.sample(sample_shape, seed=seed)

  def privacy_statement(self) -> accounting.PrivacyStatement:
    """Returns all that the ledger spent, as a `PrivacyStatement`.

    At the delta of the ledger's budget; of the fit, if the ledger has none.
    """
    fit = self._fitted()
    kind = 'added Gaussian noise'
    if self.noise == 'laplace':
      kind = 'added Laplace noise (counts, means) and Gaussian noise'
    return accounting.privacy_statement(
      fit.ledger,
      notes=[
        f'{self.name}: every round reads all rows, clipped to an l2 norm of '
        f'{self.l2_norm_bound:g}; {kind}.'
      ],
      delta=fit.budget.delta if fit.ledger.budget is None else None,
      seeded=fit.seeded,
    )

  def get_config(self) -> dict[str, Any]:
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

  def save(self, path: PathLike) -> None:
    """Writes the released mixture and what was spent to a JSON file.

    The file may be published as the mixture may: it holds neither costs that
    depend on private votes nor the ledger's metadata.

    Args:
      path: the file; it is replaced.
    """
    file_lib.write(path, self.get_config(), self._fitted())

  @classmethod
  def load(cls, path: PathLike) -> DPMoG:
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
    config, fit = file_lib.read(path)
    mixture = cls(**config)
    mixture._fit = fit
    return mixture

  def _fitted(self):
    if self._fit is None:
      raise RuntimeError('This DPMoG is not fitted yet: call `fit`.')
    return self._fit

  def _calibrate(self, event_size, budget, **accounting_args):
    """Returns the `NoisyEM` with the least noise within the budget."""

    def make(noise_multiplier):
      return NoisyEM(
        noise_multiplier,
        event_size,
        self.num_iterations,
        self.l2_norm_bound,
        self.noise,
        self.adaptive,
      )

    return make(
      accounting.calibrate_noise_multiplier(
        lambda multiplier: make(multiplier).event, budget, **accounting_args
      )
    )


def as_matrix(x: Any) -> np.ndarray:
  """Returns rows as a float64 array, with NaN where a value is missing.

  Whether it raises depends on types and on the number of columns alone: a
  refusal of a value, such as one text among numbers, would reveal that value.

  Args:
    x: what NumPy makes an array `[n, d]` of and that has a dtype of bool,
      integers or floats, or a `DataFrame` of such columns.

  Raises:
    ValueError: for other dtypes or shapes, or a masked array.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.models.dp_mog.dp_mog import as_matrix
  >>> as_matrix(pd.DataFrame({'a': pd.array([1, None], 'Int64')})).tolist()
  [[1.0], [nan]]
  """
  pandas = sys.modules.get('pandas')
  if pandas is not None and isinstance(x, pandas.DataFrame):
    for name, dtype in x.dtypes.items():
      if dtype.kind not in 'biuf':
        raise ValueError(
          f'Column {name!r} has dtype {dtype}; x must be a matrix of numbers. '
          "Encode the column first, or x.astype('float64')."
        )
    # What NumPy makes of nullable columns depends on whether there is a null.
    x = x.to_numpy(np.float64, na_value=np.nan)
  if not hasattr(x, 'dtype'):
    raise ValueError(
      f'x is a {type(x).__name__}, whose type depends on its values; give a '
      "DataFrame or an array of numbers: np.asarray(x, 'float64')."
    )
  rows = as_floats(x)
  if rows.ndim != 2 or not rows.shape[1]:
    raise ValueError(
      f'x has {rows.ndim} dimensions; it needs [num_rows, d], d > 0.'
    )
  return rows
