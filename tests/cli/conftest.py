"""Fixtures of the tests of the command line."""

import pytest

from tfdpflows.cli import quiet


@pytest.fixture(autouse=True)
def _logs_stay_as_they_are(monkeypatch):
  """The program sets up logging for its process, which is pytest's here."""
  monkeypatch.setattr(quiet, 'configure', lambda: None)
  monkeypatch.setattr(quiet, 'show_info', lambda: None)
