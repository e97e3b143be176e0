"""Objective perturbation: claims against densities that are integrated."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting.mechanisms import (
  Gaussian,
  ObjectivePerturbation,
  gaussian_profile,
)

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0)


def density(theta, rows, regularization, sigma):
  """Log density of the minimizer at points `[n, 2]`."""
  rows = np.array(rows, np.float64).reshape(-1, 2)
  share = special.expit(-theta @ rows.T)
  slope = regularization * theta - share @ rows
  curved = share * (1 - share)
  hessian = np.einsum('nr,ri,rj->nij', curved, rows, rows)
  hessian += regularization * np.eye(2)
  return np.linalg.slogdet(hessian)[1] - np.sum(slope**2, 1) / 2 / sigma**2


def profiles(upper, lower, regularization, sigma):
  """Delta at each of `EPSILONS`, by a sum over a grid of minimizers."""
  reach = (8 * sigma + len(upper) + len(lower)) / regularization
  axis = np.linspace(-reach, reach, 401)
  theta = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
  logs = [
    density(theta, rows, regularization, sigma) for rows in (upper, lower)
  ]
  masses = np.exp(logs[0] - special.logsumexp(logs[0]))
  # Both densities have one and the same constant.
  constants = [special.logsumexp(x) for x in logs]
  assert abs(constants[0] - constants[1]) < 1e-6
  loss = logs[0] - logs[1]
  return [np.sum(masses * np.maximum(-np.expm1(x - loss), 0)) for x in EPSILONS]


def unit(angle):
  return (math.cos(angle), math.sin(angle))


@pytest.mark.parametrize(
  ('sigma', 'regularization'), thinned([(1.2, 0.4), (3.0, 1.0)], 1)
)
@pytest.mark.parametrize(
  'rest',
  [
    [],
    pytest.param([unit(1.0)] * 2, marks=pytest.mark.full),
    [unit(0), unit(3)],
  ],
)
def test_added_row(sigma, regularization, rest):
  event = accounting.ObjectivePerturbationDpEvent(sigma, 1 / regularization)
  made = accounting.create_accountant('pld').compose(event)
  claims = [made.get_delta(x) for x in EPSILONS]
  for angle in (0.0, 2.0):
    tables = rest, [*rest, unit(angle)]
    for pair in (tables, tables[::-1]):
      exact = profiles(*pair, regularization, sigma)
      assert np.all(np.array(exact) <= np.array(claims) + 1e-7)


@pytest.mark.parametrize(('sigma', 'regularization'), [(1.2, 0.4), (3.0, 1.0)])
@pytest.mark.parametrize('angle', thinned([1.5, math.pi, 0.5, 2.5], 1))
def test_replaced_row(sigma, regularization, angle):
  event = accounting.ObjectivePerturbationDpEvent(sigma, 1 / regularization)
  made = accounting.create_accountant('pld', REPLACE).compose(event)
  claims = [made.get_delta(x) for x in EPSILONS]
  for rest in ([], [unit(1.0)]):
    tables = [*rest, unit(0.0)], [*rest, unit(angle)]
    for pair in (tables, tables[::-1]):
      exact = profiles(*pair, regularization, sigma)
      assert np.all(np.array(exact) <= np.array(claims) + 1e-7)


@pytest.mark.parametrize('sigma', [0.7, 3.0, 30.0])
def test_costs_what_the_gaussian_mechanism_does(sigma):
  for epsilon, spare in itertools.product((0.1, 1.0, 4.0), (0.5, 1.0)):
    curvature = spare * (epsilon + 0.5 / sigma / sigma)
    event = accounting.ObjectivePerturbationDpEvent(sigma, curvature)
    made = accounting.create_accountant('pld').compose(event)
    gaussian = math.exp(gaussian_profile.log_delta_at(epsilon, 1 / sigma))
    assert made.get_delta(epsilon) == pytest.approx(gaussian, rel=1e-4)


def test_is_reached_by_one_row_among_many():
  """The bound has no slack to take away: on a line it nearly holds equally."""
  sigma, regularization, epsilon = 3.0, 2.0, 0.6
  theta = np.linspace(-60.0, 60.0, 400_001)
  slopes = []
  for rows in ([], [1.0]):
    slope = regularization * theta
    for row in rows:
      slope = slope - row * special.expit(-row * theta)
    # Many other rows draw the minimizer to where this one is not fitted.
    slopes.append(slope + 30.0)
  lower, upper = (np.diff(special.ndtr(x / sigma)) for x in slopes)
  exact = np.sum(np.maximum(upper - math.exp(epsilon) * lower, 0))
  event = accounting.ObjectivePerturbationDpEvent(sigma, 1 / regularization)
  made = accounting.create_accountant('pld').compose(event)
  assert exact <= made.get_delta(epsilon) <= exact * 1.01


def test_without_noise_is_not_private():
  event = accounting.ObjectivePerturbationDpEvent(0.0, 1.0)
  assert accounting.compute_epsilon(event, 1e-5) == math.inf
  with pytest.raises(ValueError, match='curvature'):
    accounting.compute_epsilon(
      accounting.ObjectivePerturbationDpEvent(1.0, -1.0), 1e-5
    )


@pytest.mark.parametrize('curvature', [0.0, 0.1, 3.0, 1e3])
@pytest.mark.parametrize('replaced', [False, True])
def test_laws_are_whole_and_losses_not_below_zero(curvature, replaced):
  mechanism = ObjectivePerturbation(1.5, curvature, replaced)
  for law in mechanism.loss_distributions(0.01):
    assert law.lower >= 0
    assert 1 <= law.masses.sum() + law.infinity < 1 + 1e-10
  least = Gaussian(0.75 if replaced else 1.5).renyi(np.array([2.0]))
  assert np.all(mechanism.renyi(np.array([2.0])) >= least)
