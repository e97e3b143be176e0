"""The workers of a fit, as TF_CONFIG names them, and how they find each other.

Until `Cluster.team` nothing here imports TensorFlow, whose own start waits for
all workers without end, and without saying for whom.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from absl import logging

from tfdpflows.cli import quiet
from tfdpflows.cli.command import UsageError

if TYPE_CHECKING:
  from tfdpflows.tabular.workers import Team

# Seconds that a worker waits for the others to be started.
PATIENCE = 600.0
# Seconds between two looks, and for one connection.
_PAUSE, _CONNECT = 0.5, 2.0
_EXAMPLE = (
  '\'{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": '
  '"worker", "index": 0}}\''
)
_KINDS = ('chief', 'worker')


class Cluster(NamedTuple):
  """The workers that train together.

  >>> from tfdpflows.cli import cluster
  >>> cluster.Cluster(('a:2222', 'b:2222'), 1).describe()
  'Worker 1 of 2 (b:2222)'
  """

  addresses: tuple[str, ...]  # `host:port` of each, the chief first.
  number: int  # Which of them this process is; 0 is the chief.

  @classmethod
  def of_environment(cls, environment: Mapping[str, str]) -> Cluster:
    """Returns the cluster of TF_CONFIG.

    Raises:
      UsageError: if it is missing, or does not describe this process.
    """
    text = environment.get('TF_CONFIG', '').strip()
    if not text:
      raise UsageError(
        '--workers needs the environment variable TF_CONFIG, which names all '
        f'workers and which of them this is: TF_CONFIG={_EXAMPLE}.'
      )
    try:
      config = json.loads(text)
      cluster, task = config['cluster'], config['task']
      kind, index = task['type'], task['index']
      others = sorted(set(cluster) - set(_KINDS))
      addresses = {kind: list(cluster.get(kind, ())) for kind in _KINDS}
      every = [a for kind in _KINDS for a in addresses[kind]]
      ports = [int(_split(address)[1]) for address in every]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise UsageError(
        f'TF_CONFIG cannot be read ({type(error).__name__}: {error}). It is '
        f'JSON such as {_EXAMPLE}.'
      ) from error
    if others or kind not in _KINDS:
      name = kind if kind not in _KINDS else others[0]
      raise UsageError(
        f'TF_CONFIG has tasks of type {name!r}, and fit knows "worker", and '
        '"chief" for the first of them: leave others out, and do not start '
        'fit for them.'
      )
    if len(addresses['chief']) > 1:
      raise UsageError('TF_CONFIG has several tasks of type "chief": name one.')
    if len(set(every)) < len(every) or not all(0 < p < 65536 for p in ports):
      raise UsageError(
        f'TF_CONFIG names the workers {", ".join(every)}: each needs an '
        'address of its own, host:port, with a port from 1 to 65535.'
      )
    whole = isinstance(index, int) and not isinstance(index, bool)
    if not (whole and 0 <= index < len(addresses[kind])):
      raise UsageError(
        f'TF_CONFIG says that this is {kind} {index!r}, and there are '
        f'{len(addresses[kind])} of this type, numbered from 0.'
      )
    before = len(addresses['chief']) if kind == 'worker' else 0
    return cls(tuple(every), before + index)

  def describe(self) -> str:
    """Returns which worker this is, in words."""
    own = self.addresses[self.number]
    return f'Worker {self.number} of {len(self.addresses)} ({own})'

  def _meet(self, patience):
    """Waits until all others listen, too."""
    own = self.addresses[self.number]
    end, told = time.monotonic() + patience, False
    while missing := [a for a in self.addresses if not _is_up(a, own)]:
      if time.monotonic() > end:
        raise ConnectionError(
          f'{self.describe()} has waited for {patience:.0f} seconds, and '
          f'there is no answer from {", ".join(missing)}. Start fit there '
          'too, with the same TF_CONFIG but for its index, and see whether '
          'the port can be reached from here.'
        )
      if not told:
        logging.info('Waiting for %s.', ', '.join(missing))
        told = True
      time.sleep(_PAUSE)

  def team(self, patience: float = PATIENCE) -> Team:
    """Starts TensorFlow on all workers; returns those that train together.

    Each listens where TensorFlow will, says nothing to whoever connects, and
    goes on once it has reached all others, after `patience` seconds at most.

    Raises:
      ConnectionError: if one is not there in time, naming its address; or if
        this one's own port is taken.
    """
    with contextlib.closing(_listen(self.addresses[self.number])):
      with quiet.importing():
        import tensorflow as tf

        from tfdpflows.tabular import workers

      self._meet(patience)
    # If one ends now, TensorFlow waits for it in vain, deaf to all signals.
    faulthandler.dump_traceback_later(patience, exit=True)
    try:
      # Before anything else of TensorFlow.
      strategy = tf.distribute.MultiWorkerMirroredStrategy()
      return workers.Team(strategy)
    finally:
      faulthandler.cancel_dump_traceback_later()


def _split(address):
  host, _, port = address.rpartition(':')
  if not host:
    raise ValueError(f'{address!r} is no host:port')
  return host.strip('[]'), port


def _listen(address):
  port = int(_split(address)[1])
  try:
    if socket.has_dualstack_ipv6():
      return socket.create_server(
        ('', port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True
      )
    return socket.create_server(('', port), backlog=128)
  except OSError as error:
    raise ConnectionError(
      f'The port of this worker, {address}, cannot be used '
      f'({error.strerror}). An earlier run may have it still: end that, or '
      'give another port in TF_CONFIG, on all workers.'
    ) from error


def _is_up(address, own):
  if address == own:
    return True
  host, port = _split(address)
  try:
    socket.create_connection((host, int(port)), timeout=_CONNECT).close()
  except OSError:
    return False
  return True
