"""Ids that are no row of the table reach nobody's gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients
from tfdpflows.gradients.terms import EmbeddingTerm

VOCABULARY, DIM = 5, 3
IDS = np.array([[0, 1], [-1, -3], [5, 2**31 - 1], [4, -1], [2, 2]])
KNOWN = (IDS >= 0) & (IDS < VOCABULARY)


def _expected(rows):
  expected = np.zeros([len(IDS), VOCABULARY, DIM])
  for i, j in zip(*np.nonzero(KNOWN)):
    expected[i, IDS[i, j]] += rows[i, j]
  return expected


@pytest.mark.core
@pytest.mark.parametrize('dtype', ['int32', 'int64'])
@pytest.mark.parametrize('columns', [1, 2])
def test_norm_and_sum_and_storage_leave_them_out(dtype, columns):
  rng = np.random.default_rng(0)
  rows = rng.normal(size=[*IDS.shape, DIM]).astype('float32')
  rows[1] = np.nan  # Where both ids are unknown.
  known = KNOWN.copy()
  known[:, columns:] = False
  table = tf.Variable(tf.zeros([VOCABULARY, DIM]))
  ids = tf.constant(IDS[:, :columns], dtype)
  term = EmbeddingTerm(table, [ids], [tf.constant(rows[:, :columns])])
  expected = _expected(np.where(known[..., None], rows, 0))
  np.testing.assert_allclose(
    term.squared_norms(), np.sum(expected**2, (1, 2)), rtol=1e-6, atol=1e-30
  )
  np.testing.assert_allclose(term.materialise(), expected, rtol=1e-6)
  weights = np.linspace(0, 1, len(IDS)).astype('float32')
  np.testing.assert_allclose(
    term.weighted_sum(tf.constant(weights), lambda x: x),
    np.tensordot(weights, expected, 1),
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  'strategy',
  thinned(
    [
      gradients.Flat(1.0),
      gradients.PerUnit(1.0),
      gradients.StochasticSparsification(1.0, 0.5, threshold=0.1),
    ],
    1,
  ),
  ids=repr,
)
def test_no_neighbour_gets_their_gradient(strategy):
  """XLA looks up such an id without an error."""
  table = tf.Variable(np.random.default_rng(0).normal(size=[VOCABULARY, DIM]))

  @tf.function(jit_compile=True)
  def total(ids):
    with gradients.PerExampleTape() as tape:
      found = gradients.embedding(ids, table)
      loss = 1e3 * tf.reduce_sum(tf.sin(found), [1, 2])
    found = tape.per_example_gradients(loss, [table])
    return strategy.clip_and_sum(found)[0]

  whole = total(tf.constant(IDS)).numpy()
  for i in (1, 2):
    others = total(tf.constant(np.delete(IDS, i, 0))).numpy()
    # They name no row, and so give nothing.
    np.testing.assert_allclose(whole, others, atol=1e-6)


@pytest.mark.parametrize('mode', ['eager', 'function', 'xla'])
def test_looking_them_up_finds_zeros_and_is_no_error(mode):
  table = tf.Variable(1 + np.arange(VOCABULARY * DIM, dtype='float32'))
  table = tf.Variable(tf.reshape(table, [VOCABULARY, DIM]))

  def find(recorded):
    if not recorded:
      return gradients.embedding(IDS, table)
    with gradients.PerExampleTape():
      return gradients.embedding(IDS, table)

  expected = np.where(KNOWN[..., None], table.numpy()[IDS * KNOWN], 0)
  for recorded in (False, True):
    run = lambda recorded=recorded: find(recorded)
    if mode != 'eager':
      run = tf.function(run, jit_compile=mode == 'xla')
    np.testing.assert_array_equal(run(), expected)
