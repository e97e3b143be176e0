"""One row more moves no clipped sum by more than its sensitivity.

Losses are linear in the parameters: what a use of a parameter meets and the
gradient at its output are then numbers that a row holds, and an adversary may
choose them.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import gradients, optimizers

STRATEGIES = {
  'Flat': lambda c, rng: gradients.Flat(c),
  'Automatic': lambda c, rng: gradients.Automatic(c, gamma=c / 100),
  'PerLayer': lambda c, rng: gradients.PerLayer(c),
  'PerUnit': lambda c, rng: gradients.PerUnit(c),
  'StochasticSparsification': lambda c, rng: gradients.StochasticSparsification(
    c, rng.choice([0.2, 0.9]), threshold=rng.choice([np.inf, c / 10])
  ),
  'AdaptiveQuantile': lambda c, rng: gradients.AdaptiveQuantile(c),
}


class Parameter:
  """A parameter, how often and by which primitive it is used."""

  def __init__(self, rng, number, dtype):
    self.kind = rng.choice(
      ['linear', 'masked', 'sequence', 'copies', 'table', 'shared']
    )
    self.uses = int(rng.choice([1, 1, 2, 3, 5, 9]))
    self.sizes = [int(n) for n in rng.choice([1, 3, 8, 20], 2)]
    name = f'layer_{number}'
    self.variable = tf.Variable(
      rng.normal(size=self.sizes), dtype=dtype, name=f'{name}/kernel'
    )
    self.bias = None
    if self.kind in ('linear', 'masked', 'sequence') and rng.random() < 0.5:
      self.bias = tf.Variable(np.zeros(self.sizes[1], dtype), name=f'{name}/b')
    self.mask = None
    if self.kind == 'masked':
      self.mask = (rng.random(self.sizes) < 0.6).astype(dtype)

  @property
  def variables(self):
    return [self.variable] + ([] if self.bias is None else [self.bias])

  def rows(self, rng, count):
    """Returns inputs, gradients at the outputs and ids, of `count` rows."""
    inputs, outputs = self.sizes
    a = rng.normal(size=[count, self.uses, inputs])
    d = rng.normal(size=[count, self.uses, outputs])
    ids = rng.integers(0, inputs, [count, self.uses])
    return [a, d, ids]

  def losses(self, rows):
    a, d, ids = rows
    if self.kind == 'sequence':
      y = gradients.linear(a, self.variable, self.bias)
      return tf.reduce_sum(y * d, [1, 2])
    found = 0.0
    for t in range(self.uses):
      if self.kind in ('linear', 'masked'):
        y = gradients.linear(a[:, t], self.variable, self.bias, self.mask)
      elif self.kind == 'copies':
        copies = gradients.per_example(self.variable, tf.shape(a)[0])
        y = tf.linalg.matvec(copies, a[:, t], transpose_a=True)
      elif self.kind == 'table':
        y = gradients.embedding(ids[:, t], self.variable)
      else:
        values = gradients.tape.shared(
          lambda k: [tf.reduce_sum(k), 3 * k[0, 0]],
          [self.variable],
          tf.shape(a)[0],
        )
        y = values[:, :1] * d[:, t] + values[:, 1:] * a[:, t, :1]
        y += gradients.linear(a[:, t], self.variable)
      found += tf.reduce_sum(y * d[:, t], 1)
    return found


def _worst_row(rng, row, size):
  """Changes a row in place: parts of this size, which may cancel or be nan."""
  a, d, ids = row
  d *= size / max(1e-30, np.abs(d).max())
  what = rng.integers(6)
  if what == 0 and a.shape[1] > 1:  # Two uses cancel; the others do not.
    one, two = rng.permutation(a.shape[1])[:2]
    a[:, two], d[:, two] = a[:, one], -d[:, one]
    ids[:, two] = ids[:, one]
    d[:, [t for t in range(a.shape[1]) if t not in (one, two)]] /= size
  elif what == 1 and a.shape[1] > 1:  # All cancel but for a little.
    a[:] = a[:, :1] * (1 + 1e-7 * rng.normal(size=a.shape))
    d[:] = d[:, :1] * rng.permutation(np.linspace(-1, 1, a.shape[1]))[:, None]
    ids[:] = ids[:, :1]
  elif what == 2:
    place = a if rng.random() < 0.5 else d
    value = rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-42])
    place[0, rng.integers(place.shape[1]), 0] = value
  elif what == 3:
    ids[:] = rng.choice([-1, 10**6])
  elif what == 4:
    d[:, 1:] = 0


def movement(seed, dtype='float32'):
  """Returns the strategy, and by how much one row moves its sum, over C."""
  rng = np.random.default_rng(seed)
  name = list(STRATEGIES)[seed % len(STRATEGIES)]
  clip = 10 ** rng.uniform(-3, 3)
  parameters = [Parameter(rng, i, dtype) for i in range(rng.integers(1, 4))]
  variables = [v for p in parameters for v in p.variables]
  count = int(rng.choice([1, 2, 10, 60]))
  rows = [p.rows(rng, count) for p in parameters]
  # The last row is the one; the others are honest, or vanish beside it.
  size = clip * 10 ** rng.uniform(-2, 8)
  for row in rows:
    row[1][:-1] *= rng.choice([clip, clip / 100, size * 2.0**-24])
    _worst_row(rng, [x[-1:] for x in row], size)
  arguments = {
    'chunk_size': rng.choice([None, None, 7]),
    'augmentation_multiplicity': int(rng.choice([1, 1, 1, 2])),
  }
  state = rng.bit_generator.state

  def losses(rows):
    return tf.add_n([p.losses(r) for p, r in zip(parameters, rows)])

  def total(order):
    rng.bit_generator.state = state
    optimizer = optimizers.DPKerasSGD(
      clipping=STRATEGIES[name](clip, rng),
      noise_multiplier=0.0,
      expected_batch_size=1,
      seed=0,
      **arguments,
    )
    taken = [
      [tf.constant(a[order], dtype), tf.constant(d[order], dtype), ids[order]]
      for a, d, ids in rows
    ]
    means, _ = optimizer.private_gradients_of(losses, taken, variables)
    return np.concatenate([np.ravel(m).astype('float64') for m in means])

  others = np.arange(count - 1)
  order = np.insert(others, rng.integers(count), count - 1)
  return name, np.linalg.norm(total(order) - total(others)) / clip


def _largest(seeds, dtype='float32'):
  largest = dict.fromkeys(STRATEGIES, 0.0)
  for seed in seeds:
    name, moved = movement(seed, dtype)
    assert moved <= 1 + 1e-4, (seed, name, moved)
    largest[name] = max(largest[name], moved)
  return largest


def test_some_pairs():
  largest = _largest(range(24))
  assert max(largest.values()) > 0.9


@pytest.mark.full
@pytest.mark.parametrize('part', range(4))
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_many_pairs(part, dtype):
  seeds = range(1000 + 300 * part, 1300 + 300 * part)
  for name, moved in _largest(seeds, dtype).items():
    print(f'{name}, {dtype}: one row moves the sum by {moved:.7f} C at most')
