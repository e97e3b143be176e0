"""No example moves a clipped sum by more than the clip, whatever cancels."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients
from tfdpflows.gradients import parts

CLIP = 1.0
# What the other rows add, in units in the last place of the parts: beside them
# it is rounded away in float32.
SHARE = 0.49


def _plain(uses, width):
  kernel = tf.Variable(tf.zeros([width, width]))
  return kernel, lambda a, d: tf.reduce_sum(
    gradients.linear(a, kernel) * d, [1, 2]
  )


def _masked(uses, width):
  kernel = tf.Variable(tf.zeros([width, width]))
  mask = np.tri(width, dtype='f')

  def losses(a, d):
    # One call for each use.
    found = [
      tf.reduce_sum(gradients.linear(x, kernel, mask=mask) * y, 1)
      for x, y in zip(tf.unstack(a, axis=1), tf.unstack(d, axis=1))
    ]
    return tf.add_n(found)

  return kernel, losses


def _shared(uses, width):
  """Each use of the first coordinate is a shared value: J is (1, 0, ...)."""
  kernel = tf.Variable(tf.zeros([width, width]))

  def losses(a, d):
    values = gradients.tape.shared(
      lambda k: [k[0, 0]] * uses, [kernel], tf.shape(a)[0]
    )
    cross = gradients.linear(a[:, 0], kernel)
    return tf.reduce_sum(values * d[:, :, 0], 1) + cross[:, 1] * d[:, 0, 1]

  return kernel, losses


def largest_movement(
  kind,
  uses,
  width,
  rows,
  size,
  pairs=2,
  xla=False,
  strategy=gradients.Flat,
  every=5,
):
  """The largest movement by one row with parts +-size, over its positions.

  Of those it tries every fifth, or all: five is no divisor of the sizes of
  blocks, so that each place in a block is among them.

  The row's part +size is its use i and -size its use j, for each of some pairs
  (i, j): which of them are apart in a matrix product depends on its blocks. The
  two differ by one unit in the last place: a unit that is zero has no share of
  the clip.

  All other rows but one add so little that it vanishes beside the parts; the
  last one is as long as the clip.
  """
  kernel, losses = kind(uses, width)

  @tf.function(jit_compile=xla)
  def total(a, d):
    with gradients.PerExampleTape() as tape:
      loss = losses(a, d)
    found = tape.per_example_gradients(loss, [kernel])
    return strategy(CLIP).clip_and_sum(found)[0]

  a = np.zeros([rows, uses, width], 'f')
  a[:, :, 0] = 1
  d = np.zeros([rows, uses, width], 'f')
  d[:, :, 0] = SHARE * size * 2.0**-23
  d[-1] = 0
  d[-1, 0, 1] = CLIP
  # In a plain matrix product the row of a mask that the part needs is there.
  if kind is _masked:
    a[-1, 0, 1] = 1
    a[-1, 0, 0] = 0
  inputs = tf.constant(a)
  with_none = d.copy()
  with_none[0] = 0
  base = total(inputs, tf.constant(with_none)).numpy().astype('float64')
  worst = 0.0
  size_to_0 = np.float32([size, 0])
  apart = [(uses - 2, 0), (uses - 1, 1), (0, uses - 1), (1, 0)]
  for one, two in [pair for pair in apart[:pairs] if pair[0] != pair[1]]:
    for place in range(0, rows - 1, every):
      e = d.copy()
      e[place] = 0
      below = size if strategy is gradients.Flat else np.nextafter(*size_to_0)
      e[place, one, 0], e[place, two, 0] = size, -below
      found = total(inputs, tf.constant(e)).numpy().astype('float64')
      worst = max(worst, np.linalg.norm(found - base) / CLIP)
  return worst


CASES = [
  (_plain, 5, 8, 160),
  (_plain, 5, 64, 160),
  (_masked, 5, 8, 160),
  (_shared, 5, 8, 160),
]
IDS = ['stored', 'plain', 'masked', 'shared']


@pytest.mark.parametrize('size', [3.9, 1e5])
@pytest.mark.parametrize('case', CASES, ids=IDS)
def test_parts_that_cancel_round_nothing_away(case, size):
  assert largest_movement(*case, size) <= 1e-4


@pytest.mark.parametrize(
  ('kind', 'xla', 'size'),
  thinned(
    itertools.product([_plain, _masked], [False, True], [3.9, 1e5]),
    lambda point: point[1:] != (True, 3.9),
  ),
)
def test_nor_in_units(kind, xla, size):
  found = largest_movement(
    kind, 5, 24, 160, size, xla=xla, strategy=gradients.PerUnit
  )
  # Of which 1.5e-4 are the row's own, of one unit in the last place.
  assert found <= 3e-4


@pytest.mark.full
@pytest.mark.parametrize('strategy', [gradients.Flat, gradients.PerUnit])
@pytest.mark.parametrize('size', [0.5, 2.0, 3.9, 5.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize('rows', [160, 400, 1001])
@pytest.mark.parametrize('xla', [False, True])
@pytest.mark.parametrize('kind', [_plain, _masked, _shared])
def test_in_no_batch(kind, xla, rows, size, strategy):
  for uses, width in ((2, 16), (3, 24), (5, 16), (7, 20)):
    found = largest_movement(
      kind, uses, width, rows, size, 4, xla, strategy, every=1
    )
    if strategy is gradients.Flat:
      most = 1e-4
    elif kind is _shared:
      # Stored: the row's own part, of one unit in the last place, is added.
      most = min(CLIP, size - np.nextafter(*np.float32([size, 0]))) + 1e-4
    else:
      most = 3e-4
    assert found <= most


def test_xla():
  assert largest_movement(*CASES[1], 1e5, xla=True) <= 1e-4
  assert largest_movement(*CASES[2], 1e5, xla=True) <= 1e-4


@pytest.mark.full
def test_the_other_library_of_matrix_products():
  used = os.environ.get('TF_ENABLE_ONEDNN_OPTS', '1') != '0'
  path = os.pathsep.join([os.getcwd(), os.environ.get('PYTHONPATH', '')])
  environment = {
    'TF_ENABLE_ONEDNN_OPTS': str(int(not used)),
    'PYTHONPATH': path,
  }
  environment = {**os.environ, **environment}
  subprocess.run([sys.executable, __file__], env=environment, check=True)


def _short(a, d, weights=None):
  kernel = tf.Variable(tf.zeros([a.shape[2], d.shape[2]]))
  d = tf.constant(d)
  with gradients.PerExampleTape() as tape:
    loss = tf.reduce_sum(gradients.linear(a, kernel) * d, [1, 2])
  found = tape.per_example_gradients(loss, [kernel])
  squared = found.variable_squared_norms()
  weights = tf.ones([a.shape[0]]) if weights is None else weights
  lengths = [term.lengths() for term in found._terms]
  bound = np.max(weights * np.sqrt(squared[:, 0]), initial=0.0)
  return bool(np.all(parts.short(lengths, [weights], bound)))


def test_ordinary_sequences_take_float32():
  rng = np.random.default_rng(0)
  for uses in (2, 8, 16):
    a, d = rng.normal(size=[2, 32, uses, 64]).astype('f')
    assert _short(a, d)
    d[3, 0] = -d[3, 1]
    a[3, 0] = a[3, 1]
    d[3, :2] *= 1e4
    assert not _short(a, d)
    # Padding is no reason for float64.
    assert _short(a, d, tf.constant(np.arange(32) != 3, tf.float32))
  assert _short(np.zeros([4, 2, 64], 'f'), np.zeros([4, 2, 64], 'f'))
  assert _short(np.zeros([0, 2, 64], 'f'), np.zeros([0, 2, 64], 'f'))
  a[0, 0, 0] = np.nan
  assert not _short(a, d)


if __name__ == '__main__':
  for case in CASES:
    for size in (3.9, 1e5):
      moved = largest_movement(*case, size, every=1)
      if not moved <= 1e-4:
        sys.exit(f'{case}, {size}: {moved}')
