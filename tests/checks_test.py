"""Checks of arguments that all packages share."""

import decimal
import fractions

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import _checks, accounting, audit, mechanisms, pate, tuning
from tfdpflows.tabular import TableSchema

_SINGLE = [
  3,
  3.0,
  np.float32(3),
  np.array(3),
  decimal.Decimal(3),
  fractions.Fraction(3),
  tf.constant(3.0),
]


@pytest.mark.parametrize('value', _SINGLE, ids=lambda v: type(v).__name__)
def test_one_number_of_any_kind_will_do(value):
  assert _checks.check_positive('x', value) == 3.0
  assert _checks.check_integer('x', value) == 3


@pytest.mark.parametrize('value', ['3', None, [3], np.array([3.0])])
@pytest.mark.parametrize('check', ['positive', 'integer', 'fraction', 'number'])
def test_what_is_no_number_is_refused_by_its_name_and_type(check, value):
  message = f'^epochs is of type {type(value).__name__}; it must be a number'
  with pytest.raises(TypeError, match=message):
    getattr(_checks, f'check_{check}')('epochs', value)


@pytest.mark.parametrize(
  'name', ['num_examples', 'expected_batch_size', 'epochs']
)
def test_sizes_of_a_plan_are_numbers(name):
  sizes = {'num_examples': 100, 'expected_batch_size': 10, 'epochs': 2}
  with pytest.raises(TypeError, match=f'^{name} is of type str'):
    tfdpflows.TrainingPlan.for_epsilon(
      epsilon=1.0,
      delta=1e-5,
      clipping=tfdpflows.gradients.Flat(1.0),
      **{**sizes, name: '10'},
    )


def test_a_schema_is_made_of_fields():
  with pytest.raises(TypeError, match='field of the schema is of type str'):
    TableSchema(['age'])


@pytest.mark.parametrize(
  'call',
  [
    accounting.privacy_statement,
    audit.audit_ledger,
    lambda path: mechanisms.from_exact_counts({'a': [1, 2]}, 2.0, None, path),
    lambda path: mechanisms.noisy_marginals(
      np.zeros([5, 2], int), [2, 2], [(0, 1)], 4.0, None, path
    ),
    lambda path: pate.GNMax(9.0, num_teachers=9, num_classes=2, ledger=path),
    lambda path: pate.PrivateKNN(
      np.zeros([9, 2]),
      np.zeros(9, int),
      num_classes=2,
      num_neighbors=3,
      sampling_probability=0.5,
      sigma=9.0,
      ledger=path,
    ),
    lambda path: tuning.random_search(
      lambda trial: (0, 0), [{}], epsilon=1.0, delta=1e-5, ledger=path
    ),
    lambda path: tfdpflows.models.DPMoG().fit(
      np.zeros([9, 2]), epsilon=1.0, delta=1e-5, ledger=path
    ),
    lambda path: tfdpflows.DPLogisticRegression(epsilon=1.0, delta=1e-5).fit(
      np.zeros([9, 2]), np.zeros(9, int), ledger=path
    ),
  ],
)
def test_a_path_is_no_ledger(call):
  with pytest.raises(TypeError, match='^ledger is of type str.*PrivacyLedger'):
    call('ledger.jsonl')
