"""A noisy distance between the marginals of a table and of a model."""

import dp_accounting
import numpy as np
import pytest

from tfdpflows import accounting, mechanisms
from tfdpflows.mechanisms.marginals import BinnedRows
from tfdpflows.randomness import Randomness

CODES = np.array([[0, 0], [0, 1], [1, 1], [1, 2]])
GROUPS = [(0,), (0, 1)]
UNIFORM = [np.full(2, 1 / 2), np.full([2, 3], 1 / 6)]


def _distance(codes=CODES, ledger=None, probabilities=UNIFORM, **kwargs):
  kwargs = {'noise_multiplier': 1e-9, 'randomness': Randomness(seed=0)} | kwargs
  return mechanisms.noisy_total_variation(
    codes,
    [2, 3],
    kwargs.pop('groups', GROUPS),
    probabilities,
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    **kwargs,
  )


def test_it_is_the_mean_over_the_groups():
  # 0 of the column; four cells of 1/4 for 1/6 and two of 0 of the pair.
  expected = (0 + (4 / 12 + 2 / 6) / 2) / 2
  assert _distance() == pytest.approx(expected)
  assert _distance(BinnedRows(CODES, [2, 3])) == pytest.approx(expected)
  empty = _distance(np.empty([0, 2], int), num_examples=4)
  assert empty == pytest.approx(1 / 2)


def test_the_noise_has_the_scale_that_is_charged():
  ledger = accounting.PrivacyLedger()
  found = [
    _distance(
      ledger=ledger,
      noise_multiplier=2.0,
      randomness=Randomness(),
      label=f'distance {i}',
    )
    for i in range(2000)
  ]
  assert abs(np.std(found) * 2 * len(CODES) / 2.0 - 1) < 0.06
  assert abs(np.mean(found) - _distance()) < 0.03
  assert ledger.entries[0].event == dp_accounting.GaussianDpEvent(2.0)


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'groups': []}, '0 groups and 2 arrays'),
    ({'groups': [(0,), (0, 0)]}, 'different columns'),
    ({'probabilities': UNIFORM[:1]}, '2 groups and 1 arrays'),
    ({'probabilities': UNIFORM[::-1]}, r'columns \(0,\) have shape \(2, 3\)'),
    ({'probabilities': [2 * p for p in UNIFORM]}, 'sum 2'),
    ({'probabilities': [p * np.nan for p in UNIFORM]}, 'sum nan'),
    ({'probabilities': [[1.5, -0.5], UNIFORM[1]]}, '0 or more'),
    ({'noise_multiplier': 0}, 'noise_multiplier is 0'),
    ({'codes': CODES[:0]}, 'no rows'),
    ({'num_examples': 10**13}, '1e.12 at most'),
  ],
)
def test_refusals_charge_nothing(kwargs, message):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=message):
    _distance(ledger=ledger, **kwargs)
  assert not ledger.entries
