"""Events, accountants, the ledger, calibration and the statement.

Imports no TensorFlow. Everything is a `dp_accounting.DpEvent` or a
`dp_accounting.PrivacyAccountant`.
"""

from tfdpflows.accounting.budget import BudgetExceededError, PrivacyBudget
from tfdpflows.accounting.calibration import (
  calibrate_noise_multiplier,
  epsilon_after,
)
from tfdpflows.accounting.events import (
  EpsilonDeltaDpEvent,
  ZCDpEvent,
  describe_event,
)
from tfdpflows.accounting.events_json import event_from_dict, event_to_dict
from tfdpflows.accounting.ledger import LedgerEntry, PrivacyLedger
from tfdpflows.accounting.ledger_file import LedgerError
from tfdpflows.accounting.pld import PLDAccountant
from tfdpflows.accounting.rdp import RDPAccountant
from tfdpflows.accounting.registry import (
  accountant_names,
  compute_epsilon,
  create_accountant,
  register_accountant,
)
from tfdpflows.accounting.reservation import Reservation
from tfdpflows.accounting.statement import PrivacyStatement, privacy_statement

__all__ = [
  'BudgetExceededError',
  'EpsilonDeltaDpEvent',
  'LedgerEntry',
  'LedgerError',
  'PLDAccountant',
  'PrivacyBudget',
  'PrivacyLedger',
  'PrivacyStatement',
  'RDPAccountant',
  'Reservation',
  'ZCDpEvent',
  'accountant_names',
  'calibrate_noise_multiplier',
  'compute_epsilon',
  'create_accountant',
  'describe_event',
  'epsilon_after',
  'event_from_dict',
  'event_to_dict',
  'privacy_statement',
  'register_accountant',
]
