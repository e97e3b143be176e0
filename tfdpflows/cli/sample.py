"""`tfdpflows sample`: synthetic rows from a model."""

from __future__ import annotations

import math
import re
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
    'What a column is to have in every row: a value, such as sex=f, or an '
    'empty value after the = for a missing one; one of several, such as '
    "'city=Bonn|Ulm'; or a range, such as 'age>=65', with >, >=, < or <=. May "
    'be given several times.',
    repeated=True,
    metavar='COLUMN=VALUE',
  )
  files.add_output(
    options,
    'File to write: CSV, compressed if its name ends in .gz; or by its name '
    'Parquet (.parquet), Arrow (.arrow, .feather) or TFRecord (.tfrecord).',
  )


def _conditions(given):
  """Returns values by column, and the two ends of ranges by column."""
  values, ends = {}, {}
  for text in given or ():
    found = re.fullmatch(r'(.*?)(>=|<=|=|>|<)(.*)', text, re.DOTALL)
    if not found:
      raise UsageError(
        f'--condition={text} has no =, >=, <=, > or <; write the column, one '
        'of these, and a value.'
      )
    name, comparison, value = found.groups()
    side = comparison[0]
    if name in values or (name in ends and (side == '=' or side in ends[name])):
      raise UsageError(f'There are two conditions on column {name!r}.')
    if side == '=':
      values[name] = value.split('|') if '|' in value else value or None
    else:
      ends.setdefault(name, {})[side] = value, comparison.endswith('=')
  return values, ends


def _interval(schema, name, ends):
  """Returns the `pandas.Interval` between the ends of a range."""
  import pandas as pd

  from tfdpflows.tabular import row_filter

  if name not in schema.names:
    raise UsageError(
      f'There is a condition on column {name!r}; the model has '
      f'{", ".join(schema.names)}.'
    )
  field, numbers = schema[name], {'>': -math.inf, '<': math.inf}
  row_filter.check_has_ranges(field)
  # In the notation of the file, as values after = are.
  read = field.scale.count if field.is_temporal else field.cells.plain
  for side, (text, is_closed) in ends.items():
    try:
      numbers[side] = float(read(text))
    except (TypeError, ValueError) as error:
      is_no = f'is no {field.type}'
      if not field.is_temporal:
        is_no = f'is no number{row_filter.decimal_sign(field)}'
      raise UsageError(
        f'--condition={name}{side}{"=" * is_closed}{text} is a range, and '
        f'{text!r} {is_no}.'
      ) from error
  above, below = (ends.get(side, (None, True))[1] for side in '><')
  if not numbers['>'] <= numbers['<']:
    raise UsageError(f'--condition: no value of {name!r} meets both ends.')
  closed = {True: ('left', 'both'), False: ('neither', 'right')}[above][below]
  return pd.Interval(numbers['>'], numbers['<'], closed)


def _check_conditions(schema, conditions, ends):
  """Refuses conditions that the schema rules out."""
  from tfdpflows.tabular import row_filter

  of_many = {
    name: _interval(schema, name, found) for name, found in ends.items()
  }
  for name, value in conditions.items():
    if row_filter.is_filter(value):
      of_many[name] = value
    else:
      row_filter.validated(schema, name, value)
  row_filter.row_filter(schema, of_many)


def _run(values):
  conditions, ends = _conditions(values.condition)
  files.check_model(values.model_dir)
  reads = {'model_dir': values.model_dir}
  files.check_output(values.output, values.overwrite, reads)
  from tfdpflows.tabular import sinks

  sinks.check_format(values.output)
  schema = files.schema_of(values.model_dir)
  if schema is not None:
    _check_conditions(schema, conditions, ends)
  synthesizer = files.load_model(values.model_dir)
  for name, found in ends.items():
    conditions[name] = _interval(synthesizer.schema, name, found)
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
    print(_how(table.attrs['conditions'], rows))


def _how(found, num_rows):
  if found['method'] == 'exact':
    return 'They are rows of the model that meet the conditions.'
  # It counts the candidates that they were drawn from, which are more.
  worth = min(found['effective_rows'], num_rows)
  return (
    'They were resampled to meet the conditions, which is approximate; they '
    f'are worth about {worth:.0f} independent rows.'
  )


COMMAND = Command(
  name='sample',
  summary='Draw synthetic rows from a model',
  description="""
    Draws rows with the columns, types, ranges and categories of the schema.
    However many are drawn, they cost no privacy beyond that of the fit.

    With conditions, rows of the model that meet them are kept. Where those that
    have a value are too rare, and for values of continuous columns, rows are
    made to meet them and resampled by importance; which of the two it was is
    printed.
  """,
  example="""
    tfdpflows sample --model_dir=model --num_rows=10000 --output=synthetic.csv
  """,
  define=_define,
  run=_run,
)
