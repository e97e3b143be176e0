"""Columns made standard normal, by piecewise linear CDFs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from scipy import special

from tfdpflows._keras import tfp

if TYPE_CHECKING:
  import numpy.typing as npt

tfb = tfp.bijectors

# u is in [_TAIL, 1 - _TAIL], where the probit is finite: |z| < 4.27.
_TAIL = 1e-5


class MarginalCDF(tfb.Bijector):
  """`x -> u = F_j(x_j) -> z = Phi^{-1}(u)`, with a piecewise linear F_j.

  F_j is the CDF of a histogram of column j, uniform within each bin. If the
  histograms are private, so is the bijector. A flow after it starts from
  columns that are standard normal, and has their dependence to learn.

  Invertible on the product of [edges[0], edges[-1]], to which x and z are
  clipped. (A standard normal has 2e-5 of its mass outside of the image, which
  is missing in a density over x.)

  Args:
    edges: one ascending array of k_j + 1 bin edges per column.
    probabilities: one array of k_j positive numbers per column; normalized to
      sum to one.
    dtype: of x and z.

  Raises:
    ValueError: naming the column, if edges do not ascend strictly or a
      probability is not positive.

  #### Example

  >>> from tfdpflows import bijectors
  >>> marginal = bijectors.MarginalCDF([[0., 1., 4.]], [[.5, .5]])
  >>> abs(float(marginal.forward([1.])[0])) < 1e-6
  True
  """

  def __init__(
    self,
    edges: Sequence[npt.ArrayLike],
    probabilities: Sequence[npt.ArrayLike],
    dtype: tf.DType | str = tf.float32,
    validate_args: bool = False,
    name: str = 'marginal_cdf',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      dtype = tf.as_dtype(dtype)
      edges, masses = _checked(edges, probabilities)
      cdf = [np.concatenate([[0], np.cumsum(p)[:-1], [1]]) for p in masses]
      size = max(len(e) for e in edges)
      # Differences of rounded CDFs would lose small masses; no density must be
      # zero.
      least = np.finfo(dtype.as_numpy_dtype).tiny
      slopes = [
        np.maximum((1 - 2 * _TAIL) * p / np.diff(e), least)
        for e, p in zip(edges, masses)
      ]
      # Columns of fewer bins repeat their last edge: bins of width zero.
      edges, cdf, slopes = (
        np.stack([np.pad(a, (0, wide - len(a)), 'edge') for a in arrays])
        for arrays, wide in ((edges, size), (cdf, size), (slopes, size - 1))
      )
      with tf.init_scope():
        self._edges = tf.constant(edges, dtype)
        self._cdf = tf.constant(_within_tails(cdf), dtype)
        self._slopes = tf.constant(slopes, dtype)
      super().__init__(
        forward_min_event_ndims=1,
        dtype=dtype,
        is_constant_jacobian=False,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  @classmethod
  def _parameter_properties(cls, dtype):
    return {}

  def _interpolate(self, value, knots, values, slopes=None):
    """Returns the piecewise linear map knots -> values, and its slope."""
    flat = tf.reshape(value, [-1, knots.shape[0]])
    flat = tf.clip_by_value(flat, knots[:, 0], knots[:, -1])
    # The count of passed inner knots ends before the bins of width zero.
    right = tf.searchsorted(knots, tf.transpose(flat), side='right')
    left = tf.searchsorted(knots, knots[:, -1:], side='left')
    here = tf.transpose(tf.clip_by_value(right, 1, left)) - 1

    def pick(table):
      flat = tf.reshape(table, [-1])
      place = here + tf.range(knots.shape[0]) * tf.shape(table)[1]
      # It is in range; clipped, the graph shows that too, see `independence`.
      return tf.gather(flat, tf.clip_by_value(place, 0, flat.shape[0] - 1))

    x0, x1 = pick(knots[:, :-1]), pick(knots[:, 1:])
    y0, y1 = pick(values[:, :-1]), pick(values[:, 1:])
    slope = (y1 - y0) / (x1 - x0) if slopes is None else pick(slopes)
    y = tf.clip_by_value(y0 + (flat - x0) * slope, y0, y1)
    return tf.reshape(y, tf.shape(value)), tf.reshape(slope, tf.shape(value))

  def _forward(self, x):
    u, _ = self._interpolate(x, self._edges, self._cdf, self._slopes)
    return tf.math.ndtri(u)

  def _forward_log_det_jacobian(self, x):
    u, slope = self._interpolate(x, self._edges, self._cdf, self._slopes)
    z = tf.math.ndtri(u)
    half_log_two_pi = 0.5 * np.log(2 * np.pi)
    return tf.reduce_sum(tf.math.log(slope) + 0.5 * z * z + half_log_two_pi, -1)

  def _inverse(self, z):
    u = 0.5 * tf.math.erfc(-z / np.sqrt(2).astype(z.dtype.as_numpy_dtype))
    return self._interpolate(u, self._cdf, self._edges)[0]


def normal_scores(probabilities: npt.ArrayLike) -> np.ndarray:
  """Returns what a `MarginalCDF` maps the inner edges of a histogram to.

  Args:
    probabilities: k positive numbers, normalized to sum to one.

  Returns:
    Ascending numbers, float64 `[k - 1]`.

  >>> normal_scores([.25, .5, .25]).round(3).tolist()
  [-0.674, 0.674]
  """
  masses = np.asarray(probabilities, np.float64)
  return special.ndtri(_within_tails(np.cumsum(masses / masses.sum())[:-1]))


def _within_tails(cdf):
  return _TAIL + (1 - 2 * _TAIL) * cdf


def _checked(edges, probabilities):
  """Returns edges and normalized probabilities, in float64."""
  if len(edges) != len(probabilities) or not len(edges):
    raise ValueError(
      f'There are edges of {len(edges)} columns and probabilities of '
      f'{len(probabilities)}.'
    )
  edges = [np.asarray(e, np.float64) for e in edges]
  masses = []
  for j, (e, p) in enumerate(zip(edges, probabilities)):
    p = np.asarray(p, np.float64)
    if len(e) != len(p) + 1 or not np.all(np.diff(e) > 0):
      raise ValueError(
        f'Column {j}: {len(p)} bins need {len(p) + 1} strictly ascending '
        f'edges; got {e.tolist()}.'
      )
    if not np.all(p > 0) or not np.isfinite(p.sum()):
      raise ValueError(
        f'Column {j}: every bin needs a positive probability; got {p.tolist()}.'
      )
    masses.append(p / p.sum())
  return edges, masses
