"""What must not change by accident: numbers, files, help and refusals."""

import io
import shutil

import numpy as np
import pandas as pd
import pytest

from tests.golden import accounting as golden_accounting
from tests.golden import commands, files, make, refusals, tables, trainings
from tests.unproven import unproven
from tfdpflows import accounting
from tfdpflows.accounting import events_json
from tfdpflows.tabular import TabularSynthesizer


def _every(items, step, name=str):
  """One in `step` of the items for `make test`, the others in the full one."""
  return [
    pytest.param(x, id=name(x), marks=() if i % step == 0 else pytest.mark.full)
    for i, x in enumerate(items)
  ]


def _number(text):
  return float.fromhex(text)


ACCOUNTING, SAME_MACHINE = make.read('accounting')
# Processors with the same instructions differ by up to 2e-10 in convolutions of
# loss distributions; others by more.
TOLERANCE = 1e-9 if SAME_MACHINE else 1e-6


# 55 has no factor in common with the 28 events and 3 relations.
@pytest.mark.parametrize('number', _every(range(300), 55))
def test_epsilons_and_deltas(number):
  case = ACCOUNTING['cases'][number]
  found = golden_accounting.values(case)
  assert found.keys() == case['values'].keys()
  for name, expected in case['values'].items():
    if isinstance(expected, str):
      assert found[name] == expected
      continue
    for key, values in expected.items():
      assert list(map(_number, found[name][key])) == pytest.approx(
        list(map(_number, values)), rel=TOLERANCE, abs=1e-12
      ), (name, key)


def test_events_are_written_as_before():
  for case in ACCOUNTING['cases']:
    event = events_json.event_from_dict(case['event'])
    assert events_json.event_to_dict(event) == case['event']


def test_calibrations():
  found = golden_accounting.calibrations()
  assert found.keys() == ACCOUNTING['calibrations'].keys()
  for key, expected in ACCOUNTING['calibrations'].items():
    # Elsewhere the search for them ends within its own tolerance.
    rel = TOLERANCE if SAME_MACHINE else 1e-3
    assert _number(found[key]) == pytest.approx(_number(expected), rel=rel), key


# Others in the full tests: each strategy with each flow.
@pytest.mark.parametrize('case', _every(trainings.cases(), 42, name=' '.join))
def test_weights_after_training(case):
  expected, _ = make.read('trainings')
  expected, found = expected[' '.join(case)], trainings.values(*case)
  assert found['epsilon'] == pytest.approx(expected['epsilon'], rel=1e-9)
  # Sums of products differ in their last digits between processors.
  for key in ('weights', 'log_prob'):
    np.testing.assert_allclose(
      np.array(found[key]), np.array(expected[key]), rtol=2e-4, atol=2e-5
    )


def _check_table(found, expected, same_machine):
  assert found['labels'] == expected['labels']
  assert _number(found['epsilon']) == pytest.approx(
    _number(expected['epsilon']), rel=1e-9
  )
  np.testing.assert_allclose(
    found['log_prob'], expected['log_prob'], rtol=1e-3, atol=1e-3
  )
  if same_machine:
    # Processors with the same instructions differ in the last digit.
    rows, known = (
      pd.read_csv(io.StringIO(x['csv'])) for x in (found, expected)
    )
    pd.testing.assert_frame_equal(rows, known, rtol=2e-5)


@pytest.mark.parametrize('name', _every(tables.MODELS, 7))
def test_synthetic_tables(name):
  expected, same_machine = make.read('tables')
  # They are proven in tests/tabular/models/model_contract_test.py.
  with unproven():
    found = tables.values(tables.fitted(name))
  _check_table(found, expected[name], same_machine)


@pytest.mark.parametrize('name', files.MODELS)
def test_models_of_23_november_open(name, tmp_path):
  expected, same_machine = make.read('files')
  model = TabularSynthesizer.load(files.unpack(name, tmp_path))
  _check_table(tables.values(model), expected[name], same_machine)


def test_a_fit_of_23_november_is_not_gone_on_with(tmp_path):
  """Its steps would be made again with the same noise, and not be the same."""
  files.unpack('unfinished.partial', tmp_path)
  with pytest.raises(ValueError, match='was begun by tfdpflows 0.1.0'):
    files.resumed(tmp_path)


def test_a_ledger_of_23_november_opens(tmp_path):
  expected, _ = make.read('files')
  path = tmp_path / 'ledger.jsonl'
  shutil.copy(files.FOLDER / 'ledger.jsonl', path)
  with accounting.PrivacyLedger.open(str(path)) as ledger:
    found = files.describe(ledger)
  assert found['labels'] == expected['ledger']['labels']
  assert _number(found['epsilon']) == pytest.approx(
    _number(expected['ledger']['epsilon']), rel=1e-9
  )


@pytest.mark.parametrize('case', _every(refusals.cases(), 3, name=': '.join))
def test_refusals(case):
  expected, _ = make.read('refusals')
  assert refusals.value(*case) == expected[': '.join(case)]


@pytest.mark.parametrize('name', ['', *commands.COMMANDS])
def test_help(name):
  expected, _ = make.read('commands')
  assert commands.value(*[name][: len(name)], '--help') == expected[name]
