"""Logistic regression: what it learns, what it charges, what it refuses."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import special
from sklearn import base, linear_model
from sklearn.utils import estimator_checks

import tfdpflows
from tfdpflows import accounting
from tfdpflows.models import dp_logistic_regression as module
from tfdpflows.randomness import Randomness

DPLogisticRegression = tfdpflows.DPLogisticRegression
METHODS = module.METHODS[1:]


def table(n=4000, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.uniform(-0.5, 0.5, [n, 3])
  odds = 8 * x[:, 0] - 6 * x[:, 1] + 1
  return x, (rng.random(n) < special.expit(odds)).astype(int)


def model(method='auto', n=4000, **kwargs):
  if method in module._NEED_SIZE:
    kwargs.setdefault('num_examples', n)
  kwargs.setdefault('epsilon', 1.0)
  return DPLogisticRegression(method=method, **kwargs)


def parameters(fitted):
  return np.append(fitted.coef_[0], fitted.intercept_)


@pytest.mark.parametrize('method', METHODS)
def test_learns_and_is_charged(method):
  x, y = table()
  test_x, test_y = table(seed=1)
  fitted = model(method).fit(x, y, randomness=Randomness(seed=0))
  best = linear_model.LogisticRegression().fit(x, y).score(test_x, test_y)
  assert fitted.score(test_x, test_y) > best - 0.08
  ledger = fitted.ledger_
  assert [entry.event for entry in ledger.entries] == [fitted.event_]
  assert 0.95 < ledger.epsilon() <= 1
  assert accounting.compute_epsilon(fitted.event_, 1e-5) <= 1
  text = str(fitted.privacy_statement())
  assert method.replace('_', ' ') in text
  assert 'seed' in text
  np.testing.assert_allclose(
    fitted.predict_proba(test_x), np.exp(fitted.predict_log_proba(test_x))
  )
  assert fitted.predict_proba(test_x).sum(1) == pytest.approx(1)


@pytest.mark.parametrize('method', METHODS)
def test_a_row_that_is_replaced_counts_twice(method):
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  ledger = accounting.PrivacyLedger(
    budget=budget, neighboring_relation=relation
  )
  x, y = table(300)
  fitted = model(method, 300).fit(x, y, ledger=ledger)
  assert 0.95 < ledger.epsilon() <= 1
  added = model(method, 300).fit(x, y)
  assert fitted.noise_multiplier_ > 1.5 * added.noise_multiplier_


def draw(fitted, x, y, seeds):
  return np.array(
    [
      parameters(base.clone(fitted).fit(x, y, randomness=Randomness(seed=s)))
      for s in range(seeds)
    ]
  )


def signed(x, y):
  rows = np.concatenate([x, np.ones([len(x), 1])], 1)
  return (2 * y - 1)[:, None] * rows


def test_noise_of_objective_perturbation():
  """The linear term that a released point stands for is N(0, (z B)^2)."""
  x, y = table(50)
  fitted = model('objective_perturbation', epsilon=4.0).fit(x, y)
  u = signed(x, y)
  linear = []
  for theta in draw(fitted, x, y, 25):
    slope = -special.expit(-u @ theta) @ u + fitted.regularization_ * theta
    linear.append(-slope)
  wanted = fitted.noise_multiplier_ * math.sqrt(2)
  assert np.std(linear) == pytest.approx(wanted, rel=0.2)
  assert abs(np.mean(linear)) < wanted * 0.3
  curvature = 2 / fitted.regularization_
  found, hidden = fitted.event_.events
  assert found.curvature == pytest.approx(curvature)
  assert found.noise_multiplier == fitted.noise_multiplier_
  assert hidden.noise_multiplier == 30 * fitted.noise_multiplier_


def test_noise_of_output_perturbation():
  x, y = table(50)
  fitted = model('output_perturbation', regularization=3.0).fit(x, y)
  found = draw(fitted, x, y, 25)
  u = signed(x, y)
  centre = module._minimize(
    u, module._Plan('', math.sqrt(2), regularization=3.0), np.zeros(4)
  )[0]
  wanted = fitted.noise_multiplier_ * math.sqrt(2) / 3
  assert np.std(found - centre) == pytest.approx(wanted, rel=0.2)


def neighbours():
  x, y = table(40)
  # The row that differs is at the bound.
  x[-1] = np.array([0.6, 0.0, 0.8]) * 0.999999
  y[-1] = 0
  return (x, y), (x[:-1], y[:-1])


@pytest.mark.parametrize('method', METHODS[:4])
def test_replay_with_the_same_noise(method):
  """One row moves what is released by no more than the proof takes it to."""
  found, plans = [], []
  for x, y in neighbours():
    fitted = model(method, 40, regularization=2.0, steps=50)
    fitted.fit(x, y, randomness=Randomness(seed=3))
    found.append(parameters(fitted))
    plans.append(fitted._released)
  assert plans[0] == plans[1]
  if plans[0].descent is None:
    reach = math.sqrt(2) / 2 * (1 + 1e-4)
  else:
    descent = plans[0].descent
    c = descent.contraction
    reach = descent.step_size * math.sqrt(2) * (1 - c**50) / (1 - c)
    reach *= 1 + 1e-6
  assert 0 < np.linalg.norm(found[0] - found[1]) <= reach


@pytest.mark.parametrize('regularization', [1e-2, 1.0, 100.0])
def test_minimizer_is_that_of_scikit_learn(regularization):
  x, y = table(500)
  plan = module._Plan('', 1.0, regularization=regularization)
  theta, distance = module._minimize(
    (2 * y - 1)[:, None] * x, plan, np.zeros(3)
  )
  other = linear_model.LogisticRegression(
    C=1 / regularization, fit_intercept=False, tol=1e-10, max_iter=1000
  ).fit(x, y)
  np.testing.assert_allclose(theta, other.coef_[0], rtol=1e-5)
  assert distance == 1e-6 / regularization


def test_minimizer_that_is_not_certified_is_not_released(monkeypatch):
  monkeypatch.setattr(module, '_NEWTON_STEPS', 1)
  x, y = table(500)
  with pytest.raises(RuntimeError, match='nothing is released') as caught:
    model().fit(x, y)
  # Nothing in it is computed from rows.
  assert not any(c.isdigit() for c in str(caught.value))


def test_statement_is_of_the_fit_and_not_of_parameters_set_since():
  x, y = table()
  fitted = model().fit(x, y)
  before = str(fitted.privacy_statement())
  fitted.set_params(row_norm=50.0, large_rows='error', delta=1e-9)
  assert str(fitted.privacy_statement()) == before


def test_minimizer_from_far_away():
  """A long linear term, rows that can be separated, and few of them."""
  u = np.array([[1.0, 0.0], [0.6, 0.8]])
  for linear in ([0.0, 0.0], [300.0, -200.0], [-1e4, 1e4]):
    plan = module._Plan('', 1.0, regularization=1e-2)
    theta, _ = module._minimize(u, plan, np.array(linear))
    slope = -special.expit(-u @ theta) @ u + 1e-2 * theta + linear
    assert np.linalg.norm(slope) < 1e-6


def test_rows_are_clipped_or_refused():
  x, y = table(60)
  long = x.copy()
  long[5] *= 1e6
  short = x.copy()
  short[5] /= np.linalg.norm(short[5])
  one, other = (
    parameters(model().fit(rows, y, randomness=Randomness(seed=0)))
    for rows in (long, short)
  )
  np.testing.assert_allclose(one, other, atol=1e-6)
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match='Row 5 .*row_norm'):
    model(large_rows='error').fit(long, y, ledger=ledger)
  assert not ledger.entries
  assert 'refuses' in str(
    model(large_rows='error').fit(x, y).privacy_statement()
  )


NOT_A_NUMBER = np.full([60, 3], 0.1)
NOT_A_NUMBER[7, 1] = math.nan


@pytest.mark.parametrize(
  ('kwargs', 'x', 'y', 'words'),
  [
    ({}, NOT_A_NUMBER, None, 'Row 7 of X has NaN'),
    ({}, None, np.arange(60) % 3, 'none of the classes'),
    ({}, None, np.zeros(59), 'y has shape'),
    ({}, np.zeros(60), None, 'X has shape'),
    ({'delta': 0.0}, None, None, 'delta'),
    ({'epsilon': 0.0}, None, None, 'epsilon'),
    ({'epsilon': math.inf}, None, None, 'epsilon'),
    ({'method': 'sgd'}, None, None, 'method'),
    ({'method': 'dp_sgd'}, None, None, 'num_examples'),
    ({'method': 'exponential_mechanism'}, None, None, 'num_examples'),
    ({'num_examples': 59}, None, None, 'more than num_examples'),
    ({'regularization': -1.0}, None, None, 'regularization'),
    ({'row_norm': 0.0}, None, None, 'row_norm'),
    ({'large_rows': 'drop'}, None, None, 'large_rows'),
    ({'classes': (0, 0)}, None, None, 'declare two'),
    ({'classes': (0, 1, 2)}, None, None, 'declare two'),
    ({'intercept_scaling': -1.0}, None, None, 'intercept_scaling'),
    ({'steps': 0}, None, None, 'steps'),
    (
      {
        'method': 'noisy_gradient_descent',
        'num_examples': 60,
        'step_size': 2.0,
      },
      None,
      None,
      'step_size',
    ),
    (
      {'method': 'dp_sgd', 'num_examples': 60, 'regularization': 1.0},
      None,
      None,
      'regularization',
    ),
    ({'sampling_probability': 0.0}, None, None, 'sampling_probability'),
  ],
)
def test_refused_before_anything_is_charged(kwargs, x, y, words):
  rows, labels = table(60)
  ledger = accounting.PrivacyLedger()
  fitted = DPLogisticRegression(**kwargs)
  with pytest.raises(ValueError, match=words):
    fitted.fit(
      rows if x is None else x, labels if y is None else y, ledger=ledger
    )
  assert not ledger.entries
  assert not hasattr(fitted, 'coef_')


def test_regularization_that_no_noise_makes_up_for():
  x, y = table(60)
  with pytest.raises(accounting.BudgetExceededError):
    model(epsilon=0.1, regularization=0.1).fit(x, y)


def test_refused_charge_releases_nothing():
  x, y = table(60)
  budget = accounting.PrivacyBudget(epsilon=0.5, delta=1e-5)
  ledger = accounting.PrivacyLedger(budget=budget)
  fitted = model()
  with pytest.raises(accounting.BudgetExceededError):
    fitted.fit(x, y, ledger=ledger)
  assert not hasattr(fitted, 'coef_')


def test_noise_is_not_used_twice_and_may_be_repeated(tmp_path):
  x, y = table(60)
  path, randomness = tmp_path / 'ledger', Randomness()
  with accounting.PrivacyLedger(path) as ledger:
    fitted = model().fit(x, y, ledger=ledger, randomness=randomness)
    with pytest.raises(ValueError, match='used already'):
      model().fit(x[:-1], y[:-1], ledger=ledger, randomness=randomness)
  for rows in (len(x), len(x) - 1):
    again = Randomness(secret=randomness.secret)
    with accounting.PrivacyLedger.open(path) as ledger:
      repeat = (
        lambda: model().fit(
          x[:rows],  # noqa: B023
          y[:rows],  # noqa: B023
          ledger=ledger,
          randomness=again,  # noqa: B023
          resume=True,
        )
      )
      if rows < len(x):
        with pytest.raises(accounting.LedgerError):
          repeat()
        continue
      np.testing.assert_array_equal(parameters(fitted), parameters(repeat()))
      assert len(ledger.entries) == 1


def test_declared_classes():
  x, y = table()
  words = np.where(y == 1, 'yes', 'no')
  fitted = model(classes=('no', 'yes'), epsilon=4.0).fit(x, words)
  assert fitted.classes_.tolist() == ['no', 'yes']
  assert fitted.score(x, words) > 0.8
  # Their order is as declared, and what is not in the rows stays a class.
  other = model(classes=('yes', 'no'), epsilon=4.0).fit(
    x[y == 1], words[y == 1]
  )
  assert (other.predict(x) == 'yes').mean() > 0.9


def test_intercept_is_a_feature():
  x, y = table()
  without = model(fit_intercept=False).fit(x, y)
  assert without.intercept_.tolist() == [0.0]
  ours = x + 0.0
  columns = np.concatenate([ours, np.full([len(x), 1], 0.5)], 1)
  with_scale = model(intercept_scaling=0.5, row_norm=1.0)
  with_scale.fit(x, y, randomness=Randomness(seed=0))
  by_hand = model(fit_intercept=False, row_norm=math.hypot(1.0, 0.5))
  by_hand.fit(columns, y, randomness=Randomness(seed=0))
  np.testing.assert_allclose(
    parameters(with_scale)[:3], by_hand.coef_[0, :3], rtol=1e-3, atol=1e-3
  )


# Some have other names in other versions.
CHECKS = [
  getattr(estimator_checks, f'check_{name}')
  for name in (
    'parameters_default_constructible',
    'no_attributes_set_in_init',
    'get_params_invariance',
    'set_params',
    'dict_unchanged',
    'estimators_overwrite_params',
    'fit_score_takes_y',
    'estimators_unfitted',
    'fit1d',
    'methods_sample_order_invariance',
    'methods_subset_invariance',
  )
  if hasattr(estimator_checks, f'check_{name}')
]


@pytest.mark.parametrize('check', CHECKS, ids=lambda check: check.__name__)
def test_is_a_scikit_learn_estimator(check):
  check('DPLogisticRegression', DPLogisticRegression())


def test_rows_to_predict_are_checked():
  x, y = table(60)
  fitted = model().fit(x, y)
  with pytest.raises(ValueError, match='Row 7'):
    fitted.predict(NOT_A_NUMBER)
  with pytest.raises(ValueError, match='shape'):
    fitted.predict(x[:, :2])


def test_too_little_regularization_is_named():
  model = tfdpflows.DPLogisticRegression(regularization=1e-12)
  with pytest.raises(accounting.BudgetExceededError, match='regularization is'):
    model.fit(np.ones([5, 2]), [0, 1, 0, 1, 1])
