"""Training: what it shows, and errors that pass through TensorFlow."""

import io
import re
import sys
import types

import dp_accounting
import pytest
import tensorflow as tf

from tfdpflows import accounting, gradients
from tfdpflows import progress as bars
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.models.dp_sgd import Progress
from tfdpflows.training.plan import TrainingPlan

STEPS = 40


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def plan():
  return TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-5,
    num_examples=1000,
    expected_batch_size=100,
    steps=STEPS,
    clipping=gradients.Flat(1.0),
  )


def _lines(plan, terminal, monkeypatch, first=0):
  """What a training writes whose loss is 3 minus a tenth of the step."""
  monkeypatch.setattr(sys, 'stderr', terminal)
  monkeypatch.setattr(bars, '_PAUSE', 0)
  progress = Progress(plan)
  made = types.SimpleNamespace(spent=first)
  noise = types.SimpleNamespace(unused=first, steps=made)
  optimizer = types.SimpleNamespace(noise_source=noise)
  progress.set_model(types.SimpleNamespace(optimizer=optimizer))
  total = 0.0
  for step in range(first, STEPS):
    batch = (step - first) % 10  # Keras starts its mean anew in every epoch.
    total = total * bool(batch) + 3 - step / 10
    noise.unused = made.spent = step + 1
    progress.on_train_batch_end(batch, {'loss': total / (batch + 1)})
  progress.close()
  return terminal.getvalue()


@pytest.mark.parametrize(
  ('accountant', 'end'),
  [('pld', 'so far.'), ('gdp', 'so far (gdp, asymptotic: no upper bound).')],
)
def test_an_asymptotic_epsilon_is_marked(accountant, end, monkeypatch):
  logged = []
  monkeypatch.setattr(bars, 'is_logged', lambda: True)
  monkeypatch.setattr(
    bars.logging, 'info', lambda text, *given: logged.append(text % given)
  )
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=2.0, delta=1e-5),
    accountant=accountant,
  )
  ledger.charge(dp_accounting.GaussianDpEvent(4.0), label='counts')
  bars.log_charge('Counts', ledger, 'counts')
  assert logged[0].endswith(end)


def _has_columns(columns, monkeypatch):
  """Makes tqdm take a stream of letters for a terminal of that size."""
  monkeypatch.setattr(
    'tqdm.std._screen_shape_wrapper', lambda: lambda _: (columns, 24)
  )


def test_progress_in_a_terminal(plan, monkeypatch):
  _has_columns(99, monkeypatch)
  text = _lines(plan, _Terminal(), monkeypatch)
  assert text.endswith('\n')
  # The first says that nothing is done, the last one what the end does.
  lines = text.strip().split('\r')[1:]
  assert len(lines) == STEPS + 1
  epsilons = [
    float(re.search(r'epsilon ([\d.]+)', line).group(1)) for line in lines
  ]
  assert epsilons == sorted(epsilons)
  assert epsilons[-1] == pytest.approx(1, abs=0.01)
  for step in (10, 20, 40):
    # Never too small for the steps that were made.
    assert epsilons[step - 1] >= plan.epsilon(step)
  assert lines[19].startswith('[======      ] step 20/40, epsilon 0.')
  # Losses of the last ten steps: 2.0 down to 1.1.
  assert '-1.55 ± 0.09 nats gained, 00:0' in lines[19]
  assert lines[19].strip().endswith(' left')
  assert lines[-1].strip().endswith(' taken')


def test_progress_fits_the_terminal(plan, monkeypatch):
  _has_columns(29, monkeypatch)
  text = _lines(plan, _Terminal(), monkeypatch, first=30)
  assert max(map(len, text.strip().split('\r'))) == 29


def test_progress_is_quiet_elsewhere(plan, monkeypatch):
  assert _lines(plan, io.StringIO(), monkeypatch) == ''


def test_rounds_in_a_terminal(monkeypatch):
  monkeypatch.setattr(bars, '_PAUSE', 0)
  ledger = types.SimpleNamespace(epsilon=lambda: 0.5, accountant='pld')
  for stream in (_Terminal(), io.StringIO()):
    monkeypatch.setattr(sys, 'stderr', stream)
    with bars.bar('marginal', 4) as shown:
      for _ in range(4):
        bars.add_one(shown, ledger)
    lines = stream.getvalue().strip().split('\r')
    if not stream.isatty():
      assert lines == ['']
      continue
    assert lines[2].startswith('[======      ] marginal 2/4, epsilon 0.5, 00:0')
    assert lines[4].startswith(
      '[============] marginal 4/4, epsilon 0.5, 00:00 left'
    )


def _error(kind, message):
  return kind(None, None, message)


def test_errors_of_files():
  full = _error(
    tf.errors.ResourceExhaustedError, 'a/b.tmp; No space left on device'
  )
  for error, match in (
    (full, r'No space left on device.*model'),
    (_error(tf.errors.DataLossError, '\nbad block\nmore'), 'model: bad block$'),
    (_error(tf.errors.NotFoundError, ''), 'model: NotFoundError'),
  ):
    with pytest.raises(OSError, match=match), system_errors.of_file('model'):
      raise error


def test_errors_of_memory():
  with (
    pytest.raises(MemoryError, match='OOM when allocating'),
    system_errors.of_memory(),
  ):
    raise _error(tf.errors.ResourceExhaustedError, 'OOM when allocating')
  # What is a defect stays one.
  with (
    pytest.raises(tf.errors.InvalidArgumentError),
    system_errors.of_memory(),
  ):
    raise _error(tf.errors.InvalidArgumentError, 'shapes')
