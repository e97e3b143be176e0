"""The central limit theorem, and where there is nothing to approximate."""

import importlib.util
import math
import pathlib

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation

from tfdpflows import accounting
from tfdpflows.accounting.gdp import GDPAccountant
from tfdpflows.accounting.mechanisms import gaussian_profile

REPLACE = NeighboringRelation.REPLACE_ONE
GAUSSIAN = dp_accounting.GaussianDpEvent


def poisson(q, noise, steps):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(noise)), steps
  )


def fixed(n, size, noise, steps):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.SampledWithoutReplacementDpEvent(n, size, GAUSSIAN(noise)),
    steps,
  )


@pytest.fixture(scope='module')
def tf_privacy():
  """TF Privacy's file alone: the package would import TensorFlow."""
  spec = importlib.util.find_spec('tensorflow_privacy')
  if spec is None:
    pytest.skip('TF Privacy is not installed')
  path = (
    pathlib.Path(spec.submodule_search_locations[0])
    / 'privacy/analysis/gdp_accountant.py'
  )
  if not path.exists():
    pytest.skip('this TF Privacy has no gdp_accountant.py')
  spec = importlib.util.spec_from_file_location('their_gdp_accountant', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize(
  ('n', 'batch', 'noise', 'steps'),
  [(60000, 256, 1.3, 4688), (24059, 100, 2.1, 10000), (1000, 50, 0.6, 200)],
)
def test_agrees_with_tf_privacy(tf_privacy, n, batch, noise, steps):
  epochs = steps * batch / n
  ours = GDPAccountant().compose(poisson(batch / n, noise, steps))
  theirs = tf_privacy.compute_mu_poisson(epochs, noise, n, batch)
  assert ours.mu == pytest.approx(theirs, rel=1e-12)
  assert ours.get_epsilon(1e-5) == pytest.approx(
    tf_privacy.compute_eps_poisson(epochs, noise, n, batch, 1e-5), rel=1e-6
  )
  # Their noise is over the change that replacing a row makes.
  ours = GDPAccountant(REPLACE).compose(fixed(n, batch, 2 * noise, steps))
  theirs = tf_privacy.compute_mu_uniform(epochs, noise, n, batch)
  assert ours.mu == pytest.approx(theirs, rel=1e-12)
  assert ours.get_epsilon(1e-5) == pytest.approx(
    tf_privacy.compute_eps_uniform(epochs, noise, n, batch, 1e-5), rel=1e-6
  )


@pytest.mark.parametrize(
  ('noise', 'epochs', 'mu', 'epsilon'),
  [(1.3, 15, 0.23, 0.83), (1.1, 60, 0.57, 2.32), (0.7, 45, 1.13, 5.07)],
)
def test_published_values(noise, epochs, mu, epsilon):
  # Bu, Dong, Long and Su 2020, table of the MNIST experiment.
  made = GDPAccountant()
  made.compose(poisson(256 / 60000, noise, round(epochs * 60000 / 256)))
  assert made.mu == pytest.approx(mu, abs=0.005)
  assert made.get_epsilon(1e-5) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize(
  ('noise', 'of_fixed_size', 'of_poisson'),
  [
    # Both square roots without q and T, by mpmath.
    (0.15, 6331454417.462194, 4477014353.361039),
    (0.17, 46159421.72958728, 32639640.12064085),
    (0.7, 3.545655356646015, 2.5878349658296855),
    (3, 0.3851518868191642, 0.342810543510353),
    (1e3, 0.0010003991127845808, 0.0010000002500000521),
    (0.9999e5, 1.0001040002388557e-05, 1.0001000100260076e-05),
    (1.0001e5, 9.999039986410764e-06, 9.999000100239926e-06),
    (1e9, 1.0000000003989422e-09, 1e-09),
  ],
)
def test_mu_of_a_step(noise, of_fixed_size, of_poisson):
  step = GDPAccountant(REPLACE).compose(fixed(8, 2, 2 * noise, 16))
  assert step.mu == pytest.approx(of_fixed_size, rel=1e-10)
  step = GDPAccountant().compose(poisson(0.25, noise, 16))
  assert step.mu == pytest.approx(of_poisson, rel=1e-10)


@pytest.mark.parametrize('relation', list(NeighboringRelation)[:2])
def test_unsampled_gaussians_are_exact(relation):
  event = dp_accounting.ComposedDpEvent(
    [
      GAUSSIAN(3.0),
      dp_accounting.SelfComposedDpEvent(GAUSSIAN(40.0), 100),
      accounting.GNMaxDpEvent(10.0),
    ]
  )
  made = GDPAccountant(relation).compose(event)
  times = 2 if relation is REPLACE else 1
  # The votes of PATE cost the same under both.
  mu = math.sqrt(times**2 * (1 / 9 + 100 / 1600) + 2 / 100)
  assert made.exact
  assert made.mu == pytest.approx(mu, rel=1e-14)
  assert made.remarks(1e-5)[0].startswith('exact:')
  epsilon = made.get_epsilon(1e-5)
  exact = float(gaussian_profile.epsilon_at(math.log(1e-5), mu))
  assert exact <= epsilon * (1 + 1e-13)
  assert epsilon == pytest.approx(exact, rel=1e-10)
  assert made.get_delta(epsilon) == pytest.approx(1e-5, rel=1e-9)
  pld = accounting.create_accountant('pld', relation).compose(event)
  assert pld.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-4)


def test_a_limit_says_so_and_may_be_too_low():
  event = poisson(0.01, 1.0, 1000)
  made = GDPAccountant().compose(event)
  assert made.guarantee == 'asymptotic'
  assert not made.exact
  assert 'may lie below' in made.remarks(1e-5)[0]
  # The certified interval of prv_accountant starts at 1.818.
  assert made.get_epsilon(1e-5) < 1.7
  assert made.get_delta(made.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-9)


def test_nothing_and_everything():
  made = GDPAccountant()
  assert (made.mu, made.exact) == (0.0, True)
  assert (made.get_epsilon(1e-5), made.get_delta(0.0)) == (0.0, 0.0)
  made.compose(GAUSSIAN(0.0))
  assert (made.mu, made.exact) == (math.inf, False)
  assert (made.get_epsilon(1e-5), made.get_delta(3.0)) == (math.inf, 1.0)


@pytest.mark.parametrize('noise', [1e-300, 1e-160, 1e-3, 1e160, 1e300])
@pytest.mark.parametrize('q', [0.0, 1e-300, 0.3, 1.0])
def test_adversarial_parameters(noise, q):
  for relation, event in (
    (NeighboringRelation.ADD_OR_REMOVE_ONE, poisson(q, noise, 10**9)),
    (REPLACE, poisson(q, noise, 10**9)),
    (REPLACE, GAUSSIAN(noise)),
  ):
    made = GDPAccountant(relation).compose(event)
    for delta in (1e-300, 0.5):
      epsilon = made.get_epsilon(delta)
      assert epsilon >= 0
      if epsilon < math.inf:
        assert made.get_delta(epsilon) <= delta * (1 + 1e-6)
  for value in (math.nan, -1.0):
    with pytest.raises(ValueError, match='zero or more'):
      made.get_delta(value)


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.LaplaceDpEvent(1.0),
    accounting.ZCDpEvent(1.0),
    accounting.ExponentialMechanismDpEvent(1.0),
    accounting.EpsilonDeltaDpEvent(1.0),
  ],
)
def test_other_mechanisms_are_refused(event):
  made = GDPAccountant()
  with pytest.raises(dp_accounting.UnsupportedEventError, match=r'gdp.*do: '):
    made.compose(dp_accounting.ComposedDpEvent([GAUSSIAN(1.0), event]))
  assert made.mu == 0
