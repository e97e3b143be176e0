"""DP-Keras optimizers: TF Privacy's classes with one-backward gradients."""

from tfdpflows.optimizers.adabelief import DPKerasAdaBelief
from tfdpflows.optimizers.dp_keras import (
  DPKerasAdagrad,
  DPKerasAdam,
  DPKerasSGD,
  DPOptimizer,
)

__all__ = [
  'DPKerasAdaBelief',
  'DPKerasAdagrad',
  'DPKerasAdam',
  'DPKerasSGD',
  'DPOptimizer',
]
