"""Other weights for a while: what zeros hide at the start shows."""

from __future__ import annotations

import contextlib

import numpy as np

# Shares of a weight's typical size; smaller where the loss is not finite.
_SHARES = (0.5, 0.05, 0.005)
# The least of what counts as typical: zeros move too.
_SIZE = 0.3


def moves(variables, seed=0):
  """Returns a move for each variable, away from zero in every element."""
  rng = np.random.default_rng(seed)
  found = []
  for v in variables:
    values = v.numpy()
    size = np.sqrt(np.mean(np.square(values))) if values.size else 0.0
    size = max(size, _SIZE)
    move = rng.uniform(0.5, 1, values.shape) * rng.choice([-1, 1], values.shape)
    found.append(move * size)
  return found


@contextlib.contextmanager
def moved(variables, steps):
  """Context in which `steps` are added to the variables."""
  old = [v.numpy() for v in variables]
  try:
    for v, value, step in zip(variables, old, steps):
      v.assign((value + step).astype(value.dtype))
    yield
  finally:
    for v, value in zip(variables, old):
      v.assign(value)


@contextlib.contextmanager
def opened(variables, finite, sign=1):
  """Context in which no weight is zero, if the loss stays finite.

  Args:
    variables: the trainable variables.
    finite: a function that says whether the loss is finite.
    sign: of the moves. What one sign closes (a gate behind a relu) the other
      opens.

  Yields:
    Whether there are other weights; where none leave the loss finite, the
    weights stay as they are.
  """
  whole = moves(variables)
  for share in _SHARES:
    with moved(variables, [sign * share * m for m in whole]):
      if finite():
        yield True
        return
  yield False
