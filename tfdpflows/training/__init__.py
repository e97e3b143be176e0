"""Private training: its plan, and the batch, noise and charge of each step.

`plan` is what users call. Behind it `steps` owns which step comes next, its
batch (dealt out by `replicas`) and its charge, `step_noise` its noise. `fit`
trains a Keras model under a plan, and `progress` tells how far it is.
"""

from tfdpflows.training.plan import TrainingPlan
from tfdpflows.training.progress import EpsilonLogger

__all__ = ['EpsilonLogger', 'TrainingPlan']
