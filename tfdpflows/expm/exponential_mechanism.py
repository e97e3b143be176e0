"""The exponential mechanism: its density, and exact samples of finite sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np
import tensorflow as tf

from tfdpflows._checks import (
  Fixed,
  check_integer,
  check_nonnegative,
  check_positive,
)
from tfdpflows.accounting import (
  ExponentialMechanismDpEvent,
  PermuteAndFlipDpEvent,
)
from tfdpflows.mechanisms.releases import as_numbers, charge_release

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.randomness import Randomness

METHODS = {
  'exponential': ExponentialMechanismDpEvent,
  'permute_and_flip': PermuteAndFlipDpEvent,
}
# Texts that depend on the rows are fixed: they hold no index and no value.
_NOT_FINITE = (
  'The utility is not finite for some of the parameters. Nothing was charged.'
)
_OUT_OF_RANGE = (
  'The outputs of the model are not all in [0, 1], or are not finite, so that '
  'the sensitivity of the utility is not known. Nothing was charged.'
)
_NOT_POINTWISE = (
  'The utility of a candidate depends on which others are evaluated with it, '
  'so that its sensitivity is not that of one candidate. Nothing was charged.'
)
_TARGETS = 'The targets y must all be in [0, 1] and finite.'


class ExponentialMechanism(Fixed):
  """The density proportional to `exp(epsilon u(theta) / (2 s)) prior(theta)`.

  Args:
    utility: function of parameters `[N, P]` that returns `[N]`, larger for
      better ones, such as `l2_utility`; or your own. TensorFlow operations if
      gradients are needed, any otherwise. That of one theta may not depend on
      the others.
    sensitivity: s, by which a row changes u(theta) at most, at any theta and
      for any table, under the neighbouring relation of the ledger. It is your
      statement, and not checked, but for a utility that has its own.
    epsilon: of the mechanism.
    l1: the prior is proportional to `exp(-l1 |theta|_1 - l2 |theta|^2)`; zero
      or more, and public.
    l2: see `l1`.

  Raises:
    ValueError: for a parameter out of range, or a sensitivity below that of the
      utility.

  #### Formal guarantee

  One sample of this law is epsilon-private: the log ratio of the densities for
  two tables that are neighbours lies in an interval of length epsilon, for any
  prior that does not depend on the table (McSherry and Talwar 2007; Durfee and
  Rogers 2019). It is `ExponentialMechanismDpEvent(epsilon)`. That holds for
  samples of this law: `sample_from` and `sample_grid`, of finite sets, but for
  floating point. It holds for nothing that approximates it. `NoisyDescent` is a
  sampler for continuous parameters whose privacy is proven on its own.

  The normalizing constant exists only if the density can be integrated. A
  bounded utility on all of R^P needs a prior: without one there is no such
  mechanism.

  #### References

  McSherry and Talwar 2007, "Mechanism design via differential privacy".
  Bridges, Tombs and Stanley 2023, "Are normalizing flows the key to unlocking
  the exponential mechanism?".

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, expm
  >>> from tfdpflows.randomness import Randomness
  >>> votes = np.array([3., 40., 7.])
  >>> mechanism = expm.ExponentialMechanism(
  ...   lambda choice: votes[np.asarray(choice)[:, 0].astype(int)],
  ...   sensitivity=1., epsilon=1.)
  >>> ledger = accounting.PrivacyLedger()
  >>> mechanism.sample_from(
  ...   [[0], [1], [2]], ledger=ledger, randomness=Randomness(seed=0))
  array([1.])
  >>> ledger.epsilon(1e-6) <= 1
  True
  """

  def __init__(
    self,
    utility: Callable[[tf.Tensor], tf.Tensor],
    *,
    sensitivity: float,
    epsilon: float,
    l1: float = 0.0,
    l2: float = 0.0,
  ):
    self.utility = utility
    self.sensitivity = check_positive('sensitivity', sensitivity)
    self.epsilon = check_positive('epsilon', epsilon)
    self.l1, self.l2 = check_nonnegative('l1', l1), check_nonnegative('l2', l2)
    least = getattr(utility, 'sensitivity', 0.0)
    if self.sensitivity < least:
      raise ValueError(
        f'sensitivity is {self.sensitivity}, and that of the utility {least}.'
      )

  def log_prior(self, parameters: tf.Tensor) -> tf.Tensor:
    """Returns `-l1 |theta|_1 - l2 |theta|^2` of `[N, P]`, as `[N]`."""
    log_prior = tf.zeros_like(parameters[..., 0])
    if self.l1:
      log_prior -= self.l1 * tf.reduce_sum(tf.abs(parameters), -1)
    if self.l2:
      log_prior -= self.l2 * tf.reduce_sum(tf.square(parameters), -1)
    return log_prior

  def unnormalized_log_prob(self, parameters: npt.ArrayLike) -> tf.Tensor:
    """Returns the log density up to a constant. It is private.

    Args:
      parameters: `[N, P]`.

    Returns:
      `[N]`, with gradients if the utility has them.

    Raises:
      ValueError: if parameters or utilities are not finite (in eager mode), or
        of another shape.
    """
    parameters = tf.convert_to_tensor(parameters)
    if parameters.dtype.is_integer:
      parameters = tf.cast(parameters, tf.float64)
    if parameters.shape.rank != 2:
      raise ValueError(
        f'The parameters have shape {parameters.shape}; it must be [N, P].'
      )
    eager = tf.executing_eagerly()
    if eager and not np.isfinite(parameters.numpy()).all():
      raise ValueError('The parameters are not all finite.')
    utility = self.utility(parameters)
    if eager and not tf.is_tensor(utility):
      utility = tf.convert_to_tensor(np.asarray(utility), parameters.dtype)
    if utility.shape.rank != 1 or not utility.shape.is_compatible_with(
      parameters.shape[:1]
    ):
      raise ValueError(
        f'The utility has shape {utility.shape} for parameters of shape '
        f'{parameters.shape}; it must be [N].'
      )
    if eager and not np.isfinite(utility.numpy()).all():
      raise ValueError(_NOT_FINITE)
    scale = self.epsilon / (2 * self.sensitivity)
    found = scale * tf.cast(utility, parameters.dtype)
    found += self.log_prior(parameters)
    if eager and not np.isfinite(found.numpy()).all():
      raise ValueError(_NOT_FINITE)
    return found

  def sample_from(
    self,
    candidates: npt.ArrayLike,
    *,
    ledger: PrivacyLedger,
    method: str = 'exponential',
    label: str = 'exponential mechanism',
    randomness: Optional[Randomness] = None,
    resume: bool = False,
    block_size: int = 256,
  ) -> np.ndarray:
    """Charges the ledger and draws one of a finite set, exactly.

    Args:
      candidates: public array `[K, P]`, which may not depend on the table.
      ledger: see `tfdpflows.mechanisms`, as the errors.
      method: 'exponential', drawn as the largest of the log weights with Gumbel
        noise; or 'permute_and_flip' (McKenna and Sheldon 2020), which needs a
        constant prior: its expected utility is never lower, and it is charged
        as epsilon-private, not as bounded-range.
      label: see `tfdpflows.mechanisms`.
      randomness: see there.
      resume: see there.
      block_size: how many candidates are evaluated at once.

    Returns:
      The candidate `[P]`, float64.

    Raises:
      ValueError: for arguments out of range, or if a utility is not finite;
        nothing is charged. Whether there is one depends on the rows, and is
        outside of the guarantee.
      BudgetExceededError: if the ledger refuses the charge; nothing is drawn.

    #### Formal guarantee

    Charged as `ExponentialMechanismDpEvent(epsilon)` or
    `PermuteAndFlipDpEvent(epsilon)`. The largest of log weights with
    independent Gumbel noise is drawn with probability proportional to the
    weights, and with exponential noise as by permute-and-flip (Ding et al.
    2021).
    """
    candidates = as_numbers(candidates, 'candidates', ('K', 'P'))
    if not len(candidates):
      raise ValueError('There are no candidates.')
    candidates = candidates.astype(np.float64)
    block_size = check_integer('block_size', block_size)
    blocks = (
      candidates[start : start + block_size]
      for start in range(0, len(candidates), block_size)
    )
    settings = (ledger, method, label, randomness, resume)
    return candidates[self._index(blocks, [candidates], *settings)]

  def sample_grid(
    self,
    axes: Sequence[npt.ArrayLike],
    *,
    ledger: PrivacyLedger,
    method: str = 'exponential',
    label: str = 'exponential mechanism',
    randomness: Optional[Randomness] = None,
    resume: bool = False,
    block_size: int = 256,
  ) -> np.ndarray:
    """As `sample_from`, of the points of a grid.

    It is the exponential mechanism of these points, and not an approximation of
    the one on R^P: its privacy does not depend on how fine the grid is.

    Args:
      axes: for each of the P parameters its public values, `[K_i]`; the grid
        holds their product.
      ledger: see `sample_from`, as all others.
      method: see there.
      label: see there.
      randomness: see there.
      resume: see there.
      block_size: see there.

    Returns:
      The point `[P]`.

    #### Example

    >>> import numpy as np, tensorflow as tf
    >>> from tfdpflows import accounting, expm
    >>> mechanism = expm.ExponentialMechanism(
    ...   lambda theta: -tf.reduce_sum(theta ** 2, -1),
    ...   sensitivity=1., epsilon=100.)
    >>> axes = [np.linspace(-1, 1, 21)] * 2
    >>> found = mechanism.sample_grid(axes, ledger=accounting.PrivacyLedger())
    >>> bool(np.abs(found).max() < 1)
    True
    """
    axes = [
      as_numbers(axis, f'axes[{i}]', ('K',)).astype(np.float64)
      for i, axis in enumerate(axes)
    ]
    if not axes or not all(map(len, axes)):
      raise ValueError('axes must be a list of arrays, none of them empty.')
    block_size = check_integer('block_size', block_size)
    sizes = [len(axis) for axis in axes]
    total = math.prod(sizes)

    def points(indices):
      places = np.unravel_index(indices, sizes)
      return np.stack([axis[i] for axis, i in zip(axes, places)], -1)

    blocks = (
      points(np.arange(start, min(start + block_size, total)))
      for start in range(0, total, block_size)
    )
    settings = (ledger, method, label, randomness, resume)
    index = self._index(blocks, axes, *settings)
    return points(np.array([index]))[0]

  def _index(self, blocks, arrays, ledger, method, label, randomness, resume):
    """Charges, and draws the index of a candidate."""
    if method not in METHODS:
      raise ValueError(
        f'method is {method!r}; choose one of {", ".join(METHODS)}.'
      )
    if method == 'permute_and_flip' and (self.l1 or self.l2):
      raise ValueError(
        "method='permute_and_flip' is proven for a constant prior: leave l1 "
        "and l2 at zero, or choose 'exponential'."
      )
    log_weights = []
    for block in blocks:
      found = self.unnormalized_log_prob(block).numpy().astype(np.float64)
      if not log_weights:
        self._check_pointwise(block, found)
      log_weights.append(found)
    log_weights = np.concatenate(log_weights)
    randomness = charge_release(
      ledger,
      METHODS[method](self.epsilon),
      label=label,
      randomness=randomness,
      facts={
        'exponential_mechanism': method,
        'sensitivity': self.sensitivity,
        'epsilon': self.epsilon,
        'l1': self.l1,
        'l2': self.l2,
        'candidates': len(log_weights),
      },
      arrays=[*arrays, log_weights],
      resume=resume,
    )
    rng = randomness.numpy(str(label))
    draw = rng.gumbel if method == 'exponential' else rng.exponential
    # The largest is taken off: noise is lost in large numbers.
    log_weights -= log_weights.max()
    return int(np.argmax(log_weights + draw(size=len(log_weights))))

  def _check_pointwise(self, block, found):
    """Refuses utilities that are normalized over the candidates, say."""
    for i in {0, int(np.argmin(found)), int(np.argmax(found))}:
      alone = float(self.unnormalized_log_prob(block[i : i + 1]).numpy()[0])
      if not abs(alone - found[i]) <= 1e-4 * max(abs(alone), abs(found[i]), 1):
        raise ValueError(_NOT_POINTWISE)


class L2Utility(Fixed):
  """See `l2_utility`."""

  sensitivity = 1.0
  # So that no density on all of R^P is proportional to its exponential.
  bounded = True

  def __init__(self, model, x, y, batch_size):
    self.model = model
    self.num_parameters = check_integer('num_parameters', model.num_parameters)
    self.batch_size = check_integer('batch_size', batch_size)
    y = as_numbers(y, 'y', ('n',))
    x = as_numbers(x, 'x')
    if x.ndim < 2 or len(x) != len(y) or not len(y):
      raise ValueError(
        f'x has shape {x.shape} and y {y.shape}; they must be [n, ...] and [n].'
      )
    if x.dtype.kind != 'f':
      x = x.astype(np.float64)
    if not np.all((y >= 0) & (y <= 1)):
      raise ValueError(_TARGETS)
    _check_rows_apart(model, self.num_parameters, x.shape[1:], x.dtype)
    self.num_examples = len(y)
    self._x, self._y = tf.constant(x), tf.constant(y.astype(x.dtype))

  def __call__(self, parameters: tf.Tensor) -> tf.Tensor:
    """Returns `-sum (model(theta, x) - y)^2` of `[N, P]`, as `[N]`.

    Raises:
      ValueError: in eager mode, if an output is not in [0, 1]; a graph returns
        NaN in its place.
    """
    return self._sum(parameters, checked=True)

  def estimate(
    self, parameters: tf.Tensor, rows: Optional[tf.Tensor] = None
  ) -> tf.Tensor:
    """Returns the utility estimated from some rows, without checks.

    Args:
      parameters: `[N, P]`.
      rows: indices `[B]`; the sum is scaled by n / B. All rows by default.
    """
    if rows is None:
      return self._sum(parameters, checked=False)
    x, y = tf.gather(self._x, rows), tf.gather(self._y, rows)
    scale = self.num_examples / tf.cast(tf.size(rows), parameters.dtype)
    return -scale * _loss(self._outputs(parameters, x), y)

  def _sum(self, parameters, checked):
    # In float32 the rounding of a million rows is more than one row adds.
    total = tf.zeros_like(parameters[:, 0], tf.float64)
    for start in range(0, self.num_examples, self.batch_size):
      rows = slice(start, start + self.batch_size)
      outputs = self._outputs(parameters, self._x[rows])
      if checked:
        inside = tf.reduce_all((outputs >= 0) & (outputs <= 1))
        if not tf.executing_eagerly():
          outputs = tf.where(inside, outputs, math.nan)
        elif not inside:
          raise ValueError(_OUT_OF_RANGE)
      total += _loss(tf.cast(outputs, tf.float64), self._y[rows])
    return tf.cast(-total, parameters.dtype)

  def _outputs(self, parameters, x):
    outputs = self.model(parameters, tf.cast(x, parameters.dtype))
    expected = [parameters.shape[0], x.shape[0]]
    if not outputs.shape.is_compatible_with(expected):
      raise ValueError(
        f'The model returned shape {outputs.shape} for parameters of shape '
        f'{parameters.shape} and rows of shape {x.shape}; it must be [N, B].'
      )
    return outputs


def _check_rows_apart(model, num_parameters, shape, dtype):
  """Refuses a model that mixes rows, on rows that are made up."""
  rng = np.random.default_rng(0)
  parameters = tf.constant(rng.normal(size=[2, num_parameters]).astype(dtype))
  rows = tf.constant(rng.uniform(size=[4, *shape]).astype(dtype))
  together = model(parameters, rows).numpy()
  if together.shape != (2, 4):
    return  # Refused where it is used, with its name.
  apart = [model(parameters, rows[i : i + 1]).numpy() for i in range(4)]
  if not np.allclose(together, np.concatenate(apart, -1), 1e-3, 1e-4):
    raise ValueError(
      'The output of the model for a row depends on the other rows, so that '
      'one row may change all outputs and the sensitivity is not 1. Statistics '
      'of a batch have to be public constants.'
    )


def _loss(outputs, y):
  y = tf.cast(y, outputs.dtype)
  return tf.reduce_sum(tf.math.squared_difference(outputs, y), -1)


def l2_utility(
  model: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  x: npt.ArrayLike,
  y: npt.ArrayLike,
  *,
  batch_size: int = 8192,
) -> L2Utility:
  """Returns the utility `-sum (model(theta, x) - y)^2`, of sensitivity 1.

  Args:
    model: function of parameters `[N, P]` and rows `[B, ...]` that returns the
      outputs `[N, B]`, with the attribute `num_parameters`, P.
    x: rows `[n, ...]` of real numbers.
    y: targets `[n]`, in [0, 1].
    batch_size: how many rows are evaluated at once. What a few thousand rows
      need fits a cache.

  Returns:
    A function of parameters `[N, P]` that returns `[N]`, for
    `ExponentialMechanism`. It holds the rows, and what it returns is private.
    It raises a `ValueError` if an output is not in [0, 1].

  Raises:
    ValueError: for other shapes, targets that are not all in [0, 1] (with a
      fixed text: no row is named), or a model that mixes rows.

  #### Formal guarantee

  With outputs and targets in [0, 1], the loss of a row is in [0, 1]. So a row
  that is added, removed or replaced changes the utility by at most 1, at any
  theta (Bridges, Tombs and Stanley 2023, theorem 3.1). The outputs are checked
  on these rows, at the parameters that are evaluated; that they are in [0, 1]
  for all other rows is a property of `model`, and has to be true of it (a
  sigmoid at the end). So is that the output of a row depends on theta and that
  row alone, which is tried on rows that are made up. A sum over several outputs
  of a row, such as one-hot targets and a softmax, has a sensitivity of 2, and
  is not covered. Losses are summed in float64, whatever the parameters are; of
  more than some million rows take parameters in float64, as samplers do.

  #### Example

  >>> import numpy as np, tensorflow as tf
  >>> from tfdpflows import expm
  >>> class Line:
  ...   num_parameters = 2
  ...   def __call__(self, parameters, x):
  ...     products = tf.matmul(parameters[:, :1], x, transpose_b=True)
  ...     return tf.sigmoid(products + parameters[:, 1:])
  >>> utility = expm.l2_utility(Line(), np.zeros([4, 1]), [0., 1., 1., 0.])
  >>> utility(tf.constant([[0., 0.]])).numpy()
  array([-1.], dtype=float32)
  """
  return L2Utility(model, x, y, batch_size)
