"""DP-Keras optimizers: TF Privacy's classes with one-backward gradients."""

from tfdpflows.optimizers.dp_keras import DPKerasAdagrad
from tfdpflows.optimizers.dp_keras import DPKerasAdam
from tfdpflows.optimizers.dp_keras import DPKerasSGD
from tfdpflows.optimizers.dp_keras import DPOptimizer

__all__ = ['DPKerasAdagrad', 'DPKerasAdam', 'DPKerasSGD', 'DPOptimizer']
