"""One training step of the MAF in other frameworks, beside ours.

The peers live in an environment of their own, which `make bench-peers` makes;
processes cannot be interleaved step by step, so they run by turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess

from experiments import bench_step_cases as cases
from experiments.bench_step_timing import interleave

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'peers_step')
PYTHON = os.path.join('.venv-peers', 'bin', 'python')
_SCRIPTS = {'Opacus': 'opacus_maf.py', 'JAX': 'jax_maf.py'}
_OURS = 'TensorFlow'


def run(
  python=PYTHON,
  turns=2,
  rounds=20,
  slow_rounds=3,
  shape=None,
  progress=None,
):
  """Times our steps and those of the peers, by turns.

  Args:
    python: the interpreter of the environment of the peers.
    turns: how often each process is run.
    rounds: steps of each kind that are timed in a turn.
    slow_rounds: steps of those that store every per-example gradient.
    shape: what to change in the MAF of `bench_step_cases.MODELS`.
    progress: called with a line of words now and then.

  Returns:
    A dict of framework -> way -> dict of `median_ms` over the turns,
    `turns_ms`, `ratio` to the same framework without privacy, and
    `ratio_to_ours`, our flat clipping in the same run. `skipped` has the
    reason for each framework that could not run, `versions` the others'.
  """
  shape = {**cases.MODELS['maf'], **(shape or {})}
  ours = [cases.FLOOR, cases.ours('Flat'), cases.ours('PerLayer')]
  calls = {name: cases.make_step('maf', name, **shape) for name in ours}
  request = {**shape, 'rounds': rounds, 'slow_rounds': slow_rounds}
  found, skipped, versions = {_OURS: []}, {}, {}
  for _ in range(turns):
    times = interleave(calls, rounds)
    found[_OURS].append({n: statistics.median(t) for n, t in times.items()})
    for name, script in _SCRIPTS.items():
      if name in skipped:
        continue
      if progress:
        progress(f'peer: {name}')
      try:
        answer = _ask(python, script, request)
      except (OSError, RuntimeError) as error:
        skipped[name] = str(error)
        found.pop(name, None)
        continue
      found.setdefault(name, []).append(answer['median_ms'])
      versions.update(answer['versions'])
  return {
    'steps': _compare(found),
    'skipped': skipped,
    'versions': versions,
  }


def _ask(python, script, request):
  if not os.path.exists(python):
    raise OSError(f'There is no {python}: run `make bench-peers`.')
  process = subprocess.run(
    [python, os.path.join(FOLDER, script), json.dumps(request)],
    capture_output=True,
    check=False,
    text=True,
  )
  if process.returncode:
    last = process.stderr.strip().splitlines()[-1:]
    raise RuntimeError(f'{script} failed: {"".join(last)}')
  return json.loads(process.stdout.splitlines()[-1])


def _compare(found):
  medians = {
    name: {
      way: statistics.median(turn[way] for turn in turns) for way in turns[0]
    }
    for name, turns in found.items()
  }
  ours = medians[_OURS][cases.ours('Flat')]
  return {
    name: {
      way: {
        'median_ms': median,
        'turns_ms': [turn[way] for turn in found[name]],
        'ratio': median / ways[cases.FLOOR],
        'ratio_to_ours': median / ours,
      }
      for way, median in ways.items()
    }
    for name, ways in medians.items()
  }
