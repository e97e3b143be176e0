"""Audit of a mechanism that is cheap enough to be run many times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Union

import dp_accounting
import numpy as np

from tfdpflows import accounting
from tfdpflows._checks import check_integer
from tfdpflows.accounting import registry
from tfdpflows.accounting.rounding import delta_text, round_down, round_up
from tfdpflows.audit.rates import (
  ErrorRates,
  error_rates,
  gaussian_epsilon,
  largest_epsilon,
)
from tfdpflows.audit.replaying import own_copy

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True)
class MechanismAudit:
  """What an attack proved of a mechanism, beside what is claimed.

  Attributes:
    epsilon_claimed: of the claim at `delta`.
    epsilon_lower: largest epsilon that the attack refutes; a claim below it is
      false, with the confidence of `rates`.
    epsilon_lower_gaussian: of a Gaussian mechanism with `mu_lower`: above what
      the attack proves, unless the mechanism is Gaussian. Not compared with
      the claim by `refuted`.
    mu_lower: largest mu for which the attack refutes mu-GDP.
    delta: that all epsilons are at.
    num_runs: on each of the two tables.
    rates: error rates of the attack that `epsilon_lower` is from.
    accountant: that the claim is stated by.
  """

  epsilon_claimed: float
  epsilon_lower: float
  epsilon_lower_gaussian: float
  mu_lower: float
  delta: float
  num_runs: int
  rates: ErrorRates
  accountant: str = 'pld'

  @property
  def refuted(self) -> bool:
    """Whether the claim is below what the attack proves."""
    return self.epsilon_lower > self.epsilon_claimed

  @property
  def could_refute(self) -> bool:
    """Whether an attack without errors would refute the claim."""
    most = largest_epsilon(self.num_runs, self.delta, self.rates.confidence)
    return most > self.epsilon_claimed

  def __str__(self) -> str:
    verdict = 'REFUTED' if self.refuted else 'not refuted'
    if not self.could_refute:
      verdict += ', and no attack could with so few runs'
    return (
      f'Claim: epsilon <= {round_up(self.epsilon_claimed)} at delta '
      f'{delta_text(self.delta)}{registry.caveat(self.accountant)}: '
      f'{verdict}. Attack: epsilon >= '
      f'{round_down(self.epsilon_lower)}, mu >= {round_down(self.mu_lower)} '
      f'(confidence {self.rates.confidence:g}, {self.num_runs:,} runs on each '
      'table).'
    )


def audit_mechanism(
  run: Callable[[Any, int], Any],
  table: Any,
  neighbor: Any,
  *,
  claim: Union[dp_accounting.DpEvent, accounting.PrivacyLedger],
  delta: float,
  num_runs: int = 10_000,
  score: Callable[[Any], Any] = lambda outputs: outputs,
  confidence: float = 0.95,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
) -> MechanismAudit:
  """Runs a mechanism on two neighbouring tables, and tells their outputs apart.

  The bound is only as good as the attack: use the pair of tables that the
  mechanism tells apart best, and a score that grows with the likelihood ratio
  of its outputs. A claim that is not refuted is not proven. The claim is for
  one run; runs of the audit are charged nowhere, so both tables must be public
  or made up.

  Args:
    run: a function of a table and a number of runs, which returns the outputs
      of as many independent runs, with fresh noise.
    table: what `run` takes.
    neighbor: one of its neighbours, under `neighboring_relation`.
    claim: what one run costs: an event, or a ledger that one run was charged
      to, whose neighbouring relation counts.
    delta: inside (0, 1).
    num_runs: on each table. The bound on epsilon cannot be above about
      `log(num_runs / 8)`.
    score: a function of what `run` returned, to `[num_runs]`. It scores each
      output by itself, and was chosen before the runs: scores that depend on
      other outputs prove nothing.
    confidence: of each bound: the probability that it is one.
    accountant: that the claim is stated by.
    neighboring_relation: of the claim, for an event.

  Returns:
    A `MechanismAudit`; print it for the claim and what is proven.

  Raises:
    ValueError: for arguments out of range, or scores that are NaN or not
      `[num_runs]`.

  #### Example

  >>> import dp_accounting, numpy as np
  >>> rng = np.random.default_rng(0)
  >>> found = audit_mechanism(
  ...   lambda table, runs: sum(table) + rng.laplace(size=runs), [1, 1], [1],
  ...   claim=dp_accounting.LaplaceDpEvent(1.), delta=1e-6, num_runs=50_000)
  >>> found.refuted, found.epsilon_lower > .9
  (False, True)

  #### References

  - Jagielski, Ullman and Oprea 2020; Nasr et al. 2021: audits by Clopper and
    Pearson's bounds on the error rates of an attack.
  - Nasr et al. 2023, section 4: mu from error rates.
  """
  num_runs = check_integer('num_runs', num_runs, 20)
  if isinstance(claim, accounting.PrivacyLedger):
    if not claim.entries:
      raise ValueError(
        'The ledger that is the claim has no entries. Charge one run to it.'
      )
    neighboring_relation = claim.neighboring_relation
    claim = claim.committed_event
  claimed = registry.compute_epsilon(
    claim, delta, accountant, neighboring_relation
  )
  scores = []
  for name, given in (('table', table), ('neighbor', neighbor)):
    found = np.asarray(score(run(own_copy(given), num_runs)), np.float64)
    if found.shape != (num_runs,):
      raise ValueError(
        f'The scores of {name} have shape {list(found.shape)}; they must be '
        f'[num_runs] = [{num_runs}].'
      )
    scores.append(found)
  rates, of_mu = (
    error_rates(*scores, delta=delta, confidence=confidence, by=by)
    for by in ('epsilon', 'mu')
  )
  mu = of_mu.mu()
  return MechanismAudit(
    epsilon_claimed=claimed,
    epsilon_lower=rates.epsilon(delta),
    epsilon_lower_gaussian=gaussian_epsilon(mu, delta),
    mu_lower=mu,
    delta=delta,
    num_runs=num_runs,
    rates=rates,
    accountant=accountant,
  )
