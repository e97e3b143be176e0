"""Agreement with values of other implementations, where they are at hand."""

import json
import pathlib
import time

import dp_accounting
import pytest

from tfdpflows import accounting

ORACLES = pathlib.Path(__file__).parents[2].parent / 'shared' / 'oracles'


def cases(name):
  path = ORACLES / f'{name}.json'
  if not path.exists():
    return [pytest.param(None, marks=pytest.mark.skip(f'{path} is not there'))]
  return json.loads(path.read_text())


@pytest.mark.parametrize('case', cases('dpsgd'))
def test_sampled_gaussian(case):
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      case['sampling_probability'],
      dp_accounting.GaussianDpEvent(case['noise_multiplier']),
    ),
    case['steps'],
  )
  pld = accounting.compute_epsilon(event, case['delta'])
  assert pld == pytest.approx(case['epsilon_pld_upper'], rel=1e-2)
  if case['epsilon_prv_lower'] is not None:
    assert case['epsilon_prv_lower'] <= pld <= case['epsilon_prv_upper']
  rdp = accounting.compute_epsilon(event, case['delta'], 'rdp')
  assert rdp == pytest.approx(case['epsilon_rdp'], rel=1e-2)


@pytest.mark.parametrize('case', cases('mixed'))
def test_pipeline(case):
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(case['gaussian_sigma']),
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.LaplaceDpEvent(case['laplace_b']), case['laplace_count']
      ),
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
          case['sampling_probability'],
          dp_accounting.GaussianDpEvent(case['noise_multiplier']),
        ),
        case['steps'],
      ),
    ]
  )
  for name in ('pld', 'rdp'):
    epsilon = accounting.compute_epsilon(event, case['delta'], name)
    assert epsilon == pytest.approx(case[f'epsilon_{name}'], rel=1e-2)


@pytest.mark.parametrize('case', cases('gaussian'))
def test_gaussian(case):
  event = dp_accounting.GaussianDpEvent(case['noise_multiplier'])
  pld = accounting.compute_epsilon(event, case['delta'])
  assert case['epsilon'] <= pld <= case['epsilon'] * (1 + 1e-6)


def test_speed():
  # Noise that no other test uses, so that nothing is remembered.
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      0.01, dp_accounting.GaussianDpEvent(1.0000001)
    ),
    10**4,
  )
  for name, limit in (('pld', 1.0), ('rdp', 0.1)):
    best = 1e9
    for step in range(3):
      again = dp_accounting.ComposedDpEvent(
        [event, dp_accounting.GaussianDpEvent(100.0 + step)]
      )
      start = time.process_time()
      accounting.compute_epsilon(again, 1e-5, name)
      best = min(best, time.process_time() - start)
    assert best < limit
