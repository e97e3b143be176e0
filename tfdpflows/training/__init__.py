"""Private training: its plan, and the batch, noise and charge of each step.

`plan` is what users call. Behind it `steps` owns which step comes next, its
batch (`batches`, dealt out by `replicas`), its noise and its charge. Optimizers
call three methods of `steps.StepNoise` (check, take, add), Keras models three
functions of `fit` (fit, check_in_fit, epoch_and_batch).
"""

from tfdpflows.training.plan import TrainingPlan

__all__ = ['TrainingPlan']
