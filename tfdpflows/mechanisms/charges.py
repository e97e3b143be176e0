"""How one-shot releases are paid for, and paid for once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tfdpflows.accounting.ledger import PrivacyLedger, randomness_id
from tfdpflows.mechanisms.checks import touched
from tfdpflows.randomness import Randomness

if TYPE_CHECKING:
  import dp_accounting
  import numpy.typing as npt


def charge_release(
  ledger: PrivacyLedger,
  event: dp_accounting.DpEvent,
  *,
  label: str,
  randomness: Optional[Randomness],
  facts: dict[str, Any],
  arrays: Iterable[npt.ArrayLike],
  resume: bool = False,
) -> Randomness:
  """Charges a release that is about to draw its noise.

  Args:
    ledger: a `PrivacyLedger`.
    event: the `DpEvent` of the release.
    label: label of the charge, and of the streams that it will draw from.
    randomness: a `Randomness`, or `None` for one that nobody knows.
    facts: all public parameters that the released numbers depend on, JSON-able
      but for NumPy's types. They are written into the ledger.
    arrays: the private arrays that they depend on. What is written of them
      says nothing to anyone without the secret, not even whether those of two
      labels are the same.
    resume: whether an earlier charge pays.

  Returns:
    The `Randomness` to draw from.

  Raises:
    ValueError: if `randomness` was used under this label before, or to resume
      without the `randomness` of then; for neighbours that mechanisms are not
      proven for.
    BudgetExceededError: if the ledger refuses the charge.
    LedgerError: if it was charged for another secret, other parameters or
      another table; or if the same noise was charged before.

  #### Formal guarantee

  A charge pays for one draw of noise on one sum: what resumes it has the same
  secret, parameters and arrays, and releases the same numbers again. Noise of
  one secret and label is charged once in a ledger. A refused charge leaves
  `randomness` as it was.
  """
  touched(ledger.neighboring_relation)
  label = str(label)
  if randomness is None:
    if resume:
      raise ValueError(
        f'resume=True would repeat what {label!r} has paid for, and that takes '
        'the same random numbers: give the `randomness` of then, made from its '
        '`secret`.'
      )
    randomness = Randomness()
  with randomness.claiming(label):
    digest = randomness.table_fingerprint(arrays)
    ledger.charge(
      event,
      label=label,
      resume=resume,
      randomness_id=randomness_id(
        randomness.key('release', label).hex(),
        {
          **json.loads(json.dumps(facts, default=_plain)),
          'table': randomness.key('table', label, digest).hex(),
        },
      ),
      seeded=randomness.seeded,
    )
  return randomness


def _plain(value):
  return np.asarray(value).tolist()
