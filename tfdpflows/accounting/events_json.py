"""Events to JSON and back, by a list of the classes that are known.

The list is closed on purpose: a file can name an event, never a class to be
imported.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any, Union

import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.event_bounds import MAX_DEPTH, check_event

__all__ = ['event_from_dict', 'event_to_dict']

# Name in the file -> class and the type of each field: float, int, bool or str;
# 'event', 'events', 'float or null', 'float or inf', 'int or null', 'floats',
# 'rows' (of floats), or 'int or ints'.
_CLASSES = {
  'NoOp': (dp_accounting.NoOpDpEvent, {}),
  'NonPrivate': (dp_accounting.NonPrivateDpEvent, {}),
  'Gaussian': (dp_accounting.GaussianDpEvent, {'noise_multiplier': float}),
  'Laplace': (dp_accounting.LaplaceDpEvent, {'noise_multiplier': float}),
  'DiscreteLaplace': (
    events_lib.DiscreteLaplaceDpEvent,
    {'noise_parameter': float, 'sensitivity': int},
  ),
  'RandomizedResponse': (
    events_lib.RandomizedResponseDpEvent,
    {'noise_parameter': float, 'num_buckets': int},
  ),
  'EpsilonDelta': (
    events_lib.EpsilonDeltaDpEvent,
    {'epsilon': float, 'delta': float},
  ),
  'ZCDp': (events_lib.ZCDpEvent, {'rho': float, 'xi': float}),
  'ExponentialMechanism': (
    events_lib.ExponentialMechanismDpEvent,
    {'epsilon': float},
  ),
  'PermuteAndFlip': (events_lib.PermuteAndFlipDpEvent, {'epsilon': float}),
  'SingleEpochTreeAggregation': (
    events_lib.SingleEpochTreeAggregationDpEvent,
    {'noise_multiplier': float, 'step_counts': 'int or ints'},
  ),
  'MatrixMechanism': (
    events_lib.MatrixMechanismDpEvent,
    {
      'noise_multiplier': float,
      'strategy': 'rows',
      'min_separation': int,
      'max_participations': 'int or null',
    },
  ),
  'ToeplitzMechanism': (
    events_lib.ToeplitzMechanismDpEvent,
    {
      'noise_multiplier': float,
      'coefficients': 'floats',
      'steps': int,
      'min_separation': int,
      'max_participations': 'int or null',
    },
  ),
  'CyclicPoissonSampled': (
    events_lib.CyclicPoissonSampledDpEvent,
    {'sampling_probability': float, 'parts': int, 'event': 'event'},
  ),
  'ReportNoisyMax': (
    events_lib.ReportNoisyMaxDpEvent,
    {'epsilon': float, 'noise': str},
  ),
  'SparseVector': (
    events_lib.SparseVectorDpEvent,
    {
      'epsilon_threshold': float,
      'epsilon_queries': float,
      'epsilon_answers': float,
    },
  ),
  'LNMax': (events_lib.LNMaxDpEvent, {'gamma': float}),
  'GNMax': (events_lib.GNMaxDpEvent, {'sigma': float}),
  'ConfidentGNMax': (
    events_lib.ConfidentGNMaxDpEvent,
    {
      'threshold': float,
      'sigma_threshold': float,
      'sigma': float,
      'answered': bool,
    },
  ),
  'DataDependent': (
    events_lib.DataDependentDpEvent,
    {
      'event': 'event',
      'log_q': 'float or null',
      'log_pr_answered': 'float or null',
    },
  ),
  'PoissonSampled': (
    dp_accounting.PoissonSampledDpEvent,
    {'sampling_probability': float, 'event': 'event'},
  ),
  'TruncatedSubsampledGaussian': (
    events_lib.TruncatedSubsampledGaussianDpEvent,
    {
      'dataset_size': int,
      'sampling_probability': float,
      'truncated_batch_size': int,
      'noise_multiplier': float,
    },
  ),
  'SampledWithoutReplacement': (
    dp_accounting.SampledWithoutReplacementDpEvent,
    {'source_dataset_size': int, 'sample_size': int, 'event': 'event'},
  ),
  'RepeatAndSelect': (
    events_lib.RepeatAndSelectDpEvent,
    {'event': 'event', 'mean': float, 'shape': 'float or inf'},
  ),
  'SelfComposed': (
    dp_accounting.SelfComposedDpEvent,
    {'event': 'event', 'count': int},
  ),
  'Composed': (dp_accounting.ComposedDpEvent, {'events': 'events'}),
  'Parallel': (events_lib.ParallelDpEvent, {'events': 'events'}),
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
    ValueError: If a number in it is not finite, as JSON has no such numbers, or
      it is too deep or too large to be read back (`event_bounds`).

  ```python
  >>> event_to_dict(dp_accounting.GaussianDpEvent(2.0))
  {'kind': 'Gaussian', 'noise_multiplier': 2.0}

  ```
  """
  return _to_dict(check_event(event))


def _to_dict(event: dp_accounting.DpEvent) -> dict[str, Any]:
  name = _NAMES.get(type(event))
  if name is None:
    raise TypeError(
      f'An event of class {type(event).__name__} cannot be written as JSON. '
      f'Known events are: {", ".join(sorted(_CLASSES))}.'
    )
  result = {'kind': name}
  for field, kind in _CLASSES[name][1].items():
    value = getattr(event, field)
    if kind == 'event':
      result[field] = _to_dict(value)
    elif kind == 'events':
      result[field] = [_to_dict(part) for part in value]
    elif kind == 'float or inf' and value == math.inf:
      result[field] = 'inf'
    else:
      result[field] = _value(value, kind, f'{name}.{field}')
  return result


def event_from_dict(data: dict[str, Any]) -> dp_accounting.DpEvent:
  """Turns what `event_to_dict` gave back into an equal event.

  Args:
    data: A dict with the key `kind`.

  Returns:
    The `DpEvent`.

  Raises:
    TypeError: If `data` or a field has another type than it must have.
    ValueError: If the kind is not known, a field is missing or unknown, or it
      is too deep or too large (`event_bounds`).

  ```python
  >>> event_from_dict({'kind': 'Laplace', 'noise_multiplier': 10.0})
  LaplaceDpEvent(noise_multiplier=10.0)

  ```
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
  if not isinstance(name, str) or name not in _CLASSES:
    raise ValueError(
      f'Unknown kind of event {reprlib.repr(name)}. '
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
    if kind == 'event':
      values[field] = _from_dict(value, depth + 1)
    elif kind == 'float or inf' and value == 'inf':
      values[field] = math.inf
    elif kind == 'events':
      if not isinstance(value, list):
        raise TypeError(
          f'{name}.{field} must be a list, not {reprlib.repr(value)}.'
        )
      values[field] = [_from_dict(part, depth + 1) for part in value]
    else:
      values[field] = _value(value, kind, f'{name}.{field}')
  return cls(**values)


def _value(value: Any, kind: Union[type, str], where: str) -> Any:
  if kind in ('float or null', 'int or null') and value is None:
    return None
  part = {'floats': float, 'rows': 'floats', 'int or ints': int}.get(kind)
  if part is not None and isinstance(value, (list, tuple)):
    return [_value(x, part, f'{where}[{i}]') for i, x in enumerate(value)]
  if kind in ('floats', 'rows'):
    raise TypeError(f'{where} must be a list, not {reprlib.repr(value)}.')
  if kind in (bool, str):
    if not isinstance(value, kind):
      raise TypeError(
        f'{where} must be a {kind.__name__}, not {reprlib.repr(value)}.'
      )
    return value
  if isinstance(value, (bool, str)) or value is None:
    raise TypeError(f'{where} must be a number, not {reprlib.repr(value)}.')
  kind = int if kind in (int, 'int or null', 'int or ints') else float
  try:
    if math.isfinite(value) and kind(value) == value:
      return kind(value)
  except OverflowError:
    pass
  raise ValueError(
    f'{where} must be a finite {kind.__name__}, not {reprlib.repr(value)}'
  )
