"""Flags of files and folders, and checks of them before any work."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import TYPE_CHECKING, Optional

from tfdpflows.cli import quiet
from tfdpflows.cli.command import Options, UsageError

if TYPE_CHECKING:
  import pandas as pd

  from tfdpflows.tabular.code_store import CodeStore
  from tfdpflows.tabular.schema import TableSchema
  from tfdpflows.tabular.synthesizer import TabularSynthesizer


def add_model_dir(
  options: Options, text: str = 'Folder that `tfdpflows fit` wrote.'
) -> None:
  """Adds `--model_dir`, of a model that exists, to the options of a command."""
  options.text('model_dir', text, metavar='FOLDER', required=True)


def add_output(options: Options, text: str) -> None:
  """Adds `--output` and `--overwrite` to the options of a command."""
  options.text('output', text, metavar='FILE', required=True)
  options.switch('overwrite', 'Replace the output where it exists already.')


def add_out_of_range(
  options: Options, default: str = 'error', text: Optional[str] = None
) -> None:
  """Adds `--out_of_range` to the options of a command."""
  options.choice(
    'out_of_range',
    ['error', 'clip'],
    text
    or 'What to do with a value that the schema does not allow: stop and name '
    'its row and column (error), which reveals that row; or move a number to '
    'the nearest bound, take what is no number or no category for missing, and '
    'refuse no row, whatever it holds (clip).',
    default=default,
    metavar='clip|error',
  )


def print_clipped(counts: dict[str, int], num_rows: int, what: str) -> None:
  """Prints how many values of which columns the schema does not allow."""
  if not counts:
    return
  width = max(map(len, counts))
  print(f'Values that the schema of the model does not allow {what}:')
  for name, count in counts.items():
    print(f'  {name:<{width}}  {count:,} ({count / num_rows:.2%} of the rows)')


def check_output(path: str, overwrite: bool) -> None:
  """Refuses an `--output` that cannot be written, before any work is done."""
  if not path or os.path.isdir(path):
    raise UsageError(f'--output={path} is no file: give the name of one.')
  check_place(path, overwrite)


def check_place(path: str, overwrite: bool) -> None:
  """Refuses a file or folder that cannot be made or replaced."""
  if os.path.lexists(path) and not overwrite:
    raise FileExistsError(f'{path} exists: pass --overwrite to replace it.')
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'The folder {folder} does not exist: make it first.'
    )
  if not os.access(folder, os.W_OK):
    raise PermissionError(f'The folder {folder} does not allow writing.')


def read_rows(
  path: str,
  schema: TableSchema,
  out_of_range: str,
  fitting: bool = True,
  units: bool = False,
) -> pd.DataFrame:
  """Reads a CSV file and validates it; errors name the file, column and row.

  Args:
    path: path of the file.
    schema: `TableSchema`.
    out_of_range: value of the flag `--out_of_range`.
    fitting: see `TableSchema.validate`.
    units: whether the result has the identifiers of the privacy unit.
  """
  from tfdpflows.tabular.table import read_table

  table = read_table(path, schema, out_of_range)
  return _validated(path, table, schema, out_of_range, fitting, units)


def read_any_rows(
  path: str, schema: TableSchema, fitting: bool = True
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Reads a CSV file, of which no row is refused.

  Args:
    path: path of the file.
    schema: `TableSchema`.
    fitting: see `TableSchema.validate`.

  Returns:
    The cells as text, and what 'clip' makes of them.
  """
  from tfdpflows.tabular.table import read_table

  # Cells of another type would be missing before anybody has counted them.
  as_text = dataclasses.replace(
    schema,
    constraints=(),
    fields=[
      dataclasses.replace(f, decimals=None, from_data=('type',)) for f in schema
    ],
  )
  table = read_table(path, as_text, 'clip')
  return table, _validated(path, table, schema, 'clip', fitting, False)


def read_private(
  paths: list[str],
  schema: TableSchema,
  out_of_range: str,
  partial: str,
  *,
  resume: bool,
  overwrite: bool,
  max_rows_per_unit: int | None,
) -> pd.DataFrame | CodeStore:
  """Reads the table of a fit; errors name the file, column and row.

  Args:
    paths: values of the flag `--input`.
    schema: `TableSchema`.
    out_of_range: value of the flag `--out_of_range`.
    partial: the folder of the fit.
    resume: whether it goes on with what was interrupted.
    overwrite: whether to drop that.
    max_rows_per_unit: value of the flag.

  Returns:
    What was read and validated: of a schema with marks all rows, else their
    codes.
  """
  from tfdpflows.tabular import code_store
  from tfdpflows.tabular.sources import Source

  source = Source.of(paths, schema.dialect)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # The fit itself gives them.
    if not schema.is_draft:
      return code_store.stored(
        source,
        schema,
        out_of_range,
        partial,
        resume=resume,
        overwrite=overwrite,
        max_rows_per_unit=max_rows_per_unit,
      )
  table = source.to_frame(schema, out_of_range)
  name = ', '.join(paths)
  units = schema.privacy_unit is not None
  return _validated(name, table, schema, out_of_range, True, units)


def _validated(name, table, schema, out_of_range, fitting, units):
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # The fit itself gives them.
      found = schema.validate(table, out_of_range, fitting=fitting)
      if not units:
        return found
      ids = schema.unit_ids(table, out_of_range)
      return found.assign(**{schema.privacy_unit: ids.to_numpy()})
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from error


def load_model(model_dir: str) -> TabularSynthesizer:
  """Returns the `TabularSynthesizer` in a folder; imports TensorFlow."""
  with quiet.importing():
    from tfdpflows.tabular.synthesizer import TabularSynthesizer

  return TabularSynthesizer.load(model_dir)


def check_model(model_dir: str) -> None:
  """Refuses a `--model_dir` that is no saved model."""
  if os.path.isdir(model_dir):
    return
  if os.path.exists(model_dir):
    raise UsageError(
      f'--model_dir={model_dir} is no folder: give one that `tfdpflows fit` '
      'wrote.'
    )
  partial = partial_dir(model_dir)
  if os.path.isdir(partial):
    raise FileNotFoundError(
      f'{model_dir} does not exist, but {partial} holds a fit that was not '
      'finished: run its `tfdpflows fit` command again with --resume.'
    )
  raise FileNotFoundError(
    f'{model_dir} does not exist: make it with `tfdpflows fit`, or correct '
    '--model_dir.'
  )


def partial_dir(model_dir: str) -> str:
  """Returns the folder where a fit works until its model is complete."""
  return os.path.normpath(model_dir) + '.partial'


def rows_dir(partial: str) -> str:
  """Returns the folder of rows that a fit reads before it begins."""
  return f'{partial}.rows'
