"""Errors of files and memory as Python raises them, not as TensorFlow does."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def of_file(path: str) -> Iterator[None]:
  """Within it, an error of TensorFlow is one of reading or writing `path`.

  Raises:
    OSError: with the path, for any error that TensorFlow raises.
  """
  try:
    yield
  except tf.errors.OpError as error:
    text = _lines(error)[0]
    code = errno.ENOSPC
    if os.strerror(code) in text:
      raise OSError(code, os.strerror(code), path) from error
    raise OSError(f'{path}: {text}') from error


@contextlib.contextmanager
def of_memory() -> Iterator[None]:
  """Within it, TensorFlow running out of memory is as Python running out of it.

  Raises:
    MemoryError: where TensorFlow ran out of it.
  """
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    raise MemoryError(_lines(error)[0]) from error


def _lines(error):
  lines = [line.strip() for line in str(error.message).splitlines()]
  return [line for line in lines if line] or [type(error).__name__]
