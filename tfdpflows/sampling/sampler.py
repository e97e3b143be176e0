"""What all samplers have in common."""

from __future__ import annotations

import numpy as np

from tfdpflows._checks import Fixed
from tfdpflows.randomness import Randomness


class Sampler(Fixed):
  """The base of samplers, which have a `draw` of one generator.

  But for those whose batches depend on the step: they have a `draw_step` alone.

  Attributes:
    parts: number of parts of the rows that take turns, one by default. A charge
      is for as many steps, and has the `event` of the sampler.
  """

  parts = 1

  def draw_step(
    self, randomness: Randomness, label: str, step: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws the batch of a step of a training, see `draw`.

    Args:
      randomness: the `Randomness` of the training.
      label: its name.
      step: number of the step.
    """
    return self.draw(randomness.numpy('batch', label, step))
