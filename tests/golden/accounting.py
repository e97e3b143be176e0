"""Epsilons and deltas of 300 events, and calibrations, as the code says."""

from __future__ import annotations

import math
import random

import dp_accounting
from dp_accounting import dp_event

from tfdpflows import accounting
from tfdpflows.accounting import calibration, events_json
from tfdpflows.accounting.mechanisms import votes

_NUMBER = 100
_DELTAS = (1e-8, 1e-5, 1e-2)
_EPSILONS = (0.1, 1.0)
_ACCOUNTANTS = ('advanced', 'basic', 'gdp', 'pld', 'rdp', 'zcdp')


def _random_events(number):
  """Compositions in which each event of the package happens several times."""
  rng = random.Random(20)

  def power(low, high):
    return float(f'{10 ** rng.uniform(low, high):.5g}')

  def gaussian():
    return dp_accounting.GaussianDpEvent(power(-0.2, 1.2))

  def toeplitz():
    return accounting.ToeplitzMechanismDpEvent(
      power(0.3, 1), [1.0, power(-1, -0.1)], steps=rng.choice([3, 20])
    )

  makers = [
    gaussian,
    lambda: dp_accounting.LaplaceDpEvent(power(0, 2)),
    lambda: dp_accounting.PoissonSampledDpEvent(power(-3, -0.3), gaussian()),
    lambda: dp_accounting.PoissonSampledDpEvent(
      power(-3, -0.3), dp_accounting.LaplaceDpEvent(power(0, 1))
    ),
    lambda: dp_accounting.SampledWithoutReplacementDpEvent(
      1000, rng.choice([1, 30, 500]), gaussian()
    ),
    lambda: accounting.TruncatedSubsampledGaussianDpEvent(
      10_000, 0.01, rng.choice([100, 150, 200]), power(-0.2, 0.7)
    ),
    lambda: accounting.ZCDpEvent(power(-4, -0.5)),
    lambda: accounting.ZCDpEvent(power(-4, -0.5), power(-3, -2)),
    lambda: accounting.EpsilonDeltaDpEvent(power(-3, 0), 0.0),
    lambda: accounting.EpsilonDeltaDpEvent(power(-3, 0), 1e-9),
    lambda: accounting.ExponentialMechanismDpEvent(power(-3, 0.3)),
    lambda: accounting.PermuteAndFlipDpEvent(power(-3, 0)),
    lambda: accounting.ReportNoisyMaxDpEvent(
      power(-3, 0), rng.choice(['laplace', 'exponential', 'gumbel'])
    ),
    lambda: accounting.SparseVectorDpEvent(
      power(-3, -0.5), power(-3, -0.5), power(-3, -0.5)
    ),
    lambda: accounting.DiscreteLaplaceDpEvent(power(-2, 0), rng.choice([1, 3])),
    lambda: accounting.RandomizedResponseDpEvent(
      power(-0.5, -0.05), rng.choice([2, 10])
    ),
    lambda: dp_event.RepeatAndSelectDpEvent(
      gaussian(), power(0.3, 2), rng.choice([0.0, 1.0, math.inf])
    ),
    lambda: dp_event.SingleEpochTreeAggregationDpEvent(
      power(0, 1), rng.choice([1, 8, 1000])
    ),
    lambda: accounting.MatrixMechanismDpEvent(
      power(0, 1), ((1.0,), (power(-1, 0), 1.0)), 1, rng.choice([1, 2])
    ),
    toeplitz,
    lambda: accounting.CyclicPoissonSampledDpEvent(
      power(-2, -0.5), rng.choice([2, 4]), toeplitz()
    ),
    lambda: accounting.LNMaxDpEvent(power(-2.5, -1)),
    lambda: accounting.GNMaxDpEvent(power(1, 2)),
    lambda: accounting.ConfidentGNMaxDpEvent(
      power(1, 2), 30.0, power(1, 2), rng.random() < 0.7
    ),
    lambda: votes.data_dependent_event(
      accounting.GNMaxDpEvent(power(1, 2)), [rng.randint(100, 200), 30, 5]
    ),
    lambda: accounting.ParallelDpEvent([gaussian(), gaussian()]),
    lambda: dp_accounting.NoOpDpEvent(),
    lambda: dp_accounting.NonPrivateDpEvent(),
  ]
  made = []
  for i in range(number):
    parts = [makers[i % len(makers)]()]
    if i >= len(makers):
      parts += [rng.choice(makers[:-1])() for _ in range(rng.choice([0, 1, 2]))]
    made.append(
      dp_accounting.ComposedDpEvent(
        [
          dp_accounting.SelfComposedDpEvent(part, rng.choice([1, 2, 30, 300]))
          for part in parts
        ]
      )
    )
  return made


def cases():
  """Events with a relation each.

  Returns:
    Dicts of 'event', as ledgers write it, and 'relation'.
  """
  return [
    {'relation': relation.name, 'event': events_json.event_to_dict(event)}
    for event in _random_events(_NUMBER)
    for relation in dp_accounting.NeighboringRelation
  ]


def values(case):
  """What each accountant says of one of `cases`.

  Args:
    case: The dict.

  Returns:
    A dict of floats in hexadecimal digits, by accountant and question; or of
    the name of the error.
  """
  event = events_json.event_from_dict(case['event'])
  relation = dp_accounting.NeighboringRelation[case['relation']]
  found = {}
  for name in _ACCOUNTANTS:
    accountant = accounting.create_accountant(
      name, neighboring_relation=relation
    )
    try:
      accountant.compose(event)
    except (ValueError, dp_accounting.UnsupportedEventError) as error:
      found[name] = type(error).__name__
      continue
    found[name] = {
      'epsilon': [float(accountant.get_epsilon(x)).hex() for x in _DELTAS],
      'delta': [float(accountant.get_delta(x)).hex() for x in _EPSILONS],
    }
  return found


def calibrations():
  """Calibrated noise, steps, probabilities and epsilons.

  Returns:
    A dict of floats in hexadecimal digits.
  """
  found = {}

  def sgd(noise=1.0, q=0.02, steps=300):
    step = dp_accounting.PoissonSampledDpEvent(
      q, dp_accounting.GaussianDpEvent(noise)
    )
    return dp_accounting.SelfComposedDpEvent(step, int(steps))

  for epsilon, delta in ((0.5, 1e-6), (3.0, 1e-5)):
    budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    for name in ('pld', 'rdp'):
      for what, value in (
        (
          'noise multiplier',
          accounting.calibrate_noise_multiplier(sgd, budget, accountant=name),
        ),
        (
          'steps',
          accounting.calibrate_steps(
            lambda steps: sgd(2.0, steps=steps), budget, accountant=name
          ),
        ),
        (
          'sampling probability',
          accounting.calibrate_sampling_probability(
            lambda q: sgd(2.0, q), budget, accountant=name
          ),
        ),
        (
          'epsilon',
          calibration.calibrate_epsilon(sgd(), delta, accountant=name),
        ),
      ):
        found[f'{what}, {name}, {epsilon}, {delta}'] = value
    found[f'noise multiplier, zcdp, {epsilon}, {delta}'] = (
      accounting.calibrate_noise_multiplier(
        dp_accounting.GaussianDpEvent, budget, accountant='zcdp'
      )
    )
  return {key: float(value).hex() for key, value in found.items()}


def make():
  """Everything that the file holds.

  Returns:
    What `json.dumps` takes.
  """
  return {
    'calibrations': calibrations(),
    'cases': [{**case, 'values': values(case)} for case in cases()],
  }
