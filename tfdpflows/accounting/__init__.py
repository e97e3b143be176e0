"""Events, accountants, the ledger, calibration and the statement.

Imports no TensorFlow. Everything is a `dp_accounting.DpEvent` or a
`dp_accounting.PrivacyAccountant`.
"""

from tfdpflows.accounting.budget import BudgetExceededError, PrivacyBudget
from tfdpflows.accounting.calibration import (
  calibrate_noise_multiplier,
  calibrate_sampling_probability,
  calibrate_steps,
)
from tfdpflows.accounting.composition import (
  AdvancedAccountant,
  BasicAccountant,
)
from tfdpflows.accounting.events import (
  ConfidentGNMaxDpEvent,
  CyclicPoissonSampledDpEvent,
  DataDependentDpEvent,
  DiscreteLaplaceDpEvent,
  EpsilonDeltaDpEvent,
  ExponentialMechanismDpEvent,
  GNMaxDpEvent,
  LNMaxDpEvent,
  MatrixMechanismDpEvent,
  ParallelDpEvent,
  PermuteAndFlipDpEvent,
  RandomizedResponseDpEvent,
  RepeatAndSelectDpEvent,
  ReportNoisyMaxDpEvent,
  SingleEpochTreeAggregationDpEvent,
  SparseVectorDpEvent,
  ToeplitzMechanismDpEvent,
  TruncatedSubsampledGaussianDpEvent,
  ZCDpEvent,
  data_independent,
  describe_event,
)
from tfdpflows.accounting.gdp import GDPAccountant
from tfdpflows.accounting.ledger import (
  LedgerError,
  PrivacyLedger,
  merge_ledgers,
)
from tfdpflows.accounting.mechanisms import (
  data_dependent_event,
  without_amplification,
)
from tfdpflows.accounting.pld.accountant import PLDAccountant
from tfdpflows.accounting.rdp import RDPAccountant
from tfdpflows.accounting.registry import (
  accountant_names,
  best_epsilon,
  compute_epsilon,
  create_accountant,
  register_accountant,
)
from tfdpflows.accounting.statement import PrivacyStatement, privacy_statement
from tfdpflows.accounting.zcdp import ZCDPAccountant

__all__ = [
  'AdvancedAccountant',
  'BasicAccountant',
  'BudgetExceededError',
  'ConfidentGNMaxDpEvent',
  'CyclicPoissonSampledDpEvent',
  'DataDependentDpEvent',
  'DiscreteLaplaceDpEvent',
  'EpsilonDeltaDpEvent',
  'ExponentialMechanismDpEvent',
  'GDPAccountant',
  'GNMaxDpEvent',
  'LNMaxDpEvent',
  'LedgerError',
  'MatrixMechanismDpEvent',
  'PLDAccountant',
  'ParallelDpEvent',
  'PermuteAndFlipDpEvent',
  'PrivacyBudget',
  'PrivacyLedger',
  'PrivacyStatement',
  'RDPAccountant',
  'RandomizedResponseDpEvent',
  'RepeatAndSelectDpEvent',
  'ReportNoisyMaxDpEvent',
  'SingleEpochTreeAggregationDpEvent',
  'SparseVectorDpEvent',
  'ToeplitzMechanismDpEvent',
  'TruncatedSubsampledGaussianDpEvent',
  'ZCDPAccountant',
  'ZCDpEvent',
  'accountant_names',
  'best_epsilon',
  'calibrate_noise_multiplier',
  'calibrate_sampling_probability',
  'calibrate_steps',
  'compute_epsilon',
  'create_accountant',
  'data_dependent_event',
  'data_independent',
  'describe_event',
  'merge_ledgers',
  'privacy_statement',
  'register_accountant',
  'without_amplification',
]
