"""`tfdpflows calibrate`: the noise that a privacy budget asks for."""

from __future__ import annotations

import json

from absl import flags

from tfdpflows.cli import training
from tfdpflows.cli.command import Command


def _define(options):
  options.section('Training')
  training.add_steps(options)
  options.section('Accounting')
  options.add(
    flags.DEFINE_float,
    'epsilon',
    None,
    'What all steps together may cost, above 0.',
    metavar='N',
    required=True,
  )
  training.add_accounting(options)


def _run(values):
  from tfdpflows.accounting import (
    PrivacyBudget,
    calibrate_noise_multiplier,
    compute_epsilon,
    create_accountant,
  )

  budget = PrivacyBudget(epsilon=values.epsilon, delta=values.delta)

  def event(noise_multiplier):
    return training.training_event(
      values.sampling_probability, noise_multiplier, values.steps
    )

  noise_multiplier = float(
    calibrate_noise_multiplier(event, budget, accountant=values.accountant)
  )
  accountant = create_accountant(values.accountant)
  epsilon = compute_epsilon(
    event(noise_multiplier), values.delta, values.accountant
  )
  if values.format == 'json':
    result = {
      'noise_multiplier': noise_multiplier,
      'epsilon': epsilon,
      'delta': values.delta,
      'accountant': accountant.name,
      'guarantee': accountant.guarantee,
      'sampling_probability': values.sampling_probability,
      'steps': values.steps,
    }
    print(json.dumps(result, indent=2, allow_nan=False))
    return
  guarantee = accountant.guarantee.replace('_', ' ')
  print(
    f'noise multiplier = {training.rounded_up(noise_multiplier)} (rounded up)\n'
    f'  {values.steps:,} steps, every example in a batch with probability '
    f'{values.sampling_probability:g}\n'
    f'  epsilon = {training.rounded_up(epsilon)} at delta = {values.delta:g} '
    f'({accountant.name}, {guarantee}; rounded up)'
  )


COMMAND = Command(
  name='calibrate',
  summary='Noise that an epsilon asks for',
  description="""
    Finds the smallest noise multiplier with which DP-SGD stays within a
    budget: the reverse of `tfdpflows account`.
  """,
  example="""
    tfdpflows calibrate --epsilon=1 --delta=1e-5 --sampling_probability=0.01 \\
      --steps=1000
  """,
  define=_define,
  run=_run,
)
