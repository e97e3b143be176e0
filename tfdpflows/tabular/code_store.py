"""The codes of a table on disk, read from a source in one pass.

A row is a record: one, two or four bytes for a column of cells, a float32 for a
continuous one. What `TableEncoder.encode` gives for the table in memory is what
is stored, to the last bit.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import hashlib
import json
import numbers
import os
import shutil
import stat
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from absl import logging

from tfdpflows import atomic
from tfdpflows.sampling import units
from tfdpflows.stored_rows import StoredRows
from tfdpflows.tabular import (
  constrained_rows,
  unit_order,
  values,
  work_directory,
)
from tfdpflows.tabular import schema as schemas
from tfdpflows.tabular.declared import check_informative
from tfdpflows.tabular.encoding import TableEncoder, encode_column
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.sources import (
  Chunk,
  Distinct,
  Part,
  Source,
  cells,
  num_rows,
  partition,
  wanted,
)

# The folder of the codes in that of a fit.
ROWS = 'rows'
_CODES, _IDS, _COUNTS, _STATE = 'codes', 'ids', 'counts', 'state.json'
_ORDERED = 'ordered'
# Changes when files of an earlier format cannot be read any more.
_FORMAT = 1
_DIGESTED = 1 << 22


class CodeStore(StoredRows):
  """The codes of a table, float32 `[n, d]`, in a file or in memory.

  Args:
    encoder: the `TableEncoder` of the columns.
    data: path of the file, or the bytes that would be in it.
    rows_per_unit: where units are protected, of which the rows stand together:
      how many of each there are.

  Attributes:
    path: of the file, or `None`.
    rows_per_unit: see above, or `None`.
  """

  dtype = np.dtype(np.float32)

  def __init__(
    self,
    encoder: TableEncoder,
    data: str | bytes | bytearray,
    rows_per_unit: np.ndarray | None = None,
  ):
    self.rows_per_unit = rows_per_unit
    self._record = record_dtype(encoder)
    self.path = data if isinstance(data, str) else None
    self._records = None
    if self.path is None:
      self._records = np.frombuffer(data, self._record)
      size = len(self._records)
    else:
      size = os.path.getsize(self.path) // self._record.itemsize
    self.shape = (size, len(encoder.columns))
    self.digest = self._digest()
    self._lock = None

  def __getitem__(self, which):
    if self._records is not None:
      found = self._records[which]
    elif isinstance(which, slice):
      start, stop, _ = which.indices(len(self))
      # Not mapped: pages that were read would count as memory.
      found = np.fromfile(
        self.path,
        self._record,
        max(stop - start, 0),
        offset=start * self._record.itemsize,
      )
    else:
      # Mapped anew for each batch, which lets go of the pages of the last.
      found = np.memmap(self.path, self._record, 'r')[which]
    # Columns are counted one by one.
    codes = np.empty(found.shape + (len(self._record),), np.float32, order='F')
    for i, name in enumerate(self._record.names):
      codes[..., i] = found[name]
    return codes

  def hold(self, lock: int) -> None:
    """Keeps a lock until `unlock`, or the store is moved or forgotten.

    Args:
      lock: from `lock_folder`.
    """
    self._lock = weakref.finalize(self, os.close, lock)

  def unlock(self) -> None:
    """Lets other fits read their rows to the folder."""
    if self._lock is not None:
      self._lock()

  def move(self, folder: str) -> None:
    """Moves the folder of the store to another name, in place of what is there.

    Nothing is done in memory, or where it is already.
    """
    if self.path is not None and os.path.dirname(self.path) != folder:
      shutil.rmtree(folder, ignore_errors=True)
      os.rename(os.path.dirname(self.path), folder)
      self.path = os.path.join(folder, os.path.basename(self.path))
    self.unlock()

  def discard(self, work_dir: str) -> None:
    """Removes the store, unless a fit has begun with it in a folder."""
    if self.path is None:
      return
    folder = os.path.dirname(self.path)
    if folder != os.path.join(work_dir, ROWS):
      shutil.rmtree(folder, ignore_errors=True)
    self.unlock()

  def _digest(self):
    digest = hashlib.sha256(repr(self._record).encode())
    if self.rows_per_unit is not None:
      digest.update(f'{len(self.rows_per_unit)} units'.encode())
      digest.update(self.rows_per_unit.tobytes())
    if self._records is not None:
      digest.update(self._records.view(np.uint8).data)
    else:
      with open(self.path, 'rb') as file:
        while part := file.read(_DIGESTED):
          digest.update(part)
    return np.frombuffer(digest.digest(), np.uint8)


def record_dtype(encoder: TableEncoder) -> np.dtype:
  """Returns the dtype of a row: a function of the public schema.

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([
  ...   Field('age', 'integer', minimum=0, maximum=99),
  ...   Field('wage', 'number', minimum=0, maximum=9)])
  >>> record_dtype(TableEncoder(schema)).itemsize
  5
  """
  kinds = []
  for column in encoder.columns:
    kind = np.float32
    if column.cell:
      kind = np.min_scalar_type(round(column.size) - 1)
    kinds.append(kind)
  return np.dtype([(f'{i}', kind) for i, kind in enumerate(kinds)])


def read(
  source: Source,
  schema: TableSchema,
  out_of_range: str,
  folder: str | None = None,
  max_rows_per_unit: int | None = None,
) -> CodeStore:
  """Validates and encodes a table in one pass, chunk by chunk.

  A pass that was interrupted, in a folder, goes on after the last file that it
  has read whole. Nothing is charged for it: it releases nothing.

  Where units are protected their rows are brought together afterwards, and
  those that are not used are dropped (`unit_order`).

  Args:
    source: the `Source`.
    schema: `TableSchema` without marks.
    out_of_range: see `TableSchema.validate`.
    folder: where to store the codes, private to the user; `None` for memory.
    max_rows_per_unit: largest number of rows of a unit, if the schema has one.

  Returns:
    The `CodeStore`.

  Raises:
    ValueError: for what `TableSchema.validate` refuses, naming file, row and
      column; then nothing is left in the folder.
    OSError: if a file cannot be read, or the store not be written; what was
      read is kept for another try.
  """
  encode = ChunkEncoder(schema, out_of_range)
  if folder is not None:
    make_private(folder)
    try:
      return _read_to_folder(source, encode, folder, max_rows_per_unit)
    except Exception as error:
      # A full disk, or one that cannot be reached, has a number.
      if not isinstance(error, OSError) or error.errno is None:
        shutil.rmtree(folder, ignore_errors=True)
      raise
  data, ids = bytearray(), bytearray()
  for part in source.parts:
    for records, of_rows in records_of(part, encode):
      data += records.tobytes()
      ids += of_rows.tobytes()
  encode.check(source)
  if schema.privacy_unit is None:
    return CodeStore(encode.encoder, data)
  records, counts = unit_order.in_memory(
    np.frombuffer(data, encode.dtype),
    np.frombuffer(ids, units.IDENTITY),
    max_rows_per_unit,
  )
  return CodeStore(encode.encoder, records.tobytes(), counts)


def _read_to_folder(source, encode, folder, max_rows):
  path = functools.partial(os.path.join, folder)
  known = facts(encode.schema, encode.out_of_range, max_rows)
  state = _state(folder)
  if state is None or state['facts'] != known or state['complete']:
    # What is complete, and of other files or damaged, is read again.
    state = {'facts': known, 'parts': [], 'complete': False}
  done = _done(state['parts'], source.parts)
  state['parts'] = state['parts'][:done]
  if done:
    encode.rows, encode.present = state['parts'][-1]['sums']
  # Before any code is written over: what is there is no longer what it was.
  _write_state(folder, state)
  with contextlib.ExitStack() as opened:
    files = [
      opened.enter_context(_continued(path(name), encode.rows, dtype))
      for name, dtype in ((_CODES, encode.dtype), (_IDS, encode.id_dtype))
    ]
    for number, part in enumerate(source.parts[done:], done + 1):
      for found in records_of(part, encode):
        for file, records in zip(files, found):
          file.write(records.tobytes())
      for file in files:
        file.flush()
        os.fsync(file.fileno())
      sums = [encode.rows, encode.present]
      state['parts'].append({'identity': part.identity, 'sums': sums})
      _write_state(folder, state)
      logging.log_every_n_seconds(
        logging.INFO,
        'Rows: %d of %d files read.',
        30,
        number,
        len(source.parts),
      )
  encode.check(source)
  if max_rows is not None:
    unit_order.on_disk(
      path(_CODES),
      path(_IDS),
      encode.dtype,
      max_rows,
      ordered=path(_ORDERED),
      counts=path(_COUNTS),
    )
  size = os.path.getsize(path(_file(max_rows)))
  state.update(complete=True, size=size)
  _write_state(folder, state)
  # Not before: a pass that goes on takes them for what it has written.
  os.unlink(path(_IDS))
  if max_rows is not None:
    os.unlink(path(_CODES))
  return _open(encode.encoder, folder, max_rows)


def _file(max_rows):
  """The name of the file that holds the codes in the end."""
  return _CODES if max_rows is None else _ORDERED


def lock_folder(folder: str) -> int:
  """Makes a folder, as `make_private`, and locks it against other processes.

  Returns:
    A descriptor. It holds the lock until it is closed.

  Raises:
    BlockingIOError: if another process or fit has it.
  """
  make_private(folder)
  lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
  try:
    atomic.lock(lock)
    if not os.path.samestat(os.fstat(lock), os.lstat(folder)):
      raise FileNotFoundError
  except OSError as error:
    os.close(lock)
    raise BlockingIOError(
      f'{folder} is in use by another fit, which reads its rows to it. Wait '
      'until that has ended, or choose another folder.'
    ) from error
  return lock


def remove(folder: str) -> None:
  """Removes a folder of rows, unless a fit is using it."""
  if os.path.isdir(folder):
    with contextlib.suppress(OSError):
      lock = lock_folder(folder)
      shutil.rmtree(folder, ignore_errors=True)
      os.close(lock)


def make_private(folder: str) -> None:
  """Makes a folder, or refuses one that others have made or can read."""
  os.makedirs(folder, mode=0o700, exist_ok=True)
  if not _is_private(folder):
    raise PermissionError(
      f'{folder} is there already, and is a link, of another user, or open to '
      'others. Remove it, or choose another folder.'
    )


def _is_private(folder):
  found = os.lstat(folder)
  return (
    stat.S_ISDIR(found.st_mode)
    and not found.st_mode & 0o077
    and found.st_uid == os.geteuid()
  )


@contextlib.contextmanager
def _continued(path, rows, dtype):
  """Opens a file of records behind the first rows of it."""
  size = rows * dtype.itemsize
  flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
  with open(os.open(path, flags, 0o600), 'r+b') as file:
    if os.path.getsize(path) < size:
      raise OSError(
        f'{path} is shorter than it was. Remove {os.path.dirname(path)}.'
      )
    file.truncate(size)
    file.seek(size)
    yield file


def _open(encoder, folder, max_rows):
  counts = None
  if max_rows is not None:
    path = os.path.join(folder, _COUNTS)
    counts = np.fromfile(path, unit_order.COUNT)
  return CodeStore(encoder, os.path.join(folder, _file(max_rows)), counts)


def stored(
  source: Source,
  schema: TableSchema,
  out_of_range: str,
  work_dir: str | None,
  *,
  resume: bool,
  overwrite: bool,
  max_rows_per_unit: int | None = None,
) -> CodeStore:
  """Returns the codes of a table for a fit that works in a folder.

  They are read into `work_dir + '.rows'`, and `CodeStore.move` is to take them
  into the folder once the fit has begun there. A fit that is resumed reads its
  files again only if they have changed, or its codes are gone.

  Args:
    source: see `read`, as the others that are not here, and the errors.
    work_dir: the folder, `None` for memory.
    resume: whether to go on with what was interrupted.
    overwrite: whether to drop it.

  Raises:
    FileExistsError: if there is a fit that was begun, without either. What was
      only read is gone on with anyway: nothing was spent on it.
    FileNotFoundError: if there is nothing to resume.
  """
  if work_dir is None:
    return read(source, schema, out_of_range, None, max_rows_per_unit)
  begun = os.path.join(work_dir, ROWS)
  folder = f'{os.path.normpath(work_dir)}.{ROWS}'
  if resume:
    work_directory.check_begun(work_dir, folder)
  elif not overwrite:
    work_directory.check_new(work_dir)
  lock = lock_folder(folder)
  try:
    found = None
    # A kill may have come before the codes were moved.
    for place in (begun, folder) if resume else (folder,):
      found = reopen(source, schema, out_of_range, place, max_rows_per_unit)
      if found is not None:
        break
    else:
      found = read(source, schema, out_of_range, folder, max_rows_per_unit)
    if os.path.dirname(found.path) == begun:
      # Of another try, which was read and never begun.
      shutil.rmtree(folder, ignore_errors=True)
  except BaseException:
    os.close(lock)
    raise
  found.hold(lock)
  return found


def of_chief(
  schema: TableSchema,
  out_of_range: str,
  folder: str,
  max_rows_per_unit: int | None = None,
) -> CodeStore:
  """Returns the codes that another process of the same fit has stored.

  Raises:
    ValueError: if there are none, or others than `read` would give.
  """
  found = reopen(None, schema, out_of_range, folder, max_rows_per_unit)
  if found is None:
    raise ValueError(
      f'{folder} does not hold the rows of this fit, as its chief has read '
      'them: all workers need the same arguments, and the same disk under the '
      'same path, as the same user.'
    )
  return found


def reopen(
  source: Source | None,
  schema: TableSchema,
  out_of_range: str,
  folder: str,
  max_rows: int | None = None,
) -> CodeStore | None:
  """Returns what `read` stored of the same files, `None` without such.

  Files are the same if their paths, sizes and times are; a table in no files
  has to be read again. Without a source they are not compared. The digest is
  that of what the store holds now.
  """
  state = _state(folder)
  if (
    state is None
    or not _is_private(folder)
    or not state['complete']
    or state['facts'] != facts(schema, out_of_range, max_rows)
  ):
    return None
  identities = [part['identity'] for part in state['parts']]
  if source is not None and source.identity != identities:
    return None
  path = os.path.join(folder, _file(max_rows))
  if not os.path.exists(path) or os.path.getsize(path) != state['size']:
    return None
  found = _open(TableEncoder(schema), folder, max_rows)
  if max_rows is not None and found.rows_per_unit.sum() != len(found):
    return None
  return found


def facts(
  schema: TableSchema, out_of_range: str, max_rows: int | None = None
) -> list:
  """Returns what codes depend on beside the files, a JSON-able list."""
  found = [_FORMAT, schema.to_dict(), out_of_range, max_rows]
  return json.loads(json.dumps(found))


def _state(folder):
  try:
    with open(os.path.join(folder, _STATE), 'rb') as file:
      return json.loads(file.read())
  except (FileNotFoundError, ValueError):
    return None


def _write_state(folder, state):
  path = os.path.join(folder, _STATE)
  atomic.write_file(path, json.dumps(state).encode(), private=True)


def _done(stored, parts):
  """How many of the first parts were read whole, and have not changed."""
  for number, (known, part) in enumerate(zip(stored, parts)):
    if part.identity is None or known['identity'] != part.identity:
      return number
  return min(len(stored), len(parts))


def records_of(
  part: Part, encode: ChunkEncoder
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields records and identities of a part; errors name its rows.

  Raises:
    ValueError: for what `TableSchema.validate` refuses, naming the part too.
  """
  if hasattr(part, 'records'):
    # It was encoded by others (`beam_encoding`).
    yield from part.records(encode)
    return
  first, names = 0, None
  clip = encode.out_of_range == 'clip'
  for chunk in part.read(wanted(encode.schema), clip):
    if names is None:
      check_columns(part, names := list(chunk), encode.schema)
    with of_part(part, first):
      if not num_rows(chunk):
        continue
      found = encode(chunk)
    first += encode.chunk_rows
    yield found


@contextlib.contextmanager
def of_part(part: Part, first: int = 0) -> Iterator[None]:
  """Begins the text of an error with the name of a part, and counts its rows.

  An error counts them from the row `first` on, a number from 0.
  """
  try:
    yield
  except values.CellError as error:
    error = error.in_file(part.line_of, first)
    raise ValueError(f'{part.name}: {error}') from None
  except ValueError as error:
    raise ValueError(f'{part.name}: {error}') from error


def check_columns(
  part: Part, names: list[str], schema: TableSchema, units: bool = True
) -> None:
  """Refuses a part with other columns than the schema, and its privacy unit.

  Without `units` it need not have the latter.

  Raises:
    ValueError: naming the part and the column.
  """
  with of_part(part):
    try:
      schema.check_columns(names)
      if units and schema.privacy_unit is not None:
        schema.check_unit(names)
    except ValueError as error:
      of_folders = partition(part.name).keys() - set(names)
      of_folders &= set(wanted(schema))
      if not of_folders:
        raise
      name = sorted(of_folders)[0]
      raise ValueError(
        f'{error} Folders named {name}=... are that column where the folder '
        'above them is given.'
      ) from None


class ChunkEncoder:
  """Validates and encodes the chunks of a table, one after the other.

  Attributes:
    schema: `TableSchema` without marks.
    out_of_range: see `TableSchema.validate`.
    encoder: the `TableEncoder`.
    dtype: of a record.
    id_dtype: of what names the unit of a row: `units.IDENTITY`, empty without
      units.
    rows: how many rows were stored so far.
    present: for each column, whether it had a value so far.
    chunk_rows: number of rows of the last chunk, also of those without a unit.
  """

  def __init__(self, schema: TableSchema, out_of_range: str):
    self.schema, self.out_of_range = schema, out_of_range
    self.encoder = TableEncoder(schema)
    self.dtype = record_dtype(self.encoder)
    self.id_dtype = np.dtype([])
    if schema.privacy_unit is not None:
      self.id_dtype = units.IDENTITY
    self.rows = self.chunk_rows = 0
    self.present = [False] * len(schema)

  def __call__(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Returns the records of a chunk and the identities of their units.

    Rows without a unit are left out.

    Raises:
      CellError: for the first cell of a column that is refused.
    """
    self.chunk_rows = num_rows(chunk)
    ids = np.empty(self.chunk_rows, self.id_dtype)
    if self.schema.privacy_unit is not None:
      known, ids = self._identities(chunk[self.schema.privacy_unit])
      if not known.all():
        chunk = {name: _some(c, known) for name, c in chunk.items()}
        ids = ids[known]
    records = np.empty(len(ids), self.dtype)
    if self.schema.constraints:
      # Which are about several cells of a row.
      columns = {
        field.name: self._validated(i, field, cells(chunk[field.name]))
        for i, field in enumerate(self.schema)
      }
      table = constrained_rows.meet(
        pd.DataFrame(columns), self.schema, self.out_of_range
      )
      for i in range(len(self.encoder.columns)):
        records[f'{i}'] = self.encoder.encode_part(i, table)
    else:
      for i, field in enumerate(self.schema):
        records[f'{i}'] = self._codes(i, field, chunk[field.name])
    self.rows += len(ids)
    return records, ids

  def check(self, source: Source) -> None:
    """Refuses a table of which nothing can be learned, once it is read."""
    self.schema.warn_of_columns()
    if not self.rows and self.schema.privacy_unit is not None:
      raise self.schema.no_identifiers()
    if not self.rows:
      raise source.no_rows()
    schemas.check_num_rows(self.rows, self.schema)
    if self.out_of_range != 'clip':
      for present, field in zip(self.present, self.schema):
        check_informative(present, field)

  def _codes(self, i, field, column):
    if isinstance(column, Distinct):
      return of_distinct(column, lambda cells: self._codes(i, field, cells))
    column = self._validated(i, field, column)
    return encode_column(column, field, self.encoder.columns[i])

  def _validated(self, i, field, column):
    column = self.schema.validate_column(field.name, column, self.out_of_range)
    self.present[i] = self.present[i] or bool(column.notna().any())
    return column

  def _identities(self, column):
    """Returns which rows have a unit, and its identity.

    Only of texts and whole numbers, which are the same in all kinds of files.
    """
    if not isinstance(column, Distinct):
      column = _distinct(column)

    def identities(cells):
      cells = known_everywhere(cells)
      texts = self.schema.unit_ids_of(cells, self.out_of_range)
      found = np.zeros(len(texts), [('known', bool), ('id', units.IDENTITY)])
      found['known'] = texts.notna()
      found['id'][found['known']] = units.identities(texts.dropna())
      return found

    found = of_distinct(column, identities)
    return found['known'], found['id']


def known_everywhere(cells: pd.Series) -> pd.Series:
  """Returns identifiers; `None` for those that files spell differently."""
  # As objects: not every text is one of the type that pandas would make of it.
  return pd.Series([_known(cell) for cell in cells], cells.index, object)


def _known(cell):
  if isinstance(cell, bool) or not isinstance(
    cell, (str, numbers.Integral, numbers.Real, decimal.Decimal)
  ):
    return None
  if isinstance(cell, (str, numbers.Integral)):
    return cell
  try:
    whole = int(cell)
  except (ValueError, OverflowError):
    return None  # Infinite, or no number.
  if isinstance(cell, (float, np.floating)) and values.is_rounded(cell):
    return cell  # Refused, or missing.
  return whole if cell == whole else None


def _distinct(column):
  """Returns a column of numbers or other cells as `Distinct`."""
  if isinstance(column.dtype, np.dtype) and column.dtype.kind in 'biuf':
    places, found = pd.factorize(column.to_numpy(), use_na_sentinel=False)
    # Floats of their type, not of Python's.
    kept = np.empty(len(found), object)
    kept[:] = list(found)
    return Distinct(kept, places)
  found = column.astype(object).to_numpy(object)
  return Distinct(found, np.arange(len(found)))


def _some(column, which):
  if isinstance(column, Distinct):
    return Distinct(column.values, column.places[which])
  return column[which].reset_index(drop=True)


def of_distinct(column: Distinct, function: Any) -> np.ndarray:
  """Returns a function of each cell, which is computed of equal ones once.

  It is one of a `pandas.Series`; each result depends on its cell alone.

  Raises:
    CellError: that of the function, for the row of the column.
  """
  used = np.bincount(column.places, minlength=len(column.values)) > 0
  try:
    found = function(pd.Series(column.values[used], dtype=object))
  except values.CellError:
    # Which row is the first.
    numbers, first = np.unique(column.places, return_index=True)
    order = np.argsort(first)
    try:
      function(pd.Series(column.values[numbers[order]], dtype=object))
    except values.CellError as error:
      row = first[order][error.row]
      raise values.CellError(error.column, row, error.problem) from None
    raise
  whole = np.zeros(len(used), found.dtype)
  whole[used] = found
  return whole[column.places]
