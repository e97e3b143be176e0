"""Norms and sums of several terms at once are those of each by itself."""

import numpy as np
import pytest
import tensorflow as tf
import uses

from tfdpflows.gradients import terms


@pytest.mark.core
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('sizes', [(3, 40), (40, 3), (5, 5), (5, 6)])
@pytest.mark.parametrize('batch', [4, 0])
def test_kernel_and_bias_share(sizes, masked, batch):
  a, d, mask = uses.use(batch, *sizes, masked)
  pair = [terms.LinearTerm(mask, [a], [d]), terms.BiasTerm(d)]
  assert terms._kernels(pair) == [pair[0], pair[0]]
  weights = tf.constant(np.random.default_rng(1).random(batch), tf.float32)
  by_unit = weights[:, None] * tf.range(1.0, sizes[1] + 1)
  clean = lambda x: x
  by_hand = uses.by_hand(a, d, mask)
  norms = [np.sum(g**2, tuple(range(1, g.ndim))) for g in by_hand]
  found = terms.squared_norms(pair)
  np.testing.assert_allclose(found, np.stack(norms, 1), rtol=1e-5)
  for term, squared in zip(pair, norms):
    np.testing.assert_allclose(term.squared_norms(), squared, rtol=1e-5)
  # One weight for both, one for each, and one for each unit.
  cases = [weights] * 2, [weights, 2 * weights], [by_unit] * 2
  for case in cases:
    found = terms.weighted_sums(pair, case, clean)
    for total, w, g in zip(found, case, by_hand):
      w = np.reshape(w, [batch] + [1] * (g.ndim - w.ndim) + [*w.shape[1:]])
      w = w if w.ndim == g.ndim else w[..., None]
      np.testing.assert_allclose(total, np.sum(w * g, 0), rtol=1e-4, atol=1e-5)


def _many():
  """Terms of every kind, in an order that mixes them."""
  (a, d, mask), (b, e, _) = uses.use(4, 3, 5), uses.use(4, 2, 6, seed=1)
  return [
    terms.BiasTerm(tf.identity(d)),
    terms.LinearTerm(mask, [a], [d]),
    terms.StoredTerm(tf.ones([4, 2, 2])),
    terms.BiasTerm(e),
    terms.LinearTerm(mask, [a, a], [d, d]),
    terms.BiasTerm(d),
    terms.LinearTerm(None, [b], [e]),
    terms.LinearTerm(None, [b], [e]).times(tf.eye(2, 6)),
  ]


def test_bias_of_another_use_does_not_share():
  found = _many()
  kernels = terms._kernels(found)
  assert kernels[0] is None
  assert kernels[5] is found[1]


@pytest.mark.core
def test_norms_of_many_kinds():
  found = _many()
  np.testing.assert_allclose(
    terms.squared_norms(found),
    np.stack([t.squared_norms() for t in found], 1),
    rtol=1e-5,
  )
  for few in (found[:1], found[2:3], found[1:2], found[2:5]):
    expected = np.stack([t.squared_norms() for t in few], 1)
    np.testing.assert_allclose(terms.squared_norms(few), expected, rtol=1e-5)


@pytest.mark.core
def test_no_norm_of_zero_beside_a_huge_gradient():
  """Squares of tiny inputs are rounded to zero, what they bound is not."""
  a = tf.constant([[[1e-25, 1e-25]]])
  d = tf.constant([[[1e19, 1e19]]])
  mask = np.float32([[1, 0], [1, 1]])
  for m in (None, mask):
    both = [terms.LinearTerm(m, [a], [d]), terms.BiasTerm(d)]
    norms = np.sqrt(terms.squared_norms(both))
    assert norms[0, 0] >= 1e-6 * (2 if m is None else np.sqrt(3))


@pytest.mark.core
def test_an_example_that_is_not_finite_leaves_the_norms_of_others():
  a, d, mask = uses.use(4, 3, 5)
  bad = tf.tensor_scatter_nd_update(a, [[1, 0, 0]], [np.inf])
  pair = lambda a: [terms.LinearTerm(mask, [a], [d]), terms.BiasTerm(d)]
  one, two = terms.squared_norms(pair(a)), terms.squared_norms(pair(bad))
  kept = [0, 2, 3]
  np.testing.assert_array_equal(one.numpy()[kept], two.numpy()[kept])
  assert not np.all(np.isfinite(two[1]))
