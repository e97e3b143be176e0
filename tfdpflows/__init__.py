"""Densities and synthetic tables from sensitive data, with an epsilon.

A TensorFlow plugin: TFP bijectors and flows, TF Privacy's DP-Keras optimizers
with fast per-example gradients, one ledger and registry of accountants, and a
synthesizer for mixed tables. Public names load when they are first used, so
that `tfdpflows.accounting` needs no TensorFlow.
"""

from __future__ import annotations

import importlib

# Chooses Keras 2 while that is still possible; imports nothing else.
from tfdpflows import _keras  # noqa: F401
from tfdpflows.version import __version__

_SUBPACKAGES = (
  'accounting',
  'audit',
  'bijectors',
  'evaluation',
  'expm',
  'flows',
  'gradients',
  'mechanisms',
  'models',
  'networks',
  'optimizers',
  'pate',
  'randomness',
  'sampling',
  'tabular',
  'training',
  'tuning',
)
_NAMES = {
  'DPLogisticRegression': 'tfdpflows.models.dp_logistic_regression',
  'DensityModel': 'tfdpflows.models',
  'PrivacyBudget': 'tfdpflows.accounting',
  'PrivacyLedger': 'tfdpflows.accounting',
  'PrivateModel': 'tfdpflows.models',
  'TabularSynthesizer': 'tfdpflows.tabular',
  'TrainingPlan': 'tfdpflows.training.plan',
}

__all__ = [*_SUBPACKAGES, *_NAMES, '__version__']


def __getattr__(name):
  if name in _SUBPACKAGES:
    return importlib.import_module(f'tfdpflows.{name}')
  if name in _NAMES:
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
  return sorted(__all__)
