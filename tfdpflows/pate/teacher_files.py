"""Trained teachers, and the folder that an ensemble of them is saved in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from tfdpflows import atomic
from tfdpflows._keras import keras
from tfdpflows.randomness import Randomness
from tfdpflows.version import __version__

_SETTINGS, _SECRET = 'settings.json', 'secret'
# What settings must have.
_NAMES = ('version', 'class', 'shape', 'seeded', 'units', 'table', 'finished')


class Teacher(NamedTuple):
  """A trained teacher.

  Attributes:
    model: a scikit-learn estimator; the weights of a Keras model, as a list; or
      `None` for a teacher with one answer.
    facts: float64 `[k]`, what else it learned from its shard.
  """

  model: Any
  facts: np.ndarray


class Store:
  """The folder of an ensemble: its settings, and each trained teacher.

  Of `model` it is seen that its like can be saved, and is still the same. One
  that is resumed has the `randomness` of its beginning.
  """

  def __init__(self, folder, resume, model, randomness):
    _check_savable(model)
    self._folder, self._resume = pathlib.Path(folder), resume
    self._model = _describe(model)
    self.randomness = randomness
    if not resume:
      if os.path.lexists(folder):
        raise FileExistsError(
          f'{folder} exists: resume its training, load it, or remove it.'
        )
      return
    self._settings = settings_of(folder)
    if self._settings['finished']:
      raise ValueError(f'{folder} is finished: TeacherEnsemble.load opens it.')
    seeded = self._settings['seeded']
    secret = (self._folder / _SECRET).read_bytes()
    self.randomness = Randomness(secret=secret)
    self.randomness.seeded = seeded

  def begin(self, settings, arrays):
    """Makes the folder, or sees that it was begun in the same way."""
    settings = {
      'version': __version__,
      **settings,
      'model': self._model,
      'table': self.randomness.table_fingerprint(arrays),
      'finished': False,
    }
    settings = json.loads(json.dumps(settings))
    if self._resume:
      names = {'table': 'rows or units', 'model': 'model or its parameters'}
      for name, value in settings.items():
        if self._settings.get(name) != value:
          raise ValueError(
            f'{self._folder} was begun with another {names.get(name, name)}. '
            'Teachers of two trainings would not be those of disjoint shards: '
            'resume with the same rows and arguments.'
          )
      return
    parent, name = os.path.split(os.path.abspath(self._folder))
    with atomic.folder_aside(parent, name) as aside:
      _write(aside, _SECRET, self.randomness.secret)
      _write_settings(aside, settings)
      os.rename(aside, self._folder)
    self._settings = settings

  def save(self, t, teacher):
    weights = teacher.model if isinstance(teacher.model, list) else []
    if teacher.model is not None and not weights:
      content = _skops().dumps(teacher.model)
      _write(self._folder, f'{t:05}.skops', content)
    arrays = {f'weight_{i:09}': w for i, w in enumerate(weights)}
    arrays['facts'] = teacher.facts
    _write(self._folder, f'{t:05}.npz', lambda file: np.savez(file, **arrays))

  def finish(self):
    _write_settings(self._folder, {**self._settings, 'finished': True})
    # It would tell which rows a teacher was trained on.
    (self._folder / _SECRET).unlink()


def settings_of(folder):
  """Returns the settings that the teachers of a folder were trained with."""
  path = pathlib.Path(folder) / _SETTINGS
  try:
    found = json.loads(path.read_text('utf-8'))
    return {**found, **{name: found[name] for name in _NAMES}}
  except FileNotFoundError as error:
    raise FileNotFoundError(f'{folder} has no ensemble of teachers.') from error
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def load(folder, t):
  """Returns teacher `t` of a folder, `None` if it is not there yet."""
  path = pathlib.Path(folder) / f'{t:05}.npz'
  if not path.exists():
    return None
  try:
    with np.load(path, allow_pickle=False) as file:
      facts = file['facts']
      model = [file[name] for name in sorted(file.files) if name != 'facts']
  except (ValueError, KeyError, OSError, EOFError) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  saved = path.with_suffix('.skops')
  if saved.exists():
    content, skops = saved.read_bytes(), _skops()
    unknown = skops.get_untrusted_types(data=content)
    model = skops.loads(content, trusted=list(filter(_is_known, unknown)))
  return Teacher(model if model != [] else None, facts)


def _write_settings(folder, settings):
  text = json.dumps(settings, indent=1)
  _write(folder, _SETTINGS, text.encode())


def _write(folder, name, write):
  atomic.write_file(pathlib.Path(folder) / name, write, private=True)


def _check_savable(model):
  if isinstance(model, keras.Model):
    return
  skops = _skops()
  unknown = skops.get_untrusted_types(data=skops.dumps(model))
  unknown = [name for name in unknown if not _is_known(name)]
  if unknown:
    raise ValueError(
      f'{type(model).__name__} has parts that skops does not load without '
      f'being told to trust them, {unknown}: give no folder.'
    )


def _describe(model):
  """Returns a digest of what kind of model it is."""
  text = type(model).__qualname__
  if isinstance(model, keras.Model):
    with contextlib.suppress(NotImplementedError, TypeError, ValueError):
      config = model.get_config()
      config.pop('name', None)
      # Keras numbers the names of layers.
      text += re.sub(r'_\d+', '', repr(config))
  elif hasattr(model, 'get_params'):
    text += repr(sorted(model.get_params().items(), key=str))
  return hashlib.sha256(text.encode()).hexdigest()


def _is_known(name):
  # The folder is the user's own: trees are loaded, which skops asks about.
  return name.startswith('sklearn.')


def _skops():
  try:
    import skops.io  # noqa: PLC0415 (optional)
  except ImportError as error:
    raise ImportError(
      'scikit-learn teachers are saved by the package skops, without pickle: '
      'pip install "tfdpflows[pate]", or give no folder.'
    ) from error
  return skops.io
