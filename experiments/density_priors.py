r"""What a prior and a private initialization are worth to DP-NF: table 2.

Every variant has the same flow, epochs and budget; a private prior or private
initialization is paid out of the same budget.

    python -m experiments.density_priors --dataset=pinwheel --epsilon=1 \
      --splits=0,1,2 --output=experiments/results/density_priors_pinwheel.json

The public prior comes from as many public points as `--public_rows` says: for
a generated data set they are made anew, for another one they are rows that are
declared public and that nothing is trained or tested on. Seeds make the results
reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
from absl import app, flags, logging

from experiments import density_datasets, density_fitting
from experiments.results_file import ResultsFile
from tfdpflows._keras import keras
from tfdpflows.models.gaussian_mixture import GaussianMixture

# By name: where the prior comes from, and values of the `Recipe`.
VARIANTS = {
  'none, identity start': ('wide', {'prior_weight': 0.0}),
  'none, DP-NF-INIT': ('wide', {'prior_weight': 0.0, 'init_share': 0.1}),
  'public Gaussian': ('public', {'prior_components': 1}),
  'private Gaussian': (
    'private',
    {'prior_components': 1, 'prior_share': 0.1},
  ),
  'private mixture': (
    'private',
    {'prior_components': None, 'prior_share': 0.4},
  ),
}
_SMOKE_ROWS = 600


def run(
  dataset='pinwheel',
  *,
  variants=tuple(VARIANTS),
  epsilons=(1.0,),
  splits=(0,),
  public_rows=500,
  output=None,
  smoke=False,
  command=None,
):
  """Fits every variant over epsilons and splits.

  Args:
    dataset: one of `density_datasets.NAMES`.
    variants: names in `VARIANTS`.
    epsilons: budgets.
    splits: which of ten splits of cross-validation.
    public_rows: number of rows of the public prior.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to use 600 rows and tiny models.
    command: command line to note in the results.

  Returns:
    A JSON-able dict with the `runs`.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs.
  """
  rows = density_datasets.load(dataset)
  overrides = {}
  if smoke:
    overrides = {'epochs': 1.0, 'num_blocks': 2, 'hidden_units': (8,)}
  header = {
    'dataset': dataset,
    'scaling': rows.scaling,
    'delta': rows.delta,
    'public_rows': public_rows,
    'smoke': smoke,
  }
  results = ResultsFile(output, header, ('variant', 'epsilon', 'split'))
  x, public = _public_part(rows, public_rows)
  x = x[:_SMOKE_ROWS] if smoke else x
  for epsilon in epsilons:
    for split in splits:
      train, test = (x[part] for part in density_datasets.split(len(x), split))
      for variant in variants:
        if results.has(variant=variant, epsilon=epsilon, split=split):
          continue
        source, values = VARIANTS[variant]
        recipe = density_fitting.Recipe.for_rows(
          train.shape, epsilon, **{'prior_components': 1, **values, **overrides}
        )
        fit = density_fitting.fit_dp_nf(
          train,
          epsilon=epsilon,
          delta=rows.delta,
          recipe=recipe,
          prior=_prior(source, public),
          seed=split,
        )
        found = {
          'variant': variant,
          'epsilon': epsilon,
          'split': split,
          'log_prob': float(fit.log_prob(test).mean()),
          'flow': float(density_fitting.log_prob(fit.flow, test).mean()),
          'full_gaussian': float(
            density_fitting.full_gaussian(train).log_prob(test).mean()
          ),
          'noise_multiplier': fit.plan.noise_multiplier,
          'epsilon_spent': fit.ledger.epsilon(),
          'recipe': dataclasses.asdict(recipe),
          'seconds': fit.seconds,
        }
        results.add(found, command)
        logging.info('%s: %.3f nats', variant, found['log_prob'])
        keras.backend.clear_session()
  return results.content


def _public_part(rows, public_rows):
  """Returns the private and the public rows."""
  if rows.name in density_datasets.GENERATED:
    rng = np.random.default_rng(12345)
    return rows.x, density_datasets.generate(rows.name, public_rows, rng)
  order = np.random.default_rng(12345).permutation(len(rows.x))
  return rows.x[order[public_rows:]], rows.x[order[:public_rows]]


def _prior(source, public):
  if source == 'private':
    return None
  if source == 'public':
    return density_fitting.full_gaussian(public)
  # The standard normal distribution, which is what a flow has by itself.
  d = public.shape[1]
  return GaussianMixture(np.ones(1), np.zeros([1, d]), np.eye(d)[None])


def main(argv):
  """Runs what the flags ask for and prints the log-likelihoods."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  options = flags.FLAGS
  try:
    results = run(
      options.dataset,
      epsilons=[float(epsilon) for epsilon in options.epsilon],
      splits=[int(split) for split in options.splits],
      public_rows=options.public_rows,
      output=options.output,
      smoke=options.smoke,
      command=sys.orig_argv if hasattr(sys, 'orig_argv') else sys.argv,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  print(f'{results["dataset"]}: {results["scaling"]}')
  for found in results['runs']:
    print(
      f'{found["variant"]:22} epsilon {found["epsilon"]:g}, split '
      f'{found["split"]}: {found["log_prob"]:.3f} nats per row; full Gaussian, '
      f'not private: {found["full_gaussian"]:.3f}'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'pinwheel', density_datasets.NAMES, 'Data set.')
  flags.DEFINE_list('epsilon', ['1'], 'Budgets.')
  flags.DEFINE_list('splits', ['0'], 'Which of ten splits, comma-separated.')
  flags.DEFINE_integer('public_rows', 500, 'Rows of the public prior.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
