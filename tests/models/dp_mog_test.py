"""DP-MoG: what it promises, what it survives, how good it is."""

import json

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import accounting, flows, models
from tfdpflows.accounting import BudgetExceededError, PrivacyBudget
from tfdpflows.mechanisms import moments
from tfdpflows.models import gaussian_mixture, mixture_rounds, mixture_updates
from tfdpflows.randomness import Randomness

_BUDGET = {'epsilon': 1.0, 'delta': 1e-5}


def clusters(n, seed=0, d=2):
  """Four tight clusters in the unit ball, and how likely they are at best."""
  rng = np.random.default_rng(seed)
  centers = 0.5 * np.stack(
    [[np.cos(a), np.sin(a)] + [0.0] * (d - 2) for a in (0.3, 1.5, 3.0, 4.4)]
  )
  x = centers[rng.integers(4, size=n)] + 0.03 * rng.normal(size=[n, d])
  best = -np.log(4) - d / 2 * (1 + np.log(2 * np.pi * 0.03**2))
  return x, best


@pytest.fixture(scope='module')
def fitted():
  return models.DPMoG(num_iterations=6).fit(
    clusters(20_000)[0], **_BUDGET, seed=1
  )


@pytest.mark.core
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_finds_clusters(noise):
  x, best = clusters(20_000)
  mixture = models.DPMoG(8, noise=noise).fit(x, **_BUDGET, seed=0)
  held_out = clusters(3_000, seed=1)[0]
  found = mixture.log_prob(held_out).numpy().mean()
  single = models.DPMoG(1, noise=noise).fit(x, **_BUDGET, seed=0)
  assert single.log_prob(held_out).numpy().mean() < best - 1.2
  assert best - 0.3 < found <= best + 0.05


def test_coordinates_of_their_own_beat_those_of_the_paper():
  x, _ = clusters(5_000, d=6)
  held_out = clusters(2_000, seed=1, d=6)[0]
  scores = [
    models.DPMoG(4, adaptive=adaptive)
    .fit(x, **_BUDGET, seed=0)
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
  mixture = models.DPMoG(num_iterations=0).fit(x, **_BUDGET, seed=0)
  assert mixture.parameters.log_prob(x).mean() > best - 0.05


def test_is_charged_before_the_rows_are_looked_at(monkeypatch):
  ledger = accounting.PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5))
  look = moments.noisy_moments

  def check(*args):
    (entry,) = ledger.entries
    assert entry.label == 'DP-MoG'
    return look(*args)

  monkeypatch.setattr(mixture_rounds, 'noisy_moments', check)
  mixture = models.DPMoG(2, 2).fit(clusters(100)[0], **_BUDGET, ledger=ledger)
  assert ledger.entries[0].event == mixture.event
  assert 0.995 < ledger.epsilon() <= 1


def test_a_ledger_that_is_spent_refuses_and_nothing_is_read(monkeypatch):
  ledger = accounting.PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5))
  ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='before')
  monkeypatch.setattr(
    mixture_rounds, 'noisy_moments', lambda *args: pytest.fail('was read')
  )
  mixture = models.DPMoG(2, 2)
  with pytest.raises(BudgetExceededError, match='DP-MoG'):
    mixture.fit(clusters(100)[0], **_BUDGET, ledger=ledger)
  assert [entry.label for entry in ledger.entries] == ['before']
  with pytest.raises(RuntimeError, match='not fitted'):
    mixture.distribution


def test_a_budget_too_small_for_any_noise_is_refused():
  with pytest.raises(BudgetExceededError, match='noise multiplier'):
    models.DPMoG().fit(clusters(50)[0], epsilon=1e-8, delta=1e-9)


@pytest.mark.parametrize('adaptive', [True, False])
def test_all_that_is_learned_comes_through_the_mechanism(monkeypatch, adaptive):
  made = []
  look = moments.noisy_moments

  def replay(parts, k, noise, rng):
    list(parts)
    # The starting points come from the same stream as the noise.
    drawn = look([], k, noise, rng)
    if len(made) == number[0]:
      made.append(drawn)
    found = made[number[0]]
    number[0] += 1
    return found

  monkeypatch.setattr(mixture_rounds, 'noisy_moments', replay)
  outputs = []
  for x in (clusters(500)[0], np.full([3, 2], 0.7), np.empty([0, 2])):
    number = [0]
    model = models.DPMoG(3, 2, adaptive=adaptive)
    outputs.append(model.fit(x, **_BUDGET, seed=3).parameters)
  for other in outputs[1:]:
    np.testing.assert_array_equal(outputs[0].means, other.means)
    np.testing.assert_array_equal(outputs[0].scales, other.scales)


@pytest.mark.parametrize('adaptive', [True, False])
@pytest.mark.parametrize(
  'row', [[0.2, 0.1], [50.0, -1e200], [np.nan, 0.0], [np.inf, 1.0]]
)
def test_one_row_moves_every_round_by_its_sensitivity(row, adaptive):
  """Neighbouring tables, frozen noise, the parameters of a fit half done."""
  x = clusters(60)[0]
  kwargs = {
    'noises': mixture_rounds.round_noises(2.0, 2, 3, 1.0, 'gaussian', adaptive),
    'num_iterations': 3,
    'num_components': 3,
    'adaptive': adaptive,
    'floor': 1e-8,
  }
  rounds = []
  look = mixture_rounds.noisy_moments

  def record(parts, k, noise, rng):
    state = rng.bit_generator.state
    found = look(parts, k, noise, rng)
    if len(rounds) < len(kwargs['noises']):
      rounds.append((state, found, noise))
      return found
    # The neighbour: same public past in every round, so the same mixture.
    number = next(turn)
    _, theirs, _ = rounds[number]
    size = [
      np.linalg.norm(a - b) / (m * noise.radius**i)
      for i, (a, b, m) in enumerate(
        zip(
          (found.counts, found.first, found.second),
          (theirs.counts, theirs.first, theirs.second),
          noise.multipliers,
        )
      )
    ]
    assert np.linalg.norm(size) <= (1 + 1e-9) / noise.noise_multiplier
    moved.append(np.linalg.norm(size) * noise.noise_multiplier)
    return theirs

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mixture_rounds, 'noisy_moments', record)
    mixture_rounds.run_rounds(x, rng=np.random.default_rng(5), **kwargs)
    turn, moved = iter(range(99)), []
    neighbour = np.insert(x, 7, row, axis=0)
    mixture_rounds.run_rounds(neighbour, rng=np.random.default_rng(5), **kwargs)
  assert len(moved) == len(rounds)
  if np.isfinite(row).all():
    assert min(moved) > 0
  else:
    assert max(moved) < 1e-9


@pytest.mark.parametrize('adaptive', [True, False])
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
  mixture = models.DPMoG(2, covariance_floor=1e-4).fit(x, **_BUDGET, seed=0)
  covariances = mixture.parameters.covariances
  assert np.linalg.eigvalsh(covariances).min() >= 0.999e-4


def test_noise_that_hides_everything_leaves_one_gaussian():
  mixture = models.DPMoG().fit(
    clusters(300)[0], epsilon=0.01, delta=1e-5, seed=0
  )
  assert len(mixture.parameters.weights) == 2  # with the tail
  covariance = mixture.parameters.covariances
  assert np.linalg.eigvalsh(covariance).max() <= 10


@pytest.mark.parametrize('accountant', ['pld', 'rdp', 'moments', 'zcdp'])
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_every_accountant_sets_the_noise(accountant, noise):
  mixture = models.DPMoG(1, 2, noise=noise).fit(
    clusters(50)[0], **_BUDGET, accountant=accountant
  )
  statement = mixture.privacy_statement()
  assert 0.99 < statement.epsilon <= 1
  assert statement.guarantee == 'upper_bound'
  exact = accounting.compute_epsilon(mixture.event, 1e-5, 'pld')
  assert exact <= 1 + 1e-6


def test_noise_does_not_depend_on_the_number_of_components():
  events = {
    repr(models.DPMoG(k, 2).fit(clusters(50)[0], **_BUDGET).event)
    for k in (None, 1, 7)
  }
  assert len(events) == 1


def test_prior_and_flow_are_composed_and_not_added():
  budget = PrivacyBudget(1.0, 1e-5)
  ledger = accounting.PrivacyLedger(budget=budget)
  models.DPMoG(2, 2).fit(
    clusters(500)[0], epsilon=0.6, delta=5e-6, ledger=ledger
  )
  left = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent, budget, spent=ledger.committed_event
  )
  ledger.charge(dp_accounting.GaussianDpEvent(left), label='flow')
  alone = accounting.compute_epsilon(dp_accounting.GaussianDpEvent(left), 5e-6)
  assert alone > 0.7  # more than the 0.4 that adding would leave


def test_the_statement_says_what_was_done(fitted):
  text = str(fitted.privacy_statement())
  assert 'clipped to an l2 norm of 1' in text
  assert 'seed' in text
  assert '20000' not in text and '20,000' not in text
  system = models.DPMoG(1, 1).fit(clusters(50)[0], **_BUDGET)
  assert not system.privacy_statement().seeded


def test_noise_is_not_used_twice(fitted):
  with pytest.raises(RuntimeError, match='fitted already'):
    fitted.fit(clusters(50)[0], **_BUDGET)
  randomness = Randomness(3)
  x = clusters(50)[0]
  models.DPMoG(1, 1).fit(x, **_BUDGET, randomness=randomness)
  with pytest.raises(ValueError, match='used already'):
    models.DPMoG(1, 1).fit(x, **_BUDGET, randomness=randomness)


def test_a_seed_repeats_and_the_system_does_not():
  x = clusters(200)[0]
  fit = lambda **kwargs: models.DPMoG(2, 1).fit(x, **_BUDGET, **kwargs)
  means = [m.parameters.means for m in (fit(seed=5), fit(seed=5), fit(), fit())]
  np.testing.assert_array_equal(means[0], means[1])
  assert np.abs(means[2] - means[3]).max() > 0


def test_the_distribution_is_what_was_released(fitted):
  x = clusters(100, seed=4)[0]
  np.testing.assert_allclose(
    fitted.log_prob(x), fitted.parameters.log_prob(x), rtol=1e-3, atol=1e-3
  )
  samples = fitted.sample(20_000, seed=3).numpy()
  own = clusters(20_000, seed=3)[0]
  np.testing.assert_allclose(samples.mean(0), own.mean(0), atol=0.02)
  np.testing.assert_allclose(np.cov(samples.T), np.cov(own.T), atol=0.02)


def test_serves_as_the_base_of_a_flow(fitted):
  flow = flows.masked_autoregressive_flow(2, 1, (8,), base=fitted.distribution)
  x = clusters(10, seed=4)[0].astype(np.float32)
  np.testing.assert_allclose(
    flow.log_prob(x), fitted.log_prob(x), rtol=1e-3, atol=1e-3
  )
  assert flow.sample(3).shape == [3, 2]
  assert (
    models.DPMoG(1, 0, dtype='float64').fit(x, **_BUDGET).distribution.dtype
    == tf.float64
  )


@pytest.mark.slow
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
  rows = clusters(300, seed=5)[0].astype(np.float32)
  model.fit(rows, verbose=0)
  # The prior is public by now and stays as it is.
  np.testing.assert_array_equal(
    fitted.distribution.components_distribution.loc,
    np.float32(fitted.parameters.means),
  )
  assert 0.9 < plan.ledger.epsilon() <= 1
  assert np.isfinite(model.log_prob(rows)).all()


def test_is_saved_and_loaded(fitted, tmp_path):
  path = tmp_path / 'mixture.json'
  fitted.save(path)
  loaded = models.DPMoG.load(path)
  for name in ('weights', 'means', 'scales'):
    np.testing.assert_array_equal(
      getattr(loaded.parameters, name), getattr(fitted.parameters, name)
    )
  assert loaded.event == fitted.event
  assert str(loaded.privacy_statement()) == str(fitted.privacy_statement())
  assert loaded.get_config() == fitted.get_config()


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda c: c.update(format_version=2), 'version 2'),
    (lambda c: c.pop('format'), 'no file of a DPMoG'),
    (lambda c: c.pop('scales'), 'is damaged'),
    (lambda c: c['weights'].pop(), 'is damaged'),
    (lambda c: c['weights'].__setitem__(0, -1.0), 'is damaged'),
    (lambda c: c['ledger'].update(budget={'epsilon': 0.5}), 'is damaged'),
  ],
)
def test_a_damaged_file_is_refused(fitted, tmp_path, change, message):
  path = tmp_path / 'mixture.json'
  fitted.save(path)
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message):
    models.DPMoG.load(path)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'num_components': 0}, 'num_components'),
    ({'num_components': 2.5}, 'num_components'),
    ({'num_iterations': -1}, 'num_iterations'),
    ({'l2_norm_bound': 0.0}, 'l2_norm_bound'),
    ({'l2_norm_bound': np.inf}, 'l2_norm_bound'),
    ({'noise': 'none'}, "'gaussian', 'laplace'"),
    ({'covariance_floor': 0.0}, 'covariance_floor'),
    ({'tail_weight': 1.0}, 'tail_weight'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    models.DPMoG(**arguments)


@pytest.mark.parametrize(
  'x, message',
  [
    (np.zeros(3), r'\[num_rows, d\]'),
    (np.zeros([3, 0]), r'\[num_rows, d\]'),
    (pd.DataFrame({'a': ['x', 'y']}), 'matrix of numbers'),
  ],
)
def test_what_is_no_matrix_is_refused(x, message):
  with pytest.raises(ValueError, match=message):
    models.DPMoG().fit(x, **_BUDGET)


def test_a_frame_of_numbers_will_do():
  frame = pd.DataFrame(clusters(50)[0], columns=['a', 'b'])
  assert models.DPMoG(1, 1).fit(frame, **_BUDGET).parameters.means.shape[1] == 2


def test_longer_rows_are_scaled_to_the_norm():
  x = clusters(3_000)[0]
  far = 40 * x
  near = far / np.maximum(np.linalg.norm(far, axis=1, keepdims=True) / 2, 1)
  fit = lambda rows: models.DPMoG(2, 2, l2_norm_bound=2.0).fit(
    rows, **_BUDGET, seed=1
  )
  np.testing.assert_allclose(
    fit(far).parameters.means, fit(near).parameters.means, atol=1e-8
  )


def test_projection_keeps_what_is_in_range():
  matrix = np.diag([4.0, 1.0, 0.1])[None]
  found = gaussian_mixture.project_covariances(matrix, 0.5, 2.0)
  np.testing.assert_allclose(found[0], np.diag([2.0, 1.0, 0.5]), atol=1e-12)


def test_more_noise_is_believed_less():
  prior, _ = mixture_updates.prior(2, 1.0)
  seen = moments.Moments(
    np.array([1e4]), np.array([[1e4, 0.0]]), np.eye(2)[None] * 3e4
  )
  means = []
  for sigma in (1e-3, 100.0, 1e5):
    noise = moments.MomentNoise(sigma, 2, 3.0)
    refined, doubt = mixture_updates.refine(
      seen, noise, prior, np.ones([2, 1]), 1e-8
    )
    means.append(refined.means[0, 0])
    assert (doubt > 0).all()
  scale = prior.scales[0, 0, 0]
  assert means[0] == pytest.approx(scale)
  assert 0 < means[1] < means[0]
  assert means[2] == 0
