"""Audits: lower bounds on epsilon from attacks, beside the claim."""

from tfdpflows.audit.mechanism import MechanismAudit, audit_mechanism
from tfdpflows.audit.rates import ErrorRates, error_rates

__all__ = [
  'ErrorRates',
  'MechanismAudit',
  'audit_mechanism',
  'error_rates',
]
