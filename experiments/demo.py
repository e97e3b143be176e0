"""The whole way on real rows: schema, fit, sample and report.

    make demo

The table is that of the RAND Health Insurance Experiment, 20,190 person-years
that come with statsmodels. Each step is the command that a user would type and
is printed before it runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time

from absl import app, flags

from experiments import datasets, flag_values
from tfdpflows import cli


def run(output_dir, *, epsilon=1.0, delta=1e-5, num_rows=None, seed=None):
  """Runs the demonstration.

  Args:
    output_dir: folder to write; made if it does not exist, and files of the
      demonstration in it are replaced.
    epsilon: privacy budget of the fit.
    delta: probability with which epsilon may not hold.
    num_rows: synthetic rows to draw; as many as were learned from if `None`.
    seed: as for `tfdpflows fit`.

  Returns:
    The seconds that each command took, by its name.

  Raises:
    RuntimeError: if a command failed.
  """
  os.makedirs(output_dir, exist_ok=True)
  target = datasets.write_files('randhie', output_dir)

  def path(name):
    return os.path.join(output_dir, name)

  with open(path('train.csv'), encoding='utf-8') as file:
    num_train = sum(1 for _ in file) - 1
  for leftover in (path('model'), path('model.partial')):
    shutil.rmtree(leftover, ignore_errors=True)
  print(
    f'{num_train:,} rows to learn from are in {path("train.csv")}; the rows of '
    f'other people are kept aside in {path("holdout.csv")}.\n'
  )
  seconds = {}

  def step(words, name, **arguments):
    command = [name]
    for key, value in arguments.items():
      if value is not None:
        command.append(f'--{key}' if value is True else f'--{key}={value}')
    print(f'# {words}\n$ tfdpflows {shlex.join(command)}', flush=True)
    start = time.perf_counter()
    code = cli.main(command)
    seconds[name] = time.perf_counter() - start
    if code:
      raise RuntimeError(f'tfdpflows {name} ended with code {code}.')
    print(f'({seconds[name]:.0f} s)\n', flush=True)

  step(
    'A draft of the schema, every type and range marked as read off the data.',
    'schema',
    input=path('train.csv'),
    output=path('draft.json'),
    overwrite=True,
  )
  print(
    '# What the documentation of the experiment says about the columns is '
    'public;\n# schema.json holds that instead of the draft.\n'
  )
  step(
    'A model with differential privacy.',
    'fit',
    input=path('train.csv'),
    schema=path('schema.json'),
    epsilon=epsilon,
    delta=delta,
    target=target,
    model_dir=path('model'),
    seed=seed,
  )
  step(
    'Synthetic rows.',
    'sample',
    model_dir=path('model'),
    num_rows=num_rows or num_train,
    output=path('synthetic.csv'),
    seed=seed,
    overwrite=True,
  )
  step(
    'The synthetic rows beside real ones that the model never saw.',
    'report',
    model_dir=path('model'),
    real=path('holdout.csv'),
    synthetic=path('synthetic.csv'),
    target=target,
    output=path('report.html'),
    overwrite=True,
  )
  return seconds


def main(argv):
  """Runs the demonstration with the flags of the command line."""
  values = flag_values.read(argv)
  seconds = run(
    values.output_dir,
    epsilon=values.epsilon,
    delta=values.delta,
    num_rows=values.num_rows,
    seed=values.seed,
  )
  print(
    f'Done in {sum(seconds.values()):.0f} s. Open '
    f'{os.path.join(values.output_dir, "report.html")} in a browser; the rows '
    f'are in {os.path.join(values.output_dir, "synthetic.csv")}.'
  )


if __name__ == '__main__':
  flags.DEFINE_string('output_dir', 'demo', 'Folder to write.')
  flags.DEFINE_float('epsilon', 1.0, 'Privacy budget of the fit.')
  flags.DEFINE_float('delta', 1e-5, 'Probability with which it may not hold.')
  flags.DEFINE_integer('num_rows', None, 'Synthetic rows to draw.')
  flags.DEFINE_integer('seed', None, 'Makes it reproducible, and not private.')
  app.run(main)
