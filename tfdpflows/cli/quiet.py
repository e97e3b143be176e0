"""Keeps the messages of libraries from hiding those to the user."""

from __future__ import annotations

import contextlib
import logging as python_logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator

from absl import logging

_LIBRARIES = ('tensorflow', 'keras', 'tf_keras', 'tensorflow_probability')


@contextlib.contextmanager
def importing() -> Iterator[None]:
  """Holds back what is written to stderr while TensorFlow is imported.

  TensorFlow reports on processors and drivers then, whatever log level is
  asked for, from C++ and so past `sys.stderr`. If the import fails, all of it
  is shown.
  """
  sys.stderr.flush()
  kept = os.dup(2)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    except Exception:  # Not an interrupt, of which there is nothing to say.
      os.dup2(kept, 2)
      held.seek(0)
      shutil.copyfileobj(held, os.fdopen(os.dup(2), 'wb'))
      raise
    finally:
      os.dup2(kept, 2)
      os.close(kept)


def configure() -> None:
  """Shows warnings of tfdpflows in one line each, and none of libraries."""
  # Not errors either: they are about missing GPUs. Real ones are raised.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  logging.use_absl_handler()
  # Or the first message would come after one that there is no flag of absl's.
  logging._warn_preinit_stderr = False
  logging.set_verbosity(logging.WARNING)
  handler = logging.get_absl_handler()
  handler.setFormatter(_Formatter())
  handler.addFilter(_is_ours)
  warnings.formatwarning = lambda message, *_: f'tfdpflows: {message}\n'


class _Formatter(python_logging.Formatter):
  """Begins a message with the name of the library, once."""

  def format(self, record):
    # Warnings have it already, for those who call the library from Python.
    return 'tfdpflows: ' + super().format(record).removeprefix('tfdpflows: ')


def show_info() -> None:
  """Shows what tfdpflows tells of its work too, not warnings only."""
  logging.set_verbosity(logging.INFO)


def _is_ours(record):
  folders = record.pathname.replace(os.sep, '/').split('/')
  return not set(_LIBRARIES).intersection(folders)
