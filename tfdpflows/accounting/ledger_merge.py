"""Several ledgers over one table become one."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Sequence
from typing import Any, Optional

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events_json, ledger_file, overspending, seal
from tfdpflows.accounting import ledger as ledger_lib
from tfdpflows.accounting.earlier_entries import EarlierEntries

__all__ = ['merge_ledgers']

LedgerError = ledger_file.LedgerError
PrivacyLedger = ledger_lib.PrivacyLedger


def merge_ledgers(
  sources: Sequence[Any],
  path=None,
  budget: Optional[budget_lib.PrivacyBudget] = None,
  accountant: Optional[str] = None,
  metadata: Optional[dict[str, Any]] = None,
) -> PrivacyLedger:
  """Makes one ledger of several that were kept over the same table.

  It holds all that they spent, and they are sealed: whoever charges one of them
  afterwards gets a `LedgerError` that says where it went. If it is interrupted,
  even by a crash, some of them may be sealed without it; the same call again
  completes it.

  Where several of them have a label, each gets the number of its source behind
  it, as in 'training (2)'. Reservations with an owner can be resumed, by that
  owner and under the label that they had. What others reserved and did not
  charge is released, and plain charges are not resumed, since nobody could tell
  whose they are.

  Args:
    sources: `PrivacyLedger`s or paths of them: all on disk, or all in memory.
      They are closed by whoever opened them.
    path: A file that does not exist yet; None for a ledger in memory, of
      ledgers in memory.
    budget: What may be spent in all; if None, the budget that all of them have.
    accountant: Name of the accountant that enforces the budget; if None, the
      one that all of them have.
    metadata: JSON-able dict for the first line of the file, to which
      `merged_from` is added, and `seeded` where a source has it.

  Returns:
    The merged `PrivacyLedger`.

  Raises:
    BudgetExceededError: If the budget is lower than what they have charged and
      reserved together; nothing is written.
    dp_accounting.UnsupportedEventError: If the accountant does not support all
      events; nothing is written.
    LedgerError: If one of them is missing, in use, damaged or merged elsewhere,
      or if the new one exists or cannot be written.
    ValueError: If there are none, one is there twice, or they differ in their
      neighbouring relation, or in a budget or accountant that is not given.

  #### Formal guarantee
  What was charged to a source at any time, before or after a crash at any
  point, is in the merged ledger once that exists: all sources are locked from
  the moment they are read until each of them has a seal on disk, and only then
  the merged file, complete, gets its name.

  ```python
  >>> import dp_accounting
  >>> first, second = PrivacyLedger(), PrivacyLedger()
  >>> _ = first.charge(dp_accounting.GaussianDpEvent(5.0), label='histograms')
  >>> _ = second.charge(dp_accounting.GaussianDpEvent(4.0), label='histograms')
  >>> merged = merge_ledgers([first, second])
  >>> [entry.label for entry in merged.entries]
  ['histograms (1)', 'histograms (2)']
  >>> first.charge(dp_accounting.GaussianDpEvent(5.0))
  Traceback (most recent call last):
  ...
  tfdpflows.accounting.ledger_file.LedgerError: This ledger was merged ...

  ```
  """
  path = None if path is None else os.fspath(path)
  with contextlib.ExitStack() as stack:
    ledgers = _taken(list(sources), path, stack)
    names = seal.source_names([x.path for x in ledgers], path)
    unsealed = _unsealed(ledgers, path, names)
    if path is not None and os.path.lexists(path):
      return _complete(path, unsealed, names, budget)
    merged = PrivacyLedger(
      budget=budget or _common(ledgers, 'budget'),
      accountant=accountant or _common(ledgers, 'accountant'),
      neighboring_relation=_common(ledgers, 'neighboring_relation'),
      metadata=_metadata(ledgers, names, metadata),
    )
    records = _records(ledgers)
    for record in records:
      merged._state.apply(record)
    merged._earlier = EarlierEntries(merged._state.entries)
    overspending.check_merged(merged)

    def seal_all():
      for ledger in unsealed:
        ledger._write(seal.seal_record(ledger.path, path, names))

    if path is None:
      seal_all()
    else:
      merged._store(path, records, seal_all)
  return merged


def _taken(
  sources: list[Any], path, stack: contextlib.ExitStack
) -> list[PrivacyLedger]:
  """The ledgers, open for writing and locked against other threads."""
  if not sources:
    raise ValueError('There is nothing to merge: give one ledger or more.')
  keys = [
    id(source) if _path(source) is None else os.path.realpath(_path(source))
    for source in sources
  ]
  for source, number in zip(sources, map(keys.count, keys)):
    if number > 1:
      raise ValueError(
        f'The ledger {_path(source) or source!r} is given {number} times, and '
        'would be charged as often. Give each ledger once.'
      )
  on_disk = {_path(source) is not None for source in sources}
  if len(on_disk) > 1 or (path is None and True in on_disk):
    raise ValueError(
      'Ledgers on disk are merged into one on disk, without ledgers in memory '
      'between them: after a crash nobody could complete it. Give the path of '
      'a new file, and only ledgers in files.'
    )
  opened = []
  for source in sources:
    if not isinstance(source, PrivacyLedger):
      source = PrivacyLedger._read(source, read_only=False)
      stack.callback(source.close)
    elif source._file is not None:
      source._file.check_writable()
    opened.append(source)
  # In one order, so that two merges in two threads cannot wait for each other.
  for ledger in sorted(opened, key=id):
    stack.enter_context(ledger._lock)
  return opened


def _path(source) -> Optional[str]:
  return source.path if isinstance(source, PrivacyLedger) else os.fspath(source)


def _unsealed(ledgers, path, names) -> list[PrivacyLedger]:
  """Those without a seal; refuses any with the seal of another merge."""
  result = []
  for ledger in ledgers:
    found = ledger._state.seal
    if found is None:
      result.append(ledger)
    elif path is None or {'kind': 'seal', **found} != seal.seal_record(
      ledger.path, path, names
    ):
      ledger._check_seal()
  return result


def _complete(path, unsealed, names, budget) -> PrivacyLedger:
  """The merged ledger of a call that was interrupted at its very end."""
  if not unsealed:
    merged = PrivacyLedger.open(path, budget)
    found = merged.metadata.get('merged_from', [])
    if sorted(x['path'] for x in found) == sorted(names):
      return merged
    merged.close()
  raise LedgerError(
    f'The ledger {path} exists. Choose another path; a ledger is never '
    'overwritten.'
  )


def _common(ledgers: list[PrivacyLedger], field: str) -> Any:
  """What all ledgers agree on."""
  values = [getattr(ledger, field) for ledger in ledgers]
  for ledger, value in zip(ledgers, values):
    if value == values[0]:
      continue
    first, other = (x.path or 'in memory' for x in (ledgers[0], ledger))
    fix = f'Give the {field} of the merged ledger.'
    if field == 'neighboring_relation':
      values[0], value = values[0].name, value.name
      fix = 'What they spent cannot be added up; keep them apart.'
    raise ValueError(
      f'The {field} of the ledger {first} is {values[0]}, that of the ledger '
      f'{other} is {value}. {fix}'
    )
  return values[0]


def _metadata(ledgers, names, metadata) -> dict[str, Any]:
  result = dict(metadata or {})
  if any(ledger.seeded for ledger in ledgers):
    result['seeded'] = True
  result['merged_from'] = [
    {'path': name, 'metadata': ledger.metadata}
    for name, ledger in zip(names, ledgers)
  ]
  return result


def _records(ledgers: list[PrivacyLedger]) -> list[dict[str, Any]]:
  """All entries of the ledgers as records of a new one."""
  shared = collections.Counter(
    label for ledger in ledgers for label in ledger._state.labels
  )
  taken, records = set(shared), []
  for number, ledger in enumerate(ledgers, 1):
    labels = {}
    for entry in ledger._state.entries:
      label = labels.get(entry.label, entry.label)
      if shared[entry.label] > 1 and entry.label not in labels:
        while label in taken:
          label = f'{label} ({number})'
        taken.add(label)
        labels[entry.label] = label
      records += _entry_records(entry, label)
  return records


def _entry_records(entry, label: str) -> list[dict[str, Any]]:
  first = {
    'kind': entry.kind,
    'label': label,
    'event': events_json.event_to_dict(entry.event),
    'count': entry.limit,
    'origin': entry.label if entry.origin is None else entry.origin,
  }
  if entry.kind == 'charge':
    return [{**first, 'owner': entry.owner} if entry.owner else first]
  records = [{**first, 'owner': entry.owner}]
  if entry.charged:
    records.append({'kind': 'advance', 'label': label, 'total': entry.charged})
  if entry.charged < entry.limit and (entry.released or not entry.owner):
    records.append({'kind': 'release', 'label': label})
  return records
