"""The folder of an unfinished fit: ledger, checkpoints, secret."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pandas as pd

from tfdpflows import atomic
from tfdpflows.accounting import LedgerError, PrivacyLedger, registry
from tfdpflows.accounting.rounding import delta_text, round_up
from tfdpflows.randomness import Randomness
from tfdpflows.stored_rows import StoredRows, TableParts
from tfdpflows.tabular import models
from tfdpflows.version import __version__

if TYPE_CHECKING:
  from tfdpflows.accounting import PrivacyBudget
  from tfdpflows.tabular.workers import Team

LEDGER = 'ledger.jsonl'
EARLIER = 'earlier_ledgers'
_SETTINGS = 'settings.json'
_SECRET = 'secret'
# A fingerprint of what training begins with.
_BEGINNING = 'beginning'
# Name of the setting of which replicas train.
_REPLICAS, _ALONE = 'replicas', 'one process with one replica'
# Name of the setting of whether it is a search for hyper-parameters.
_SEARCH = 'search'
# Longer values, such as a schema, are left out of messages.
_LONG = 80
_DAMAGED = (
  '{} cannot be resumed: its {} is {}. Overwrite it to start again; what it '
  'spent on these rows stays spent.'
)
NO_RESUMING_A_SEARCH = (
  '{} holds a search for hyper-parameters that was not finished, and cannot go '
  'on: overwrite it. What it spent on these rows stays spent.'
)


def check_new(path: str | os.PathLike) -> None:
  """Raises a `FileExistsError` if a fit or something else is there."""
  if os.path.exists(os.path.join(path, _SETTINGS)):
    raise FileExistsError(
      f'{path} holds a fit that was not finished: resume it, or overwrite it. '
      'What it spent on these rows stays spent.'
    )
  if os.path.lexists(path):
    raise FileExistsError(
      f'{path} exists and holds no unfinished fit: name a folder that does not '
      'exist yet.'
    )


def check_begun(path: str | os.PathLike, *others: str | os.PathLike) -> None:
  """Raises a `FileNotFoundError` if neither `path` nor others are folders."""
  if not any(map(os.path.isdir, (path, *others))):
    raise FileNotFoundError(
      f'There is nothing to resume: {path} does not exist.'
    )


class WorkDirectory:
  """Randomness, ledger and checkpoints of one fit, in a folder or in memory.

  A resumed fit replays what was interrupted with the same randomness on the
  same table, so that nothing is released that was not charged. The settings and
  a fingerprint of the table, keyed with the secret, are checked. The folder is
  private to the user, since the secret undoes the noise: delete it when the fit
  ends.

  Args:
    path: the folder, or `None` for memory.
    resume: whether to continue the fit in it.
    settings: JSON-able dict that must be the same when resumed.
    table: the validated `DataFrame`, with the identifiers of units; or its
      codes, `StoredRows`.
    seed: seed instead of a secret, or `None`.
    budget: the `PrivacyBudget`.
    accountant: name of the accountant.
    privacy_unit: name of the units that are protected, `None` for rows.
    overwrite: whether to replace an unfinished fit; its ledgers are kept.
    team: the `workers.Team` that trains the model, `None` for one replica. All
      but its chief open the folder that the chief has made, and no ledger.
    search: whether it is a search for hyper-parameters, which cannot be
      resumed (`tabular.tune_to_directory`).
    progress: whether to show progress: bars in a terminal or notebook, lines of
      the log elsewhere.

  Attributes:
    team: see above, as the next two.
    resume: whether to repeat what was charged, with the same randomness.
    progress: whether to show it.
    randomness: the `Randomness` of the fit.
    ledger: the `PrivacyLedger`.
    checkpoints: folder of checkpoints, or `None`.
    earlier_ledgers: paths of the ledgers of fits that this one replaces.

  Raises:
    FileExistsError: if `path` exists and is not to be resumed.
    FileNotFoundError: if there is nothing to resume.
    ValueError: if settings or table differ from those of the interrupted fit,
      or its files are missing or damaged.
    LedgerError: if the ledger is missing, in use or was edited.
  """

  def __init__(
    self,
    path: atomic.PathLike | None,
    *,
    resume: bool,
    settings: dict[str, Any],
    table: pd.DataFrame | StoredRows | TableParts,
    seed: int | None,
    budget: PrivacyBudget,
    accountant: str,
    privacy_unit: str | None = None,
    overwrite: bool = False,
    team: Team | None = None,
    search: bool = False,
    progress: bool = False,
  ):
    self.team, self.resume, self.progress = team, resume, progress
    replicas = None if team is None else str(team)
    settings = {**settings, _REPLICAS: replicas, _SEARCH: search}
    settings = json.loads(json.dumps(settings))  # As they come back.
    claim = {'accountant': accountant, 'privacy_unit': privacy_unit}
    self.earlier_ledgers = []
    if path is None:
      if resume:
        raise ValueError('There is no work_dir to resume from; give one.')
      self.randomness = Randomness(seed)
      self.checkpoints = None
      self.ledger = PrivacyLedger(
        budget=budget, metadata=_metadata(self.randomness), **claim
      )
      return
    if team is not None and not team.is_chief:
      self._check(path, settings, table, seed)
      self.checkpoints = os.path.join(path, 'checkpoints')
      # What the chief charges is not known here, nor is the budget.
      self.ledger = PrivacyLedger(**claim)
      return
    if resume:
      self._check(path, settings, table, seed)
    else:
      if overwrite:
        _drop(path)
      self._create(path, settings, table, seed, budget, claim)
    self.checkpoints = os.path.join(path, 'checkpoints')
    self.earlier_ledgers = list_earlier(path)
    self.ledger = PrivacyLedger.open(os.path.join(path, LEDGER), budget=budget)

  def _create(self, path, settings, table, seed, budget, claim):
    check_new(path)
    self.randomness = Randomness(seed)
    parent, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(parent):
      raise FileNotFoundError(
        f'The folder {parent} does not exist: make it first.'
      )
    with atomic.folder_aside(parent, name) as aside:
      PrivacyLedger(
        os.path.join(aside, LEDGER),
        budget=budget,
        metadata=_metadata(self.randomness),
        **claim,
      ).close()
      begun = {
        'library_version': __version__,
        'settings': settings,
        'table': _fingerprint(table, self.randomness),
      }
      atomic.write_file(
        os.path.join(aside, _SETTINGS),
        json.dumps(begun, indent=1).encode(),
        private=True,
      )
      if seed is None:
        secret = os.path.join(aside, _SECRET)
        atomic.write_file(secret, self.randomness.secret, private=True)
      dropped = _dropped(path)
      if os.path.isdir(dropped):
        ledgers = [*list_earlier(dropped), os.path.join(dropped, LEDGER)]
        take_earlier(filter(os.path.exists, ledgers), aside)
      os.rename(aside, path)
    _remove_dropped(path)

  def check_repeated(self, arrays: Iterable[npt.ArrayLike]) -> None:
    """Sees that what training begins with is what it was at first.

    A resumed fit computes it again, which other processors and libraries round
    otherwise: repeated steps would add the same noise to other sums, and their
    difference would have none.

    Args:
      arrays: what is computed before training from what was released.

    Raises:
      ValueError: if they are others than before the fit was interrupted.
    """
    if self.checkpoints is None or (self.team and not self.team.is_chief):
      return
    folder = os.path.dirname(self.checkpoints)
    path = os.path.join(folder, _BEGINNING)
    found = self.randomness.table_fingerprint(arrays).encode()
    if not os.path.exists(path):
      atomic.write_file(path, found, private=True)
    elif _read(folder, _BEGINNING, bytes) != found:
      raise ValueError(
        f'{folder} was begun where numbers are rounded '
        'otherwise: what it released gives another model here, and its steps '
        'cannot be repeated. Resume where the fit was begun, or overwrite it; '
        'what it spent on these rows stays spent.'
      )

  def _check(self, path, settings, table, seed):
    check_begun(path)
    found = _read(path, _SETTINGS, _parse)
    if found['library_version'] != __version__:
      raise ValueError(
        f'{path} was begun by tfdpflows {found["library_version"]}, this is '
        f'{__version__}: its steps cannot be replayed. Use that version, or '
        'overwrite it.'
      )
    begun = {_SEARCH: False, **found['settings']}
    if begun[_SEARCH]:
      raise ValueError(NO_RESUMING_A_SEARCH.format(path))
    trained, now = begun.get(_REPLICAS), settings[_REPLICAS]
    if trained != now:
      raise ValueError(
        f'{path} was begun by {trained or _ALONE}, this is {now or _ALONE}: '
        'sums would be rounded in another order, and the same noise on two '
        'sums would reveal their difference. Resume as it was begun, or '
        'overwrite it.'
      )
    different = [k for k in settings if settings[k] != begun.get(k)]
    if different:
      name = different[0]
      values = f'{begun.get(name)!r}, and not {settings[name]!r}'
      if name == 'num_rows' and settings.get('units'):
        name = f'number of values of {settings["units"]["name"]}'
      values = f': {values}' if len(values) < _LONG else ''
      raise ValueError(
        f'{path} was begun with another {name}{values}. Resume with the same '
        'arguments, or overwrite it.'
      )
    secret = None
    if seed is None:
      secret = _read(path, _SECRET, bytes)
    try:
      self.randomness = Randomness(seed, secret=secret)
    except ValueError as error:
      raise ValueError(_DAMAGED.format(path, _SECRET, 'damaged')) from error
    if found['table'] != _fingerprint(table, self.randomness):
      raise ValueError(
        f'{path} was begun with another table: the same noise on two tables '
        'would reveal their difference. Resume with the same rows, or '
        'overwrite it.'
      )


def is_search(path: atomic.PathLike) -> bool:
  """Whether a folder is that of a search; not, if that cannot be read."""
  try:
    found = _read(path, _SETTINGS, json.loads)
    return bool(found['settings'].get(_SEARCH))
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False


def spent_by(path: atomic.PathLike) -> str | None:
  """Returns the name of the fit whose ledger in a folder has charges."""
  try:
    with PrivacyLedger.open(
      os.path.join(path, LEDGER), read_only=True
    ) as ledger:
      charged = any(entry.count for entry in ledger.entries)
      return ledger.metadata.get('fit') if charged else None
  except (LedgerError, OSError):
    return None


def weights_seed(randomness: Randomness) -> int:
  """Returns the seed of the weights that the model of a fit is made with."""
  return int(randomness.numpy('weights').integers(2**31))


def remove(path: atomic.PathLike) -> None:
  """Removes the folder of a fit that is complete, its secret first."""
  # A kill may have come before it was gone; its ledgers were taken.
  _remove_dropped(path)
  _remove(path)


def _remove(path):
  with contextlib.suppress(FileNotFoundError):
    os.unlink(os.path.join(path, _SECRET))
  shutil.rmtree(path)


def _remove_dropped(path):
  with contextlib.suppress(OSError):
    _remove(_dropped(path))


def list_earlier(folder: atomic.PathLike) -> list[str]:
  """Returns the paths of the ledgers that `folder` keeps of earlier fits."""
  earlier = os.path.join(folder, EARLIER)
  if not os.path.isdir(earlier):
    return []
  return [os.path.join(earlier, name) for name in sorted(os.listdir(earlier))]


def take_earlier(paths: Iterable[str], folder: atomic.PathLike) -> None:
  """Copies ledgers of earlier fits into a folder, numbered on."""
  os.makedirs(os.path.join(folder, EARLIER), exist_ok=True)
  start = len(list_earlier(folder)) + 1
  for number, path in enumerate(paths, start):
    shutil.copy(path, os.path.join(folder, EARLIER, f'{number:03}.jsonl'))


def describe_earlier(path: atomic.PathLike) -> str:
  """Returns a sentence about the epsilon of an earlier fit."""
  try:
    with PrivacyLedger.open(path, read_only=True) as ledger:
      epsilon = round_up(ledger.epsilon())
      spent = f'epsilon {epsilon} at delta {delta_text(ledger.budget.delta)}'
      spent += registry.caveat(ledger.accountant)
      if ledger.privacy_unit is not None:
        spent += f' for all rows with one value of {ledger.privacy_unit!r}'
  except LedgerError as error:
    spent = f'an amount that cannot be read any more ({error})'
  return (
    'An earlier fit was replaced by this one; by its ledger, '
    f'{EARLIER}/{os.path.basename(path)}, it spent {spent}. If it was a fit '
    'of the same rows, both count.'
  )


def _drop(path):
  """Renames an unfinished fit; the next one takes its ledgers."""
  if not os.path.isdir(path):
    return
  try:
    PrivacyLedger.open(os.path.join(path, LEDGER)).close()
  except LedgerError as error:
    # Dropping a damaged one is fine; one that a process works on is not.
    if isinstance(error.__cause__, BlockingIOError):
      raise
  _remove_dropped(path)
  os.rename(path, _dropped(path))


def _metadata(randomness):
  """Metadata of a ledger, with a name that tells copies of it from others."""
  return {'seeded': randomness.seeded, 'fit': secrets.token_hex(8)}


def _dropped(path):
  return f'{path}.dropped'


def _read(path, name, parse):
  """Returns what a file of an interrupted fit holds."""
  try:
    with open(os.path.join(path, name), 'rb') as file:
      return parse(file.read())
  except FileNotFoundError as error:
    raise ValueError(_DAMAGED.format(path, name, 'missing')) from error
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(_DAMAGED.format(path, name, 'damaged')) from error


def _parse(content):
  found = json.loads(content)
  return {
    'library_version': found['library_version'],
    'settings': models.current_settings(found['settings']),
    'table': found['table'],
  }


def _fingerprint(table, randomness):
  if not isinstance(table, pd.DataFrame):
    return randomness.fingerprint(table.digest)
  hashes = pd.util.hash_pandas_object(table, index=False).to_numpy()
  return randomness.fingerprint(hashes)
