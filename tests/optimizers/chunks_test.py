"""Chunks of a logical batch, and several draws of one example."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import gradients, optimizers
from tfdpflows.optimizers.dp_keras import sum_over_chunks

STRATEGIES = {
  'flat': gradients.Flat(1.0),
  'per_layer': gradients.PerLayer(1.0),
  'per_unit': gradients.PerUnit(1.0),
  'automatic': gradients.Automatic(1.0),
  'sparse': gradients.StochasticSparsification(1.0, 0.5),
  'adaptive': gradients.AdaptiveQuantile(1.0),
}


def _optimizer(clipping=None, **kwargs):
  return optimizers.DPKerasSGD(
    clipping=clipping or gradients.Flat(1.0),
    **{'noise_multiplier': 0.0, 'expected_batch_size': 8, 'seed': 0, **kwargs},
  )


def test_one_of_many_rows_moves_sums_by_the_sensitivity(monkeypatch):
  """Rounded to float32, a sum of half a million rows moves by more."""
  rng = np.random.default_rng(0)
  rows = (3 + rng.normal(size=[500_000, 2])).astype('float32')
  kernel = tf.Variable(tf.zeros([2, 1]))
  optimizer = _optimizer(expected_batch_size=len(rows))
  monkeypatch.setattr(
    optimizer, '_release', lambda sums, *unused: (sums['gradients'], None)
  )
  losses = lambda x: tf.nn.softplus(-gradients.linear(x, kernel)[:, 0])

  @tf.function(reduce_retracing=True)
  def total(rows):
    (found,), _ = optimizer.private_gradients_of(losses, rows, [kernel])
    return found

  whole = total(tf.constant(rows)).numpy()
  for number in (0, len(rows) // 2):
    other = total(tf.constant(np.delete(rows, number, 0))).numpy()
    np.testing.assert_allclose(np.linalg.norm(whole - other), 1, atol=0.01)


class _Net:
  def __init__(self, masked=True):
    rng = np.random.default_rng(0)
    variable = lambda *shape: tf.Variable(
      rng.normal(size=shape).astype('float32')
    )
    self.variables = [variable(3, 4), variable(4), variable(4), variable(4, 2)]
    self.mask = tf.constant(np.tri(3, 4, dtype='float32')) if masked else None
    self.x = rng.normal(size=[11, 3]).astype('float32')
    self.y = rng.normal(size=[11]).astype('float32')

  def losses(self, rows):
    x, y = rows
    kernel, bias, scale, last = self.variables
    h = tf.tanh(gradients.linear(x, kernel, bias, self.mask))
    h *= gradients.per_example(scale, tf.shape(x)[0])
    return tf.reduce_sum(gradients.linear(h, last), 1) * y


@pytest.mark.core
@pytest.mark.parametrize(
  ('name', 'mode'),
  thinned(
    [(name, m) for name in STRATEGIES for m in ('eager', 'function', 'xla')],
    lambda point: point[1] == 'eager' or point == ('adaptive', 'function'),
  ),
)
def test_chunks_give_what_the_whole_gives(name, mode):
  net = _Net()
  weights = tf.constant([1.0] * 9 + [0.0] * 2)
  x = net.x.copy()
  x[10] = np.nan  # Padding may hold anything.
  rows = (tf.constant(x), tf.constant(net.y))
  results = []
  for size in (None, 1, 4, 11, 50) if mode == 'eager' else (None, 4):
    optimizer = _optimizer(STRATEGIES[name], chunk_size=size, loss_bound=3.0)

    def step(optimizer=optimizer):
      return optimizer.private_gradients_of(
        net.losses, rows, net.variables, weights
      )

    if mode != 'eager':
      step = tf.function(step, jit_compile=mode == 'xla')
    results.append(step())
  for means, loss in results[1:]:
    np.testing.assert_allclose(loss, results[0][1], rtol=1e-5)
    for a, b in zip(means, results[0][0]):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.core
def test_one_noise_for_all_chunks():
  kernel = tf.Variable(tf.zeros([100, 100]))
  losses = lambda x: tf.reduce_sum(gradients.linear(x, kernel), -1)
  optimizer = _optimizer(noise_multiplier=2.0, chunk_size=2)
  step = tf.function(
    lambda x: optimizer.private_gradients_of(losses, x, [kernel])[0][0]
  )
  for rows in (0, 1, 64):
    noise = step(tf.zeros([rows, 100])).numpy() * 8 / 2
    p = scipy.stats.chi2.cdf(np.sum(noise**2), noise.size)
    assert 1e-4 < p < 1 - 1e-4
  whole = _optimizer(noise_multiplier=2.0)
  whole.private_gradients_of(losses, tf.zeros([64, 100]), [kernel])
  chunked = _optimizer(noise_multiplier=2.0, chunk_size=2)
  chunked.private_gradients_of(losses, tf.zeros([64, 100]), [kernel])
  np.testing.assert_array_equal(whole.noise.state, chunked.noise.state)


def test_memory_is_that_of_a_chunk():
  """No tensor of the whole batch's activations."""
  kernel = tf.Variable(tf.zeros([2, 1000]))
  losses = lambda x: tf.reduce_sum(gradients.linear(x, kernel), -1)
  optimizer = _optimizer(chunk_size=8)
  step = tf.function(
    lambda x: optimizer.private_gradients_of(losses, x, [kernel])[0]
  )
  graph = step.get_concrete_function(tf.TensorSpec([512, 2])).graph
  inner = [
    getattr(f, 'graph', f)
    for f in graph._functions.values()  # Bodies of loops and branches.
  ]
  sizes = [
    t.shape.num_elements() or 0
    for g in [graph, *inner]
    for op in getattr(g, 'get_operations', list)()
    for t in op.outputs
  ]
  assert max(sizes) <= 8 * 1000


@pytest.mark.parametrize(
  ('masked', 'chunk_size'),
  thinned([(False, None), (True, 4), (True, None), (False, 4)], 2),
)
def test_draws_are_averaged_before_the_clip(masked, chunk_size):
  net = _Net(masked)
  draws = 3
  noise = tf.constant([0.0, 0.5, -1.0])

  def losses(rows):
    x, y = rows
    repeats = tf.shape(x)[0] // draws
    return net.losses((x + tf.tile(noise, [repeats])[:, None], y))

  expected = [0.0] * len(net.variables)
  for x, y in zip(net.x, net.y):
    with tf.GradientTape() as tape:
      rows = (x + noise[:, None], tf.fill([draws], y))
      loss = tf.reduce_mean(net.losses(rows))
    row = tape.gradient(loss, net.variables)
    scale = 1 / max(1.0, float(tf.linalg.global_norm(row)))
    expected = [e + scale * g for e, g in zip(expected, row)]
  optimizer = _optimizer(augmentation_multiplicity=draws, chunk_size=chunk_size)
  step = tf.function(
    lambda: optimizer.private_gradients_of(
      losses, (net.x, net.y), net.variables
    )[0]
  )
  for mean, e in zip(step(), expected):
    np.testing.assert_allclose(mean * 8, e, rtol=1e-4, atol=1e-5)


def test_draws_of_whatever_a_tape_notes():
  """Positions, lookups and plain variables, against the mean of draws."""
  rng = np.random.default_rng(0)
  variable = lambda *shape: tf.Variable(
    rng.normal(size=shape).astype('float32')
  )
  table, kernel, plain = variable(5, 3), variable(3, 2), variable(2)
  variables = [table, kernel, plain]
  ids = tf.constant(rng.integers(0, 5, [4, 6]))

  def losses(ids):
    y = gradients.linear(gradients.embedding(ids, table), kernel) * plain
    return tf.reduce_sum(tf.sin(y), [1, 2])

  once = _optimizer().private_gradients_of(losses, ids, variables)[0]
  twice = _optimizer(augmentation_multiplicity=2).private_gradients_of(
    losses, ids, variables
  )
  for a, b in zip(once, twice[0]):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


class _Density(tf.Module):
  def __init__(self):
    super().__init__()
    self.kernel = tf.Variable([[0.5, -1.0], [1.0, 0.2]])

  def log_prob(self, x):
    return tf.reduce_sum(tf.sin(gradients.linear(x, self.kernel)), 1)


def test_density_model_takes_draws_and_chunks():
  """More draws of the dequantization, another update; chunks, the same."""
  x = np.random.default_rng(0).integers(0, 3, [48, 2]).astype('float32')
  found = {}
  for draws, size in ((1, None), (1, 16), (4, 16)):
    density, rows = _Density(), []

    def dequantise(x, rows=rows):
      rows.append(x.shape[0])
      return x + tf.range(tf.cast(tf.shape(x)[0], x.dtype))[:, None] % 4 / 4

    # The draws are by the place in the batch, so that they can be repeated.
    model = tfdpflows.DensityModel(
      density, preprocessing=dequantise, examples_independent=True
    )
    optimizer = _optimizer(
      augmentation_multiplicity=draws,
      chunk_size=size,
      noise_multiplier=1.0,
      learning_rate=1.0,
    )
    model.compile(optimizer=optimizer)
    model.fit(x, batch_size=48, shuffle=False, verbose=0)
    found[draws, size] = density.kernel.numpy()
    assert draws * size in rows if size else True
  np.testing.assert_allclose(found[1, None], found[1, 16], atol=1e-4)
  assert np.max(np.abs(found[1, 16] - found[4, 16])) > 1e-3


@pytest.mark.core
@pytest.mark.parametrize('known', [False, True])
def test_chunks_are_alike_and_few(known):
  sizes = []

  def function(part):
    sizes.append(part.shape[0])
    return tf.reduce_sum(part), tf.shape(part)[0]

  for batch, length, count in ((1100, 550, 2), (1024, 1024, 1), (0, 0, 0)):
    run = tf.function(
      lambda x: sum_over_chunks(function, x, 1024, (0.0, 0)),
      input_signature=[tf.TensorSpec([batch if known else None])],
    )
    total, rows = run(tf.ones([batch]))
    assert (float(total), int(rows)) == (batch, length * count)
    assert sizes[-1] == (length if known else None)


def test_large_batches_come_in_chunks_by_themselves():
  kernel = tf.Variable(tf.zeros([3, 1]))
  seen = []

  def losses(x):
    seen.append(x.shape[0])
    return gradients.linear(x, kernel)[:, 0]

  for expected, draws, rows in (
    (2048, 1, 5000),
    (2049, 1, 1667),
    (800, 4, 2000),
  ):
    optimizer = _optimizer(
      expected_batch_size=expected, augmentation_multiplicity=draws
    )
    x = tf.ones([5000 if draws == 1 else 1000, 3])
    means, _ = tf.function(optimizer.private_gradients_of)(losses, x, [kernel])
    assert seen[-1] == rows
    np.testing.assert_allclose(
      means[0], len(x) / np.sqrt(3) / expected * np.ones([3, 1]), rtol=1e-3
    )
