"""Events to JSON and back, by a list of the classes that are known.

The list is closed on purpose: a file can name an event, never a class to be
imported.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting

from tfdpflows.accounting import events as events_lib

__all__ = ['event_from_dict', 'event_to_dict']

# Name in the file -> class and the JSON type of each field.
_CLASSES = {
  'NoOp': (dp_accounting.NoOpDpEvent, {}),
  'NonPrivate': (dp_accounting.NonPrivateDpEvent, {}),
  'Gaussian': (dp_accounting.GaussianDpEvent, {'noise_multiplier': float}),
  'Laplace': (dp_accounting.LaplaceDpEvent, {'noise_multiplier': float}),
  'EpsilonDelta': (
    events_lib.EpsilonDeltaDpEvent,
    {'epsilon': float, 'delta': float},
  ),
  'ZCDp': (events_lib.ZCDpEvent, {'rho': float, 'xi': float}),
  'PoissonSampled': (
    dp_accounting.PoissonSampledDpEvent,
    {'sampling_probability': float, 'event': dict},
  ),
  'SampledWithoutReplacement': (
    dp_accounting.SampledWithoutReplacementDpEvent,
    {'source_dataset_size': int, 'sample_size': int, 'event': dict},
  ),
  'SelfComposed': (
    dp_accounting.SelfComposedDpEvent,
    {'event': dict, 'count': int},
  ),
  'Composed': (dp_accounting.ComposedDpEvent, {'events': list}),
}
_NAMES = {cls: name for name, (cls, _) in _CLASSES.items()}


def event_to_dict(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Turns an event into a dict that `json.dumps` takes.

  Args:
    event: A `DpEvent` of one of the known classes.

  Returns:
    A dict with the key `kind` and one key for each field.

  Raises:
    TypeError: If the class of `event`, or of an event in it, is not known.
    ValueError: If a number in it is not finite, as JSON has no such numbers.

  ```python
  >>> event_to_dict(dp_accounting.GaussianDpEvent(2.0))
  {'kind': 'Gaussian', 'noise_multiplier': 2.0}

  ```
  """
  name = _NAMES.get(type(event))
  if name is None:
    raise TypeError(
      f'An event of class {type(event).__name__} cannot be written as JSON. '
      f'Known events are: {", ".join(sorted(_CLASSES))}.'
    )
  result = {'kind': name}
  for field, kind in _CLASSES[name][1].items():
    value = getattr(event, field)
    if kind is dict:
      result[field] = event_to_dict(value)
    elif kind is list:
      result[field] = [event_to_dict(part) for part in value]
    else:
      result[field] = _number(value, kind, f'{name}.{field}')
  return result


def event_from_dict(data: dict[str, Any]) -> dp_accounting.DpEvent:
  """Turns what `event_to_dict` gave back into an equal event.

  Args:
    data: A dict with the key `kind`.

  Returns:
    The `DpEvent`.

  Raises:
    TypeError: If `data` or a field has another type than it must have.
    ValueError: If the kind is not known or a field is missing or unknown.

  ```python
  >>> event_from_dict({'kind': 'Laplace', 'noise_multiplier': 10.0})
  LaplaceDpEvent(noise_multiplier=10.0)

  ```
  """
  if not isinstance(data, dict):
    raise TypeError(f'An event must be a JSON object, not {data!r}.')
  name = data.get('kind')
  if not isinstance(name, str) or name not in _CLASSES:
    raise ValueError(
      f'Unknown kind of event {name!r}. '
      f'Known kinds are: {", ".join(sorted(_CLASSES))}.'
    )
  cls, fields = _CLASSES[name]
  if set(data) != {'kind', *fields}:
    raise ValueError(
      f'An event of kind {name} has the fields {sorted(fields)}, '
      f'not {sorted(set(data) - {"kind"})}.'
    )
  values = {}
  for field, kind in fields.items():
    value = data[field]
    if kind is dict:
      values[field] = event_from_dict(value)
    elif kind is list:
      if not isinstance(value, list):
        raise TypeError(f'{name}.{field} must be a list, not {value!r}.')
      values[field] = [event_from_dict(part) for part in value]
    else:
      values[field] = _number(value, kind, f'{name}.{field}')
  return cls(**values)


def _number(value: Any, kind: type, where: str) -> Any:
  if isinstance(value, (bool, str)) or value is None:
    raise TypeError(f'{where} must be a number, not {value!r}.')
  result = kind(value)
  if result != value or not math.isfinite(result):
    raise ValueError(f'{where} must be a finite {kind.__name__}, not {value!r}')
  return result
