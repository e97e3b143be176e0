"""Where models are trained without the proof of independence."""

import pathlib

import pytest

from tests.unproven import unproven

# Whose subject is not the proof. What is trained there is proven elsewhere: the
# table models in `model_contract_test.py`, others in `tests/independence` and
# in tests of these files that say `proven`.
_UNPROVEN = (
  'audit/replay_test.py',
  'experiments',
  'models/density_bad_rows_test.py',
  'models/density_model_test.py',
  'models/dp_mog',
  'models/private_updates_test.py',
  'tabular',
  'training/banded_noise_test.py',
  'training/plan_units_test.py',
  'training/steps_test.py',
  'training/training_progress_test.py',
  'training/two_replicas.py',
)


@pytest.fixture(autouse=True, scope='module')
def _trained_without_proof(request):
  """But in processes of their own, and in all of `make test-full`."""
  path = request.path.relative_to(pathlib.Path(__file__).parent)
  parts = {path, *path.parents}
  if request.config.option.markexpr != 'full' and any(
    pathlib.Path(name) in parts for name in _UNPROVEN
  ):
    with unproven():
      yield
  else:
    yield
