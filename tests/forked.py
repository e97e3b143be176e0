"""Processes that begin where TensorFlow is imported, which takes seconds.

They are forked off a process that has imported it and done nothing with it:
all that TensorFlow sets up when it is first used, they set up themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PRELOADED = ('tfdpflows.tabular.synthesizer', 'tfdpflows.models')


class Process:
  """A process that runs a program, with the methods of `subprocess.Popen`.

  Args:
    program: the path of a file of Python, `-m` and a module, or `-c` and code,
      followed by arguments.
    log: file for what it writes to both of its streams.
    environment: variables that it has besides those of this process.
    folder: where it runs.
  """

  def __init__(
    self,
    program: Sequence[str],
    log: str | os.PathLike,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike = ROOT,
  ):
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(list(_PRELOADED))
    # That of the server, if it is not there yet.
    quiet = {'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_USE_LEGACY_KERAS': '1'}
    arguments = (
      [os.fspath(word) for word in program],
      os.fspath(log),
      {**os.environ, **quiet, **(environment or {})},
      os.fspath(folder),
    )
    with mock.patch.dict(os.environ, quiet):
      self._process = context.Process(target=_run, args=arguments)
      self._process.start()

  def wait(self, timeout: float | None = None) -> int:
    """Returns the exit status, once the process has ended."""
    self._process.join(timeout)
    if self._process.exitcode is None:
      raise subprocess.TimeoutExpired('a forked process', timeout)
    return self._process.exitcode

  def kill(self) -> None:
    self._process.kill()


@contextlib.contextmanager
def running(processes: Sequence[Process]) -> Iterator[Sequence[Process]]:
  """Kills in the end what is left of processes."""
  try:
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.wait()


def run(program: Sequence[str], log: str | os.PathLike, **kwargs) -> int:
  """Runs a program to its end, and returns its exit status.

  Args:
    program: see `Process`, as the others.
    log: see there.
    **kwargs: `environment` and `folder`, see there.
  """
  with running([Process(program, log, **kwargs)]) as (process,):
    return process.wait(600)


def _run(program, log, environment, folder):
  """What the process does."""
  os.environ.clear()
  os.environ.update(environment)
  os.chdir(folder)
  descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  for stream in (1, 2):
    os.dup2(descriptor, stream)
  first, *sys.argv[1:] = program
  if first == '-m':
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
  elif first == '-c':
    code = sys.argv.pop(1)
    sys.argv[0] = first
    exec(compile(code, 'code', 'exec'), {'__name__': '__main__'})
  else:
    sys.argv[0] = first
    sys.path.insert(0, os.path.dirname(first))
    runpy.run_path(first, run_name='__main__')
