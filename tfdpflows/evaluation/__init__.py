"""Scores of synthetic tables against real ones, and a report.

No noise is added: where the real rows are private, so are all these numbers.
"""

from __future__ import annotations

import importlib

from tfdpflows.evaluation.association import kendall_errors
from tfdpflows.evaluation.comparison import Comparison, compare
from tfdpflows.evaluation.query_errors import (
  marginal_errors,
  range_query_errors,
)
from tfdpflows.evaluation.scores import regress_on_synthetic, train_on_synthetic
from tfdpflows.evaluation.several import SyntheticTable, compare_fits

__all__ = [
  'Comparison',
  'SyntheticTable',
  'compare',
  'compare_fits',
  'kendall_errors',
  'marginal_errors',
  'range_query_errors',
  'regress_on_synthetic',
  'train_on_synthetic',
  'write_report',
]


def __getattr__(name):
  if name == 'write_report':  # matplotlib is slow to import.
    return importlib.import_module('tfdpflows.evaluation.report').write_report
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
