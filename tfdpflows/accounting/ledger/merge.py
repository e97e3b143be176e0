"""Merges ledgers of one table. Uses private methods of `PrivacyLedger`."""

from __future__ import annotations

import collections
import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any, Optional, Union

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events_json
from tfdpflows.accounting.ledger import entries
from tfdpflows.accounting.ledger.file import LedgerError
from tfdpflows.accounting.ledger.ledger import PrivacyLedger
from tfdpflows.accounting.mechanisms import no_proof
from tfdpflows.accounting.registry import compose_event
from tfdpflows.atomic import PathLike


def merge_ledgers(
  sources: Sequence[Union[PrivacyLedger, PathLike]],
  path: Optional[PathLike] = None,
  *,
  budget: Optional[budget_lib.PrivacyBudget] = None,
  accountant: Optional[str] = None,
  metadata: Optional[dict[str, Any]] = None,
) -> PrivacyLedger:
  """Merges ledgers that were kept over the same table into a new one.

  It holds all that they spent, and they are closed for good: charging one of
  them afterwards is a `LedgerError` that names the merged ledger. If the merge
  is interrupted, even by a crash, some of them may be closed without it; the
  same call again completes it.

  A label that several of them have gets the number of its source, as in
  'training (2)'. Reservations with a `randomness_id` can be resumed, with that
  and under the label that they had. What others reserved and did not charge is
  released, and plain charges are not resumed, since nobody could tell whose
  they are.

  Args:
    sources: `PrivacyLedger`s or paths of them: all on disk, or all in memory.
      The caller closes those that it opened.
    path: a file that does not exist yet; None for a ledger in memory, of
      ledgers in memory.
    budget: the budget of all together; if None, the one that all of them have.
    accountant: name of the accountant that enforces the budget; if None, the
      one that all of them have.
    metadata: JSON-able dict for the first line of the file, to which
      `merged_from` is added, and `seeded` where a source has it; it allows
      releases without a proof where a source does.

  Returns:
    The new `PrivacyLedger`.

  Raises:
    BudgetExceededError: if the budget is lower than what they have charged and
      reserved together; nothing is written.
    dp_accounting.UnsupportedEventError: if the accountant does not support all
      events; nothing is written.
    LedgerError: if one of them is missing, in use, damaged or merged elsewhere,
      or if the new one exists or cannot be written.
    ValueError: if there are none, one is there twice, or they differ in their
      neighbouring relation or privacy unit, or in a budget or accountant that
      is not given.

  #### Formal guarantee
  What was charged to a source at any time, before or after a crash at any
  point, is in the merged ledger once that exists: all sources are locked from
  the moment they are read until the last line of each says, on disk, that it
  was merged, and only then the merged file, complete, gets its name.

  #### Example

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
  tfdpflows.accounting.ledger.file.LedgerError: This ledger was merged ...
  """
  path = None if path is None else os.fspath(path)
  with contextlib.ExitStack() as stack:
    ledgers = _taken(list(sources), path, stack)
    names = [
      'in memory' if ledger.path is None else _seen_from(path, ledger.path)
      for ledger in ledgers
    ]
    unmerged = _unmerged(ledgers, path, names)
    if path is not None and os.path.lexists(path):
      return _complete(path, unmerged, names, budget)
    budget = budget or _common(ledgers, 'budget')
    merged, records = _together(ledgers, names, budget, accountant, metadata)

    def close_sources():
      for ledger in unmerged:
        ledger._write(_last_record(ledger, path, names))

    merged._resumable = entries.ResumableEntries(merged._state.entries)
    _check_budget(merged)
    if path is None:
      close_sources()
    else:
      merged._store(path, records, close_sources)
  return merged


def compose_ledgers(
  ledgers: Sequence[PrivacyLedger], accountant: Optional[str] = None
) -> PrivacyLedger:
  """Returns a ledger in memory of all that others spent, to be read.

  They stay as they are, and may be charged further. It has no budget.

  Args:
    ledgers: `PrivacyLedger`s of the same table.
    accountant: name of the accountant; if None, the one that all of them have.

  Raises:
    LedgerError: if two of them used the same noise, or one of them was merged.
    ValueError: if one is there twice, or they differ in their neighbouring
      relation or privacy unit, or in an accountant that is not given.
  """
  _check_once(ledgers)
  names = [ledger.path or 'in memory' for ledger in ledgers]
  _unmerged(ledgers, None, names)
  return _together(ledgers, names, None, accountant, {}, kept=True)[0]


def _together(ledgers, names, budget, accountant, metadata, kept=False):
  """Returns a new ledger in memory with all entries, and their records.

  `kept` says whether reservations that cannot be resumed in it stay.
  """
  metadata = dict(metadata or {})
  if any(ledger.seeded for ledger in ledgers):
    metadata['seeded'] = True
  metadata['merged_from'] = [
    {'path': name, 'metadata': ledger.metadata}
    for name, ledger in zip(names, ledgers)
  ]
  found = PrivacyLedger(
    budget=budget,
    accountant=accountant or _common(ledgers, 'accountant'),
    neighboring_relation=_common(ledgers, 'neighboring_relation'),
    metadata=metadata,
    allow_no_proof=any(ledger.allow_no_proof for ledger in ledgers),
    privacy_unit=_common(ledgers, 'privacy_unit'),
  )
  _check_randomness(ledgers)
  records = _records(ledgers, kept)
  for record in records:
    found._state.apply(record)
  return found, records


def _check_randomness(ledgers: list[PrivacyLedger]) -> None:
  """Refuses the same noise on two sums: no epsilon covers their difference."""
  known, begun = {}, {}
  for ledger in ledgers:
    for entry in ledger._state.entries:
      identity = entry.randomness_id
      name = entries.name_of(identity)
      # With one secret a training may be repeated, in another ledger. What was
      # begun once and is in two files is not that: it has one nonce or, with a
      # seed or of earlier versions, one time.
      once = entry.kind == 'reserve' and name and (entry.nonce or entry.time)
      if once and begun.setdefault((name, once), ledger) is not ledger:
        raise LedgerError(
          f'Two of these ledgers are copies of one in which {entry.label!r} '
          'was begun. Where both copies went on, they had the same noise, and '
          'no epsilon holds for both. Nothing was merged: give the one that '
          'went on, alone.'
        )
      # Without facts the sums are not known.
      if name and known.setdefault(name, identity) != identity:
        raise LedgerError(
          f'The random numbers of {entry.label!r} were used for other sums in '
          'another of these ledgers: their difference may have no noise, and '
          'no epsilon holds for both. Nothing was merged.'
        )


def _check_budget(merged: PrivacyLedger) -> None:
  budget = merged.budget
  committed, unproven = no_proof.split(merged.committed_event)
  if budget is None:
    compose_event(committed, merged.accountant, merged.neighboring_relation)
    return
  if unproven and not merged.allow_no_proof:
    message = (
      'A release without a privacy proof is in a ledger without a budget; no '
      'budget bounds it. Nothing was merged. Merge it without a budget, or '
      'with a ledger that was made with allow_no_proof=True.'
    )
    spent = merged._epsilon(committed)
    raise budget_lib.BudgetExceededError(budget, spent, math.inf, message)
  asked = merged._epsilon(committed)
  if asked <= budget.epsilon:
    return
  spent = merged._epsilon(no_proof.split(merged.event)[0])
  message = (
    f'The budget of epsilon {budget.epsilon:.7g} at delta={budget.delta:g} is '
    'lower than what is spent already: together the ledgers have charged '
    f'{spent:.7g}, and {asked:.7g} with what is reserved. Nothing was merged. '
    'Give a larger budget, or release reservations first.'
  )
  raise budget_lib.BudgetExceededError(budget, spent, asked, message)


def _taken(
  sources: list, path: Optional[str], stack: contextlib.ExitStack
) -> list[PrivacyLedger]:
  """Opens the ledgers for writing and locks them against other threads."""
  if not sources:
    raise ValueError('There is nothing to merge: give one ledger or more.')
  _check_once(sources)
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


def _check_once(sources: Sequence) -> None:
  """Refuses a ledger that is given twice, by any of the names of its file."""
  keys = [_key(source) for source in sources]
  for source, number in zip(sources, map(keys.count, keys)):
    if number > 1:
      raise ValueError(
        f'The ledger {_path(source) or source!r} is given {number} times, and '
        'would count as often. Give each ledger once.'
      )


def _key(source) -> Any:
  path = _path(source)
  if path is None:
    return id(source)
  try:
    found = os.stat(path)
  except OSError:
    return os.path.realpath(path)
  return found.st_dev, found.st_ino


def _path(source) -> Optional[str]:
  return source.path if isinstance(source, PrivacyLedger) else os.fspath(source)


def _last_record(
  ledger: PrivacyLedger, into: Optional[str], names: list[str]
) -> dict[str, Any]:
  """Returns the record that closes a merged ledger."""
  if into is not None and ledger.path is not None:
    into = _seen_from(ledger.path, into)
  return {'kind': 'seal', 'into': into, 'sources': sorted(names)}


def _seen_from(file: str, path: str) -> str:
  """Returns a path relative to a file, which holds when both are moved."""
  return os.path.relpath(
    os.path.realpath(path), os.path.dirname(os.path.realpath(file))
  )


def _unmerged(
  ledgers: list[PrivacyLedger], path: Optional[str], names: list[str]
) -> list[PrivacyLedger]:
  """Returns the open ones; refuses any that another merge has closed."""
  result = []
  for ledger in ledgers:
    found = ledger._state.merged
    if found is None:
      result.append(ledger)
    elif path is None or {'kind': 'seal', **found} != _last_record(
      ledger, path, names
    ):
      ledger._check_chargeable()
  return result


def _complete(
  path: str,
  unmerged: list[PrivacyLedger],
  names: list[str],
  budget: Optional[budget_lib.PrivacyBudget],
) -> PrivacyLedger:
  """Returns the merged ledger of a call that was interrupted at its end."""
  if not unmerged:
    merged = PrivacyLedger.open(path, budget=budget)
    found = merged.metadata.get('merged_from', [])
    if sorted(x['path'] for x in found) == sorted(names):
      return merged
    merged.close()
  raise LedgerError(
    f'The ledger {path} exists. Choose another path; a ledger is never '
    'overwritten.'
  )


def _common(ledgers: list[PrivacyLedger], field: str) -> Any:
  """Returns the value of an attribute that all ledgers share."""
  values = [getattr(ledger, field) for ledger in ledgers]
  for ledger, value in zip(ledgers, values):
    if value == values[0]:
      continue
    first, other = (x.path or 'in memory' for x in (ledgers[0], ledger))
    fix = f'Give the {field} of the merged ledger.'
    if field in ('neighboring_relation', 'privacy_unit'):
      values[0], value = (getattr(x, 'name', x) for x in (values[0], value))
      fix = 'What they spent cannot be added up; keep them apart.'
    raise ValueError(
      f'The {field} of the ledger {first} is {values[0]}, that of the ledger '
      f'{other} is {value}. {fix}'
    )
  return values[0]


def _records(
  ledgers: Sequence[PrivacyLedger], kept: bool
) -> list[dict[str, Any]]:
  """Returns all entries of the ledgers as records of a new one."""
  shared = collections.Counter(
    label for ledger in ledgers for label in ledger._state.sums.labels
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
      records += _entry_records(entry, label, kept)
  return records


def _entry_records(
  entry: entries.Entry, label: str, kept: bool
) -> list[dict[str, Any]]:
  first = {
    'kind': entry.kind,
    'label': label,
    'event': events_json.event_to_dict(entry.event),
    'count': entry.limit,
    'origin': entry.label if entry.origin is None else entry.origin,
  }
  if entry.time is not None:
    # Copies of one ledger are told by it, after a merge too.
    first['time'] = entry.time
  if entry.kind == 'charge':
    return [
      {**first, 'owner': entry.randomness_id} if entry.randomness_id else first
    ]
  if entry.nonce:
    first['nonce'] = entry.nonce
  records = [{**first, 'owner': entry.randomness_id}]
  if entry.charged:
    records.append({'kind': 'advance', 'label': label, 'total': entry.charged})
  if entry.charged < entry.limit and (
    entry.released or not (kept or entry.randomness_id)
  ):
    records.append({'kind': 'release', 'label': label})
  return records
