"""What results say of the run that made them, and how they are written."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys

from tfdpflows import atomic

_PACKAGES = (
  'tfdpflows',
  'tensorflow',
  'tf-keras',
  'tensorflow-probability',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
  'pandas',
  'scikit-learn',
)


def write_json(path, content):
  """Writes JSON aside and renames it, so that `path` is always complete."""
  text = json.dumps(content, indent=2, allow_nan=False) + '\n'
  atomic.write_file(path, text.encode())


def command_line():
  """Returns the command line, as a list."""
  # Python 3.9 knows only what follows the interpreter.
  return getattr(sys, 'orig_argv', sys.argv)


def versions():
  """Returns the versions of Python and of the packages that matter here."""
  found = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = None
  return found
