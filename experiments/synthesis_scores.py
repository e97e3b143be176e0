"""How good a synthetic table is: classifiers, distances to held-out rows."""

from __future__ import annotations

import resource
import sys

import numpy as np

from experiments import datasets, public_tables
from tfdpflows import evaluation

METRICS = ('macro_f1', 'auroc', 'average_precision')
_SHARED_METRICS = ('f1', 'auc', 'apc')
_MOST_LIKELIHOODS = 5000
_MOST_REGRESSED = 20_000


class Scorer:
  """Scores any method's rows against the same real rows, in the same way.

  Args:
    dataset: one of `datasets.DATASETS`.
    holdout: DataFrame of real rows, as `TableSchema.validate` returns it.
    schema: their `TableSchema`.
    target: the column that classifiers predict.
    smoke: whether three classifiers will do.

  Attributes:
    classifiers: which ones, in words.
  """

  def __init__(self, dataset, holdout, schema, target, smoke=False):
    self._dataset = dataset
    self._holdout = holdout
    self._schema = schema
    self._target = target
    self._score = None
    self.classifiers = 'quick' if smoke else 'all'
    if dataset in datasets.SHARED_TABLES and not smoke:
      self._score = public_tables.SharedScorer(dataset, datasets.SHARED)
      self.classifiers = 'shared/tools/tstr.py'

  def __call__(self, table):
    """Returns means over classifiers that are trained on `table`.

    Args:
      table: DataFrame `[n, d]` with the columns of the schema.

    Returns:
      A dict of `METRICS`; where the target has more than two classes, some
      scorers give the first alone.
    """
    if self._score is not None:
      scores = self._score(table)
      named = zip(METRICS, _SHARED_METRICS)
      return {name: float(scores[key]) for name, key in named if key in scores}
    scores = evaluation.train_on_synthetic(
      self._holdout,
      table,
      self._schema,
      self._target,
      classifiers=self.classifiers,
    )
    return {name: float(scores[name].mean()) for name in METRICS}

  def distances(self, table):
    """Returns how far columns and pairs of columns are from the real ones.

    Args:
      table: DataFrame `[n, d]` with the columns of the schema.

    Returns:
      A JSON-able dict: see `Comparison.summary` and `kendall_errors`; `None`
      for what the table has no columns for.
    """
    tables = self._holdout, table
    found = {
      **evaluation.compare(*tables, self._schema).summary(),
      **evaluation.kendall_errors(*tables, self._schema),
    }
    return {k: v if np.isfinite(v) else None for k, v in found.items()}

  def tasks(self, table):
    """Returns how well synthetic rows serve other tasks than classification.

    Args:
      table: DataFrame `[n, d]` with the columns of the schema.

    Returns:
      A dict of `triple_total_variation`, the mean over 200 marginals of three
      columns; `range_query_error`, the mean of 1,000 conjunctions of three
      conditions; and `regression_r2`, the mean of three regressors of
      `datasets.NUMERIC_TARGETS`, which learn from at most 20,000 rows. The last
      is `None` if the schema has no such column.
    """
    tables = self._holdout, table, self._schema
    triples = evaluation.marginal_errors(
      *tables, min(3, len(self._schema.names))
    )
    queries = evaluation.range_query_errors(*tables)
    numeric = datasets.NUMERIC_TARGETS[self._dataset]
    r2 = None
    if numeric in self._schema.names:
      scores = evaluation.regress_on_synthetic(
        *tables, numeric, max_train=_MOST_REGRESSED
      )
      r2 = float(scores['r2'].mean())
    return {
      'triple_total_variation': float(np.mean(list(triples.values()))),
      'range_query_error': float(queries.mean()),
      'regression_r2': r2,
    }

  def log_likelihood(self, synthesizer):
    """Returns the mean log-density of real rows that were held out.

    Args:
      synthesizer: what was fitted.

    Returns:
      Nats per row, the mean of 5,000 rows at most; `None` if the method has no
      `log_prob`.
    """
    if not hasattr(synthesizer, 'log_prob'):
      return None
    if not synthesizer.model.has_density:
      return None
    size = min(len(self._holdout), _MOST_LIKELIHOODS)
    rows = self._holdout.sample(size, random_state=0)
    return float(np.mean(synthesizer.log_prob(rows)))


def peak_memory():
  """Returns the most memory that this process ever held, in MiB."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Linux counts KiB, macOS bytes.
  return peak / 2 ** (20 if sys.platform == 'darwin' else 10)
