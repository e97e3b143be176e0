"""Dates, times, datetimes and durations as whole numbers of a unit."""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd

TYPES = ('date', 'datetime', 'time', 'duration')
# In microseconds.
_UNITS = {
  'day': 86_400_000_000,
  'hour': 3_600_000_000,
  'minute': 60_000_000,
  'second': 1_000_000,
  'millisecond': 1_000,
  'microsecond': 1,
}
_DAY = _UNITS['day']
_START = datetime.datetime(1970, 1, 1)
_UTC = datetime.timezone.utc
_MICROSECOND = datetime.timedelta(microseconds=1)
_LARGEST = 2**62
_CLOCK = r'(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?'
_DATE_TEXT = re.compile(r'(\d{4})-(\d\d)-(\d\d)', re.ASCII)
_DATETIME_TEXT = re.compile(
  rf'(\d{{4}})-(\d\d)-(\d\d)[T ]{_CLOCK}\s?'
  r'(?:(Z)|([+-]\d\d):?(\d\d)?(?::(\d\d))?)?',
  re.ASCII,
)
_TIME_TEXT = re.compile(_CLOCK, re.ASCII)
# ISO 8601 without years and months, which have no fixed length.
_DURATION_TEXT = re.compile(
  r'([+-]?)P(?=.)(?:(\d+)W)?(?:(\d+)D)?'
  r'(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?',
  re.ASCII,
)
# As pandas and Python write them: -1 days +02:00:00, or 36:00:00.
_CLOCK_DURATION = re.compile(
  r'(?:(-?\d+) days?,?)?\s?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?',
  re.ASCII,
)


@dataclasses.dataclass(frozen=True)
class TimeScale:
  """How values of a type of time are whole numbers, and how they are written.

  They count units since 1970, since midnight, or the units of a duration. What
  is finer than the unit is cut off.

  Attributes:
    type: one of `TYPES`.
    unit: 'day', 'hour', 'minute', 'second', 'millisecond' or 'microsecond'; a
      day for dates, by default a second for the others.
    format: how text is written, for `datetime.strptime`, such as '%d.%m.%Y';
      by default that of ISO 8601. ISO 8601 is read in any case, and written
      where the format would be read as another value: of two hours of the same
      name when clocks are set back, and years that %y has not.
    timezone: of datetimes, such as 'Europe/Berlin': those with an offset are
      moved to it, and those without are of it. By default there are none with
      an offset.

  Raises:
    ValueError: for what does not fit the type.

  #### Example

  >>> from tfdpflows.tabular.times import TimeScale
  >>> day = TimeScale('date', format='%d.%m.%Y')
  >>> day.count('02.01.1970'), day.text(1), day.text(1, iso=True)
  (1, '02.01.1970', '1970-01-02')
  """

  type: str
  unit: str | None = None
  format: str | None = None
  timezone: str | None = None

  def __post_init__(self):
    default = 'day' if self.type == 'date' else 'second'
    if self.format == 'default':  # As Frictionless names it.
      object.__setattr__(self, 'format', None)
    if self.unit is None:
      object.__setattr__(self, 'unit', default)
    if self.unit not in _UNITS or (self.type == 'date' and self.unit != 'day'):
      known = ['day'] if self.type == 'date' else list(_UNITS)
      raise ValueError(
        f'has unit {self.unit!r}; use {" or ".join(known)} for a {self.type}'
      )
    if self.timezone is not None:
      if self.type != 'datetime':
        raise ValueError(f'of type {self.type} has a timezone; remove it')
      try:
        zoneinfo.ZoneInfo(self.timezone)
      except Exception:
        raise ValueError(
          f'has the timezone {self.timezone!r}, which is not known; give a '
          'name such as UTC or Europe/Berlin'
        ) from None
    if self.format is not None:
      self._check_format()

  def _check_format(self):
    # 2 January 2008, after noon and with all digits of a second.
    day, clock = 13_880 * _DAY, 56_430_987_654
    some = {'date': day, 'time': clock}.get(self.type, day + clock)
    some = self.floor(some)
    try:
      value = self._python(some)
      texts = value.strftime(self.format), value.isoformat()
      # ISO 8601 is how bounds are kept: it must not mean another day.
      same = self.type != 'duration' and all(
        self.count(text) == some for text in texts
      )
    except Exception:
      same = False
    if not same:
      raise ValueError(
        f'has format {self.format!r}, in which no {self.type} can be written '
        "and read again; give one such as '%d.%m.%Y', or remove it"
      )

  @property
  def largest(self) -> int:
    """The most units that there is room for."""
    return min(_LARGEST // self._size, 2**53)

  @property
  def _size(self):
    return _UNITS[self.unit]

  @property
  def _zone(self):
    return None if self.timezone is None else zoneinfo.ZoneInfo(self.timezone)

  def floor(self, micros: int) -> int:
    """Returns the whole units in a number of microseconds."""
    return micros // self._size

  def count(self, value: Any) -> int | None:
    """Returns the whole units of a value, `None` if it is none of the type."""
    micros = self._micros(value)
    return None if micros is None else self.floor(micros)

  def is_whole(self, value: Any) -> bool:
    """Whether a value is a whole number of units."""
    micros = self._micros(value)
    return micros is not None and micros % self._size == 0

  def counts(
    self, cells: pd.Series, clip: bool
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the whole units of cells, each by itself.

    Args:
      cells: `[n]`, text or values, none of them missing.
      clip: whether a date may have a time of day, which is cut off.

    Returns:
      int64 `[n]`, and bool `[n]`: which are no values of the type.
    """
    dtype = cells.dtype
    kind = getattr(dtype, 'kind', 'O')
    is_aware = isinstance(dtype, pd.DatetimeTZDtype)
    # Types of Arrow have a time zone or not, and do not say so.
    is_known = is_aware or isinstance(dtype, np.dtype)
    wanted = {'date': 'M', 'datetime': 'M', 'duration': 'm'}.get(self.type)
    if is_known and kind == wanted and is_aware == (self.timezone is not None):
      if is_aware:
        cells = cells.dt.tz_convert('UTC').dt.tz_localize(None)
      micros = _micros_of_array(cells.to_numpy())
      bad = np.zeros(len(micros), bool)
    else:
      found = cells.astype(object)
      known = {}
      micros = np.zeros(len(found), np.int64)
      bad = np.zeros(len(found), bool)
      for i, cell in enumerate(found):
        if not issubclass(type(cell), str):
          value = self._micros(cell)
        else:
          # Only texts are told apart by their hashes, and plain ones at that.
          cell = str.__str__(cell)
          if cell not in known:
            known[cell] = self._micros(cell)
          value = known[cell]
        bad[i] = value is None
        micros[i] = min(max(value or 0, -_LARGEST), _LARGEST)
    if self.type == 'date' and not clip:
      bad |= micros % _DAY != 0
    return micros // self._size, bad

  def _micros(self, value):
    try:
      read = {'time': self._of_time, 'duration': _of_duration}
      return read.get(self.type, self._of_datetime)(value)
    except Exception:  # Whatever a cell is, a table is not refused for it.
      return None

  def _of_datetime(self, value):
    if isinstance(value, str):
      value = self._of_text(value.strip())
    if isinstance(value, np.datetime64):
      value = pd.Timestamp(value)
    if isinstance(value, pd.Timestamp):
      if value.tzinfo is None and self.timezone is not None:
        value = value.to_pydatetime(warn=False)
      else:
        if (value.tzinfo is None) != (self.timezone is None):
          return None
        if value.tzinfo is not None:
          value = value.tz_convert('UTC').tz_localize(None)
        return int(_micros_of_array(np.array([value.asm8]))[0])
    if isinstance(value, datetime.datetime):
      if value.tzinfo is None:
        if self.timezone is None:
          return (value - _START) // _MICROSECOND
        # pandas has no fold, unless other cells are no datetimes.
        value = value.replace(tzinfo=self._zone, fold=0)
      elif self.timezone is None:
        return None
      # That of UTC may be out of the calendar of Python.
      offset = value.utcoffset()
      return (value.replace(tzinfo=None) - _START - offset) // _MICROSECOND
    if isinstance(value, datetime.date):
      return self._of_datetime(datetime.datetime(*value.timetuple()[:3]))
    return None

  def _of_text(self, text):
    value = self._of_format(text)
    if value is not None:
      return value
    found = _DATE_TEXT.fullmatch(text)
    if found:
      return datetime.datetime(*map(int, found.groups()))
    found = _DATETIME_TEXT.fullmatch(text)
    if not found:
      return None
    part, is_utc, hours, *more = found.groups()[6:]
    date = (int(number or 0) for number in found.groups()[:6])
    value = datetime.datetime(*date, _micros_of(part))
    if is_utc:
      return value.replace(tzinfo=_UTC)
    if hours is None:
      return value
    minutes, seconds = (int(n or 0) for n in more)
    offset = datetime.timedelta(
      hours=int(hours[1:]), minutes=minutes, seconds=seconds
    )
    offset = -offset if hours[0] == '-' else offset
    return value.replace(tzinfo=datetime.timezone(offset))

  def _of_format(self, text):
    if self.format is None:
      return None
    try:
      return datetime.datetime.strptime(text, self.format)
    except ValueError:
      return None

  def _of_time(self, value):
    if isinstance(value, str):
      text = value.strip()
      value = self._of_format(text)
      value = None if value is None else value.time()
      found = _TIME_TEXT.fullmatch(text)
      if value is None and found:
        hour, minute, second, part = found.groups()
        value = datetime.time(
          *map(int, (hour, minute, second or 0, _micros_of(part)))
        )
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
      return None
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond

  def text(self, count: int, iso: bool = False) -> str:
    """Returns the text of a value, in the format or that of ISO 8601."""
    if self.type == 'duration':
      return _duration_text(count * self._size)
    value = self._python(count)
    if self.format is not None and not iso:
      text = value.strftime(self.format)
      if self.count(text) == count:
        return text
    return value.isoformat()

  def _python(self, count):
    """A value as Python has it."""
    value = _START + datetime.timedelta(microseconds=count * self._size)
    if self.type == 'date':
      return value.date()
    if self.type == 'time':
      return value.time()
    if self.timezone is None:
      return value
    return value.replace(tzinfo=_UTC).astimezone(self._zone)

  def values(
    self, counts: np.ndarray, missing: np.ndarray | None = None
  ) -> pd.Series:
    """Returns values, as pandas has them.

    Dates are of type `datetime64[s]`, datetimes and durations of seconds,
    milliseconds or microseconds by their unit, times `datetime.time` objects.

    Args:
      counts: whole units, int64 `[n]`.
      missing: bool `[n]`.
    """
    counts = np.asarray(counts, np.int64)
    if missing is None:
      missing = np.zeros(len(counts), bool)
    counts = np.where(missing, 0, counts)
    if self.type == 'time':
      known, places = np.unique(counts, return_inverse=True)
      times = np.empty(len(known), object)
      times[:] = [self._python(int(count)) for count in known]
      found = times[places.reshape(-1)]
      found[missing] = None
      return pd.Series(found, dtype=object)
    kind = 'm' if self.type == 'duration' else 'M'
    found = (counts * self._size).astype(f'{kind}8[us]')
    found = found.astype(f'{kind}8[{self.resolution}]')
    found[missing] = 'NaT'
    found = pd.Series(found)
    if self.timezone is None:
      return found
    return found.dt.tz_localize('UTC').dt.tz_convert(self.timezone)

  @property
  def resolution(self) -> str:
    """The unit in which NumPy and Arrow have the values: s, ms or us."""
    return {'millisecond': 'ms', 'microsecond': 'us'}.get(self.unit, 's')

  def texts(self, values: pd.Series) -> pd.Series:
    """Returns the texts of values, `None` where they are missing."""
    present = values.notna().to_numpy(bool)
    counts, _ = self.counts(values[present], clip=True)
    known, places = np.unique(counts, return_inverse=True)
    texts = np.array([self.text(int(count)) for count in known], object)
    found = np.full(len(values), None, object)
    if len(known):
      found[present] = texts[places.reshape(-1)]
    return pd.Series(found, index=values.index, dtype=object)


def _micros_of(part):
  """The microseconds of digits after the point; further ones are cut off."""
  return int((part or '').ljust(6, '0')[:6])


def _of_duration(value):
  if isinstance(value, (np.timedelta64, pd.Timedelta)):
    value = pd.Timedelta(value).asm8
    return (
      None if np.isnat(value) else int(_micros_of_array(np.array([value]))[0])
    )
  if isinstance(value, datetime.timedelta):
    return value // _MICROSECOND
  if not isinstance(value, str):
    return None
  text = value.strip()
  found = _DURATION_TEXT.fullmatch(text)
  if found:
    sign, *parts, part = found.groups()
    weeks, days, hours, minutes, seconds = (int(p or 0) for p in parts)
    whole = _whole(weeks * 7 + days, hours, minutes, seconds, part)
    return _signed(whole, sign, part)
  found = _CLOCK_DURATION.fullmatch(text)
  if not found or not any(found.groups()):
    return None
  days, sign, *parts, part = found.groups()
  clock = _whole(0, *(int(p or 0) for p in parts), part)
  return int(days or 0) * _DAY + _signed(clock, sign, part)


def _signed(micros, sign, part):
  """With its sign; further digits are cut off downwards, as of numbers."""
  if sign != '-':
    return micros
  return -micros - bool((part or '')[6:].strip('0'))


def _micros_of_array(array):
  """The microseconds of values of NumPy, int64, as far as there is room."""
  unit, numbers = np.datetime_data(array.dtype)[0], array.astype(np.int64)
  if unit == 'ns':
    return numbers // 1000
  factor = {'s': 1_000_000, 'ms': 1000, 'us': 1}[unit]
  most = _LARGEST // factor
  return np.clip(numbers, -most, most) * factor


def _whole(days, hours, minutes, seconds, part):
  seconds += ((days * 24 + hours) * 60 + minutes) * 60
  return seconds * 1_000_000 + _micros_of(part)


def _duration_text(micros):
  sign = '-' if micros < 0 else ''
  days, rest = divmod(abs(micros), _DAY)
  minutes, rest = divmod(rest, _UNITS['minute'])
  hours, minutes = divmod(minutes, 60)
  seconds, part = divmod(rest, 1_000_000)
  seconds = f'{seconds}.{part:06}'.rstrip('0') if part else f'{seconds}'
  parts = ((hours, 'H'), (minutes, 'M'), (seconds, 'S'))
  clock = ''.join(f'{n}{name}' for n, name in parts if n not in (0, '0'))
  if not days and not clock:
    return 'PT0S'
  return f'{sign}P{f"{days}D" * bool(days)}{f"T{clock}" * bool(clock)}'
