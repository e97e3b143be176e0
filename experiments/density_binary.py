"""What the binaries of the density experiments share: flags, data, the loop.

A binary fits densities to splits of a data set, over methods and epsilons. It
says how one of its runs is made and how it prints; the rest is here.
"""

from __future__ import annotations

import dataclasses
import time

from absl import flags, logging

from experiments import density_datasets, flag_values
from experiments.results_file import ResultsFile
from tfdpflows._keras import keras

_SMOKE_ROWS = 600
_SMOKE_RECIPE = {
  'epochs': 1.0,
  'num_blocks': 1,
  'hidden_units': (8,),
  'init_layers': 1,
}


def load(dataset, smoke):
  """Returns the `Rows` of a data set; only 600 for a smoke test.

  Args:
    dataset: one of `density_datasets.NAMES`.
    smoke: whether to see only that all parts work together.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
  """
  rows = density_datasets.load(dataset)
  return dataclasses.replace(rows, x=rows.x[:_SMOKE_ROWS]) if smoke else rows


def overrides(smoke):
  """Returns values of a `Recipe` that make a smoke test quick, or none."""
  return _SMOKE_RECIPE if smoke else {}


def results_file(output, keys, rows, smoke, **header):
  """Returns the `ResultsFile` of an experiment on one data set.

  Args:
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    keys: names of the values that tell one run from another.
    rows: the `Rows`.
    smoke: whether it is a smoke test.
    **header: what else all runs have in common.

  Raises:
    ValueError: if `output` holds other runs.
  """
  common = {
    'dataset': rows.name,
    'scaling': rows.scaling,
    'note': rows.note,
    'delta': rows.delta,
    'smoke': smoke,
  }
  return ResultsFile(output, {**common, **header}, keys)


def sweep(results, cases, one_run, again=False):
  """Makes the runs that a file does not hold yet.

  Args:
    results: a `ResultsFile`.
    cases: dicts of the values of its keys.
    one_run: function of these values, by name, that returns a JSON-able dict.
    again: whether to make also those that the file holds.
  """
  for case in cases:
    if results.has(**case) and not again:
      continue
    start = time.perf_counter()
    found = one_run(**case)
    seconds = time.perf_counter() - start
    results.add({**case, **found, 'seconds': seconds})
    logging.info('%s: %.0f s', case, seconds)
    keras.backend.clear_session()


def define_flags(dataset='lifesci', epsilons=(1.0,)):
  """Defines the flags of an experiment on one data set, with these defaults."""
  flags.DEFINE_enum('dataset', dataset, density_datasets.NAMES, 'Data set.')
  flags.DEFINE_list('splits', ['0'], 'Which of ten splits, comma-separated.')
  define_common_flags(epsilons)


def define_common_flags(epsilons):
  """Defines the flags that every density experiment has."""
  flags.DEFINE_list('epsilon', list(map(str, epsilons)), 'Budgets.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')


def main(argv, run, lines, names=('dataset', 'splits')):
  """Runs what the flags ask for and prints it.

  Args:
    argv: what absl left of the command line.
    run: function of the flags, by name (`epsilons` for `--epsilon`).
    lines: function of what it returns, that yields lines to print.
    names: flags besides those that every density experiment has.
  """
  options = flag_values.read(argv)
  arguments = {name: getattr(options, name) for name in names}
  if 'splits' in arguments:
    arguments['splits'] = [int(split) for split in arguments['splits']]
  try:
    results = run(
      **arguments,
      epsilons=[float(epsilon) for epsilon in options.epsilon],
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for line in lines(results):
    print(line)
