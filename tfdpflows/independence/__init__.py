"""Checks that examples are independent, and that none can stop training."""

from tfdpflows.independence.checker import Checker

__all__ = ['Checker']
