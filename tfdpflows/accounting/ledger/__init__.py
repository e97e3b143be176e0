"""The ledger: what is spent on one table, written down before it is spent."""

from tfdpflows.accounting.ledger.entries import randomness_id, search_id
from tfdpflows.accounting.ledger.file import LedgerError, before_merge
from tfdpflows.accounting.ledger.ledger import (
  LedgerEntry,
  PrivacyLedger,
  Reservation,
  check_ledger,
)
from tfdpflows.accounting.ledger.merge import merge_ledgers
