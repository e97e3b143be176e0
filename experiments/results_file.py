"""A JSON file of runs that grows run by run, and goes on where it stopped."""

from __future__ import annotations

import json
import os

from experiments.run_record import command_line, versions
from tfdpflows import atomic


class ResultsFile:
  """Runs of one experiment, written again, complete, after every run.

  Each run has the number of its entry in `environments`: the command line that
  made it, and the versions of what it ran with.

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
    self.content = {**_as_read(header), 'environments': [], 'runs': []}
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
    return any(self._is(run, key) for run in self.runs)

  def add(self, run):
    """Adds a run, in place of one with the same keys, and writes the file.

    Args:
      run: JSON-able dict with all keys.
    """
    environment = _as_read({'command': command_line(), 'versions': versions()})
    environments = self.content['environments']
    if environment not in environments:
      environments.append(environment)
    run = {**run, 'environment': environments.index(environment)}
    key = {name: run[name] for name in self._keys}
    runs = [other for other in self.runs if not self._is(other, key)]
    self.content['runs'] = [*runs, _as_read(run)]
    if self._path is not None:
      atomic.write_file(self._path, to_json(self.content).encode())

  def _is(self, run, key):
    return all(run[name] == key[name] for name in self._keys)


def grouped(runs, *names):
  """Returns a dict of lists of runs, by the values that they have of names.

  Args:
    runs: dicts.
    names: keys of all; of several, the keys of the result are tuples.

  #### Example

  >>> grouped([{'a': 1, 'b': 2}, {'a': 1, 'b': 3}], 'a')
  {1: [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]}
  """
  found = {}
  for run in runs:
    key = tuple(run[name] for name in names)
    found.setdefault(key if len(names) > 1 else key[0], []).append(run)
  return found


def to_json(content):
  """Returns a dict as JSON with a line for each value or item of a list.

  #### Example

  >>> print(to_json({'delta': 1e-5, 'runs': [{'split': 0}, {'split': 1}]}))
  {
    "delta": 1e-05,
    "runs": [
      {"split": 0},
      {"split": 1}
    ]
  }
  <BLANKLINE>
  """
  dump = lambda value: json.dumps(value, allow_nan=False)
  lines = []
  for key, value in content.items():
    if isinstance(value, list) and value:
      items = ',\n    '.join(map(dump, value))
      text = f'[\n    {items}\n  ]'
    else:
      text = dump(value)
    lines.append(f'  {dump(key)}: {text}')
  return '{\n' + ',\n'.join(lines) + '\n}\n'


def _as_read(value):
  """The value as it reads back: tuples are lists there."""
  return json.loads(json.dumps(value))
