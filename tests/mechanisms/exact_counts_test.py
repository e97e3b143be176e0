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


def test_a_repeated_release_is_the_same_and_not_charged_again(tmp_path):
  source = Randomness(seed=0)
  with accounting.PrivacyLedger(tmp_path / 'ledger') as ledger:
    first = mechanisms.from_exact_counts(COUNTS, 3.0, source, ledger)
    spent = ledger.epsilon(1e-5)

  def resumed(counts):
    with accounting.PrivacyLedger.open(tmp_path / 'ledger') as ledger:
      source = Randomness(seed=0)
      found = mechanisms.from_exact_counts(
        counts, 3.0, source, ledger, resume=True
      )
      assert ledger.epsilon(1e-5) == spent
      return found

  for counts in (COUNTS, dict(reversed(COUNTS.items()))):
    again = resumed(counts)
    for name in COUNTS:
      np.testing.assert_array_equal(first[name], again[name])
  with pytest.raises(accounting.LedgerError):
    resumed({**COUNTS, 'age': COUNTS['age'] + 1})


def test_noise_of_one_array_is_never_that_of_another(tmp_path):
  """Else the difference of the two would have none."""
  one, other = np.arange(3), np.arange(3) ** 2
  with accounting.PrivacyLedger(tmp_path / 'ledger') as ledger:
    mechanisms.from_exact_counts(
      {'a': one, 'b': other}, 3.0, Randomness(seed=0), ledger
    )
  with (
    accounting.PrivacyLedger.open(tmp_path / 'ledger') as ledger,
    pytest.raises(accounting.LedgerError, match='another table'),
  ):
    mechanisms.from_exact_counts(
      {'b': one, 'a': other}, 3.0, Randomness(seed=0), ledger, resume=True
    )


def test_bad_arguments_are_refused_before_a_charge():
  ledger = accounting.PrivacyLedger()
  for counts, said in (
    ({'a': [1, np.nan]}, r"counts\['a'\] has a count that is no finite"),
    ({'a': ['many']}, r"counts\['a'\] has dtype"),
    ({1: [1], '1': [1]}, "Two arrays of counts are named '1'"),
  ):
    with pytest.raises(ValueError, match=said):
      mechanisms.from_exact_counts(counts, 1.0, None, ledger)
  for arguments in (
    {'noise_multiplier': 0.0},
    {'l2_sensitivity': -1.0},
    {'l2_sensitivity': 5e-324},
  ):
    with pytest.raises(ValueError, match='must be'):
      mechanisms.from_exact_counts(
        {'a': [1]},
        **{'noise_multiplier': 1.0, **arguments},
        randomness=None,
        ledger=ledger,
      )
  assert mechanisms.from_exact_counts({}, 1.0, None, ledger) == {}
  assert not ledger.entries


@pytest.mark.parametrize('count', [2**53 + 2, 2**60 + 128])
def test_no_rounding_moves_a_count_by_more_than_a_row(count):
  """A row more may be 256 more as a float64."""
  found = [
    mechanisms.from_exact_counts(
      {'a': np.array([value], np.int64)},
      1.0,
      Randomness(seed=0),
      accounting.PrivacyLedger(),
    )['a'][0]
    for value in (count, count - 1)
  ]
  assert abs(found[0] - found[1]) <= 1


def test_counts_of_units_need_their_sensitivity():
  ledger = accounting.PrivacyLedger(privacy_unit='person')
  with pytest.raises(ValueError, match='give the l2_sensitivity'):
    mechanisms.from_exact_counts({'a': [1, 2]}, 1.0, None, ledger)
  mechanisms.from_exact_counts(
    {'a': [1, 2]}, 1.0, None, ledger, l2_sensitivity=3.0
  )
  assert len(ledger.entries) == 1
