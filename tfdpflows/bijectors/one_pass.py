"""Bijectors that compute an inverse and its log-determinant in one pass."""

from __future__ import annotations

from typing import Any

from tfdpflows._keras import tfp

tfb = tfp.bijectors


class OnePassInverse(tfb.Bijector):
  """A bijector over rows that computes inverse and log-determinant together.

  TFP calls the two methods separately, with the same tensor: a network would
  run twice, and each of its parameters would count as used twice. The result
  of the first call is kept for the second one, and for no other, so that it
  does not outlive the tape it was computed under.

  Subclasses implement `_inverse_and_log_det(y)`, a pair, and `_forward`; both
  may take further keyword arguments, such as `conditional_input`.

  Args:
    **kwargs: of `tfb.Bijector`.
  """

  def __init__(self, **kwargs: Any):
    self._left = None
    super().__init__(forward_min_event_ndims=1, **kwargs)

  @classmethod
  def _parameter_properties(cls, dtype):
    return {}

  def _inverse_and_log_det(self, y, **kwargs):
    raise NotImplementedError

  def _inverse(self, y, **kwargs):
    return self._part(y, kwargs, 0)

  def _inverse_log_det_jacobian(self, y, **kwargs):
    return self._part(y, kwargs, 1)

  def _part(self, y, kwargs, part):
    # Compared by identity: tensors have no other equality.
    given = [y, *sorted(kwargs), *(kwargs[key] for key in sorted(kwargs))]
    left, self._left = self._left, None
    if left is not None and left[1] != part and _are(left[0], given):
      return left[2][part]
    result = self._inverse_and_log_det(y, **kwargs)
    self._left = (given, part, result)
    return result[part]


def _are(one, other):
  return len(one) == len(other) and all(a is b for a, b in zip(one, other))
