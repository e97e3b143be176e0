"""DP-MoG: what it is charged, and that no more comes from the rows."""

import dp_accounting
import four_clusters
import numpy as np
import pytest

from tfdpflows import accounting, models
from tfdpflows.accounting import BudgetExceededError, PrivacyBudget
from tfdpflows.mechanisms import moments
from tfdpflows.models.dp_mog import em


def test_is_charged_before_the_rows_are_looked_at(monkeypatch):
  ledger = accounting.PrivacyLedger(
    budget=PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  look = moments.noisy_moments

  def check(*args):
    (entry,) = ledger.entries
    assert entry.label == 'DP-MoG'
    return look(*args)

  monkeypatch.setattr(em, 'noisy_moments', check)
  mixture = models.DPMoG(2, 2).fit(
    four_clusters.make(100)[0], **four_clusters.BUDGET, ledger=ledger
  )
  assert ledger.entries[0].event == mixture.event
  assert 0.995 < ledger.epsilon() <= 1


def test_a_ledger_that_is_spent_refuses_and_nothing_is_read(monkeypatch):
  ledger = accounting.PrivacyLedger(
    budget=PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='before')
  monkeypatch.setattr(
    em, 'noisy_moments', lambda *args: pytest.fail('was read')
  )
  mixture = models.DPMoG(2, 2)
  with pytest.raises(BudgetExceededError, match='DP-MoG'):
    mixture.fit(
      four_clusters.make(100)[0], **four_clusters.BUDGET, ledger=ledger
    )
  assert [entry.label for entry in ledger.entries] == ['before']
  with pytest.raises(RuntimeError, match='not fitted'):
    mixture.distribution


def test_a_budget_too_small_for_any_noise_is_refused():
  with pytest.raises(BudgetExceededError, match='noise multiplier'):
    models.DPMoG().fit(four_clusters.make(50)[0], epsilon=1e-8, delta=1e-9)


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

  monkeypatch.setattr(em, 'noisy_moments', replay)
  outputs = []
  for x in (four_clusters.make(500)[0], np.full([3, 2], 0.7), np.empty([0, 2])):
    number = [0]
    model = models.DPMoG(3, 2, adaptive=adaptive)
    outputs.append(model.fit(x, **four_clusters.BUDGET, seed=3).parameters)
  for other in outputs[1:]:
    np.testing.assert_array_equal(outputs[0].means, other.means)
    np.testing.assert_array_equal(outputs[0].scales, other.scales)


@pytest.mark.parametrize('adaptive', [True, False])
@pytest.mark.parametrize(
  'row', [[0.2, 0.1], [50.0, -1e200], [np.nan, 0.0], [np.inf, 1.0]]
)
def test_one_row_moves_every_round_by_its_sensitivity(row, adaptive):
  """Neighbouring tables, frozen noise, the parameters of a fit half done."""
  x = four_clusters.make(60)[0]
  rounds_of = em.NoisyEM(2.0, 2, 3, 1.0, 'gaussian', adaptive)
  rounds = []
  look = em.noisy_moments

  def record(parts, k, noise, rng):
    state = rng.bit_generator.state
    found = look(parts, k, noise, rng)
    if len(rounds) < len(rounds_of.noises):
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
    patch.setattr(em, 'noisy_moments', record)
    rounds_of.run(x, 3, 1e-8, np.random.default_rng(5))
    turn, moved = iter(range(99)), []
    neighbour = np.insert(x, 7, row, axis=0)
    rounds_of.run(neighbour, 3, 1e-8, np.random.default_rng(5))
  assert len(moved) == len(rounds)
  if np.isfinite(row).all():
    assert min(moved) > 0
  else:
    assert max(moved) < 1e-9


@pytest.mark.parametrize('accountant', ['pld', 'rdp', 'moments', 'zcdp'])
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_every_accountant_sets_the_noise(accountant, noise):
  mixture = models.DPMoG(1, 2, noise=noise).fit(
    four_clusters.make(50)[0], **four_clusters.BUDGET, accountant=accountant
  )
  statement = mixture.privacy_statement()
  assert 0.99 < statement.epsilon <= 1
  assert statement.guarantee == 'upper_bound'
  exact = accounting.compute_epsilon(mixture.event, 1e-5, 'pld')
  assert exact <= 1 + 1e-6


def test_noise_does_not_depend_on_the_number_of_components():
  events = {
    repr(
      models.DPMoG(k, 2)
      .fit(four_clusters.make(50)[0], **four_clusters.BUDGET)
      .event
    )
    for k in (None, 1, 7)
  }
  assert len(events) == 1


def test_prior_and_flow_are_composed_and_not_added():
  budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
  ledger = accounting.PrivacyLedger(budget=budget)
  models.DPMoG(2, 2).fit(
    four_clusters.make(500)[0], epsilon=0.6, delta=5e-6, ledger=ledger
  )
  left = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent, budget, spent=ledger.committed_event
  )
  ledger.charge(dp_accounting.GaussianDpEvent(left), label='flow')
  alone = accounting.compute_epsilon(dp_accounting.GaussianDpEvent(left), 5e-6)
  assert alone > 0.7  # more than the 0.4 that adding would leave


@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_a_row_replaced_is_paid_for(noise):
  multipliers = []
  for relation in ('ADD_OR_REMOVE_ONE', 'REPLACE_ONE'):
    ledger = accounting.PrivacyLedger(
      budget=PrivacyBudget(epsilon=1.0, delta=1e-5),
      accountant='rdp',
      neighboring_relation=dp_accounting.NeighboringRelation[relation],
    )
    mixture = models.DPMoG(1, 2, noise=noise).fit(
      four_clusters.make(50)[0], **four_clusters.BUDGET, ledger=ledger
    )
    assert 0.99 < ledger.epsilon() <= 1
    assert mixture.privacy_statement().neighboring_relation == relation
    event = mixture.event.events[0]
    parts = getattr(event, 'events', [event])
    multipliers.append([part.noise_multiplier for part in parts])
  np.testing.assert_allclose(
    np.divide(multipliers[1], multipliers[0]), 2.0, rtol=0.02
  )


def test_the_statement_says_what_was_done():
  system = models.DPMoG(1, 1).fit(
    four_clusters.make(54_321)[0], **four_clusters.BUDGET
  )
  text = ' '.join(str(system.privacy_statement()).split())
  assert 'clipped to an l2 norm of 1' in text
  assert 'DP-MoG: every round reads all rows' in text
  assert '54321' not in text and '54,321' not in text


def test_the_statement_does_not_deny_the_samples_of_others():
  ledger = accounting.PrivacyLedger(
    budget=PrivacyBudget(epsilon=2.0, delta=1e-5)
  )
  system = models.DPMoG(1, 1).fit(
    four_clusters.make(50)[0], **four_clusters.BUDGET, ledger=ledger
  )
  before = system.privacy_statement()
  assert before.sampling == accounting.privacy_statement(ledger).sampling
  sampled = dp_accounting.PoissonSampledDpEvent(
    0.01, dp_accounting.GaussianDpEvent(5.0)
  )
  ledger.charge(sampled, 10, label='training')
  after = system.privacy_statement()
  assert after.sampled
  assert after.sampling == accounting.privacy_statement(ledger).sampling
  assert after.sampling != before.sampling


def test_a_ledger_without_a_budget_is_stated_at_the_delta_of_the_fit(tmp_path):
  ledger = accounting.PrivacyLedger()
  mixture = models.DPMoG(1, 1).fit(
    four_clusters.make(50)[0], **four_clusters.BUDGET, ledger=ledger
  )
  statement = mixture.privacy_statement()
  assert statement.delta == 1e-5
  assert 0.99 < statement.epsilon <= 1
  mixture.save(tmp_path / 'mixture.json')
  loaded = models.DPMoG.load(tmp_path / 'mixture.json')
  assert str(loaded.privacy_statement()) == str(statement)
