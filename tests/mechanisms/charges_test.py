"""One-shot releases are paid for once, whatever is resumed or refused."""

import types

import numpy as np
import pandas as pd
import pytest
from dp_accounting import NeighboringRelation

from tfdpflows import accounting, mechanisms, pate, tuning
from tfdpflows.mechanisms.releases import charge_release
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema

X = np.random.default_rng(0).normal(size=[200, 1])
MARKS = ('minimum', 'maximum')
COLUMN = types.SimpleNamespace(
  name='a', size=4.0, cell=1.0, missing=False, ordered=True, resolution=1.0
)


def _normalization(x, ledger, bound=5.0, **kwargs):
  found = mechanisms.private_normalization(
    x, bound=bound, epsilon=0.5, ledger=ledger, **kwargs
  )
  return found.mean


def _quantile(x, ledger, q=0.5, **kwargs):
  return mechanisms.private_quantile(
    x[:, 0], q, lower=-9.0, upper=9.0, epsilon=0.5, ledger=ledger, **kwargs
  )


def _histogram(x, ledger, max_bins=64, randomness=None, **kwargs):
  (found,) = mechanisms.noisy_histograms(
    x, [COLUMN], 3.0, randomness, ledger, max_bins=max_bins, **kwargs
  )
  return found.counts


def _bounds(x, ledger, parts=MARKS, randomness=None, **kwargs):
  df = pd.DataFrame({'a': x[:, 0]})
  draft = TableSchema([Field('a', 'number', -9.0, 9.0, from_data=parts)])
  found = mechanisms.private_bounds(
    df, draft, 5.0, 1e-6, randomness, ledger, **kwargs
  )
  return found['a'].maximum


RELEASES = {
  'normalization': (_normalization, {'bound': 2.0}),
  'quantile': (_quantile, {'q': 0.9}),
  'marginals': (_histogram, {'max_bins': 2}),
  'bounds': (_bounds, {'parts': MARKS[:1]}),
}
EACH = pytest.mark.parametrize('label', RELEASES)


@EACH
def test_resume_repeats_and_pays_for_nothing_else(label, tmp_path):
  release, other = RELEASES[label]
  path, source = str(tmp_path / 'ledger'), Randomness()
  with accounting.PrivacyLedger(path) as ledger:
    first = release(X, ledger, randomness=source)
  again = lambda: Randomness(secret=source.secret)
  moved = X.copy()
  moved[3] += 1e-9
  for x, randomness, more, message in (
    (X, Randomness(), {}, 'other random numbers'),
    (X, again(), other, f'another {next(iter(other))}'),
    (moved, again(), {}, 'another table'),
  ):
    with accounting.PrivacyLedger.open(path) as ledger:
      with pytest.raises(accounting.LedgerError, match=message):
        release(x, ledger, randomness=randomness, resume=True, **more)
      assert len(ledger.entries) == 1
  with accounting.PrivacyLedger.open(path) as ledger:
    with pytest.raises(ValueError, match='`randomness` of then'):
      release(X, ledger, randomness=None, resume=True)
    np.testing.assert_array_equal(
      release(X, ledger, randomness=again(), resume=True), first
    )
    assert len(ledger.entries) == 1
    # Paid once, repeated once; and noise of one secret is charged once.
    for resume in (False, True):
      with pytest.raises(accounting.LedgerError, match='used twice'):
        release(X, ledger, randomness=again(), resume=resume)
    assert len(ledger.entries) == 1


@EACH
def test_a_refused_charge_leaves_the_randomness_as_it_was(label):
  release, _ = RELEASES[label]
  source = Randomness()
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1e-3, delta=1e-9)
  )
  with pytest.raises(accounting.BudgetExceededError, match=label):
    release(X, ledger, randomness=source)
  assert ledger.entries == ()
  ledger = accounting.PrivacyLedger()
  release(X, ledger, randomness=source)
  with pytest.raises(ValueError, match='used already'):
    release(X, ledger, randomness=source)
  assert len(ledger.entries) == 1


@EACH
def test_a_seed_is_known_to_every_later_statement(label, tmp_path):
  release, _ = RELEASES[label]
  path = str(tmp_path / 'ledger')
  budget = accounting.PrivacyBudget(epsilon=20.0, delta=1e-5)
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    release(X, ledger, randomness=Randomness(), label='unknown')
    assert not accounting.privacy_statement(ledger).seeded
    release(X, ledger, randomness=Randomness(seed=0), label='known')
    assert accounting.privacy_statement(ledger).seeded
  with accounting.PrivacyLedger.open(path) as ledger:
    assert accounting.privacy_statement(ledger).seeded


# The types of a table with a schema are checked by that.
@pytest.mark.parametrize('label', ['normalization', 'quantile', 'marginals'])
def test_what_is_no_real_number_is_refused_before_the_charge(label):
  release, _ = RELEASES[label]
  ledger = accounting.PrivacyLedger()
  for bad, message in (
    (np.array([[0.5 + 1e9j]] * 5), 'complex128'),
    (np.array([['1']]).astype(object), 'object'),
    (np.ma.masked_array([[1.0]], [[True]]), 'masked'),
  ):
    with pytest.raises(ValueError, match=message):
      release(bad, ledger, randomness=Randomness())
  assert ledger.entries == ()


def test_a_function_of_values_needs_its_source_to_resume():
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match='`source`'):
    mechanisms.private_quantile(
      lambda: X[:, 0],
      0.5,
      lower=-9.0,
      upper=9.0,
      epsilon=0.5,
      ledger=ledger,
      randomness=Randomness(),
      resume=True,
    )
  assert ledger.entries == ()


def test_the_ledger_does_not_tell_whether_two_tables_are_the_same():
  ledger, source = accounting.PrivacyLedger(), Randomness()
  event = accounting.ExponentialMechanismDpEvent(0.5)
  for label in ('a', 'b'):
    charge_release(
      ledger, event, label=label, randomness=source, facts={}, arrays=[X]
    )
  owners = [
    entry.randomness_id.split(' ', 1) for entry in ledger._state.entries
  ]
  assert owners[0][0] != owners[1][0] and owners[0][1] != owners[1][1]


def test_a_secret_has_another_noise_for_another_table_or_parameter():
  """Also in another ledger: the difference of two releases is not theirs."""
  event = accounting.ExponentialMechanismDpEvent(0.5)
  replaced = NeighboringRelation.REPLACE_ONE

  def drawn(
    x=X, facts=(), relation=NeighboringRelation.ADD_OR_REMOVE_ONE, **kwargs
  ):
    randomness = charge_release(
      accounting.PrivacyLedger(neighboring_relation=relation),
      event,
      label='a',
      randomness=Randomness(**kwargs),
      facts=dict(facts),
      arrays=[x],
    )
    return randomness.numpy('a').normal()

  # Under another relation some noise is the same, of twice the scale.
  ways = {}, {'x': X + 1e-9}, {'facts': {'bound': 2.0}}, {'relation': replaced}
  secret, seed = {'secret': bytes(32)}, {'seed': 1}
  assert len({drawn(**way, **secret) for way in ways}) == 4
  assert len({drawn(**secret) for _ in range(2)}) == 1
  # What is seeded says so, and stays what it was.
  assert {drawn(**way, **seed) for way in ways} == {
    Randomness(1).numpy('a').normal()
  }


@EACH
def test_neighbours_have_two_noises_of_one_secret(label, monkeypatch):
  release, _ = RELEASES[label]
  seen = []
  numpy = Randomness.numpy

  def noted(self, *path):
    seen.append(self.key(*path))
    return numpy(self, *path)

  monkeypatch.setattr(Randomness, 'numpy', noted)
  for x in (X, X[1:]):
    randomness = Randomness(secret=bytes(32))
    release(x, accounting.PrivacyLedger(), randomness=randomness)
  assert len(set(seen)) == len(seen) > 1


def _of_a_function(ledger, randomness):
  mechanisms.private_quantile(
    lambda: X[:, 0], lower=-9.0, upper=9.0, epsilon=0.5, q=0.5,
    ledger=ledger, randomness=randomness,
  )  # fmt: skip


def _sparse_vector(ledger, randomness):
  stream = pate.SparseVector(
    threshold=5.0, epsilon=1.0, max_positives=2, num_teachers=10,
    ledger=ledger, randomness=randomness,
  )  # fmt: skip
  stream.query([[6, 4]])


def _search(ledger, randomness):
  def fit(trial):
    mechanisms.noisy_mean(
      X[:, 0],
      lower=-9.0,
      upper=9.0,
      noise_multiplier=50.0,
      ledger=trial.ledger,
      randomness=trial.randomness,
    )
    return None, 0.0

  tuning.random_search(
    fit,
    {'a': [1]},
    epsilon=1.0,
    delta=1e-5,
    ledger=ledger,
    mean_trials=1.0,
    randomness=randomness,
  )


@pytest.mark.parametrize('release', [_of_a_function, _sparse_vector, _search])
def test_noise_on_what_is_not_known_is_not_merged_with_the_same(release):
  """Their ledgers do not know of which rows they were."""
  secret, ledgers = bytes(32), []
  for _ in range(2):
    ledgers.append(accounting.PrivacyLedger())
    release(ledgers[-1], Randomness(secret=secret))
  with pytest.raises(accounting.LedgerError, match='Nothing was merged'):
    accounting.merge_ledgers(ledgers)


def test_nor_is_it_resumed(tmp_path):
  def release(x, ledger, **kwargs):
    mechanisms.private_quantile(
      lambda: x,
      0.5,
      lower=-9.0,
      upper=9.0,
      epsilon=0.5,
      source=[],
      ledger=ledger,
      randomness=Randomness(secret=bytes(32)),
      **kwargs,
    )

  with accounting.PrivacyLedger(tmp_path / 'ledger') as ledger:
    release(X[:, 0], ledger)
  ledger = accounting.PrivacyLedger.open(tmp_path / 'ledger')
  with pytest.raises(accounting.LedgerError, match='was for another table'):
    release(-X[:, 0], ledger, resume=True)
  ledger.close()


@pytest.mark.parametrize('dtype', ['boolean', 'Int64', 'Float64'])
@pytest.mark.parametrize('null', [False, True])
def test_a_null_decides_about_no_error(dtype, null):
  values = pd.Series([0, 1, 1, None if null else 1] * 5, dtype=dtype)
  ledger = accounting.PrivacyLedger()
  mechanisms.noisy_mean(
    values, lower=0.0, upper=1.0, noise_multiplier=1.0, ledger=ledger
  )
  mechanisms.private_normalization(
    values.to_frame(), bound=1.0, epsilon=1.0, ledger=ledger
  )
  assert len(ledger.entries) == 2


@pytest.mark.parametrize('value', [1.0, np.longdouble('1e4000')])
def test_a_value_decides_about_no_warning(value, recwarn):
  values = np.full(9, value, np.longdouble)
  ledger = accounting.PrivacyLedger()
  mechanisms.noisy_mean(
    values, lower=0.0, upper=1.0, noise_multiplier=1.0, ledger=ledger
  )
  mechanisms.private_quantile(
    values, 0.5, lower=0.0, upper=1.0, epsilon=1.0, ledger=ledger
  )
  assert not recwarn.list
