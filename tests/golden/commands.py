"""What `--help` of every command prints."""

from __future__ import annotations

import contextlib
import io

from tfdpflows import cli

COMMANDS = (
  'account',
  'audit',
  'calibrate',
  'export',
  'fit',
  'report',
  'sample',
  'schema',
  'score',
)


def value(*argv):
  """The output of one call.

  Args:
    *argv: Words behind `tfdpflows`.

  Returns:
    The lines that are printed.
  """
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    code = cli.main(list(argv))
  return [f'exit {code}', *out.getvalue().splitlines()]


def make():
  """Everything that the file holds.

  Returns:
    What `json.dumps` takes.
  """
  return {
    '': value('--help'),
    **{name: value(name, '--help') for name in COMMANDS},
  }
