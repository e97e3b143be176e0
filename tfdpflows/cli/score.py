"""`tfdpflows score`: the log-density of rows under a model."""

from __future__ import annotations

import collections
import sys

from tfdpflows.cli import files
from tfdpflows.cli.command import Command

_SCORE = 'log_prob'


def _define(options):
  options.section('Data')
  files.add_model_dir(options)
  text = "Rows to score, with the columns of the model's schema: {}"
  files.add_rows(options, 'input', text)
  files.add_out_of_range(
    options,
    'clip',
    'What to do with a value that the schema does not allow: score the row '
    'with numbers moved to the nearest bound and other values taken as '
    'missing, and print how many there are (clip); or stop and name its row '
    'and column (error).',
  )
  files.add_output(
    options,
    'File to write, of the formats that are read, by its name: one column, '
    'log_prob, in the order of the rows.',
  )


def _written():
  """The schema of what is written."""
  from tfdpflows.tabular.field import Field
  from tfdpflows.tabular.schema import TableSchema

  end = sys.float_info.max
  return TableSchema([Field(_SCORE, 'number', minimum=-end, maximum=end)])


def _run(values):
  files.check_model(values.model_dir)
  reads = {'model_dir': values.model_dir, 'input': values.input}
  files.check_output(values.output, values.overwrite, reads)
  import pandas as pd

  from tfdpflows.tabular import row_blocks, sinks

  sinks.check_format(values.output)
  synthesizer = files.load_model(values.model_dir)
  schema, how = synthesizer.schema, values.out_of_range
  source = files.source_of(values.input, schema)
  counts, total = collections.Counter(), 0.0

  def tables():
    for block in row_blocks.blocks(source, schema, how):
      if how == 'clip':
        counts.update(schema.count_clipped(block.cells))
      yield block.validated(schema, how)

  def scores():
    nonlocal total
    for log_prob in synthesizer.log_prob_frames(tables()):
      total += log_prob.sum(dtype=float)
      yield pd.DataFrame({_SCORE: log_prob})

  # No more than a part of the table is in memory.
  rows = sinks.write_frames(scores(), values.output, _written())
  print(
    f'Wrote {rows:,} log-densities to {values.output}: '
    f'{total / rows:.4f} nats per row on average.'
  )
  # As in the schema, whichever was met first.
  counts = {name: counts[name] for name in schema.names if name in counts}
  files.print_clipped(counts, rows, 'were clipped')
  print(
    'They are computed from these rows without noise: where the rows are '
    'private, so\nare the scores.'
  )


COMMAND = Command(
  name='score',
  summary='Score rows by their log-density',
  description="""
    Writes log p(row) in nats for every row of a table: high for rows like those
    that the model learned from, low for unusual ones. Probabilities count for
    categories, integers, dates and numbers with decimals, densities in the
    units of the column for other numbers. Any number of rows is scored in the
    memory of a few.

    Scores of private rows are private themselves: no noise is added.
  """,
  example="""
    tfdpflows score --model_dir=model --input=some.csv --output=log_prob.csv
  """,
  define=_define,
  run=_run,
)
