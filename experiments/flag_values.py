"""The flags of a binary, and those that several have alike."""

from __future__ import annotations

from absl import app, flags


def read(argv):
  """Returns the flags of absl.

  Args:
    argv: what absl left of the command line.

  Raises:
    app.UsageError: if that is more than the name of the program.
  """
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  return flags.FLAGS


def define(name, values, epsilons):
  """Defines the flags of `run_all`.

  Args:
    name: of the flag that says of what runs are made.
    values: its default.
    epsilons: default of the budgets.
  """
  flags.DEFINE_list(name, values, 'Of what to make runs, comma-separated.')
  flags.DEFINE_list('epsilon', [str(e) for e in epsilons], 'Budgets.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_string('output', None, 'JSON file of results.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


def run_all(argv, run, name):
  """Runs what the flags ask for.

  Args:
    argv: what absl left of the command line.
    run: function of the values of the flag `name`, and by name of `epsilons`,
      `seeds`, `output` and `smoke`.
    name: see `define`.
  """
  options = read(argv)
  run(
    getattr(options, name),
    epsilons=[float(epsilon) for epsilon in options.epsilon],
    seeds=[int(seed) for seed in options.seeds],
    output=options.output,
    smoke=options.smoke,
  )
