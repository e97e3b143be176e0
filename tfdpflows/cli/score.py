"""`tfdpflows score`: the log-density of rows under a model."""

from __future__ import annotations

from tfdpflows.cli import files
from tfdpflows.cli.command import Command


def _define(options):
  options.section('Data')
  files.add_model_dir(options)
  options.text(
    'input',
    "CSV file of rows to score, with the columns of the model's schema.",
    metavar='FILE',
    required=True,
  )
  files.add_out_of_range(
    options,
    'clip',
    'What to do with a value that the schema does not allow: score the row as '
    'if a number were the nearest bound, and what is no number or no category '
    'missing, and say how many there are (clip); or stop and name its row and '
    'column (error).',
  )
  files.add_output(
    options,
    'CSV file to write: one column, log_prob, in the order of the rows.',
  )


def _run(values):
  files.check_model(values.model_dir)
  files.check_output(values.output, values.overwrite)
  import numpy as np
  import pandas as pd

  from tfdpflows.tabular.table import write_table

  synthesizer = files.load_model(values.model_dir)
  schema, counts = synthesizer.schema, {}
  if values.out_of_range == 'clip':
    cells, table = files.read_any_rows(values.input, schema, fitting=False)
    counts = schema.count_clipped(cells)
  else:
    table = files.read_rows(values.input, schema, 'error', fitting=False)
  log_prob = synthesizer.log_prob(table)
  write_table(pd.DataFrame({'log_prob': log_prob}), values.output)
  print(
    f'Wrote {len(table):,} log-densities to {values.output}: '
    f'{np.mean(log_prob):.4f} nats per row on average.'
  )
  files.print_clipped(counts, len(table), 'were clipped')
  print(
    'They are computed from these rows without noise: where the rows are '
    'private, so\nare the scores.'
  )


COMMAND = Command(
  name='score',
  summary='Score rows by their log-density',
  description="""
    Writes log p(row) in nats for every row of a CSV file: high for rows like
    those that the model learned from, low for unusual ones. Probabilities
    count for categories, integers, dates and numbers with decimals, densities
    in the units of the column for other numbers.

    Scores of private rows are private themselves: no noise is added.
  """,
  example="""
    tfdpflows score --model_dir=model --input=some.csv --output=log_prob.csv
  """,
  define=_define,
  run=_run,
)
