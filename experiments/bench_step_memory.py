"""Peak memory of one training step, in a process of its own.

What the process holds before the step (TensorFlow, the model, its data) is not
counted, nor is tracing: the step has run on four rows before. Freed memory is
returned to the system at once (`_ENVIRONMENT`), so that the peak is that of the
tensors that live at the same time. Left to themselves oneDNN and malloc keep
memory for the next step, and the peak hangs on what ran before.

  python -m experiments.bench_step_memory maf 'tfdpflows Flat' '[256, 1024]'
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

BATCHES = (256, 1024, 4096, 16384)
# Its memory is that of batch x parameters.
TF_PRIVACY_BATCHES = (64, 128, 256)
_ENVIRONMENT = {
  'MALLOC_MMAP_MAX_': '1000000',
  'MALLOC_MMAP_THRESHOLD_': '65536',
  'MALLOC_TRIM_THRESHOLD_': '65536',
  'TF_ENABLE_ONEDNN_OPTS': '0',
}
_FIRST_ROWS = 4
_CALLS = 3
_CLEAR_PEAK = '5'


def measure(model, variant, batches, **shape):
  """Returns the peak memory of a step in this process, in MB for each batch.

  `measure_apart` gives the process the environment that this needs.

  Args:
    model: one of `bench_step_cases.MODELS`.
    variant: one of `bench_step_cases.variants(model)`, without XLA, which
      would compile anew for every batch.
    batches: rows of a step.
    **shape: as in `bench_step_cases.make_step`.

  Raises:
    OSError: where the kernel does not tell, as outside of Linux.
  """
  from experiments import bench_step_cases as cases

  shape = {**shape, 'batch': max(batches)}
  step = cases.make_step(model, variant, any_batch=True, **shape)
  for _ in range(2):
    step.on_first_rows(_FIRST_ROWS)
  return [_peak(lambda n=n: step.on_first_rows(n)) for n in batches]


def _peak(call):
  """Returns by how much memory grows while something is called."""
  ctypes.CDLL(None).malloc_trim(0)
  with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
    file.write(_CLEAR_PEAK)
  before = _status('VmRSS')
  for _ in range(_CALLS):
    call()
  return (_status('VmHWM') - before) / 1e6


def measure_apart(model, variant, batches, **shape):
  """As `measure`, in a fresh process.

  Raises:
    RuntimeError: if it failed, such as for want of memory.
  """
  arguments = [model, variant, json.dumps(list(batches)), json.dumps(shape)]
  run = subprocess.run(
    [sys.executable, '-m', __spec__.name, *arguments],
    cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    capture_output=True,
    check=False,
    env={**os.environ, **_ENVIRONMENT},
    text=True,
  )
  if run.returncode:
    raise RuntimeError(
      f'The step {variant!r} of {model!r} at batches {list(batches)} ended '
      f'with {run.returncode}: {run.stderr.strip()[-1000:]}'
    )
  return json.loads(run.stdout.splitlines()[-1])


def run(
  batches=BATCHES,
  tf_privacy_batches=TF_PRIVACY_BATCHES,
  shape=None,
  progress=None,
):
  """Peak memory of the step of the MAF against its batch.

  Args:
    batches: rows of a step.
    tf_privacy_batches: rows of a step of TF Privacy; none leaves it out.
    shape: what to change in the MAF of `bench_step_cases.MODELS`.
    progress: called with a line of words now and then.

  Returns:
    A list of dicts of `batch`, and by variant, as far as measured there, of
    `mb` and of `ratio` to the step without privacy.
  """
  from experiments import bench_step_cases as cases

  shape = {k: v for k, v in (shape or {}).items() if k != 'batch'}
  everywhere = sorted({*batches, *tf_privacy_batches})
  wanted = dict.fromkeys(
    (cases.FLOOR, cases.ours('Flat'), cases.CHUNKED), everywhere
  )
  if tf_privacy_batches:
    theirs = (cases.VECTORIZED, cases.DP_MODEL)
    wanted.update(dict.fromkeys(theirs, sorted(tf_privacy_batches)))
  by_batch = {batch: {} for batch in everywhere}
  for variant, sizes in wanted.items():
    found = measure_apart('maf', variant, sizes, **shape)
    for batch, peak in zip(sizes, found):
      by_batch[batch][variant] = peak
    if progress:
      progress(f'{variant}: {", ".join(f"{mb:.0f}" for mb in found)} MB')
  return [
    {
      'batch': batch,
      'mb': found,
      'ratio': {name: mb / found[cases.FLOOR] for name, mb in found.items()},
    }
    for batch, found in by_batch.items()
  ]


def _status(field):
  """Returns a size of this process, in bytes."""
  with open('/proc/self/status', encoding='ascii') as file:
    for line in file:
      if line.startswith(field + ':'):
        return 1024 * int(line.split()[1])
  raise OSError(f'The kernel does not tell {field}.')


def _main(model, variant, batches, shape='{}'):
  shape = json.loads(shape)
  return measure(model, variant, json.loads(batches), **shape)


if __name__ == '__main__':
  print(json.dumps(_main(*sys.argv[1:])))
