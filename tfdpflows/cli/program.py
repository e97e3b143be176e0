"""Dispatch to the subcommands, and their error messages."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Optional

from tfdpflows.cli import (
  account,
  audit,
  calibrate,
  export,
  fit,
  quiet,
  report,
  sample,
  schema,
  score,
)
from tfdpflows.cli.command import Command, UsageError
from tfdpflows.version import __version__

_MODULES = schema, fit, sample, score, export, report, account, calibrate, audit
_COMMANDS = {module.COMMAND.name: module.COMMAND for module in _MODULES}

_HELP = """\
tfdpflows: synthetic tables and densities with differential privacy

Usage: tfdpflows COMMAND --flag=value ...

Commands:
{commands}

From a table to synthetic rows:
  tfdpflows schema --input=people.csv --output=schema.json
  (check the ranges and categories in schema.json, then remove their marks)
  tfdpflows fit --input=people.csv --schema=schema.json --epsilon=1 \\
    --delta=1e-5 --model_dir=model
  tfdpflows sample --model_dir=model --num_rows=10000 --output=synthetic.csv
  tfdpflows report --model_dir=model --real=holdout.csv \\
    --synthetic=synthetic.csv --output=report.html

`tfdpflows COMMAND --help` lists the flags of a command, with an example;
`tfdpflows --version` prints the version.
"""

_HELP_FLAGS = frozenset({'--help', '-help', '-h', '--helpfull', '--helpshort'})
# Errors with a message for the user. Others are defects and keep a traceback.
_USER_ERRORS = (ValueError, OSError, ImportError, MemoryError)


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the program.

  Args:
    argv: list of the arguments after the program's name; those of the process
      if `None`.

  Returns:
    The exit code: 0, 2 for an error that the user can fix (one line on
    stderr), 130 when interrupted.

  >>> from tfdpflows import cli
  >>> cli.main(['--version'])
  tfdpflows 0.2.0.dev0
  0
  """
  argv = list(sys.argv[1:] if argv is None else argv)
  name = 'tfdpflows'
  if hasattr(sys.stdout, 'reconfigure'):
    # A name that the terminal cannot show ends no command, as on stderr.
    sys.stdout.reconfigure(errors='backslashreplace')
  try:
    if not argv or argv[0] in _HELP_FLAGS or argv == ['help']:
      print(_help(), end='')
      return 0
    if argv[0] in ('--version', 'version'):
      print(f'tfdpflows {__version__}')
      return 0
    if argv[0] == 'help':
      argv = [argv[1], '--help']
    command = _command(argv[0])
    name = f'tfdpflows {command.name}'
    if _HELP_FLAGS.intersection(argv[1:]):
      print(command.help())
      return 0
    values = command.options().parse(argv[1:])
    if not values.debug:
      quiet.configure()
    command.run(values)
    sys.stdout.flush()
  except KeyboardInterrupt as interrupt:
    print(f'\n{name}: interrupted. {interrupt}'.rstrip(), file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader of our output has gone, as with `| head`: nothing to report.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except Exception as error:
    if '--debug' in argv:
      traceback.print_exc()
    elif not _is_user_error(error):
      raise
    print(f'{name}: {_message(error)}', file=sys.stderr)
    return 2
  return 0


def _command(name: str) -> Command:
  if name not in _COMMANDS:
    close = difflib.get_close_matches(name, _COMMANDS, n=1)
    meant = f' Did you mean {close[0]}?' if close else ''
    raise UsageError(
      f'There is no command {name!r}.{meant} The commands are '
      f'{", ".join(_COMMANDS)}.'
    )
  return _COMMANDS[name]


def _help():
  lines = [f'  {x.name:<11}{x.summary}' for x in _COMMANDS.values()]
  return _HELP.format(commands='\n'.join(lines))


def _is_user_error(error):
  package = type(error).__module__.split('.')[0]
  ours = package in ('tfdpflows', 'dp_accounting')
  return ours or isinstance(error, _USER_ERRORS)


def _message(error):
  if isinstance(error, MemoryError):
    return 'out of memory: ask for fewer rows at a time.'
  if isinstance(error, OSError) and error.strerror:
    place = f'{error.filename}: ' if error.filename else ''
    return f'{place}{error.strerror}'
  text = ' '.join(str(error).split()) or type(error).__name__
  # No command opens what another one writes.
  text = text.replace(', or open it with read_only=True.', '.')
  # Other arguments that a message names are flags of the same name.
  return text.replace('set out_of_range to clip', 'pass --out_of_range=clip')
