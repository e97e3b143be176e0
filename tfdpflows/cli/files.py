"""Flags of files and folders, and checks of them before any work."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from absl import logging

from tfdpflows.cli import quiet
from tfdpflows.cli.command import Options, UsageError

if TYPE_CHECKING:
  import pandas as pd

  from tfdpflows.tabular.code_store import CodeStore
  from tfdpflows.tabular.draft_rows import DraftRows
  from tfdpflows.tabular.schema import TableSchema
  from tfdpflows.tabular.sources import Source
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


def check_output(path: str, overwrite: bool, reads: Mapping[str, Any]) -> None:
  """Refuses an `--output` that cannot be written, before any work is done.

  Nor may it replace what the command `reads`: files, patterns and folders, or
  `None`, by their flag.
  """
  if os.path.isdir(path):
    raise UsageError(f'--output={path} is a folder: give the name of a file.')
  if os.path.exists(path) and not os.path.isfile(path):
    # Not even to overwrite: a device would become a file.
    raise UsageError(
      f'--output={path} is a device, pipe or socket: give the name of a file.'
    )
  check_place(path, overwrite)
  if not os.path.exists(path):
    return
  for flag, read in reads.items():
    files = () if read is None else _files_of(flag, read)
    if any(_is_or_holds(file, path) for file in files):
      raise UsageError(
        f'--output={path} is read too, by --{flag}: give another file.'
      )


def _is_or_holds(read, path):
  """Returns whether what is read is the file of a path, or its folder."""
  if os.path.isdir(read):
    folder = os.path.join(os.path.realpath(read), '')
    return os.path.realpath(path).startswith(folder)
  return os.path.exists(read) and os.path.samefile(read, path)


def _files_of(flag, read):
  if flag in ('model_dir', 'compare', 'ledger'):
    return [read] if isinstance(read, str) else read
  from tfdpflows.tabular.sources import Source

  return [part.name for part in Source.of(read).parts]


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


# What `--input` and its like take, as a part of a sentence.
ROWS = (
  'a CSV file (with a header line; compressed if its name ends in .gz) or a '
  '.parquet, .arrow, .feather or .tfrecord file; a pattern such as '
  '"2026-*.csv", or a folder of such files. May be given several times.'
)


def add_rows(
  options: Options, name: str, text: str, required: bool = True
) -> None:
  """Adds a flag for files of rows; the help has `ROWS` at its braces."""
  text = text.format(ROWS)
  options.text(name, text, metavar='FILE', repeated=True, required=required)


def source_of(paths: Sequence[str], schema: TableSchema) -> Source:
  """Returns the `Source` of the values of a flag such as `--input`."""
  from tfdpflows.tabular.sources import Source

  return Source.of(list(paths), schema.dialect)


def read_private(
  flags: Any, schema: TableSchema, partial: str
) -> pd.DataFrame | CodeStore | DraftRows:
  """Reads and validates the table of a fit; errors name file, column and row.

  The flags are those of the fit, `partial` is its folder. Returns the codes of
  the rows or, of a schema with marks, what reads them again.
  """
  from tfdpflows.tabular import code_store, draft_rows, values

  paths, out_of_range = flags.input, flags.out_of_range
  source = source_of(paths, schema)
  if len(source.parts) > 1:
    shown = ', '.join(part.name for part in source.parts[:4])
    more = ', ...' * (len(source.parts) > 4)
    logging.info('Rows: of %d files, %s%s.', len(source.parts), shown, more)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # The fit itself gives them.
    if not schema.is_draft:
      return code_store.stored(
        source,
        schema,
        out_of_range,
        partial,
        resume=flags.resume,
        overwrite=flags.overwrite,
        max_rows_per_unit=flags.max_rows_per_unit,
      )
    table = draft_rows.of_source(source, schema, out_of_range)
    if isinstance(table, draft_rows.DraftRows):
      return table
    try:
      found = schema.validate(table, out_of_range)
      if schema.privacy_unit is None:
        return found
      ids = schema.unit_ids(table, out_of_range)
    except values.CellError as error:
      # Of several files the rows are counted through.
      if len(source.parts) == 1:
        error = error.in_file(source.parts[0].line_of)
      raise ValueError(f'{", ".join(paths)}: {error}') from None
    except ValueError as error:
      raise ValueError(f'{", ".join(paths)}: {error}') from error
  return found.assign(**{schema.privacy_unit: ids.to_numpy()})


def load_model(model_dir: str) -> TabularSynthesizer:
  """Returns the `TabularSynthesizer` in a folder; imports TensorFlow."""
  # Before TensorFlow is imported, which takes long.
  from tfdpflows.tabular import model_directory

  model_directory.find_model(model_dir)
  with quiet.importing():
    from tfdpflows.tabular.synthesizer import TabularSynthesizer

  return TabularSynthesizer.load(model_dir)


def schema_of(model_dir: str) -> Optional[TableSchema]:
  """Returns the schema of a model; `None` where there is none to be read."""
  path = os.path.join(model_dir, 'schema.json')
  if not os.path.exists(path):
    return None
  from tfdpflows.tabular.schema import TableSchema

  return TableSchema.from_json(path)


def check_target(target: Optional[str], schema: TableSchema, of: str) -> None:
  """Refuses a `--target` that is no column of a schema, which `of` names."""
  if target is not None and target not in schema.names:
    raise UsageError(
      f'--target={target} is no column of {of}; it has '
      f'{", ".join(map(repr, schema.names))}.'
    )


def check_model(model_dir: str, flag: str = 'model_dir') -> None:
  """Refuses a folder, which a flag names, that is no saved model."""
  if os.path.isdir(model_dir):
    return
  if os.path.exists(model_dir):
    raise UsageError(
      f'--{flag}={model_dir} is no folder: give one that `tfdpflows fit` wrote.'
    )
  partial = partial_dir(model_dir)
  if os.path.isdir(partial):
    from tfdpflows.tabular import work_directory

    if work_directory.is_search(partial):
      raise FileNotFoundError(
        f'{model_dir} does not exist: '
        + work_directory.NO_RESUMING_A_SEARCH.format(partial)
      )
    raise FileNotFoundError(
      f'{model_dir} does not exist, but {partial} holds a fit that was not '
      'finished: run its `tfdpflows fit` command again with --resume.'
    )
  raise FileNotFoundError(
    f'{model_dir} does not exist: make it with `tfdpflows fit`, or correct '
    f'--{flag}.'
  )


def partial_dir(model_dir: str) -> str:
  """Returns the folder where a fit works until its model is complete."""
  return os.path.normpath(model_dir) + '.partial'


def rows_dir(partial: str) -> str:
  """Returns the folder of rows that a fit reads before it begins."""
  return f'{partial}.rows'
