"""Fixtures of the tests of tables."""

import pytest

from tests.unproven import unproven


@pytest.fixture(autouse=True, scope='package')
def _trained_without_proof(request):
  """The table models are few: `model_contract_test.py` has each proven.

  So are those that a process of its own fits, and all of `make test-full`.
  """
  if request.config.option.markexpr == 'full':
    yield
  else:
    with unproven():
      yield
