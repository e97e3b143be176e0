r"""Test log-likelihood of private densities over epsilon: table 1, figure 1.

Every method is fitted to the same splits; a run is one method, epsilon and
split, and a file goes on where it stopped:

    python -m experiments.density_estimation --dataset=lifesci \
      --epsilon=0.2,0.5,1,2,4 --splits=0,1,2,3,4,5,6,7,8,9 \
      --output=experiments/results/density_lifesci.json

Log-likelihoods are in nats per row, in the units that the data set's scaling
gives; beside each stand those of a full Gaussian, private and not.
Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from absl import app, flags

from experiments import density_binary, density_fitting, density_methods
from experiments.results_file import grouped

BASELINES = ('full Gaussian', 'full Gaussian, pld')
EPSILONS = (0.2, 0.5, 1.0, 2.0, 4.0)


def run(
  dataset, methods=tuple(density_methods.METHODS), epsilons=EPSILONS, **options
):
  """Fits and scores methods over epsilons and splits.

  Args:
    dataset: see `density_methods.run`.
    methods: names in `METHODS`; the `BASELINES` are always run as well.
    epsilons: budgets of the private methods.
    **options: see `density_methods.run`.

  Returns:
    A JSON-able dict with the `scaling`, the `runs`, and a `summary`.

  Raises:
    ValueError: for an unknown name, or if the output holds other runs.
    FileNotFoundError: if the data set needs the shared folder.
  """
  known = density_methods.METHODS
  unknown = sorted(set(methods) - set(known))
  if unknown:
    raise ValueError(f'Unknown methods {unknown}; there are {list(known)}.')
  wanted = [m for m in known if m in methods or m in BASELINES]
  content = density_methods.run(
    one_run, dataset, wanted, epsilons=epsilons, **options
  )
  return {**content, 'summary': summarize(content['runs'])}


def one_run(rows, method, epsilon, split, overrides=None):
  """Fits one method to one split.

  Args:
    rows: `density_datasets.Rows`.
    method: see `density_methods.fit`.
    epsilon: see `density_methods.fit`.
    split: which of the ten splits; also the seed.
    overrides: see `density_methods.fit`.

  Returns:
    A JSON-able dict: mean test `log_prob` and its `standard_error`; for DP-NF
    also that of the `flow` without the prior mixed in, and what was spent by
    several accountants (`epsilons`).
  """
  kind, accountant = density_methods.METHODS[method]
  train, test = rows.split(split)
  fit, recipe = density_methods.fit(
    train, method, epsilon, rows.delta, split, overrides
  )
  scores = fit.log_prob(test)
  found = {
    'seed': split,
    'log_prob': float(scores.mean()),
    'standard_error': float(scores.std(ddof=1) / math.sqrt(len(scores))),
    'train_rows': len(train),
    'test_rows': len(test),
  }
  if fit.flow is not None:
    alone = density_fitting.log_prob(fit.flow, test)
    found['flow'] = float(alone.mean())
    found['worst_row_of_flow'] = float(alone.min())
    found['recipe'] = dataclasses.asdict(recipe)
  if fit.ledger is not None:
    found['guarantee'] = 'asymptotic' if accountant == 'gdp' else 'upper_bound'
    # zCDP knows no sampling.
    names = ('pld', 'rdp', 'gdp') + (() if kind == 'dp_nf' else ('zcdp',))
    found['epsilons'] = fit.epsilons(rows.delta, names)
  if fit.plan is not None:
    found['noise_multiplier'] = fit.plan.noise_multiplier
    found['steps'] = fit.plan.steps
    found['expected_batch_size'] = fit.plan.sampler.expected_batch_size
  return found


def summarize(runs):
  """Returns the mean over splits of every method and epsilon.

  Args:
    runs: dicts as `one_run` makes them.

  Returns:
    A list of dicts: `method`, `epsilon`, number of `splits`, `log_prob` (mean),
    `std` over the splits (`None` for one), `seconds`, and, over the same
    splits, `full_gaussian` and `private_full_gaussian` where there are any.

  #### Example

  >>> runs = [{'method': 'MAF', 'epsilon': None, 'split': i, 'seconds': 1.,
  ...          'log_prob': float(i)} for i in range(3)]
  >>> summarize(runs)[0]['log_prob']
  1.0
  """
  summary = []
  groups = grouped(runs, 'method', 'epsilon')
  of = lambda *key: {r['split']: r['log_prob'] for r in groups.get(key, [])}
  for (method, epsilon), same in groups.items():
    values = of(method, epsilon)
    entry = {
      'method': method,
      'epsilon': epsilon,
      'splits': len(values),
      'log_prob': float(np.mean(list(values.values()))),
      'std': None,
      'seconds': float(np.sum([r['seconds'] for r in same])),
    }
    if len(values) > 1:
      entry['std'] = float(np.std(list(values.values()), ddof=1))
    for name, of_baseline in (
      ('full_gaussian', of(BASELINES[0], None)),
      ('private_full_gaussian', of(BASELINES[1], epsilon)),
    ):
      if values.keys() <= of_baseline.keys():
        entry[name] = float(np.mean([of_baseline[split] for split in values]))
    epsilons = [r['epsilons'] for r in same if 'epsilons' in r]
    if epsilons:
      entry['epsilons'] = {
        k: float(np.mean([e[k] for e in epsilons])) for k in epsilons[0]
      }
    flows = [r['flow'] for r in same if 'flow' in r]
    if flows:
      entry['flow'] = float(np.mean(flows))
    summary.append(entry)
  return summary


def _lines(results):
  yield f'{results["dataset"]}, delta {results["delta"]}: {results["scaling"]}'
  yield f'{results["note"]}'
  yield 'nats per row; full Gaussian in brackets: not private / private'
  for entry in results['summary']:
    brackets = ' / '.join(
      f'{entry[k]:.2f}' if k in entry else '-'
      for k in ('full_gaussian', 'private_full_gaussian')
    )
    yield (
      f'{entry["method"]:20} epsilon {entry["epsilon"] or "none":<5} '
      f'{entry["log_prob"]:8.3f} ({brackets}), {entry["splits"]} splits, '
      f'{entry["seconds"]:.0f} s'
    )


def main(argv):
  """Runs what the flags ask for and prints the summary."""
  names = ('dataset', 'splits', 'methods')
  density_binary.main(argv, run, _lines, names)


def _define_flags():
  density_binary.define_flags(epsilons=EPSILONS)
  flags.DEFINE_multi_string(
    'methods',
    list(density_methods.METHODS),
    'Name of a method, repeated; all by default.',
  )


if __name__ == '__main__':
  _define_flags()
  app.run(main)
