"""Renyi divergences of the few mechanisms, in nats and from above."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tfdpflows.accounting import (
  atoms,
  null_rows,
  pairs,
  pate,
  renyi_sampled,
  repeat_and_select,
)
from tfdpflows.accounting.cache import cached
from tfdpflows.accounting.logarithms import log_expm1
from tfdpflows.accounting.mechanism import OPPOSITE, Mechanism, amplified

__all__ = [
  'failure',
  'pure_epsilon',
  'renyi_curve',
  'total_curve',
  'without_mixtures',
]

# Rounding of a log moment near zero, of sums, and of a few products.
_ROUNDING = 1e-14
_ULPS = 2e-15
# Nothing that is not free is said to cost less.
_LEAST = 1e-300
# Losses of a discrete pair that are told apart, about.
_ATOMS = 1024

# Curves that are remembered, of some 2 KiB each.
_REMEMBERED = 8192

_Parts = Iterable[tuple[Mechanism, int]]


@cached(_REMEMBERED)
def renyi_curve(mechanism: Mechanism, orders: tuple[float, ...]) -> np.ndarray:
  """Renyi divergences of a mechanism, the larger of both directions.

  Args:
    mechanism: A mechanism. Of an (epsilon, delta) one, that of its pure part;
      see `failure`. Of a 'data_dependent' one, of what comes out for the table
      from what comes out for a neighbour; see `pate`.
    orders: Orders above 1.

  Returns:
    Float64 [len(orders)], in nats; read-only. Infinite where no bound is known,
    or where the numerics fail.

  Raises:
    ValueError: If the kind of the mechanism is not known.

  ```python
  >>> print(renyi_curve(Mechanism('gaussian', 2.0), (2.0, 4.0)))
  [0.25 0.5 ]

  ```
  """
  a = np.array(orders, np.float64)
  with np.errstate(all='ignore'):
    curve = _curve(mechanism, a)
    curve = np.where(np.isnan(curve), math.inf, curve) * (1 + _ULPS)
  curve = np.maximum(curve, _LEAST)
  curve.flags.writeable = False
  return curve


def total_curve(parts: _Parts, orders: tuple[float, ...]) -> np.ndarray:
  """Renyi divergences of a composition: the sum (Mironov 2017).

  Args:
    parts: Pairs of a mechanism and how often it is run.
    orders: Orders above 1.

  Returns:
    Float64 [len(orders)], in nats.

  ```python
  >>> print(total_curve([(Mechanism('zcdp', 0.1), 3)], (2.0,)))
  [0.6]

  ```
  """
  curve = np.zeros(len(orders))
  # A fixed order of summands, whatever order they were composed in.
  parts = sorted(parts)
  with np.errstate(over='ignore'):
    for mechanism, count in parts:
      curve = curve + float(count) * renyi_curve(mechanism, orders)
  return curve * (1 + _ROUNDING) if len(parts) > 1 else curve


def pure_epsilon(parts: _Parts) -> float:
  """The divergence of infinite order, where every mechanism has one.

  Args:
    parts: Pairs of a mechanism and how often it is run.

  Returns:
    Epsilon in nats: the composition is epsilon-private but for `failure`;
    infinite if a mechanism is not pure.

  ```python
  >>> pure_epsilon([(Mechanism('laplace', 2.0), 3)])
  1.5...

  ```
  """
  parts = list(parts)
  if len(parts) == 1 and parts[0][1] == 1:
    return _pure(parts[0][0])
  total = sum(count * _pure(mechanism) for mechanism, count in sorted(parts))
  # Where it is above zero, it is not rounded to that.
  return math.nextafter(total * (1 + _ROUNDING), math.inf) if total else 0.0


def failure(parts: _Parts) -> float:
  """Probability that an (epsilon, delta) mechanism reveals everything.

  An (epsilon, delta) mechanism is, with probability 1 - delta, a pure one
  (Kairouz, Oh and Viswanath 2015).

  Args:
    parts: Pairs of a mechanism and how often it is run.

  Returns:
    The probability that any one does, in [0, 1], from above.

  ```python
  >>> failure([(Mechanism('epsilon_delta', 1.0, extra=1e-6), 1)])
  1e-06

  ```
  """
  each = [(_failure(mechanism), count) for mechanism, count in sorted(parts)]
  each = [(delta, count) for delta, count in each if delta > 0]
  if len(each) == 1 and each[0][1] == 1:
    return each[0][0]
  kept = sum(
    count * math.log1p(-delta) if delta < 1 else -math.inf
    for delta, count in each
  )
  return min(-math.expm1(kept) * (1 + 1e-12), 1.0)


def without_mixtures(parts: _Parts) -> dict[Mechanism, int]:
  """The likeliest part of each mixture, and a failure for the others.

  Args:
    parts: Pairs of a mechanism and how often it is run.

  Returns:
    Counts of mechanisms none of which is a mixture, but for those that are
    parts of another; what is private for them is so for `parts`.

  ```python
  >>> likely, other = Mechanism('gaussian', 2.0), Mechanism('gaussian', 1.0)
  >>> mixture = Mechanism('mixture', 0.0, parts=((likely, 0.75), (other, 0.25)))
  >>> [(m.kind, m.extra) for m in without_mixtures([(mixture, 1)])]
  [('gaussian', 0.0), ('epsilon_delta', 0.25)]

  ```
  """
  found: dict[Mechanism, int] = {}
  for mechanism, count in parts:
    left = [mechanism]
    if mechanism.kind == 'mixture':
      rest = math.fsum(weight for _, weight in mechanism.parts[1:])
      if len(mechanism.parts) > 2:
        rest = min(math.nextafter(rest, 2.0), 1.0)
      left = [
        mechanism.parts[0][0],
        Mechanism('epsilon_delta', 0.0, extra=rest),
      ]
    for part in left:
      found[part] = found.get(part, 0) + count
  return found


def _curve(mechanism: Mechanism, a: np.ndarray) -> np.ndarray:
  kind, parameter, q, extra, replaced, parts = mechanism
  if kind == 'gaussian':
    if q == 1:
      return a / 2 / parameter / parameter
    return renyi_sampled.sampled_gaussian(a, q, parameter, replaced)
  if kind == 'laplace':
    if q == 1:
      return _laplace(parameter, a)
    return _sampled_pure(mechanism, a)
  if kind == 'bounded_range':
    curve = _bounded_range(parameter, a)
    if q == 1:
      return curve
    # A mixture with what is the same for both is no further apart.
    return np.fmin(curve, _sampled_pure(mechanism, a))
  if kind in atoms.KINDS:
    return _of_atoms(mechanism, a)
  if kind == 'gaussian_or_null':
    # As of a replaced row, or as if it were known who is drawn.
    curve = np.fmin(
      renyi_sampled.sampled_gaussian(a, q, parameter / 2, True),
      a / 2 / parameter / parameter,
    )
    return np.fmin(curve, null_rows.renyi_of_null_row(a, q, parameter))
  if kind == 'epsilon_delta':
    return _pure_curve(parameter, a)
  if kind == 'zcdp':
    return extra + a * parameter
  if kind == 'data_dependent_gnmax':
    return pate.gnmax_curve(extra, parameter, a)
  if kind == 'data_dependent_threshold':
    return pate.threshold_curve(extra, parameter, a)
  if kind == 'data_dependent_lnmax':
    curve = pate.lnmax_curve(extra, parameter, a)
    return np.fmin(curve, _pure_curve(2 * parameter, a))
  orders = tuple(a.tolist())
  if kind == 'parallel':
    # Whoever is added or removed is in one of the shards.
    return np.max([total_curve(x, orders) for x in parts], axis=0)
  if kind == 'mixture':
    # The moment is the average of those of the parts.
    moments = [
      math.log(weight) + (a - 1) * renyi_curve(part, orders)
      for part, weight in parts
    ]
    moment = np.logaddexp.reduce(moments, axis=0)
    return (moment + _ROUNDING * (1 + np.abs(moment))) / (a - 1)
  if kind == 'repeat_and_select':
    return repeat_and_select.repeated_curve(
      a, total_curve(parts, orders), parameter, extra
    )
  raise ValueError(f'{kind!r} is not a kind of mechanism with a known curve.')


def _of_atoms(mechanism: Mechanism, a: np.ndarray) -> np.ndarray:
  """Of discrete pairs: the sum over their losses, or a closed form."""
  kind, parameter, q, extra = mechanism[:4]
  if kind == 'discrete_laplace' and q == 1:
    return atoms.discrete_laplace_curve(parameter, extra, a)
  epsilon = amplified(atoms.pure_epsilon(mechanism), q) * (1 + _ROUNDING)
  curve = atoms.renyi_of_atoms(atoms.atoms(mechanism, _ATOMS), a)
  return np.fmin(np.fmin(curve, epsilon), _pure_curve(epsilon, a))


def _sampled_pure(mechanism: Mechanism, a: np.ndarray) -> np.ndarray:
  """Of the pair of a pure mechanism, or of its epsilon alone, if less."""
  kind, parameter, q, _, replaced, _ = mechanism
  return np.fmin(
    _pure_curve(_pure(mechanism) * (1 + _ROUNDING), a),
    renyi_sampled.sampled_pair(kind, parameter, a, q, replaced),
  )


def _pure_curve(epsilon: float, a: np.ndarray) -> np.ndarray:
  """Randomized response, which dominates every pure mechanism.

  With p = 1 / (1 + exp(-epsilon)), the moment p^a (1 - p)^(1 - a) + (1 - p)^a
  p^(1 - a) is one and

      (exp((a - 1) epsilon) - 1) (1 - exp(-a epsilon)) / (1 + exp(-epsilon)).
  """
  excess = (
    log_expm1((a - 1) * epsilon)
    + np.log(-np.expm1(-a * epsilon))
    - math.log1p(math.exp(-epsilon))
  )
  curve = np.logaddexp(0.0, excess) / (a - 1) * (1 + _ROUNDING)
  return np.fmin(np.fmin(curve, epsilon), a / 2 * epsilon * epsilon)


def _laplace(scale: float, a: np.ndarray) -> np.ndarray:
  """Mironov 2017, table II; where that cancels, (epsilon^2 / 2)-zCDP."""
  epsilon = 1 / scale
  moment = np.logaddexp(
    np.log(a / (2 * a - 1)) + (a - 1) * epsilon,
    np.log((a - 1) / (2 * a - 1)) - a * epsilon,
  )
  curve = (moment + _ROUNDING * (1 + np.abs(moment))) / (a - 1)
  return np.fmin(np.fmin(curve, epsilon), a / 2 * epsilon * epsilon)


def _bounded_range(epsilon: float, a: np.ndarray) -> np.ndarray:
  """The worst mechanism whose losses lie in [t - E, t] for some t in [0, E].

  As the moment is convex in dP/dQ, the worst has only the losses t, with
  probability p = (e^E - e^t) / (e^E - 1), and t - E. Its moment is
  e^((a - 1) t) (A - e^t B) / (e^E - 1) with A = e^E - e^(-(a - 1) E) and B = 1
  - e^(-(a - 1) E), the largest at e^t = (a - 1) A / (a B); that t is in [0, E],
  as the slope at the ends has the signs that the inequality of means gives it.

  Where this cancels, a E^2 / 8 (Cesar and Rogers 2021): let K(s) = log E_Q[(dP
  / dQ)^s]. K(0) = K(1) = 0, and the second derivative is the variance of losses
  in an interval of length E, at most E^2 / 4: K(a) <= a (a - 1) E^2 / 8.
  """
  share_a = np.log(-np.expm1(-a * epsilon))  # log(A) - epsilon
  share_b = np.log(-np.expm1(-(a - 1) * epsilon))
  t = np.clip(np.log1p(-1 / a) + epsilon + share_a - share_b, 0.0, epsilon)
  moment = (a - 1) * t + share_a - np.log(a) - math.log(-math.expm1(-epsilon))
  slack = _ROUNDING * (1 + (a - 1) * (t + np.abs(share_b)) + np.abs(share_a))
  curve = (moment + slack) / (a - 1)
  return np.fmin(np.fmin(curve, epsilon), a / 8 * epsilon * epsilon)


def _pure(mechanism: Mechanism) -> float:
  kind, parameter, q, extra, replaced, parts = mechanism
  if kind == 'laplace' and replaced == OPPOSITE:
    bound = pairs.opposite_bound(kind, parameter, q)
    return math.nextafter(bound * (1 + _ROUNDING), math.inf)
  if kind == 'laplace':
    return amplified(math.nextafter(1 / parameter, math.inf), q)
  if kind == 'bounded_range':
    return amplified(parameter, q)
  if kind in atoms.KINDS:
    return amplified(atoms.pure_epsilon(mechanism), q)
  if kind == 'epsilon_delta':
    return parameter
  if kind == 'data_dependent_lnmax':
    return 2 * parameter
  if kind == 'parallel':
    return max(pure_epsilon(alternative) for alternative in parts)
  if kind == 'mixture':
    return max(_pure(part) for part, _ in parts)
  if kind == 'repeat_and_select':
    # Theorem 2 of Papernot and Steinke 2022 at infinite orders. What tells
    # nothing tells nothing however often it is run, a Poisson number of times
    # too; else that has no bound.
    once = pure_epsilon(parts)
    return (2 + extra) * once if once > 0 else 0.0
  return math.inf


def _failure(mechanism: Mechanism) -> float:
  if mechanism.kind == 'epsilon_delta':
    return mechanism.extra
  if mechanism.kind == 'parallel':
    return max(failure(alternative) for alternative in mechanism.parts)
  if mechanism.kind == 'repeat_and_select':
    once = failure(mechanism.parts)
    return min(mechanism.parameter * once * (1 + _ROUNDING), 1.0)
  return 0.0
