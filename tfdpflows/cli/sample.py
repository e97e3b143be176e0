"""`tfdpflows sample`: synthetic rows from a model."""

from __future__ import annotations

import time

from tfdpflows.cli import files
from tfdpflows.cli.command import Command, UsageError


def _define(options):
  options.section('Model')
  files.add_model_dir(options)
  options.section('Rows')
  options.number(
    'num_rows',
    'How many rows to draw, 1 or more.',
    whole=True,
    required=True,
    lower_bound=1,
  )
  options.number(
    'seed',
    'Makes the rows reproducible; privacy does not depend on it.',
    whole=True,
    lower_bound=0,
  )
  options.text(
    'condition',
    'A column and the value that it is to have in every row, such as sex=f; '
    'nothing behind the = for a missing value. May be given several times.',
    repeated=True,
    metavar='COLUMN=VALUE',
  )
  files.add_output(
    options,
    'File to write: CSV, compressed if its name ends in .gz; or by its name '
    'Parquet (.parquet), Arrow (.arrow, .feather) or TFRecord (.tfrecord).',
  )


def _conditions(given):
  conditions = {}
  for text in given or ():
    name, equals, value = text.partition('=')
    if not equals:
      raise UsageError(
        f'--condition={text} has no =; write the column, =, and its value.'
      )
    if name in conditions:
      raise UsageError(f'There are two conditions on column {name!r}.')
    conditions[name] = value or None
  return conditions


def _run(values):
  conditions = _conditions(values.condition)
  files.check_model(values.model_dir)
  files.check_output(values.output, values.overwrite)
  from tfdpflows.tabular import sinks

  sinks.check_format(values.output)
  synthesizer = files.load_model(values.model_dir)
  start = time.perf_counter()
  if conditions:
    table = synthesizer.sample(
      values.num_rows, seed=values.seed, conditions=conditions
    )
    frames = [table]
  else:
    frames = synthesizer.sample_frames(values.num_rows, seed=values.seed)
  rows = sinks.write_frames(frames, values.output, synthesizer.schema)
  seconds = time.perf_counter() - start
  print(f'Wrote {rows:,} rows to {values.output} in {seconds:.1f} s.')
  if conditions:
    print(_how(table.attrs['conditions']))


def _how(found):
  if found['method'] == 'exact':
    return 'They are rows of the model that meet the conditions.'
  return (
    'They were resampled to meet the conditions, which is approximate; they '
    f'are worth about {found["effective_rows"]:.0f} independent rows.'
  )


COMMAND = Command(
  name='sample',
  summary='Draw synthetic rows from a model',
  description="""
    Draws rows with the columns, types, ranges and categories of the schema.
    However many are drawn, they cost no privacy beyond that of the fit.

    With conditions, rows of the model that meet them are kept. Where those are
    too rare, and for values of continuous columns, rows are made to meet them
    and resampled by importance; which of the two it was is printed.
  """,
  example="""
    tfdpflows sample --model_dir=model --num_rows=10000 --output=synthetic.csv
  """,
  define=_define,
  run=_run,
)
