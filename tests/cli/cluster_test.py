"""TF_CONFIG, its mistakes, and workers that do not come."""

import json
import socket
import threading

import pytest

from tfdpflows import cli
from tfdpflows.cli import cluster
from tfdpflows.cli.command import UsageError

WORKERS = {'worker': ['a:2222', 'b:2222']}


def _config(cluster=None, **task):
  task = {'type': 'worker', 'index': 0, **task}
  return json.dumps({'cluster': cluster or WORKERS, 'task': task})


def _read(text):
  return cluster.Cluster.of_environment({'TF_CONFIG': text})


def test_workers_are_numbered_with_the_chief_first():
  assert _read(_config(index=1)) == (('a:2222', 'b:2222'), 1)
  both = {'worker': ['b:1', '[::1]:2'], 'chief': ['a:1']}
  assert _read(_config(both, index=1)) == (('a:1', 'b:1', '[::1]:2'), 2)
  assert _read(_config(both, type='chief')).describe() == 'Worker 0 of 3 (a:1)'


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('', '--workers needs the environment variable TF_CONFIG'),
    ('{', 'TF_CONFIG cannot be read'),
    ('[]', 'TF_CONFIG cannot be read'),
    ('{"cluster": {"worker": ["a:1"]}}', "KeyError: 'task'"),
    (_config({'worker': ['a']}), 'no host:port'),
    (_config({'worker': ['a:port']}), 'TF_CONFIG cannot be read'),
    (_config({'worker': ['a:1', 'a:1']}), 'an address of its own'),
    (_config({'worker': ['a:70000']}), 'a port from 1 to 65535'),
    (_config({**WORKERS, 'ps': ['c:1']}), "tasks of type 'ps'"),
    (_config(type='evaluator'), "tasks of type 'evaluator'"),
    (_config({'chief': ['a:1', 'b:1']}, type='chief'), 'several tasks'),
    (_config(index=2), 'numbered from 0'),
    (_config(index='0'), 'numbered from 0'),
    (_config(index=True), 'numbered from 0'),
  ],
)
def test_mistakes_are_named(text, words):
  with pytest.raises(UsageError, match='TF_CONFIG') as found:
    _read(text)
  assert words in str(found.value)


def test_command_without_tf_config(monkeypatch, capsys):
  monkeypatch.delenv('TF_CONFIG', raising=False)
  flags = '--input=a.csv --schema=a.json --epsilon=1 --delta=1e-5 --model_dir=m'
  assert cli.main(['fit', '--workers', *flags.split()]) == 2
  assert 'TF_CONFIG' in capsys.readouterr().err


def _free(count):
  with socket.socket() as one, socket.socket() as other:
    for found in (one, other):
      found.bind(('127.0.0.1', 0))
    ports = [one.getsockname()[1], other.getsockname()[1]]
  return tuple(f'127.0.0.1:{port}' for port in ports[:count])


def test_worker_that_does_not_come_is_named():
  addresses = _free(2)
  with pytest.raises(ConnectionError) as found:
    cluster.Cluster(addresses, 0)._meet(patience=0.1)
  assert f'no answer from {addresses[1]}' in str(found.value)
  assert 'Worker 0 of 2' in str(found.value)


def test_port_that_is_taken_is_named():
  (address,) = _free(1)
  taken = socket.create_server(('', int(address.split(':')[1])))
  with taken, pytest.raises(ConnectionError, match='cannot be used'):
    cluster.Cluster((address,), 0).team(patience=0.1)


def test_worker_that_comes_late_is_waited_for():
  addresses, late = _free(2), []
  port = int(addresses[1].split(':')[1])
  come = lambda: late.append(socket.create_server(('', port)))
  timer = threading.Timer(0.3, come)
  timer.start()
  cluster.Cluster(addresses, 0)._meet(patience=20)
  timer.join()
  late[0].close()
