"""The low bits of what is released tell nothing of it."""

import numpy as np
import pytest

from tfdpflows import accounting, mechanisms
from tfdpflows.noise_grid import round_to_grid


@pytest.mark.parametrize('scale', [1e-320, 1e-100, 0.7, 1.0, 1023.0, 1e100])
def test_results_are_multiples_of_a_step_that_the_scale_alone_decides(scale):
  x = scale * np.random.default_rng(0).normal(size=1000)
  found = round_to_grid(x, scale)
  assert np.abs(found - x).max() <= scale / 2048
  if scale > 1e-300:
    step = 2.0 ** (np.floor(np.log2(scale)) - 10)
    assert np.array_equal(found / step, np.rint(x / step))


def test_numbers_without_digits_below_a_step_stay():
  for x in (2.0**60, -1e300, np.inf, -np.inf):
    assert round_to_grid(x, 1.0) == x
  assert np.isnan(round_to_grid(np.nan, 1.0))
  scales = round_to_grid(np.full(3, 1.3), np.array([1.0, 1024.0, 4096.0]))
  assert scales.tolist() == [1331 / 1024, 1.0, 0.0]


def test_an_attack_on_low_bits_finds_nothing():
  # Half of what noise of scale 1 gives near 0 is no multiple of 2^-53; one row
  # and noise add up to such multiples alone.
  found = []
  for codes in ([[0]] * 5, [[0]] * 5 + [[1]]):
    counts = []
    for _ in range(300):
      (marginal,) = mechanisms.noisy_marginals(
        np.array(codes), [2], [(0,)], 1.0, None, accounting.PrivacyLedger()
      )
      counts.append(marginal.counts[1])
    near = np.array(counts)[np.abs(counts) < 0.5]
    found.append(np.mean(near != np.rint(near * 2.0**53) / 2.0**53))
  assert found == [0, 0]
