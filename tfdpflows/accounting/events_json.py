"""Events to JSON and back.

The list of classes, `events.KINDS`, is closed on purpose: a file can name an
event, never a class to be imported. The annotations of a class give the types
of its fields.
"""

from __future__ import annotations

import functools
import math
import reprlib
import typing
from typing import Any, Callable, Union

import dp_accounting

from tfdpflows.accounting.event_bounds import MAX_DEPTH, check_event
from tfdpflows.accounting.events import KINDS

# JSON has no infinity; here it is the text 'inf'.
_MAY_BE_INFINITE = ('RepeatAndSelect.shape',)

_fields = functools.lru_cache(maxsize=None)(typing.get_type_hints)


def event_to_dict(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Returns an event as a dict that `json.dumps` takes.

  It has the key `kind` and one key for each field.

  Raises:
    TypeError: if the class of `event`, or of an event in it, is not known.
    ValueError: if a number in it is not finite, as JSON has no such numbers, or
      it is too deep or too large to be read back (`event_bounds`).

  >>> event_to_dict(dp_accounting.GaussianDpEvent(2.0))
  {'kind': 'Gaussian', 'noise_multiplier': 2.0}
  """
  return _to_dict(check_event(event))


def _to_dict(event: dp_accounting.DpEvent) -> dict[str, Any]:
  name = next((x for x, cls in KINDS.items() if cls is type(event)), None)
  if name is None:
    raise TypeError(
      f'An event of class {type(event).__name__} cannot be written as JSON. '
      f'Known events are: {", ".join(sorted(KINDS))}.'
    )
  result = {'kind': name}
  for field, kind in _fields(KINDS[name]).items():
    value, where = getattr(event, field), f'{name}.{field}'
    if where in _MAY_BE_INFINITE and value == math.inf:
      result[field] = 'inf'
    else:
      result[field] = _converted(value, kind, where, _to_dict)
  return result


def event_from_dict(data: dict[str, Any]) -> dp_accounting.DpEvent:
  """Returns the event that `event_to_dict` gave a dict for.

  Raises:
    TypeError: if `data` or a field has another type than it must have.
    ValueError: if the kind is not known, a field is missing or unknown, or it
      is too deep or too large (`event_bounds`).

  >>> event_from_dict({'kind': 'Laplace', 'noise_multiplier': 10.0})
  LaplaceDpEvent(noise_multiplier=10.0)
  """
  return check_event(_from_dict(data, 1))


def _from_dict(data: dict[str, Any], depth: int) -> dp_accounting.DpEvent:
  if depth > MAX_DEPTH:
    raise ValueError(
      f'The event is nested too deep: at most {MAX_DEPTH} events within each '
      'other are accounted.'
    )
  if not isinstance(data, dict):
    raise TypeError(
      f'An event must be a JSON object, not a {type(data).__name__}.'
    )
  name = data.get('kind')
  if not isinstance(name, str) or name not in KINDS:
    raise ValueError(
      f'Unknown kind of event {reprlib.repr(name)}. '
      f'Known kinds are: {", ".join(sorted(KINDS))}.'
    )
  fields = _fields(KINDS[name])
  if set(data) != {'kind', *fields}:
    raise ValueError(
      f'An event of kind {name} has the fields {sorted(fields)}, '
      f'not {sorted(set(data) - {"kind"})}.'
    )
  values = {}
  for field, kind in fields.items():
    value, where = data[field], f'{name}.{field}'
    if where in _MAY_BE_INFINITE and value == 'inf':
      values[field] = math.inf
    else:
      inner = lambda part: _from_dict(part, depth + 1)
      values[field] = _converted(value, kind, where, inner)
  return KINDS[name](**values)


def _converted(
  value: Any, kind: Any, where: str, inner: Callable[[Any], Any]
) -> Any:
  """Converts a value to the annotated type; `inner` converts its events."""
  args = typing.get_args(kind)
  if typing.get_origin(kind) is Union:
    if value is None and type(None) in args:
      return None
    # Optional[float], Optional[int], or Union[int, List[int]].
    a_list = isinstance(value, (list, tuple)) and args[1] is not type(None)
    return _converted(value, args[int(a_list)], where, inner)
  if args:
    if not isinstance(value, (list, tuple)):
      raise TypeError(f'{where} must be a list, not {reprlib.repr(value)}.')
    return [
      _converted(part, args[0], f'{where}[{i}]', inner)
      for i, part in enumerate(value)
    ]
  if kind is dp_accounting.DpEvent:
    return inner(value)
  if kind in (bool, str):
    if not isinstance(value, kind):
      raise TypeError(
        f'{where} must be a {kind.__name__}, not {reprlib.repr(value)}.'
      )
    return value
  if isinstance(value, (bool, str)) or value is None:
    raise TypeError(f'{where} must be a number, not {reprlib.repr(value)}.')
  try:
    if math.isfinite(value) and kind(value) == value:
      return kind(value)
  except OverflowError:
    pass
  raise ValueError(
    f'{where} must be a finite {kind.__name__}, not {reprlib.repr(value)}'
  )
