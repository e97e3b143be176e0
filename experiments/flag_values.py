"""The flags of a binary, and nothing beside them."""

from __future__ import annotations

from absl import app, flags


def read(argv):
  """Returns the flags of absl.

  Args:
    argv: what absl left of the command line.

  Raises:
    app.UsageError: if that is more than the name of the program.
  """
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  return flags.FLAGS
