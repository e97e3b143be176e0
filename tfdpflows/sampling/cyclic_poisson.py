"""Poisson sampling of parts of the rows that take turns."""

from __future__ import annotations

from collections.abc import Sequence

import dp_accounting
import numpy as np

from tfdpflows._checks import check_integer
from tfdpflows.accounting import (
  CyclicPoissonSampledDpEvent,
  ToeplitzMechanismDpEvent,
)
from tfdpflows.randomness import Randomness, drawn_below
from tfdpflows.sampling.poisson import (
  checked_chunk,
  checked_probability,
  padded,
)
from tfdpflows.sampling.sampler import Sampler
from tfdpflows.sampling.units import in_words


class CyclicPoissonSampler(Sampler):
  """Draws each row of one part of the rows independently; parts take turns.

  Each row is in one part, chosen at random. Step t draws from part t modulo
  the number of parts. So a row is never in two of as many successive steps as
  there are parts, over which the noise of a plan can be correlated
  (`TrainingPlan`, `noise='banded'`).

  #### Formal guarantee

  As many successive steps as there are parts, with Gaussian noise that is
  independent or correlated by a matrix of no more bands than parts, cost
  `CyclicPoissonSampledDpEvent` (there is the proof) under adding or removing
  one row, as the part of a row is drawn independently of all other rows; and
  under replacing one, where the other row is in the same part. The number of
  rows is taken to be public.

  Args:
    num_examples: number of rows n.
    sampling_probability: probability of a row to join a batch of its part.
    parts: number of parts.
    chunk: what batches are padded to a multiple of.

  Raises:
    ValueError: for values out of range.

  #### Example

  >>> import tfdpflows
  >>> sampler = tfdpflows.sampling.CyclicPoissonSampler(
  ...   num_examples=1000, sampling_probability=.4, parts=4, chunk=64)
  >>> sampler.expected_batch_size, sampler.steps_per_epoch
  (100.0, 10)
  """

  def __init__(
    self,
    *,
    num_examples: int,
    sampling_probability: float,
    parts: int,
    chunk: int | None = None,
  ):
    self.num_examples = check_integer('num_examples', num_examples)
    self.parts = check_integer('parts', parts)
    self.sampling_probability = checked_probability(sampling_probability)
    self.chunk = checked_chunk(chunk, self.expected_batch_size)
    self._rows = None

  @property
  def expected_batch_size(self) -> float:
    """The public constant that a noised sum is divided by."""
    return self.num_examples * self.sampling_probability / self.parts

  @property
  def steps_per_epoch(self) -> int:
    """Batches in which a row is drawn once on average."""
    return max(1, round(self.parts / self.sampling_probability))

  def event(
    self, noise_multiplier: float, coefficients: Sequence[float] = (1.0,)
  ) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of one noised sum for each part.

    Args:
      noise_multiplier: standard deviation of the noise before it is correlated.
      coefficients: of the first column of the matrix that correlates it, as
        many as there are parts or fewer.

    Raises:
      ValueError: for more of them: what a row adds in two steps would overlap.
    """
    if len(coefficients) > self.parts:
      raise ValueError(
        f'There are {len(coefficients)} coefficients and {self.parts} parts: '
        'give as many parts as coefficients, or more.'
      )
    return CyclicPoissonSampledDpEvent(
      self.sampling_probability,
      self.parts,
      ToeplitzMechanismDpEvent(noise_multiplier, coefficients, self.parts),
    )

  def describe(self, unit: str | None = None) -> str:
    """Returns how batches are drawn, in words.

    Args:
      unit: what an example is; a row by default.
    """
    one, all_ = in_words(unit)
    return (
      f'cyclic Poisson: each {one} is in one of {self.parts} parts, chosen at '
      'random; parts take turns, and each of their batches is joined '
      f'independently with probability {self.sampling_probability:.6g} '
      f'(expected batch {self.expected_batch_size:.6g} of '
      f'{self.num_examples} {all_})'
    )

  def draw_step(
    self, randomness: Randomness, label: str, step: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws the batch of a step, as `Sampler.draw_step` does."""
    key = randomness.key('parts', label)
    # Not of the sampler from here on: another plan may use it in a thread.
    known = self._rows
    if known is None or known[0] != key:
      rng = randomness.numpy('parts', label)
      parts = rng.integers(self.parts, size=self.num_examples)
      known = key, [np.flatnonzero(parts == k) for k in range(self.parts)]
      self._rows = known
    rows = known[1][step % self.parts]
    rng = randomness.numpy('batch', label, step)
    joins = rng.random(len(rows)) < drawn_below(self.sampling_probability)
    return padded(rows[joins], self.chunk)
