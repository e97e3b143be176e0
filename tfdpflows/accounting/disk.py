"""Whole writes, whole reads and whole files."""

from __future__ import annotations

import os
import pathlib

__all__ = ['publish', 'read', 'write']


def write(descriptor: int, data: bytes, offset: int) -> None:
  """Writes all of `data`, however many calls the system takes for it.

  Args:
    descriptor: An open file.
    data: What to write.
    offset: Where.

  Raises:
    OSError: If it cannot be written.
  """
  while data:
    written = os.pwrite(descriptor, data, offset)
    data, offset = data[written:], offset + written


def read(descriptor: int) -> bytes:
  """Reads a file from its start to its end.

  Args:
    descriptor: An open file.

  Returns:
    Its content.

  Raises:
    OSError: If it cannot be read.
  """
  chunks, offset = [], 0
  while True:
    chunk = os.pread(descriptor, 2**20, offset)
    if not chunk:
      return b''.join(chunks)
    chunks.append(chunk)
    offset += len(chunk)


def publish(aside: pathlib.Path, path: pathlib.Path) -> None:
  """Gives a complete file its name, and never takes one that is in use.

  Args:
    aside: The file, in the folder of `path`.
    path: Its name to be.

  Raises:
    FileExistsError: If `path` exists.
    OSError: If the system refuses.
  """
  try:
    os.link(aside, path)
  except FileExistsError:
    raise
  except OSError:
    # A file system without hard links: hold the name, then replace it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
      os.replace(aside, path)
    except BaseException:
      if os.path.getsize(path) == 0:
        os.unlink(path)
      raise
  descriptor = os.open(path.parent, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
