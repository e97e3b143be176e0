"""A ledger, models and an unfinished fit, as written on 23 November 2026.

`python -m tests.golden.make files` writes them anew; that is for a new file,
never for one that no longer opens.
"""

from __future__ import annotations

import pathlib
import shutil
import tarfile
import tempfile
from unittest import mock

import dp_accounting
import tensorflow as tf

import tfdpflows
from tests.golden import accounting as golden_accounting
from tests.golden import tables
from tfdpflows import accounting
from tfdpflows.accounting import events_json
from tfdpflows.tabular import fit_to_directory

FOLDER = pathlib.Path(__file__).with_name('files')
MODELS = ('histogram', 'spline', 'hflow_variational')
_UNFINISHED = {'epsilon': 8.0, 'delta': 1e-4, 'seed': 9, 'progress': False}


def unpack(name, folder):
  """Unpacks one of the archives.

  Args:
    name: Without its suffix.
    folder: Where to.

  Returns:
    The path of what was in it.
  """
  with tarfile.open(FOLDER / f'{name}.tar.xz') as archive:
    # Of ours, and Python before 3.11.4 has no filter.
    safe = {'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}
    archive.extractall(folder, **safe)
  return str(pathlib.Path(folder) / name)


def resumed(folder):
  """Goes on with the fit that was not finished.

  Args:
    folder: Holds its working directory.

  Returns:
    A `TabularSynthesizer`.
  """
  return _fit(folder, resume=True)


def describe(ledger):
  """What a ledger holds.

  Args:
    ledger: A `PrivacyLedger`.

  Returns:
    A dict of epsilon, in hexadecimal digits, and the labels of its entries.
  """
  return {
    'epsilon': ledger.epsilon().hex(),
    'labels': [entry.label for entry in ledger.entries],
  }


def _fit(folder, **kwargs):
  rows, schema = tables.table()
  return fit_to_directory(
    rows,
    schema,
    f'{folder}/unfinished',
    **_UNFINISHED,
    **tables.TINY,
    **kwargs,
  )


def _pack(path):
  path = pathlib.Path(path)
  with tarfile.open(FOLDER / f'{path.name}.tar.xz', 'w:xz') as archive:
    archive.add(path, path.name)


def _interrupted(folder):
  """Leaves a fit behind its first checkpoint."""
  save = tf.train.CheckpointManager.save

  def stop(self, *args, **kwargs):
    save(self, *args, **kwargs)
    raise KeyboardInterrupt

  with mock.patch.object(tf.train.CheckpointManager, 'save', stop):
    try:
      _fit(folder)
    except KeyboardInterrupt:
      return
  raise RuntimeError('The fit ended before its first checkpoint.')


def _ledger(path):
  budget = accounting.PrivacyBudget(epsilon=9.0, delta=1e-5)
  cases = golden_accounting.cases()
  with tfdpflows.PrivacyLedger(path, budget=budget, accountant='rdp') as ledger:
    for i, case in enumerate(cases[: 3 * 28 : 3]):
      event = events_json.event_from_dict(case['event'])
      if accounting.create_accountant('rdp').supports(event):
        try:
          ledger.charge(event, label=f'case {i}')
        except accounting.BudgetExceededError:
          continue
    ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='the last')


def make():
  """Writes the files.

  Returns:
    What is in them: a dict for `json.dumps`.
  """
  FOLDER.mkdir(exist_ok=True)
  found = {}
  _ledger(str(FOLDER / 'ledger.jsonl'))
  with tfdpflows.PrivacyLedger.open(str(FOLDER / 'ledger.jsonl')) as ledger:
    found['ledger'] = describe(ledger)
  with tempfile.TemporaryDirectory() as folder:
    for name in MODELS:
      synthesizer = tables.fitted(name)
      synthesizer.save(f'{folder}/{name}')
      _pack(f'{folder}/{name}')
      found[name] = tables.values(synthesizer)
    _interrupted(folder)
    _pack(f'{folder}/unfinished.partial')
    found['unfinished'] = tables.values(resumed(folder))
    shutil.rmtree(f'{folder}/unfinished')
  return found
