"""DP-HFlow: its parts, and what it says of a table that can be listed."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.unproven import unproven
from tfdpflows import flows, networks
from tfdpflows._keras import keras
from tfdpflows.tabular.encoding import EncodedColumn

SIZES = (3, 4)
CELLS = np.array(list(itertools.product(*map(range, SIZES))), np.float32)


def _flow(dequantization='variational', moved=0.12, num_blocks=2, **kwargs):
  options = {'num_bins': 4, 'seed': 0, **kwargs}
  flow = flows.dp_hflow(
    list(SIZES), num_blocks, [8], dequantization=dequantization, **options
  )
  rng = np.random.default_rng(1)
  for v in flow.points.trainable_variables:
    v.assign_add(tf.constant(rng.normal(size=v.shape) * moved, v.dtype))
  return flow


def _draws(points, dequantization, n, seed=0):
  """Returns `log p(x + u) - log q(u | x)`, `[n, cells]`."""
  uniform = np.random.default_rng(seed).random([n, *CELLS.shape], np.float32)
  u, log_q = dequantization(CELLS, uniform)
  return (points.log_prob(CELLS + u) - log_q).numpy().astype(np.float64)


@pytest.fixture(scope='module')
def toy():
  """A density that was fitted with its dequantization, and its masses."""
  flow = _flow(moved=0.0, num_blocks=1)
  target = np.exp(-2 * np.abs(CELLS[:, 0] - CELLS[:, 1] + 0.5))
  target = tf.constant(target / target.sum(), tf.float32)
  optimizer = keras.optimizers.legacy.Adam(2e-2)
  generator = tf.random.Generator.from_seed(0)

  @tf.function
  def step():
    with tf.GradientTape() as tape:
      uniform = generator.uniform([64, *CELLS.shape])
      u, log_q = flow.dequantization(CELLS, uniform)
      bound = flow.points.log_prob(CELLS + u) - log_q
      loss = -tf.reduce_sum(target * tf.reduce_mean(bound, 0))
    optimizer.minimize(loss, flow.trainable_variables, tape=tape)

  for _ in range(100):
    step()
  side = (np.arange(50) + 0.5) / 50
  grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 1, 2)
  density = flow.points.log_prob((CELLS + grid).astype('float32'))
  mass = np.exp(density.numpy().astype(np.float64)).mean(0)
  even = flows.dequantization.UniformDequantization(SIZES)
  return types.SimpleNamespace(
    flow=flow,
    mass=mass,
    target=target.numpy(),
    even=_draws(flow.points, even, 2000),
    learned=_draws(flow.points, flow.dequantization, 2000),
  )


def test_masses_are_importance_weighted_without_bias(toy):
  assert toy.mass.sum() == pytest.approx(1, abs=5e-3)
  for draws in (toy.even, toy.learned):
    found = np.exp(draws).mean(0)
    error = np.exp(draws).std(0) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(found - toy.mass), 5 * error + 1e-3)
    assert found.sum() == pytest.approx(1, abs=0.03)


def test_variational_bound_is_below_and_closer_than_the_uniform_one(toy):
  even, learned = (
    np.sum(toy.target * (np.log(toy.mass) - draws.mean(0)))
    for draws in (toy.even, toy.learned)
  )
  # The second one is the Kullback-Leibler divergence of q, and 0 at best.
  assert 0 < learned < 0.1
  assert even > 2 * learned


def test_log_prob_nears_the_mass_with_the_number_of_draws(toy):
  found = []
  for num_samples in (1, 300):
    flow = flows.dequantization.Dequantized(
      toy.flow.points, toy.flow.dequantization, num_samples, seed=0
    )
    log_prob = flow.log_prob(CELLS)
    assert log_prob.shape == [12] and log_prob.dtype == tf.float32
    assert flow.log_prob(CELLS[0]).shape == []
    found.append(np.sum(toy.target * np.abs(log_prob - np.log(toy.mass))))
  assert found[1] < 0.05 and found[1] < found[0]


def test_samples_have_the_masses(toy):
  rows = toy.flow.sample(20_000, seed=0).numpy()
  assert rows.shape == (20_000, 2)
  seen = np.array([(rows == cell).all(1).sum() for cell in CELLS])
  assert sum(seen) == len(rows)
  np.testing.assert_allclose(seen / len(rows), toy.mass, atol=0.015)


def test_blocks_are_the_papers():
  flow = flows.dp_hflow(3, 3, [4])
  assert not isinstance(flow, flows.dequantization.Dequantized)
  names = [type(part).__name__ for part in flow.bijector.bijectors]
  block = ['LowRankLinear', 'MaskedAutoregressive']
  assert names == block + (['Permute'] + block) * 2
  made = {id(m) for m in flow.submodules if isinstance(m, networks.MADE)}
  assert len(made) == 1
  flow = flows.dp_hflow([2, 3], 1, [4], linear='lu', shared=False)
  names = [type(p).__name__ for p in flow.points.bijector.bijectors]
  assert names[1:] == ['LULinear', 'MaskedAutoregressive']


@pytest.mark.core
@pytest.mark.parametrize('dequantization', ['uniform', 'variational'])
def test_starts_even_over_what_is_declared(dequantization):
  columns = [3, (-1.0, 4.0), EncodedColumn('c', 2.0, 1.0, True, False)]
  flow = flows.dp_hflow(columns, dequantization=dequantization, seed=0)
  x = tf.constant([[2.0, 3.5, 1.0], [0.0, -0.5, 0.0]])
  np.testing.assert_allclose(flow.log_prob(x), -np.log(30), atol=1e-3)
  rows = flow.sample(50, seed=1).numpy()
  assert set(rows[:, 0]) == {0, 1, 2} and set(rows[:, 2]) == {0, 1}
  assert np.all((rows[:, 1] > -1) & (rows[:, 1] < 4))


def test_can_be_checkpointed(tmp_path):
  flow, other = _flow(), _flow(moved=0.0)
  path = tf.train.Checkpoint(flow=flow).write(str(tmp_path / 'weights'))
  read = tf.train.Checkpoint(flow=other).read(path)
  read.assert_existing_objects_matched().assert_consumed()
  for a, b in zip(flow.variables, other.variables):
    np.testing.assert_array_equal(a, b)


@unproven()
def test_trains_under_a_plan_with_its_dequantization():
  flow = _flow(moved=0.0, num_blocks=1)
  rng = np.random.default_rng(0)
  a = rng.integers(3, size=300)
  x = np.stack([a, a + rng.integers(2, size=300)], 1).astype('float32')
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=5.0,
    delta=1e-4,
    num_examples=300,
    expected_batch_size=100,
    steps=6,
    clipping=tfdpflows.gradients.Flat(5.0),
  )
  model = tfdpflows.DensityModel(flow, ema_momentum=0.9)
  model.compile(
    optimizer=plan.optimizer(
      'adam', learning_rate=1e-2, augmentation_multiplicity=2
    )
  )
  before = [v.numpy() for v in flow.trainable_variables]
  placed = len(flow.dequantization.trainable_variables)
  assert len(before) == placed + len(flow.points.trainable_variables)
  model.fit(x, verbose=0)
  moved = [
    np.any(b != v.numpy()) for b, v in zip(before, flow.trainable_variables)
  ]
  assert all(moved) and placed == 8


def test_bad_arguments_are_named():
  schema = types.SimpleNamespace(fields=())
  for arguments, kwargs, message in (
    ([3], {'linear': 'dense'}, "linear is 'dense'.*low_rank"),
    ([3], {'dequantization': 'none'}, "dequantization is 'none'"),
    ([3], {'dequantization': 'variational'}, 'no column has cells'),
    ([3], {'rank': 4}, r'rank is 4.*event_size=3'),
    ([0], {}, 'columns is 0'),
    ([[]], {}, 'columns is empty'),
    ([schema], {}, r'TableEncoder\(schema\).columns'),
    ([[2, 0]], {}, 'Column 1 is declared as 0'),
    ([[2, (3.0, 3.0)]], {}, r'Column 1 is declared as \(3.0, 3.0\)'),
    ([['a', 2]], {}, "Column 0 is declared as 'a'"),
  ):
    with pytest.raises(ValueError, match=message):
      flows.dp_hflow(*arguments, **kwargs)
  with pytest.raises(TypeError, match='rank is of type str'):
    flows.dp_hflow(3, rank='2')
  flow = flows.dp_hflow(2, 1, [4])
  dequantization = flows.dequantization.UniformDequantization([2, 3, 4])
  with pytest.raises(ValueError, match='3 columns'):
    flows.dequantization.Dequantized(flow, dequantization)
  with pytest.raises(ValueError, match='num_importance_samples is 0'):
    flows.dequantization.Dequantized(
      flow, flows.dequantization.UniformDequantization([2, 3]), 0
    )
