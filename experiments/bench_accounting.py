"""Speed of the accounting on one core, beside dp_accounting in the same run.

Each round is a process of its own, pinned to one core, so that nothing is
remembered from the one before. `cold` is the first time that a question is
asked there, `warm` the second.

  python -m experiments.bench_accounting \\
    --output=experiments/results/bench_accounting.json
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import dp_accounting
from absl import app, flags
from dp_accounting import pld as their_pld

from tfdpflows import accounting

FLAGS = flags.FLAGS

_STEP = dp_accounting.PoissonSampledDpEvent(
  0.01, dp_accounting.GaussianDpEvent(1.0)
)
_IMPORT = """
import sys, time
start = time.perf_counter()
import tfdpflows.accounting
print(time.perf_counter() - start, 'tensorflow' in sys.modules)
"""


def _dpsgd(sampling_probability, noise_multiplier, steps):
  gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
  step = dp_accounting.PoissonSampledDpEvent(sampling_probability, gaussian)
  return dp_accounting.SelfComposedDpEvent(step, steps)


def questions():
  """Returns a dict of words -> (event, delta)."""
  mixed = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(8.0),
      dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(20.0), 4),
      _dpsgd(0.05, 1.5, 400),
      _dpsgd(0.03, 1.0, 500),
    ]
  )
  return {
    # First, as whatever else is slow the first time falls on it. No two share a
    # mechanism, as what is known of one would be remembered.
    'q=0.01, sigma=1, T=10^4, delta=1e-5': (_dpsgd(0.01, 1.0, 10**4), 1e-5),
    'q=0.02, sigma=1.2, T=100, delta=1e-5': (_dpsgd(0.02, 1.2, 100), 1e-5),
    'q=0.0625, sigma=5, T=500, delta=1e-5': (_dpsgd(0.0625, 5.0, 500), 1e-5),
    'q=0.001, sigma=0.6, T=10^5, delta=1e-6': (
      _dpsgd(1e-3, 0.6, 10**5),
      1e-6,
    ),
    'q=0.1, sigma=0.5, T=10^3, delta=1e-5': (_dpsgd(0.1, 0.5, 10**3), 1e-5),
    'q=0.005, sigma=0.9, T=10^4, delta=1e-12': (
      _dpsgd(0.005, 0.9, 10**4),
      1e-12,
    ),
    '100 Gaussians, sigma=20, delta=1e-5': (
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(20.0), 100
      ),
      1e-5,
    ),
    '20 Laplace, scale=10, delta=1e-6': (
      dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(10.0), 20),
      1e-6,
    ),
    'Gaussian + Laplace + two trainings, delta=1e-5': (mixed, 1e-5),
  }


def _timed(function, *args, **kwargs):
  start = time.perf_counter()
  value = function(*args, **kwargs)
  return time.perf_counter() - start, value


def _round(names, theirs_first):
  """Times of one process: name -> accountant -> (cold, warm, epsilon)."""
  known = questions()
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

  def ours(accountant, event, delta):
    return accounting.compute_epsilon(event, delta, accountant)

  def theirs(unused_accountant, event, delta):
    made = their_pld.PLDAccountant(relation)
    return float(made.compose(event).get_epsilon(delta))

  result = {}
  for name in names:
    event, delta = known[name]
    pair = [('pld', ours), ('dp_accounting pld', theirs)]
    pair = pair[::-1] if theirs_first else pair
    rest = [(x, ours) for x in accounting.accountant_names() if x != 'pld']
    result[name] = {}
    for accountant, price in pair + rest:
      try:
        cold, epsilon = _timed(price, accountant, event, delta)
      except dp_accounting.UnsupportedEventError:
        continue
      warm, _ = _timed(price, accountant, event, delta)
      result[name][accountant] = (cold, warm, epsilon)
  return result


def time_accountants(names=None, rounds=5):
  """Returns for each question the times and epsilons of all accountants.

  Args:
    names: which of `questions()`; all of them by default.
    rounds: number of processes.

  Returns:
    A dict of question -> accountant -> dict of the medians `cold_s` and
    `warm_s` and of `epsilon`; and `ratio` of our pld to theirs, both cold,
    with `worst_ratio` of all rounds.
  """
  names = list(questions()) if names is None else names
  context = multiprocessing.get_context('spawn')
  with context.Pool(1, maxtasksperchild=1) as pool:
    # Who comes second may find things warm: by turns.
    found = [pool.apply(_round, (names, i % 2 == 1)) for i in range(rounds)]
  result = {}
  for name in names:
    result[name] = {}
    for accountant in found[0][name]:
      cold, warm, epsilon = zip(*(each[name][accountant] for each in found))
      result[name][accountant] = {
        'cold_s': statistics.median(cold),
        'warm_s': statistics.median(warm),
        'epsilon': epsilon[0],
      }
    cold = {x: result[name][x]['cold_s'] for x in ('pld', 'dp_accounting pld')}
    result[name]['ratio'] = cold['pld'] / cold['dp_accounting pld']
    result[name]['worst_ratio'] = max(
      each[name]['pld'][0] / each[name]['dp_accounting pld'][0]
      for each in found
    )
  return result


def time_import(rounds=5):
  """Returns the median seconds of `import tfdpflows.accounting`.

  Args:
    rounds: number of fresh processes.

  Returns:
    A dict of `seconds` and of `tensorflow`, whether that was imported too.
  """
  found = []
  for _ in range(rounds):
    run = subprocess.run(
      [sys.executable, '-c', _IMPORT],
      capture_output=True,
      check=True,
      text=True,
    )
    found.append(run.stdout.split())
  return {
    'seconds': statistics.median(float(seconds) for seconds, _ in found),
    'tensorflow': any(loaded != 'False' for _, loaded in found),
  }


def time_ledger(sizes=(10**3, 10**6), repeats=50):
  """Returns what one more step costs in a ledger that holds many.

  Args:
    sizes: numbers of steps that are there already.
    repeats: number of steps that are timed.

  Returns:
    A dict of way -> size -> median seconds. The ways: the next step of a
    reservation, on disk; a charge of its own, on disk; that with a budget to
    check, which computes the cost of the whole ledger; and a charge in memory
    after as many charges, each of its own.
  """
  budget = accounting.PrivacyBudget(epsilon=1e3, delta=1e-5)
  result = {}

  def add(way, size, call, arguments):
    times = [_timed(call, *each)[0] for each in arguments]
    result.setdefault(way, {})[str(size)] = statistics.median(times)

  with tempfile.TemporaryDirectory() as folder:
    for size in sizes:
      path = os.path.join(folder, f'reserved {size}')
      with accounting.PrivacyLedger(path) as ledger:
        steps = ledger.reserve(_STEP, size + repeats, 'steps')
        steps.ensure(size)
        totals = range(size + 1, size + repeats + 1)
        add(
          'next step of a reservation, fsync', size, steps.ensure, zip(totals)
        )
      charges = [(_STEP, 1)] * repeats
      for way, limit in (
        ('charge, fsync', None),
        ('charge, fsync, budget checked by pld', budget),
      ):
        path = os.path.join(folder, f'{way} {size}')
        with accounting.PrivacyLedger(path, budget=limit) as ledger:
          ledger.charge(_STEP, size, label='steps')
          add(way, size, ledger.charge, charges)
      ledger = accounting.PrivacyLedger()
      for _ in range(size):
        ledger.charge(_STEP, label='step')
      way = 'charge in memory, after as many charges'
      add(way, size, ledger.charge, charges)
  return result


def run(names=None, rounds=5, sizes=(10**3, 10**6), repeats=50):
  """Returns everything that is measured, as a dict for JSON."""
  return {
    'accountants': time_accountants(names, rounds),
    'import': time_import(rounds),
    'ledger': time_ledger(sizes, repeats),
    'rounds': rounds,
    'machine': platform.machine(),
    'processor': processor(),
  }


def processor():
  """Returns the name of the processor."""
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      lines = [line for line in file if line.startswith('model name')]
  except OSError:
    lines = []
  return lines[0].split(':')[1].strip() if lines else platform.processor()


def table(result):
  """Returns the Markdown tables of a result of `run`."""
  accountants = [*accounting.accountant_names(), 'dp_accounting pld']
  lines = [
    'Seconds on one core, cold / warm:',
    '',
    f'| | {" | ".join(accountants)} | pld to dp_accounting |',
    f'|---|{"---:|" * (len(accountants) + 1)}',
  ]
  for name, found in result['accountants'].items():
    cells = []
    for accountant in accountants:
      times = found.get(accountant)
      cells.append(
        f'{_seconds(times["cold_s"])} / {_seconds(times["warm_s"])}'
        if times
        else ''
      )
    cells.append(f'{found["ratio"]:.2f} (worst {found["worst_ratio"]:.2f})')
    lines.append(f'| {name} | {" | ".join(cells)} |')
  sizes = list(next(iter(result['ledger'].values())))
  lines += [
    '',
    'Seconds to add a step to a ledger that holds so many:',
    '',
    f'| | {" | ".join(f"{int(size):,}" for size in sizes)} |',
    f'|---|{"---:|" * len(sizes)}',
  ]
  for way, times in result['ledger'].items():
    cells = [_seconds(times[size]) for size in sizes]
    lines.append(f'| {way} | {" | ".join(cells)} |')
  tensorflow = 'with' if result['import']['tensorflow'] else 'without'
  lines += [
    '',
    f'`import tfdpflows.accounting`: {result["import"]["seconds"]:.2f} s, '
    f'{tensorflow} TensorFlow.',
  ]
  return '\n'.join(lines)


def _seconds(number):
  return f'{number:.2g}'


def main(argv):
  del argv
  if hasattr(os, 'sched_setaffinity'):
    # The processes that are started from here inherit it.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  if FLAGS.smoke:
    names = list(questions())[1:3]
    result = run(names, rounds=2, sizes=(10, 100), repeats=3)
  else:
    result = run(rounds=FLAGS.rounds)
  print(table(result))
  if FLAGS.output:
    from experiments.run_record import versions, write_json

    result['versions'] = versions()
    result['command'] = ' '.join(sys.argv)
    write_json(FLAGS.output, result)


if __name__ == '__main__':
  flags.DEFINE_string('output', None, 'JSON file to write.')
  flags.DEFINE_integer('rounds', 5, 'Processes, of which medians are taken.')
  flags.DEFINE_boolean('smoke', False, 'A tiny run, to see that it works.')
  app.run(main)
