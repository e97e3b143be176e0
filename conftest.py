"""Order of the files, what one leaves for the next, and what is not proven."""

import functools
import gc
import hashlib
import importlib
import itertools
import os
import pathlib
import random
import sys
import typing

import numpy as np
import pytest

# Tests whose subject is not the proof that examples are independent: models
# are trained without it there, but for `proven()`. The table models are proven
# in `model_contract_test.py`, others in `tests/independence`.
_UNPROVEN = (
  'audit/canaries_test.py',
  'audit/replay_test.py',
  'cli/end_to_end_test.py',
  'experiments',
  'flows/dp_nf_test.py',
  'models/density_bad_rows_test.py',
  'models/density_model_test.py',
  'models/dp_mog',
  'models/private_updates_test.py',
  'optimizers/chunks_test.py',
  'sampling/fixed_size_test.py',
  'tabular',
  'training/banded_noise_test.py',
  'training/plan_test.py',
  'training/plan_units_test.py',
  'training/steps_test.py',
  'training/training_progress_test.py',
  'training/two_replicas.py',
)
# Nor do examples in docstrings show it, but that of a density.
_UNPROVEN_EXAMPLES = (
  'audit',
  'flows',
  'models/private.py',
  'pate',
  'tabular',
  'training',
  'tuning',
)

# Where several processes share the processors, threads of one operation wait
# for each other in turns: a tenth of all work. Without --numprocesses, and for
# users, they are as many as there are processors.
if 'PYTEST_XDIST_WORKER' in os.environ:
  for _name in (
    'TF_NUM_INTRAOP_THREADS',
    'OMP_NUM_THREADS',
    'OPENBLAS_NUM_THREADS',
    'LOKY_MAX_CPU_COUNT',  # Of scikit-learn: no processes of its own.
  ):
    os.environ.setdefault(_name, '1')


def pytest_collection_modifyitems(items):
  """Puts files with slow tests first, so that none is left for the end."""
  slow = {item.path for item in items if item.get_closest_marker('slow')}
  items.sort(key=lambda item: item.path not in slow)


def pytest_configure():
  gc.disable()  # While all is imported.


def pytest_collection_finish():
  """Spends less on what no test looks at: a sixth of the time of tracing.

  What was imported is not searched for garbage, and the graphs, which are a
  great many objects, are searched rarely. All operations of a graph have one
  stack trace, of here; TensorFlow's is a frame for each call. Processes of
  teachers, which take seconds to start, are kept for the tests of other files.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 50)
  gc.enable()
  if 'tensorflow' in sys.modules:
    tf_stack = importlib.import_module('tensorflow.python.util.tf_stack')
    here = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda *unused_args, **unused_kwargs: here
    # TensorFlow asks each tensor for the protocols that it has, and Python
    # 3.11 collects their names anew each time.
    if hasattr(typing, '_get_protocol_attrs'):
      typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
  if 'tfdpflows.pate.processes' in sys.modules:
    sys.modules['tfdpflows.pate.processes']._IDLE_SECONDS = 300


_files = itertools.count(1)


@pytest.fixture(autouse=True, scope='module')
def _forget_models():
  """Frees the graphs of a file, which Keras would keep to the end."""
  yield
  keras = sys.modules.get('tf_keras')
  if keras is not None:
    keras.backend.clear_session()
  # It takes as long as many a file does.
  if next(_files) % 8 == 0:
    gc.collect()


def _entropy(name):
  """What stands for `os.urandom`: other bytes at each call, also in a fork."""
  drawn, process = itertools.count(), os.getpid()

  def urandom(size):
    place = (name, next(drawn), *{os.getpid()} - {process})
    return hashlib.shake_256(repr(place).encode()).digest(size)

  return urandom


def _seed(request):
  """Makes what a test did not seed the same each time.

  So a test fails each time or never, and statistics of noise are no lottery;
  `make test-full` draws noise anew. Keras takes the seeds of initial weights
  from Python's generator, unless a test before has called `set_random_seed`:
  which one that was changes with what each process is given.
  """
  random.seed(0)
  np.random.seed(0)
  for name in ('tf_keras.src.backend', 'keras.src.backend'):
    generators = getattr(sys.modules.get(name), '_SEED_GENERATOR', None)
    if generators is not None:
      generators.generator = None
  if 'tensorflow' in sys.modules:
    sys.modules['tensorflow'].random.set_seed(None)
  if request.config.option.markexpr != 'full':
    os.urandom = _entropy(request.node.nodeid)


@pytest.fixture(autouse=True, scope='module')
def _seeded_module(request):
  _seed(request)


@pytest.fixture(autouse=True)
def _seeded(request):
  _seed(request)


@pytest.fixture(scope='module')
def unexported():
  """For files of which no test reads a SavedModel: see `small_table`."""
  from tests.tabular import small_table  # noqa: PLC0415 (imports TensorFlow)

  with small_table.unexported():
    yield


@pytest.fixture(autouse=True, scope='module')
def _trained_without_proof(request):
  """But in processes of their own, and in all of `make test-full`."""
  root = pathlib.Path(__file__).parent
  parts = {request.path, *request.path.parents}
  if request.config.option.markexpr == 'full' or parts.isdisjoint(
    [
      *(root / 'tests' / name for name in _UNPROVEN),
      *(root / 'tfdpflows' / name for name in _UNPROVEN_EXAMPLES),
    ]
  ):
    yield
    return
  from tests.unproven import unproven  # noqa: PLC0415 (imports TensorFlow)

  with unproven():
    yield
