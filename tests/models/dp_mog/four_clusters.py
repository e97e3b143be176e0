"""Rows that a mixture can find something in."""

import numpy as np

BUDGET = {'epsilon': 1.0, 'delta': 1e-5}


def make(n, seed=0, d=2):
  """Four tight clusters in the unit ball, and how likely they are at best."""
  rng = np.random.default_rng(seed)
  centers = 0.5 * np.stack(
    [[np.cos(a), np.sin(a)] + [0.0] * (d - 2) for a in (0.3, 1.5, 3.0, 4.4)]
  )
  x = centers[rng.integers(4, size=n)] + 0.03 * rng.normal(size=[n, d])
  best = -np.log(4) - d / 2 * (1 + np.log(2 * np.pi * 0.03**2))
  return x, best
