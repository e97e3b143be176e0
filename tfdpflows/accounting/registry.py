"""Accountants by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting

from tfdpflows.accounting import accountant as accountant_lib
from tfdpflows.accounting import composition, gdp, rdp, zcdp
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.pld.accountant import PLDAccountant

_GUARANTEES = ('upper_bound', 'asymptotic')
_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

_classes = accountant_lib.REGISTERED
_aliases: dict[str, str] = {}


def register_accountant(
  name: str, cls: type, aliases: Sequence[str] = ()
) -> None:
  """Registers an accountant under a name.

  Args:
    name: lower-case name. Those of this package cannot be given to another
      class; one of yours can only be given to the same class, defined anew (as
      a cell of a notebook does).
    cls: a subclass of `dp_accounting.PrivacyAccountant` with an attribute
      `name` that is its name, and one `guarantee`, 'upper_bound' or
      'asymptotic', whose constructor takes `neighboring_relation`.
    aliases: other names for it.

  Raises:
    TypeError: if `cls` is not a class of accountants.
    ValueError: if the guarantee is neither of the two, a name is taken, or the
      class calls itself by another name; nothing is registered.

  #### Example

  >>> class Coarse(PLDAccountant):
  ...   name = 'coarse'
  ...   def __init__(self, neighboring_relation):
  ...     super().__init__(
  ...       neighboring_relation, value_discretization_interval=1e-2)
  >>> register_accountant('coarse', Coarse)
  >>> create_accountant('coarse').guarantee
  'upper_bound'
  >>> _ = _classes.pop('coarse'), _aliases.pop('coarse')
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
  if isinstance(aliases, str):
    raise TypeError(f'aliases must be a list of names, not {aliases!r}.')
  for alias in (name, *aliases):
    owner = _aliases.get(alias, name)
    known = _classes.get(alias)
    if owner != name or not (known is None or _is_again(known, cls)):
      raise ValueError(
        f'The name {alias!r} is taken by the accountant {owner!r} '
        f'({_classes[owner].__module__}.{_classes[owner].__qualname__}); '
        'choose another.'
      )
  if getattr(cls, 'name', None) != name:
    raise ValueError(
      f'{cls.__name__}.name, which stands beside epsilons, must be {name!r} '
      f'as well, not {getattr(cls, "name", None)!r}.'
    )
  _classes[name] = cls
  for alias in (name, *aliases):
    _aliases[alias] = name


def _is_again(known: type, cls: type) -> bool:
  """Whether a class is a known one, or a new definition of it."""
  if known is cls:
    return True
  ours = known.__module__.startswith('tfdpflows.accounting.')
  same = (known.__module__, known.__qualname__) == (
    cls.__module__,
    cls.__qualname__,
  )
  return same and not ours


def accountant_names() -> tuple[str, ...]:
  """Returns the sorted names of all accountants, without aliases.

  #### Example

  >>> accountant_names()
  ('advanced', 'basic', 'gdp', 'pld', 'rdp', 'zcdp')
  """
  return tuple(sorted(_classes))


def caveat(name: str) -> str:
  """Returns what must stand after an epsilon of an accountant, if anything.

  >>> caveat('gdp'), caveat('pld')
  (' (gdp, asymptotic: no upper bound)', '')
  """
  name = resolve_name(name)
  if _classes[name].guarantee == 'upper_bound':
    return ''
  return f' ({name}, asymptotic: no upper bound)'


def credit(name: str) -> str:
  """Returns the accountant in parentheses, with its caveat if it has one.

  >>> credit('gdp'), credit('pld')
  (' (gdp, asymptotic: no upper bound)', ' (pld)')
  """
  return caveat(name) or f' ({name})'


def remarks(
  accountant: dp_accounting.PrivacyAccountant, delta: float
) -> tuple[str, ...]:
  """Returns the remarks of an accountant on its epsilon, if it has any."""
  # One that a user registered may have no such method.
  return tuple(getattr(accountant, 'remarks', lambda _: ())(delta))


def resolve_name(name: str) -> str:
  """Returns the name that a name or alias stands for.

  Raises:
    ValueError: if it is unknown; names all and the nearest.

  >>> resolve_name('prv')
  'pld'
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
  """Returns a new accountant.

  Args:
    name: 'pld' (alias 'prv'), 'rdp' (aliases 'moments', 'ma'), 'gdp', 'zcdp',
      'advanced' (alias 'strong'), 'basic', or a name that was registered.
    neighboring_relation: what two neighbouring tables are.
    **kwargs: for the class, for example `value_discretization_interval`.

  Returns:
    A `dp_accounting.PrivacyAccountant` with the attributes `name` and
    `guarantee`.

  Raises:
    ValueError: if the name is unknown.

  #### Example

  >>> accountant = create_accountant('prv')
  >>> accountant.name, accountant.guarantee
  ('pld', 'upper_bound')
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
  """Returns epsilon of an event.

  Args:
    event: all that was done. Costs from private votes are taken as they are;
      `data_independent` of it has an epsilon that may be published.
    delta: inside (0, 1).
    accountant: name of an accountant.
    neighboring_relation: what two neighbouring tables are.
    **kwargs: for the accountant.

  Returns:
    Epsilon in nats; infinite if no finite one is known.

  Raises:
    dp_accounting.UnsupportedEventError: if the accountant does not support the
      event; names the part of it, and accountants that do.
    ValueError: if a parameter is outside its range.

  #### Example

  >>> event = dp_accounting.GaussianDpEvent(1.0)
  >>> round(compute_epsilon(event, 1e-5), 4)
  4.3772
  """
  made = compose_event(event, accountant, neighboring_relation, **kwargs)
  return float(made.get_epsilon(delta))


def compose_event(
  event: dp_accounting.DpEvent,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  **kwargs: Any,
) -> dp_accounting.PrivacyAccountant:
  """Returns an accountant that has composed an event.

  Args and errors are those of `compute_epsilon`.

  >>> compose_event(dp_accounting.UnsupportedDpEvent())
  Traceback (most recent call last):
  ...
  dp_accounting...UnsupportedEventError: ... No accountant does.
  """
  made = create_accountant(accountant, neighboring_relation, **kwargs)
  return made.compose(event)


class BestEpsilon(NamedTuple):
  """See `best_epsilon`."""

  epsilon: float  # In nats; infinite if no finite one is known.
  accountant: str


def best_epsilon(
  ledger,
  delta: float,
  neighboring_relation: Optional[dp_accounting.NeighboringRelation] = None,
) -> BestEpsilon:
  """Returns the smallest upper bound on epsilon of all accountants.

  Args:
    ledger: a `PrivacyLedger`, for all that it has charged; or a `DpEvent`.
    delta: inside (0, 1).
    neighboring_relation: what two neighbouring tables are, for an event
      (ADD_OR_REMOVE_ONE if None); a ledger has its own.

  Returns:
    A named tuple of `epsilon` and `accountant`. Costs that depend on private
    votes are not used.

  Raises:
    dp_accounting.UnsupportedEventError: if no accountant supports all of it.
    ValueError: if the delta is outside its range, or a relation was given that
      is not that of the ledger.

  #### Formal guarantee
  Every accountant with the guarantee 'upper_bound' that supports all events
  gives a bound that holds, so that the smallest one holds. Which one it is
  depends on the events alone, not on the table.

  #### Example

  >>> best = best_epsilon(dp_accounting.LaplaceDpEvent(2.0), delta=1e-6)
  >>> round(best.epsilon, 4)
  0.5
  """
  event = ledger
  if not isinstance(ledger, dp_accounting.DpEvent):
    event = ledger.event
    if neighboring_relation not in (None, ledger.neighboring_relation):
      raise ValueError(
        f'The ledger is for {ledger.neighboring_relation.name}; its epsilon '
        f'cannot be stated for {neighboring_relation.name}.'
      )
    neighboring_relation = ledger.neighboring_relation
  relation = _RELATION if neighboring_relation is None else neighboring_relation
  return smallest_epsilon(events_lib.data_independent(event), delta, relation)


def smallest_epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  relation: dp_accounting.NeighboringRelation,
) -> BestEpsilon:
  """As `best_epsilon`, with costs from private votes as they are."""
  found, refusal = [], None
  for name in accountant_names():
    if _classes[name].guarantee != 'upper_bound':
      continue
    try:
      made = compose_event(event, name, relation)
    except dp_accounting.UnsupportedEventError as error:
      refusal = error
      continue
    found.append(BestEpsilon(float(made.get_epsilon(delta)), made.name))
  if not found:
    raise refusal
  return min(found)


register_accountant('pld', PLDAccountant, aliases=('prv',))
register_accountant('rdp', rdp.RDPAccountant, aliases=('moments', 'ma'))
register_accountant('gdp', gdp.GDPAccountant)
register_accountant('zcdp', zcdp.ZCDPAccountant)
register_accountant(
  'advanced', composition.AdvancedAccountant, aliases=('strong',)
)
register_accountant('basic', composition.BasicAccountant)
