"""The folder of a finished model: written aside, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from tfdpflows import atomic
from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting.ledger import before_merge
from tfdpflows.tabular import work_directory
from tfdpflows.version import __version__

_MODEL = 'model.json'
_FORMAT = 'tfdpflows tabular model'
# Since version 3 hyper-parameters are those of the model alone.
_FORMAT_VERSION = 3
_READABLE = (2, 3)
_REPLACED = 'replaced_model'


class ModelDirectory:
  """A model's folder under construction, maybe in place of an earlier model."""

  def __init__(self, root: atomic.PathLike, replaces: atomic.PathLike | None):
    self._root = root
    self._replaces = replaces

  def path(self, *parts: str) -> str:
    """Returns a path inside of the folder, whose own folder exists."""
    path = os.path.join(self._root, *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path

  def write_text(self, name: str, text: str) -> None:
    """Writes a text file."""
    with open(self.path(name), 'w', encoding='utf-8') as file:
      file.write(text)

  def write_json(self, name: str, content: Any) -> None:
    """Writes a JSON file."""
    self.write_text(name, json.dumps(content, indent=1, allow_nan=False) + '\n')

  def add_ledgers(
    self, ledger: PrivacyLedger, earlier: Sequence[str]
  ) -> list[str]:
    """Adds a ledger and those of earlier fits; returns the latter's paths."""
    target = self.path(work_directory.LEDGER)
    if ledger.path is not None:
      shutil.copy(ledger.path, target)
    else:
      with PrivacyLedger(
        target,
        budget=ledger.budget,
        accountant=ledger.accountant,
        neighboring_relation=ledger.neighboring_relation,
        metadata=ledger.metadata,
        privacy_unit=ledger.privacy_unit,
      ) as copy:
        for entry in ledger.entries:
          if entry.count:
            copy.charge(
              entry.event,
              entry.count,
              label=entry.label,
              privacy_unit=ledger.privacy_unit,
            )
    replaced = []
    if self._replaces is not None:
      replaced = work_directory.list_earlier(self._replaces)
      replaced.append(os.path.join(self._replaces, work_directory.LEDGER))
    paths = [target, *filter(os.path.exists, [*replaced, *earlier])]
    spent = [_spent(path) for path in paths]
    # The fit itself when it is saved again, and what both know of, count once:
    # of copies of one ledger the longest, or all that went on differently.
    taken = [
      path
      for n, path in enumerate(paths)
      if n
      and not any(
        _covers(other, spent[n]) and (k < n or not _covers(spent[n], other))
        for k, other in enumerate(spent)
        if k != n
      )
    ]
    if taken:
      work_directory.take_earlier(taken, self._root)
    return work_directory.list_earlier(self._root)

  def header(self) -> dict[str, Any]:
    """Returns the first entries of model.json, of the ledgers that are here."""
    return {
      'format': _FORMAT,
      'format_version': _FORMAT_VERSION,
      'library_version': __version__,
      'ledgers_sha256': _digests(self._root),
    }


@contextlib.contextmanager
def written_aside(
  model_dir: atomic.PathLike,
  overwrite: bool,
  workspace: atomic.PathLike | None = None,
) -> Iterator[ModelDirectory]:
  """Yields a `ModelDirectory` that becomes `model_dir` unless an error occurs.

  `workspace` is a folder beside it for files that a killed process may leave,
  by default its parent.
  """
  target = os.path.abspath(model_dir)
  parent, name = os.path.split(target)
  if workspace is not None:
    parent = os.path.abspath(workspace)
  check_target(model_dir, overwrite)
  os.makedirs(parent, exist_ok=True)
  with atomic.folder_aside(parent, name) as aside:
    folder = ModelDirectory(aside, target if os.path.isdir(target) else None)
    yield folder
    # A ledger's file is private; here it gets what open would have given.
    for path in _ledgers(aside):
      atomic.grant_default_mode(path)
    replaced = None if workspace is None else os.path.join(parent, _REPLACED)
    atomic.publish_folder(aside, target, replaced)


def bring_back(model_dir: atomic.PathLike, workspace: atomic.PathLike) -> None:
  """Undoes a replacement that was killed between its two renames."""
  replaced = os.path.join(workspace, _REPLACED)
  if os.path.isdir(replaced) and not os.path.lexists(model_dir):
    os.rename(replaced, model_dir)


def is_complete(model_dir: atomic.PathLike, ledger: atomic.PathLike) -> bool:
  """Whether `model_dir` holds the model of the fit that wrote `ledger`."""
  if not os.path.exists(os.path.join(model_dir, _MODEL)):
    return False
  digests = read_model(model_dir)['ledgers_sha256']
  return os.path.exists(ledger) and (
    digests.get(work_directory.LEDGER) == _digest(ledger)
  )


def check_target(model_dir: atomic.PathLike, overwrite: bool) -> None:
  """Raises a `FileExistsError` for a folder that may not be replaced."""
  atomic.check_replaceable(
    model_dir,
    overwrite,
    lambda folder: os.path.exists(os.path.join(folder, _MODEL)),
    'a model of tfdpflows',
  )


def find_model(model_dir: atomic.PathLike) -> str:
  """Returns the path of model.json, which is not read yet.

  Raises:
    FileNotFoundError: if there is none.
  """
  path = os.path.join(model_dir, _MODEL)
  if not os.path.exists(path):
    raise FileNotFoundError(
      f'{model_dir} holds no model: {path} is missing. Give a folder that '
      '`tfdpflows fit` or `TabularSynthesizer.save` wrote.'
    )
  return path


def read_model(model_dir: atomic.PathLike) -> dict[str, Any]:
  """Returns the content of model.json.

  Raises:
    FileNotFoundError: if there is none.
    ValueError: if it is damaged or of another format.
  """
  path = find_model(model_dir)
  with open(path, encoding='utf-8') as file:
    try:
      model = json.load(file)
    except ValueError as error:
      raise ValueError(f'{path} is damaged ({error}).') from error
  if not isinstance(model, dict):
    raise ValueError(f'{path} is damaged: it holds no object.')
  found = (model.get('format'), model.get('format_version'))
  if found[0] != _FORMAT or found[1] not in _READABLE:
    raise ValueError(
      f'{path} is of format {found[0]!r}, version {found[1]}, written by '
      f'tfdpflows {model.get("library_version")}; this is tfdpflows '
      f'{__version__}, which reads {_FORMAT!r}, versions {_READABLE}. '
      'Load it with the version that wrote it.'
    )
  return model


def read_ledger(
  model_dir: atomic.PathLike, model: dict[str, Any]
) -> tuple[PrivacyLedger, list[str]]:
  """Returns the ledger of a model, read-only, and paths of earlier ones.

  Raises:
    LedgerError: if one is missing, damaged, or not the one of this model.
  """
  path = os.path.join(model_dir, work_directory.LEDGER)
  ledger = PrivacyLedger.open(path, read_only=True)
  found, digests = _digests(model_dir), model['ledgers_sha256']
  for name in sorted({*found, *digests}):
    if found.get(name) != digests.get(name):
      ledger.close()
      raise LedgerError(
        f'{os.path.join(model_dir, name)} is not the ledger that this model '
        'was written with: it was replaced, cut, added or removed. Restore it '
        'from a copy; without it no privacy statement can be made.'
      )
  return ledger, work_directory.list_earlier(model_dir)


def _ledgers(folder):
  own = os.path.join(folder, work_directory.LEDGER)
  return [own, *work_directory.list_earlier(folder)]


def _digests(folder):
  return {os.path.relpath(p, folder): _digest(p) for p in _ledgers(folder)}


def _digest(path):
  # A model stays what it is when its ledger is merged with those of others.
  with open(path, 'rb') as file:
    return hashlib.sha256(before_merge(file.read())).hexdigest()


def _spent(path):
  """Returns the name of the fit that a ledger is of, and its charges."""
  try:
    with PrivacyLedger.open(path, read_only=True) as ledger:
      charges = [
        # Copies that went on by themselves may have other sums, and those that
        # began to train other noise.
        ((e.label, e.event, e.randomness_id, e.nonce), e.charged)
        for e in ledger._state.entries
        if e.charged
      ]
      return ledger.metadata.get('fit', path), charges
  except LedgerError:
    return path, []


def _covers(one, other):
  """Whether one ledger has all charges of another one of the same fit."""
  (fit, charges), (other_fit, others) = one, other
  return (
    fit == other_fit
    and len(charges) >= len(others)
    and all(a[0] == b[0] and a[1] >= b[1] for a, b in zip(charges, others))
  )
