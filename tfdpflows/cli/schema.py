"""`tfdpflows schema`: a draft schema of a table."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tfdpflows.cli import files
from tfdpflows.cli.command import Command

if TYPE_CHECKING:
  from tfdpflows.tabular.schema import Field


def _define(options):
  options.section('Data')
  options.text(
    'input',
    'File to describe: CSV (UTF-8, commas, a header line), or by its name '
    'Parquet, Arrow, Feather or TFRecord. Of several that are alike give one.',
    metavar='FILE',
    required=True,
  )
  options.text(
    'privacy_unit',
    'Column with the identifier of whom to protect, such as person_id, if one '
    'has several rows. It is named in the schema and not described.',
    metavar='COLUMN',
  )
  files.add_output(options, 'JSON file to write.')


def _run(values):
  files.check_output(values.output, values.overwrite)
  from tfdpflows.tabular.schema import TableSchema
  from tfdpflows.tabular.sources import Source, file_format
  from tfdpflows.tabular.table import read_table

  if file_format(values.input) == 'csv':
    table = read_table(values.input)
  else:
    table = Source.of(values.input).to_frame()
  schema = TableSchema.draft(table, values.privacy_unit)
  schema.to_json(values.output, overwrite=values.overwrite)
  width = max(len(name) for name in schema.names)
  for field in schema:
    print(f'  {field.name:<{width}}  {describe_field(field)}')
  print(
    f'Wrote a draft for {len(schema)} columns to {values.output}.\n'
    'Types, ranges and categories were read off the data and are marked '
    '"fromData". Replace\nthem by what is publicly known and remove the marks: '
    'one row can decide whether a column\nlooks like integers. Then run\n'
    f'  tfdpflows fit --input={shlex.quote(values.input)} '
    f'--schema={shlex.quote(values.output)} --epsilon=1 --delta=1e-5 '
    + ('--max_rows_per_unit=4 ' if schema.privacy_unit is not None else '')
    + '--model_dir=model'
  )


def describe_field(field: Field) -> str:
  """Returns type and domain of a field in a few words."""
  if field.categories is not None:
    count = len(field.categories)
    shown = ', '.join(str(value) for value in field.categories[:4])
    domain = f'{count} values: {shown}{", ..." if count > 4 else ""}'
  else:
    domain = f'{field.minimum} to {field.maximum}'
  missing = '' if field.required else ', may be missing'
  return f'{field.type}, {domain}{missing}'


COMMAND = Command(
  name='schema',
  summary='Draft a schema from a CSV file',
  description="""
    Writes a JSON file in the vocabulary of Frictionless Table Schema: name,
    type, range or categories of every column, and whether it may be missing.

    A schema is public. What this command reads off the data is marked
    "fromData", types too, and fit refuses it until somebody who knows the data
    has replaced it by what may be known (ages 0 to 120, say, not 17 to 93) and
    has removed the marks; or until a part of epsilon is spent on it
    (--bounds_epsilon). Names of the columns count as public.
  """,
  example="""
    tfdpflows schema --input=people.csv --output=schema.json
  """,
  define=_define,
  run=_run,
)
