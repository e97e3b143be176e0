"""Atomic writes: a file or folder appears whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import BinaryIO, Callable, Union

__all__ = [
  'check_replaceable',
  'file_aside',
  'flush',
  'folder_aside',
  'grant_default_mode',
  'lock',
  'publish',
  'publish_folder',
  'write_file',
]

PathLike = Union[str, 'os.PathLike[str]']

# No space is left on the disk, or for the user.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def lock(descriptor: int) -> None:
  """Locks an open file or folder, until it is closed, against other processes.

  Raises:
    OSError: if another process or object has it.
  """
  import fcntl  # noqa: PLC0415 (of POSIX; nothing else here needs it)

  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    # What an interrupt left behind, and nobody has any more, holds its lock
    # until it is collected.
    gc.collect()
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_file(
  path: PathLike,
  write: Union[Callable[[BinaryIO], object], bytes],
  *,
  private: bool = False,
) -> None:
  """Writes a file under a temporary name, then moves it to `path`.

  Args:
    path: Where; a file there is replaced, or kept on any error.
    write: The content; or a function that writes it to an open binary file.
    private: Whether only the user may read it.
  """
  with file_aside(path, private=private) as aside, open(aside, 'wb') as file:
    if callable(write):
      write(file)
    else:
      file.write(write)


@contextlib.contextmanager
def file_aside(path: PathLike, *, private: bool = False) -> Iterator[str]:
  """Yields a new file in the folder of `path`, which then replaces `path`.

  Args:
    path: Where; a file there is kept on any error. That the disk is full names
      it.
    private: Whether only the user may read it.
  """
  folder, name = os.path.split(os.path.abspath(path))
  descriptor, aside = tempfile.mkstemp(
    dir=folder, prefix=f'{name}.', suffix='.partial'
  )
  os.close(descriptor)
  try:
    yield aside
    flush(aside)
    if not private:
      grant_default_mode(aside)
    os.replace(aside, path)
  except BaseException as error:
    os.unlink(aside)
    full = isinstance(error, OSError) and error.errno in _FULL
    if full and error.filename is None:
      raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    raise


@contextlib.contextmanager
def folder_aside(parent: PathLike, name: str) -> Iterator[str]:
  """Yields a new private folder in `parent`; removes it on any error.

  It is to be filled and renamed. Its name is `.{name}.` and a random token.
  """
  aside = tempfile.mkdtemp(dir=parent, prefix=f'.{name}.')
  try:
    yield aside
  except BaseException:
    shutil.rmtree(aside, ignore_errors=True)
    raise


def check_replaceable(
  path: PathLike, overwrite: bool, is_ours: Callable[[str], bool], what: str
) -> None:
  """Raises a `FileExistsError` for a folder that may not be replaced.

  Args:
    path: the folder, which need not exist.
    overwrite: whether to replace it.
    is_ours: whether the library wrote the folder that it is given.
    what: what the library writes there, for messages.
  """
  target = os.path.abspath(path)
  if not os.path.lexists(target):
    return
  if not overwrite:
    raise FileExistsError(
      f'{path} exists: choose another name, or pass overwrite=True.'
    )
  if os.path.islink(target):
    raise FileExistsError(
      f'{path} is a symbolic link, which is not overwritten: name the folder '
      'that it points to, or another one.'
    )
  if not is_ours(target):
    raise FileExistsError(
      f'{path} exists and is not {what}, so it is not overwritten: choose '
      'another name.'
    )


def publish_folder(
  aside: PathLike, path: PathLike, replaced: PathLike | None = None
) -> None:
  """Renames the folder `aside`, on disk, to `path`; removes one that was there.

  Args:
    aside: A folder on the same file system; it gets the permissions of `mkdir`.
    path: Where; a folder there is kept on any error.
    replaced: A name that is free, which the old folder has for a moment; one
      beside `aside` by default.
  """
  grant_default_mode(aside)
  for root, _, names in os.walk(aside):
    for name in names:
      flush(os.path.join(root, name))
  if not os.path.isdir(path):
    os.rename(aside, path)
    return
  replaced = replaced or f'{aside}.replaced'
  try:
    os.rename(path, replaced)
    os.rename(aside, path)
  except BaseException:
    if os.path.isdir(replaced) and not os.path.lexists(path):
      os.rename(replaced, path)
    raise
  try:
    shutil.rmtree(replaced)
  except OSError as error:
    warnings.warn(
      f'{path} was replaced, but what was there before could not be removed: '
      f'delete {replaced} ({error}).',
      stacklevel=2,
    )


def grant_default_mode(path: PathLike) -> None:
  """Gives what `tempfile` made the permissions of `open` and `mkdir`."""
  mask = os.umask(0)
  os.umask(mask)
  os.chmod(path, (0o777 if os.path.isdir(path) else 0o666) & ~mask)


def flush(path: PathLike) -> None:
  """Flushes a file, or the list of names in a folder, to disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def publish(aside: PathLike, path: PathLike) -> None:
  """Renames the file `aside` to `path` in the same folder, on disk.

  Raises:
    FileExistsError: If `path` exists; nothing is replaced.
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
