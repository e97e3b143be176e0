"""Where a column is cut into bins that other columns can depend on."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors

# A bin is heavy, and starts a new part, with half of an even share.
_HEAVY = 0.5
# Categories that are neighbours have nothing in common: they are joined only
# where there are so many times more.
_CATEGORIES = 4


def knots(column, edges, probabilities, num_bins):
  """Returns the places between the bins of a column, behind its private CDF.

  Bins of the private histogram are joined with their neighbours until they hold
  about one part in `num_bins` of the rows; heavy ones, such as a spike at zero,
  stay apart. Where spikes leave a share r of the rows, that is cut into
  `num_bins * sqrt(r)` parts: a rare tail is worth less than a whole column, and
  more than its rows. Categories have bins of their own, up to four times as
  many.

  Args:
    column: the `EncodedColumn`.
    edges: bin edges of its private histogram, `[k + 1]`.
    probabilities: their probabilities `[k]`.
    num_bins: how many bins to aim at, where there are more.

  Returns:
    float64 array, ascending, of places on the line of `MarginalCDF`.

  #### Example

  >>> from tfdpflows.tabular.encoding import EncodedColumn
  >>> age = EncodedColumn('age', 8., 1., missing=False, ordered=True)
  >>> knots(age, range(9), [1 / 8] * 8, num_bins=2)
  array([0.])
  """
  edges = np.asarray(edges, np.float64)
  kept = np.arange(1, len(probabilities))
  if column.cell and not column.ordered:
    num_bins *= _CATEGORIES
  if len(probabilities) > num_bins:
    kept = _joined(np.asarray(probabilities), num_bins)
  if not len(kept):
    return np.zeros(0)
  cdf = bijectors.MarginalCDF([edges], [probabilities], tf.float64)
  return cdf.forward(edges[kept][:, None]).numpy()[:, 0]


def _joined(probabilities, num_bins):
  """Returns the numbers of the edges that remain between joined bins."""
  share = np.sum(probabilities) / num_bins
  spikes = probabilities >= share
  rest = np.sum(probabilities[~spikes]) / np.sum(probabilities)
  share *= np.sqrt(rest)
  kept, mass = [], 0.0
  for i, p in enumerate(probabilities):
    if mass and (p >= _HEAVY * share or mass + p > share):
      kept.append(i)
      mass = 0.0
    mass += p
  return np.array(kept, int)
