"""Conditional histograms: their probabilities, samples, and matched columns."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from tests.grids import thinned
from tfdpflows import bijectors, flows, gradients, networks
from tfdpflows.bijectors import autoregressive_histogram
from tfdpflows.networks import made as made_lib

KNOTS = [[0.3], [], [-1.0, 0.5, 2.0]]
SIZES = [len(knots) + 1 for knots in KNOTS]


def _flow(scale=1.0, dtype='float64'):
  """A flow whose columns depend on each other."""
  flow = flows.histogram_flow(KNOTS, [7], dtype=dtype, seed=1)
  rng = np.random.default_rng(2)
  for variable in flow.trainable_variables:
    variable.assign_add(
      tf.constant(rng.normal(0, scale, variable.shape), variable.dtype)
    )
  return flow


def _masses(knots):
  return np.diff(special.ndtr([-np.inf, *knots, np.inf]))


def _points(bins, place=0.5):
  """Points of the bins, at a place between 0 and 1 in each by its mass."""
  columns = []
  for k, knots in zip(np.transpose(bins), KNOTS):
    mass = _masses(knots)
    below = np.cumsum(mass) - mass
    columns.append(special.ndtri(below[k] + place * mass[k]))
  return np.stack(columns, 1)


def _cells():
  return np.array(list(itertools.product(*map(range, SIZES))))


def _cell_probabilities(flow):
  """The probability of every combination of bins."""
  points = _points(_cells())
  normal = stats.norm.logpdf(points).sum(1)
  masses = [_masses(k)[b] for k, b in zip(KNOTS, _cells().T)]
  return np.exp(flow.log_prob(points) - normal) * np.prod(masses, 0)


def _logits(network, cell):
  """As the formula has them: the direct connections hear rare bins better."""
  plain, scaled = [], []
  for knots, bin_ in zip(KNOTS, cell):
    masses = _masses(knots)
    plain.append(np.eye(len(masses))[bin_])
    loudness = masses**-0.25 / np.sqrt(np.sum(np.sqrt(masses)))
    scaled.append(loudness * plain[-1])
  first, last = (
    (k * m).numpy() for k, m in zip(network._kernels, network._masks)
  )
  biases = [network._bias(layer, 0).numpy() for layer in (0, 1)]
  hidden = np.maximum(np.concatenate(plain) @ first + biases[0], 0)
  direct = (network._direct * network._direct_mask).numpy()
  return hidden @ last + biases[1] + np.concatenate(scaled) @ direct


def test_bins_are_between_the_knots():
  bijector = _flow().bijector
  assert bijector.num_bins == SIZES
  np.testing.assert_array_equal(bijector.bins(_points(_cells())), _cells())
  turned = bijectors.AutoregressiveHistogram(KNOTS, order=[2, 0, 1])
  assert turned.num_bins == SIZES
  points = _points(_cells()).astype(np.float32)
  np.testing.assert_array_equal(turned.bins(points), _cells())


def test_probabilities_are_those_of_the_formula():
  flow = _flow()
  network = flow.bijector._network
  for cell, found in zip(_cells(), _cell_probabilities(flow)):
    outputs = 20 * np.tanh(_logits(network, cell) / 20)
    expected = 1.0
    for j, part in enumerate(np.split(outputs, np.cumsum(SIZES)[:-1])):
      p = special.softmax(np.log(_masses(KNOTS[j])) + part)
      expected *= p[cell[j]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
  assert _cell_probabilities(flow).sum() == pytest.approx(1, abs=1e-9)


def test_within_a_bin_it_is_the_standard_normal():
  flow = _flow()
  for cell in _cells()[:3]:
    ratios = [
      float(flow.log_prob(x)[0]) - stats.norm.logpdf(x).sum()
      for x in (_points(cell[None], place) for place in (0.01, 0.5, 0.99))
    ]
    np.testing.assert_allclose(ratios, ratios[0], atol=1e-6)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_samples_follow_the_probabilities(dtype):
  flow = _flow(dtype=dtype)
  x = flow.sample(50_000, seed=3).numpy()
  bins = [np.searchsorted(knots, x[:, j]) for j, knots in enumerate(KNOTS)]
  seen = np.bincount(
    np.ravel_multi_index(bins, SIZES), minlength=int(np.prod(SIZES))
  )
  expected = _cell_probabilities(_flow()) * len(x)
  assert stats.chisquare(seen, expected * len(x) / expected.sum()).pvalue > 1e-4


def test_matched_columns_are_standard_normal_up_to_their_bins():
  flow = _flow()
  before = _cell_probabilities(flow).reshape(SIZES)
  flow.bijector.match_marginals(seed=0)
  after = _cell_probabilities(flow).reshape(SIZES)
  for j, knots in enumerate(KNOTS):
    others = tuple(i for i in range(len(KNOTS)) if i != j)
    np.testing.assert_allclose(after.sum(others), _masses(knots), atol=0.01)
  assert np.abs(before.sum((1, 2)) - _masses(KNOTS[0])).max() > 0.05
  # What columns say of each other stays: odds ratios hardly move.
  odds = lambda p: np.log(p[0, 0] / p[1, 0])
  np.testing.assert_allclose(
    np.diff(odds(after)), np.diff(odds(before)), atol=1e-6
  )


def test_matching_is_repeatable_and_survives_a_saved_model(tmp_path):
  found = []
  for _ in range(2):
    flow = _flow(dtype='float32')
    flow.bijector.match_marginals(num_rows=1000, seed=5)
    found.append(flow.bijector._offset.numpy())
  np.testing.assert_array_equal(*found)
  module = tf.Module()
  module.flow = flow
  module.log_prob = tf.function(
    lambda x: flow.log_prob(tf.identity(x)),
    input_signature=[tf.TensorSpec([None, 3])],
  )
  tf.saved_model.save(module, str(tmp_path))
  x = _points(_cells()).astype('float32')
  loaded = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(loaded.log_prob(x), flow.log_prob(x), rtol=1e-5)


def test_no_bin_is_impossible():
  """However far training went: a log-density is never minus infinity."""
  flow = _flow(1e4, 'float32')
  x = _points(_cells()).astype('float32')
  assert np.isfinite(flow.log_prob(x)).all()
  assert np.isfinite(flow.sample(1000, seed=0)).all()


@pytest.mark.parametrize(
  'knots, message',
  [
    ([[0.0], [1.0, 1.0]], 'Column 1: knots must ascend strictly'),
    ([[0.0, np.inf]], 'Column 0: knots must lie between -10 and 10'),
    ([[0.0, np.nan]], 'Column 0'),
  ],
)
def test_bad_knots(knots, message):
  with pytest.raises(ValueError, match=message):
    bijectors.AutoregressiveHistogram(knots)


@pytest.mark.parametrize('name', ['params', 'inputs'])
def test_sizes_are_one_for_each_column(name):
  sizes = {'params': [2, 2], 'inputs': [2, 2], name: [2, 2, 2]}
  with pytest.raises(ValueError, match=f'{name} has 3 numbers; .* 2 columns'):
    networks.MADE(event_size=2, **sizes)


def test_direct_has_a_number_for_each_input():
  with pytest.raises(ValueError, match='direct has 3 numbers; there are 4 inp'):
    networks.MADE(2, 2, [3], inputs=[2, 2], direct=[1.0, 2.0, 3.0])


@pytest.mark.parametrize('direct', [False, np.arange(1.0, 10)])
@pytest.mark.parametrize('hidden', [(), (1,), (7,), (13, 5)])
def test_columns_of_indicators_give_what_a_whole_pass_gives(hidden, direct):
  made = networks.MADE(
    [2, 3, 4],
    3,
    hidden,
    dtype='float64',
    seed=0,
    inputs=[2, 3, 4],
    direct=direct,
  )
  rng = np.random.default_rng(0)
  for variable in made.trainable_variables:
    variable.assign_add(rng.normal(size=variable.shape))
  bins = [rng.integers(0, k, 6) for k in (2, 3, 4)]
  columns = [tf.constant(np.eye(k)[b]) for k, b in zip((2, 3, 4), bins)]
  expected = tf.split(made(tf.concat(columns, 1)), [2, 3, 4], 1)
  for j, params_of in enumerate(made.columns()):
    found = tf.broadcast_to(params_of(columns[:j]), expected[j].shape)
    np.testing.assert_allclose(found, expected[j], atol=1e-12)


def test_log_ratios_add_up_to_the_density():
  flow = _flow()
  x = np.random.default_rng(0).normal(size=[20, 3])
  ratios = flow.bijector.log_ratios(tf.constant(x))
  normal = stats.norm.logpdf(x).sum(1)
  np.testing.assert_allclose(
    tf.reduce_sum(ratios, 1), flow.log_prob(x) - normal, atol=1e-9
  )


def test_order_says_what_depends_on_what():
  """In another order it is the same map of columns in another order."""
  order = [2, 0, 1]
  flow = flows.histogram_flow(KNOTS, [7], order=order, dtype='float64', seed=1)
  same = flows.histogram_flow(
    [KNOTS[j] for j in order], [7], dtype='float64', seed=1
  )
  rng = np.random.default_rng(2)
  for one, two in zip(flow.trainable_variables, same.trainable_variables):
    one.assign_add(rng.normal(size=one.shape))
    two.assign(one)
  x = rng.normal(size=[9, 3])
  np.testing.assert_allclose(flow.log_prob(x), same.log_prob(x[:, order]))
  y = flow.bijector.forward(x).numpy()
  np.testing.assert_allclose(
    y[:, order], same.bijector.forward(x[:, order]), atol=1e-12
  )
  np.testing.assert_allclose(flow.bijector.inverse(tf.constant(y)), x)
  np.testing.assert_allclose(
    flow.bijector.log_ratios(tf.constant(x)).numpy()[:, order],
    same.bijector.log_ratios(tf.constant(x[:, order])),
  )
  with pytest.raises(ValueError, match='order is .*permutation.* 3 columns'):
    flows.histogram_flow(KNOTS, order=[0, 1, 1])


_CONNECTED = [[3], [3, 5], [4, 6], [0, 1, 5], [2, 6], [1, 3], [2, 4]]


def _connected(order, dtype='float64'):
  """A flow with some direct connections, random weights, and one with all."""
  rng = np.random.default_rng(0)
  knots = [np.sort(rng.normal(size=k)) for k in (1, 3, 0, 2, 4, 1, 2)]
  flow, dense = (
    flows.histogram_flow(
      knots, [9], order=order, dtype=dtype, seed=1, connections=connections
    )
    for connections in ([[]] * 7, None)
  )
  flow.bijector.connect(_CONNECTED)
  for variable in flow.trainable_variables:
    variable.assign_add(
      tf.constant(rng.normal(0, 0.5, variable.shape), variable.dtype)
    )
  network, other = flow.bijector._network, dense.bijector._network
  for name in ('_kernels', '_biases'):
    for one, two in zip(getattr(network, name), getattr(other, name)):
      two.assign(one)
  kernel = np.zeros(other._direct.shape)
  for joined in network._joined:
    place = np.ix_(joined._inputs, joined.outputs)
    kernel[place] += (joined._kernel * joined._mask).numpy()
  other._direct.assign(kernel)
  return flow, dense


@pytest.mark.parametrize(
  ('order', 'size'),
  thinned(
    itertools.product([None, [6, 2, 0, 3, 1, 5, 4]], [1, 40, 1 << 15]),
    # Each size, with either order.
    lambda point: (point[0] is None) == (point[1] == 40),
  ),
)
def test_some_connections_are_all_of_which_the_others_are_zero(
  order, size, monkeypatch
):
  monkeypatch.setattr(autoregressive_histogram, '_BLOCK', 3)
  monkeypatch.setattr(made_lib, '_JOINED', size)
  flow, dense = _connected(order)
  x = np.random.default_rng(3).normal(size=[40, 7])
  np.testing.assert_allclose(flow.log_prob(x), dense.log_prob(x), atol=1e-9)
  np.testing.assert_allclose(
    flow.bijector.log_ratios(tf.constant(x)),
    dense.bijector.log_ratios(tf.constant(x)),
    atol=1e-9,
  )
  y = flow.bijector.forward(x)
  np.testing.assert_allclose(y, dense.bijector.forward(x), atol=1e-9)
  np.testing.assert_allclose(flow.bijector.inverse(tf.identity(y)), x)
  for each in (flow, dense):
    each.bijector.match_marginals(num_rows=20_000, seed=5)
  np.testing.assert_allclose(
    flow.bijector._offset, dense.bijector._offset, atol=5e-3
  )


def test_norms_of_some_connections_are_those_of_the_jacobian(monkeypatch):
  monkeypatch.setattr(autoregressive_histogram, '_BLOCK', 3)
  monkeypatch.setattr(made_lib, '_JOINED', 40)
  flow, _ = _connected(None)
  x = tf.constant(np.random.default_rng(3).normal(size=[6, 7]))
  variables = flow.trainable_variables
  with tf.GradientTape(persistent=True) as tape:
    loss = tf.reduce_sum(flow.bijector.log_ratios(x), -1)
  jacobian = tape.jacobian(loss, variables, experimental_use_pfor=False)
  expected = sum(
    tf.reduce_sum(tf.reshape(j, [6, -1]) ** 2, 1) for j in jacobian
  )

  @tf.function(autograph=False)
  def norms(x):
    with gradients.PerExampleTape() as tape:
      loss = tf.reduce_sum(flow.bijector.log_ratios(x), -1)
    return tape.per_example_gradients(loss, variables).squared_norms()

  found = norms.get_concrete_function(tf.TensorSpec([None, 7], tf.float64))(x)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_hidden_units_of_a_wide_network_hear_of_all_columns():
  made = networks.MADE(1, 50, [7], direct=True, connections=[[]] * 50)
  degrees = made._degrees(7)
  assert len(degrees) == 7
  assert degrees[-1] == 49
  assert np.ptp(np.diff(degrees)) <= 1


@pytest.mark.parametrize(
  ('connections', 'message'),
  [
    ([[]], 'of 1 columns'),
    ([[1], [2]], r'connected with \[.*2\]'),
  ],
)
def test_wrong_connections_are_refused(connections, message):
  with pytest.raises(ValueError, match=message):
    bijectors.AutoregressiveHistogram([[0.0], [0.0]], connections=connections)
  with pytest.raises(ValueError, match=message):
    networks.MADE(1, 2, [3], direct=True, connections=connections)


def test_a_network_of_all_connections_is_not_connected():
  with pytest.raises(ValueError, match='from the start'):
    networks.MADE(1, 2, [3], direct=True).connect([[], []])
  with pytest.raises(ValueError, match='conditional'):
    networks.MADE(
      1, 2, [3], direct=True, conditional_event_size=1, connections=[[], []]
    )
