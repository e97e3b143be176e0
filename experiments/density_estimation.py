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

from experiments import density_binary, density_fitting

# By name: kind of model and accountant; None is not private.
METHODS = {
  'full Gaussian': ('gaussian', None),
  'MAF': ('affine', None),
  'spline flow': ('spline', None),
  'full Gaussian, pld': ('gaussian', 'pld'),
  'DP-MoG, pld': ('mog', 'pld'),
  'DP-MoG, zcdp': ('mog', 'zcdp'),
  'DP-MoG, rdp': ('mog', 'rdp'),
  'DP-NF, pld': ('dp_nf', 'pld'),
  'DP-NF, rdp': ('dp_nf', 'rdp'),
  'DP-NF, gdp': ('dp_nf', 'gdp'),
}
BASELINES = ('full Gaussian', 'full Gaussian, pld')
KEYS = ('method', 'epsilon', 'split')
EPSILONS = (0.2, 0.5, 1.0, 2.0, 4.0)
# Recipes of the flows that are not private.
CEILINGS = {
  'affine': density_fitting.Recipe(
    prior_components=1, hidden_units=(256,), epochs=60.0, learning_rate=3e-3
  ),
  'spline': density_fitting.Recipe(
    prior_components=1,
    transform='spline',
    num_blocks=2,
    hidden_units=(128, 128),
    activation='relu',
    epochs=40.0,
    learning_rate=3e-3,
  ),
}


def run(
  dataset,
  *,
  methods=tuple(METHODS),
  epsilons=EPSILONS,
  splits=(0,),
  output=None,
  smoke=False,
  recipe=None,
):
  """Fits and scores methods over epsilons and splits.

  Args:
    dataset: one of `density_datasets.NAMES`.
    methods: names in `METHODS`; the `BASELINES` are always run as well.
    epsilons: budgets of the private methods.
    splits: which of ten splits of cross-validation.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to use 600 rows and tiny models, to see that all parts work
      together; the numbers then mean little.
    recipe: dict that replaces values of `Recipe.for_rows`.

  Returns:
    A JSON-able dict with the `scaling`, the `runs`, and a `summary`.

  Raises:
    ValueError: for an unknown name, or if `output` holds other runs.
    FileNotFoundError: if the data set needs the shared folder.
  """
  unknown = sorted(set(methods) - set(METHODS))
  if unknown:
    raise ValueError(f'Unknown methods {unknown}; there are {list(METHODS)}.')
  rows = density_binary.load(dataset, smoke)
  overrides = {**(recipe or {}), **density_binary.overrides(smoke)}
  results = density_binary.results_file(
    output, KEYS, rows, smoke, recipe=overrides
  )
  wanted = [m for m in METHODS if m in methods or m in BASELINES]
  density_binary.sweep(
    results,
    cases(wanted, epsilons, splits),
    lambda **case: one_run(rows, overrides=overrides, **case),
  )
  return {**results.content, 'summary': summarize(results.runs)}


def cases(methods, epsilons, splits):
  """Returns what to run: dicts of the values of `KEYS`.

  Methods that are not private are run once for a split, with epsilon `None`.

  #### Example

  >>> for case in cases(['MAF', 'DP-NF, pld'], [1.0], [0]):
  ...   print(case)
  {'method': 'MAF', 'epsilon': None, 'split': 0}
  {'method': 'DP-NF, pld', 'epsilon': 1.0, 'split': 0}
  """
  return [
    {'method': method, 'epsilon': epsilon, 'split': split}
    for epsilon in (None, *epsilons)
    for split in splits
    for method in methods
    if _is_private(method) == (epsilon is not None)
  ]


def label(run):
  """Returns how a run is named where it is printed."""
  return f'{run["method"]}, epsilon {run["epsilon"]}, split {run["split"]}'


def one_run(rows, method, epsilon, split, overrides=None):
  """Fits one method to one split.

  Args:
    rows: `density_datasets.Rows`.
    method: name in `METHODS`.
    epsilon: budget, `None` for a method that is not private.
    split: which of the ten splits; also the seed.
    overrides: dict that replaces values of `Recipe.for_rows`.

  Returns:
    A JSON-able dict: mean test `log_prob` and its `standard_error`; for DP-NF
    also that of the `flow` without the prior mixed in, and what was spent by
    several accountants (`epsilons`).
  """
  kind, accountant = METHODS[method]
  train, test = rows.split(split)
  fit, recipe = fit_method(train, method, epsilon, rows.delta, split, overrides)
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


def fit_method(x, method, epsilon, delta, seed, overrides=None):
  """Fits a method to rows.

  Args:
    x: rows `[n, d]` in the unit ball.
    method: see `one_run`.
    epsilon: see `one_run`.
    delta: of the budget.
    seed: of everything.
    overrides: see `one_run`.

  Returns:
    `(fit, recipe)`: a `Fit`, and the `Recipe` of its flow or `None`.
  """
  kind, accountant = METHODS[method]
  overrides = overrides or {}
  pricing = {
    'epsilon': epsilon,
    'delta': delta,
    'accountant': accountant,
    'seed': seed,
  }
  if kind == 'dp_nf':
    recipe = density_fitting.Recipe.for_rows(x.shape, epsilon, **overrides)
    return density_fitting.fit_dp_nf(x, recipe=recipe, **pricing), recipe
  if accountant is not None:
    components = 1 if kind == 'gaussian' else None
    fit = density_fitting.fit_dp_mog(x, num_components=components, **pricing)
    return fit, None
  if kind == 'gaussian':
    gaussian = density_fitting.full_gaussian(x)
    distribution = density_fitting.to_distribution(gaussian)
    return density_fitting.Fit(distribution), None
  recipe = dataclasses.replace(CEILINGS[kind], **overrides)
  return density_fitting.fit_flow(x, recipe, seed=seed), recipe


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
  for method, epsilon in dict.fromkeys(
    (r['method'], r['epsilon']) for r in runs
  ):
    of = lambda m, e: {
      r['split']: r['log_prob']
      for r in runs
      if (r['method'], r['epsilon']) == (m, e)
    }
    same = [r for r in runs if (r['method'], r['epsilon']) == (method, epsilon)]
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


def _is_private(method):
  return METHODS.get(method, (None, None))[1] is not None


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
    list(METHODS),
    'Name of a method, repeated; all by default.',
  )


if __name__ == '__main__':
  _define_flags()
  app.run(main)
