"""Keras models around distributions."""

from tfdpflows.models.density import DensityModel
from tfdpflows.models.private import PrivateModel

__all__ = ['DensityModel', 'PrivateModel']
