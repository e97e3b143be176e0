import numpy as np
import pytest

from experiments import density_datasets, density_fitting
from tests.grids import thinned

SMALL = {'epochs': 1.0, 'num_blocks': 1, 'hidden_units': (8,)}


class TestFitting:
  @pytest.mark.parametrize(
    'kind', thinned(['nan', 'duplicates', 'constant column'], 1)
  )
  def test_odd_rows_leave_it_finite_and_one_budget_pays(self, kind):
    good = density_datasets.load('pinwheel').x[:200]
    x = {
      'duplicates': np.repeat(good[:2], 100, axis=0),
      'constant column': good * np.float32([1, 0]),
      'nan': np.where(np.arange(200)[:, None] % 9, good, np.nan),
    }[kind]
    fit = density_fitting.fit_dp_nf(
      x,
      epsilon=1.0,
      delta=1e-4,
      recipe=density_fitting.Recipe.for_rows(x.shape, 1.0, **SMALL),
      seed=0,
    )
    assert np.isfinite(fit.log_prob(good)).all()
    assert all(np.isfinite(v).all() for v in fit.flow.trainable_variables)
    assert [e.label for e in fit.ledger.entries] == [
      'DP-MoG (seeded)',
      'DP-SGD',
    ]
    # Poisson steps of the smallest budget cost nearly all that is left.
    assert 0.99 < fit.ledger.epsilon() <= 1.0

  def test_a_public_prior_costs_nothing(self):
    x = density_datasets.load('pinwheel').x[:400]
    fit = density_fitting.fit_dp_nf(
      x,
      epsilon=1.0,
      delta=1e-4,
      recipe=density_fitting.Recipe.for_rows(x.shape, 1.0, **SMALL),
      prior=density_fitting.full_gaussian(x[:100]),
      seed=0,
    )
    assert [e.label for e in fit.ledger.entries] == ['DP-SGD']

  def test_a_flow_starts_as_its_prior(self):
    rng = np.random.default_rng(0)
    prior = density_fitting.GaussianMixture(
      np.array([0.3, 0.7]),
      rng.normal(size=[2, 3]),
      np.tril(rng.normal(size=[2, 3, 3])) * 0.2 + np.eye(3),
    )
    x = rng.normal(size=[50, 3])
    flow = density_fitting.make_flow(prior, density_fitting.Recipe(), 0)
    assert np.allclose(
      density_fitting.log_prob(flow, x), prior.log_prob(x), atol=1e-3
    )

  def test_far_rows_cost_no_more_than_the_prior_says(self):
    x = density_datasets.load('half_moons').x[:300]
    prior = density_fitting.full_gaussian(x)
    flow = density_fitting.make_flow(prior, density_fitting.Recipe(), 0)
    mixed = density_fitting.mix(flow, prior, 0.02)
    floor = np.log(0.02) + prior.log_prob(x)
    assert (density_fitting.log_prob(mixed, x) >= floor - 1e-4).all()
