"""Processes in which private models are trained and asked.

What a model leaves behind stays in them: numbers that TensorFlow counts up and
writes into names of functions, log lines, warnings. Only what a function
returns comes back.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle

from tfdpflows import _apart
from tfdpflows._keras import keras

# Processes without work end after this time.
_IDLE_SECONDS = 60
# They share the cores, and a GPU with the process that started them.
_THREADS = (
  'OMP_NUM_THREADS',
  'OPENBLAS_NUM_THREADS',
  'MKL_NUM_THREADS',
  'BLIS_NUM_THREADS',
  'VECLIB_MAXIMUM_THREADS',
  'NUMEXPR_NUM_THREADS',
)
_ENVIRONMENT = {
  'TF_CPP_MIN_LOG_LEVEL': '3',
  'TF_FORCE_GPU_ALLOW_GROWTH': 'true',
}
# By process and number: a fork cannot use those of its parent.
_executors: dict[tuple[int, int], Any] = {}


def each(
  function: Callable[[Any], Any], tasks: Iterable[Any], num_processes: int
) -> Iterator[Any]:
  """Yields what a function returns for each task, in other processes.

  Processes are started once and kept for later calls, until they have had no
  work for a minute. Each task has a copy of the function, by cloudpickle, and
  of all that it refers to. Nothing that it prints is shown. Results come in the
  order in which they are ready.

  Raises:
    ValueError: if the function cannot be pickled.
    RuntimeError: if a process ends by itself.
    Exception: what the function raises.
  """
  from joblib.externals import loky  # noqa: PLC0415 (slow to import)

  try:
    content = cloudpickle.dumps(function)
  except Exception as error:
    raise ValueError(
      f'Models are trained and asked in processes of their own, and the '
      f'function that makes them, or an option, cannot be sent there: {error}. '
      'Make layers, optimizers and all else inside of the function.'
    ) from error
  key = os.getpid(), num_processes
  executor = _executor(loky, key)
  waiting = set()
  try:
    for task in tasks:
      waiting.add(executor.submit(_apart.run, content, task))
      # One more for each process than it works on.
      if len(waiting) == 2 * num_processes:
        done, waiting = loky.wait(waiting, return_when=loky.FIRST_COMPLETED)
        for future in done:
          yield future.result()
    for future in loky.as_completed(waiting):
      yield future.result()
  except BaseException as error:
    failed = isinstance(error, Exception) and not isinstance(
      error, loky.BrokenProcessPool
    )
    if failed and all(future.done() for future in waiting):
      raise  # The process is as good as after a result.
    # No work goes on that nobody waits for.
    _executors.pop(key, None)
    executor.shutdown(wait=False, kill_workers=True)
    if isinstance(error, loky.BrokenProcessPool):
      raise RuntimeError(
        'A process that trains or asks teachers was ended from outside or '
        f'crashed, such as for memory: {error}'
      ) from error
    raise


def _executor(loky, key):
  with contextlib.suppress(KeyError, loky.BrokenProcessPool):
    # A process without work may have been killed.
    _executors[key].submit(int).result()
    return _executors[key]
  num_processes = key[1]
  threads = str(max(loky.cpu_count() // num_processes, 1))
  _executors[key] = loky.ProcessPoolExecutor(
    num_processes,
    timeout=_IDLE_SECONDS,
    initializer=_apart.silence,
    env={
      **{name: os.environ.get(name, threads) for name in _THREADS},
      **_ENVIRONMENT,
    },
  )
  return _executors[key]


def _own_keras():
  return keras


if type(keras) is not types.ModuleType:
  # TensorFlow 2.15 loads it late, by an object that has no pickle.
  copyreg.pickle(type(keras), lambda _: (_own_keras, ()))
