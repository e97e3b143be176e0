"""DP-MoG: how good it is, what it survives, what it serves for."""

import four_clusters
import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tests.unproven import proven
from tfdpflows import flows, models
from tfdpflows.mechanisms import moments
from tfdpflows.models.dp_mog import em


@pytest.fixture(scope='module')
def fitted():
  return models.DPMoG(num_iterations=6).fit(
    four_clusters.make(20_000)[0], **four_clusters.BUDGET, seed=1
  )


@pytest.mark.core
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_finds_clusters(noise):
  x, best = four_clusters.make(20_000)
  mixture = models.DPMoG(8, noise=noise).fit(x, **four_clusters.BUDGET, seed=0)
  held_out = four_clusters.make(3_000, seed=1)[0]
  found = mixture.log_prob(held_out).numpy().mean()
  single = models.DPMoG(1, noise=noise).fit(x, **four_clusters.BUDGET, seed=0)
  assert single.log_prob(held_out).numpy().mean() < best - 1.2
  assert best - 0.3 < found <= best + 0.05


def test_coordinates_of_their_own_beat_those_of_the_paper():
  x, _ = four_clusters.make(5_000, d=6)
  held_out = four_clusters.make(2_000, seed=1, d=6)[0]
  scores = [
    models.DPMoG(4, adaptive=adaptive)
    .fit(x, **four_clusters.BUDGET, seed=0)
    .parameters.log_prob(held_out)
    .mean()
    for adaptive in (True, False)
  ]
  assert scores[0] > scores[1] + 3


def test_one_gaussian_comes_close_to_the_rows_own():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[20_000, 5]) @ np.diag([0.2, 0.1, 0.05, 0.02, 0.01])
  own = np.cov(x.T)
  best = -0.5 * np.linalg.slogdet(2 * np.pi * np.e * own)[1]
  mixture = models.DPMoG(num_iterations=0).fit(
    x, **four_clusters.BUDGET, seed=0
  )
  assert mixture.parameters.log_prob(x).mean() > best - 0.05


@pytest.mark.parametrize('adaptive', thinned([True, False], 1))
@pytest.mark.parametrize(
  'x',
  [
    np.empty([0, 3]),
    np.full([2, 8], 0.1),
    np.repeat([[0.3, 0.3, -0.1]], 5_000, axis=0),
    np.c_[np.zeros(5_000), np.linspace(-0.7, 0.7, 5_000)],
    np.full([100, 2], np.nan),
    np.full([5_000, 2], 1e200),
    np.linspace(-1, 1, 5_000)[:, None],
    np.zeros([5_000, 2]),
  ],
  ids=[
    'empty',
    'fewer rows than columns',
    'duplicates',
    'constant column',
    'nan',
    'outside of the norm',
    'one column',
    'zero',
  ],
)
def test_stays_finite(x, adaptive):
  mixture = models.DPMoG(num_iterations=4, adaptive=adaptive)
  mixture.fit(x, epsilon=8.0, delta=1e-5, seed=0)
  found = mixture.parameters
  d = x.shape[1]
  assert np.isfinite(found.means).all()
  eigenvalues = np.linalg.eigvalsh(found.covariances)
  assert eigenvalues.min() >= 0.99e-8
  assert found.weights.sum() == pytest.approx(1)
  rows = np.r_[np.zeros([1, d]), np.eye(d), np.full([1, d], -3.0)]
  assert np.isfinite(mixture.log_prob(rows)).all()
  assert np.isfinite(mixture.sample(20, seed=1)).all()


def test_the_floor_holds_where_it_is_declared():
  x = np.repeat([[0.3, 0.1]], 20_000, axis=0)
  mixture = models.DPMoG(2, covariance_floor=1e-4).fit(
    x, **four_clusters.BUDGET, seed=0
  )
  covariances = mixture.parameters.covariances
  assert np.linalg.eigvalsh(covariances).min() >= 0.999e-4


def test_noise_that_hides_everything_leaves_one_gaussian():
  mixture = models.DPMoG().fit(
    four_clusters.make(300)[0], epsilon=0.01, delta=1e-5, seed=0
  )
  assert len(mixture.parameters.weights) == 2  # with the tail
  covariance = mixture.parameters.covariances
  assert np.linalg.eigvalsh(covariance).max() <= 10


def test_the_distribution_is_what_was_released(fitted):
  x = four_clusters.make(100, seed=4)[0]
  np.testing.assert_allclose(
    fitted.log_prob(x), fitted.parameters.log_prob(x), rtol=1e-3, atol=1e-3
  )
  samples = fitted.sample(20_000, seed=3).numpy()
  own = four_clusters.make(20_000, seed=3)[0]
  np.testing.assert_allclose(samples.mean(0), own.mean(0), atol=0.02)
  np.testing.assert_allclose(np.cov(samples.T), np.cov(own.T), atol=0.02)


def test_serves_as_the_base_of_a_flow(fitted):
  flow = flows.masked_autoregressive_flow(2, 1, (8,), base=fitted.distribution)
  x = four_clusters.make(10, seed=4)[0].astype(np.float32)
  np.testing.assert_allclose(
    flow.log_prob(x), fitted.log_prob(x), rtol=1e-3, atol=1e-3
  )
  assert flow.sample(3).shape == [3, 2]
  assert (
    models.DPMoG(1, 0, dtype='float64')
    .fit(x, **four_clusters.BUDGET)
    .distribution.dtype
    == tf.float64
  )


@pytest.mark.slow
@proven()
def test_a_flow_is_trained_privately_over_it(fitted):
  flow = flows.masked_autoregressive_flow(2, 1, (8,), base=fitted.distribution)
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-4,
    num_examples=300,
    expected_batch_size=150,
    epochs=1,
    clipping=tfdpflows.gradients.Flat(5.0),
    spent=fitted.event,
    accountant='pld',
  )
  model = models.DensityModel(flow)
  model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-3))
  rows = four_clusters.make(300, seed=5)[0].astype(np.float32)
  model.fit(rows, verbose=0)
  # The prior is public by now and stays as it is.
  np.testing.assert_array_equal(
    fitted.distribution.components_distribution.loc,
    np.float32(fitted.parameters.means),
  )
  assert 0.9 < plan.ledger.epsilon() <= 1
  assert np.isfinite(model.log_prob(rows)).all()


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'num_components': 0}, 'num_components'),
    ({'num_components': 2.5}, 'num_components'),
    ({'num_iterations': -1}, 'num_iterations'),
    ({'l2_norm_bound': 0.0}, 'l2_norm_bound'),
    ({'l2_norm_bound': np.inf}, 'l2_norm_bound'),
    ({'noise': 'none'}, "'gaussian', 'laplace'"),
    ({'l2_norm_bound': 1e-160}, 'l2_norm_bound'),
    ({'l2_norm_bound': 1e155}, 'l2_norm_bound'),
    ({'covariance_floor': 0.0}, 'covariance_floor'),
    ({'covariance_floor': 1e-11}, 'covariance_floor'),
    ({'tail_weight': 1.0}, 'tail_weight'),
    ({'dtype': 'int32'}, 'dtype is int32'),
    ({'l2_norm_bound': 1e-50}, 'float32 holds no variances'),
    ({'l2_norm_bound': 1e50}, 'float32 holds no variances'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    models.DPMoG(**arguments)


def test_longer_rows_are_scaled_to_the_norm():
  x = four_clusters.make(3_000)[0]
  far = 40 * x
  near = far / np.maximum(np.linalg.norm(far, axis=1, keepdims=True) / 2, 1)
  fit = lambda rows: models.DPMoG(2, 2, l2_norm_bound=2.0).fit(
    rows, **four_clusters.BUDGET, seed=1
  )
  np.testing.assert_allclose(
    fit(far).parameters.means, fit(near).parameters.means, atol=1e-8
  )


def test_projection_keeps_what_is_in_range():
  matrix = np.diag([4.0, 1.0, 0.1])[None]
  found = em.project_covariances(matrix, 0.5, 2.0)
  np.testing.assert_allclose(found[0], np.diag([2.0, 1.0, 0.5]), atol=1e-12)


def test_more_noise_is_believed_less():
  prior = em.GaussianMixture(
    np.ones(1), np.zeros([1, 2]), np.eye(2)[None] / np.sqrt(2)
  )
  seen = moments.Moments(
    np.array([1e4]), np.array([[1e4, 0.0]]), np.eye(2)[None] * 3e4
  )
  means = []
  for sigma in (1e-3, 100.0, 1e5):
    noise = moments.MomentNoise(sigma, 2, 3.0)
    refined, uncertainty = em.refine(seen, noise, prior, np.ones([2, 1]), 1e-8)
    means.append(refined.means[0, 0])
    assert (uncertainty > 0).all()
  scale = prior.scales[0, 0, 0]
  assert means[0] == pytest.approx(scale)
  assert 0 < means[1] < means[0]
  assert means[2] == 0


@pytest.mark.parametrize(
  'bound, dtype',
  [
    (1e-14, 'float32'),
    (1e19, 'float32'),
    (1e-100, 'float64'),
    (1e100, 'float64'),
  ],
)
def test_stays_finite_in_any_unit(bound, dtype):
  x = four_clusters.make(5_000)[0]
  fit = lambda bound, dtype: models.DPMoG(
    2, 2, l2_norm_bound=bound, dtype=dtype
  ).fit(bound * x, **four_clusters.BUDGET, seed=0)
  mixture = fit(bound, dtype)
  rows = bound * np.array([[0.0, 0.0], [0.5, -0.1]])
  found = mixture.log_prob(rows).numpy()
  in_units = fit(1.0, 'float64').log_prob(rows / bound)
  np.testing.assert_allclose(found + 2 * np.log(bound), in_units, rtol=1e-3)
  assert np.isfinite(mixture.sample(20, seed=1)).all()
