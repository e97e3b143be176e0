"""Progress of a fit, in a terminal or notebook, or in the log."""

from __future__ import annotations

from tfdpflows.training import progress


class Progress(progress.Progress):
  """Shows the loss as nats gained: see `training.progress.Progress`."""

  def _loss_text(self, mean, error):
    return f'{-mean:.2f} ± {error:.2f} nats gained'
