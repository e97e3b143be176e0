r"""AUC of SGD, DP-SGD and ExpM+NF over epsilon: figure 7, table 1 of ExpM+NF.

Settings are chosen on a fifth of set a of PhysioNet 2012 that is held out for
it; the chosen ones train on the whole of set a, once for every seed, and are
scored on set b:

    python -m experiments.expm_auc --models=lr \
      --output=experiments/results/expm_auc_lr.json \
      --figure=docs/expm_auc_lr.png

A file goes on where it stopped. Programs that run at the same time need files
of their own.

The epsilon of ExpM+NF is the parameter of its target density: no privacy is
proven for it. DP-SGD has the privacy that is given, but for the choice of its
settings, which is not charged, as in the paper. Seeds make the results
reproducible and therefore not private.
"""

from __future__ import annotations

import math
import time

import numpy as np
from absl import app, flags, logging

from experiments import expm_methods, flag_values, physionet
from experiments.results_file import ResultsFile

# Where settings are chosen; other budgets take those of the nearest one.
TUNED = (1e-3, 0.1, 1.0, 10.0)
_KEYS = ('part', 'model', 'task', 'method', 'epsilon', 'number')
_SMOKE = {
  'epochs': 1,
  'steps': 3,
  'units': 2,
  'batch_size': 64,
  'layers': 1,
}
_SMOKE_SAMPLES = 20


def run(
  models=expm_methods.MODELS,
  tasks=physionet.TASKS,
  methods=expm_methods.METHODS,
  epsilons=expm_methods.EPSILONS,
  *,
  tuned=TUNED,
  num_candidates=8,
  seeds=range(10),
  num_samples=1000,
  output=None,
  smoke=False,
):
  """Chooses settings, trains and scores; every cell once.

  Args:
    models: some of `expm_methods.MODELS`.
    tasks: some of `physionet.TASKS`.
    methods: some of `expm_methods.METHODS`.
    epsilons: budgets; SGD runs once.
    tuned: budgets for which settings are chosen.
    num_candidates: number of settings that are tried for each.
    seeds: of the final trainings.
    num_samples: number of samples of a flow that are scored.
    output: JSON file to go on with, or `None`.
    smoke: a quick run on rows that are made up.

  Returns:
    A JSON-able dict with `runs`. Those of part 'choice' have `settings` and
    the validation `auc`; those of part 'test' have the quantiles of the test
    `aucs` (every percent, of a flow's samples), `settings` and `seconds`.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  if smoke:
    num_candidates, seeds, num_samples = 1, [0], _SMOKE_SAMPLES
  header = {
    'data': 'made' if smoke else 'PhysioNet 2012, first 24 hours',
    'delta': expm_methods.DELTA,
    'num_candidates': num_candidates,
    'num_samples': num_samples,
    'tuned': list(tuned),
    'smoke': smoke,
  }
  results = ResultsFile(output, header, _KEYS)
  for model in models:
    for task in tasks:
      rows = expm_methods.load(task, model, smoke)
      for method in methods:
        wanted = [None] if method == 'sgd' else list(epsilons)
        for epsilon in wanted:
          at = nearest(epsilon, tuned)
          cell = {'model': model, 'task': task, 'method': method}
          _choose(results, rows, {**cell, 'epsilon': at}, num_candidates, smoke)
          settings = chosen(results.runs, **cell, epsilon=at)
          for seed in seeds:
            _test(
              results,
              rows,
              {**cell, 'epsilon': epsilon, 'number': seed},
              settings,
              num_samples,
            )
  return results.content


def nearest(epsilon, tuned):
  """Returns the budget whose settings are taken, by ratio; `None` for SGD.

  #### Example

  >>> nearest(5.0, (0.1, 1.0, 10.0))
  10.0
  """
  if epsilon is None:
    return None
  return min(tuned, key=lambda other: abs(math.log(other / epsilon)))


def chosen(runs, model, task, method, epsilon):
  """Returns the settings with the best validation AUC."""
  key = model, task, method, epsilon
  names = 'model', 'task', 'method', 'epsilon'
  found = [
    run
    for run in runs
    if run['part'] == 'choice' and tuple(run[n] for n in names) == key
  ]
  return max(found, key=lambda run: run['auc'])['settings']


def smoke_settings(settings):
  """Returns settings with which a training takes a moment."""
  return {k: _SMOKE.get(k, v) for k, v in settings.items()}


def _choose(results, rows, cell, count, smoke):
  found = expm_methods.candidates(cell['method'], cell['model'], count)
  for number, settings in enumerate(found):
    key = {'part': 'choice', **cell, 'number': number}
    if results.has(**key):
      continue
    if smoke:
      settings = smoke_settings(settings)
    start = time.perf_counter()
    model = rows.functional(settings.get('units', 10))
    fit = expm_methods.fit(
      cell['method'], model, rows.parts['train'], settings, cell['epsilon']
    )
    parameters = fit.parameters(50)
    scores = expm_methods.aucs(model, parameters, *rows.parts['validation'])
    auc = float(np.nanmedian(scores))
    results.add(
      {
        **key,
        'settings': settings,
        'auc': auc,
        'seconds': time.perf_counter() - start,
      }
    )
    logging.info('%s: %.4f', key, auc)


def _test(results, rows, cell, settings, num_samples):
  key = {'part': 'test', **cell}
  if results.has(**key):
    return
  start = time.perf_counter()
  model = rows.functional(settings.get('units', 10))
  fit = expm_methods.fit(
    cell['method'],
    model,
    rows.parts['all'],
    settings,
    cell['epsilon'],
    seed=1000 + cell['number'],
  )
  parameters = fit.parameters(num_samples)
  scores = expm_methods.aucs(model, parameters, *rows.parts['test'])
  levels = np.linspace(0, 1, 101) if len(scores) > 1 else [0.5]
  results.add(
    {
      **key,
      'aucs': [round(float(q), 5) for q in np.quantile(scores, levels)],
      'settings': settings,
      'num_parameters': model.num_parameters,
      'steps': fit.steps,
      'training_seconds': fit.seconds,
      'statement': fit.statement,
      'seconds': time.perf_counter() - start,
    }
  )
  logging.info('%s: %.4f', key, np.median(scores))


def summarize(runs):
  """Returns the median AUC of every method and epsilon.

  Args:
    runs: of `run`.

  Returns:
    A list of dicts: `model`, `task`, `method`, `epsilon`, number of `seeds`,
    `auc` (the median of all samples of all seeds), `aucs` (their quantiles, as
    many as are stored), `share` of the AUC of SGD, where there is any.
  """
  names = 'model', 'task', 'method', 'epsilon'
  cells = {}
  for run in runs:
    if run['part'] == 'test':
      cells.setdefault(tuple(run[n] for n in names), []).append(run)
  found = []
  for key, same in cells.items():
    aucs = np.sort(np.concatenate([run['aucs'] for run in same]))
    entry = dict(zip(names, key))
    entry.update(
      seeds=len(same), auc=float(np.median(aucs)), aucs=aucs.tolist()
    )
    found.append(entry)
  best = {
    (e['model'], e['task']): e['auc'] for e in found if e['method'] == 'sgd'
  }
  for entry in found:
    base = best.get((entry['model'], entry['task']))
    if base:
      entry['share'] = entry['auc'] / base
  return found


def draw(summary):
  """Returns a figure: box plots of AUC over epsilon, a panel for each task.

  Args:
    summary: what `summarize` returned.
  """
  from matplotlib.figure import Figure

  cells = list(dict.fromkeys((e['model'], e['task']) for e in summary))
  figure = Figure(figsize=(9, 3.2 * len(cells)), layout='constrained')
  panels = figure.subplots(len(cells), 1, squeeze=False)[:, 0]
  for panel, (model, task) in zip(panels, cells):
    here = [e for e in summary if (e['model'], e['task']) == (model, task)]
    epsilons = sorted({e['epsilon'] for e in here} - {None})
    for offset, method in ((-0.2, 'dp_sgd'), (0.2, 'expm_nf')):
      entries = [e for e in here if e['method'] == method]
      if not entries:
        continue
      color = f'C{int(offset > 0)}'
      boxes = panel.boxplot(
        [e['aucs'] for e in entries],
        positions=[epsilons.index(e['epsilon']) + offset for e in entries],
        widths=0.35,
        manage_ticks=False,
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        medianprops={'color': 'black'},
      )
      for box in boxes['boxes']:
        box.set_facecolor(color)
      panel.plot([], [], 's', color=color, label=LABELS[method])
    for entry in here:
      if entry['method'] == 'sgd':
        panel.axhline(entry['auc'], color='gray', ls='--', label=LABELS['sgd'])
        panel.set_ylim(top=max(panel.get_ylim()[1], entry['auc'] + 0.01))
    panel.set_xticks(range(len(epsilons)), [f'{e:g}' for e in epsilons])
    panel.set_ylabel('test AUC')
    panel.set_title(f'{_NAMES[model]}, {task.replace("_", " ")}')
    panel.legend(frameon=False, fontsize=8, loc='lower right')
  panels[-1].set_xlabel('epsilon (of ExpM+NF: parameter, nothing is proven)')
  return figure


LABELS = {
  'sgd': 'SGD, not private',
  'dp_sgd': 'DP-SGD',
  'objective_perturbation': 'objective perturbation',
  'exponential_mechanism': 'exponential mechanism (Langevin chain)',
  'expm_nf': 'ExpM+NF, no privacy proof',
}
_NAMES = {
  'lr': 'logistic regression',
  'lr_summary': 'logistic regression, summary features',
  'gru_d': 'GRU-D',
}


def main(argv):
  """Runs what the flags ask for, prints the medians and draws."""
  options = flag_values.read(argv)
  try:
    results = run(
      options.models,
      options.tasks,
      options.methods,
      [float(e) for e in options.epsilons],
      num_candidates=options.num_candidates,
      seeds=range(options.num_seeds),
      num_samples=options.num_samples,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  summary = summarize(results['runs'])
  for entry in summary:
    print(
      f'{entry["model"]} {entry["task"]} {entry["method"]} '
      f'{entry["epsilon"]}: {entry["auc"]:.4f} ({entry["seeds"]} seeds)'
    )
  if options.figure:
    draw(summary).savefig(options.figure, dpi=80)


def _define_flags():
  methods = expm_methods
  flags.DEFINE_list('models', list(methods.MODELS), 'Models.')
  flags.DEFINE_list('tasks', list(physionet.TASKS), 'Tasks.')
  flags.DEFINE_list('methods', list(methods.METHODS), 'Methods.')
  flags.DEFINE_list('epsilons', [str(e) for e in methods.EPSILONS], 'Budgets.')
  flags.DEFINE_integer('num_candidates', 8, 'Settings that are tried.')
  flags.DEFINE_integer('num_seeds', 10, 'Trainings with the chosen settings.')
  flags.DEFINE_integer('num_samples', 1000, 'Samples of a flow.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('figure', None, 'PNG file to draw.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
