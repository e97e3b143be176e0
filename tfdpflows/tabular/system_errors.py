"""Errors of files and memory as Python raises them, not as TensorFlow does."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def of_file(path: str) -> Iterator[None]:
  """Raises the errors of TensorFlow as an `OSError` with the path."""
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
  """Raises TensorFlow's exhaustion of memory as a `MemoryError`."""
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    raise MemoryError(_lines(error)[0]) from error


def _lines(error):
  lines = [line.strip() for line in str(error.message).splitlines()]
  return [line for line in lines if line] or [type(error).__name__]
