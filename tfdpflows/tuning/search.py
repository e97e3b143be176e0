"""A random search for hyper-parameters whose cost is that of two trials."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from tfdpflows import accounting
from tfdpflows._checks import check_fraction, check_positive
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.accounting.ledger import check_ledger, search_id
from tfdpflows.randomness import Randomness
from tfdpflows.tuning.trials import draw_num_trials

_MOST_TRIALS = 1e6


@dataclasses.dataclass(frozen=True)
class Trial:
  """What one trial of a search is given.

  Attributes:
    hyperparameters: dict of those that were drawn.
    budget: the `PrivacyBudget` of the trial, score included.
    ledger: a `PrivacyLedger` with that budget, which belongs to the trial. All
      that reads private rows is charged to it.
    randomness: the `Randomness` of the trial.
  """

  hyperparameters: dict[str, Any]
  budget: accounting.PrivacyBudget
  ledger: accounting.PrivacyLedger
  randomness: Randomness


@dataclasses.dataclass(frozen=True)
class Selected:
  """The best trial of a search: all of it that may be published.

  Attributes:
    hyperparameters: dict of those of the trial.
    score: its score, a float.
    result: what its fit returned. A privacy statement of its own tells the
      epsilon of one trial: that of the search is in the ledger of the table.
  """

  hyperparameters: dict[str, Any]
  score: float
  result: Any


def random_search(
  fit: Callable[[Trial], tuple[Any, float]],
  space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
  *,
  epsilon: float,
  delta: float,
  ledger: accounting.PrivacyLedger,
  mean_trials: float = 10.0,
  shape: float = 0.0,
  accountant: str = 'pld',
  randomness: Randomness | None = None,
  label: str = 'tuning',
) -> Selected:
  """Fits a random number of times, and returns the trial of the best score.

  Hyper-parameters are drawn anew for each trial, with replacement. Of the
  `(epsilon, delta)` of the search a trial has `(epsilon / (2 + shape), delta /
  mean_trials)`, for its fit and its score: a larger mean costs delta and time,
  and no epsilon. So a search pays where the best of `space` at half of epsilon
  is better than what one would take without it at all of epsilon.

  Args:
    fit: function of a `Trial` and of nothing that an earlier trial computed
      (weights to go on from, a list of scores), which is not seen here; that
      returns what was fitted and its score, larger is better. Whatever it reads
      of the rows it charges to the ledger of the trial:
      `TrainingPlan.for_epsilon` and `tfdpflows.mechanisms` take `ledger=`. A
      fit with a ledger of its own, as `TabularSynthesizer`'s, is charged as
      `EpsilonDeltaDpEvent(epsilon, delta)`. The score is released too: compute
      it from public rows, from released numbers, or with
      `mechanisms.noisy_mean`. NaN counts as minus infinity. The whole search is
      charged before `fit` is called, also where that fails: try it first on
      made-up rows, with a `Trial` of a ledger of its own.
    space: dict from names to the values that each may take, of which one is
      drawn with equal probability, independently; or a list of dicts, of which
      one is drawn.
    epsilon: of the whole search.
    delta: of the whole search.
    ledger: the `PrivacyLedger` of the table, charged before the first trial.
    mean_trials: mean number of trials, 1 or more.
    shape: of the distribution of that number (`draw_num_trials`): 0
      (logarithmic) costs least; with 1 (geometric) few trials are rarer.
    accountant: name of the accountant of the trials.
    randomness: a `Randomness`, or `None` for one that nobody knows.
    label: of the charge and of the streams.

  Returns:
    A `Selected`.

  Raises:
    TypeError: for a `fit` that is no function; or, when all is charged, that
      returns no pair.
    ValueError: for arguments out of range, an empty `space`, a fit that
      charged nothing to the ledger of its trial, or noise of a seed in a search
      without one, or a `randomness` that was used under this label before.
    BudgetExceededError: if `ledger` refuses the search, before any trial; or a
      trial asks for more than its budget.

  #### Formal guarantee

  A trial is `(epsilon_1, delta_1)`-private by its own ledger, whatever it draws
  and scores, under the neighbours and the privacy unit of `ledger`. Trials are
  independent, if `fit` keeps nothing of one for another (see there): of one
  that does, the best may tell what all of them cost together. The number
  of trials has the truncated negative binomial distribution and depends on
  nothing else. So the best is `((2 + shape) epsilon_1, mean_trials delta_1)`-
  private (Papernot and Steinke 2022, theorem 2 at order infinity, for trials
  that are private but for a probability of delta_1; Liu and Talwar 2019), and
  is charged as `EpsilonDeltaDpEvent(epsilon, delta)`. Ties are broken by a
  number that each trial draws, so that outputs are totally ordered, as the
  theorem needs.

  Only what is returned may be published. Not covered are the number of trials,
  what shows it (the time that the search takes, logs, files that the fits
  write), the other trials, and errors that a fit raises. A search that was
  interrupted is charged, and begins again under another label.

  #### References

  - Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential
    privacy".
  - Liu and Talwar 2019, "Private selection from private candidates".

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms, tuning
  >>> x = np.random.default_rng(0).normal(3., 1., 10_000)
  >>> def fit(trial):
  ...   bound = trial.hyperparameters['bound']
  ...   mean = mechanisms.noisy_mean(
  ...     x, lower=-bound, upper=bound, noise_multiplier=20.,
  ...     ledger=trial.ledger, randomness=trial.randomness)
  ...   score = mechanisms.noisy_mean(
  ...     -abs(x - mean), lower=-10., upper=0., noise_multiplier=20.,
  ...     ledger=trial.ledger, randomness=trial.randomness, label='score')
  ...   return mean, score
  >>> ledger = accounting.PrivacyLedger(
  ...   budget=accounting.PrivacyBudget(epsilon=1., delta=1e-5))
  >>> best = tuning.random_search(
  ...   fit, {'bound': [.1, 1., 10.]}, epsilon=1., delta=1e-5, ledger=ledger,
  ...   mean_trials=20.)
  >>> bool(ledger.epsilon() <= 1. and abs(best.result) < 11.)
  True
  """
  if not callable(fit):
    raise TypeError(
      f'fit is of type {type(fit).__name__}; it must be a function of a Trial '
      'that returns (result, score).'
    )
  epsilon, delta = (
    check_positive('epsilon', epsilon),
    check_fraction('delta', delta),
  )
  candidates = checked_space(space, mean_trials, shape, accountant)
  budget = trial_budget(epsilon, delta, mean_trials, shape)
  randomness = Randomness() if randomness is None else randomness
  label = str(label)
  charge_search(ledger, epsilon, delta, label, randomness)
  if not randomness.seeded:
    # As no search is resumed, none need have the noise of another ledger's.
    randomness = Randomness()
  logging.info(
    'Search: a random number of trials, %g on average, each within epsilon %g '
    'at delta %g.',
    mean_trials,
    budget.epsilon,
    budget.delta,
  )
  stream = randomness.numpy(label, 'number')
  best = None
  for number in range(draw_num_trials(mean_trials, shape, stream)):
    rng = randomness.numpy(label, number, 'draw')
    trial = Trial(
      candidates.draw(rng),
      budget,
      accounting.PrivacyLedger(
        budget=budget,
        accountant=accountant,
        neighboring_relation=ledger.neighboring_relation,
        privacy_unit=ledger.privacy_unit,
      ),
      _inner(randomness, label, number),
    )
    found = fit(trial)
    try:
      result, score = found
    except (TypeError, ValueError):
      raise TypeError(
        f'fit returned an object of type {type(found).__name__}; it must '
        'return the pair (result, score): what was fitted, and a number of '
        'which larger is better.'
      ) from None
    if not trial.ledger.entries:
      raise ValueError(
        'The fit charged nothing to trial.ledger, so that nothing shows what '
        'it cost. Pass trial.ledger to whatever reads private rows, or charge '
        'it with what another ledger counted.'
      )
    if trial.ledger.seeded and not randomness.seeded:
      raise ValueError(
        'The fit drew noise from a seed, perhaps the same in each trial, which '
        'the charge of the search does not say. Draw from trial.randomness, or '
        'give the search a Randomness with a seed.'
      )
    score = _checked_score(score)
    key = score, rng.random()
    if best is None or key > best[0]:
      best = key, Selected(trial.hyperparameters, score, result)
  return best[1]


def charge_search(
  ledger: accounting.PrivacyLedger,
  epsilon: float,
  delta: float,
  label: str,
  randomness: Randomness,
) -> None:
  """Charges a search as a whole, before anything is drawn for it."""
  check_ledger(ledger)
  with randomness.claiming(label):
    ledger.charge(
      EpsilonDeltaDpEvent(epsilon, delta),
      label=label,
      randomness_id=search_id(randomness.key('search', label).hex()),
      seeded=randomness.seeded,
      privacy_unit=ledger.privacy_unit,
    )


def trial_budget(
  epsilon: float, delta: float, mean_trials: float, shape: float = 0.0
) -> accounting.PrivacyBudget:
  """Returns the budget of a trial of `random_search`."""
  return accounting.PrivacyBudget(
    epsilon=epsilon / (2 + shape), delta=delta / mean_trials
  )


def checked_space(
  space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
  mean_trials: float,
  shape: float = 0.0,
  accountant: str = 'pld',
) -> _Space:
  """Refuses what `random_search` refuses, before anything is charged.

  Raises:
    ValueError: see there.
  """
  mean_trials = check_positive('mean_trials', mean_trials)
  if mean_trials > _MOST_TRIALS:
    raise ValueError(
      f'mean_trials is {mean_trials:g}; it must be {_MOST_TRIALS:g} at most.'
    )
  draw_num_trials(mean_trials, shape, np.random.default_rng(0))
  if accounting.create_accountant(accountant).guarantee != 'upper_bound':
    raise ValueError(
      f'The epsilon of the accountant {accountant!r} is no upper bound, which '
      "the theorem on the best of several trials needs. Use 'pld' or 'rdp'."
    )
  return _Space(space)


class _Space:
  """Hyper-parameters to draw from."""

  def __init__(self, space):
    self._independent = isinstance(space, Mapping)
    if not (self._independent or _is_sequence(space)):
      raise ValueError(
        f'space is {space!r}; give a dict of the values of each '
        'hyper-parameter, or a list of dicts.'
      )
    if not len(space):
      raise ValueError('space is empty: give hyper-parameters to choose from.')
    for found in [space] if self._independent else space:
      if not isinstance(found, Mapping):
        raise ValueError(f'space has {found!r}, and must have dicts.')
      for name in found:
        if not isinstance(name, str):
          raise ValueError(f'space names {name!r}, and names are texts.')
    if self._independent:
      for name, values in space.items():
        if not _is_sequence(values):
          raise ValueError(
            f'space has {values!r} for {name!r}: give a list of values.'
          )
        if not len(values):
          raise ValueError(f'space has no value for {name!r}: give one.')
      self._space = {name: list(values) for name, values in space.items()}
    else:
      self._space = [dict(found) for found in space]

  def draw(self, rng):
    if self._independent:
      drawn = {
        name: values[rng.integers(len(values))]
        for name, values in self._space.items()
      }
    else:
      drawn = self._space[rng.integers(len(self._space))]
    # A fit that changes what it is given must not change what others draw.
    return copy.deepcopy(drawn)


def _is_sequence(found):
  return isinstance(found, (Sequence, np.ndarray)) and not isinstance(
    found, (str, bytes)
  )


def _checked_score(score):
  try:
    score = float(score)
  except (OverflowError, TypeError, ValueError) as error:
    raise ValueError(
      'The score of a fit is no number that a float holds: return (result, '
      'score), and NaN where there is none.'
    ) from error
  return -math.inf if math.isnan(score) else score


def _inner(randomness, *path):
  """The `Randomness` of a trial: a fixed function of that of the search."""
  key = randomness.key(*path, 'trial')
  if randomness.seeded:
    return Randomness(seed=int.from_bytes(key, 'big'))
  return Randomness(secret=key)
