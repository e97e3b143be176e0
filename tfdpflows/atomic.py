"""Files and folders that are in their place whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Callable, Union

__all__ = [
  'flush',
  'folder_aside',
  'grant_default_mode',
  'publish',
  'write_file',
]

PathLike = Union[str, 'os.PathLike[str]']


def write_file(
  path: PathLike, write: Callable[[BinaryIO], object], *, private: bool = False
) -> None:
  """Writes a file beside its place, then moves it there.

  Args:
    path: Its place; what is there is replaced.
    write: Called with an open binary file; what it writes is the content.
    private: Whether only the user may read it.

  Raises:
    OSError: If it cannot be written; what was there stays.
  """
  folder, name = os.path.split(os.path.abspath(path))
  descriptor, aside = tempfile.mkstemp(
    dir=folder, prefix=f'{name}.', suffix='.partial'
  )
  try:
    with os.fdopen(descriptor, 'wb') as file:
      write(file)
      file.flush()
      os.fsync(file.fileno())
    if not private:
      grant_default_mode(aside)
    os.replace(aside, path)
  except BaseException:
    os.unlink(aside)
    raise


@contextlib.contextmanager
def folder_aside(parent: PathLike, name: str) -> Iterator[str]:
  """Yields a new folder to be filled and renamed; removes it on any error.

  Args:
    parent: The folder to make it in.
    name: What it is called, with a dot before it and a token behind it.

  Yields:
    Its path. It is private to the user.
  """
  aside = tempfile.mkdtemp(dir=parent, prefix=f'.{name}.')
  try:
    yield aside
  except BaseException:
    shutil.rmtree(aside, ignore_errors=True)
    raise


def grant_default_mode(path: PathLike) -> None:
  """Lets others read what `tempfile` made, as far as `open` and `mkdir` do.

  Args:
    path: A file or a folder.
  """
  mask = os.umask(0)
  os.umask(mask)
  os.chmod(path, (0o777 if os.path.isdir(path) else 0o666) & ~mask)


def flush(path: PathLike) -> None:
  """Returns when a file, or the list of names in a folder, is on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def publish(aside: PathLike, path: PathLike) -> None:
  """Gives a complete file its name, and never replaces another file.

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
  flush(os.path.dirname(os.path.abspath(path)))
