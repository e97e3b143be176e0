"""DP-MoG: whose random numbers its noise comes from, and how often."""

import copy

import four_clusters
import numpy as np
import pytest

from tfdpflows import accounting, models
from tfdpflows.accounting import BudgetExceededError, PrivacyBudget
from tfdpflows.mechanisms import moments
from tfdpflows.models.dp_mog import em
from tfdpflows.randomness import Randomness


def test_noise_is_not_used_twice():
  x = four_clusters.make(50)[0]
  randomness = Randomness(3)
  ledger = accounting.PrivacyLedger()
  fit = lambda mixture: mixture.fit(
    x, **four_clusters.BUDGET, ledger=ledger, randomness=randomness
  )
  fitted = fit(models.DPMoG(1, 1))
  with pytest.raises(RuntimeError, match='fitted already'):
    fit(fitted)
  with pytest.raises(ValueError, match='used already'):
    fit(models.DPMoG(1, 1))
  assert len(ledger.entries) == 1


@pytest.mark.parametrize(
  'copied',
  [
    lambda randomness: randomness,
    lambda randomness: Randomness(secret=randomness.secret),
    copy.deepcopy,
  ],
)
def test_copies_of_one_randomness_share_no_noise(monkeypatch, copied):
  """Neighbouring tables: equal noise would leave the row between them."""
  found = []
  look = moments.noisy_moments

  def record(*args):
    found.append(look(*args))
    return found[-1]

  monkeypatch.setattr(em, 'noisy_moments', record)
  x = four_clusters.make(200)[0]
  randomness = Randomness()
  for rows, source in ((x, randomness), (x[:-1], copied(randomness))):
    models.DPMoG(1, 0, adaptive=False).fit(
      rows, **four_clusters.BUDGET, randomness=source
    )
  first, second = found
  # Equal noise would leave exactly one row.
  assert abs(first.counts[0] - second.counts[0] - 1) > 1e-6
  assert np.abs(first.first - second.first - x[-1]).min() > 1e-6


@pytest.mark.parametrize('seed', [None, 3])
def test_a_refused_charge_leaves_the_random_numbers_unused(seed):
  x = four_clusters.make(50)[0]
  randomness = Randomness(seed)
  ledger = accounting.PrivacyLedger(
    budget=PrivacyBudget(epsilon=0.5, delta=1e-5)
  )
  fit = lambda epsilon: models.DPMoG(1, 1).fit(
    x, epsilon=epsilon, delta=1e-5, ledger=ledger, randomness=randomness
  )
  with pytest.raises(BudgetExceededError):
    fit(1.0)
  assert not ledger.entries
  assert fit(0.4).ledger is ledger


def test_whoever_states_the_ledger_later_says_that_there_was_a_seed(tmp_path):
  x = four_clusters.make(50)[0]
  path = tmp_path / 'ledger.jsonl'
  ledger = accounting.PrivacyLedger(
    path, budget=PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  fit = lambda **kwargs: models.DPMoG(1, 0, **kwargs.pop('config', {})).fit(
    x, epsilon=0.4, delta=1e-6, ledger=ledger, **kwargs
  )
  fit(seed=1)
  second = fit(config={'name': 'second'})
  assert second.privacy_statement().seeded
  labels = [entry.label for entry in ledger.entries]
  assert labels == ['DP-MoG (seeded)', 'second']
  second.save(tmp_path / 'mixture.json')
  loaded = models.DPMoG.load(tmp_path / 'mixture.json')
  assert loaded.privacy_statement().seeded
  ledger.close()
  again = accounting.PrivacyLedger.open(path, read_only=True)
  assert accounting.privacy_statement(again).seeded


def test_a_fit_of_the_system_is_not_called_seeded():
  mixture = models.DPMoG(1, 1).fit(
    four_clusters.make(50)[0], **four_clusters.BUDGET
  )
  assert not mixture.privacy_statement().seeded
  seeded = models.DPMoG(1, 1).fit(
    four_clusters.make(50)[0], **four_clusters.BUDGET, seed=1
  )
  assert 'seed' in str(seeded.privacy_statement())


def test_a_seed_repeats_and_the_system_does_not():
  x = four_clusters.make(200)[0]
  fit = lambda **kwargs: models.DPMoG(2, 1).fit(
    x, **four_clusters.BUDGET, **kwargs
  )
  means = [m.parameters.means for m in (fit(seed=5), fit(seed=5), fit(), fit())]
  np.testing.assert_array_equal(means[0], means[1])
  assert np.abs(means[2] - means[3]).max() > 0
