r"""Audit of whole fits of `TabularSynthesizer`, and of their synthetic rows.

A small table and the same table without a row (or without the rows of a unit)
are fitted many times by the real pipeline, the number of rows being public.
Attacks tell the fits apart by the released histograms, by the log-probability
of the row that differs, or by synthetic rows alone; what they prove is put
beside what the ledger claims:

    python -m experiments.audit_fits --num_runs=2000 \
      --cases=column_4,column_4_few \
      --output=experiments/results/audit_fits.json \
      --figure=docs/audit_fits.png

`--smoke` runs every case a few times and proves nothing.
"""

from __future__ import annotations

import os
import time

import dp_accounting
import joblib
import numpy as np
import pandas as pd
from absl import app, flags
from scipy import optimize, stats

from experiments.results_file import ResultsFile
from tfdpflows import accounting, audit, progress
from tfdpflows.audit.rates import gaussian_epsilon

NUM_ROWS = 64
DELTA = 1e-2
# Synthetic rows that an attack sees.
NUM_SYNTHETIC = 256
SMALL = {'expected_batch_size': NUM_ROWS, 'epochs': 4, 'hidden_units': (4,)}
# Columns, epsilon, kind of the pair, and settings of the model.
CASES = {
  'column_1': (1, 1.0, 'outlier', {}),
  'column_4': (1, 4.0, 'outlier', {}),
  'column_1_unit': (1, 1.0, 'unit', {}),
  'column_1_few': (1, 1.0, 'cell of few', {}),
  'column_4_few': (1, 4.0, 'cell of few', {}),
  'column_4_common': (1, 4.0, 'common cell', {}),
  'pair_1_outlier': (2, 1.0, 'outlier', SMALL),
  'pair_4_outlier': (2, 4.0, 'outlier', SMALL),
  'pair_4_empty_cell': (2, 4.0, 'empty cell', SMALL),
}
# Rows that one person has in the pair 'unit'.
UNIT = 3
SCORES = ('histograms', 'log_prob', 'share', 'nearest', 'density')
# Of synthetic rows alone.
_BLACK_BOX = ('share', 'nearest', 'density')
# Of one column; the others are functions of its histogram. Rows are cheap.
_COLUMN_SCORES = ('histograms', 'share of 4,096 rows')
_COLUMN_SYNTHETIC = 4096
# Other rows in a cell of few: next to never cut off at 0, and a small share.
_FEW = 4
_CONFIDENCE = 0.95


def table_of(columns, kind):
  """Returns a table whose last rows differ, and how many these are."""
  rng = np.random.default_rng(0)
  a = rng.integers(0, 3, NUM_ROWS)
  b = np.where(a == 2, 'x', rng.choice(['x', 'y'], NUM_ROWS))
  differ = UNIT if kind == 'unit' else 1
  if kind == 'cell of few':
    a[:_FEW] = 5
  # Far from all others; two common values that no other row has together; or
  # a row like some of the others, whose count is rarely cut off at 0.
  places = {
    'empty cell': (2, 'y'),
    'common cell': (1, 'x'),
    'cell of few': (5, 'x'),
  }
  a[-differ:], b[-differ:] = places.get(kind, (7, 'z'))
  table = pd.DataFrame({'a': a, 'b': b})
  return table[['a', 'b'][:columns]], differ


def fits(case, absent, count):
  """Fits a case a few times; returns scores `[count, scores]` and the ledger.

  Args:
    case: a key of `CASES`.
    absent: whether the rows that differ are left out.
    count: number of fits.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tfdpflows._keras import keras
  from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer

  columns, epsilon, kind, settings = CASES[case]
  fields = [
    Field('a', 'integer', minimum=0, maximum=7, required=True),
    Field('b', 'string', enum=('x', 'y', 'z'), required=True),
  ]
  schema = TableSchema(fields[:columns])
  table, differ = table_of(columns, kind)
  found = []
  for _ in range(count):
    synthesizer = TabularSynthesizer(
      schema, epsilon=epsilon, delta=DELTA, **settings
    )
    # The plan of these settings has full batches: 64 of 64 rows.
    rows = range(NUM_ROWS - differ, NUM_ROWS) if absent else ()
    synthesizer._fit(table, None, False, False, absent=rows)
    found.append(_scores(synthesizer, table[-1:], columns))
    # Or the graphs of all fits stay in memory.
    keras.backend.clear_session()
  return np.array(found), synthesizer.ledger


def _scores(synthesizer, canary, columns):
  """Returns each of `SCORES`: large where the canary was in the table.

  Of one column, each of `_COLUMN_SCORES`.
  """
  places = {'x': 0, 'y': 1, 'z': 2}
  codes = lambda table: np.stack(
    [
      table['a'].to_numpy(float),
      *([table['b'].map(places).to_numpy(float)] if columns > 1 else []),
    ],
    -1,
  )
  (target,) = codes(canary)
  histograms = 0.0
  for marginal, code in zip(synthesizer._fitted.marginals, target):
    place = np.searchsorted(marginal['edges'], code, side='right') - 1
    histograms += np.log(max(marginal['probabilities'][place], 1e-12))
  number = _COLUMN_SYNTHETIC if columns == 1 else NUM_SYNTHETIC
  rows = codes(synthesizer.sample(number))
  distances = np.abs(rows - target).sum(1)
  if columns == 1:
    return [histograms, np.mean(distances == 0)]
  log_prob = float(synthesizer.log_prob(canary)[0])
  return [
    histograms,
    log_prob,
    np.mean(distances == 0),
    -np.sort(distances)[:8].mean(),
    np.exp(-distances).mean(),
  ]


def collect(case, num_runs, num_jobs=1):
  """Returns scores without and with the rows, and the event of a ledger."""
  size = min(50 if CASES[case][0] == 1 else 5, num_runs)
  tasks = [
    (absent, min(size, num_runs - start))
    for start in range(0, num_runs, size)
    for absent in (True, False)
  ]
  scores, ledger = {True: [], False: []}, None
  shown = progress.bar(case, len(tasks))
  with joblib.Parallel(num_jobs, return_as='generator') as parallel:
    jobs = parallel(joblib.delayed(_task)(case, *task) for task in tasks)
    for (absent, _), (found, event) in zip(tasks, jobs):
      scores[absent].append(found)
      ledger = event
      shown.update()
  shown.close()
  return np.concatenate(scores[True]), np.concatenate(scores[False]), ledger


def _task(case, absent, count):
  found, ledger = fits(case, absent, count)
  return found, ledger.committed_event


def claim_of(case, event):
  """Returns epsilon at `DELTA` and the mu of the Gaussian that has the same."""
  if CASES[case][2] == 'unit':
    # Rows of a unit move a count by as many: group privacy of a Gaussian.
    (part,) = event.events
    noise = part.noise_multiplier / UNIT
    event = dp_accounting.GaussianDpEvent(noise)
  epsilon = accounting.compute_epsilon(event, DELTA)
  gap = lambda mu: gaussian_epsilon(mu, DELTA) - epsilon
  return epsilon, optimize.brentq(gap, 1e-2, 50)


def names_of(number):
  """Returns the names of so many scores of a fit."""
  return {len(x): x for x in (SCORES, _COLUMN_SCORES)}[number]


def audits(first, second):
  """Returns what each attack proves, a list of dicts.

  `learned` is a logistic regression on all scores, and `learned, rows` on those
  of synthetic rows: trained on the first third of the fits, tested on the rest.
  """
  from sklearn.linear_model import LogisticRegression
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler

  scores = {
    name: (first[:, i], second[:, i])
    for i, name in enumerate(names_of(first.shape[1]))
  }
  third = len(first) // 3
  learned = (('learned', SCORES), ('learned, rows', _BLACK_BOX))
  for name, used in learned if len(scores) == len(SCORES) else ():
    columns = [SCORES.index(x) for x in used]
    train = np.concatenate([first[:third, columns], second[:third, columns]])
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(train, np.repeat([0, 1], third))
    scores[name] = tuple(
      model.decision_function(x[third:, columns]) for x in (first, second)
    )
  found = []
  for name, (without, present) in scores.items():
    rates = audit.error_rates(
      without, present, delta=DELTA, confidence=_CONFIDENCE, by='mu'
    )
    by_epsilon = audit.error_rates(
      without, present, delta=DELTA, confidence=_CONFIDENCE
    )
    found.append(
      {
        'attack': name,
        'mu_lower': rates.mu(),
        'epsilon_lower': by_epsilon.epsilon(DELTA),
        'mu_estimate': mu_of_auc(without, present),
        'runs': len(without),
        'roc': roc(without, present),
      }
    )
  return found


def mu_of_auc(first, second):
  """Returns the mu of two Gaussians with the area under this ROC; no bound."""
  auc = stats.mannwhitneyu(second, first).statistic / len(first) / len(second)
  auc = np.clip(auc, 1e-6, 1 - 1e-6)
  return float(np.sqrt(2) * stats.norm.ppf(auc))


def roc(first, second, points=101):
  """Returns true-positive rates `[points]` at equidistant false-positive ones.

  Between two thresholds the attack draws lots.
  """
  thresholds = np.unique(np.concatenate([first, second]))[::-1]
  above = lambda x: np.searchsorted(np.sort(-x), -thresholds, side='right')
  false = np.concatenate([[0], above(first) / len(first)])
  true = np.concatenate([[0], above(second) / len(second)])
  return np.interp(np.linspace(0, 1, points), false, true).round(4).tolist()


def run(cases=tuple(CASES), num_runs=500, num_jobs=1, output=None, smoke=False):
  """Runs cases.

  Args:
    cases: keys of `CASES`.
    num_runs: fits of each of the two tables of a case.
    num_jobs: processes.
    output: JSON file, or `None`.
    smoke: whether to run a few fits only.

  Returns:
    A JSON-able dict: `runs` has one entry for each case, with its `claim` and
    its `attacks`.
  """
  if smoke:
    num_runs, cases = 10, cases[:1]
  header = {
    'num_rows': NUM_ROWS,
    'delta': DELTA,
    'num_synthetic': NUM_SYNTHETIC,
    'confidence': _CONFIDENCE,
  }
  results = ResultsFile(output, header, ['case', 'num_runs'])
  for case in cases:
    if results.has(case=case, num_runs=num_runs):
      continue
    started = time.time()
    first, second, event = collect(case, num_runs, num_jobs)
    epsilon, mu = claim_of(case, event)
    results.add(
      {
        'case': case,
        'num_runs': num_runs,
        'seed': None,
        'epsilon': epsilon,
        'mu': mu,
        'attacks': audits(first, second),
        'seconds': round(time.time() - started, 1),
      }
    )
  return results.content


def lines(results):
  """Returns the results as a table in Markdown."""
  found = [
    '| case | fits | claimed epsilon | claimed mu | attack | mu >= | '
    'mu by AUC | epsilon >= |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for entry in results['runs']:
    for attack in entry['attacks']:
      found.append(
        f'| {entry["case"]} | {2 * entry["num_runs"]:,} | '
        f'{entry["epsilon"]:.2f} | {entry["mu"]:.2f} | {attack["attack"]} | '
        f'{attack["mu_lower"]:.2f} | {attack["mu_estimate"]:.2f} | '
        f'{attack["epsilon_lower"]:.2f} |'
      )
  return found


def draw(runs):
  """Returns a figure: the ROC of attacks on fits below that of the claim.

  Args:
    runs: of `run`.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=(4 * len(runs), 3.7), layout='constrained')
  panels = figure.subplots(1, len(runs), squeeze=False)[0]
  rates = np.linspace(0, 1, 101)
  for panel, run in zip(panels, runs):
    claim = stats.norm.cdf(stats.norm.ppf(rates) + run['mu'])
    panel.plot(rates, claim, color='#d55e00', label=f'mu {run["mu"]:.2f}')
    for i, attack in enumerate(run['attacks']):
      panel.plot(rates, attack['roc'], color=f'C{i}', label=attack['attack'])
    panel.plot([0, 1], [0, 1], ':', color='#888888', linewidth=1)
    panel.set_title(f'{run["case"]}, {2 * run["num_runs"]:,} fits', fontsize=9)
    panel.set_xlabel('false positives')
    panel.legend(fontsize=7, frameon=False, loc='lower right')
  panels[0].set_ylabel('true positives')
  return figure


def main(argv):
  """Runs what the flags ask for and prints a table."""
  del argv
  values = flags.FLAGS
  unknown = sorted(set(values.cases) - set(CASES))
  if unknown:
    raise app.UsageError(
      f'--cases={",".join(unknown)}: there are {", ".join(CASES)}.'
    )
  results = run(
    values.cases, values.num_runs, values.num_jobs, values.output, values.smoke
  )
  print('\n'.join(lines(results)))
  if values.figure:
    shown = [
      run
      for run in results['runs']
      if (run['case'] in values.cases and run['num_runs'] == values.num_runs)
    ]
    draw(shown).savefig(values.figure, dpi=100)


if __name__ == '__main__':
  flags.DEFINE_list('cases', list(CASES), 'Cases to run.')
  flags.DEFINE_integer('num_runs', 500, 'Fits of each table.', lower_bound=30)
  flags.DEFINE_integer('num_jobs', 1, 'Processes.', lower_bound=1)
  flags.DEFINE_string('output', None, 'JSON file of the results.')
  flags.DEFINE_string('figure', None, 'PNG file to draw.')
  flags.DEFINE_boolean('smoke', False, 'Whether to run a few fits only.')
  app.run(main)
