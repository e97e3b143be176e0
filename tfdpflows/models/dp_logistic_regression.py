"""Logistic regression under differential privacy, for scikit-learn."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Optional

import dp_accounting
import numpy as np
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from tfdpflows import accounting
from tfdpflows._checks import check_fraction, check_integer, check_positive
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.expm import noisy_descent
from tfdpflows.mechanisms import moments
from tfdpflows.mechanisms.releases import as_floats, charge_release
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import drawn_below

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.randomness import Randomness

METHODS = (
  'auto',
  'objective_perturbation',
  'output_perturbation',
  'noisy_gradient_descent',
  'exponential_mechanism',
  'dp_sgd',
)
_NEED_SIZE = METHODS[3:]
# An approximate minimizer has a gradient of at most this times the largest
# norm of a row, and what that may tell is hidden by noise of its own, of this
# many times the noise multiplier.
_GRADIENT = 1e-6
_HIDDEN = 30.0
_NEWTON_STEPS = 200
# Regularization by default, in units of z B^2, and of z B^2 sqrt(d). These and
# what follows were chosen by AUC (experiments/logistic_regression.py); that of
# output perturbation is four times the one chosen, for accuracy with few rows.
_OBJECTIVE, _DESCENT, _SAMPLING, _OUTPUT = 0.5, 0.25, 2.0, 1.0
# The largest smoothness over it for a Langevin chain, whose steps it counts.
_CONDITION = 400.0
# In units of one over the smoothness.
_DESCENT_STEP, _SAMPLING_STEP = 1.5, 0.5
_DESCENT_STEPS, _SGD_STEPS, _SGD_STEP = 400, 200, 2.0
# Of the start of a Langevin chain, exp(-5) is left.
_SETTLED = 5.0
# Rows whose gradients are summed in floats; the sums are added exactly.
_CHUNK = 256
_EPS = float(np.finfo(np.float64).eps)
# Noise is larger by this, relatively, than rounding could make a norm.
_UP = 1 + 1e-9


class DPLogisticRegression(ClassifierMixin, BaseEstimator):
  """Logistic regression of two classes with differential privacy.

  The rows x have the label y = 1 or -1; with a constant feature c for the
  intercept they are u = y (x, c), of norm at most B = sqrt(row_norm^2 + c^2).
  All methods are for the objective

      sum of log(1 + exp(-u . theta)) + regularization / 2 |theta|^2

  (that of scikit-learn with C = 1 / regularization, but that the intercept is
  regularized as the coefficients are). What is public has to be declared: the
  classes, the bound on the norm of a row and, for some methods, the number of
  rows. Nothing is read off the rows that is not charged: standardize them by
  public statistics, or by private ones that are charged.

  #### Methods

  `'objective_perturbation'`, which is 'auto': the minimizer with a random
  linear term b ~ N(0, (z B)^2 I), approximate minima perturbation (Iyengar et
  al. 2019). Mostly the best; needs no number of rows.

  `'output_perturbation'`: the minimizer with Gaussian noise (Chaudhuri,
  Monteleoni and Sarwate 2011).

  `'noisy_gradient_descent'`: all rows in every step, see `expm.NoisyDescent`.

  `'exponential_mechanism'`: a sample of the density proportional to exp(-beta
  objective) by a Langevin chain, `expm.NoisyDescent` with small steps. Beta is
  the largest that the budget admits.

  `'dp_sgd'`: gradients of Poisson batches, without regularization; what is
  released is the average of the points of the second half.

  Args:
    epsilon: of a fit, in nats.
    delta: of a fit, inside (0, 1).
    method: see above.
    row_norm: bound on the l2 norm of a row of `X`; public.
    large_rows: 'clip' scales longer rows down to `row_norm`; 'error' refuses
      them, which tells that there was one.
    classes: the two labels, the first one for y = -1; public.
    fit_intercept: whether to add a constant feature.
    intercept_scaling: its value c.
    regularization: the factor above, positive; by default one that depends on
      public numbers alone. Not for 'dp_sgd'.
    num_examples: a public bound on the number of rows: for the descents, which
      take their step sizes from it, and for 'dp_sgd', which takes it for the
      number.
    steps: number of steps of the descents and of 'dp_sgd'.
    step_size: of the descents, in units of one over the smoothness, inside (0,
      2); of 'dp_sgd' over the average gradient.
    sampling_probability: with which 'dp_sgd' takes a row into a batch.

  Attributes:
    coef_: float64 `[1, d]`.
    intercept_: float64 `[1]`.
    classes_: the two classes.
    n_features_in_: d.
    ledger_: the `PrivacyLedger` that was charged.
    event_: the `DpEvent` of the fit.
    noise_multiplier_: z, noise over the sensitivity.
    regularization_: the factor of the objective; 0 for 'dp_sgd'.

  #### Formal guarantee

  Charged before any noise is drawn: an event with an epsilon of at most
  `epsilon` at `delta`, by the accountant and the neighbouring relation of the
  ledger. Below, a row is added or removed; where it is replaced, sensitivities
  are twice as large, which the accountants take into account.

  *Objective perturbation.* The exact minimizer is
  `accounting.ObjectivePerturbationDpEvent(z, B^2 / regularization)`, where the
  proof is. It stands for b, so that what the solver finds is a function of it
  and of the rows. A point whose gradient has the norm g is within g /
  regularization of the minimizer, as the objective is strongly convex. The
  computed norm and a bound on its rounding are below g = 1e-6 B. So given the
  minimizer, two points are within 2 g / regularization, and Gaussian noise of
  30 z times that makes it one more Gaussian mechanism, with noise multiplier 30
  z. Composed.

  *Output perturbation.* At the minimizer for one table, the gradient for the
  other one has norm B at most, so that the minimizers are within B /
  regularization, and approximate ones, as above, within (B + 2 g) /
  regularization, of each other: a Gaussian mechanism.

  *Noisy gradient descent and the exponential mechanism.* `expm.NoisyDescent`
  with sensitivity B, strong convexity `regularization` and smoothness
  `regularization + num_examples B^2 / 4`, as the second derivative of log(1 +
  exp(-t)) is 1/4 at most. The chain is charged for what it is, whether or not
  it has settled: no error of sampling is left to be charged.

  *DP-SGD.* Gaussian mechanisms on Poisson samples, of sensitivity B as no
  gradient of a row is longer: `SelfComposedDpEvent(PoissonSampledDpEvent)`.

  Of scikit-learn's `check_estimator`, what fails is what needs other classes
  than the declared ones, the same numbers from every fit, or pickle (save
  `coef_` and `intercept_`), or expects another wording of errors.

  Whether an argument or the rows are refused is outside of the guarantee, as is
  the time that a fit takes, and that numbers are floats.

  #### References

  Chaudhuri, Monteleoni and Sarwate 2011, "Differentially private empirical risk
  minimization". Iyengar et al. 2019, "Towards practical differentially private
  convex optimization". Gopi, Lee and Liu 2022, "Private convex optimization via
  exponential mechanism". Bok, Su and Altschuler 2024, "Shifted interpolation
  for differential privacy".

  #### Example

  >>> import numpy as np, tfdpflows
  >>> rng = np.random.default_rng(0)
  >>> x = rng.normal(size=[2000, 2]) / 3
  >>> y = (x[:, 0] > x[:, 1]).astype(int)
  >>> model = tfdpflows.DPLogisticRegression(epsilon=1., delta=1e-5).fit(x, y)
  >>> bool(model.score(x, y) > .9)
  True
  """

  def __init__(
    self,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    *,
    method: str = 'auto',
    row_norm: float = 1.0,
    large_rows: str = 'clip',
    classes: tuple = (0, 1),
    fit_intercept: bool = True,
    intercept_scaling: float = 1.0,
    regularization: Optional[float] = None,
    num_examples: Optional[int] = None,
    steps: Optional[int] = None,
    step_size: Optional[float] = None,
    sampling_probability: float = 0.1,
  ):
    self.epsilon = epsilon
    self.delta = delta
    self.method = method
    self.row_norm = row_norm
    self.large_rows = large_rows
    self.classes = classes
    self.fit_intercept = fit_intercept
    self.intercept_scaling = intercept_scaling
    self.regularization = regularization
    self.num_examples = num_examples
    self.steps = steps
    self.step_size = step_size
    self.sampling_probability = sampling_probability

  def fit(
    self,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    ledger: Optional[PrivacyLedger] = None,
    randomness: Optional[Randomness] = None,
    label: str = 'logistic regression',
    resume: bool = False,
  ) -> DPLogisticRegression:
    """Charges the ledger and fits.

    Args:
      X: rows `[n, d]` of real numbers.
      y: labels `[n]`, each one of `classes`.
      ledger: `PrivacyLedger` to charge; by default a new one, with the budget
        (`epsilon`, `delta`). A fit is charged for (`epsilon`, `delta`) on its
        own, whatever the ledger holds.
      randomness: `tfdpflows.randomness.Randomness`; by default one that nobody
        knows.
      label: label of the charge.
      resume: whether this call repeats one that the ledger has charged under
        that label, with the same rows, parameters and `randomness`.

    Returns:
      Itself.

    Raises:
      ValueError: for a parameter out of range; for rows that are not finite or,
        with `large_rows='error'`, too long; for labels that are not declared;
        or for more rows than `num_examples`. Nothing is charged.
      BudgetExceededError: if the ledger refuses the charge.
      RuntimeError: after the charge, if rounding may have kept the solver from
        the minimizer: with tens of millions of rows, or a regularization below
        about 1e-6 `row_norm`^2. Its text is fixed; that it is raised depends on
        the rows, and is outside of the guarantee.
    """
    plan = self._plan()
    u = self._rows(X, y)
    if ledger is None:
      budget = accounting.PrivacyBudget(epsilon=self.epsilon, delta=self.delta)
      ledger = accounting.PrivacyLedger(budget=budget)
    check_ledger(ledger)
    plan = self._calibrated(plan, ledger, u.shape[1])
    randomness = charge_release(
      ledger,
      plan.event,
      label=label,
      randomness=randomness,
      facts={
        'logistic_regression': self.get_params(),
        'regularization': plan.regularization,
        'noise_multiplier': plan.noise_multiplier,
      },
      arrays=[u],
      resume=resume,
    )
    rng = randomness.numpy(str(label), 'noise')
    theta = _SOLVERS[plan.method](u, plan, rng)
    self._released, self._parameters = plan, self.get_params()
    self._seeded = randomness.seeded
    d = u.shape[1] - bool(self.fit_intercept)
    self.coef_ = theta[None, :d]
    self.intercept_ = np.zeros(1)
    if self.fit_intercept:
      self.intercept_ = theta[d:] * float(self.intercept_scaling)
    self.classes_ = np.asarray(self.classes)
    self.n_features_in_ = d
    self.ledger_ = ledger
    self.event_ = plan.event
    self.noise_multiplier_ = plan.noise_multiplier
    self.regularization_ = plan.regularization
    return self

  def decision_function(self, X: npt.ArrayLike) -> np.ndarray:
    """Returns the log odds of the second class, `[n]`, for rows `[n, d]`.

    Rows are not clipped: `row_norm` is for the rows of a fit.
    """
    check_is_fitted(self, 'coef_')
    x = as_floats(X, 'X', ('n', self.n_features_in_))
    _check_finite(x)
    return x @ self.coef_[0] + self.intercept_[0]

  def predict(self, X: npt.ArrayLike) -> np.ndarray:
    """Returns the more probable class of rows `[n, d]`."""
    odds = self.decision_function(X)
    return self.classes_[(odds > 0).astype(int)]

  def predict_proba(self, X: npt.ArrayLike) -> np.ndarray:
    """Returns the probabilities of both classes, `[n, 2]`."""
    odds = self.decision_function(X)
    return special.expit(np.stack([-odds, odds], 1))

  def predict_log_proba(self, X: npt.ArrayLike) -> np.ndarray:
    """Returns the logs of the probabilities of both classes, `[n, 2]`."""
    odds = self.decision_function(X)
    return special.log_expit(np.stack([-odds, odds], 1))

  def privacy_statement(self) -> accounting.PrivacyStatement:
    """Returns all that the ledger spent, as a `PrivacyStatement`."""
    check_is_fitted(self, 'coef_')
    # Those of the fit: parameters may have been set since.
    plan, fitted = self._released, self._parameters
    norm = fitted['row_norm']
    rows = (
      f'Rows are scaled down to an l2 norm of {norm:g}.'
      if fitted['large_rows'] == 'clip'
      else f'A row longer than {norm:g} ends a fit with an error; '
      "whether one did is outside of this guarantee. large_rows='clip' refuses "
      'no row for its length.'
    )
    return accounting.privacy_statement(
      self.ledger_,
      num_examples=fitted['num_examples'],
      notes=[
        f'Logistic regression by {plan.method.replace("_", " ")}, noise '
        f'multiplier {plan.noise_multiplier:.6g}. {rows}',
        f'The classes {list(fitted["classes"])!r} are public, as declared.',
      ],
      delta=fitted['delta'] if self.ledger_.budget is None else None,
      seeded=self._seeded,
    )

  def __sklearn_tags__(self):
    tags = super().__sklearn_tags__()
    tags.classifier_tags.multi_class = False
    # At most 1 of epsilon on a few rows is next to nothing.
    tags.classifier_tags.poor_score = True
    tags.non_deterministic = True
    return tags

  def _plan(self) -> _Plan:
    """Checks what is public."""
    accounting.PrivacyBudget(epsilon=self.epsilon, delta=self.delta)
    if self.method not in METHODS:
      raise ValueError(
        f'method is {self.method!r}; choose one of {", ".join(METHODS)}.'
      )
    method = 'objective_perturbation' if self.method == 'auto' else self.method
    if self.large_rows not in ('clip', 'error'):
      raise ValueError(
        f"large_rows is {self.large_rows!r}; it must be 'clip' or 'error'."
      )
    if len(self.classes) != 2 or self.classes[0] == self.classes[1]:
      raise ValueError(
        f'classes are {self.classes!r}; declare two, such as (0, 1).'
      )
    moments.check_radius('row_norm', self.row_norm)
    norm = float(self.row_norm)
    if self.fit_intercept:
      norm = math.hypot(
        norm, check_positive('intercept_scaling', self.intercept_scaling)
      )
    if self.num_examples is not None:
      check_integer('num_examples', self.num_examples)
    elif method in _NEED_SIZE:
      raise ValueError(
        f'method={method!r} needs num_examples: a public bound on the number '
        'of rows, which is not read off the rows.'
      )
    if self.regularization is not None:
      if method == 'dp_sgd':
        raise ValueError(
          "method='dp_sgd' has no regularization; leave it out, or choose "
          "'noisy_gradient_descent'."
        )
      check_positive('regularization', self.regularization)
    if self.steps is not None:
      check_integer('steps', self.steps)
    if self.step_size is not None:
      check_positive('step_size', self.step_size)
      if method in _NEED_SIZE[:2] and not self.step_size < 2:
        raise ValueError(
          f'step_size is {self.step_size}; it must be inside (0, 2), in units '
          'of one over the smoothness.'
        )
    if self.sampling_probability != 1:
      check_fraction('sampling_probability', self.sampling_probability)
    return _Plan(method=method, norm=norm * _UP)

  def _rows(self, x, y):
    """Returns the rows u, each of the norm of the plan at most."""
    x = as_floats(x, 'X', ('n', 'd'))
    if x.shape[1] < 1:
      raise ValueError('X has no columns.')
    y = np.asarray(y)
    if y.shape != (len(x),):
      raise ValueError(f'y has shape {y.shape}; it must be [{len(x)}].')
    first, second = (y == np.asarray(label) for label in self.classes)
    unknown = np.flatnonzero(~(first | second))
    if len(unknown):
      raise ValueError(
        f'y[{unknown[0]}] is none of the classes {list(self.classes)!r} '
        f'({len(unknown)} of {len(y)} are not). Declare `classes`.'
      )
    _check_finite(x)
    if self.num_examples is not None and len(x) > self.num_examples:
      raise ValueError(
        f'X has {len(x)} rows, more than num_examples={self.num_examples}: '
        'declare a larger bound.'
      )
    clipped = moments.clip_norms(x, float(self.row_norm))
    if self.large_rows == 'error':
      long = np.flatnonzero(
        np.linalg.norm(x, axis=1) > self.row_norm * (1 + 1e-10)
      )
      if len(long):
        raise ValueError(
          f'Row {long[0]} of X has an l2 norm above row_norm='
          f'{self.row_norm:g} ({len(long)} of {len(x)} rows do). Give the rows '
          "another unit, a larger row_norm, or large_rows='clip'."
        )
    if self.fit_intercept:
      constant = np.full([len(x), 1], float(self.intercept_scaling))
      clipped = np.concatenate([clipped, constant], 1)
    u = np.where(second, 1.0, -1.0)[:, None] * clipped
    return np.ascontiguousarray(u)

  def _calibrated(self, plan, ledger, size):
    """Returns a plan with the least noise for the budget."""
    budget = accounting.PrivacyBudget(epsilon=self.epsilon, delta=self.delta)

    def calibrate(make_event):
      return accounting.calibrate_noise_multiplier(
        make_event,
        budget,
        accountant=ledger.accountant,
        neighboring_relation=ledger.neighboring_relation,
        tolerance=1e-4,
      )

    return getattr(self, f'_{plan.method}')(plan, calibrate, size)

  def _objective_perturbation(self, plan, calibrate, size):
    del size
    regularization = self.regularization
    if not regularization:
      gaussian = calibrate(dp_accounting.GaussianDpEvent)
      least = max(1 / self.epsilon, _OBJECTIVE * gaussian)
      regularization = plan.norm**2 * least
    curvature = plan.norm**2 / regularization

    def make_event(noise):
      return dp_accounting.ComposedDpEvent(
        [
          accounting.ObjectivePerturbationDpEvent(noise, curvature),
          dp_accounting.GaussianDpEvent(_HIDDEN * noise),
        ]
      )

    try:
      noise = calibrate(make_event)
    except accounting.BudgetExceededError as error:
      if not self.regularization:
        raise
      raise accounting.BudgetExceededError(
        error.budget,
        error.spent,
        error.asked,
        message=(
          f'regularization is {self.regularization:g}: with so little, no '
          f'noise is enough for epsilon {self.epsilon:g}. Leave it out, or '
          'take more, about row_norm^2 / epsilon.'
        ),
      ) from error
    return plan.with_noise(make_event(noise), noise, regularization)

  def _output_perturbation(self, plan, calibrate, size):
    gaussian = calibrate(dp_accounting.GaussianDpEvent)
    regularization = self.regularization or (
      _OUTPUT * plan.norm**2 * gaussian * math.sqrt(size)
    )
    event = dp_accounting.GaussianDpEvent(gaussian)
    return plan.with_noise(event, gaussian, regularization)

  def _noisy_gradient_descent(self, plan, calibrate, size):
    del size
    gaussian = calibrate(dp_accounting.GaussianDpEvent)
    regularization = self.regularization or _DESCENT * plan.norm**2 * gaussian
    return self._descent(
      plan,
      gaussian,
      regularization,
      self.steps or _DESCENT_STEPS,
      self.step_size or _DESCENT_STEP,
    )

  def _exponential_mechanism(self, plan, calibrate, size):
    del size
    gaussian = calibrate(dp_accounting.GaussianDpEvent)
    regularization = self.regularization or plan.norm**2 * max(
      _SAMPLING * gaussian, self.num_examples / 4 / _CONDITION
    )
    step_size = self.step_size or _SAMPLING_STEP
    smoothness = self._smoothness(plan, regularization)
    steps = self.steps or math.ceil(
      _SETTLED * smoothness / (step_size * regularization)
    )
    return self._descent(plan, gaussian, regularization, steps, step_size)

  def _smoothness(self, plan, regularization):
    """Returns that of the objective of any table: a loss has B^2 / 4."""
    return regularization + self.num_examples * plan.norm**2 / 4

  def _descent(self, plan, gaussian, regularization, steps, step_size):
    smoothness = self._smoothness(plan, regularization)
    step_size = step_size / smoothness
    shrunk = noisy_descent.shrinkage(step_size, regularization, smoothness)
    descent = noisy_descent.NoisyDescent(
      sensitivity=plan.norm,
      strong_convexity=regularization,
      smoothness=smoothness,
      step_size=step_size,
      noise_std=gaussian
      * plan.norm
      * noisy_descent.amplitude(shrunk, steps)
      * (1 + 1e-8),
      steps=steps,
    )
    plan = dataclasses.replace(plan, descent=descent)
    return plan.with_noise(descent.event, gaussian, regularization)

  def _dp_sgd(self, plan, calibrate, size):
    del size
    steps = self.steps or _SGD_STEPS
    probability = float(self.sampling_probability)

    def make_event(noise):
      event = dp_accounting.GaussianDpEvent(noise)
      if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
      return dp_accounting.SelfComposedDpEvent(event, steps)

    noise = calibrate(make_event)
    plan = dataclasses.replace(
      plan,
      steps=steps,
      sampling_probability=probability,
      rate=(self.step_size or _SGD_STEP) / (probability * self.num_examples),
    )
    return plan.with_noise(make_event(noise), noise, 0.0)


@dataclasses.dataclass(frozen=True)
class _Plan:
  """What a fit does; it depends on public numbers alone."""

  method: str
  norm: float
  event: Optional[dp_accounting.DpEvent] = None
  noise_multiplier: float = 0.0
  regularization: float = 0.0
  descent: Optional[noisy_descent.NoisyDescent] = None
  steps: int = 0
  sampling_probability: float = 1.0
  rate: float = 0.0

  def with_noise(self, event, noise_multiplier, regularization) -> _Plan:
    return dataclasses.replace(
      self,
      event=event,
      noise_multiplier=float(noise_multiplier),
      regularization=float(regularization),
    )


def _check_finite(x):
  wrong = np.flatnonzero(~np.isfinite(x).all(1))
  if len(wrong):
    raise ValueError(
      f'Row {wrong[0]} of X has NaN or infinity ({len(wrong)} of {len(x)} '
      'rows do). Drop such rows, or fill them in.'
    )


def _by_objective_perturbation(u, plan, rng):
  linear = rng.normal(scale=plan.noise_multiplier * plan.norm, size=u.shape[1])
  theta, distance = _minimize(u, plan, linear)
  # Two points differ by up to twice the distance from the minimizer.
  std = _HIDDEN * plan.noise_multiplier * 2 * distance
  return add_noise(theta, std, rng.normal)


def _by_output_perturbation(u, plan, rng):
  theta, distance = _minimize(u, plan, np.zeros(u.shape[1]))
  sensitivity = plan.norm / plan.regularization + 2 * distance
  std = plan.noise_multiplier * sensitivity * _UP
  return add_noise(theta, std, rng.normal)


def _by_descent(u, plan, rng):
  gradient = lambda theta: _gradient(u, theta) + plan.regularization * theta
  return plan.descent.run(gradient, np.zeros(u.shape[1]), rng)


def _by_sgd(u, plan, rng):
  theta, average = np.zeros(u.shape[1]), np.zeros(u.shape[1])
  std, half = plan.noise_multiplier * plan.norm, plan.steps // 2
  for step in range(plan.steps):
    taken = u
    if plan.sampling_probability < 1:
      taken = u[rng.random(len(u)) < drawn_below(plan.sampling_probability)]
    noisy = add_noise(_gradient(taken, theta), std, rng.normal)
    theta = theta - plan.rate * noisy
    if step >= half:
      average += theta / (plan.steps - half)
  return average


_SOLVERS = {
  'objective_perturbation': _by_objective_perturbation,
  'output_perturbation': _by_output_perturbation,
  'noisy_gradient_descent': _by_descent,
  'exponential_mechanism': _by_descent,
  'dp_sgd': _by_sgd,
}


def _gradient(u: np.ndarray, theta: np.ndarray) -> np.ndarray:
  return -special.expit(-(u @ theta)) @ u


def _minimize(
  u: np.ndarray, plan: _Plan, linear: np.ndarray
) -> tuple[np.ndarray, float]:
  """Returns a point near the minimizer, and a public bound on its distance.

  Newton's method with conjugate gradients, from zero. The bound is on the
  norm of the gradient over the strong convexity, and it is checked.
  """
  largest, weight = _GRADIENT * plan.norm, plan.regularization

  def value(theta):
    loss = -np.sum(special.log_expit(u @ theta))
    return loss + weight / 2 * theta @ theta + linear @ theta

  def gradient(theta):
    return _gradient(u, theta) + weight * theta + linear

  theta = np.zeros(u.shape[1])
  current, slope = value(theta), gradient(theta)
  for _ in range(_NEWTON_STEPS):
    norm = np.linalg.norm(slope)
    if norm < largest / 8:
      break
    share = special.expit(u @ theta)
    curved = share * (1 - share)
    product = lambda v: u.T @ (curved * (u @ v)) + weight * v  # noqa: B023
    step = -_conjugate_gradients(product, slope, min(0.1, math.sqrt(norm)))
    descent, size = slope @ step, 1.0
    while size > 1e-10:
      found = value(theta + size * step)
      # Near the minimum the value no longer changes, but the slope does.
      near = np.linalg.norm(gradient(theta + size * step)) < norm / 2
      if found <= current + 1e-4 * size * descent or near:
        break
      size /= 2
    theta = theta + size * step
    current, slope = value(theta), gradient(theta)
  norm = np.linalg.norm(_exact_sum(u, theta) + weight * theta + linear)
  rounding = (
    (_CHUNK + u.shape[1] + 64)
    * _EPS
    * (
      len(u) * plan.norm * (1 + plan.norm * np.linalg.norm(theta))
      + weight * np.linalg.norm(theta)
      + np.linalg.norm(linear)
    )
  )
  if not norm + rounding <= largest:
    # Fixed: numbers in it would be computed from the rows, without noise.
    raise RuntimeError(
      'It could not be certified that the minimizer was found, for rounding, '
      'and nothing is released. That it could not depends on the rows: do not '
      'publish it. Take fewer rows, or a larger row_norm or regularization.'
    )
  return theta, largest / weight


def _exact_sum(u, theta):
  """The gradient, rounded as little as a few hundred rows are."""
  parts = [
    _gradient(u[start : start + _CHUNK], theta)
    for start in range(0, len(u), _CHUNK)
  ]
  return np.array([math.fsum(column) for column in zip(*parts)] or 0.0)


def _conjugate_gradients(product, right, tolerance):
  """Returns x with |product(x) - right| <= tolerance |right|."""
  x, residual = np.zeros_like(right), right.copy()
  direction, square = residual.copy(), residual @ residual
  enough = tolerance**2 * square
  for _ in range(2 * len(right) + 10):
    if square <= enough:
      break
    image = product(direction)
    length = square / (direction @ image)
    x += length * direction
    residual -= length * image
    square, last = residual @ residual, square
    direction = residual + square / last * direction
  return x
