"""Synthetic tables: schema, encoding, synthesizer, evaluation, report."""

import importlib

from tfdpflows.tabular.encoding import EncodedColumn, TableEncoder
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.table import read_table, write_table

__all__ = [
  'EncodedColumn',
  'Field',
  'TableEncoder',
  'TableSchema',
  'TabularSynthesizer',
  'fit_to_directory',
  'read_table',
  'write_table',
]

# What needs TensorFlow is imported when it is first asked for.
_LAZY = {
  'TabularSynthesizer': 'tfdpflows.tabular.synthesizer',
  'fit_to_directory': 'tfdpflows.tabular.synthesizer',
}


def __getattr__(name):
  if name in _LAZY:
    return getattr(importlib.import_module(_LAZY[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
  return sorted({*globals(), *__all__})
