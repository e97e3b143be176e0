"""Which number of rows of a unit is chosen."""

import numpy as np
import pytest

from tfdpflows import accounting, mechanisms, sampling
from tfdpflows.randomness import Randomness


@pytest.mark.parametrize(
  'counts, most, expected',
  [
    ([1] * 1000, 16, 1),
    ([2] * 900 + [50] * 100, 100, 2),
    # All have more rows than may be used.
    ([48] * 1000, 16, 16),
    # A tenth has twice as many: just worth it or just not.
    ([2] * 800 + [4] * 200, 16, 4),
    ([2] * 950 + [4] * 50, 16, 2),
  ],
)
def test_twice_the_number_covers_a_tenth_of_the_units(counts, most, expected):
  ids = np.repeat(np.arange(len(counts)), counts)
  units = sampling.Units(ids, max_rows_per_unit=most, name='person')
  ledger = accounting.PrivacyLedger(privacy_unit='person')
  found = mechanisms.private_max_rows(
    units, epsilon=1.0, ledger=ledger, randomness=Randomness(seed=0)
  )
  assert found == expected
  (entry,) = ledger.entries
  assert entry.event == accounting.ExponentialMechanismDpEvent(1.0)


def test_bad_input_is_named():
  units = sampling.Units([1, 2], max_rows_per_unit=4, name='person')
  ledger = accounting.PrivacyLedger(privacy_unit='person')
  with pytest.raises(ValueError, match='epsilon is 0'):
    mechanisms.private_max_rows(units, epsilon=0, ledger=ledger)
  with pytest.raises(ValueError, match='share_per_doubling is 2'):
    mechanisms.private_max_rows(
      units, epsilon=1.0, ledger=ledger, share_per_doubling=2
    )
  with pytest.raises(ValueError, match='is for rows'):
    mechanisms.private_max_rows(
      units, epsilon=1.0, ledger=accounting.PrivacyLedger()
    )
  assert not ledger.entries
