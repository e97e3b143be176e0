"""A subcommand: its flags in sections, its help text and its errors.

absl parses the flags. Its own help lists them by module, without sections,
examples and what stands for a value, so that the help text is made here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Callable, Optional

from absl import flags

# What Python says of texts that are no numbers, and what is said of flags.
_NO_NUMBER = {
  'invalid literal for int': 'must be a whole number, in digits',
  'could not convert string to float': 'must be a number, such as 0.5',
}
# What stands for a path in the help.
_PATHS = {'FILE': 'file', 'FOLDER': 'folder', 'DIR': 'folder'}
_WIDTH = 80
_INDENT = 28


class UsageError(ValueError):
  """The flags do not fit together; the message says what to type instead."""


class Options:
  """The absl flags of one command, grouped for its help text.

  >>> from tfdpflows.cli.command import Options
  >>> options = Options('sample')
  >>> options.section('Output')
  >>> options.number('num_rows', 'Rows.', whole=True)
  >>> options.parse(['--num_rows=3']).num_rows
  3
  """

  def __init__(self, command: str):
    self._command = command
    self._values = flags.FlagValues()
    self._sections = []
    self._texts = {}
    self._metavars = {}
    self._required = []
    self._numbers = []

  def section(self, title: str) -> None:
    """Puts the flags added from here on under `title`."""
    self._sections.append((title, []))

  def text(
    self,
    name: str,
    text: str,
    *,
    metavar: str,
    default: Optional[str] = None,
    required: bool = False,
    repeated: bool = False,
  ) -> None:
    """Adds a flag for a word or a path; `metavar` stands for it in the help.

    If `repeated`, it may be given several times and its value is a list.
    """
    define = flags.DEFINE_multi_string if repeated else flags.DEFINE_string
    self._add(define, name, default, text, metavar, required)

  def number(
    self,
    name: str,
    text: str,
    *,
    whole: bool = False,
    required: bool = False,
    **bounds: float,
  ) -> None:
    """Adds a flag for a number; `lower_bound` and `upper_bound` are allowed."""
    define = flags.DEFINE_integer if whole else flags.DEFINE_float
    self._add(define, name, None, text, 'N', required, **bounds)
    self._numbers.append(name)

  def switch(self, name: str, text: str, *, default: bool = False) -> None:
    """Adds a flag that is on or off."""
    self._add(flags.DEFINE_boolean, name, default, text)

  def choice(
    self,
    name: str,
    values: Sequence[str],
    text: str,
    *,
    default: str,
    metavar: Optional[str] = None,
  ) -> None:
    """Adds a flag whose value is one of `values`, which are its metavar."""
    metavar = metavar or '|'.join(values)
    define = flags.DEFINE_enum
    self._add(define, name, default, text, metavar, enum_values=list(values))

  def _add(
    self, define, name, default, text, metavar='', required=False, **kwargs
  ):
    define(name, default, help=text, flag_values=self._values, **kwargs)
    self._sections[-1][1].append(name)
    self._texts[name] = text
    self._metavars[name] = metavar
    if required:
      self._required.append(name)

  def parse(self, arguments: Sequence[str]) -> flags.FlagValues:
    """Returns the values of the flags in arguments such as '--epsilon=1'.

    Raises:
      UsageError: if a flag is unknown, missing or has a bad value.
    """
    more = f'See `tfdpflows {self._command} --help`.'
    try:
      rest = self._values([self._command, *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
      name = error.flagname
      close = difflib.get_close_matches(name, list(self._texts), n=1)
      meant = f' Did you mean --{close[0]}?' if close else ''
      raise UsageError(f'There is no flag --{name}.{meant} {more}') from error
    except (flags.Error, ValueError, OverflowError) as error:
      # Also what Python says of a number with thousands of digits.
      text = _shortened(str(error))
      for of_python, ours in _NO_NUMBER.items():
        text = re.sub(f'{of_python}.*', ours, text, flags=re.DOTALL)
      message = ' '.join(text.split()).rstrip('.')
      raise UsageError(f'{message}. {more}') from error
    self._check_numbers(arguments, more)
    if rest:
      raise UsageError(
        f'Unexpected argument {rest[0]!r}; flags are written --name=value. '
        f'{more}'
      )
    missing = [
      f'--{name}={self._metavars[name]}'
      for name in self._required
      if self._values[name].value is None
    ]
    if missing:
      raise UsageError(f'Missing: {", ".join(missing)}. {more}')
    self._check_paths()
    return self._values

  def _check_paths(self):
    """Refuses paths that are empty, as those of an unset variable are."""
    for name, metavar in self._metavars.items():
      value = self._values[name].value
      if metavar in _PATHS and value is not None and not all(value or ['']):
        what = _PATHS[metavar]
        raise UsageError(f'--{name} is empty: give the name of a {what}.')

  def _check_numbers(self, arguments, more):
    """Refuses infinities, NaN and digits other than 0 to 9."""
    for name in self._numbers:
      value = self._values[name].value
      if value is not None and not math.isfinite(value):
        raise UsageError(
          f'--{name}={value} must be a finite number, at most 1.8e308. {more}'
        )
    for argument in arguments:
      name, _, value = argument.lstrip('-').partition('=')
      if name in self._numbers and not value.isascii():
        raise UsageError(
          f'--{name}={_shortened(value)} must be written with the digits 0 to '
          f'9. {more}'
        )

  def usage(self) -> str:
    """Returns the line that shows how the command is called."""
    words = [f'--{name}={self._metavars[name]}' for name in self._required]
    return _wrapped(
      ' '.join(['Usage: tfdpflows', self._command, *words, '[flags]']),
      hanging=2,
    )

  def help(self) -> str:
    """Returns the sections of flags as text."""
    return '\n\n'.join(
      '\n'.join([f'{title}:', *map(self._flag_help, names)])
      for title, names in self._sections
    )

  def _flag_help(self, name):
    flag = self._values[name]
    if flag.boolean:
      left = f'  --[no]{name}' if flag.default else f'  --{name}'
    else:
      left = f'  --{name}={self._metavars[name]}'
    text = self._texts[name]
    if name in self._required:
      text += ' Required.'
    elif not flag.boolean and flag.default is not None:
      text += f' Default: {flag.default}.'
    body = textwrap.wrap(text, _WIDTH - _INDENT)
    if len(left) <= _INDENT - 2:
      first, body = left.ljust(_INDENT) + body[0], body[1:]
    else:
      first = left
    return '\n'.join([first, *(' ' * _INDENT + line for line in body)])


@dataclasses.dataclass(frozen=True)
class Command:
  """One subcommand of the program."""

  name: str
  summary: str  # Its line in the list of commands.
  description: str
  example: str  # One or more command lines.
  define: Callable[[Options], None]  # Adds its flags.
  run: Callable[[flags.FlagValues], None]  # Does the work.
  usage: Optional[str] = None  # Where no single flag is required.

  def options(self) -> Options:
    """Returns fresh `Options` with the flags of this command."""
    options = Options(self.name)
    self.define(options)
    options.section('Other')
    options.switch('debug', 'Show where in the code an error comes from.')
    return options

  def help(self) -> str:
    """Returns what `tfdpflows NAME --help` prints."""
    options = self.options()
    paragraphs = [_wrapped(p) for p in self.description.strip().split('\n\n')]
    example = textwrap.indent(textwrap.dedent(self.example).strip(), '  ')
    blocks = [
      f'tfdpflows {self.name}: {self.summary}',
      *paragraphs,
      self.usage or options.usage(),
      options.help(),
      f'Example:\n{example}',
    ]
    return '\n\n'.join(blocks)


def _shortened(text):
  """Returns a message with very long words cut."""
  return re.sub(r'(\S{40})\S{40,}', r'\1...', text)


def _wrapped(text, hanging=0):
  return textwrap.fill(
    ' '.join(text.split()),
    _WIDTH,
    subsequent_indent=' ' * hanging,
    break_long_words=False,
    break_on_hyphens=False,
  )
