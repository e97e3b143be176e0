r"""Tables of audits of trainings and of whole fits, in RESULTS.md.

python -m experiments.audit_tables
"""

from __future__ import annotations

from experiments import audit_fits, results_document
from experiments.results_document import markdown_table, mean_cell

_TEXT = (
  'Lower bounds on what a claim states, with 95 % confidence each; none may be '
  'above its claim.'
)
_ATTACKS = {'white_box': 'gradients of canaries', 'black_box': 'wrong labels'}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  runs = _runs(folder, 'audit_training.json')
  parts = ['## Audits', _TEXT]
  for name, table in (
    ('white_box', white_box_table),
    ('one_run', one_run_table),
    ('lira', lira_table),
  ):
    same = [run for run in runs if run['part'] == name]
    if same:
      parts.append(table(same))
  runs = _runs(folder, 'audit_fits.json')
  if runs:
    parts.append(fits_table(runs))
  return '\n\n'.join(parts)


def _runs(folder, pattern):
  found = results_document.load_results(folder, pattern)
  return [run for content, _ in found for run in content['runs']]


def white_box_table(runs):
  """Returns bounds on mu, of the runs of `audit_training.white_box`."""
  lines = [['claimed mu', 'canaries', 'mu >=, whole ROC', 'share of the claim']]
  for run in runs:
    lines.append(
      [
        f'{run["mu_claimed"]:g}',
        f'{run["num_canaries"]:,}',
        f'{run["mu_roc"]:.3f}',
        f'{100 * run["ratio"]:.0f} %',
      ]
    )
  text = (
    'DP-SGD on full batches of 1,000 rows of MNIST, Dirac canaries in weights '
    'of their own, logistic regression.'
  )
  return f'### Canaries of many trainings\n\n{text}\n\n{markdown_table(lines)}'


def one_run_table(runs):
  """Returns bounds of one run, of the runs of `audit_training.one_run`."""
  lines = [
    [
      'claimed epsilon',
      'attack',
      'runs',
      'epsilon >=',
      'of an ideal attack',
      'epsilon >=, if Gaussian',
      'of an ideal attack',
      'epsilon >=, a guess for every canary, delta 0',
    ]
  ]
  kinds = {(run['epsilon'], run['attack']): None for run in runs}
  for epsilon, attack in sorted(kinds, key=lambda x: (x[1] != 'white_box', x)):
    same = [r for r in runs if (r['epsilon'], r['attack']) == (epsilon, attack)]
    columns = [
      [run['epsilon_lower'] for run in same],
      [run['ideal'][0] for run in same],
      [run['epsilon_lower_if_gaussian'] for run in same],
      [run['ideal'][1] for run in same],
      [run['preset'][0] for run in same],
    ]
    lines.append(
      [
        f'{epsilon:g}',
        _ATTACKS[attack],
        str(len(same)),
        *(mean_cell(column, digits=2) for column in columns),
      ]
    )
  text = (
    'Logistic regression on 60,000 rows of MNIST, 1,000 canaries, delta 1e-5, '
    'batches of a quarter of the rows, 20 epochs. The ideal attack sees a '
    'Gaussian mechanism with the claimed (epsilon, delta) for each canary.'
  )
  return f'### One training\n\n{text}\n\n{markdown_table(lines)}'


def lira_table(runs):
  """Returns rates of true positives, of the runs of `audit_training.lira`."""
  lines = [['models', 'epsilon', 'online', 'offline', 'by chance']]
  for run in runs:
    lines.append(
      [
        str(run['num_models']),
        'not private' if run['epsilon'] is None else f'{run["epsilon"]:g}',
        *(
          f'{100 * run[f"{kind}_mean_at_1e-3"]:.2f} %'
          for kind in ('online', 'offline')
        ),
        f'{100 * run["chance_at_1e-3"]:.2f} %',
      ]
    )
  text = (
    'A network with 64 hidden units, trained on halves of 4,000 images of '
    'MNIST: mean rate of true positives at 0.1 % false ones.'
  )
  return f'### LiRA\n\n{text}\n\n{markdown_table(lines)}'


def fits_table(runs):
  """Returns what attacks on fits proved, of the runs of `audit_fits`."""
  text = (
    f'Fits of a table of {audit_fits.NUM_ROWS} rows with and without a row, at '
    f'delta {audit_fits.DELTA:g}. mu by AUC is an estimate, and no bound. The '
    'bounds are for the attack that is named; what the attacks do not see of '
    'the releases, they cannot find.'
  )
  table = '\n'.join(audit_fits.lines({'runs': runs}))
  return f'### Whole fits\n\n{text}\n\n{table}'


if __name__ == '__main__':
  results_document.run('audits', 'experiments/audit_tables.py', section)
