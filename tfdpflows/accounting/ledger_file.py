"""Lines on disk that are written ahead, chained by hashes and locked.

A file is JSON lines. Each line holds the SHA-256 of the line before it and of
its own fields, so that an edited, removed, repeated or reordered line is found
and named. The first line also holds, in a field of fixed width that is
rewritten in place, the number of lines and the last hash, so that a file cut
off at the end of a line is found as well. The chain has no secret: it is for
accidents and careless edits, not against somebody who computes it anew.

A line is on disk (`fsync`) before `append` returns. The field of the first line
follows without a flush of its own; it may be behind after a power failure,
never ahead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from tfdpflows.accounting.disk import publish as _publish
from tfdpflows.accounting.disk import read as _read
from tfdpflows.accounting.disk import write as _write

try:
  import fcntl
except ImportError:  # Not POSIX.
  fcntl = None

__all__ = ['LedgerError', 'LedgerFile']

FORMAT = 'tfdpflows-privacy-ledger'
FORMAT_VERSION = 1

_START = '0' * 64
_PREFIX = b'{"head":"'
_HEAD_SIZE = 10 + 1 + 64
_Path = Union[str, 'os.PathLike[str]']


class LedgerError(Exception):
  """A ledger is missing, locked, damaged, or asked for what it cannot do."""


class LedgerFile:
  """An open ledger file; use `create` or `open`.

  Attributes:
    path: Where it is.
    records: The records that were read on opening, the header first.
    notes: What was repaired on opening, in words.
  """

  def __init__(self, path: _Path, descriptor: int, read_only: bool):
    self.path = os.fspath(path)
    self.records: list[dict[str, Any]] = []
    self.notes: tuple[str, ...] = ()
    self._descriptor: Optional[int] = descriptor
    self._read_only = read_only
    self._size = 0
    self._lines = 0
    self._last = _START
    self._next = _START
    self._broken: Optional[str] = None
    # A lock is shared with forked processes, and no protection from them.
    self._process = os.getpid()

  @classmethod
  def create(
    cls,
    path: _Path,
    header: dict[str, Any],
    records: Sequence[dict[str, Any]] = (),
    before: Callable[[], None] = lambda: None,
  ) -> LedgerFile:
    """Makes a new file, on disk and locked, that appears whole or not at all.

    Args:
      path: Must not exist.
      header: JSON-able fields of the first line.
      records: JSON-able fields of the lines that follow.
      before: Called when all is on disk and the file has only to get its name.

    Returns:
      The open file.

    Raises:
      LedgerError: If the path exists or cannot be written.
    """
    path = pathlib.Path(path)
    # The file appears under its name only when its header is complete.
    aside = path.with_name(f'.{path.name}.{os.getpid()}.new')
    try:
      descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
      raise LedgerError(f'Cannot create the ledger {path}: {error}') from error
    file = cls(path, descriptor, read_only=False)
    try:
      _lock(descriptor, path)
      record = {'format': FORMAT, 'format_version': FORMAT_VERSION, **header}
      file._append([record, *records])
      before()
      _publish(aside, path)
    except FileExistsError as error:
      file.close()
      raise LedgerError(
        f'The ledger {path} exists. Continue it with PrivacyLedger.open, or '
        'choose another path; a ledger is never overwritten.'
      ) from error
    except OSError as error:
      file.close()
      raise LedgerError(f'Cannot create the ledger {path}: {error}') from error
    except BaseException:
      file.close()
      raise
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    return file

  @classmethod
  def open(cls, path: _Path, read_only: bool = False) -> LedgerFile:
    """Opens a file, verifies every line, and locks it unless only read.

    Args:
      path: Must exist.
      read_only: Whether to neither lock, repair nor append.

    Returns:
      The open file. A last line without an end, which a crash leaves, is
      completed if it is whole and else removed, since the charge it belongs to
      never returned; `notes` says so.

    Raises:
      LedgerError: If the file is missing, locked, or wrong anywhere; names the
        line and the cause.
    """
    flags = os.O_RDONLY if read_only else os.O_RDWR
    try:
      descriptor = os.open(path, flags)
    except FileNotFoundError as error:
      raise LedgerError(
        f'There is no ledger at {os.fspath(path)}. Without it nobody knows '
        'what was spent: restore it, or start again on data never used.'
      ) from error
    except OSError as error:
      raise LedgerError(
        f'Cannot open the ledger {os.fspath(path)}: {error}'
      ) from error
    file = cls(path, descriptor, read_only)
    try:
      if not read_only:
        _lock(descriptor, path)
      file._load()
    except BaseException:
      file.close()
      raise
    return file

  def append(self, record: dict[str, Any]) -> None:
    """Writes one line and returns when it is on disk.

    Args:
      record: JSON-able fields.

    Raises:
      LedgerError: If it could not be written; then it does not count and what
        it is for must not be done.
    """
    self.check_writable()
    self._append([record])

  def check_writable(self) -> None:
    """Raises `LedgerError` if nothing can be appended."""
    if self._descriptor is None:
      raise LedgerError(f'The ledger {self.path} is closed; open it again.')
    if self._read_only:
      raise LedgerError(
        f'The ledger {self.path} was opened to be read only; open it without '
        'read_only=True to charge it.'
      )
    if self._process != os.getpid():
      raise LedgerError(
        f'The ledger {self.path} was opened by the process that this one was '
        'forked from, and two writers would overwrite each other. Charge it '
        'there, before the fork.'
      )
    if self._broken:
      raise LedgerError(
        f'The ledger {self.path} failed before ({self._broken}); close it, '
        'make sure the disk is well, and open it again.'
      )

  def close(self) -> None:
    """Unlocks and closes; may be called twice."""
    if self._descriptor is not None:
      os.close(self._descriptor)
      self._descriptor = None

  @property
  def closed(self) -> bool:
    """Whether `close` was called."""
    return self._descriptor is None

  def _append(self, records: Sequence[dict[str, Any]]) -> None:
    """Writes lines at once and returns when they are on disk."""
    is_new = self._lines == 0
    lines, last = [], self._last
    for record in records:
      body = _canonical(record)
      last = _digest(last, body)
      head = _START if is_new and not lines else None
      lines.append(_line(body, last, head))
    data = b''.join(lines)
    try:
      _write(self._descriptor, data, self._size)
      os.fsync(self._descriptor)
    except OSError as error:
      try:
        os.ftruncate(self._descriptor, self._size)
        os.fsync(self._descriptor)
      except OSError:
        self._broken = str(error)
      raise LedgerError(
        f'Cannot write to the ledger {self.path}: {error}. Nothing was charged.'
      ) from error
    except BaseException as error:
      # Interrupted: the lines may be on disk. To open it again tells.
      self._broken = repr(error)
      raise
    self._size += len(data)
    self._last = last
    self._lines += len(lines)
    self._write_head()
    if is_new:
      os.fsync(self._descriptor)

  def _write_head(self) -> None:
    head = f'{self._lines:010d}:{self._last}'.encode()
    try:
      _write(self._descriptor, head, len(_PREFIX))
    except OSError as error:
      # The line itself is on disk and counts; only what follows is refused.
      self._broken = str(error)

  def _load(self) -> None:
    data = _read(self._descriptor)
    lines = data.split(b'\n')
    torn = lines.pop()
    head_lines, head_digest = 0, _START
    for number, line in enumerate(lines, 1):
      record = self._verified(number, line)
      if number == 1:
        head = _head(line)
        if head is None:
          raise LedgerError(
            f'{self.path}, line 1: the number of lines in it was edited. '
            'Restore the file.'
          )
        head_lines, head_digest = head
      self._accept(number, record, len(line) + 1, head_lines, head_digest)
    if not lines:
      raise LedgerError(
        f'{self.path} has no complete first line: it is not a ledger, or its '
        'creation was interrupted before anything could be charged. If you '
        'know it to be new, delete it and start again.'
      )
    if torn:
      self._load_torn(len(lines) + 1, torn, head_lines, head_digest)
    if self._lines < head_lines:
      raise LedgerError(
        f'{self.path} ends after line {self._lines}, but {head_lines} '
        'lines were written: lines were cut off. Restore the file.'
      )
    if not self._read_only:
      self._write_head()

  def _load_torn(
    self, number: int, torn: bytes, head_lines: int, head_digest: str
  ) -> None:
    try:
      record = self._verified(number, torn)
    except LedgerError:
      record = None
    if record is None and number <= head_lines:
      raise LedgerError(
        f'{self.path}, line {number}: the line was complete once and is cut '
        'off or edited now. Restore the file.'
      )
    if record is None:
      self.notes = (
        f'Line {number} of {self.path} was being written when the process '
        'ended. The charge had not returned and was dropped.',
      )
      if not self._read_only:
        os.ftruncate(self._descriptor, self._size)
        os.fsync(self._descriptor)
      return
    self.notes = (
      f'Line {number} of {self.path} was complete but for its end when the '
      'process ended. It counts as charged.',
    )
    self._accept(number, record, len(torn) + 1, head_lines, head_digest)
    if not self._read_only:
      _write(self._descriptor, b'\n', self._size - 1)
      os.fsync(self._descriptor)

  def _verified(self, number: int, line: bytes) -> dict[str, Any]:
    """The record of a line whose hash is right."""
    where = f'{self.path}, line {number}'
    try:
      fields = json.loads(line.decode('ascii'))
      if not isinstance(fields, dict):
        raise ValueError('not an object')
      digest = str(fields.pop('hash'))
      head = str(fields.pop('head')) if number == 1 else None
      body = _canonical(fields)
    except (ValueError, KeyError, RecursionError) as error:
      raise LedgerError(
        f'{where}: not a line of a ledger ({error}). Restore the file.'
      ) from error
    if number == 1 and fields.get('format') != FORMAT:
      raise LedgerError(f'{where}: not a ledger of tfdpflows.')
    if number == 1 and fields.get('format_version') != FORMAT_VERSION:
      raise LedgerError(
        f'{where}: format version {fields.get("format_version")!r}, and this '
        f'version of tfdpflows reads {FORMAT_VERSION}. Use the version of '
        f'tfdpflows that wrote it ({fields.get("library_version")!r}).'
      )
    if _digest(self._last, body) != digest:
      raise LedgerError(
        f'{where}: the hash does not match. This line was edited, or one '
        'before it was removed, added or moved. Restore the file.'
      )
    if _line(body, digest, head)[:-1] != line:
      raise LedgerError(
        f'{where}: the line was rewritten by another program. Restore the file.'
      )
    self._next = digest
    return fields

  def _accept(
    self,
    number: int,
    record: dict[str, Any],
    size: int,
    head_lines: int,
    head_digest: str,
  ) -> None:
    self._last = self._next
    self._size += size
    self._lines += 1
    self.records.append(record)
    if number == head_lines and self._last != head_digest:
      raise LedgerError(
        f'{self.path}, line {number}: not the line that was written last. '
        'Lines were cut off and others added. Restore the file.'
      )


def _canonical(record: dict[str, Any]) -> str:
  return json.dumps(
    record, sort_keys=True, separators=(',', ':'), allow_nan=False
  )


def _digest(last: str, body: str) -> str:
  return hashlib.sha256(f'{last}\n{body}'.encode('ascii')).hexdigest()


def _line(body: str, digest: str, head: Optional[str]) -> bytes:
  start = '{'
  if head is not None:
    start = _PREFIX.decode() + head.rjust(_HEAD_SIZE, '0') + '",'
  return f'{start}{body[1:-1]},"hash":"{digest}"}}\n'.encode('ascii')


def _head(line: bytes) -> Optional[tuple[int, str]]:
  """The number of lines and the last hash that the first line tells."""
  text = line[len(_PREFIX) : len(_PREFIX) + _HEAD_SIZE].decode('ascii')
  number, _, digest = text.partition(':')
  return (int(number), digest) if number.isdigit() and int(number) else None


def _lock(descriptor: int, path: _Path) -> None:
  if fcntl is None:
    raise LedgerError(
      'Ledgers on disk need POSIX file locks; use PrivacyLedger() in memory.'
    )
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    raise LedgerError(
      f'The ledger {os.fspath(path)} is in use by another process or object. '
      'Wait until it is closed, or open it with read_only=True.'
    ) from error
