"""Audits: lower bounds on epsilon from attacks, beside the claim."""

from tfdpflows.audit.canaries import Canaries, GradientCanaries, OneRunAudit
from tfdpflows.audit.ledgers import AuditedEntry, LedgerAudit, audit_ledger
from tfdpflows.audit.lira import Lira, ShadowScores, logit_scores, train_shadows
from tfdpflows.audit.mechanism import MechanismAudit, audit_mechanism
from tfdpflows.audit.one_run import (
  Guesses,
  OneRunBounds,
  RepeatedBounds,
  audit_one_run,
  audit_repeated_runs,
  guess,
)
from tfdpflows.audit.rates import ErrorRates, Roc, error_rates
from tfdpflows.audit.replaying import Replay, ReplayedEntry, fit_without, replay

__all__ = [
  'AuditedEntry',
  'Canaries',
  'ErrorRates',
  'GradientCanaries',
  'Guesses',
  'LedgerAudit',
  'Lira',
  'MechanismAudit',
  'OneRunAudit',
  'OneRunBounds',
  'RepeatedBounds',
  'Replay',
  'ReplayedEntry',
  'Roc',
  'ShadowScores',
  'audit_ledger',
  'audit_mechanism',
  'audit_one_run',
  'audit_repeated_runs',
  'error_rates',
  'fit_without',
  'guess',
  'logit_scores',
  'replay',
  'train_shadows',
]
