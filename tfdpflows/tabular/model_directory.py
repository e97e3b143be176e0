"""The folder of a finished model: written aside, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile

from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.tabular import work_directory
from tfdpflows.version import __version__

_MODEL = 'model.json'
_FORMAT = 'tfdpflows tabular model'
_FORMAT_VERSION = 1


class ModelDirectory:
  """A folder under construction.

  Args:
    root: the folder, which exists.
    replaces: path of the model that it will replace, or `None`.
  """

  def __init__(self, root, replaces):
    self._root = root
    self._replaces = replaces

  def path(self, *parts):
    """Returns a path inside of the folder, whose own folder exists."""
    path = os.path.join(self._root, *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path

  def write_text(self, name, text):
    """Writes a text file."""
    with open(self.path(name), 'w', encoding='utf-8') as file:
      file.write(text)

  def write_json(self, name, content):
    """Writes a JSON file."""
    self.write_text(name, json.dumps(content, indent=1, allow_nan=False) + '\n')

  def add_ledger(self, ledger, earlier):
    """Puts a ledger in, and those of fits that came before on this path."""
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
      ) as copy:
        for entry in ledger.entries:
          if entry.count:
            copy.charge(entry.event, entry.count, entry.label)
    if self._replaces is not None:
      replaced = work_directory.list_earlier(self._replaces)
      replaced.append(os.path.join(self._replaces, work_directory.LEDGER))
      earlier = [p for p in replaced if os.path.exists(p)] + list(earlier)
    if earlier:
      work_directory.take_earlier(earlier, self._root)

  def ledger_digest(self):
    """Returns the digest by which a changed ledger is found out."""
    return _digest(self.path(work_directory.LEDGER))


@contextlib.contextmanager
def written_aside(model_dir, overwrite):
  """Yields a `ModelDirectory` that becomes `model_dir` if all goes well."""
  check_target(model_dir, overwrite)
  target = os.path.abspath(model_dir)
  parent, name = os.path.split(target)
  os.makedirs(parent, exist_ok=True)
  aside = tempfile.mkdtemp(dir=parent, prefix=f'.{name}.')
  try:
    yield ModelDirectory(aside, target if os.path.isdir(target) else None)
    # mkdtemp makes folders private; this one gets what mkdir would have given.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(aside, 0o777 & ~mask)
    if os.path.isdir(target):
      replaced = f'{aside}.replaced'
      os.rename(target, replaced)
      os.rename(aside, target)
      shutil.rmtree(replaced)
    else:
      os.rename(aside, target)
  except BaseException:
    shutil.rmtree(aside, ignore_errors=True)
    raise


def check_target(model_dir, overwrite):
  """Refuses a folder that exists, unless it is a model to be replaced.

  Raises:
    FileExistsError: if `model_dir` exists and may not be replaced.
  """
  if not os.path.lexists(model_dir):
    return
  if not overwrite:
    raise FileExistsError(
      f'{model_dir} exists: choose another name, or overwrite it.'
    )
  if not os.path.exists(os.path.join(model_dir, _MODEL)):
    raise FileExistsError(
      f'{model_dir} exists and is not a model of tfdpflows, so it is not '
      'overwritten: choose another name.'
    )


def header(ledger_digest):
  """Returns what every model.json begins with."""
  return {
    'format': _FORMAT,
    'format_version': _FORMAT_VERSION,
    'library_version': __version__,
    'ledger_sha256': ledger_digest,
  }


def read_model(model_dir):
  """Returns the content of model.json.

  Raises:
    FileNotFoundError: if there is none.
    ValueError: if it is of another format.
  """
  path = os.path.join(model_dir, _MODEL)
  if not os.path.exists(path):
    raise FileNotFoundError(f'{model_dir} holds no model: {path} is missing.')
  with open(path, encoding='utf-8') as file:
    try:
      model = json.load(file)
    except ValueError as error:
      raise ValueError(f'{path} is not JSON ({error}).') from error
  found = (model.get('format'), model.get('format_version'))
  if found != (_FORMAT, _FORMAT_VERSION):
    raise ValueError(
      f'{path} is of format {found[0]!r}, version {found[1]}, written by '
      f'tfdpflows {model.get("library_version")}; this is tfdpflows '
      f'{__version__}, which reads {_FORMAT!r}, version {_FORMAT_VERSION}. '
      'Load it with the version that wrote it.'
    )
  return model


def read_ledger(model_dir, model):
  """Returns the ledger of a model, read-only, and paths of earlier ones.

  Raises:
    LedgerError: if it is missing, damaged, or not the one of this model.
  """
  path = os.path.join(model_dir, work_directory.LEDGER)
  ledger = PrivacyLedger.open(path, read_only=True)
  if _digest(path) != model['ledger_sha256']:
    raise LedgerError(
      f'{path} is not the ledger that this model was written with: it was '
      'replaced or cut. Restore it from a copy; without it nothing can be '
      'said of the privacy of the model.'
    )
  return ledger, work_directory.list_earlier(model_dir)


def _digest(path):
  with open(path, 'rb') as file:
    return hashlib.sha256(file.read()).hexdigest()
