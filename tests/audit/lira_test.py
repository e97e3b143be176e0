"""LiRA: against scores whose likelihood ratio is known, and real models."""

import numpy as np
import pytest
from scipy import special, stats

import tfdpflows
from tfdpflows import audit
from tfdpflows.audit import lira


def _shadows(gap=2.0, models=64, rows=1000, seed=0):
  rng = np.random.default_rng(seed)
  included = np.argsort(rng.random([models, rows]), axis=0) < models // 2
  spread = rng.uniform(0.5, 2.0, rows)
  scores = 3 * rng.normal(size=rows) + spread * (
    gap * included + rng.normal(size=[models, rows])
  )
  return audit.ShadowScores(scores, included)


@pytest.mark.parametrize('online', [True, False])
def test_reaches_the_exact_likelihood_ratio(online):
  attack = audit.Lira(_shadows(), online=online)
  rates = np.array([0.01, 0.1, 0.5])
  exact = special.ndtr(special.ndtri(rates) + 2.0)
  found = np.median(attack.true_positive_rates(rates), 0)
  # The models are few: some of the power is lost.
  assert (found > 0.8 * exact).all() and (found < exact + 0.05).all()
  low, median, high = attack.band(rates)
  np.testing.assert_array_equal(median, found)
  assert (low <= median).all() and (median <= high).all()


def test_finds_nothing_where_there_is_nothing():
  """At each rate of false positives as many true ones, by chance."""
  for online in (True, False):
    for fixed in (True, False):
      attack = audit.Lira(
        _shadows(gap=0.0), online=online, fixed_variance=fixed
      )
      rates = np.array([0.002, 0.01, 0.1, 0.5])
      found = attack.true_positive_rates(rates).mean(0)
      # That of a score above the k + 1 highest of 500.
      chance = (500 * rates + 1) / 501
      np.testing.assert_allclose(found, chance, rtol=0.1, atol=1.5e-3)


def test_gaussian_scores_are_on_the_diagonal():
  attack = audit.Lira(_shadows(gap=2.0))
  for member in (True, False):
    expected, found = attack.quantiles(50, member=member)
    # Student's t: spreads are those of 31 models.
    np.testing.assert_allclose(found, expected, atol=0.2)


def test_target_is_not_in_its_own_fit():
  """Leaving one out is exact: as computed from the other models alone."""
  shadows = _shadows(models=8, rows=5)
  attack = audit.Lira(shadows, fixed_variance=False)
  for target in range(8):
    order = (target + np.arange(8)) % 8
    for row in range(5):
      total = 0.0
      for side, sign in ((True, 1), (False, -1)):
        on_side = order[shadows.included[order, row] == side]
        # Without the target, or the model after it on the other side.
        others = shadows.scores[on_side[1:], row]
        spread = others.std(ddof=1) * np.sqrt(1 + 1 / len(others))
        total += sign * stats.norm.logpdf(
          shadows.scores[target, row], others.mean(), spread
        )
      assert attack.scores[target, row] == pytest.approx(total)


@pytest.mark.parametrize('fixed_variance', [False, True])
def test_fits_do_not_depend_on_the_score_of_the_target(fixed_variance):
  """Not in the last digit: it would tell on which side the target was."""
  rng = np.random.default_rng(0)
  included = np.argsort(rng.random([8, 100]), axis=0) < 4
  scores = 10 + rng.normal(size=[8, 100])
  for side in (included, ~included):
    fits = []
    for own in (0.0, 1.0, 1e12):
      changed = scores.copy()
      changed[3] = own
      fits.append(
        [x[3] for x in lira._Others(changed, side).fit(fixed_variance)]
      )
    np.testing.assert_array_equal(fits[0], fits[1])
    np.testing.assert_array_equal(fits[0], fits[2])


def test_logits_of_losses():
  p = np.array([1e-6, 0.3, 0.999])
  np.testing.assert_allclose(
    audit.logit_scores(-np.log(p)), special.logit(p), rtol=1e-6
  )
  assert np.isfinite(audit.logit_scores([0.0, 1e9])).all()


def test_finds_the_rows_of_a_density():
  """The exact log-density of an overfitted Gaussian mixture, in processes."""
  x = np.random.default_rng(0).normal(size=[60, 2])

  def train(included, seed):
    # A kernel density with a narrow kernel knows its rows.
    squares = np.sum((x[:, None] - x[None, included]) ** 2, -1)
    width = 0.3 + 0.01 * (seed % 2)
    return special.logsumexp(-squares / (2 * width**2), axis=1)

  shadows = audit.train_shadows(train, 60, 16, num_processes=2)
  np.testing.assert_array_equal(shadows.included.sum(0), 8)
  again = audit.train_shadows(train, 60, 16, num_processes=1)
  np.testing.assert_array_equal(shadows.scores, again.scores)
  found = audit.Lira(shadows, fixed_variance=True).true_positive_rates([0.1])
  assert found.mean() > 0.5


@pytest.mark.full
def test_finds_the_rows_of_a_flow():
  """Trained for long without privacy, and not with it."""
  x = np.random.default_rng(0).normal(size=[100, 4]).astype('float32')

  def scores_of(epsilon):
    def train(included, seed):
      import tensorflow as tf

      tf.keras.utils.set_random_seed(seed)
      rows = x[included]
      flow = tfdpflows.flows.masked_autoregressive_flow(4, num_blocks=2)
      model = tfdpflows.DensityModel(flow)
      if epsilon is None:
        model.compile(tf.keras.optimizers.Adam(1e-2))
        model.fit(rows, epochs=100, batch_size=len(rows), verbose=0)
      else:
        plan = tfdpflows.TrainingPlan.for_epsilon(
          epsilon=epsilon,
          delta=1e-3,
          num_examples=len(rows),
          expected_batch_size=len(rows),
          steps=100,
          clipping=tfdpflows.gradients.Flat(1.0),
        )
        model.compile(plan.optimizer('adam', learning_rate=1e-2))
        model.fit(rows, verbose=0)
      return model.log_prob(x).numpy()

    return audit.train_shadows(train, 100, 16, num_processes=2)

  rate = lambda shadows: audit.Lira(shadows).true_positive_rates([0.1]).mean()
  assert rate(scores_of(None)) > 0.2
  assert rate(scores_of(1.0)) < 0.15


def test_bad_shadows_are_named():
  for make, message in (
    (lambda: audit.ShadowScores(np.ones([2, 3]), np.ones([3, 2])), 'both must'),
    (
      lambda: audit.ShadowScores(np.full([4, 3], np.nan), np.ones([4, 3])),
      'not finite',
    ),
    (
      lambda: audit.ShadowScores(np.ones([4, 3]), np.ones([4, 3], int)),
      'not bool',
    ),
    (
      lambda: audit.Lira(
        audit.ShadowScores(np.ones([4, 3]), np.ones([4, 3], bool))
      ),
      'train more',
    ),
    (lambda: audit.train_shadows(None, 3, 7), 'num_models is 7'),
    (lambda: audit.train_shadows(None, 3, 2), 'num_models is 2'),
    (
      lambda: audit.train_shadows(lambda mask, seed: [1.0], 3, 6),
      r'shape \[1\]',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      make()
