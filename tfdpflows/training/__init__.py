"""Private training: its plan, and the batch, noise and charge of each step."""

from tfdpflows.training.plan import TrainingPlan

__all__ = ['TrainingPlan']
