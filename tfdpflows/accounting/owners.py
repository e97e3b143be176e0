"""Whose random numbers a reservation is for, and what they are added to.

Noise that enters two different sums can be subtracted from both. A training
that is replayed may repeat its noise only where all that its sums depend on is
the same; what of it is known stands in the owner of the reservation.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ['difference_of_owners', 'differences', 'name_of', 'owner_of']


def owner_of(name: str, facts: dict[str, Any]) -> str:
  """Returns the `owner` of a reservation, see `PrivacyLedger.reserve`.

  Args:
    name: Names the random numbers, without giving them away; no spaces.
    facts: What they are used for, JSON-able and public.

  ```python
  >>> owner_of('5f1e', {'clip': 2.0})
  '5f1e {"clip": 2.0}'

  ```
  """
  return f'{name} {json.dumps(facts, sort_keys=True)}'


def name_of(owner: str) -> str:
  """Returns the name in an owner, without the facts."""
  return owner.partition(' ')[0]


def differences(facts: dict[str, Any], others: dict[str, Any]) -> str:
  """Says where two dicts differ, '' where they do not.

  What only one of them has is named where they agree in all they share.

  ```python
  >>> differences({'clip': 2.0, 'draws': 1}, {'clip': 3.0, 'draws': 1})
  'clip: 2.0, and not 3.0'

  ```
  """
  keys = [k for k in facts if k in others and facts[k] != others[k]]
  found = []
  for key in sorted(keys or facts.keys() ^ others.keys()):
    one, other = (json.dumps(x.get(key)) for x in (facts, others))
    found.append(f'{key}: {one}, and not {other}')
  return '; '.join(found)


def difference_of_owners(one: str, other: str) -> str:
  """Says where the facts of two owners differ.

  Returns:
    The words; '' if the owners name other random numbers, or no facts.
  """
  name, _, facts = one.partition(' ')
  other_name, _, others = other.partition(' ')
  if name != other_name or not facts or not others:
    return ''
  return differences(json.loads(facts), json.loads(others))
