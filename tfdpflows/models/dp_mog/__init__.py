"""DP-MoG: mixtures of Gaussians, fitted privately."""

from tfdpflows.models.dp_mog.dp_mog import DPMoG
from tfdpflows.models.dp_mog.em import GaussianMixture

__all__ = ['DPMoG', 'GaussianMixture']
