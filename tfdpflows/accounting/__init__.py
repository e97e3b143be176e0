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
from tfdpflows.accounting.ledger import (
  LedgerError,
  PrivacyLedger,
  merge_ledgers,
)
from tfdpflows.accounting.mechanisms.bounded_range import (
  ExponentialMechanismDpEvent,
  ReportNoisyMaxDpEvent,
)
from tfdpflows.accounting.mechanisms.capped import (
  TruncatedSubsampledGaussianDpEvent,
)
from tfdpflows.accounting.mechanisms.discrete import (
  DiscreteLaplaceDpEvent,
  RandomizedResponseDpEvent,
)
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  EpsilonDeltaDpEvent,
  PermuteAndFlipDpEvent,
  SparseVectorDpEvent,
)
from tfdpflows.accounting.mechanisms.matrix import (
  CyclicPoissonSampledDpEvent,
  MatrixMechanismDpEvent,
  ToeplitzMechanismDpEvent,
)
from tfdpflows.accounting.mechanisms.no_proof import NoProofDpEvent
from tfdpflows.accounting.mechanisms.objective_perturbation import (
  ObjectivePerturbationDpEvent,
)
from tfdpflows.accounting.mechanisms.parallel import ParallelDpEvent
from tfdpflows.accounting.mechanisms.smooth_sensitivity import (
  RenyiDpEvent,
  SmoothSensitivityDpEvent,
)
from tfdpflows.accounting.mechanisms.votes import (
  ConfidentGNMaxDpEvent,
  DataDependentDpEvent,
  GNMaxDpEvent,
  LNMaxDpEvent,
  VoteThresholdDpEvent,
)
from tfdpflows.accounting.mechanisms.zero_concentrated import ZCDpEvent
from tfdpflows.accounting.registry import (
  accountant_names,
  best_epsilon,
  compute_epsilon,
  create_accountant,
  register_accountant,
)
from tfdpflows.accounting.statement import PrivacyStatement, privacy_statement

__all__ = [
  'BudgetExceededError',
  'ConfidentGNMaxDpEvent',
  'CyclicPoissonSampledDpEvent',
  'DataDependentDpEvent',
  'DiscreteLaplaceDpEvent',
  'EpsilonDeltaDpEvent',
  'ExponentialMechanismDpEvent',
  'GNMaxDpEvent',
  'LNMaxDpEvent',
  'LedgerError',
  'MatrixMechanismDpEvent',
  'NoProofDpEvent',
  'ObjectivePerturbationDpEvent',
  'ParallelDpEvent',
  'PermuteAndFlipDpEvent',
  'PrivacyBudget',
  'PrivacyLedger',
  'PrivacyStatement',
  'RandomizedResponseDpEvent',
  'RenyiDpEvent',
  'ReportNoisyMaxDpEvent',
  'SmoothSensitivityDpEvent',
  'SparseVectorDpEvent',
  'ToeplitzMechanismDpEvent',
  'TruncatedSubsampledGaussianDpEvent',
  'VoteThresholdDpEvent',
  'ZCDpEvent',
  'accountant_names',
  'best_epsilon',
  'calibrate_noise_multiplier',
  'calibrate_sampling_probability',
  'calibrate_steps',
  'compute_epsilon',
  'create_accountant',
  'merge_ledgers',
  'privacy_statement',
  'register_accountant',
]
