"""Cyclic Poisson batches: who joins when, and what that is charged as."""

import numpy as np
import pytest

from tfdpflows import accounting, sampling
from tfdpflows.randomness import Randomness


def _sampler(n=600, q=0.3, parts=3, **kwargs):
  return sampling.CyclicPoissonSampler(
    num_examples=n, sampling_probability=q, parts=parts, **kwargs
  )


def test_parts_take_turns_and_rows_join_independently():
  sampler, randomness = _sampler(), Randomness(seed=0)
  steps, joined = 900, np.zeros([900, 600], bool)
  for step in range(steps):
    numbers, weights = sampler.draw_step(randomness, 'a', step)
    drawn = numbers[weights > 0]
    assert len(set(drawn)) == len(drawn) and len(weights) % sampler.chunk == 0
    joined[step, drawn] = True
  by_part = joined.reshape(300, 3, 600).sum(0)
  # Each row is in batches of one part.
  assert np.all(np.sum(by_part > 0, 0) == 1)
  parts = np.argmax(by_part, 0)
  sizes = np.bincount(parts)
  assert np.all(np.abs(sizes - 200) < 5 * np.sqrt(600 * 2 / 9))
  rates = by_part.max(0) / 300
  assert abs(rates.mean() - 0.3) < 5 * np.sqrt(0.21 / 300 / 600)
  assert np.all(np.abs(rates - 0.3) < 6 * np.sqrt(0.21 / 300))
  # Rows of one part do not join together.
  some = joined[0::3][:, parts == 0][:, :60].astype(float)
  correlation = np.corrcoef(some.T) - np.eye(60)
  assert np.abs(correlation).max() < 6 / np.sqrt(300)


def test_a_step_is_the_same_whatever_was_drawn_before():
  found = []
  for steps in ([5], [0, 1, 5]):
    sampler, randomness = _sampler(), Randomness(seed=1)
    drawn = [sampler.draw_step(randomness, 'a', step) for step in steps]
    found.append(drawn[-1])
  np.testing.assert_array_equal(found[0], found[1])
  sampler = _sampler()
  one = sampler.draw_step(Randomness(seed=1), 'a', 5)
  # Another training has other parts, also with the same sampler.
  other = sampler.draw_step(Randomness(seed=2), 'a', 5)
  np.testing.assert_array_equal(one, found[0])
  assert set(one[0]) != set(other[0])


def test_two_plans_may_share_a_sampler_in_threads():
  others = []

  class Shared(sampling.CyclicPoissonSampler):
    def __setattr__(self, name, value):
      super().__setattr__(name, value)
      if name == '_rows' and others:  # Another thread draws just now.
        self.draw_step(others.pop(), 'a', 0)

  shared = Shared(num_examples=600, sampling_probability=0.3, parts=3)
  one, other = Randomness(seed=1), Randomness(seed=2)
  others.append(other)
  found = shared.draw_step(one, 'a', 5)
  np.testing.assert_array_equal(found, _sampler().draw_step(one, 'a', 5))


def test_event_and_public_constants():
  sampler = _sampler()
  assert sampler.expected_batch_size == pytest.approx(60)
  assert sampler.steps_per_epoch == 10
  event = sampler.event(2.0, (0.8, 0.6))
  assert event == accounting.CyclicPoissonSampledDpEvent(
    0.3, 3, accounting.ToeplitzMechanismDpEvent(2.0, (0.8, 0.6), steps=3)
  )
  assert 'one of 3 parts' in sampler.describe()
  with pytest.raises(ValueError, match='There are 4 coefficients and 3 parts'):
    sampler.event(2.0, (1, 1, 1, 1))


def test_bad_input():
  for q in (0.0, 1.5, np.nan):
    with pytest.raises(ValueError, match='sampling_probability is'):
      _sampler(q=q)
  with pytest.raises(ValueError, match='parts'):
    _sampler(parts=0)
