"""Audits: lower bounds on epsilon from attacks, beside the claim."""

from tfdpflows.audit.canaries import Canaries, GradientCanaries, OneRunAudit
from tfdpflows.audit.mechanism import MechanismAudit, audit_mechanism
from tfdpflows.audit.one_run import (
  Guesses,
  OneRunBounds,
  audit_one_run,
  guess,
)
from tfdpflows.audit.rates import ErrorRates, Roc, error_rates

__all__ = [
  'Canaries',
  'ErrorRates',
  'GradientCanaries',
  'Guesses',
  'MechanismAudit',
  'OneRunAudit',
  'OneRunBounds',
  'Roc',
  'audit_mechanism',
  'audit_one_run',
  'error_rates',
  'guess',
]
