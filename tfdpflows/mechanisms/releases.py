"""What one-shot releases share: checked rows, sensitivity and the charge."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting import NeighboringRelation

from tfdpflows import _observer
from tfdpflows.accounting.ledger import (
  PrivacyLedger,
  check_ledger,
  randomness_id,
)
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units
from tfdpflows.sampling.units import check_units

_OWN = 'of these parameters and this table'
_DIFFERING_ROWS = {
  NeighboringRelation.ADD_OR_REMOVE_ONE: 1,
  NeighboringRelation.REPLACE_ONE: 2,
}


def as_numbers(
  x: npt.ArrayLike, name: str = 'x', shape: Optional[Sequence] = None
) -> np.ndarray:
  """Returns `x` as an array of real numbers.

  NumPy clips and orders complex numbers by their real parts, so that their
  imaginary parts would pass every bound. The dtype counts as public, as a
  statement of the caller: that of a list depends on its values, so give
  private ones as an array of numbers.

  Args:
    x: what NumPy makes an array of: bool, integers or floats.
    name: what it is called in messages.
    shape: the shape that it must have, with a name in place of any size that
      is not fixed; any shape by default.

  Raises:
    ValueError: for another dtype or shape, or a masked array.

  >>> from tfdpflows.mechanisms.releases import as_numbers
  >>> as_numbers([[1, 2]], shape=('n', 2)).shape
  (1, 2)
  """
  if isinstance(x, np.ma.MaskedArray):
    raise ValueError(
      f'{name} is a masked array, and NumPy would count what is masked: fill '
      'it first, such as with x.filled(np.nan).'
    )
  x = np.asarray(_without_nulls(x))
  if x.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} has dtype {x.dtype}; it must hold real numbers (bool, integers '
      "or floats). Encode other columns first, or x.astype('float64')."
    )
  if shape is not None and (
    x.ndim != len(shape)
    or any(s != n for s, n in zip(shape, x.shape) if not isinstance(s, str))
  ):
    wanted = ', '.join(map(str, shape))
    raise ValueError(f'{name} has shape {x.shape}; it must be [{wanted}].')
  return x


def as_floats(
  x: npt.ArrayLike, name: str = 'x', shape: Optional[Sequence] = None
) -> npt.NDArray[np.float64]:
  """Returns `as_numbers` in float64, infinite where they are too large."""
  with np.errstate(over='ignore'):  # A warning would tell of a row.
    return as_numbers(x, name, shape).astype(np.float64)


def _without_nulls(x):
  """Returns nullable columns of pandas as floats.

  What NumPy makes of them depends on whether there is a null.
  """
  pandas = sys.modules.get('pandas')
  if pandas is None or not isinstance(x, (pandas.DataFrame, pandas.Series)):
    return x
  dtypes = [x.dtype] if isinstance(x, pandas.Series) else list(x.dtypes)
  if all(isinstance(dtype, np.dtype) for dtype in dtypes):
    return x
  if any(dtype.kind not in 'biuf' for dtype in dtypes):
    return x
  return x.to_numpy(np.float64, na_value=np.nan)


def check_bounds(lower: float, upper: float) -> None:
  """Raises a `ValueError` unless two bounds are finite and in order."""
  if not (lower < upper and math.isfinite(upper - lower)):
    raise ValueError(
      f'lower is {lower} and upper {upper}; they must be finite, lower below '
      'upper, and public.'
    )


def row_weights(units: Optional[Units], num_rows: int) -> np.ndarray:
  """Returns what each row counts, float64 `[num_rows]`; 1 without units.

  Raises:
    ValueError: for the units of another number of rows.
  """
  if units is None:
    return np.ones(num_rows)
  check_rows(units, num_rows)
  return units.row_weights()


def check_rows(units: Optional[Units], num_rows: int) -> None:
  """Refuses the units of another number of rows."""
  check_units(units)
  if units is not None and units.num_rows != num_rows:
    raise ValueError(
      f'The table has {num_rows} rows, and the units are those of '
      f'{units.num_rows}. Make Units of the ids of these rows.'
    )


def differing_rows(neighboring_relation: NeighboringRelation) -> int:
  """Returns by how many rows two neighbouring tables differ: 1 or 2.

  A table with one row replaced is the other with one row removed and one
  added: a sum of sensitivity 1 to one row has sensitivity 2 to both.

  Raises:
    ValueError: for a relation that mechanisms were not proven for.
  """
  if neighboring_relation not in _DIFFERING_ROWS:
    name = getattr(neighboring_relation, 'name', neighboring_relation)
    names = ' or '.join(relation.name for relation in _DIFFERING_ROWS)
    raise ValueError(
      f'The neighbouring relation {name} is not supported: no sensitivity is '
      f'known for it. Use {names}.'
    )
  return _DIFFERING_ROWS[neighboring_relation]


def drawn_by_weight(log_weights: np.ndarray, rng: np.random.Generator) -> int:
  """Returns an index, drawn with a probability proportional to its weight."""
  # Of the largest of these it is so, and no sum overflows.
  return int(np.argmax(log_weights + rng.gumbel(size=len(log_weights))))


def charge_release(
  ledger: PrivacyLedger,
  event: dp_accounting.DpEvent,
  *,
  label: str,
  randomness: Optional[Randomness],
  facts: dict[str, Any],
  arrays: Iterable[npt.ArrayLike],
  count: int = 1,
  resume: bool = False,
  seeded: bool = False,
  units: Optional[Units] = None,
  privacy_unit: Optional[str] = None,
) -> Randomness:
  """Charges a release before its noise is drawn.

  Args:
    ledger: see `tfdpflows.mechanisms`, as `label`, `randomness`, `resume` and
      the errors.
    event: the `DpEvent` of the release.
    label: of the charge, and of the streams that the release draws from.
    randomness: a `Randomness`, or `None` for one that nobody knows.
    facts: all public parameters that the released numbers depend on, JSON-able
      but for NumPy's types. They are written into the ledger.
    arrays: the private arrays that the released numbers depend on. Their
      fingerprint in the ledger tells nothing to anyone without the secret, not
      even whether the arrays of two labels are the same. Without any the
      release is taken for one of other arrays than all others, and cannot be
      resumed.
    count: how many runs of the event the release is.
    resume: whether an earlier charge covers this release.
    seeded: whether what it is computed from has random numbers of a seed.
    units: the `sampling.Units` that the release protects, if not rows.
    privacy_unit: their name, where they are not in memory.

  Returns:
    The `Randomness` to draw from: without a seed, one of this release alone.

  #### Formal guarantee

  A charge covers one draw of noise on one sum: what resumes it has the same
  secret, parameters and arrays, and releases the same numbers again. Noise of
  one secret and label is charged once in a ledger. What is released of other
  arrays, with other parameters or for other neighbours has other noise, also
  where another ledger was charged, unless it comes from a seed. Of the same
  arrays another ledger has the same numbers again, as workers of one secret
  need them: whoever sees the releases of two ledgers with one secret sees
  whether the arrays changed in between. A refused charge leaves `randomness` as
  it was.
  """
  check_ledger(ledger)
  relation = ledger.neighboring_relation
  differing_rows(relation)
  label = str(label)
  if units is not None:
    privacy_unit = units.name
    arrays = [*arrays, *units.weight_arrays()]
  if randomness is None:
    if resume:
      raise ValueError(
        f'resume=True repeats the release {label!r}, which takes the same '
        'random numbers: give the `randomness` of then, made from its `secret`.'
      )
    randomness = Randomness()
  own = not randomness.seeded and _observer.current() is None
  with randomness.claiming(label):
    arrays = iter(arrays)
    first = next(arrays, None)
    if first is None:  # By chance alone another release has the same ones.
      first = np.frombuffer(os.urandom(16), np.uint8)
    digest = randomness.table_fingerprint(itertools.chain([first], arrays))
    identity = randomness_id(
      randomness.key('release', label).hex(),
      {
        **json.loads(json.dumps(facts, default=_plain)),
        'table': randomness.key('table', label, digest).hex(),
        # Earlier versions had one noise for all: theirs cannot be resumed. The
        # same noise of two scales, as two relations have, can be solved for.
        **({'noise': _OWN, 'neighbors': relation.name} if own else {}),
      },
    )
    ledger.charge(
      event,
      count,
      label=label,
      resume=resume,
      randomness_id=identity,
      seeded=seeded or randomness.seeded,
      privacy_unit=privacy_unit,
    )
  if own:
    return Randomness(secret=randomness.key('noise', label, identity))
  return randomness


def _plain(value):
  return np.asarray(value).tolist()
