"""ExpM+NF: a flow in place of the exponential mechanism, without a proof."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Optional, Union

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors, progress
from tfdpflows._checks import check_integer, check_positive
from tfdpflows._keras import tfp
from tfdpflows.accounting import NoProofDpEvent
from tfdpflows.mechanisms.releases import as_numbers, charge_release
from tfdpflows.randomness import Randomness

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.expm.exponential_mechanism import ExponentialMechanism

tfb, tfd = tfp.bijectors, tfp.distributions

NAME = 'ExpM+NF'
# Steps of one call of the graph, after which the loss is looked at.
_BLOCK = 50
# A loss is lower if it is by this share of its size.
_IMPROVED = 1e-4
_CHECKED = 8
# Of RMSprop: of the mean square, and beside its root.
_DECAY, _EPSILON = 0.99, 1e-8
_LEAST_RATE = 1e-5
_DIVERGED = (
  'The loss is not finite: lower learning_rate or base_scale, or raise the '
  'prior. Nothing was charged. Fit a new sampler.'
)


class NoProofFlowSampler:
  """Parameters from a flow that approximates `ExponentialMechanism`: no proof.

  Algorithm 1 of Bridges, Tombs and Stanley 2023 (ExpM+NF). A flow g maps z,
  drawn from N(0, diag(base_scale^2)), to parameters. A step draws N of them and
  descends on the reverse KL divergence, without the term of the base density,
  which has no parameters of the flow:

      mean of -log |det g'(z)| - log target(g(z)),

  with the losses of all N models computed together, on a batch of rows.

  Args:
    mechanism: the `ExponentialMechanism` to approximate.
    num_parameters: P; that of the utility by default.
    layers: number of layers; `2 P + 1` parameters each where they are planar.
    units: `None` for planar layers (Rezende and Mohamed 2015); else the number
      of units of Sylvester layers (van den Berg et al. 2018), P at most.
    reflections: number of Householder reflections of a Sylvester layer.
    base_scale: sigma of the base, a number or `[P]`, public; about the standard
      deviation of the target. The results depend much on it.
    randomness: of the initial flow and the training; by default one that nobody
      knows.
    dtype: of the flow.

  Raises:
    ValueError: for a parameter out of range, or a bounded utility without a
      prior, for which there is no density on R^P.

  #### Formal guarantee

  None: no privacy is proven of a flow that approximates the exponential
  mechanism, and the epsilon of the mechanism is nominal. The flow depends on
  the rows in a way that nobody has bounded, and the paper found one much
  narrower than its target. Each sample is charged as a `NoProofDpEvent`, which
  every ledger and statement lists and no accountant composes.

  Only samples may be released. The flow itself, its variables, its density and
  the losses of the training are computed from the rows without any noise: they
  must be kept like the rows. So there is no way to save a flow, and pickling or
  copying it is refused.

  #### References

  Bridges, Tombs and Stanley 2023, "Are normalizing flows the key to unlocking
  the exponential mechanism?".

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import accounting, expm
  >>> mechanism = expm.ExponentialMechanism(
  ...   lambda theta: -tf.reduce_sum(theta ** 2, -1),
  ...   sensitivity=1., epsilon=1.)
  >>> sampler = expm.NoProofFlowSampler(mechanism, num_parameters=2, layers=2)
  >>> sampler.fit(steps=50)
  >>> ledger = accounting.PrivacyLedger()
  >>> sampler.sample(1, ledger=ledger).shape
  (1, 2)
  >>> ledger.epsilon(1e-5)
  inf
  """

  def __init__(
    self,
    mechanism: ExponentialMechanism,
    *,
    num_parameters: Optional[int] = None,
    layers: int = 10,
    units: Optional[int] = None,
    reflections: int = 1,
    base_scale: Union[float, npt.ArrayLike] = 1.0,
    randomness: Optional[Randomness] = None,
    dtype: Union[tf.DType, str] = tf.float32,
  ):
    utility = mechanism.utility
    if num_parameters is None:
      num_parameters = getattr(utility, 'num_parameters', None)
    if num_parameters is None:
      raise ValueError('Give num_parameters: the utility does not have it.')
    if getattr(utility, 'bounded', False) and not (
      mechanism.l1 or mechanism.l2
    ):
      raise ValueError(
        'The utility is bounded, so that the density exp(epsilon u / (2 s)) '
        'has no integral over R^P: give the mechanism a prior, l1 or l2.'
      )
    size = check_integer('num_parameters', num_parameters)
    dtype = tf.as_dtype(dtype)
    scale = as_numbers(base_scale, 'base_scale').astype(dtype.as_numpy_dtype)
    if scale.shape not in ((), (size,)):
      raise ValueError(
        f'base_scale has shape {scale.shape}; it must be a number or [{size}].'
      )
    if not np.all((scale > 0) & np.isfinite(scale)):
      raise ValueError('base_scale must be positive and finite.')
    check_integer('layers', layers)
    self.mechanism, self.num_parameters = mechanism, size
    self._randomness = Randomness() if randomness is None else randomness
    self._scale = np.broadcast_to(scale, [size])
    self._facts = {
      'flow': NAME,
      'layers': layers,
      'units': units,
      'base_scale': scale.tolist(),
    }
    seeds = self._randomness.numpy('flow').integers(2**31, size=layers)
    make = functools.partial(bijectors.Planar, size)
    if units is not None:
      make = functools.partial(bijectors.Sylvester, size, units, reflections)
    # From base to parameters: the direction in which a layer is explicit.
    self._layers = [make(dtype=dtype, seed=int(seed)) for seed in seeds]
    self._fitted = False
    self._losses = []

  def __reduce_ex__(self, protocol):
    raise TypeError(
      'A trained flow is as private as the rows, and is neither saved nor '
      'copied. Release samples: sampler.sample(1, ledger=ledger).'
    )

  def fit(
    self,
    *,
    steps: int = 2000,
    num_samples: int = 100,
    batch_size: Optional[int] = None,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    patience: int = 200,
    show_progress: bool = True,
    jit_compile: bool = False,
  ) -> None:
    """Trains the flow on the rows; releases and charges nothing.

    By RMSprop with momentum, and a learning rate that is lowered where the loss
    has not improved. Whatever it computes is private. A later call goes on.

    Args:
      steps: number of steps.
      num_samples: parameters N that are drawn in a step.
      batch_size: rows of a step, drawn without replacement until all have been;
        all rows by default. For a utility with `num_examples` and `estimate`.
      learning_rate: of RMSprop, at first.
      momentum: in [0, 1).
      patience: after so many steps without a lower loss, the learning rate is
        halved, down to 1e-5. Losses are averaged over 50 steps.
      show_progress: whether to show a bar in a terminal or notebook. It counts
        steps and does not show the loss.
      jit_compile: whether to compile a step with XLA.

    Raises:
      ValueError: for a parameter out of range; or if utilities are not finite,
        or outputs of a model out of range, at parameters of the first flow or
        of the trained one.
      RuntimeError: if the loss is not finite.
    """
    steps = check_integer('steps', steps)
    num_samples = check_integer('num_samples', num_samples)
    patience = check_integer('patience', patience)
    check_positive('learning_rate', learning_rate)
    if not 0 <= momentum < 1:
      raise ValueError(f'momentum is {momentum}; it must be in [0, 1).')
    utility = self.mechanism.utility
    total = getattr(utility, 'num_examples', None)
    if batch_size is not None:
      if total is None or not hasattr(utility, 'estimate'):
        raise ValueError(
          'batch_size needs a utility with num_examples and estimate, such as '
          'that of l2_utility.'
        )
      batch_size = check_integer('batch_size', batch_size)
      batch_size = None if batch_size >= total else batch_size
    self._fitted = False
    self._check_target()
    optimizer = _RMSprop(self._variables, learning_rate, momentum)
    generator = self._randomness.tensorflow('base', len(self._losses))
    batches = _batches(
      self._randomness.numpy('rows', len(self._losses)), total, batch_size
    )
    block = self._block(
      optimizer, generator, num_samples, batch_size, jit_compile
    )
    best, waited, rate = math.inf, 0, learning_rate
    with progress.bar('steps', steps, show_progress) as shown:
      for start in range(0, steps, _BLOCK):
        count = min(_BLOCK, steps - start)
        rows = np.stack([next(batches) for _ in range(count)])
        loss = float(block(tf.constant(rows)))
        if not math.isfinite(loss):
          raise RuntimeError(_DIVERGED)
        self._losses.append(loss)
        waited += count
        if loss < best - _IMPROVED * abs(best) or not math.isfinite(best):
          best, waited = loss, 0
        elif waited >= patience and rate > _LEAST_RATE:
          rate, waited = max(rate / 2, _LEAST_RATE), 0
          optimizer.learning_rate.assign(rate)
        shown.update(count)
    self._check_target()
    self._fitted = True

  def sample(
    self,
    n: int = 1,
    *,
    ledger: PrivacyLedger,
    label: str = 'ExpM+NF sample, no privacy proof',
    randomness: Optional[Randomness] = None,
    resume: bool = False,
  ) -> np.ndarray:
    """Charges the ledger with n releases without a proof, and draws them.

    Args:
      n: number of samples; each of them is a release, and is charged.
      ledger: see `tfdpflows.mechanisms`, as the errors. With a budget it must
        allow releases without a proof: `PrivacyLedger(budget=...,
        allow_no_proof=True)`.
      label: see there.
      randomness: see there.
      resume: see there.

    Returns:
      Parameters `[n, P]`.

    Raises:
      BudgetExceededError: if the ledger does not allow it; nothing is drawn.
      RuntimeError: if `fit` has not completed, or the flow is not finite.

    #### Formal guarantee

    None, see the class.
    """
    n = check_integer('n', n)
    if not self._fitted:
      raise RuntimeError('Call fit first. Nothing was charged.')
    variables = [variable.numpy() for variable in self._variables]
    if not all(np.isfinite(variable).all() for variable in variables):
      raise RuntimeError(_DIVERGED)
    randomness = charge_release(
      ledger,
      NoProofDpEvent(NAME, self.mechanism.epsilon),
      count=n,
      label=label,
      randomness=randomness,
      facts={**self._facts, 'samples': n, 'epsilon': self.mechanism.epsilon},
      arrays=variables,
      resume=resume,
      seeded=self._randomness.seeded,
    )
    z = randomness.numpy(str(label)).normal(size=[n, self.num_parameters])
    z = (z * self._scale).astype(self._scale.dtype)
    return self._transformed(tf.constant(z))[0].numpy()

  def private_log_prob(self, parameters: npt.ArrayLike) -> np.ndarray:
    """Returns the log density of the flow, `[N]`, at parameters `[N, P]`.

    It depends on the rows, and must not be released.
    """
    theta = tf.convert_to_tensor(parameters, self._scale.dtype)
    log_det = tf.zeros_like(theta[:, 0])
    for layer in reversed(self._layers):
      # On the way back: `forward` solves, and then `inverse` is the layer.
      theta = layer.forward(theta)
      log_det += layer._inverse_and_log_det(theta)[1]
    base = tfd.MultivariateNormalDiag(scale_diag=self._scale)
    return (base.log_prob(theta) - log_det).numpy()

  @property
  def private_losses(self) -> tuple[float, ...]:
    """The loss of every 50 steps of the training; must not be released."""
    return tuple(self._losses)

  @property
  def _variables(self):
    return [v for layer in self._layers for v in layer.trainable_variables]

  def _transformed(self, z):
    """Returns parameters `[N, P]`, and `log |det|` `[N]`, of points z."""
    total = tf.zeros_like(z[:, 0])
    for layer in self._layers:
      z, log_det = layer._inverse_and_log_det(z)
      total += log_det
    return z, total

  def _check_target(self):
    """Evaluates the target at a few parameters, all checks included."""
    rng = self._randomness.numpy('check', len(self._losses))
    z = rng.normal(size=[_CHECKED, self.num_parameters]) * self._scale
    theta, _ = self._transformed(tf.constant(z.astype(self._scale.dtype)))
    self.mechanism.unnormalized_log_prob(theta)

  def _block(self, optimizer, generator, num_samples, batch_size, jit_compile):
    """Returns a function of rows `[steps, B]`, that many steps."""
    mechanism, variables = self.mechanism, self._variables
    scale = tf.constant(self._scale)
    estimate = getattr(mechanism.utility, 'estimate', None)

    def log_target(theta, rows):
      if estimate is None:
        return mechanism.unnormalized_log_prob(theta)
      found = estimate(theta, rows if rows.shape[0] else None)
      factor = mechanism.epsilon / (2 * mechanism.sensitivity)
      return factor * found + mechanism.log_prior(theta)

    def step(rows):
      z = scale * generator.normal(
        [num_samples, self.num_parameters], dtype=scale.dtype
      )
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        theta, log_det = self._transformed(z)
        loss = -tf.reduce_mean(log_det + log_target(theta, rows))
      gradients = tape.gradient(loss, variables)
      optimizer.apply(gradients)
      return loss

    step = tf.function(step, jit_compile=jit_compile, autograph=False)

    width = 0 if batch_size is None else batch_size
    rows = tf.TensorSpec([None, width], tf.int32)

    @tf.function(input_signature=[rows], autograph=False)
    def block(rows):
      count = tf.shape(rows)[0]
      _, total = tf.while_loop(
        lambda i, _: i < count,
        lambda i, total: (i + 1, total + step(rows[i])),
        (0, tf.zeros([], scale.dtype)),
        parallel_iterations=1,
      )
      return total / tf.cast(count, scale.dtype)

    return block


class _RMSprop:
  """RMSprop with momentum, of all variables as one vector.

  A flow has many small variables: one operation each would take most of the
  time of a step.
  """

  def __init__(self, variables, learning_rate, momentum):
    self._variables = variables
    self._momentum = momentum
    self._sizes = [variable.shape.num_elements() for variable in variables]
    dtype = variables[0].dtype
    self._square = tf.Variable(tf.zeros([sum(self._sizes)], dtype))
    self._mean = tf.Variable(tf.zeros([sum(self._sizes)], dtype))
    self.learning_rate = tf.Variable(learning_rate, dtype=dtype)

  def apply(self, gradients):
    flat = tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)
    square = self._square.assign(
      _DECAY * self._square + (1 - _DECAY) * tf.square(flat)
    )
    mean = self._mean.assign(
      self._momentum * self._mean + flat / (tf.sqrt(square) + _EPSILON)
    )
    changes = tf.split(self.learning_rate * mean, self._sizes)
    for variable, change in zip(self._variables, changes):
      variable.assign_sub(tf.reshape(change, variable.shape))


def _batches(rng, total, batch_size):
  """Yields indices of rows `[B]`, without end; empty ones for all rows."""
  while batch_size is None:
    yield np.zeros([0], np.int32)
  while True:
    order = rng.permutation(total).astype(np.int32)
    for start in range(0, total - batch_size + 1, batch_size):
      yield order[start : start + batch_size]
