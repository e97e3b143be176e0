"""Time and memory of one private training step, beside its peers.

Steps of all variants are interleaved in one process, so that what else the
machine does falls on all alike. The machine should be quiet all the same.

All parts, a table and a figure, in about 15 minutes on two cores:

  python -m experiments.bench_step --all \\
    --output=experiments/results/bench_step.json \\
    --render=docs/understand/gradients.md --plot=docs/step.png

`--parts=steps,sweeps,tracing,memory,peers` measures some of them and leaves
the others in the file as they are; `peers` needs `make bench-peers`. With
`--export_hlo=DIR` it writes the compiled steps for `run_hlo.py` instead, and
`--gpu=FILE,FILE` takes what that wrote into the results.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
import time

from absl import app, flags

from experiments import bench_step_cases as cases
from experiments import (
  bench_step_hlo,
  bench_step_memory,
  bench_step_peers,
  bench_step_report,
  bench_step_sweeps,
  flag_values,
)
from experiments.bench_accounting import processor
from experiments.bench_step_timing import interleave, summarize
from experiments.run_record import versions, write_json

FLAGS = flags.FLAGS

_SMALL_FLOW = {
  'event_size': 3,
  'num_blocks': 1,
  'hidden_units': (8,),
  'batch': 16,
}
SMALL = {
  'maf': _SMALL_FLOW,
  'spline': _SMALL_FLOW,
  'mlp': {'event_size': 6, 'hidden_units': (8,), 'batch': 16},
  'table': {
    'event_size': 3,
    'num_bins': 4,
    'hidden_units': (8,),
    'batch': 16,
  },
}


def run_steps(
  models=None,
  variants=None,
  shapes=None,
  rounds=30,
  slow_rounds=3,
  progress=None,
):
  """Times one step of every variant of every model.

  Args:
    models: which of `bench_step_cases.MODELS`; all by default.
    variants: names of variants; what they are compared to must be among them.
      All by default.
    shapes: a dict of model -> what to change in its shape.
    rounds: steps of each variant that are timed.
    slow_rounds: steps of those that store every per-example gradient.
    progress: called with a line of words now and then.

  Returns:
    A dict of model -> dict of `shape`, and `variants`: a dict of variant ->
    what `bench_step_timing.summarize` gives, compared to `not private`; and
    for those compiled by XLA `ratio_xla`, to `not private, XLA`.
  """
  slow = (cases.VECTORIZED, cases.DP_MODEL, cases.DP_MODEL + cases.XLA)
  result = {}
  for model in cases.MODELS if models is None else models:
    shape = {**cases.MODELS[model], **(shapes or {}).get(model, {})}
    names = cases.variants(model) if variants is None else variants
    steps = {name: cases.make_step(model, name, **shape) for name in names}
    times = interleave(
      steps,
      rounds,
      few=[name for name in names if name in slow],
      few_rounds=slow_rounds,
      progress=progress and (lambda line, m=model: progress(f'{m}, {line}')),
    )
    found = summarize(times, lambda unused_name: cases.FLOOR)
    compiled = {n: t for n, t in times.items() if n.endswith(cases.XLA)}
    again = summarize(compiled, lambda unused_name: cases.FLOOR + cases.XLA)
    for name, one in again.items():
      found[name]['ratio_xla'] = one['ratio']
    result[model] = {'shape': shape, 'variants': found}
    del steps
    gc.collect()
  return result


def run_parts(names, smoke=False, results=None, rounds=30, progress=None):
  """Measures some parts, yielding the results after each.

  Args:
    names: which of `PARTS`.
    smoke: whether to take tiny sizes, to see that it works.
    results: a dict of the parts that there are already.
    rounds: steps of each variant that are timed.
    progress: called with a line of words now and then.

  Yields:
    A dict of part -> dict of `found` and `run`: command, wall time, machine
    and versions.

  Raises:
    ValueError: if there is no such part.
  """
  unknown = sorted(set(names) - set(PARTS))
  if unknown:
    raise ValueError(f'There are no parts {unknown}; there are {list(PARTS)}.')
  results = dict(results or {})
  for name in names:
    start, load = time.perf_counter(), os.getloadavg()[0]
    found = PARTS[name](smoke, rounds, progress)
    results[name] = {
      'found': found,
      'run': {
        'command': ' '.join(['python', '-m', __spec__.name, *sys.argv[1:]]),
        'smoke': smoke,
        'wall_s': time.perf_counter() - start,
        'load': [load, os.getloadavg()[0]],
        'cores': os.cpu_count(),
        'machine': platform.machine(),
        'processor': processor(),
        'versions': versions(),
      },
    }
    yield results


def _steps(smoke, rounds, progress):
  if not smoke:
    return run_steps(rounds=rounds, progress=progress)
  names = [cases.FLOOR, cases.ours('Flat'), cases.VECTORIZED, cases.DP_MODEL]
  return run_steps(['maf'], names, SMALL, 2, 1)


def _sweeps(smoke, rounds, progress):
  if not smoke:
    return bench_step_sweeps.run_sweeps(
      rounds=max(rounds // 2, 1), progress=progress
    )
  sweeps = {'batch': (4,)}
  return bench_step_sweeps.run_sweeps(sweeps, 2, _SMALL_FLOW)


def _tracing(smoke, unused_rounds, progress):
  if not smoke:
    return bench_step_sweeps.time_first_steps(progress=progress)
  return bench_step_sweeps.time_first_steps((1,), False, 1, _SMALL_FLOW)


def _memory(smoke, unused_rounds, progress):
  if not smoke:
    return bench_step_memory.run(progress=progress)
  return bench_step_memory.run((64,), (), _SMALL_FLOW)


def _peers(smoke, rounds, progress):
  if not smoke:
    return bench_step_peers.run(rounds=rounds, progress=progress)
  return bench_step_peers.run(
    turns=1, rounds=2, slow_rounds=1, shape=_SMALL_FLOW
  )


PARTS = {
  'steps': _steps,
  'sweeps': _sweeps,
  'tracing': _tracing,
  'memory': _memory,
  'peers': _peers,
}


def _read(path):
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def _progress(line):
  print(f'{time.strftime("%H:%M:%S")} {line}', file=sys.stderr, flush=True)


def main(argv):
  flag_values.read(argv)
  if FLAGS.export_hlo:
    if FLAGS.smoke:
      small = {'models': ['maf'], 'shapes': SMALL}
      small['variants'] = [cases.FLOOR + cases.XLA]
    else:
      small = {}
    if FLAGS.export_batch:
      shapes = {'maf': {'batch': FLAGS.export_batch}}
      small = {'models': ['maf'], 'shapes': shapes}
    bench_step_hlo.export(FLAGS.export_hlo, progress=_progress, **small)
    return
  results = {}
  if FLAGS.output and os.path.exists(FLAGS.output):
    found = _read(FLAGS.output)
    known = [*PARTS, 'gpu']
    results = {part: found[part] for part in known if part in found}
  if FLAGS.gpu:
    results['gpu'] = {'found': [_read(path) for path in FLAGS.gpu]}
  parts = list(PARTS) if FLAGS.all else FLAGS.parts
  measured = run_parts(parts, FLAGS.smoke, results, FLAGS.rounds, _progress)
  for so_far in measured:
    results = so_far
    if FLAGS.output:
      write_json(FLAGS.output, results)
  if FLAGS.gpu and FLAGS.output:
    write_json(FLAGS.output, results)
  print(bench_step_report.tables(results))
  if FLAGS.plot:
    bench_step_report.draw(results).savefig(FLAGS.plot, dpi=110)
  if FLAGS.render:
    figure = None
    if FLAGS.plot:
      figure = os.path.relpath(FLAGS.plot, os.path.dirname(FLAGS.render))
    bench_step_report.write_section(FLAGS.render, results, figure)


if __name__ == '__main__':
  flags.DEFINE_boolean('all', False, 'Measure all parts.')
  flags.DEFINE_list('parts', 'steps', f'Parts to measure, of {list(PARTS)}.')
  flags.DEFINE_string('output', None, 'JSON file to write, or to go on with.')
  flags.DEFINE_string('plot', None, 'PNG file to write.')
  flags.DEFINE_string('render', None, 'Markdown file to put the tables into.')
  flags.DEFINE_list('gpu', [], 'JSON files of run_hlo.py, for the results.')
  flags.DEFINE_string('export_hlo', None, 'Folder for compiled steps.')
  flags.DEFINE_integer(
    'export_batch', None, 'With --export_hlo: only the MAF, at this batch.'
  )
  flags.DEFINE_integer('rounds', 30, 'Steps of each variant that are timed.')
  flags.DEFINE_boolean('smoke', False, 'A tiny run, to see that it works.')
  app.run(main)
