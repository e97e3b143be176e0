"""What a private step costs against sizes of a flow, and its first step."""

from __future__ import annotations

import gc
import statistics
import time

from experiments import bench_step_cases as cases
from experiments.bench_step_timing import interleave, summarize

_PRIVATE = cases.ours('Flat')
SWEEPS = {
  'batch': (64, 256, 1024, 4096, 16384),
  'width': (64, 128, 256, 512, 1024),
  'num_blocks': (1, 2, 5, 10),
  'event_size': (5, 10, 20, 50, 100),
}


def run_sweeps(sweeps=None, rounds=15, shape=None, progress=None):
  """Times the private and the other step against one size after the other.

  All points of a sweep are interleaved.

  Args:
    sweeps: a dict of size -> values; `SWEEPS` by default.
    rounds: steps of each point that are timed.
    shape: what to change in the MAF of `bench_step_cases.MODELS`.
    progress: called with a line of words now and then.

  Returns:
    A dict of size -> list of dicts, one for each value, of `value`,
    `not_private_ms`, `private_ms`, `ratio`, `ratio_quartiles`, and
    `private_us_per_example`.
  """
  base = {**cases.MODELS['maf'], **(shape or {})}
  result = {}
  for size, values in (SWEEPS if sweeps is None else sweeps).items():
    calls, batches = {}, {}
    for value in values:
      shape = {**base, **_changed(size, value, base)}
      batches[value] = shape['batch']
      for variant in (cases.FLOOR, _PRIVATE):
        calls[value, variant] = cases.make_step('maf', variant, **shape)
    times = interleave(calls, rounds, progress=progress)
    found = summarize(times, lambda name: (name[0], cases.FLOOR))
    result[size] = [
      {
        'value': value,
        'not_private_ms': found[value, cases.FLOOR]['median_ms'],
        'private_ms': found[value, _PRIVATE]['median_ms'],
        'ratio': found[value, _PRIVATE]['ratio'],
        'ratio_quartiles': found[value, _PRIVATE]['ratio_quartiles'],
        'private_us_per_example': 1e3
        * found[value, _PRIVATE]['median_ms']
        / batches[value],
      }
      for value in values
    ]
    del calls
    gc.collect()
  return result


def _changed(size, value, base):
  if size == 'width':
    return {'hidden_units': (value,) * len(base['hidden_units'])}
  return {size: value}


def time_first_steps(
  blocks=(1, 2, 5, 10), xla=True, repeats=2, shape=None, progress=None
):
  """Seconds of the first step: tracing, compiling, and one step.

  Args:
    blocks: numbers of blocks of the flow.
    xla: whether to time the step compiled by XLA too.
    repeats: models of each kind, of which the median is taken.
    shape: as in `run_sweeps`.
    progress: as in `run_sweeps`.

  Returns:
    A dict of variant -> number of blocks, as words -> seconds.
  """
  shape = dict(shape or {})
  variants = [cases.FLOOR, _PRIVATE]
  variants += [v + cases.XLA for v in variants] if xla else []
  times = {v: {str(n): [] for n in blocks} for v in variants}
  # What is slow once in a process is none of the model's.
  for variant in variants:
    cases.make_step('maf', variant, **{**shape, 'num_blocks': 1})()
  for _ in range(repeats):
    for variant in variants:
      for count in blocks:
        step = cases.make_step('maf', variant, **{**shape, 'num_blocks': count})
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        times[variant][str(count)].append(seconds)
        if progress:
          progress(f'first step, {variant}, {count} blocks: {seconds:.1f} s')
  return {
    variant: {n: statistics.median(t) for n, t in found.items()}
    for variant, found in times.items()
  }
