"""What mechanisms move by, for each neighbouring relation."""

from __future__ import annotations

from dp_accounting import NeighboringRelation


def touched(neighboring_relation: NeighboringRelation) -> int:
  """Returns how many rows two neighbouring tables differ in: 1 or 2.

  A table with one row replaced is the other with one row taken away and one
  added, so that whatever one row moves by 1 moves by up to 2.

  Args:
    neighboring_relation: a `dp_accounting.NeighboringRelation`.

  Raises:
    ValueError: for `REPLACE_SPECIAL`, and whatever else mechanisms were not
      proven for.

  #### Example

  >>> from dp_accounting import NeighboringRelation
  >>> from tfdpflows.mechanisms.checks import touched
  >>> touched(NeighboringRelation.REPLACE_ONE)
  2
  """
  rows = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: 1,
    NeighboringRelation.REPLACE_ONE: 2,
  }
  if neighboring_relation not in rows:
    name = getattr(neighboring_relation, 'name', neighboring_relation)
    raise ValueError(
      f'The neighbouring relation {name} is not supported: what a mechanism '
      f'moves by is not known for it. Use {" or ".join(r.name for r in rows)}.'
    )
  return rows[neighboring_relation]
