"""How many trials a search has: a random number, drawn without the data."""

from __future__ import annotations

import math

import numpy as np

from tfdpflows.accounting.mechanisms.selection import halting_probability

# Numbers of trials are drawn until one is above zero: about 1 / shape times.
_SMALLEST_SHAPE = 1e-3


def draw_num_trials(mean: float, shape: float, rng: np.random.Generator) -> int:
  """Draws from the truncated negative binomial distribution.

  It is the law of `dp_accounting.RepeatAndSelectDpEvent`, with probabilities
  proportional to `(1 - g)^k prod_(l < k) (l + shape) / (l + 1)` for k = 1, 2,
  ..., and g such that the mean is `mean` (Papernot and Steinke 2022, definition
  1). Its mean is at most `mean`, up to the rounding of NumPy's generators.

  Args:
    mean: 1 or more.
    shape: 0 (logarithmic), 1 (geometric), or any other positive number.
    rng: `np.random.Generator`.

  Returns:
    An integer, 1 or more.

  Raises:
    ValueError: for a number out of range.

  #### References

  Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential
  privacy".

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import tuning
  >>> rng = np.random.default_rng(0)
  >>> drawn = [tuning.draw_num_trials(5., 0., rng) for _ in range(4000)]
  >>> min(drawn), 4.6 < np.mean(drawn) < 5.4
  (1, True)
  """
  if 0 < shape < _SMALLEST_SHAPE:
    raise ValueError(
      f'shape is {shape}; that is as good as 0, and would take long to draw '
      'from. Use 0.'
    )
  if not shape < math.inf:
    raise ValueError(
      f'shape is {shape}; a Poisson number of trials has no bound without a '
      'bound on the Renyi divergence of one. Use 0 or more.'
    )
  halting = halting_probability(mean, shape)
  if halting >= 1:
    return 1
  if shape == 0:
    return int(rng.logseries(1 - halting))
  if shape == 1:
    return int(rng.geometric(halting))
  while True:
    drawn = int(rng.negative_binomial(shape, halting))
    if drawn:
      return drawn
