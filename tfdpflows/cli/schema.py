"""`tfdpflows schema`: a draft schema of a table."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tfdpflows.cli import files
from tfdpflows.cli.command import Command, UsageError

if TYPE_CHECKING:
  from tfdpflows.tabular.field import Field


# Characters of a name of a column in what is printed.
_LONGEST = 40


def _define(options):
  options.section('Data')
  files.add_rows(
    options,
    'input',
    'Rows to describe: {} All of them are in memory: of many that are alike '
    'give one.',
  )
  options.text(
    'privacy_unit',
    'Column with the identifier of whom to protect, such as person_id, if one '
    'has several rows. It is named in the schema and not described.',
    metavar='COLUMN',
  )
  options.text(
    'columns',
    'Column to describe; may be given several times. By default all. What is '
    'left out is not learned, and fit takes files that have it.',
    repeated=True,
    metavar='COLUMN',
  )
  options.text(
    'drop', 'Column to leave out, likewise.', repeated=True, metavar='COLUMN'
  )
  options.text(
    'identifier',
    'Column that is not described, and of which synthetic rows get new values, '
    "such as 'id=P{:06d}' for P000001 and so on. May be given several times.",
    repeated=True,
    metavar='COLUMN=TEXT',
  )
  options.text(
    'overrides',
    'CSV file of what is public: name, type, minimum, maximum, enum (a|b), '
    'required, decimals, unit, format, timezone, decimalChar, groupChar, '
    'bareNumber, trueValues, falseValues, missingValues. It is filled in, and '
    'not marked.',
    metavar='FILE',
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
    'What stands for a missing value, such as -99; may be given several times, '
    'and an empty value after the = is an empty cell. In place of an empty '
    'cell, NA, NaN and null, which are meant by default.',
    repeated=True,
    metavar='TEXT',
  )
  options.text(
    'date_format',
    'How dates are written, such as %d.%m.%Y; by default as in 2026-11-25.',
    metavar='FORMAT',
  )


def _identifiers(given):
  found = {}
  for text in given or ():
    name, sign, template = text.partition('=')
    if not sign or name in found:
      raise UsageError(
        f'--identifier={text} has no = or is there twice; write the column, =, '
        'and a text with {} for the number of the row.'
      )
    found[name] = template
  return found


def _run(values):
  reads = {'input': values.input}
  files.check_output(values.output, values.overwrite, reads)
  from tfdpflows.tabular import drafting
  from tfdpflows.tabular.dialect import MISSING, CellFormat

  source, dialect, is_text = _source(values)
  cells = CellFormat(
    missing_values=tuple(values.missing_values or MISSING),
    decimal_char=values.decimal_char,
    group_char=values.group_char,
    bare_number=values.bare_number,
  )
  table = _read(source)
  names = list(map(str, table.columns))
  if is_text and values.delimiter is not None:
    _warn_of_delimiter(names, values.delimiter)
  numbers = [name for name in names if _is_number(name)]
  if numbers:
    print(
      f'Warning: {len(numbers)} of {len(names)} columns have a number '
      f'for a name ({", ".join(numbers[:4])}). Names are public: if the file '
      'begins with\na row and not with names, add a line of names first.'
    )
  overrides = {}
  if values.overrides is not None:
    overrides = drafting.read_overrides(values.overrides)
  schema, findings = drafting.draft(
    table,
    values.privacy_unit,
    columns=values.columns or (),
    drop=values.drop or (),
    overrides=overrides,
    dialect=dialect,
    cells=cells,
    date_format=values.date_format,
    identifiers=_identifiers(values.identifier),
  )
  if schema is None:
    _print_findings(findings)
    raise UsageError(
      f'No column of {", ".join(values.input)} can be described: see what is '
      'printed.'
    )
  schema.to_json(values.output, overwrite=values.overwrite)
  _print_schema(schema, findings, dialect, values)


def _source(values):
  """Returns the `Source`, its `Dialect`, and whether it has text files."""
  from tfdpflows.tabular.dialect import COMMAS, Dialect
  from tfdpflows.tabular.sources import Source, file_format

  source = Source.of(values.input)
  texts = [p.name for p in source.parts if file_format(p.name) == 'csv']
  if not texts:
    return source, COMMAS, False
  delimiter = values.delimiter and values.delimiter.replace('\\t', '\t')
  dialect = Dialect.of_file(texts[0], delimiter, values.encoding)
  return Source.of(values.input, dialect), dialect, True


def _read(source):
  """Returns the rows; errors name flags, as there is no schema yet."""
  try:
    table = source.to_frame()
  except ValueError as error:
    text = re.sub(
      r'in the schema \("encoding": "(.*?)"\)', r'(--encoding=\1)', str(error)
    )
    text = re.sub(
      r'in the schema \("dialect": {"delimiter": "(.*?)"}\)',
      r"(--delimiter='\1')",
      text,
    )
    raise UsageError(text) from error
  if not len(table):
    raise UsageError(str(source.no_rows()))
  return table


def _print_schema(schema, findings, dialect, values):
  """Prints what was written, and what to do next."""
  from tfdpflows.tabular.dialect import COMMAS

  width = max(len(_shown(name)) for name in schema.names)
  for field in schema:
    print(f'  {_shown(field.name):<{width}}  {describe_field(field)}')
  if dialect != COMMAS:
    print(
      f'The file is {dialect.encoding}, with {dialect.delimiter!r} between the '
      'cells.'
    )
  _print_findings(findings)
  out = [finding.column for finding in findings if not finding.is_drafted]
  what = 'draft' if schema.is_draft else 'schema'
  print(f'Wrote a {what} for {len(schema)} columns to {values.output}.')
  if out:
    names = ' '.join(f'--drop={shlex.quote(name)}' for name in out)
    print(
      f'{len(out)} {"is" if len(out) == 1 else "are"} not in it, and fit '
      'refuses a file with columns that are not. Decide on\neach; to leave '
      f'them out, run this again with\n  {names}'
    )
  if schema.is_draft:
    print(
      'Types, ranges and categories were read off the data and are marked '
      '"fromData". Replace\nthem by what is publicly known and remove the '
      'marks, or fill them in from a file of what\nis public (--overrides): '
      'one row can decide whether a column looks like integers.'
    )
  inputs = ' '.join(f'--input={shlex.quote(path)}' for path in values.input)
  of_units = '' if schema.privacy_unit is None else '--max_rows_per_unit=4 '
  print(
    'Then run\n'
    f'  tfdpflows fit {inputs} '
    f'--schema={shlex.quote(values.output)} --epsilon=1 --delta=1e-5 '
    f'{of_units}--model_dir=model'
  )


def _warn_of_delimiter(names, delimiter):
  """Warns of one column whose name looks like those of several."""
  from tfdpflows.tabular.table import likely_delimiter

  other = likely_delimiter(names, delimiter.replace('\\t', '\t'))
  if other is not None:
    shown = other.replace('\t', '\\t')
    print(
      f'Warning: with --delimiter={shlex.quote(delimiter)} the table '
      f'has one column, {names[0]!r}.\nIf these are several, pass '
      f'--delimiter={shlex.quote(shown)}.'
    )


def _is_number(name):
  try:
    float(name)
  except ValueError:
    return False
  return True


def _shown(name):
  """A name in one line, of which a table of names has room for all others."""
  name = ' '.join(name.split())
  return name if len(name) <= _LONGEST else f'{name[: _LONGEST - 3]}...'


def _print_findings(findings):
  """Prints what somebody has to decide, as one table."""
  if not findings:
    return
  rows = [('column', 'what there is', 'what to do')]
  rows += [
    (_shown(f.column), f.problem + ' (drafted)' * f.is_drafted, f.fix)
    for f in findings
  ]
  widths = [max(len(row[i]) for row in rows) for i in range(2)]
  print('To decide:')
  for name, problem, fix in rows:
    print(f'  {name:<{widths[0]}}  {problem:<{widths[1]}}  {fix}'.rstrip())


def describe_field(field: Field) -> str:
  """Returns type and domain of a field in a few words."""
  if field.categories is not None:
    count = len(field.categories)
    shown = ', '.join(str(value) for value in field.categories[:4])
    domain = f'{count} values: {shown}{", ..." if count > 4 else ""}'
  else:
    domain = f'{field.minimum} to {field.maximum}'
  if field.decimals is not None:
    domain += f', decimals: {field.decimals}'
  missing = '' if field.required else ', may be missing'
  return f'{field.type}, {domain}{missing}'


COMMAND = Command(
  name='schema',
  summary='Draft a schema from a table',
  description="""
    Writes a JSON file in the vocabulary of Frictionless Table Schema: name,
    type, range or categories of every column, and whether it may be missing.

    A schema is public. What this command reads off the data is marked
    "fromData", types too, and fit refuses it until somebody who knows the data
    has replaced it by what may be known (ages 0 to 120, say, not 17 to 93) and
    has removed the marks; or until a part of epsilon is spent on it
    (--bounds_epsilon). Names of the columns count as public.

    Columns that cannot be described, such as identifiers and free text, are
    left out and listed, with what to do.
  """,
  example="""
    tfdpflows schema --input=people.csv --output=schema.json
  """,
  define=_define,
  run=_run,
)
