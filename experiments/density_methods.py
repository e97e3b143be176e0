"""The methods that the density experiments compare, and their runs."""

from __future__ import annotations

import dataclasses
import functools

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
KEYS = ('method', 'epsilon', 'split')
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
  one_run,
  dataset,
  methods,
  *,
  epsilons=(1.0,),
  splits=(0,),
  output=None,
  smoke=False,
  **header,
):
  """Makes the runs of methods over epsilons and splits.

  Args:
    one_run: function of `rows` (`density_datasets.Rows`), `method`, `epsilon`,
      `split` and `overrides` (see `fit`), that returns a JSON-able dict.
    dataset: one of `density_datasets.NAMES`.
    methods: names in `METHODS`, or others that `one_run` knows.
    epsilons: budgets of the private methods.
    splits: which of ten splits of cross-validation.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to use 600 rows and tiny models, to see that all parts work
      together; the numbers then mean little.
    **header: what else all runs have in common.

  Returns:
    A JSON-able dict with the `scaling` and the `runs`.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs.
  """
  rows = density_binary.load(dataset, smoke)
  results = density_binary.results_file(output, KEYS, rows, smoke, **header)
  one_run = functools.partial(
    one_run, rows, overrides=density_binary.overrides(smoke)
  )
  density_binary.sweep(results, cases(methods, epsilons, splits), one_run)
  return results.content


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


def fit(x, method, epsilon, delta, seed, overrides=None):
  """Fits a method to rows.

  Args:
    x: rows `[n, d]` in the unit ball.
    method: name in `METHODS`.
    epsilon: budget, `None` for a method that is not private.
    delta: of the budget.
    seed: of everything.
    overrides: dict that replaces values of the `Recipe`.

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
    return (
      density_fitting.fit_dp_mog(x, num_components=components, **pricing),
      None,
    )
  if kind == 'gaussian':
    gaussian = density_fitting.full_gaussian(x)
    distribution = density_fitting.to_distribution(gaussian)
    return density_fitting.Fit(distribution), None
  recipe = dataclasses.replace(CEILINGS[kind], **overrides)
  return density_fitting.fit_flow(x, recipe, seed=seed), recipe


def _is_private(method):
  return METHODS.get(method, (None, None))[1] is not None
