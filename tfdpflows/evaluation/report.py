"""A report on a synthetic table: one HTML file that needs nothing else."""

from __future__ import annotations

import datetime
import html
import json
import math

import numpy as np

from tfdpflows import atomic
from tfdpflows.evaluation import (
  comparison as comparisons,
)
from tfdpflows.evaluation import (
  report_figures,
  report_html,
  report_sections,
)
from tfdpflows.evaluation import (
  scores as model_scores,
)

_TITLE = 'Synthetic table report'

_WARNING = """
<aside class="warning" role="note" aria-label="Warning">
<strong>This report is not private.</strong>
<p>Every figure and score below is computed on rows of the real table, exactly
and without noise, and is not covered by the privacy statement. If the real
table is sensitive, so is this file: keep it with the real table and do not
publish it. The synthetic table and the model may be published under the
statement; a choice among several of them that was made by looking at reports
like this one is not covered either.</p>
</aside>
"""


def write_report(
  path,
  *,
  real,
  synthetic,
  schema,
  statement=None,
  target=None,
  title=None,
  out_of_range='error',
  classifiers='quick',
  seed=0,
):
  """Writes an HTML report that compares a synthetic table with a real one.

  The file is complete in itself: it loads nothing and runs no script. It shows
  the columns of both tables over each other, their associations side by side,
  what classifiers learn from the synthetic rows, and the privacy statement.

  The report itself is not private: it is computed on `real` without noise, and
  says so at its top.

  Args:
    path: File to write. It is written aside and renamed, so that nobody sees
      half of it.
    real: DataFrame of real rows, best ones that the synthesizer never saw.
    synthetic: DataFrame of synthetic rows.
    schema: The `TableSchema` of both.
    statement: A `PrivacyStatement`, its `dict`, or its text; `None` says that
      nothing is claimed.
    target: Name of the column that the classifiers predict; `None` leaves the
      scores out.
    title: Heading of the page.
    out_of_range: 'error', or 'clip' to move values of the real table to the
      nearest declared one.
    classifiers: As for `evaluation.train_on_synthetic`.
    seed: Seed of the classifiers and of the halves they are scored on.

  Raises:
    ValueError: if a table does not fit the schema, or the target cannot be
      predicted.
    ImportError: if there is a target and scikit-learn is not installed.

  #### Example

  >>> import os, tempfile
  >>> import pandas as pd
  >>> from tfdpflows.tabular.schema import Field, TableSchema
  >>> schema = TableSchema([Field('age', 'integer', 0, 9, required=True)])
  >>> real = pd.DataFrame({'age': [0, 1, 2, 3]})
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = os.path.join(folder, 'report.html')
  ...   write_report(path, real=real, synthetic=real, schema=schema)
  ...   print(open(path, encoding='utf-8').readline().strip())
  <!doctype html>
  """
  real = _validated(real, schema, 'real', out_of_range)
  synthetic = _validated(synthetic, schema, 'synthetic', 'error')
  comparison = comparisons.compare(real, synthetic, schema)
  scores = None
  if target is not None:
    scores = _scores(real, synthetic, schema, target, classifiers, seed)
  parts = [
    _header(title or _TITLE, comparison, scores is not None),
    _WARNING,
    _tiles(comparison, scores, target, statement),
    _privacy(statement),
    report_sections.marginals(comparison, real, synthetic, schema),
    report_sections.associations(comparison),
  ]
  if scores is not None:
    parts.append(_utility(scores, real, synthetic, schema, target))
  parts += [report_sections.METHODS, _footer()]
  content = report_html.page(title or _TITLE, ''.join(parts)).encode()
  atomic.write_file(path, lambda file: file.write(content))


def _validated(table, schema, name, out_of_range):
  try:
    return schema.validate(table, out_of_range, fitting=False)
  except ValueError as error:
    raise ValueError(f'The {name} table: {error}') from error


def _scores(real, synthetic, schema, target, classifiers, seed):
  """Mean over the two halves of the real rows; the other half is real_train."""
  (labels,), _ = model_scores.target_labels(schema, target, real)
  # Every class is divided evenly, so that rare ones are in both halves.
  order = np.lexsort([np.random.default_rng(seed).random(len(real)), labels])
  halves = np.empty(len(real), int)
  halves[order] = np.arange(len(real)) % 2
  scored = [
    model_scores.train_on_synthetic(
      real[halves == half],
      synthetic,
      schema,
      target,
      real_train=real[halves != half],
      classifiers=classifiers,
      seed=seed,
    )
    for half in (0, 1)
  ]
  return (scored[0] + scored[1]) / 2


def _header(title, comparison, scored):
  columns = len(comparison.marginals)
  links = [('privacy', 'Privacy'), ('columns', 'Columns')]
  if columns > 1:
    links.append(('associations', 'Associations'))
  if scored:
    links.append(('scores', 'Scores'))
  links.append(('methods', 'How to read the numbers'))
  items = ''.join(f'<a href="#{key}">{text}</a>' for key, text in links)
  return (
    f'<header><h1>{html.escape(title)}</h1><p class="lead">'
    f'{comparison.num_synthetic:,} synthetic rows compared with '
    f'{comparison.num_real:,} real rows, {columns} '
    f'column{"" if columns == 1 else "s"}.</p>'
    f'<nav aria-label="Sections">{items}</nav></header>'
  )


def _tiles(comparison, scores, target, statement):
  summary = comparison.summary()
  tiles = []
  tiles += _claim(statement)
  tiles.append(
    (
      'Distance of the columns',
      f'{summary["marginal_total_variation"]:.3f}',
      f'mean total variation; {summary["marginal_by_chance"]:.3f} by chance',
    )
  )
  if len(comparison.marginals) > 1:
    tiles += [
      (
        'Distance of the pairs',
        f'{summary["pair_total_variation"]:.3f}',
        'mean total variation of two columns',
      ),
      (
        'Error of associations',
        f'{summary["association_error"]:.3f}',
        'mean absolute difference',
      ),
    ]
  if scores is not None:
    mean = scores.mean()
    tiles.append(
      (
        f'AUROC for {target}',
        f'{mean["auroc"]:.3f}',
        f'trained on synthetic; {mean["real_auroc"]:.3f} on real rows',
      )
    )
  return report_html.tiles(tiles)


def _claim(statement):
  """Returns the tile of the claim in a list, empty if none is stated."""
  if hasattr(statement, 'to_dict'):
    statement = statement.to_dict()
  if not isinstance(statement, dict):
    return []
  epsilon, delta = statement.get('epsilon'), statement.get('delta')
  if not all(isinstance(value, (int, float)) for value in (epsilon, delta)):
    return []
  if not math.isfinite(epsilon):
    return []
  hint = f'at δ = {delta:g}'
  if statement.get('guarantee', 'upper_bound') != 'upper_bound':
    hint += f'; {statement["guarantee"]}, not a proven bound'
  if statement.get('seeded'):
    hint += '; seeded: not private against anyone who knows the seed'
  return [('Privacy spent', f'ε ≤ {_round_up(epsilon)}', hint)]


def _round_up(epsilon):
  """Four digits after the point, never fewer than was spent."""
  return f'{math.ceil(epsilon * 1e4) / 1e4:g}'


def _privacy(statement):
  if statement is None:
    text = (
      'No privacy statement came with the synthetic table. Nothing in this '
      'report says that it is private.'
    )
  elif isinstance(statement, str):
    text = statement
  elif hasattr(statement, 'to_text'):
    text = statement.to_text()
  else:
    text = json.dumps(statement, indent=2, ensure_ascii=False, default=str)
  return (
    '<section aria-labelledby="privacy"><h2 id="privacy">Privacy statement</h2>'
    '<p class="lead">It covers the model and the synthetic table, not this '
    f'report.</p><pre class="card">{html.escape(text.strip())}</pre></section>'
  )


def _utility(scores, real, synthetic, schema, target):
  (truth, _), description = model_scores.target_labels(
    schema, target, real, synthetic
  )
  chance = model_scores.constant_scores(truth)
  metrics = {
    'macro_f1': 'macro F1',
    'auroc': 'AUROC',
    'average_precision': 'average precision',
  }
  trained_on = ('synthetic', 'real')
  heads = [
    'classifier, trained on',
    *((m, trained_on) for m in metrics.values()),
  ]
  heads.append('AUROC from 0 to 1')
  rows = []
  table = scores.copy()
  if len(table) > 1:
    table.loc['mean'] = scores.mean()
  for name, row in table.iterrows():
    cells = []
    for key in metrics:
      cells += [f'{row[key]:.3f}', f'{row["real_" + key]:.3f}']
    cells.append(
      report_html.Raw(
        report_figures.score_figure(
          row['auroc'],
          row['real_auroc'],
          f'AUROC of {name}: {row["auroc"]:.3f} trained on synthetic rows, '
          f'{row["real_auroc"]:.3f} trained on real rows',
        )
      )
    )
    rows.append((name, cells, 'mean' if name == 'mean' else ''))
  guess = [f'{chance[key]:.3f}' for key in metrics for _ in range(2)]
  rows.append(('always the most frequent', [*guess, ''], 'chance'))
  half = len(real) // 2
  return (
    '<section aria-labelledby="scores"><h2 id="scores">What classifiers learn '
    'from it</h2><p class="lead">Classifiers predict '
    f'{html.escape(description)} from all other columns. Each is trained on '
    f'the synthetic rows and, for comparison, on one half of the real rows '
    f'(about {half:,}); both are scored on the other half, and the halves then '
    'change places.</p><ul class="legend">'
    '<li><span class="key dot made"></span>trained on synthetic rows</li>'
    '<li><span class="key dot real"></span>trained on real rows</li></ul>'
    + report_html.table(
      'Means over the two halves; higher is better.', heads, rows
    )
    + '</section>'
  )


def _footer():
  now = datetime.datetime.now(datetime.timezone.utc)
  return (
    f'<footer>Written by tfdpflows on {now:%Y-%m-%d at %H:%M} UTC.</footer>'
  )
