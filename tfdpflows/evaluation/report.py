"""A report on a synthetic table: one HTML file that needs nothing else.

`report.html` is the template of the page, `report.css` its style.
"""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tfdpflows import atomic
from tfdpflows.accounting import PrivacyStatement
from tfdpflows.accounting.rounding import delta_text
from tfdpflows.evaluation import figures, verdict
from tfdpflows.evaluation import scores as model_scores
from tfdpflows.evaluation.comparison import compare
from tfdpflows.evaluation.discretization import finite, moderate
from tfdpflows.evaluation.nearest_rows import NUM_NEAREST, nearest_rows
from tfdpflows.evaluation.page import rendered
from tfdpflows.evaluation.rare_groups import rare_groups
from tfdpflows.evaluation.several import SyntheticTable, compare_fits
from tfdpflows.tabular.schema import TableSchema

_TITLE = 'Synthetic table report'
_LISTED_PAIRS = 10
_LISTED_GROUPS = 12
# A column is pointed out when it is off by more than chance explains.
_FAR, _LEAST = 2.0, 0.05
_METRICS = {
  'macro_f1': 'macro F1',
  'auroc': 'AUROC',
  'average_precision': 'average precision',
}
_STATISTICS = {
  'mean': lambda x: _of_moderate(np.mean, x),
  'standard deviation': lambda x: _of_moderate(np.std, x),
  '5 %': lambda x: np.quantile(x, 0.05),
  'median': np.median,
  '95 %': lambda x: np.quantile(x, 0.95),
}
# Of several fits; of the first ones less is better.
_LOWER = 'marginal_total_variation', 'pair_total_variation', 'association_error'
_COMPARED = {
  'marginal_total_variation': 'columns',
  'pair_total_variation': 'pairs',
  'association_error': 'associations',
  'rare_groups_kept': 'rare groups',
  'auroc': 'AUROC',
  'average_precision': 'average precision',
}


def write_report(
  path: str | os.PathLike,
  *,
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  statement: PrivacyStatement | dict | str | None = None,
  target: str | None = None,
  title: str | None = None,
  out_of_range: str = 'error',
  classifiers: str | Sequence[str] = 'quick',
  seed: int = 0,
  name: str = 'this one',
  others: Mapping[str, SyntheticTable] | None = None,
  num_real: int | None = None,
  num_synthetic: int | None = None,
  progress: bool = True,
) -> None:
  """Writes an HTML report that compares a synthetic table with a real one.

  The file is self-contained and runs no script. It shows the columns of both
  tables, their associations, scores of classifiers trained on the synthetic
  rows, and the privacy statement. The report itself is not private: it is
  computed on `real` without noise.

  Args:
    path: file to write, atomically.
    real: DataFrame of real rows, best ones that were held out from the fit.
    synthetic: DataFrame of synthetic rows.
    schema: the `TableSchema` of both.
    statement: a `PrivacyStatement`, its `dict`, or its text; `None` if no
      privacy is claimed.
    target: name of the column that the classifiers predict; `None` leaves the
      scores out.
    title: heading of the page.
    out_of_range: what to do with values of the real table that the schema does
      not declare. 'error' refuses them; 'clip' compares them as they are (of
      further categories the 64 most frequent of a column, others as missing),
      and shows how many of each column clipping would replace.
    classifiers: see `evaluation.train_on_synthetic`.
    seed: seed of the classifiers and of the halves they are scored on.
    name: name of the synthetic table among others.
    others: rows of other models, to compare with, by their names
      (`evaluation.compare_fits`).
    num_real: number of rows of the table of which `real` is a uniform sample,
      for the page to say so; by default it is all of it.
    num_synthetic: of the synthetic table, likewise.
    progress: whether to show how many classifiers are trained.

  Raises:
    ValueError: if a table does not fit the schema, or the target cannot be
      predicted.

  #### Example

  >>> import os, tempfile
  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('age', 'integer', 0, 9, required=True)])
  >>> real = pd.DataFrame({'age': [0, 1, 2, 3]})
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = os.path.join(folder, 'report.html')
  ...   write_report(path, real=real, synthetic=real, schema=schema)
  ...   print(open(path, encoding='utf-8').readline().strip())
  <!doctype html>
  """
  synthetic = _validated(synthetic, schema, 'synthetic', 'error')
  clipped = {}
  if out_of_range == 'clip':
    clipped, schema = schema.count_clipped(real), schema.widened(real)
  real = _validated(real, schema, 'real', out_of_range)
  comparison = compare(real, synthetic, schema)
  scores = None
  if target is not None:
    scores = _scores(
      real, synthetic, schema, target, classifiers, seed, progress
    )
  columns = [
    {
      **_column(comparison.marginals.loc[f.name], real, synthetic, f),
      'clipped': clipped.get(f.name, 0),
    }
    for f in schema.fields
  ]
  groups = rare_groups(real, synthetic, schema)
  several = []
  if others:
    fits = {name: SyntheticTable(synthetic, statement), **others}
    several = _several(real, fits, schema, target, classifiers, seed, progress)
  facts = _facts(statement)
  statistics = _numbers(real, synthetic, schema)
  nearest = _nearest(real, synthetic, schema, seed)
  share = len(real) / max(num_real or 0, len(real))
  page = rendered(
    'tfdpflows.evaluation',
    'report.html',
    verdicts=_verdicts(
      facts, columns, statistics, comparison, scores, groups, nearest, share
    ),
    plain_privacy=verdict.plain_privacy(facts, sum(clipped.values())),
    groups=_listed(groups),
    num_groups=len(groups),
    nearest=nearest,
    num_nearest=NUM_NEAREST
    if max(len(real), len(synthetic)) > NUM_NEAREST
    else 0,
    several=several,
    title=title or _TITLE,
    num_real=len(real),
    num_synthetic=len(synthetic),
    samples=[
      (len(table), of, what)
      for table, of, what in (
        (real, num_real, 'real'),
        (synthetic, num_synthetic, 'synthetic'),
      )
      if of is not None and of > len(table)
    ],
    summary=comparison.summary(),
    claim=_claim(facts),
    statement=_statement_text(statement),
    columns=columns,
    numbers=statistics,
    **_associations(comparison),
    scores=scores,
    now=f'{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d at %H:%M}',
  )
  atomic.write_file(path, f'{page}\n'.encode())


def _validated(table, schema, name, out_of_range):
  try:
    return schema.validate(table, out_of_range, fitting=False)
  except ValueError as error:
    raise ValueError(f'The {name} table: {error}') from error


def _facts(statement):
  """Returns a statement as a `dict`, `None` for a text."""
  facts = statement.to_dict() if hasattr(statement, 'to_dict') else statement
  return facts if isinstance(facts, dict) else None


def _claim(statement):
  """Returns what a `dict` claims, in short; `None` if it states nothing."""
  if statement is None:
    return None
  epsilon, delta = statement.get('epsilon'), statement.get('delta')
  if not all(isinstance(value, (int, float)) for value in (epsilon, delta)):
    return None
  if not math.isfinite(epsilon):
    return None
  hint, sign = f'at δ = {delta_text(delta)}', '≤'
  if statement.get('guarantee', 'upper_bound') != 'upper_bound':
    hint += f'; {statement["guarantee"]}, not a proven bound'
    sign = '≈'
  if statement.get('seeded'):
    hint += '; seeded: not private against anyone who knows the seed'
  return {'epsilon': f'{sign} {verdict.rounded_up(epsilon)}', 'hint': hint}


def _statement_text(statement):
  if statement is None:
    return (
      'No privacy statement came with the synthetic table. Nothing in this '
      'report says that it is private.'
    )
  if isinstance(statement, str):
    return statement.strip()
  if hasattr(statement, 'to_text'):
    return statement.to_text().strip()
  return json.dumps(statement, indent=2, ensure_ascii=False, default=str)


def _column(marginal, real, synthetic, field):
  """Returns the variables of the template for one column."""
  far = max(_FAR * marginal['by_chance'], _LEAST)
  moved = marginal['wasserstein']
  return {
    **marginal,
    'name': field.name,
    'is_far': marginal['total_variation'] > far,
    'moved': '–' if np.isnan(moved) else f'{moved:.2%}',
    'has_missing': marginal['missing_real'] or marginal['missing_synthetic'],
    'figure': figures.marginal_figure(
      real[field.name], synthetic[field.name], field
    ),
  }


def _numbers(real, synthetic, schema):
  """Returns what is asked first of columns of numbers, of both tables."""
  found = []
  for field in schema.fields:
    if field.is_numeric:
      tables = [finite(table[field.name]) for table in (real, synthetic)]
      found.append(
        {
          'name': field.name,
          'numbers': {
            name: [_number(of(x)) if len(x) else '–' for x in tables]
            for name, of in _STATISTICS.items()
          },
          'is_off': verdict.mean_or_std_is_off(*tables),
        }
      )
  return found


def _of_moderate(statistic, x):
  x, unit = moderate(x)
  return statistic(x) * unit


def _number(value):
  return f'{value:,.0f}' if 1e4 <= abs(value) < 1e15 else f'{value:,.4g}'


def _verdicts(
  facts, columns, statistics, comparison, scores, groups, nearest, share
):
  """Returns the verdicts; `share` is that of the real rows on the page."""
  far = sorted(
    (c for c in columns if c['is_far']), key=lambda c: -c['total_variation']
  )
  copies = None
  if nearest is not None:
    # Of a sample of the real rows as many copies are found as it has of them.
    copies = verdict.copies_verdict(
      *(min(part['same'] / share, 1.0) for part in nearest)
    )
  found = [
    *([] if copies is None else [copies]),
    verdict.privacy_verdict(facts),
    verdict.column_verdict(
      [c['name'] for c in far],
      len(columns),
      [c['name'] for c in statistics if c['is_off']],
    ),
  ]
  if len(columns) > 1:
    found.append(verdict.pair_verdict(comparison))
  if scores is not None:
    found.append(
      verdict.target_verdict(
        scores['target'], scores['auroc'], scores['real_auroc']
      )
    )
  return [*found, verdict.rare_verdict(groups)]


def _several(real, fits, schema, target, classifiers, seed, progress):
  """Returns the variables of the template for each of several fits."""
  found = compare_fits(
    real,
    fits,
    schema,
    target=target,
    classifiers=classifiers,
    seed=seed,
    progress=progress,
  )
  best = {
    column: values.min() if column in _LOWER else values.max()
    for column, values in found.items()
    if column in _COMPARED
  }
  return [
    {
      'name': name,
      'claim': _claim(_facts(fits[name].statement)),
      'numbers': [
        (label, row[column], row[column] == best[column])
        for column, label in _COMPARED.items()
        if column in found
      ],
    }
    for name, row in found.iterrows()
  ]


def _listed(groups):
  """The rare groups whose shares are most wrong, for the page."""
  ratio = groups['synthetic'] / groups['real']
  wrong = np.abs(np.log(np.maximum(ratio, 1e-3)))
  order = np.argsort(-wrong.to_numpy().round(9), kind='stable')
  return groups.iloc[order[:_LISTED_GROUPS]].to_dict('records')


def _nearest(real, synthetic, schema, seed):
  found = nearest_rows(real, synthetic, schema, seed)
  if not len(found.real):
    return None
  return [
    {
      'name': name,
      'same': same,
      'quantiles': np.quantile(distances, [0.05, 0.5, 0.95]).tolist(),
    }
    for name, distances, same in (
      (
        'synthetic rows, to the nearest real one',
        found.synthetic,
        found.synthetic_equal,
      ),
      (
        'real rows, to the nearest other real one',
        found.real,
        found.real_equal,
      ),
    )
  ]


def _associations(comparison):
  """Returns the matrices of association, and pairs.

  Those that the verdict calls off are first, then those that differ most.
  """
  if len(comparison.marginals) < 2:
    return {'matrices': [], 'pairs': []}
  difference = comparison.association_difference()
  matrices = [
    ('Real', comparison.association_real, 'in the real table'),
    ('Synthetic', comparison.association_synthetic, 'in the synthetic table'),
    ('Synthetic minus real', difference, 'synthetic minus real'),
  ]
  first, second = np.triu_indices(len(difference), k=1)
  distances = comparison.pairs.to_numpy()[first, second]
  names = list(difference.index)
  off = verdict.pairs_that_are_off(comparison)[:_LISTED_PAIRS]
  rank = {pair: number for number, pair in enumerate(off)}
  first_of_all = [
    rank.get((names[i], names[j]), len(off)) for i, j in zip(first, second)
  ]
  # Rounded, so that pairs that are equally far keep the order of columns.
  order = np.lexsort([-distances.round(9), first_of_all])
  order = order[: len(off) + _LISTED_PAIRS]
  return {
    'matrices': [
      (
        caption,
        figures.matrix_figure(matrix, f'Associations of columns, {what}'),
      )
      for caption, matrix, what in matrices
    ],
    'pairs': [
      {
        'first': names[i],
        'second': names[j],
        'distance': distance,
        'associations': [
          _signed(matrix.iloc[i, j]) for _, matrix, _ in matrices
        ],
      }
      for i, j, distance in zip(first[order], second[order], distances[order])
    ],
    'more_pairs': len(distances) > len(order),
    'pairs_off': len(off),
  }


def _signed(value):
  text = f'{value:+.2f}'.replace('-', '−')
  return '0.00' if text[1:] == '0.00' else text


def _scores(real, synthetic, schema, target, classifiers, seed, progress):
  """Returns the variables of the template for the scores of classifiers."""
  (labels,), description = model_scores.target_labels(schema, target, real)
  found = _mean_scores(
    real, synthetic, schema, target, labels, classifiers, seed, progress
  )
  few_rows = found.attrs['few_rows']
  mean = found.mean()
  if len(found) > 1:
    found.loc['mean'] = mean
  rows = [_score_row(name, row) for name, row in found.iterrows()]
  guess = model_scores.constant_scores(labels)
  rows.append(
    {
      'name': 'always the most frequent',
      'scores': [guess[key] for key in _METRICS for _ in range(2)],
      'figure': '',
      'kind': 'chance',
    }
  )
  return {
    'target': target,
    'description': description,
    'few_rows': few_rows,
    'sizes': [
      min(n, model_scores.MAX_TRAIN) for n in (len(synthetic), len(real) // 2)
    ],
    'auroc': mean['auroc'],
    'real_auroc': mean['real_auroc'],
    'metrics': list(_METRICS.values()),
    'rows': rows,
  }


def _score_row(name, row):
  return {
    'name': name,
    'scores': [row[p + key] for key in _METRICS for p in ('', 'real_')],
    'figure': figures.score_figure(
      row['auroc'],
      row['real_auroc'],
      f'AUROC of {name}: {row["auroc"]:.3f} trained on synthetic rows, '
      f'{row["real_auroc"]:.3f} trained on real rows',
    ),
    'kind': 'mean' if name == 'mean' else '',
  }


def _mean_scores(
  real, synthetic, schema, target, labels, classifiers, seed, progress
):
  """Means over the halves of the real rows; the other half is real_train."""
  # Every class is divided evenly, so that rare ones are in both halves.
  order = np.lexsort([np.random.default_rng(seed).random(len(real)), labels])
  halves = np.empty(len(real), int)
  halves[order] = np.arange(len(real)) % 2
  fits = {}
  first, second = (
    model_scores.score(
      real[halves == half],
      synthetic,
      schema,
      target,
      real_train=real[halves != half],
      classifiers=classifiers,
      seed=seed,
      fits=fits,
      progress=progress,
    )
    for half in (0, 1)
  )
  mean = (first + second) / 2
  mean.attrs.update(first.attrs)
  return mean
