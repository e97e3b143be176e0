"""Brings the rows of each unit together, those that are used, out of core.

Rows are first distributed to files by the unit's hash, so that a file holds all
rows of some units and fits in memory. In each the rows that `sampling.Units`
would use are chosen. Then they are written unit by unit, in the order in which
the units first appear in the table: the number of a unit, and so the batches
that it joins, are those of the table in memory.
"""

from __future__ import annotations

import os
import shutil

import numpy as np

from tfdpflows.sampling import units

# Rows that are read, or units that are written, at one time.
_BLOCK = 1 << 16
# Rows of a file of the distribution; with what is computed of them they take a
# hundred times as many bytes.
_ROWS_PER_FILE = 1 << 21
_MOST_FILES = 512
COUNT = np.dtype(np.uint16)  # Of the rows of a unit, at most 1,000.


def in_memory(
  records: np.ndarray, ids: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the records that are used, unit by unit, and how many of each unit.

  Args:
    records: of rows, `[n]`.
    ids: `units.IDENTITY` of their units, `[n]`.
    most: largest number of rows of a unit.
  """
  first, counts, rows = units.chosen_rows(np.arange(len(ids)), ids, most)
  order = np.argsort(first)
  found = _runs(np.cumsum(counts) - counts, counts, order)
  return records[rows[found]], counts[order].astype(COUNT)


def on_disk(
  codes: str,
  ids: str,
  record: np.dtype,
  most: int,
  *,
  ordered: str,
  counts: str,
) -> None:
  """Does as `in_memory` with files.

  Args:
    codes: path of the records.
    ids: path of the `units.IDENTITY`s.
    record: dtype of a record.
    most: largest number of rows of a unit.
    ordered: path of the records to write; beside it are files in between.
    counts: path of the counts to write, `COUNT`.
  """
  folder = f'{ordered}.parts'
  shutil.rmtree(folder, ignore_errors=True)
  os.mkdir(folder, 0o700)
  first, kept, starts, chosen = _choose(ids, most, folder)
  order = np.argsort(first)
  del first
  with _private(counts) as file:
    file.write(kept[order].tobytes())
  with _private(ordered) as file:
    for start in range(0, len(order), _BLOCK):
      some = order[start : start + _BLOCK]
      # Mapped anew, which lets go of the pages of the last block.
      rows = np.memmap(chosen, np.int64, 'r')[_runs(starts, kept, some)]
      file.write(np.memmap(codes, record, 'r')[rows].tobytes())
    file.flush()
    os.fsync(file.fileno())
  shutil.rmtree(folder)


def _private(path):
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
  return open(os.open(path, flags, 0o600), 'wb')


def _choose(ids, most, folder):
  """Chooses rows in each file of the distribution.

  Returns:
    For each unit its first row, how many rows are used and where they are in
    the file of numbers of rows; and the path of that.
  """
  parts = _distribute(ids, folder)
  first, kept, starts, total = [], [], [], 0
  path = os.path.join(folder, 'chosen')
  with open(path, 'wb') as file:
    for part in parts:
      found = np.fromfile(part, _ROW)
      os.unlink(part)
      if len(found):
        of_part = units.chosen_rows(found['row'], found['id'], most)
        file.write(of_part[2].tobytes())
        first.append(of_part[0])
        kept.append(of_part[1].astype(COUNT))
        starts.append(total + np.cumsum(of_part[1]) - of_part[1])
        total += len(of_part[2])
  return *map(np.concatenate, (first, kept, starts)), path


_ROW = np.dtype([('id', units.IDENTITY), ('row', np.int64)])


def _distribute(ids, folder):
  """Writes the rows to files by a hash of their units; returns their paths."""
  size = os.path.getsize(ids) // units.IDENTITY.itemsize
  number = min(max(1, -(-size // _ROWS_PER_FILE)), _MOST_FILES)
  paths = [os.path.join(folder, f'{i}') for i in range(number)]
  files = [open(path, 'wb') for path in paths]  # noqa: SIM115 (closed below)
  try:
    for start in range(0, size, _BLOCK):
      offset = start * units.IDENTITY.itemsize
      some = np.fromfile(ids, units.IDENTITY, _BLOCK, offset=offset)
      rows = np.empty(len(some), _ROW)
      rows['id'], rows['row'] = some, np.arange(start, start + len(some))
      place = some['high'] % np.uint64(number)
      for i in range(number):
        files[i].write(rows[place == i].tobytes())
  finally:
    for file in files:
      file.close()
  return paths


def _runs(starts, counts, which):
  """Numbers from a start on, as many as its count, of some of them in turn."""
  counts = counts[which].astype(np.int64)
  ends = np.cumsum(counts)
  inside = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
  return np.repeat(starts[which], counts) + inside
