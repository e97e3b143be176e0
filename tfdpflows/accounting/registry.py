"""Accountants by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import dp_accounting

from tfdpflows.accounting import pld, rdp

__all__ = [
  'accountant_names',
  'compose_event',
  'compute_epsilon',
  'create_accountant',
  'register_accountant',
  'resolve_name',
]

_GUARANTEES = ('upper_bound', 'asymptotic')
_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

_classes: dict[str, type] = {}
_aliases: dict[str, str] = {}


def register_accountant(
  name: str, cls: type, aliases: Sequence[str] = ()
) -> None:
  """Makes an accountant known by a name.

  Args:
    name: Lower-case name.
    cls: A subclass of `dp_accounting.PrivacyAccountant` with an attribute
      `guarantee`, 'upper_bound' or 'asymptotic', whose constructor takes
      `neighboring_relation`.
    aliases: Other names for it.

  Raises:
    TypeError: If `cls` is not a class of accountants.
    ValueError: If the guarantee is neither of the two, or a name is taken.

  ```python
  >>> class Coarse(pld.PLDAccountant):
  ...   name = 'coarse'
  ...   def __init__(self, neighboring_relation):
  ...     super().__init__(neighboring_relation, 1e-2)
  >>> register_accountant('coarse', Coarse)
  >>> create_accountant('coarse').guarantee
  'upper_bound'
  >>> _ = _classes.pop('coarse'), _aliases.pop('coarse')

  ```
  """
  if not (
    isinstance(cls, type) and issubclass(cls, dp_accounting.PrivacyAccountant)
  ):
    raise TypeError(
      f'{cls!r} must be a subclass of dp_accounting.PrivacyAccountant.'
    )
  if getattr(cls, 'guarantee', None) not in _GUARANTEES:
    raise ValueError(
      f'{cls.__name__}.guarantee must be one of {_GUARANTEES}; it says whether '
      'its epsilon may stand in a claim.'
    )
  for alias in (name, *aliases):
    if _aliases.get(alias, name) != name or alias in set(_classes) - {name}:
      raise ValueError(
        f'The name {alias!r} is taken by {_aliases[alias]!r}; choose another.'
      )
  _classes[name] = cls
  for alias in (name, *aliases):
    _aliases[alias] = name


def accountant_names() -> tuple[str, ...]:
  """The names of all accountants, without aliases.

  Returns:
    A sorted tuple.

  ```python
  >>> accountant_names()
  ('pld', 'rdp')

  ```
  """
  return tuple(sorted(_classes))


def resolve_name(name: str) -> str:
  """The name that a name or alias stands for.

  Args:
    name: A name or an alias.

  Returns:
    A name of `accountant_names()`.

  Raises:
    ValueError: If it is unknown; names all and the nearest.

  ```python
  >>> resolve_name('prv')
  'pld'

  ```
  """
  if name in _aliases:
    return _aliases[name]
  near = difflib.get_close_matches(str(name).lower(), _aliases, n=1, cutoff=0.3)
  hint = f' Did you mean {near[0]!r}?' if near else ''
  others = sorted(set(_aliases) - set(_classes))
  raise ValueError(
    f'Unknown accountant {name!r}.{hint} Known are '
    f'{", ".join(accountant_names())} (aliases {", ".join(others)}).'
  )


def create_accountant(
  name: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  **kwargs: Any,
) -> dp_accounting.PrivacyAccountant:
  """Makes an accountant with nothing charged.

  Args:
    name: 'pld' (alias 'prv'), 'rdp' (aliases 'moments', 'ma') or a name that
      was registered.
    neighboring_relation: What two neighbouring tables are.
    **kwargs: For the class, for example `value_discretization_interval`.

  Returns:
    A `dp_accounting.PrivacyAccountant` with the attributes `name` and
    `guarantee`.

  Raises:
    ValueError: If the name is unknown.

  ```python
  >>> accountant = create_accountant('prv')
  >>> accountant.name, accountant.guarantee
  ('pld', 'upper_bound')

  ```
  """
  cls = _classes[resolve_name(name)]
  return cls(neighboring_relation=neighboring_relation, **kwargs)


def compute_epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  **kwargs: Any,
) -> float:
  """Epsilon of an event.

  Args:
    event: All that was done.
    delta: Inside (0, 1).
    accountant: Name of an accountant.
    neighboring_relation: What two neighbouring tables are.
    **kwargs: For the accountant.

  Returns:
    Epsilon in nats; infinite if no finite one is known.

  Raises:
    dp_accounting.UnsupportedEventError: If the accountant does not support the
      event; names the part of it, and accountants that do.
    ValueError: If a parameter is outside its range.

  ```python
  >>> event = dp_accounting.GaussianDpEvent(1.0)
  >>> round(compute_epsilon(event, 1e-5), 4)
  4.3772

  ```
  """
  made = compose_event(event, accountant, neighboring_relation, **kwargs)
  return float(made.get_epsilon(delta))


def compose_event(
  event: dp_accounting.DpEvent,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  **kwargs: Any,
) -> dp_accounting.PrivacyAccountant:
  """An accountant that an event was handed to.

  Args:
    event: All that was done.
    accountant: Name of an accountant.
    neighboring_relation: What two neighbouring tables are.
    **kwargs: For the accountant.

  Returns:
    The accountant.

  Raises:
    dp_accounting.UnsupportedEventError: If the accountant does not support the
      event; names the part of it, and accountants that do.
    ValueError: If a parameter is outside its range.

  ```python
  >>> compose_event(dp_accounting.UnsupportedDpEvent())
  Traceback (most recent call last):
  ...
  dp_accounting...UnsupportedEventError: ... No accountant does.

  ```
  """
  made = create_accountant(accountant, neighboring_relation, **kwargs)
  try:
    return made.compose(event)
  except dp_accounting.UnsupportedEventError as error:
    others = [
      other
      for other in accountant_names()
      if create_accountant(other, neighboring_relation).supports(event)
    ]
    hint = 'No accountant does.'
    if others:
      hint = f'Accountants that do: {", ".join(others)}.'
    raise dp_accounting.UnsupportedEventError(f'{error} {hint}') from error


register_accountant('pld', pld.PLDAccountant, aliases=('prv',))
register_accountant('rdp', rdp.RDPAccountant, aliases=('moments', 'ma'))
