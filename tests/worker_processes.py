"""Processes that tests start and kill, which find each other over loopback."""

import contextlib
import socket

from tests import forked


def free_ports(count):
  """Returns ports of this machine that nobody listens on."""
  with contextlib.ExitStack() as stack:
    free = [stack.enter_context(socket.socket()) for _ in range(count)]
    for one in free:
      one.bind(('127.0.0.1', 0))
    return [one.getsockname()[1] for one in free]


@contextlib.contextmanager
def started(folder, phase, commands, environments=None):
  """Starts a Python process for each command, and kills what is left of them.

  Each writes to a log in the folder, of the phase and its number.
  """
  environments = environments or [{}] * len(commands)
  with forked.running(
    [
      forked.Process(command, folder / f'{phase} {index}.log', environment)
      for index, (command, environment) in enumerate(
        zip(commands, environments)
      )
    ]
  ) as processes:
    yield processes
