"""Keras models around distributions."""

from tfdpflows.models.density import DensityModel

__all__ = ['DensityModel']
