r"""Tables of ExpM+NF beside SGD and DP-SGD, in RESULTS.md.

python -m experiments.expm_tables
"""

from __future__ import annotations

import numpy as np

from experiments import expm_attacks, expm_auc, expm_timing, results_document
from experiments.results_document import markdown_table

_TEXT = (
  'PhysioNet 2012, first 24 hours; settings chosen on a fifth of set a, '
  'trained on set a, scored on set b (scores of trials on it had been seen '
  'before the grids of SGD and DP-SGD were changed, on the fifth). The epsilon '
  'of ExpM+NF is the parameter of the density that its flow approximates: **no '
  'privacy is proven**. DP-SGD is private with the epsilon of its column and '
  'delta 1e-5, but for the choice of the settings.'
)
_MODELS = {
  'lr': 'logistic regression',
  'lr_summary': 'logistic regression, summary features',
  'gru_d': 'GRU-D',
}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## ExpM+NF, DP-SGD and SGD', _TEXT]
  runs = _runs(folder, 'expm_auc_*.json')
  if runs:
    parts.append(auc_table(expm_auc.summarize(runs)))
  runs = _runs(folder, 'expm_timing_*.json')
  if runs:
    parts.append(timing_table(expm_timing.summarize(runs)))
  runs = _runs(folder, 'expm_bayes_*.json')
  if runs:
    parts.append(bayes_table(runs))
  runs = _runs(folder, 'expm_attacks_*.json')
  if runs:
    parts.append(attacks_table(runs))
    parts.append(
      proofs_table(
        runs,
        _runs(folder, 'expm_auc_*.json'),
        _runs(folder, 'logistic_regression.json'),
      )
    )
  return '\n\n'.join(parts)


def _runs(folder, pattern):
  found = results_document.load_results(folder, pattern)
  return [run for content, _ in found for run in content['runs']]


def auc_table(summary):
  """Returns median test AUC by method and epsilon, `expm_auc.summarize`'s."""
  epsilons = sorted({e['epsilon'] for e in summary} - {None})
  head = ['model', 'task', 'method', 'seeds', *(f'{e:g}' for e in epsilons)]
  lines = [head]
  rows = dict.fromkeys((e['model'], e['task'], e['method']) for e in summary)
  for model, task, method in rows:
    cells = {
      e['epsilon']: e
      for e in summary
      if (e['model'], e['task'], e['method']) == (model, task, method)
    }
    seeds = sorted({e['seeds'] for e in cells.values()})
    line = [_MODELS[model], task.replace('_', ' '), expm_auc.LABELS[method]]
    ends = dict.fromkeys((seeds[0], seeds[-1]))
    line.append(' to '.join(map(str, ends)))
    if None in cells:
      line += [f'{cells[None]["auc"]:.3f}'] * (len(epsilons) or 1)
    line += [_auc_cell(cells.get(e)) for e in epsilons if None not in cells]
    lines.append(line)
  text = (
    'Median test AUC by epsilon; in brackets, percent of that of SGD. A seed '
    'of ExpM+NF is a flow with 1,000 samples.'
  )
  return f'{text}\n\n{markdown_table(lines)}'


def _auc_cell(entry):
  if entry is None:
    return ''
  share = f' ({100 * entry["share"]:.0f})' if 'share' in entry else ''
  return f'{entry["auc"]:.3f}{share}'


def timing_table(summary):
  """Returns seconds by method, of `expm_timing.summarize`."""
  lines = [
    [
      'model',
      'task',
      'method',
      'loss',
      'rounds',
      'calibration, s',
      'training, s',
      'whole, s',
      'quartiles',
      'one step, ms',
      'load',
    ]
  ]
  for e in summary:
    low, high = e['quartiles']
    lines.append(
      [
        _MODELS[e['model']],
        e['task'].replace('_', ' '),
        expm_auc.LABELS[e['method']],
        e['loss'] or 'reverse KL, l2',
        str(e['rounds']),
        f'{e["calibration"]:.2f}',
        f'{e["training"]:.2f}',
        f'{e["total"]:.2f}',
        f'{low:.2f} to {high:.2f}',
        f'{e["step"]:.2f}',
        f'{e["load"]:.0f}',
      ]
    )
  text = (
    'Medians of whole trainings that ran by turns, tracing included. Methods '
    'differ in the number of steps and the size of batches that were chosen. '
    'Where the load exceeds the number of cores, an idle machine is faster.'
  )
  return f'{text}\n\n{markdown_table(lines)}'


def bayes_table(runs):
  """Returns Bayesian and MAP predictions, of the runs of `expm_bayes`."""
  lines = [
    [
      'model',
      'epsilon',
      'Bayesian AUC',
      'MAP AUC',
      'Brier, Bayesian',
      'Brier, MAP',
      'calibration error, Bayesian',
      'calibration error, MAP',
      'width of 90 % intervals of predictions',
      'parameters whose interval leaves out 0',
    ]
  ]
  for run in runs:
    flow = run['epsilon'] is not None
    pairs = [
      f'{run[kind][name]:.3f}' if flow or kind == 'map' else ''
      for name in ('auc', 'brier', 'calibration_error')
      for kind in ('bayes', 'map')
    ]
    last = ['', '']
    if flow:
      decided = 100 * run['parameters']['decided']
      last = [f'{run["width"]:.3f}', f'{decided:.0f} %']
    first = f'{run["epsilon"]:g}' if flow else 'SGD'
    lines.append([_MODELS[run['model']], first, *pairs, *last])
  text = 'Predictions of many samples of one flow; none of this is private.'
  return f'{text}\n\n{markdown_table(lines)}'


def attacks_table(runs):
  """Returns what attacks found, of the runs of `expm_attacks`."""
  lines = [
    [
      'model',
      'method',
      'epsilon',
      'proven',
      'lower bound of one run, 95th percentile',
      'correct guesses',
      'LiRA, true positives at 1e-3: online',
      'offline',
      'by chance',
    ]
  ]
  for run in runs:
    epsilon = run['epsilon']
    one, lira = run['one_run'], run['lira']
    lines.append(
      [
        _MODELS[run['model']],
        expm_auc.LABELS[run['method']].split(',')[0],
        '' if epsilon is None else f'{epsilon:g}',
        'no' if run['method'] in ('sgd', 'expm_nf') else 'yes',
        f'{one["percentile_95"]["delta_0"]:.3f}',
        f'{100 * sum(one["correct"]) / len(one["correct"]):.1f} %',
        *(
          f'{lira[kind]["mean_at_1e-3"]:.4f} '
          f'({lira[kind]["standard_error_at_1e-3"]:.4f})'
          for kind in ('online', 'offline')
        ),
        f'{lira["chance_at_1e-3"]:.4f}',
      ]
    )
  text = (
    'Attacks on models of random halves of set a: the audit of one run as the '
    'paper sets it up (all rows are canaries, each is guessed, delta 0, p = '
    '.05; 5 % of the bounds may be too high by chance), and LiRA, mean over '
    'models with its standard error. Attacks that find nothing prove nothing.'
  )
  return f'{text}\n\n{markdown_table(lines)}'


def proofs_table(attacks, scores, proven):
  """Returns methods at epsilon 1 by what is proven, reached and found.

  Args:
    attacks: runs of `expm_attacks`.
    scores: runs of `expm_auc`.
    proven: runs of `logistic_regression`.
  """
  lines = [
    [
      'method',
      'epsilon that is proven',
      'AUC, set b',
      'seeds',
      'seconds',
      'epsilon at least, by the audit of one run',
    ]
  ]
  for attack in attacks:
    method, epsilon = attack['method'], attack['epsilon']
    if attack['model'] != 'lr_summary' or epsilon not in (None, 1.0):
      continue
    if method in dict(expm_attacks.PROVEN):
      runs = [r for r in proven if r['dataset'] == 'physionet_mortality']
      aucs = [r['auc'] for r in _of(runs, 'scores', method, epsilon)]
      seconds = [r['seconds'] for r in _of(runs, 'scores', method, epsilon)]
    else:
      keys = 'model', 'task'
      runs = [r for r in scores if all(r[k] == attack[k] for k in keys)]
      runs = _of(runs, 'test', method, epsilon)
      aucs = [np.median(r['aucs']) for r in runs]
      seconds = [sum(r['training_seconds'].values()) for r in runs]
    if not aucs:
      continue
    claim = 'none' if method in ('sgd', 'expm_nf') else f'{epsilon:g}'
    lines.append(
      [
        expm_auc.LABELS[method],
        claim,
        f'{np.median(aucs):.3f}',
        str(len(aucs)),
        f'{np.median(seconds):.1f}',
        f'{attack["one_run"]["percentile_95"]["delta_0"]:.3f}',
      ]
    )
  text = (
    'Mortality by logistic regression on summary features, epsilon 1, delta '
    '1e-5: medians of AUC and of seconds, not of one run; the settings of the '
    'methods of `DPLogisticRegression` were chosen on other tables.'
  )
  return f'{text}\n\n{markdown_table(lines)}'


def _of(runs, part, method, epsilon):
  wanted = part, method, epsilon
  return [r for r in runs if (r['part'], r['method'], r['epsilon']) == wanted]


if __name__ == '__main__':
  results_document.run('expm', 'experiments/expm_tables.py', section)
