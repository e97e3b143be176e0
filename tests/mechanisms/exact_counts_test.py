import numpy as np
import pytest

from tfdpflows import accounting, mechanisms
from tfdpflows.randomness import Randomness

COUNTS = {'age': np.arange(2000), 'sex': np.full([1000, 2], 7)}


def test_noise_is_of_the_sensitivity_of_all_arrays_and_charged():
  ledger = accounting.PrivacyLedger()
  found = mechanisms.from_exact_counts(COUNTS, 3.0, Randomness(seed=0), ledger)
  noise = [(found[name] - COUNTS[name]).ravel() for name in COUNTS]
  for part in noise:
    assert part.std() == pytest.approx(3 * np.sqrt(2), rel=0.05)
    assert abs(part.mean()) < 0.5
  assert abs(np.corrcoef(*noise)[0, 1]) < 0.1
  expected = accounting.PrivacyLedger()
  mechanisms.noisy_mean(
    np.zeros(9), lower=0, upper=1, noise_multiplier=3.0, ledger=expected
  )
  assert ledger.epsilon(1e-5) == expected.epsilon(1e-5)


def test_a_stated_sensitivity_scales_the_noise_and_not_the_cost():
  ledger = accounting.PrivacyLedger()
  found = mechanisms.from_exact_counts(
    COUNTS, 3.0, Randomness(seed=0), ledger, l2_sensitivity=10.0
  )
  assert (found['age'] - COUNTS['age']).std() == pytest.approx(30, rel=0.05)


def test_a_repeated_release_is_the_same_and_not_charged_again():
  ledger, source = accounting.PrivacyLedger(), Randomness(seed=0)
  first = mechanisms.from_exact_counts(COUNTS, 3.0, source, ledger)
  spent = ledger.epsilon(1e-5)
  again = mechanisms.from_exact_counts(
    COUNTS, 3.0, Randomness(source.secret), ledger, resume=True
  )
  np.testing.assert_array_equal(first['sex'], again['sex'])
  assert ledger.epsilon(1e-5) == spent
  other = {**COUNTS, 'age': COUNTS['age'] + 1}
  with pytest.raises(accounting.LedgerError):
    mechanisms.from_exact_counts(
      other, 3.0, Randomness(source.secret), ledger, resume=True
    )


def test_bad_arguments_are_refused_before_a_charge():
  ledger = accounting.PrivacyLedger()
  for counts, said in (
    ({'a': [1, np.nan]}, r"counts\['a'\] has a count that is no finite"),
    ({'a': ['many']}, r"counts\['a'\] has dtype"),
  ):
    with pytest.raises(ValueError, match=said):
      mechanisms.from_exact_counts(counts, 1.0, None, ledger)
  for arguments in ({'noise_multiplier': 0.0}, {'l2_sensitivity': -1.0}):
    with pytest.raises(ValueError, match='must be'):
      mechanisms.from_exact_counts(
        {'a': [1]},
        **{'noise_multiplier': 1.0, **arguments},
        randomness=None,
        ledger=ledger,
      )
  assert mechanisms.from_exact_counts({}, 1.0, None, ledger) == {}
  assert not ledger.entries


def test_counts_of_units_need_their_sensitivity():
  ledger = accounting.PrivacyLedger(privacy_unit='person')
  with pytest.raises(ValueError, match='give the l2_sensitivity'):
    mechanisms.from_exact_counts({'a': [1, 2]}, 1.0, None, ledger)
  mechanisms.from_exact_counts(
    {'a': [1, 2]}, 1.0, None, ledger, l2_sensitivity=3.0
  )
  assert len(ledger.entries) == 1
