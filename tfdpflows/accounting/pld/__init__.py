"""Composition of privacy loss distributions."""
