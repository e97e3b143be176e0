"""`tfdpflows account`: the epsilon of a number of noisy training steps."""

from __future__ import annotations

import json

from absl import flags

from tfdpflows.cli import training
from tfdpflows.cli.command import Command, UsageError


def _define(options):
  options.section('Training')
  training.add_steps(options)
  options.add(
    flags.DEFINE_float,
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clipping norm, above 0.',
    metavar='N',
    required=True,
    lower_bound=0.0,
  )
  options.section('Accounting')
  training.add_accounting(options)


def _run(values):
  if values.noise_multiplier == 0:
    raise UsageError(
      '--noise_multiplier=0 adds no noise, and no epsilon holds without noise.'
    )
  from tfdpflows.accounting import compute_epsilon, create_accountant

  def epsilon(sampling_probability):
    event = training.training_event(
      sampling_probability, values.noise_multiplier, values.steps
    )
    return compute_epsilon(event, values.delta, values.accountant)

  accountant = create_accountant(values.accountant)
  result = {
    'epsilon': training.finite(epsilon(values.sampling_probability)),
    'delta': values.delta,
    'accountant': accountant.name,
    'guarantee': accountant.guarantee,
    'neighboring_relation': 'add_or_remove_one',
    'sampling': 'poisson',
    'sampling_probability': values.sampling_probability,
    'noise_multiplier': values.noise_multiplier,
    'steps': values.steps,
    'epsilon_without_amplification': training.finite(epsilon(1.0)),
  }
  if values.format == 'json':
    print(json.dumps(result, indent=2, allow_nan=False))
  else:
    print(_text(result))


def _text(result):
  shown = {
    key: 'inf' if result[key] is None else training.rounded_up(result[key])
    for key in ('epsilon', 'epsilon_without_amplification')
  }
  guarantee = result['guarantee'].replace('_', ' ')
  q = result['sampling_probability']
  lines = [
    f'epsilon = {shown["epsilon"]} at delta = {result["delta"]:g} '
    f'({result["accountant"]}, {guarantee}; rounded up)',
    f'  {result["steps"]:,} steps, noise multiplier '
    f'{result["noise_multiplier"]:g}, '
    f'every example in a batch with probability {q:g}',
    '  for tables that differ by one row added or removed',
  ]
  if q < 1:
    lines.append(
      '  without amplification by sampling: epsilon = '
      f'{shown["epsilon_without_amplification"]}'
    )
  return '\n'.join(lines)


COMMAND = Command(
  name='account',
  summary='Epsilon of a number of noisy steps',
  description="""
    Says what DP-SGD costs: in each step every example enters the batch with
    the same probability, gradients are clipped and Gaussian noise is added to
    their sum. Tables are neighbours if one has one row more.
  """,
  example="""
    tfdpflows account --sampling_probability=0.01 --noise_multiplier=1 \\
      --steps=1000 --delta=1e-5 --accountant=pld
  """,
  define=_define,
  run=_run,
)
