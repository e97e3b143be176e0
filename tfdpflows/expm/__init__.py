"""Exponential mechanisms, and samplers whose privacy is proven.

Imports no TensorFlow.
"""

from tfdpflows.expm.noisy_descent import NoisyDescent, exponential_mechanism_mu

__all__ = ['NoisyDescent', 'exponential_mechanism_mu']
