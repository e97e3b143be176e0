"""`tfdpflows schema`: a draft schema of a table."""

from __future__ import annotations

import shlex

from tfdpflows.cli import files
from tfdpflows.cli.command import Command


def _define(options):
  options.section('Data')
  options.text(
    'input',
    'File to describe: CSV with a header line, or by its name Parquet, Arrow, '
    'Feather or TFRecord. Of several that are alike give one.',
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
  options.section('How the file is written')
  options.text(
    'delimiter',
    'Character between the cells of a CSV file; by default that of comma, '
    'semicolon, tab and | which is most often in its header.',
    metavar='CHAR',
  )
  options.text(
    'encoding',
    'Encoding of a CSV file, such as cp1252; by default that of its byte order '
    'mark, or UTF-8.',
    metavar='NAME',
  )
  options.text(
    'decimal_char', 'Decimal point of numbers.', default='.', metavar='CHAR'
  )
  options.text(
    'group_char',
    'What separates groups of digits, such as the comma in 1,234.5.',
    metavar='CHAR',
  )
  options.switch(
    'bare_number',
    'Numbers stand alone. With --nobare_number what is around them is dropped, '
    'such as a currency or %.',
    default=True,
  )
  options.text(
    'missing_values',
    'What stands for a missing value, such as -99; may be given several times. '
    'By default an empty cell, NA, NaN and null.',
    repeated=True,
    metavar='TEXT',
  )


def _run(values):
  files.check_output(values.output, values.overwrite)
  from tfdpflows.tabular.dialect import COMMAS, MISSING, CellFormat, Dialect
  from tfdpflows.tabular.schema import TableSchema
  from tfdpflows.tabular.sources import Source, file_format

  dialect = COMMAS
  if file_format(values.input) == 'csv':
    delimiter = values.delimiter and values.delimiter.replace('\\t', '\t')
    dialect = Dialect.of_file(values.input, delimiter, values.encoding)
  cells = CellFormat(
    missing_values=tuple(values.missing_values or MISSING),
    decimal_char=values.decimal_char,
    group_char=values.group_char,
    bare_number=values.bare_number,
  )
  table = Source.of(values.input, dialect).to_frame()
  schema = TableSchema.draft(
    table, values.privacy_unit, dialect=dialect, cells=cells
  )
  schema.to_json(values.output, overwrite=values.overwrite)
  width = max(len(name) for name in schema.names)
  for field in schema:
    print(f'  {field.name:<{width}}  {_describe(field)}')
  if dialect != COMMAS:
    print(
      f'The file is {dialect.encoding} with {dialect.delimiter!r} between the '
      'cells, by its first\nbytes and its header, or as you said.'
    )
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


def _describe(field):
  if field.categories is not None:
    count = len(field.categories)
    shown = ', '.join(str(value) for value in field.categories[:4])
    domain = f'{count} values: {shown}{", ..." if count > 4 else ""}'
  else:
    domain = f'{field.minimum} to {field.maximum}'
  if field.decimals is not None:
    domain += f', {field.decimals} decimals'
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
