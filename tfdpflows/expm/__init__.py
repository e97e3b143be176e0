"""Exponential mechanisms, proven samplers, and flows without a proof.

Names load when they are first used: `NoisyDescent` needs no TensorFlow.
"""

from __future__ import annotations

import importlib

_NAMES = {
  'ExponentialMechanism': 'exponential_mechanism',
  'NoProofFlowSampler': 'flow_sampler',
  'NoisyDescent': 'noisy_descent',
  'dp_distance': 'distances',
  'epsilon_of_close': 'distances',
  'epsilon_of_mixture': 'distances',
  'epsilon_of_squeezed': 'distances',
  'exponential_mechanism_mu': 'noisy_descent',
  'l2_utility': 'exponential_mechanism',
}

__all__ = [*_NAMES]


def __getattr__(name):
  if name not in _NAMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_NAMES[name]}')
  globals()[name] = value = getattr(module, name)
  return value


def __dir__():
  return sorted(__all__)
