"""DP-NF on a prior: what is trained, and what it costs."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import accounting, flows, gradients
from tfdpflows._keras import tfp

tfd = tfp.distributions
D = 3


def _mixture(dtype='float32', parameter=tf.constant):
  """A prior as a private fit would leave it: two correlated Gaussians."""
  rng = np.random.default_rng(0)
  tril = np.tril(rng.normal(size=[2, D, D]) * 0.2 + np.eye(D))
  return tfd.MixtureSameFamily(
    tfd.Categorical(probs=parameter(np.array([0.3, 0.7], dtype))),
    tfd.MultivariateNormalTriL(
      parameter(rng.normal(size=[2, D]).astype(dtype)),
      parameter(tril.astype(dtype)),
    ),
  )


def _moved(flow):
  rng = np.random.default_rng(1)
  for v in flow.trainable_variables:
    v.assign_add(tf.constant(rng.normal(size=v.shape) * 0.2, v.dtype))
  return flow


def _data(n=300):
  rng = np.random.default_rng(2)
  return (rng.normal(size=[n, D]) @ rng.normal(size=[D, D])).astype('float32')


@pytest.mark.core
@pytest.mark.parametrize(
  ('actnorm', 'transform'),
  thinned(
    [(False, 'affine'), (True, 'spline'), (True, 'affine'), (False, 'spline')],
    2,
  ),
)
def test_starts_as_its_prior_and_keeps_its_dtype(transform, actnorm):
  for dtype, num_blocks in (('float32', 2), ('float64', 3)):
    base = _mixture(dtype)
    flow = flows.dp_nf(
      D, num_blocks, [8], transform=transform, base=base, actnorm=actnorm
    )
    x = _data(10).astype(dtype)
    assert flow.dtype == dtype
    np.testing.assert_allclose(
      flow.log_prob(x), base.log_prob(x), rtol=1e-4, atol=1e-4
    )
    assert flow.sample(4, seed=0).shape == (4, D)
  assert flows.dp_nf(D).dtype == tf.float32
  assert flows.dp_nf(D, dtype='float64').dtype == tf.float64
  flow = flows.masked_autoregressive_flow(
    D, 1, [4], dtype='float64', actnorm=True
  )
  assert flow.log_prob(tf.zeros([2, D], tf.float64)).shape == [2]


def test_blocks_and_reversals_are_the_papers():
  parts = flows.dp_nf(D, actnorm=True).bijector.bijectors
  names = [type(part).__name__ for part in parts]
  block = ['ActNorm', 'MaskedAutoregressive']
  assert names == block + (['Permute'] + block) * 4


@pytest.mark.parametrize(
  'transform, jit_compile', [('affine', True), ('spline', False)]
)
def test_clipped_sum_equals_the_jacobians(transform, jit_compile):
  flow = _moved(
    flows.dp_nf(
      D,
      2,
      [8],
      transform=transform,
      base=_mixture('float64'),
      actnorm=True,
      num_bins=4,
      seed=0,
    )
  )
  x = tf.constant(_data(6), tf.float64)
  variables = flow.trainable_variables

  @tf.function(jit_compile=jit_compile)
  def clipped():
    with gradients.PerExampleTape() as tape:
      loss = -flow.log_prob(tf.identity(x))
    per_example = tape.per_example_gradients(loss, variables)
    return gradients.Flat(1.0).clip_and_sum(per_example)

  with tf.GradientTape(persistent=True) as tape:
    loss = -flow.log_prob(tf.identity(x))
  jacobian = [
    j.numpy()
    for j in tape.jacobian(loss, variables, experimental_use_pfor=False)
  ]
  norms = np.sqrt(sum(np.sum(j.reshape(6, -1) ** 2, 1) for j in jacobian))
  scale = np.minimum(1, 1 / norms)
  for found, j in zip(clipped(), jacobian):
    np.testing.assert_allclose(
      found, np.tensordot(scale, j, 1), rtol=1e-5, atol=1e-8
    )


def test_prior_and_flow_are_composed_by_one_ledger():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-4)
  ledger = accounting.PrivacyLedger(budget=budget)
  prior = dp_accounting.GaussianDpEvent(8.0)
  ledger.charge(prior, label='prior')
  kwargs = {
    'delta': 1e-4,
    'num_examples': 300,
    'expected_batch_size': 100,
    'steps': 5,
    'clipping': gradients.Flat(3.0),
  }
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0, spent=ledger.committed_event, ledger=ledger, **kwargs
  )
  base = _mixture(parameter=lambda v: tf.Variable(v, trainable=False))
  flow = flows.dp_nf(D, 1, [8], base=base)
  kept = [v.numpy() for v in base.variables]
  model = tfdpflows.DensityModel(flow)
  model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-2))
  before = [v.numpy() for v in flow.trainable_variables]
  model.fit(_data(), verbose=0)
  assert len(kept) == 3
  for old, variable in zip(kept, base.variables):
    np.testing.assert_array_equal(old, variable)
  assert any(
    (old != new.numpy()).any()
    for old, new in zip(before, flow.trainable_variables)
  )
  assert [e.label for e in ledger.entries] == ['prior', 'DP-SGD']
  assert 0.998 < ledger.epsilon() <= 1.0
  # Better than adding: what is left of epsilon would buy more noise.
  left = 1.0 - accounting.compute_epsilon(prior, 0.5e-4)
  added = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=left, **{**kwargs, 'delta': 0.5e-4}
  )
  assert plan.noise_multiplier < added.noise_multiplier


def test_variables_of_the_prior_are_trained_only_when_asked():
  base = _mixture(parameter=tf.Variable)
  with pytest.raises(
    ValueError, match=r'trainable variables .*train_base=True'
  ):
    flows.dp_nf(D, base=base)
  flow = flows.dp_nf(D, 1, [4], base=base, train_base=True)
  assert len(flow.trainable_variables) == 4 + 3


def test_bad_arguments_are_named():
  for kwargs, message in (
    ({'transform': 'cubic'}, "'cubic'.*'affine' or 'spline'"),
    ({'base': tfd.Normal(0.0, 1.0)}, 'event shape'),
    ({'base': tfd.MultivariateNormalDiag(tf.zeros([2]))}, r'must be \[3\]'),
    ({'base': tfd.MultivariateNormalDiag(tf.zeros([4, D]))}, 'batch shape'),
    ({'base': _mixture('float64'), 'dtype': tf.float32}, 'float64.*float32'),
  ):
    with pytest.raises(ValueError, match=message):
      flows.dp_nf(D, **kwargs)
