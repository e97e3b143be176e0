"""Audit of a ledger: every entry is run as a mechanism on its worst pair.

What is run is the mechanism that an event stands for, not the program that was
charged for it: this audits the accounting, and shows how much of a claim the
best attack on such mechanisms proves. `replay` is for the program.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Optional

import dp_accounting
import numpy as np
from scipy import special, stats

from tfdpflows import accounting, progress
from tfdpflows._checks import check_fraction, check_integer
from tfdpflows.accounting import registry
from tfdpflows.accounting.events import describe_event
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.accounting.mechanisms.matrix import cyclic_blocks
from tfdpflows.accounting.rounding import delta_text, round_down, round_up
from tfdpflows.audit.rates import ErrorRates, error_rates, largest_epsilon

_REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
_SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
# Less noise is audited as this much: more noise only reveals less, and with
# none the tables are told apart.
_LEAST_NOISE = 1e-3
# A loss that is infinite, but such that sums of them are defined.
_CERTAIN = 1e6
# Points of a ROC.
_POINTS = 201
# Epsilons whose deltas bound the error rates of any attack; an accountant may
# take a second for each.
_EPSILONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)


@dataclasses.dataclass(frozen=True)
class AuditedEntry:
  """An entry of a ledger, beside what an attack on it proves.

  Attributes:
    label: of the entry.
    description: of its event.
    count: how many runs are charged.
    epsilon_claimed: of all runs of this entry.
    epsilon_lower: what the attack proves; `None` if it cannot be audited.
    reason: why it cannot be audited; empty if it can.
  """

  label: str
  description: str
  count: int
  epsilon_claimed: float
  epsilon_lower: Optional[float]
  reason: str = ''


@dataclasses.dataclass(frozen=True)
class LedgerAudit:
  """What attacks prove of the mechanisms of a ledger.

  Attributes:
    epsilon_claimed: of all that is charged, at `delta`.
    epsilon_lower: what the attack on all entries that can be audited proves,
      together; 0 if there are none.
    mu_lower: the least mu of Gaussian differential privacy, of the same attack.
    delta: that all epsilons are at.
    accountant: that claims are stated by.
    neighboring_relation: of the ledger.
    num_runs: on each of the two tables.
    confidence: that all bounds hold together.
    rates: of the attack; `None` if no entry can be audited.
    entries: an `AuditedEntry` for each entry.
    claimed_roc: `[_POINTS, 2]`, false-positive rates, and the largest
      true-positive rates that the claim allows.
    roc: the same of the attack, as it was seen; empty if there is none.
    seconds: that it took.
  """

  epsilon_claimed: float
  epsilon_lower: float
  mu_lower: float
  delta: float
  accountant: str
  neighboring_relation: str
  num_runs: int
  confidence: float
  rates: Optional[ErrorRates]
  entries: tuple[AuditedEntry, ...]
  claimed_roc: np.ndarray
  roc: np.ndarray
  seconds: float

  @property
  def refuted(self) -> bool:
    """Whether a claim, of all or of one entry, is below what is proven."""
    return self.epsilon_lower > self.epsilon_claimed or any(
      (entry.epsilon_lower or 0.0) > entry.epsilon_claimed
      for entry in self.entries
    )

  @property
  def could_refute(self) -> bool:
    """Whether attacks without errors would refute a claim, of all or one."""
    claims = [x.epsilon_claimed for x in self.entries if not x.reason]
    if claims:
      claims.append(self.epsilon_claimed)
    each = _of_each(self.confidence, len(self.entries))
    most = largest_epsilon(self.num_runs, self.delta, each)
    return any(claim < most for claim in claims)

  @property
  def complete(self) -> bool:
    """Whether every entry could be audited."""
    return not any(entry.reason for entry in self.entries)

  def __str__(self) -> str:
    lines = [
      f'Claim: epsilon <= {round_up(self.epsilon_claimed)} at delta '
      f'{delta_text(self.delta)}{registry.caveat(self.accountant)}. '
      f'Attack: epsilon >= {round_down(self.epsilon_lower)} '
      f'(confidence {self.confidence:g}).'
    ]
    if self.refuted:
      lines.append('THE ATTACK REFUTES THE CLAIM.')
    elif self.rates is None:
      lines.append('Nothing was attacked.')
    elif not self.could_refute:
      lines.append('With so few runs no attack could refute it.')
    lines += [
      f'Not audited: {entry.label!r}, {entry.reason}.'
      for entry in self.entries
      if entry.reason
    ]
    return '\n'.join(lines)


def audit_ledger(
  ledger: accounting.PrivacyLedger,
  *,
  delta: Optional[float] = None,
  num_runs: int = 20_000,
  confidence: float = 0.95,
  seed: Optional[int] = None,
  show_progress: bool = False,
) -> LedgerAudit:
  """Runs the mechanisms of a ledger on worst-case pairs, and attacks them.

  The attack sees the exact likelihood ratio of every output, and of all outputs
  together: none tells these pairs apart better. A lower bound above the claim
  would be an error of the accountant. One that is below says how tight the
  claim is for such mechanisms; it says nothing about the program that was
  charged, see `replay` and `audit_mechanism`.

  Args:
    ledger: is only read.
    delta: inside (0, 1); that of the budget if `None`.
    num_runs: on each table. No bound is above about `log(num_runs / 8)`.
    confidence: the probability that all bounds of the audit are bounds.
    seed: for results that can be repeated.
    show_progress: whether to show a bar, in a terminal or notebook.

  Returns:
    A `LedgerAudit`; print it for the claim and what is proven.

  Raises:
    ValueError: for a ledger without entries, or arguments out of range.

  #### Example

  >>> import dp_accounting
  >>> from tfdpflows import accounting, audit
  >>> ledger = accounting.PrivacyLedger()
  >>> _ = ledger.charge(dp_accounting.GaussianDpEvent(2.), label='counts')
  >>> found = audit.audit_ledger(ledger, delta=.01, seed=0)
  >>> found.refuted, found.complete, bool(.4 < found.mu_lower <= .5)
  (False, True, True)
  """
  started = time.monotonic()
  check_ledger(ledger)
  num_runs = check_integer('num_runs', num_runs, 20)
  check_fraction('confidence', confidence)
  entries = [entry for entry in ledger.entries if entry.count]
  if not entries:
    raise ValueError('The ledger has charged nothing: there is no claim.')
  if delta is None:
    if ledger.budget is None:
      raise ValueError('A ledger without a budget has no delta; give one.')
    delta = ledger.budget.delta
  check_fraction('delta', delta)
  each = _of_each(confidence, len(entries))
  rng = np.random.default_rng(seed)
  relation = ledger.neighboring_relation
  numbers = [2 * _draws(entry.event, entry.count) for entry in entries]
  shown = progress.bar('run', sum(numbers), show_progress)
  runs = num_runs, rng, shown.update
  audited, losses = [], [np.zeros(num_runs), np.zeros(num_runs)]
  for number, entry in enumerate(entries):
    found, parts = _audited(entry, ledger, delta, each, runs)
    audited.append(found)
    if parts is not None:
      losses = [total + part for total, part in zip(losses, parts)]
    # With what was not drawn one by one.
    shown.update(max(sum(numbers[: number + 1]) - shown.n, 0))
  shown.close()
  rates, mu, epsilon, roc = None, 0.0, 0.0, np.zeros([0, 2])
  if any(not x.reason for x in audited):
    rates = error_rates(*losses, delta=delta, confidence=each)
    epsilon = rates.epsilon(delta)
    mu = error_rates(*losses, delta=delta, confidence=each, by='mu').mu()
    roc = roc_of(*losses)
  return LedgerAudit(
    epsilon_claimed=float(ledger.epsilon(delta)),
    epsilon_lower=epsilon,
    mu_lower=mu,
    delta=delta,
    accountant=ledger.accountant,
    neighboring_relation=relation.name.lower(),
    num_runs=num_runs,
    confidence=confidence,
    rates=rates,
    entries=tuple(audited),
    claimed_roc=claimed_roc(ledger.event, ledger.accountant, relation),
    roc=roc,
    seconds=time.monotonic() - started,
  )


def _audited(entry, ledger, delta, confidence, runs):
  """Returns the `AuditedEntry` of an entry, and its losses on both tables.

  The losses are `None` if it cannot be audited.
  """
  relation = ledger.neighboring_relation
  event = dp_accounting.SelfComposedDpEvent(entry.event, entry.count)
  try:
    claimed = registry.compute_epsilon(
      event, delta, ledger.accountant, relation
    )
  except dp_accounting.UnsupportedEventError:
    claimed = math.inf  # No accountant has a proof for it.
  facts = entry.label, describe_event(entry.event), entry.count, float(claimed)
  try:
    losses = [
      # Rounded: the last digits of a sum tell what was added, and losses that
      # are equal in theory would differ by them.
      _losses(entry.event, relation, entry.count, present, *runs).round(9)
      for present in (False, True)
    ]
  except _UnknownError as error:
    return AuditedEntry(*facts, None, str(error)), None
  rates = error_rates(*losses, delta=delta, confidence=confidence)
  return AuditedEntry(*facts, rates.epsilon(delta)), losses


def _of_each(confidence, num_entries):
  """Every bound may fail with its share: one for each entry, two for all."""
  return 1 - (1 - confidence) / (num_entries + 2)


def claimed_roc(
  event: dp_accounting.DpEvent,
  accountant: str = 'pld',
  relation: dp_accounting.NeighboringRelation = (
    dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  ),
) -> np.ndarray:
  """Returns the largest true-positive rates that an event allows.

  The accountant gives delta at each of some epsilons. Each (epsilon, delta)
  allows a true-positive rate of `min(exp(epsilon) fp + delta, 1 - exp(-epsilon)
  (1 - delta - fp))` at most. Returns float64 `[_POINTS, 2]`, pairs of a false-
  and a true-positive rate.
  """
  false = np.linspace(0, 1, _POINTS)
  true = np.ones(_POINTS)
  try:
    made = accounting.create_accountant(accountant, relation).compose(event)
  except dp_accounting.UnsupportedEventError:
    return np.stack([false, true], -1)
  for epsilon in _EPSILONS:
    delta = made.get_delta(epsilon)
    if delta < 1:
      above = math.exp(epsilon) * false + delta
      below = 1 - math.exp(-epsilon) * (1 - delta - false)
      true = np.minimum(true, np.minimum(above, below))
  return np.stack([false, np.clip(true, 0, 1)], -1)


def roc_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the ROC of scores of two tables, float64 `[_POINTS, 2]`.

  A false-positive rate of which there is no run is taken for one in all runs:
  not seen is not impossible.
  """
  thresholds = np.unique(np.concatenate([first, second]))[::-1]
  if len(thresholds) > 4000:
    thresholds = thresholds[:: len(thresholds) // 4000]
  rates = [
    np.searchsorted(np.sort(-x), -thresholds, side='right') / len(x)
    for x in (first, second)
  ]
  rates[0] = np.maximum(rates[0], 1 / len(first))
  false, true = (np.concatenate([[0.0], x, [1.0]]) for x in rates)
  at = np.linspace(0, 1, _POINTS)
  return np.stack([at, np.interp(at, false, true)], -1)


class _UnknownError(ValueError):
  """An event of which no worst pair is known here."""


def _parts(event, count):
  """Yields events that are no compositions, and how often each happens."""
  event = _of_blocks(event)
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    yield from _parts(event.event, count * event.count)
  elif isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      yield from _parts(part, count)
  elif not isinstance(event, dp_accounting.NoOpDpEvent):
    yield event, count


def _draws(event, count):
  """Returns how many times `_losses` draws, at most."""
  return sum(
    1 if isinstance(part, dp_accounting.GaussianDpEvent) else int(number)
    for part, number in _parts(event, count)
  )


def _losses(event, relation, count, present, num_runs, rng, drawn):
  """Returns privacy losses of `count` runs together, float64 `[num_runs]`.

  The logarithm of the likelihood of an output on the second table over that on
  the first, on outputs of the second (`present`) or of the first. `drawn` is
  called after each draw, for progress.
  """
  total = np.zeros(num_runs)
  for part, number in _parts(event, count):
    losses = np.zeros(num_runs)
    if isinstance(part, dp_accounting.GaussianDpEvent):
      # All runs together are one, with less noise.
      rows = 2 if relation is _REPLACE else 1
      noise = max(part.noise_multiplier, _LEAST_NOISE)
      mu = rows * math.sqrt(number) / noise
      half = (0.5 if present else -0.5) * mu**2
      losses = mu * rng.normal(size=num_runs) + half
    else:
      draw = _once(part, relation, present)
      for _ in range(int(number)):
        losses += draw(num_runs, rng)
        drawn()
    total += losses
  return total


def _of_blocks(event):
  """Returns an event with the same losses, of blocks if steps make such."""
  if not isinstance(event, accounting.CyclicPoissonSampledDpEvent):
    return event
  noise, blocks = cyclic_blocks(event)
  if noise == math.inf:
    return dp_accounting.NoOpDpEvent()
  # Of each block the row's own direction is all that it moves.
  block = dp_accounting.PoissonSampledDpEvent(
    event.sampling_probability, dp_accounting.GaussianDpEvent(noise)
  )
  return dp_accounting.SelfComposedDpEvent(block, blocks)


def _once(event, relation, present) -> Callable:
  """Returns a function of a number and a generator: losses of single runs."""
  rows = 2 if relation is _REPLACE else 1
  inner = getattr(event, 'event', None)
  if isinstance(event, accounting.TruncatedSubsampledGaussianDpEvent):
    # The cap, which next to no batch reaches, would only tell more.
    return _sampled(
      event.sampling_probability, event.noise_multiplier, rows, present
    )
  if isinstance(inner, dp_accounting.GaussianDpEvent):
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
      return _sampled(
        event.sampling_probability, inner.noise_multiplier, rows, present
      )
    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
      # Where the row is drawn it takes the place of another one, or of the row
      # that it replaces: the sum moves by twice the norm of a row. Only a row
      # of zeros in its place is nearer.
      moved = 1 if relation is _SPECIAL else 2
      share = event.sample_size / event.source_dataset_size
      return _sampled(share, inner.noise_multiplier / moved, 1, present)
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    scale = max(event.noise_multiplier, _LEAST_NOISE) / rows

    def laplace(size, rng):
      y = scale * rng.laplace(size=size) + present
      return (np.abs(y) - np.abs(y - 1)) / scale

    return laplace
  if isinstance(event, accounting.ExponentialMechanismDpEvent):
    half = event.epsilon / 2
    # One of two outcomes, whose log-odds move by epsilon.
    return _binary(*special.expit([-half, half]), present)
  if isinstance(event, accounting.LNMaxDpEvent):
    # Two classes with as many votes, but for that of one teacher.
    # The noisy count of the one with a vote less is larger with this:
    wrong = 0.5 * math.exp(-event.gamma) * (1 + event.gamma / 2)
    return _binary(wrong, 1 - wrong, present)
  if isinstance(event, accounting.GNMaxDpEvent):
    mean = 1 / (event.sigma * math.sqrt(2))
    return _binary(*stats.norm.cdf([-mean, mean]), present)
  if isinstance(event, accounting.EpsilonDeltaDpEvent):
    # A guarantee under the relation of the ledger, whichever that is.
    return _epsilon_delta(event.epsilon, event.delta, present)
  raise _UnknownError('no worst pair of tables is known for this event')


def _sampled(q, sigma, rows, present):
  """A row of value 1 is in the sample with probability q; one of -1, replaced.

  The first table has no such row, or the one of -1.
  """
  low = -1.0 if rows == 2 else 0.0
  if not q:
    return lambda size, rng: np.zeros(size)
  sigma = max(sigma, _LEAST_NOISE)

  def draw(size, rng):
    drawn = rng.random(size) < q
    y = sigma * rng.normal(size=size) + np.where(
      drawn, 1.0 if present else low, 0.0
    )
    log_ratio = lambda at: (2 * y * at - at**2) / (2 * sigma**2)
    mixed = lambda at: (
      np.logaddexp(math.log1p(-q), math.log(q) + log_ratio(at))
      if q < 1
      else log_ratio(at)
    )
    return mixed(1.0) - (mixed(low) if rows == 2 else 0.0)

  return draw


def _binary(p, q, present):
  """One of two outcomes, with probability p on the first table, else q."""
  if q <= p:
    return lambda size, rng: np.zeros(size)
  # As of outcomes of which one has probability zero.
  ones = math.log(q / p) if p else _CERTAIN
  zeros = math.log((1 - q) / (1 - p)) if q < 1 else -_CERTAIN
  return lambda size, rng: np.where(
    rng.random(size) < (q if present else p), ones, zeros
  )


def _epsilon_delta(epsilon, delta, present):
  """The mechanism that is (epsilon, delta)-private and nothing better."""

  def draw(size, rng):
    large = rng.random(size) < special.expit(epsilon)
    loss = np.where(large == present, epsilon, -epsilon)
    told = rng.random(size) < delta
    return np.where(told, _CERTAIN if present else -_CERTAIN, loss)

  return draw
