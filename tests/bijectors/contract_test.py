"""One contract for every bijector and every flow recipe."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import bijectors, flows, gradients, networks
from tfdpflows._keras import tfp

D = 3
tfb, tfd = tfp.bijectors, tfp.distributions


def _moved(bijector, scale, seed=0):
  """Moves a bijector that starts as the identity to somewhere else."""
  rng = np.random.default_rng(seed)
  for variable in bijector.trainable_variables:
    noise = rng.normal(size=variable.shape) * scale
    variable.assign_add(tf.constant(noise, variable.dtype))
  return bijector


def _made(params, dtype, units=(12, 10)):
  return networks.MADE(params, D, units, dtype=dtype, seed=1)


def _maf(transform, dtype, units=(12, 10)):
  network = _made(transform.num_params, dtype, units)
  return bijectors.MaskedAutoregressive(network, transform)


class _Given(tfb.Bijector):
  """A conditional bijector at one value of its conditional input."""

  def __init__(self, bijector, c):
    parameters = dict(locals())
    self._bijector = bijector
    self._given = {'conditional_input': tf.constant(c, bijector.dtype)}
    super().__init__(forward_min_event_ndims=1, parameters=parameters)

  def _forward(self, x):
    return self._bijector.forward(x, **self._given)

  def _inverse(self, y):
    return self._bijector.inverse(y, **self._given)

  def _inverse_log_det_jacobian(self, y):
    return self._bijector.inverse_log_det_jacobian(y, 1, **self._given)


def _conditional(dtype):
  made = networks.MADE(
    2, D, [9, 7], dtype=dtype, seed=1, conditional_event_size=2
  )
  maf = bijectors.MaskedAutoregressive(made, flows.Affine())
  return _Given(maf, np.array([0.7, -0.4], dtype.as_numpy_dtype))


def _marginal(dtype):
  edges = [[0, 1, 2], [0, 0.5, 4, 9, 10], np.arange(41) / 4]
  masses = [[0.9, 0.1], [1, 2, 3, 4], np.arange(1, 41) ** 2]
  return bijectors.MarginalCDF(edges, masses, dtype)


def _spline(dtype):
  params = np.random.default_rng(0).normal(size=[D, 23])
  return bijectors.RationalQuadraticSpline(tf.constant(params, dtype))


def _logistic_mixture(dtype, logit=True):
  params = np.random.default_rng(0).normal(size=[D, 9])
  return bijectors.logistic_mixture.LogisticMixtureCDF(
    tf.constant(params, dtype), logit
  )


def _histogram(dtype):
  knots = [[0.0], [-1.5, -0.2, 0.0, 2.0], []]
  return bijectors.AutoregressiveHistogram(knots, [9], dtype, seed=2)


BIJECTORS = {
  'actnorm': lambda t: bijectors.ActNorm(D, t),
  'spline': _spline,
  'maf_affine': lambda t: _maf(flows.Affine(), t),
  'maf_affine_linear': lambda t: _maf(flows.Affine(), t, ()),
  'maf_spline': lambda t: _maf(flows.Spline(6, 4.0), t),
  'maf_mixture': lambda t: _maf(flows.LogisticMixture(4), t),
  'maf_conditional': _conditional,
  'logistic_mixture': _logistic_mixture,
  'marginal': _marginal,
  'histogram': _histogram,
  'lu': lambda t: bijectors.LULinear(D, dtype=t),
  'lu_permuted': lambda t: bijectors.LULinear(D, [2, 0, 1], t),
  'low_rank_1': lambda t: bijectors.LowRankLinear(D, 1, t, seed=0),
  'low_rank_2': lambda t: bijectors.LowRankLinear(D, 2, t, seed=0),
  'planar': lambda t: bijectors.Planar(D, t, seed=0),
  'sylvester': lambda t: bijectors.Sylvester(D, dtype=t, seed=0),
  'sylvester_2': lambda t: bijectors.Sylvester(D, 2, 3, t, seed=0),
  'sylvester_plain': lambda t: bijectors.Sylvester(D, 2, 0, t, seed=0),
  'maf_flow': lambda t: (
    flows.masked_autoregressive_flow(
      D, 2, [9], actnorm=True, dtype=t, seed=2
    ).bijector
  ),
  'spline_flow': lambda t: (
    flows.neural_spline_flow(D, 2, [9], dtype=t, seed=2).bijector
  ),
  'shared_flow': lambda t: (
    flows.neural_spline_flow(D, 3, [9], shared=True, dtype=t, seed=2).bijector
  ),
  'hflow_low_rank': lambda t: (
    flows.dp_hflow(D, 2, [9], num_bins=4, dtype=t, seed=2).bijector
  ),
  'hflow_lu': lambda t: (
    flows.dp_hflow(
      D, 2, [9], linear='lu', num_bins=4, shared=False, dtype=t, seed=2
    ).bijector
  ),
  'marginal_flow': lambda t: (
    flows.neural_spline_flow(
      D, 2, [9, 9], dtype=t, seed=2, marginal=_marginal(t)
    ).bijector
  ),
}
# What `make test` compiles and vectorizes: one of each kind of computation.
COMPILED = 'sylvester_2', 'histogram'
TRANSFORMED = (
  ('lu_permuted', 'xla'),
  *((name, 'vectorized_map') for name in ('actnorm', 'maf_spline')),
  ('maf_mixture', 'function'),
)
# Made of the same parts as others are.
ALIKE = 'maf_flow', 'spline_flow', 'hflow_lu'
WITHOUT_VARIABLES = ('marginal', 'spline', 'logistic_mixture')
IDENTITIES = [
  n for n in BIJECTORS if n not in (*WITHOUT_VARIABLES, 'marginal_flow')
]


def _make(name, dtype='float64', scale=0.3):
  return _moved(BIJECTORS[name](tf.as_dtype(dtype)), scale)


def _inputs(name, dtype='float64', n=50):
  """Points in the domain of `forward`."""
  x = np.random.default_rng(3).normal(size=[n, D])
  if name == 'marginal':
    x = np.abs(x) % [2, 10, 10]
  return tf.constant(x, dtype)


def _fresh(x):
  """The same values as a tensor that TFP's cache does not know."""
  return tf.identity(x)


@pytest.mark.core
@pytest.mark.parametrize('name', thinned(BIJECTORS, lambda x: x not in ALIKE))
@pytest.mark.parametrize(
  'dtype, tolerance', [('float32', 2e-3), ('float64', 1e-6)]
)
def test_round_trip(name, dtype, tolerance):
  bijector = _make(name, dtype, 0.1)
  x = _inputs(name, dtype)
  y = bijector.forward(x)
  np.testing.assert_allclose(
    bijector.inverse(_fresh(y)), x, rtol=tolerance, atol=tolerance
  )
  assert y.dtype == tf.as_dtype(dtype) and y.shape == x.shape


@pytest.mark.parametrize('name', thinned(BIJECTORS, lambda x: x not in ALIKE))
def test_log_det_jacobian_equals_autodiff(name):
  bijector = _make(name)
  x = _inputs(name, n=8)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = bijector.forward(x)
    outputs = tf.unstack(y, axis=1)
  # `batch_jacobian` would trace and vectorize what is needed three times.
  jacobian = tf.stack([tape.gradient(o, x) for o in outputs], 1)
  expected = tf.linalg.slogdet(jacobian).log_abs_determinant
  found = bijector.forward_log_det_jacobian(_fresh(x), event_ndims=1)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
  back = bijector.inverse_log_det_jacobian(_fresh(y), event_ndims=1)
  np.testing.assert_allclose(back, -expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', IDENTITIES)
def test_starts_as_the_identity(name):
  bijector = BIJECTORS[name](tf.float64)
  x = _inputs(name)
  y = bijector.inverse(x)
  if name in ('maf_flow', 'spline_flow', 'hflow_low_rank', 'hflow_lu'):
    # Two blocks, with the columns reversed in between.
    y = tf.reverse(y, [1])
  np.testing.assert_allclose(y, x, atol=1e-12)
  log_det = bijector.inverse_log_det_jacobian(_fresh(x), event_ndims=1)
  np.testing.assert_allclose(np.broadcast_to(log_det, 50), 0, atol=1e-12)


@pytest.mark.parametrize(
  'name', ['maf_affine', 'maf_affine_linear', 'maf_spline']
)
def test_is_autoregressive(name):
  bijector = _make(name)
  x = _inputs(name, n=4)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    z = bijector.inverse(x)
  jacobian = tape.batch_jacobian(z, x, experimental_use_pfor=False).numpy()
  upper = np.triu(np.ones([D, D]), 1).astype(bool)
  assert not jacobian[:, upper].any()
  assert jacobian[:, ~upper].all()


@pytest.mark.parametrize('name', thinned(BIJECTORS, lambda x: x not in ALIKE))
def test_gradients_are_finite_at_the_edges(name):
  bijector = _make(name, 'float32')
  edges = [0.0, -4.0, 4.0, -5.0, 5.0, 1e-30, -6.0, 100.0, 1.0]
  x = tf.constant([[e] * D for e in edges])
  for direction in (bijector.forward, bijector.inverse):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = direction(_fresh(x))
    gradient = tape.gradient(y, x)
    assert np.isfinite(y).all() and np.isfinite(gradient).all()


@pytest.mark.parametrize(
  ('name', 'mode'),
  thinned(
    [
      (name, mode)
      for name in BIJECTORS
      for mode in ('function', 'vectorized_map', 'xla')
    ],
    lambda point: point in TRANSFORMED,
  ),
)
def test_function_xla_and_vectorized_map_equal_eager(name, mode):
  bijector = _make(name)
  x = _inputs(name, n=6)

  def values(x):
    y = bijector.forward(_fresh(x))
    z = bijector.inverse(_fresh(y))
    log_det = bijector.inverse_log_det_jacobian(_fresh(y), event_ndims=1)
    return y, z, tf.broadcast_to(log_det, tf.shape(x)[:-1])

  run = {
    'vectorized_map': lambda x: tf.vectorized_map(values, x),
    'function': tf.function(values),
    'xla': tf.function(values, jit_compile=True),
  }[mode]
  for found, e in zip(run(x), values(x)):
    np.testing.assert_allclose(found, e, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'mode'),
  thinned(
    [
      (name, mode)
      for name in BIJECTORS
      for mode in ('eager', 'function', 'xla')
      if name not in WITHOUT_VARIABLES
    ],
    lambda point: (
      point[0] not in ALIKE
      and (point[1] == 'eager' or (point[0] in COMPILED and point[1] == 'xla'))
    ),
  ),
)
def test_per_example_gradients_equal_jacobian_and_clip(name, mode):
  """In float64; test_float32_gradients has the contract's precision."""
  bijector = _make(name)
  base = tfd.MultivariateNormalDiag(tf.zeros(D, tf.float64))
  flow = tfd.TransformedDistribution(base, bijector)
  variables = flow.trainable_variables
  x = tf.abs(_inputs(name, n=5)) if 'marginal' in name else _inputs(name, n=5)
  with tf.GradientTape(persistent=True) as tape:
    loss = -flow.log_prob(_fresh(x))
  jacobian = tape.jacobian(loss, variables, experimental_use_pfor=False)
  squared = sum(tf.reduce_sum(tf.reshape(j * j, [5, -1]), 1) for j in jacobian)
  clip = float(np.sqrt(np.median(squared)))
  scale = tf.minimum(1, clip / tf.sqrt(squared))
  expected = [tf.tensordot(scale, j, 1) for j in jacobian]

  def clipped():
    with gradients.PerExampleTape() as tape:
      loss = -flow.log_prob(_fresh(x))
    per_example = tape.per_example_gradients(loss, variables)
    return (
      per_example.squared_norms(),
      gradients.Flat(clip).clip_and_sum(per_example),
    )

  if mode != 'eager':
    clipped = tf.function(clipped, jit_compile=mode == 'xla')
  found_squared, found_sum = clipped()
  np.testing.assert_allclose(found_squared, squared, rtol=1e-6)
  for f, e in zip(found_sum, expected):
    np.testing.assert_allclose(f, e, rtol=1e-6, atol=1e-6 * np.abs(e).max())


CONDITIONAL = {
  'affine': lambda **kwargs: flows.masked_autoregressive_flow(
    D, 2, [9], actnorm=True, **kwargs
  ),
  'spline_shared': lambda **kwargs: flows.neural_spline_flow(
    D, 2, [9], shared=True, **kwargs
  ),
  'one_column': lambda **kwargs: flows.dp_nf(1, 1, [9, 9], **kwargs),
}


def _conditional_flow(name, dtype='float64'):
  flow = CONDITIONAL[name](conditional_event_size=2, dtype=dtype, seed=2)
  _moved(flow.bijector, 0.3)
  rng = np.random.default_rng(5)
  x = tf.constant(rng.normal(size=[9, *flow.event_shape]), dtype)
  return flow, x, tf.constant(rng.normal(size=[9, 2]), dtype)


@pytest.mark.parametrize(
  ('name', 'mode'),
  thinned(
    itertools.product(CONDITIONAL, ['eager', 'xla', 'function']),
    lambda point: point[1] == 'eager' or point == ('one_column', 'xla'),
  ),
)
def test_per_example_gradients_of_conditional_densities(name, mode):
  flow, x, c = _conditional_flow(name)
  variables = flow.trainable_variables
  with tf.GradientTape(persistent=True) as tape:
    loss = -flow.log_prob(_fresh(x), conditional_input=c)
  jacobian = tape.jacobian(loss, variables, experimental_use_pfor=False)
  squared = sum(tf.reduce_sum(tf.reshape(j * j, [9, -1]), 1) for j in jacobian)
  clip = float(np.sqrt(np.median(squared)))
  scale = tf.minimum(1, clip / tf.sqrt(squared))

  def clipped(x, c):
    with gradients.PerExampleTape() as tape:
      loss = -flow.log_prob(_fresh(x), conditional_input=c)
    per_example = tape.per_example_gradients(loss, variables)
    return (
      per_example.squared_norms(),
      gradients.Flat(clip).clip_and_sum(per_example),
    )

  if mode != 'eager':
    clipped = tf.function(clipped, jit_compile=mode == 'xla')
  found_squared, found_sum = clipped(x, c)
  np.testing.assert_allclose(found_squared, squared, rtol=1e-6)
  for f, j in zip(found_sum, jacobian):
    e = tf.tensordot(scale, j, 1)
    np.testing.assert_allclose(f, e, rtol=1e-6, atol=1e-6 * np.abs(e).max())


@pytest.mark.parametrize('name', CONDITIONAL)
def test_a_conditional_flow_is_a_flow_at_each_value_of_its_input(name):
  flow, x, c = _conditional_flow(name)
  found = flow.log_prob(_fresh(x), conditional_input=c)
  alone = [flow.log_prob(x[i], conditional_input=c[i]) for i in range(9)]
  np.testing.assert_allclose(found, alone, rtol=1e-10)
  one = flow.log_prob(_fresh(x), conditional_input=c[0])
  assert np.min(np.abs(one - found)[1:]) > 1e-3
  # As TFP has it, a block at a time.
  names = [b.name for b in flow.bijector.bijectors if 'block' in b.name]
  given = {name: {'conditional_input': c} for name in names}
  np.testing.assert_allclose(
    flow.log_prob(_fresh(x), bijector_kwargs=given), found, rtol=1e-12
  )
  z = flow.bijector.inverse(_fresh(x), **given)
  back = flow.bijector.forward(_fresh(z), **given)
  np.testing.assert_allclose(back, x, rtol=1e-6, atol=1e-6)
  # The samples of row i are those of c[i].
  y = flow.sample([4000, 9], seed=0, conditional_input=c)
  one = flow.sample(4000, seed=1, conditional_input=c[3])
  np.testing.assert_allclose(
    np.mean(y[:, 3], 0), np.mean(one, 0), atol=0.1 * np.std(one)
  )


def test_the_first_column_is_a_nonlinear_function_of_the_conditional_input():
  made = networks.MADE(1, 2, [6], seed=0, conditional_event_size=1)
  _moved(made, 0.5)
  x = tf.zeros([3, 2])
  first = made(x, conditional_input=tf.constant([[-1.0], [0.0], [1.0]]))[:, 0]
  assert abs(first[0] - 2 * first[1] + first[2]) > 0.01
  c = tf.constant([[0.5], [0.5]])
  other = made(tf.constant([[0.0, 1.0], [3.0, 5.0]]), conditional_input=c)
  np.testing.assert_array_equal(other[0, 0], other[1, 0])
  assert abs(other[0, 1] - other[1, 1]) > 0.01


def test_conditional_input_of_another_shape_is_refused():
  made = networks.MADE(2, D, [4], name='m', conditional_event_size=2)
  maf = bijectors.MaskedAutoregressive(made, flows.Affine())
  x = _inputs('maf', 'float32')
  for direction in (maf.forward, maf.inverse):
    with pytest.raises(ValueError, match='m is conditional and needs'):
      direction(x)
    with pytest.raises(ValueError, match=r'must be \[..., 2\]'):
      direction(x, conditional_input=x)
  plain = _maf(flows.Affine(), tf.float32)
  with pytest.raises(ValueError, match='takes no conditional_input'):
    plain.inverse(x, conditional_input=x)
  with pytest.raises(ValueError, match='conditional_event_size is -1'):
    networks.MADE(2, D, [4], conditional_event_size=-1)


@pytest.mark.parametrize('make', ['masked_autoregressive_flow', 'dp_hflow'])
@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ({'num_blocks': -1}, ValueError, 'num_blocks is -1; it must be an integer'),
    ({'num_blocks': 0}, ValueError, 'num_blocks is 0; it must be an integer'),
    ({'num_blocks': '2'}, TypeError, 'num_blocks is of type str'),
    ({'hidden_units': 16}, TypeError, r'hidden_units is 16; .* \[100, 100\]'),
    ({'hidden_units': ['8']}, TypeError, 'width of hidden_units is of type'),
    ({'activation': 'relux'}, ValueError, "activation is 'relux'; .* tf.nn"),
  ],
)
def test_sizes_and_names_of_a_flow_are_checked(make, arguments, error, message):
  with pytest.raises(error, match=message):
    getattr(flows, make)(D, **arguments)


def test_sizes_of_transforms_are_checked():
  with pytest.raises(TypeError, match='event_size is of type str'):
    flows.masked_autoregressive_flow('4')
  with pytest.raises(ValueError, match='num_bins is 1; .* >= 2'):
    flows.neural_spline_flow(D, num_bins=1)
  with pytest.raises(ValueError, match='bound is -1'):
    flows.dp_nf(D, transform='spline', bound=-1.0)
  with pytest.raises(TypeError, match='hidden_units is 16'):
    flows.histogram_flow([[0.0], [1.0]], 16)


@pytest.mark.parametrize(
  'name', thinned(['marginal_flow', 'maf_flow', 'spline_flow'], 1)
)
def test_saved_model_round_trip(name, tmp_path):
  bijector = _make(name, 'float32')
  x = tf.abs(_inputs(name, 'float32'))
  module = tf.Module()
  module.bijector = bijector
  module.inverse = tf.function(
    lambda x: bijector.inverse(_fresh(x)),
    input_signature=[tf.TensorSpec([None, D])],
  )
  expected = module.inverse(x)
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(loaded.inverse(x), expected, rtol=1e-5, atol=1e-5)


def test_each_network_runs_once_per_log_prob():
  flow = flows.masked_autoregressive_flow(D, 3, [8], seed=0)
  with gradients.PerExampleTape() as tape:
    flow.log_prob(tf.zeros([5, D]))
  assert len(tape.records) == 3 * 2  # Two layers in each of three networks.
  flow = flows.masked_autoregressive_flow(D, 3, [8], conditional_event_size=1)
  with gradients.PerExampleTape() as tape:
    flow.log_prob(tf.zeros([5, D]), conditional_input=np.zeros([5, 1]))
  assert len(tape.records) == 3 * 2


@pytest.mark.parametrize('marginal', [False, True])
def test_log_prob_integrates_to_one(marginal):
  """A flow by itself, and an untrained one behind marginals."""
  lower, upper, marginal_cdf = -6.0, 6.0, None
  if marginal:
    lower, upper = 0.0, 4.0
    marginal_cdf = bijectors.MarginalCDF([[0, 1, 4]] * 2, [[0.7, 0.3]] * 2)
  flow = flows.neural_spline_flow(2, 2, [8], marginal=marginal_cdf, seed=0)
  if not marginal:
    _moved(flow.bijector, 0.1)
  step = 0.04
  axis = np.arange(lower, upper, step) + step / 2
  grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
  mass = np.sum(np.exp(flow.log_prob(grid.astype('float32')))) * step**2
  np.testing.assert_allclose(mass, 1, atol=2e-3)


def test_sampling_agrees_with_log_prob():
  flow = flows.neural_spline_flow(2, 2, [8], seed=0)
  _moved(flow.bijector, 0.2)
  x = flow.sample(40_000, seed=0).numpy()
  grid = np.linspace(-3, 3, 7)
  seen = np.histogram2d(*x.T, bins=[grid, grid])[0] / len(x)
  fine = np.linspace(-3, 3, 301)[:-1] + 0.01
  points = np.stack(np.meshgrid(fine, fine, indexing='ij'), -1)
  density = np.exp(flow.log_prob(points.reshape(-1, 2).astype('float32')))
  mass = density.reshape(6, 50, 6, 50).sum((1, 3)) * 4e-4
  np.testing.assert_allclose(seen, mass, atol=6e-3)


def test_blocks_that_share_a_network_are_told_apart():
  made = networks.MADE(2, 3, [8], seed=0, num_conditions=2)
  x = _inputs('maf_affine', 'float32')
  _moved(made, 0.5)
  one, two = made.conditioned(0)(x), made.conditioned(1)(x)
  assert np.abs(one - two).max() > 0.1
  for number in (-1, 2):
    with pytest.raises(ValueError, match='no condition.*the network has 2'):
      made.conditioned(number)
  with pytest.raises(ValueError, match='num_conditions=0'):
    networks.MADE(2, 3, [8], num_conditions=0)
  flow = flows.neural_spline_flow(3, 4, [8], shared=True)
  alone = flows.neural_spline_flow(3, 1, [8])
  more = len(flow.trainable_variables) - len(alone.trainable_variables)
  assert more == 3  # An embedding for each of four blocks, and one bias less.


@pytest.mark.parametrize(
  ('hidden', 'event_size', 'condition', 'conditional'),
  thinned(
    itertools.product(
      [(), (1,), (7,), (13, 5), (4, 9, 6)], [1, 2, 5], [None, 1], [0, 2]
    ),
    # Each depth, with all that may be given and with none, and each size.
    lambda point: (
      (point[2] is None) == (point[3] == 0)
      and (point[1] == 5 or point[0] == (4, 9, 6))
    ),
  ),
)
def test_columns_give_what_a_whole_pass_gives(
  hidden, event_size, condition, conditional
):
  made = networks.MADE(
    2,
    event_size,
    hidden,
    dtype='float64',
    seed=0,
    num_conditions=1 if condition is None else 3,
    conditional_event_size=conditional,
    direct=True,
  )
  _moved(made, 0.5)
  if condition is not None:
    made = made.conditioned(condition)
  x = tf.constant(np.random.default_rng(0).normal(size=[6, event_size]))
  given = {}
  if conditional:
    c = np.random.default_rng(1).normal(size=[6, conditional])
    given = {'conditional_input': tf.constant(c)}
  expected = made(x, **given)
  for j, params_of in enumerate(made.columns(**given)):
    found = tf.broadcast_to(params_of(tf.unstack(x, axis=1)[:j]), [6, 2])
    np.testing.assert_allclose(found, expected[:, j], rtol=1e-10, atol=1e-12)


def test_marginal_makes_its_histogram_standard_normal():
  marginal = _marginal(tf.float64)
  z = tf.random.stateless_normal([20_000, D], [0, 1], dtype=tf.float64)
  x = marginal.inverse(z).numpy()
  np.testing.assert_allclose(np.mean(x[:, 0] < 1), 0.9, atol=0.01)
  np.testing.assert_allclose(np.mean(x[:, 1] < 4), 0.3, atol=0.01)
  ends = marginal.forward([[0.0, 0, 0], [2, 10, 10], [-5, 99, 99]])
  assert np.all(np.abs(ends) < 4.3)


def test_bad_input():
  with pytest.raises(ValueError, match='must all be at least 1'):
    networks.MADE(2, 0, [4])
  with pytest.raises(ValueError, match='Affine takes 2'):
    bijectors.MaskedAutoregressive(networks.MADE(3, 2, [4]), flows.Affine())
  with pytest.raises(ValueError, match='3 K - 1'):
    bijectors.RationalQuadraticSpline(tf.zeros([4]))
  with pytest.raises(ValueError, match='Column 1.*ascending'):
    bijectors.MarginalCDF([[0, 1], [0, 0, 1]], [[1], [0.5, 0.5]])
  with pytest.raises(ValueError, match='Column 0.*positive probability'):
    bijectors.MarginalCDF([[0, 1, 2]], [[1, 0]])
