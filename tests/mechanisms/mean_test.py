"""A noisy mean."""

import dp_accounting
import numpy as np
import pytest

from tfdpflows import accounting, mechanisms, sampling
from tfdpflows.noise_grid import round_to_grid
from tfdpflows.randomness import Randomness


def _mean(values, ledger=None, **kwargs):
  kwargs = {'lower': -1.0, 'upper': 3.0, 'noise_multiplier': 1.0, **kwargs}
  return mechanisms.noisy_mean(
    values,
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    randomness=Randomness(seed=0),
    **kwargs,
  )


def test_a_row_moves_the_sum_by_no_more_than_the_noise_is_scaled_by():
  rng = np.random.default_rng(0)
  values = rng.normal(1, 3, 50)
  for extreme in (-np.inf, np.inf, np.nan, 3.0, -1.0, 1.0, 1e300):
    # The number of rows is public, and that of the larger table.
    whole = _mean([*values, extreme]) * 51
    part = _mean(np.append(values, 1.0)) * 51  # 1 is the middle: adds nothing.
    assert abs(whole - part) <= 2 + 1e-9


@pytest.mark.parametrize(
  ('lower', 'upper'),
  [
    (0.0, 5e-324),
    (1.0, 1.0 + 2.0**-52),
    (-8e307, 8e307),
    (1e308, 1.5e308),
    (np.float32(0.1), np.float32(0.3)),
  ],
)
def test_a_row_weighs_as_much_between_bounds_that_floats_hardly_tell_apart(
  lower, upper
):
  # With more noise than rows nobody knows whether all of them are at a bound.
  low, high = (
    _mean([bound] * 9, lower=lower, upper=upper, noise_multiplier=1e-9)
    for bound in (lower, upper)
  )
  near = {'rel': 1e-6, 'abs': 5e-323}
  assert (low, high) == pytest.approx((lower, upper), **near)
  noisy = [
    _mean([bound] * 9, lower=lower, upper=upper, noise_multiplier=100.0)
    for bound in (lower, upper)
  ]
  drawn = Randomness(seed=0).numpy('mean').normal(scale=100.0)
  drawn = round_to_grid(drawn, 100.0) / 9
  for found, sign in zip(noisy, (-1, 1)):
    half = (float(upper) - float(lower)) / 2
    expected = float(lower) / 2 + float(upper) / 2 + half * (sign + drawn)
    step = np.spacing(max(abs(float(lower)), abs(float(upper))))
    assert found == pytest.approx(expected, rel=1e-6, abs=4 * step)


def test_the_noise_has_the_scale_that_is_charged():
  ledger = accounting.PrivacyLedger()
  found = [
    mechanisms.noisy_mean(
      np.zeros(10),
      lower=-1.0,
      upper=3.0,
      noise_multiplier=2.0,
      ledger=ledger,
      label=f'mean {i}',
    )
    for i in range(2000)
  ]
  assert abs(np.std(found) * 10 / (2.0 * 2.0) - 1) < 0.06
  assert abs(np.mean(found)) < 0.05
  assert ledger.entries[0].event == dp_accounting.GaussianDpEvent(2.0)


def test_units_count_once_each():
  units = sampling.Units(
    ['a', 'a', 'a', 'b'], max_rows_per_unit=3, weighting='units', name='who'
  )
  ledger = accounting.PrivacyLedger(privacy_unit='who')
  found = _mean(
    [3.0, 3.0, 3.0, -1.0], ledger, units=units, noise_multiplier=1e-9
  )
  assert found == pytest.approx(1.0)


def test_a_release_is_repeated_by_resume_alone():
  ledger = accounting.PrivacyLedger()
  first = _mean([0.0, 1.0], ledger)
  with pytest.raises(accounting.LedgerError, match='used for an earlier'):
    _mean([0.0, 1.0], ledger)
  assert _mean([0.0, 1.0]) == first


@pytest.mark.parametrize(
  ('values', 'kwargs', 'message'),
  [
    ([], {}, 'values is empty'),
    ([[0.0]], {}, r'must be \[n\]'),
    ([0.0], {'upper': -1.0}, 'lower below upper'),
    ([0.0], {'upper': np.inf}, 'must be finite'),
    ([0.0], {'noise_multiplier': 0}, 'noise_multiplier is 0'),
  ],
)
def test_refusals_charge_nothing(values, kwargs, message):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=message):
    _mean(values, ledger, **kwargs)
  assert not ledger.entries
