"""How files write tables: delimiter, encoding, numbers, missing values."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import functools
import gzip
import os
import re
from typing import Any

MISSING = ('', 'NA', 'NaN', 'null')
_TRUE = ('true', 'True', 'TRUE', '1')
_FALSE = ('false', 'False', 'FALSE', '0')
# Those that a header is searched for.
DELIMITERS = (',', ';', '\t', '|')
# What else stands for a blank or an apostrophe between groups of digits.
_GROUPS = {' ': '[ \u00a0\u2009\u202f]', "'": "['\u2019]"}
_BYTE_ORDER_MARKS = {
  codecs.BOM_UTF8: 'utf-8-sig',
  codecs.BOM_UTF16_LE: 'utf-16',
  codecs.BOM_UTF16_BE: 'utf-16',
}
_START = 1 << 16
# In these a cell may change what the bytes of all later ones stand for.
_SHIFTED = ('iso2022', 'hz', 'utf_7', 'unicode_escape', 'raw_unicode_escape')
# Properties of Frictionless whose default is how files are read.
_FIXED = {'quoteChar': '"', 'doubleQuote': True, 'header': True}


@dataclasses.dataclass(frozen=True)
class Dialect:
  """How a CSV file is divided into cells, in the words of Frictionless.

  Attributes:
    delimiter: the character between cells.
    encoding: of the file, by a name that Python knows. A byte order mark is
      read over in 'utf-8', and written in 'utf-8-sig'.

  Raises:
    ValueError: for a delimiter that is no single character, or is a quote, a
      digit or a line break; for an encoding that is not known.

  #### Example

  >>> from tfdpflows.tabular.dialect import Dialect
  >>> Dialect(';', 'cp1252').to_dict()
  {'dialect': {'delimiter': ';'}, 'encoding': 'cp1252'}
  """

  delimiter: str = ','
  encoding: str = 'utf-8'

  def __post_init__(self):
    if (
      not isinstance(self.delimiter, str)
      or len(self.delimiter) != 1
      or self.delimiter.isalnum()
      or self.delimiter in '"\r\n\0'
    ):
      raise ValueError(
        f'The delimiter is {self.delimiter!r}; give one character, such as ; '
        'or a tab.'
      )
    try:
      # Whatever the bytes, a row can be read in the end.
      b'a\xff\xfe'.decode(self.encoding, 'replace')
    except (LookupError, TypeError, ValueError):
      raise ValueError(
        f'The encoding {self.encoding!r} is not known; give one such as utf-8, '
        'cp1252, latin-1 or utf-16.'
      ) from None
    if codecs.lookup(self.encoding).name.replace('-', '_').startswith(_SHIFTED):
      raise ValueError(
        f'In the encoding {self.encoding!r} one cell may change how others are '
        'read; write the file in UTF-8.'
      )
    if not can_write(self.delimiter, self.encoding):
      raise ValueError(
        f'The encoding {self.encoding!r} cannot write the delimiter '
        f'{self.delimiter!r}; choose another one.'
      )

  @property
  def reads(self) -> str:
    """The name of the encoding to read with: a byte order mark is no text."""
    is_utf8 = codecs.lookup(self.encoding).name == 'utf-8'
    return 'utf-8-sig' if is_utf8 else self.encoding

  def to_dict(self) -> dict[str, Any]:
    """Returns what differs from the default, as a JSON-able `dict`."""
    found = {}
    if self.delimiter != ',':
      found['dialect'] = {'delimiter': self.delimiter}
    if self.encoding != 'utf-8':
      found['encoding'] = self.encoding
    return found

  @classmethod
  def from_dict(cls, raw: dict[str, Any]) -> Dialect:
    """Returns the dialect in the `dict` of a schema."""
    found = raw.get('dialect', {})
    if not isinstance(found, dict):
      raise ValueError(
        f'The dialect of the schema is {found!r}; give an object with '
        '"delimiter". The encoding stands beside it, in "encoding".'
      )
    for key, value in found.items():
      if key != 'delimiter' and _FIXED.get(key) != value:
        raise ValueError(
          f'The dialect of the schema has {key!r}: {value!r}, in which no file '
          'is read here; remove it, or write the file otherwise.'
        )
    return cls(found.get('delimiter', ','), raw.get('encoding', 'utf-8'))

  @classmethod
  def of_file(
    cls,
    path: str | os.PathLike,
    delimiter: str | None = None,
    encoding: str | None = None,
  ) -> Dialect:
    """Returns the dialect of a CSV file, by what is public of it.

    The encoding is that of the byte order mark, UTF-8 without one. The
    delimiter is that of comma, semicolon, tab and | which is most often in the
    header. No row is looked at: names of columns count as public.

    Args:
      path: of the file; may end in '.gz'.
      delimiter: if it is known.
      encoding: if it is known.

    Raises:
      ValueError: if the header is not in the encoding.
      OSError: if the file cannot be read.
    """
    with (gzip.open if os.fspath(path).endswith('.gz') else open)(
      path, 'rb'
    ) as file:
      start = file.read(_START)
    if encoding is None:
      marks = (
        n for mark, n in _BYTE_ORDER_MARKS.items() if start.startswith(mark)
      )
      encoding = next(marks, 'utf-8')
    known = cls(encoding=encoding)
    if delimiter is None:
      # The bytes of the end may be half a character.
      lines = start.decode(known.reads, 'replace').splitlines()
      header = next((line for line in lines if line), '')
      counts = {d: _cells(header, d) for d in DELIMITERS}
      delimiter = max(counts, key=counts.get)
    return cls(delimiter, encoding)


def can_write(text: str, encoding: str) -> bool:
  """Whether a text can be written in an encoding."""
  try:
    text.encode(encoding)
  except UnicodeEncodeError:
    return False
  return True


COMMAS = Dialect()


def _cells(header, delimiter):
  # Python 3.9 and 3.10 read no NUL characters.
  header = header.replace('\0', '')
  return len(next(csv.reader([header], delimiter=delimiter), ()))


@dataclasses.dataclass(frozen=True)
class CellFormat:
  """How a file writes the values of a column, in the words of Frictionless.

  It says how text is read, and how CSV is written. Cells that are no text,
  such as those of a `DataFrame` or a Parquet file, are what they are.

  Attributes:
    missing_values: what stands for a missing value. In columns of numbers, and
      for cells that are numbers, -99 is -99.0.
    decimal_char: the decimal point.
    group_char: what separates groups of digits, if anything does; a blank is
      any of those that do not break a line too.
    bare_number: whether a number stands alone. If not, characters before and
      after it, such as those of a currency or %, are dropped: 12 % is 12.
    true_values: texts that are true.
    false_values: texts that are false.

  Raises:
    ValueError: for what cannot be told apart.

  #### Example

  >>> from tfdpflows.tabular.dialect import CellFormat
  >>> euros = CellFormat(decimal_char=',', group_char='.', bare_number=False)
  >>> euros.plain('-1.234,50 EUR'), euros.plain('1.5')
  ('-1234.50', None)
  """

  missing_values: tuple = MISSING
  decimal_char: str = '.'
  group_char: str | None = None
  bare_number: bool = True
  true_values: tuple = _TRUE
  false_values: tuple = _FALSE

  def __post_init__(self):
    for name in ('missing_values', 'true_values', 'false_values'):
      words = getattr(self, name)
      if (
        not isinstance(words, (list, tuple))
        or not words
        or not all(isinstance(word, str) for word in words)
      ):
        raise ValueError(
          f'{_JSON[name]} is {words!r}; give a list of one text or more.'
        )
      if any('\0' in word for word in words):
        raise ValueError(
          f'{_JSON[name]} is {words!r}; cells are read without NUL characters.'
        )
      object.__setattr__(self, name, tuple(words))
    both = set(self.true_values) & set(self.false_values)
    if both:
      raise ValueError(f'{both.pop()!r} is true and false; remove one.')
    for name in ('decimal_char', 'group_char'):
      char = getattr(self, name)
      if (name == 'decimal_char' or char is not None) and not (
        isinstance(char, str)
        and len(char) == 1
        and not char.isalnum()
        and char not in '+-\r\n\0'
      ):
        raise ValueError(
          f'{_JSON[name]} is {char!r}; give one character, such as a comma.'
        )
    if self.decimal_char == self.group_char:
      raise ValueError(
        f'decimalChar and groupChar are both {self.group_char!r}; they cannot '
        'be the same.'
      )
    if not isinstance(self.bare_number, bool):
      raise ValueError(
        f'bareNumber is {self.bare_number!r}; write true or false.'
      )

  @property
  def is_plain(self) -> bool:
    """Whether numbers are written as Python writes them."""
    return (self.decimal_char, self.group_char, self.bare_number) == (
      '.',
      None,
      True,
    )

  def plain(self, text: str) -> str | None:
    """Returns a number as Python writes it, `None` for what is no number."""
    if self.is_plain:
      return text
    found = _pattern(self)(text.strip())
    if found is None or (found['sign'] and found['inner']):
      return None
    whole = re.sub('[^0-9]', '', found['whole'] or '')
    sign = (found['sign'] or found['inner'] or '').replace('\u2212', '-')
    part, exponent = found['part'] or found['only'] or '', found['exponent']
    return f'{sign}{whole}{"." * bool(part)}{part}{exponent or ""}'

  def written(self, number: float) -> str:
    """Returns the text of a number, with the decimal point of the format."""
    return repr(number).replace('.', self.decimal_char)

  def to_dict(self) -> dict[str, Any]:
    """Returns what differs from the default, as a JSON-able `dict`."""
    found = {}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value != field.default:
        is_list = isinstance(value, tuple)
        found[_JSON[field.name]] = list(value) if is_list else value
    return found

  @classmethod
  def from_dict(cls, raw: dict[str, Any]) -> CellFormat:
    """Returns the format that the `dict` of a field describes."""
    return cls(**{n: raw[word] for n, word in _JSON.items() if word in raw})


PLAIN = CellFormat()
# The words of Frictionless.
_JSON = {
  'missing_values': 'missingValues',
  'decimal_char': 'decimalChar',
  'group_char': 'groupChar',
  'bare_number': 'bareNumber',
  'true_values': 'trueValues',
  'false_values': 'falseValues',
}
WORDS = tuple(_JSON.values())


@functools.lru_cache
def _pattern(cells):
  """What matches a number in a format, and finds its parts."""
  point, group = re.escape(cells.decimal_char), cells.group_char
  whole, around = '[0-9]+', ''
  if group is not None:
    group = _GROUPS.get(group, re.escape(group))
    # Groups of two are those of India; the last has three digits.
    whole = f'[0-9]{{1,3}}(?:{group}[0-9]{{2,3}})*{group}[0-9]{{3}}|[0-9]+'
  if not cells.bare_number:
    # Brackets may be a sign. A point behind a letter ends a word: Rs. 5.
    chars = re.escape(cells.decimal_char + (cells.group_char or '').strip())
    around = rf'(?:[^0-9+()\-\u2212{chars}]|(?<=[^\W\d_])\.)*'
  return re.compile(
    rf'(?P<sign>[+\-\u2212])?{around}(?:(?P<inner>[+\-\u2212]){around})?'
    rf'(?:(?P<whole>{whole})(?:{point}(?P<part>[0-9]*))?'
    rf'|{point}(?P<only>[0-9]+))'
    rf'(?P<exponent>[eE][+-]?[0-9]+)?{around}'
  ).fullmatch
