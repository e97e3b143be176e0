"""Processes that tests start and kill, which find each other over loopback."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


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
  processes = []
  try:
    for index, command in enumerate(commands):
      with open(folder / f'{phase} {index}.log', 'w') as log:
        processes.append(
          subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={
              **os.environ,
              'PYTHONPATH': str(ROOT),
              'TF_CPP_MIN_LOG_LEVEL': '3',
              **(environments[index] if environments else {}),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
          )
        )
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.wait()
