"""The file of a ledger: lines chained by hashes, written ahead and locked.

A file is JSON lines. Each line holds the SHA-256 of the line before it and of
its own fields, so that an edited, removed, repeated or reordered line is found
and named. The first line also holds, in a field of fixed width that is
rewritten in place, the number of lines and the last hash, so that a file cut
off at the end of a line is found as well. The chain has no secret: it is for
accidents and careless edits, not against somebody who computes it anew.

A line is on disk (`fsync`) before `append` returns. The field of the first line
follows without a flush of its own; it may be behind after a power failure,
never ahead.

A lock is on a file, not on its name. Editors, git and rsync replace a file by
another one of its name, which somebody else could lock and charge. So before
and after each line, device and inode are compared: the name must still be that
of the open file, and nobody else may have written into it. A file that was
replaced takes no more lines. (A copy that is put in place of a file that nobody
has open cannot be told from the file; what was charged since it was made is
forgotten.)

After an interrupt (Ctrl-C) while a line is written, nothing is appended until
the file is opened again, which tells whether the line counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import secrets
import stat
from collections.abc import Sequence
from typing import Any, Callable, Optional

from tfdpflows import atomic
from tfdpflows._checks import Home

try:
  import fcntl
except ImportError:  # Not POSIX.
  fcntl = None

FORMAT = 'tfdpflows-privacy-ledger'
FORMAT_VERSION = 1

_START = '0' * 64
_PREFIX = b'{"head":"'
_HEAD_SIZE = 10 + 1 + 64
# How deep what is written may be, and how long its integers, so that every
# process can read it, whatever its stack and its version of Python.
_MAX_NESTING = 400
_MAX_BITS = 1000
_INTERRUPTED = 'a line was being written when it was interrupted'
_TRIES = 20


class LedgerError(Exception):
  """A ledger is missing, locked, damaged, or asked for what it cannot do."""


class LedgerFile:
  """An open ledger file; use `create` or `open`.

  Attributes:
    path: where it is, from the root.
    records: the records that were read on opening, the header first.
    notes: what was repaired on opening, in words.
  """

  def __init__(self, path: atomic.PathLike, handle: io.FileIO, read_only: bool):
    # Holds also where the process goes to another folder.
    self.path = os.path.abspath(path)
    self.records: list[dict[str, Any]] = []
    self.notes: tuple[str, ...] = ()
    self._handle = handle
    self._read_only = read_only
    self._size = 0
    self._lines = 0
    self._last = _START
    # Why nothing can be appended until it is opened again.
    self._broken: Optional[str] = None
    # Whether the file has its name and keeps others out.
    self._placed = False
    # Some file systems count no names.
    self._linked = False
    # A lock is shared with forked processes, and no protection from them.
    self._home = Home()

  def __del__(self):
    # One that nobody can charge any more must not keep others out.
    handle = getattr(self, '_handle', None)
    if handle is not None:
      handle.close()

  @property
  def _descriptor(self) -> int:
    return self._handle.fileno()

  @classmethod
  def create(
    cls,
    path: atomic.PathLike,
    header: dict[str, Any],
    records: Sequence[dict[str, Any]] = (),
    before: Callable[[], None] = lambda: None,
  ) -> LedgerFile:
    """Creates a file, locked, that appears whole or not at all.

    Args:
      path: must not exist.
      header: JSON-able fields of the first line.
      records: JSON-able fields of the lines that follow.
      before: called when all is on disk, before the file gets its name.

    Raises:
      LedgerError: if the path exists or cannot be written.
    """
    path = pathlib.Path(path)
    try:
      aside, handle = _new_aside(path)
    except OSError as error:
      raise LedgerError(f'Cannot create the ledger {path}: {error}') from error
    file = cls(path, handle, read_only=False)
    try:
      record = {'format': FORMAT, 'format_version': FORMAT_VERSION, **header}
      file._append([record, *records])
      before()
      atomic.publish(aside, path)
      file._set_placed()
    except BaseException as error:
      file.close()
      if isinstance(error, FileExistsError):
        raise LedgerError(
          f'The ledger {path} exists. Continue it with PrivacyLedger.open, or '
          'choose another path; a ledger is never overwritten.'
        ) from error
      if isinstance(error, OSError):
        raise LedgerError(
          f'Cannot create the ledger {path}: {error}'
        ) from error
      raise
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    _remove_stale(path, handle)
    return file

  @classmethod
  def open(cls, path: atomic.PathLike, read_only: bool = False) -> LedgerFile:
    """Opens a file, verifies every line, and locks it unless only read.

    A last line without an end, which a crash leaves, is completed if it is
    whole and else removed, since its charge never returned; `notes` reports it.

    Args:
      path: must exist.
      read_only: whether to neither lock, repair nor append.

    Raises:
      LedgerError: if the file is missing, locked, or wrong anywhere; names the
        line and the cause.
    """
    try:
      file = cls(path, _opened(path, 'r' if read_only else 'r+'), read_only)
    except FileNotFoundError as error:
      raise LedgerError(
        f'There is no ledger at {os.fspath(path)}. Without it nobody knows '
        'what was spent: restore it, or start again on data never used.'
      ) from error
    except OSError as error:
      raise LedgerError(
        f'Cannot open the ledger {os.fspath(path)}: {error}'
      ) from error
    try:
      if not read_only:
        _lock(file._descriptor, path)
        file._set_placed()
        # Between opening it and the lock, another one may have taken its place.
        file._check_place()
      file._load()
    except BaseException:
      file.close()
      raise
    if not read_only:
      _remove_stale(pathlib.Path(path), file._handle)
    return file

  def _set_placed(self) -> None:
    self._linked = os.fstat(self._descriptor).st_nlink > 0
    self._placed = True

  def append(
    self, record: dict[str, Any], then: Callable[[], None] = lambda: None
  ) -> None:
    """Writes one line and returns when it is on disk.

    Args:
      record: JSON-able fields.
      then: called when it is, to apply it in memory. After an interrupt before
        its end, nothing is appended any more.

    Raises:
      LedgerError: if it could not be written; then it does not count and what
        it is for must not be done.
    """
    self.check_writable()
    self._append([record], then)

  def check_writable(self) -> None:
    """Raises `LedgerError` if nothing can be appended."""
    if self._handle.closed:
      raise LedgerError(f'The ledger {self.path} is closed; open it again.')
    if self._read_only:
      raise LedgerError(
        f'The ledger {self.path} was opened to be read only; open it without '
        'read_only=True to charge it.'
      )
    self._home.check(
      f'The ledger {self.path} was opened',
      'and two writers would overwrite each other. Charge it there, before the '
      'fork.',
      LedgerError,
    )
    if self._broken == _INTERRUPTED:
      raise LedgerError(
        f'A charge of the ledger {self.path} was interrupted while it was '
        'written. Close the ledger and open it again: that tells whether it '
        'counts.'
      )
    if self._broken:
      raise LedgerError(
        f'The ledger {self.path} failed before ({self._broken}); close it, '
        'make sure the disk is well, and open it again.'
      )
    self._check_place()

  def _check_place(self) -> None:
    what = self.displaced()
    if what is not None:
      raise LedgerError(f'{what} Nothing was charged.')

  def displaced(self) -> Optional[str]:
    """Describes how others changed the file while it was open, or None.

    It may have been replaced, deleted or written to; the text says what to do.
    """
    if not self._placed or self._handle.closed:
      return None
    known = f'all {self._lines} lines' if self._lines else 'all its lines'
    try:
      here, there = os.fstat(self._descriptor), os.stat(self.path)
    except FileNotFoundError:
      return (
        f'The ledger {self.path} was deleted or moved while it was in use. Put '
        f'it back, with {known}, and open it again.'
      )
    except OSError as error:
      return (
        f'Whether the ledger {self.path} is still in its place cannot be told '
        f'({error}). Make sure that it is, with {known}, and open it again.'
      )
    # The numbers of a file that was deleted may be given to another one.
    same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    if not same or (self._linked and here.st_nlink == 0):
      return (
        f'The ledger {self.path} was replaced by another file while it was in '
        'use, as editors, git and rsync do. What is there now may know less '
        f'than what was spent: put the ledger back, with {known}, and open it '
        'again.'
      )
    if not self._lines:
      return None
    try:
      head = os.pread(self._descriptor, _HEAD_SIZE, len(_PREFIX))
    except OSError as error:
      return f'The ledger {self.path} cannot be read any more ({error}).'
    if here.st_size != self._size or head != self._head():
      return (
        f'The ledger {self.path} was written to by another program while it '
        f'was in use. Restore it, with {known}, and open it again.'
      )
    return None

  def close(self) -> None:
    """Unlocks and closes; may be called twice."""
    self._handle.close()

  @property
  def broken(self) -> bool:
    """Whether it was reported already that it must be opened again."""
    return self._broken is not None

  def _append(
    self,
    records: Sequence[dict[str, Any]],
    then: Callable[[], None] = lambda: None,
  ) -> None:
    """Writes lines at once and returns when they are on disk."""
    is_new = self._lines == 0
    lines, last = [], self._last
    for record in records:
      check_record(record)
      body = _canonical(record)
      last = _digest(last, body)
      head = _START if is_new and not lines else None
      lines.append(_line(body, last, head))
    data = b''.join(lines)
    # Until all is done: what is in the file and what is known here may differ.
    self._broken = _INTERRUPTED
    try:
      _write(self._descriptor, data, self._size)
      os.fsync(self._descriptor)
    except OSError as error:
      self._take_back(error)
      raise LedgerError(
        f'Cannot write to the ledger {self.path}: {error}. Nothing was charged.'
      ) from error
    self._size += len(data)
    what = None if is_new else self.displaced()
    if what is not None:
      self._broken = 'it was replaced while a line was being written'
      raise LedgerError(
        f'{what} The charge that was being written may be lost, and what it '
        'was for must not be done.'
      )
    self._last = last
    self._lines += len(lines)
    error = self._write_head()
    if is_new:
      os.fsync(self._descriptor)
    then()
    # The line itself is on disk and counts; only what follows is refused.
    self._broken = error

  def _take_back(self, error: OSError) -> None:
    """Removes what was written of lines that do not count."""
    try:
      os.ftruncate(self._descriptor, self._size)
      os.fsync(self._descriptor)
    except OSError:
      self._broken = str(error)
    else:
      self._broken = None

  def _head(self) -> bytes:
    return f'{self._lines:010d}:{self._last}'.encode()

  def _write_head(self) -> Optional[str]:
    """Writes the field of the first line; returns what went wrong, if any."""
    try:
      _write(self._descriptor, self._head(), len(_PREFIX))
    except OSError as error:
      return str(error)
    return None

  def _load(self) -> None:
    *lines, torn = _read(self._descriptor).split(b'\n')
    if not lines:
      raise LedgerError(
        f'{self.path} has no complete first line: it is not a ledger, or its '
        'creation was interrupted before anything could be charged. If you '
        'know it to be new, delete it and start again.'
      )
    head = 0, _START
    for line in lines:
      record, digest = self._verified(line)
      if not self._lines:
        head = self._read_head(line)
      self._accept(record, digest, len(line) + 1, head)
    if torn:
      self._load_torn(torn, head)
    if self._lines < head[0]:
      raise LedgerError(
        f'{self.path} ends after line {self._lines}, but {head[0]} '
        'lines were written: lines were cut off. Restore the file.'
      )
    if not self._read_only:
      self._broken = self._write_head()

  def _load_torn(self, torn: bytes, head: tuple[int, str]) -> None:
    """A last line without its end."""
    number = self._lines + 1
    try:
      record, digest = self._verified(torn)
    except LedgerError as error:
      if number <= head[0]:
        raise LedgerError(
          f'{self.path}, line {number}: the line was complete once and is cut '
          'off or edited now. Restore the file.'
        ) from error
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
    self._accept(record, digest, len(torn) + 1, head)
    if not self._read_only:
      _write(self._descriptor, b'\n', self._size - 1)
      os.fsync(self._descriptor)

  def _verified(self, line: bytes) -> tuple[dict[str, Any], str]:
    """Returns the record and the hash of the next line, or refuses it."""
    number = self._lines + 1
    where = f'{self.path}, line {number}'
    try:
      fields = json.loads(line.decode('ascii'))
      if not isinstance(fields, dict):
        raise ValueError('not an object')
      digest = str(fields.pop('hash'))
      head = str(fields.pop('head')) if number == 1 else None
      body = _canonical(fields)
    except (ValueError, KeyError, RecursionError) as error:
      fix = 'Restore the file'
      if number == 1:
        fix += ', or give that of a ledger'
      raise LedgerError(
        f'{where}: not a line of a ledger ({error}). {fix}.'
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
    return fields, digest

  def _read_head(self, line: bytes) -> tuple[int, str]:
    """Returns the number of lines and the last hash of the first line."""
    text = line[len(_PREFIX) : len(_PREFIX) + _HEAD_SIZE].decode('ascii')
    number, _, digest = text.partition(':')
    if not (number.isdigit() and int(number)):
      raise LedgerError(
        f'{self.path}, line 1: the number of lines in it was edited. '
        'Restore the file.'
      )
    return int(number), digest

  def _accept(
    self, record: dict[str, Any], digest: str, size: int, head: tuple[int, str]
  ) -> None:
    self._last = digest
    self._size += size
    self._lines += 1
    self.records.append(record)
    if self._lines == head[0] and digest != head[1]:
      raise LedgerError(
        f'{self.path}, line {self._lines}: not the line that was written last. '
        'Lines were cut off and others added. Restore the file.'
      )


def before_merge(content: bytes) -> bytes:
  """Returns what a ledger file held before a merge closed it, if one has."""
  *lines, last = content.splitlines(keepends=True) or [b'']
  try:
    fields = json.loads(last)
    if not lines or fields['kind'] != 'seal':
      return content
    digest = json.loads(lines[-1])['hash']
    head = f'{len(lines):010d}:{digest}'.encode()
  except (ValueError, KeyError, TypeError, RecursionError):
    return content
  first = lines[0]
  lines[0] = _PREFIX + head + first[len(_PREFIX) + _HEAD_SIZE :]
  return b''.join(lines)


def check_record(record: Any, what: str = 'The record') -> None:
  """Raises `ValueError` for what could be written as JSON and not read back."""
  left = [(record, 1)]
  while left:
    value, depth = left.pop()
    if depth > _MAX_NESTING:
      raise ValueError(
        f'{what} is nested too deep for a ledger: at most {_MAX_NESTING} '
        'levels can be read back anywhere.'
      )
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
      raise ValueError(
        f'{what} holds a number of more than 300 digits, which a ledger does '
        'not. Write it as text.'
      )
    if isinstance(value, dict):
      value = list(value.values())
    if isinstance(value, (list, tuple)):
      left += [(inner, depth + 1) for inner in value]


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


def _write(descriptor: int, data: bytes, offset: int) -> None:
  """Writes all of `data`, however many calls the system takes for it."""
  while data:
    written = os.pwrite(descriptor, data, offset)
    data, offset = data[written:], offset + written


def _read(descriptor: int) -> bytes:
  """The whole content of a file."""
  chunks, offset = [], 0
  while chunk := os.pread(descriptor, 2**20, offset):
    chunks.append(chunk)
    offset += len(chunk)
  return b''.join(chunks)


def _opened(path: atomic.PathLike, mode: str) -> io.FileIO:
  """Returns an open file, which an interrupt cannot keep open for ever."""

  def opener(name, flags):
    # What is no file of lines, such as a pipe, must not be waited for.
    return os.open(name, flags | getattr(os, 'O_NONBLOCK', 0), 0o600)

  handle = io.FileIO(path, mode, opener=opener)
  if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
    handle.close()
    raise OSError(f'{os.fspath(path)} is no regular file')
  return handle


def _new_aside(path: pathlib.Path) -> tuple[pathlib.Path, io.FileIO]:
  """Creates a file beside `path`, locked as a sign that it is in use."""
  for _ in range(_TRIES):
    token = f'{os.getpid()}-{secrets.token_hex(4)}'
    aside = path.with_name(f'.{path.name}.{token}.new')
    handle = _opened(aside, 'x+')
    try:
      _lock(handle.fileno(), path)
      if os.path.samestat(os.fstat(handle.fileno()), os.lstat(aside)):
        return aside, handle
    except (FileNotFoundError, LedgerError):
      # Somebody takes it for one that was left behind.
      if fcntl is None:
        os.unlink(aside)
        raise
    handle.close()
  raise OSError(f'no file can be locked in {path.parent}')


def _remove_stale(path: pathlib.Path, handle: io.FileIO) -> None:
  """Removes files that interrupted creations of `path` left behind.

  They never got their name, or have it as well. One in use is locked.
  """
  name = re.compile(
    re.escape(f'.{path.name}.') + r'[0-9]+(-[0-9a-f]{8})?\.new', re.ASCII
  )
  own = os.fstat(handle.fileno())
  with contextlib.suppress(OSError):
    for aside in path.parent.iterdir():
      if not name.fullmatch(aside.name) or aside.is_symlink():
        continue
      with contextlib.suppress(OSError):
        if os.path.samestat(own, os.lstat(aside)):
          os.unlink(aside)
          continue
        with _opened(aside, 'r+') as left:
          fcntl.flock(left.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
          start = os.pread(left.fileno(), len(_PREFIX), 0)
          same = os.path.samestat(os.fstat(left.fileno()), os.lstat(aside))
          if same and _PREFIX.startswith(start):
            os.unlink(aside)


def _lock(descriptor: int, path: atomic.PathLike) -> None:
  if fcntl is None:
    raise LedgerError(
      'Ledgers on disk need POSIX file locks; use PrivacyLedger() in memory.'
    )
  try:
    atomic.lock(descriptor)
  except OSError as error:
    raise LedgerError(
      f'The ledger {os.fspath(path)} is in use by another process or object. '
      'Wait until it is closed, or open it with read_only=True.'
    ) from error
