import json
import sys

import pytest

from experiments.results_file import ResultsFile


class TestResultsFile:
  def test_without_a_path(self):
    results = ResultsFile(None, {'a': 1}, ('k',))
    results.add({'k': 1})
    assert results.has(k=1)
    assert not results.has(k=2)

  def test_goes_on_where_it_stopped(self, tmp_path):
    path = tmp_path / 'runs.json'
    ResultsFile(path, {'a': 1}, ('k',)).add({'k': 1, 'shape': (2, 3)})
    again = ResultsFile(path, {'a': 1}, ('k',))
    assert again.has(k=1)
    again.add({'k': 2})
    assert json.loads(path.read_text()) == again.content
    assert again.runs[0]['shape'] == [2, 3]
    with pytest.raises(ValueError, match='runs of another a'):
      ResultsFile(path, {'a': 2}, ('k',))

  def test_a_run_takes_the_place_of_one_with_the_same_keys(self):
    results = ResultsFile(None, {}, ('k',))
    for value in range(2):
      results.add({'k': 1, 'value': value})
    assert [run['value'] for run in results.runs] == [1]

  def test_environments_are_kept_once(self, monkeypatch):
    results = ResultsFile(None, {}, ('k',))
    for k, command in enumerate(('one', 'one', 'other')):
      monkeypatch.setattr(sys, 'orig_argv', [command], raising=False)
      results.add({'k': k})
    assert [run['environment'] for run in results.runs] == [0, 0, 1]
    commands = [e['command'] for e in results.content['environments']]
    assert commands == [['one'], ['other']]
    assert results.content['environments'][0]['versions']['numpy']
