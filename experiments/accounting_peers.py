"""Epsilons of dp_accounting 0.6 for random events, and ours beside them.

The values of dp_accounting 0.6 are in `tests/accounting/peer_epsilons.json`.
They were made in an environment of its own, which needs nothing else:

  python3.11 -m venv peers && peers/bin/pip install dp-accounting==0.6.0
  peers/bin/python experiments/accounting_peers.py \\
    --write=tests/accounting/peer_epsilons.json

With each value, where it is known, is one with the losses rounded down, which
no upper bound may be below. Without that option, our values are printed where
they differ from theirs by more than `--share`.

  python -m experiments.accounting_peers
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random

PATH = (
  pathlib.Path(__file__).parents[1]
  / 'tests'
  / 'accounting'
  / 'peer_epsilons.json'
)
_NUMBER = 300
_KINDS = (
  'gaussian',
  'laplace',
  'poisson_gaussian',
  'poisson_laplace',
  'fixed_gaussian',
  'truncated',
  'zcdp',
  'search',
  'mixed',
)


def cases(number: int = _NUMBER) -> list[dict]:
  """Random events, as dicts of plain values.

  Args:
    number: How many.

  Returns:
    Dicts of 'relation', 'delta' and 'parts', each part with 'kind', 'count' and
    parameters.
  """
  rng = random.Random(20261123)

  def power(low, high):
    return float(f'{10 ** rng.uniform(low, high):.6g}')

  def part(kind, steps):
    found = {'kind': kind, 'count': steps}
    if kind == 'zcdp':
      found['rho'] = power(-4, -0.5)
    elif kind == 'laplace':
      found['noise'] = power(0, 2) * math.sqrt(steps)
    elif kind == 'gaussian':
      found['noise'] = power(-0.3, 1) * math.sqrt(steps)
    elif kind == 'truncated':
      n = rng.choice([1000, 10_000, 60_000])
      q = power(-2.5, -0.7)
      found.update(
        noise=power(-0.2, 0.7),
        size=n,
        probability=q,
        cap=max(round(n * q + rng.uniform(-1, 6) * math.sqrt(n * q)), 1),
      )
    elif kind == 'search':
      found.update(
        noise=power(0.3, 1),
        runs=power(0.5, 2),
        shape=rng.choice([0.0, 1.0]),
        count=1,
      )
    else:
      found['noise'] = power(-0.2, 0.7)
      found['probability'] = power(-3, -0.5)
      if kind == 'poisson_laplace':
        found['noise'] = power(0, 1)
      if kind == 'fixed_gaussian':
        found['probability'] = round(found['probability'] * 10**6) / 10**6
    return found

  made = []
  for i in range(number):
    kind = _KINDS[i % len(_KINDS)]
    relation = 'REPLACE_ONE' if i // len(_KINDS) % 2 else 'ADD_OR_REMOVE_ONE'
    steps = rng.choice([1, 3, 30, 300, 2000])
    if kind == 'mixed':
      sampled = 'truncated' if rng.random() < 0.3 else 'poisson_gaussian'
      parts = [part('gaussian', 1), part(sampled, steps)]
      if relation == 'ADD_OR_REMOVE_ONE':
        parts.append(part('laplace', rng.choice([1, 10])))
    else:
      parts = [part(kind, steps)]
    made.append({'relation': relation, 'delta': power(-9, -3), 'parts': parts})
  return made


def event(case: dict, dp_event, zcdp, truncated, share: float = 1.0):
  """An event of a case.

  Args:
    case: One of `cases`.
    dp_event: A module of dp_accounting's events.
    zcdp: The class of zCDP events.
    truncated: The class of capped Poisson samples.
    share: What all noise is multiplied by.

  Returns:
    A `DpEvent`.
  """
  parts = []
  for part in case['parts']:
    kind, noise = part['kind'], part.get('noise', 0.0) * share
    gaussian = dp_event.GaussianDpEvent(noise) if noise else None
    if kind == 'gaussian':
      one = gaussian
    elif kind == 'laplace':
      one = dp_event.LaplaceDpEvent(noise)
    elif kind == 'poisson_gaussian':
      one = dp_event.PoissonSampledDpEvent(part['probability'], gaussian)
    elif kind == 'poisson_laplace':
      one = dp_event.PoissonSampledDpEvent(
        part['probability'], dp_event.LaplaceDpEvent(noise)
      )
    elif kind == 'fixed_gaussian':
      one = dp_event.SampledWithoutReplacementDpEvent(
        10**6, max(round(part['probability'] * 10**6), 1), gaussian
      )
    elif kind == 'truncated':
      one = truncated(part['size'], part['probability'], part['cap'], noise)
    elif kind == 'zcdp':
      one = zcdp(part['rho'])
    else:
      one = dp_event.RepeatAndSelectDpEvent(
        gaussian, part['runs'], part['shape']
      )
    parts.append(dp_event.SelfComposedDpEvent(one, part['count']))
  return dp_event.ComposedDpEvent(parts)


def theirs(case: dict) -> dict:
  """Epsilon of dp_accounting 0.6: by 'pld', or by 'rdp' where that refuses.

  Under REPLACE_ONE its 'rdp' takes the noise relative to the change that a
  replaced row makes, other than its 'pld' and this library, which take it
  relative to the norm of a row: half of that.
  """
  import dp_accounting
  from dp_accounting import dp_event
  from dp_accounting.pld import pld_privacy_accountant
  from dp_accounting.rdp import rdp_privacy_accountant

  relation = dp_accounting.NeighboringRelation[case['relation']]
  for name, cls in (
    ('pld', pld_privacy_accountant.PLDAccountant),
    ('rdp', rdp_privacy_accountant.RdpAccountant),
  ):
    halved = name == 'rdp' and case['relation'] == 'REPLACE_ONE'
    made = event(
      case,
      dp_event,
      dp_event.ZCDpEvent,
      dp_event.TruncatedSubsampledGaussianDpEvent,
      0.5 if halved else 1.0,
    )
    try:
      accountant = cls(neighboring_relation=relation)
      if accountant.supports(made):
        epsilon = float(accountant.compose(made).get_epsilon(case['delta']))
        if math.isfinite(epsilon):
          return {name: epsilon}
    except (ValueError, MemoryError, OverflowError):
      continue
  return {}


def floor(case: dict):
  """An epsilon that is too small: dp_accounting 0.6, losses rounded down.

  Args:
    case: One of `cases`.

  Returns:
    A float; None for events that this is not known of.
  """
  import dp_accounting
  from dp_accounting.pld import privacy_loss_distribution as losses

  if any(
    part['kind'].replace('poisson_', '') not in ('gaussian', 'laplace')
    for part in case['parts']
  ):
    return None
  relation = dp_accounting.NeighboringRelation[case['relation']]
  total = losses.identity(value_discretization_interval=1e-4)
  for part in case['parts']:
    options = {
      'sampling_prob': part.get('probability', 1.0),
      'pessimistic_estimate': False,
      'value_discretization_interval': 1e-4,
      'use_connect_dots': False,
    }
    if 'gaussian' in part['kind']:
      one = losses.from_gaussian_mechanism(
        part['noise'], neighboring_relation=relation, **options
      )
    elif relation is dp_accounting.NeighboringRelation.REPLACE_ONE:
      return None
    else:
      one = losses.from_laplace_mechanism(part['noise'], **options)
    total = total.compose(one.self_compose(part['count']))
  return float(total.get_epsilon_for_delta(case['delta']))


def ours(case: dict) -> tuple[float, str]:
  """Our `best_epsilon`, and the accountant that it comes from."""
  import dp_accounting
  from dp_accounting import dp_event

  from tfdpflows import accounting

  made = event(
    case,
    dp_event,
    accounting.ZCDpEvent,
    accounting.TruncatedSubsampledGaussianDpEvent,
  )
  relation = dp_accounting.NeighboringRelation[case['relation']]
  return tuple(accounting.best_epsilon(made, case['delta'], relation))


def main() -> None:
  """Writes the values of dp_accounting 0.6, or prints ours beside them."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--write')
  parser.add_argument('--share', type=float, default=0.05)
  parser.add_argument('--first', type=int, default=0)
  parser.add_argument('--last', type=int, default=_NUMBER)
  args = parser.parse_args()
  if args.write:
    rows = []
    for case in cases()[args.first : args.last]:
      row = {**case, 'theirs': theirs(case)}
      least = floor(case)
      if least is not None:
        row['floor'] = least
      if row['theirs']:
        rows.append(json.dumps(row))
        text = ',\n'.join(rows)
        pathlib.Path(args.write).write_text(f'[\n{text}\n]\n')
    return
  ratios = []
  for i, case in enumerate(json.loads(PATH.read_text())):
    if not args.first <= i < args.last:
      continue
    best = min(case['theirs'].values())
    epsilon, name = ours(case)
    ratio = epsilon / best if best else 1.0
    ratios.append(ratio)
    if abs(ratio - 1) > args.share:
      print(i, f'{ratio:.4f}', name, epsilon, json.dumps(case), flush=True)
  print(len(ratios), 'events, ratios', min(ratios), 'to', max(ratios))


if __name__ == '__main__':
  main()
