"""Keras models around distributions."""

from tfdpflows.models.anomaly import AnomalyDetector, AnomalyEvaluation
from tfdpflows.models.density import DensityModel
from tfdpflows.models.dp_mog import DPMoG
from tfdpflows.models.private import PrivateModel

__all__ = [
  'AnomalyDetector',
  'AnomalyEvaluation',
  'DPMoG',
  'DensityModel',
  'PrivateModel',
]
