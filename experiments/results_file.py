"""A JSON file of runs that grows run by run, and goes on where it stopped."""

from __future__ import annotations

import json
import os

from experiments.tabular_synthesis import versions, write_json


class ResultsFile:
  """Runs of one experiment, written again, complete, after every run.

  Args:
    path: the file; `None` keeps the runs in memory only. If it exists, its
      runs are kept and need not be run again.
    header: JSON-able dict of what all runs have in common.
    keys: names of the values that tell one run from another.

  Raises:
    ValueError: if the file holds runs of another header.
  """

  def __init__(self, path, header, keys):
    self._path = path
    self._keys = tuple(keys)
    self.content = {**json.loads(json.dumps(header)), 'runs': []}
    if path is None or not os.path.exists(path):
      return
    with open(path, encoding='utf-8') as file:
      found = json.load(file)
    other = sorted(key for key in header if found.get(key) != self.content[key])
    if other:
      raise ValueError(
        f'{path} holds runs of another {", ".join(other)}. Give another '
        '--output, or delete the file to start again.'
      )
    self.content = found

  @property
  def runs(self):
    """The runs so far, a list of dicts."""
    return self.content['runs']

  def has(self, **key):
    """Whether there is a run with these values of all keys."""
    return any(all(run[k] == key[k] for k in self._keys) for run in self.runs)

  def add(self, run, command=None):
    """Adds a run and writes the file aside, then in place.

    Args:
      run: JSON-able dict with all keys.
      command: command line that made it.
    """
    run = {**run, 'command': command, 'versions': versions()}
    # As it reads back: tuples are lists there.
    self.runs.append(json.loads(json.dumps(run)))
    if self._path is not None:
      write_json(self._path, self.content)
