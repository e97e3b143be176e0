"""What a training tells of itself: epsilon in the logs, lines of a log file."""

import csv
import logging as python_logging
import math
import re

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import tfdpflows
from tfdpflows import accounting, gradients, progress, sampling
from tfdpflows._keras import keras
from tfdpflows.accounting.rounding import round_up
from tfdpflows.randomness import Randomness
from tfdpflows.training import EpsilonLogger
from tfdpflows.training.progress import epsilon_after

STEPS = 10


def _x():
  return np.random.default_rng(0).normal(size=[300, 2]).astype('float32')


def _plan(**kwargs):
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=300, sampling_probability=0.25),
    gradients.Flat(3.0),
    noise_multiplier=2.0,
    steps=STEPS,
    delta=1e-4,
    **{'seed': 0, **kwargs},
  )


def _model(optimizer):
  flow = tfdpflows.flows.masked_autoregressive_flow(2, 1, [8], seed=0)
  model = tfdpflows.DensityModel(flow)
  model.compile(optimizer)
  return model


@pytest.fixture
def lines(monkeypatch):
  """The list of what is logged at INFO, which is on."""
  found = []

  class Handler(python_logging.Handler):
    def emit(self, record):
      found.append(record.getMessage())

  handler = Handler()
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_logger().addHandler(handler)
  yield found
  logging.get_absl_logger().removeHandler(handler)
  logging.set_verbosity(verbosity)


@pytest.mark.core
def test_epsilon_is_in_the_logs_of_an_epoch(tmp_path):
  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  callbacks = [
    EpsilonLogger(),
    keras.callbacks.CSVLogger(str(tmp_path / 'log.csv')),
  ]
  history = model.fit(_x(), verbose=0, callbacks=callbacks).history
  # What is left over of epochs of four steps is in the first one.
  expected = [plan.epsilon(n) for n in (2, 6, 10)]
  np.testing.assert_allclose(history['epsilon'], expected)
  assert all(rate > 0 for rate in history['steps_per_second'])
  with open(tmp_path / 'log.csv', newline='', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  np.testing.assert_allclose([float(r['epsilon']) for r in rows], expected)


def test_other_mechanisms_of_the_ledger_count():
  plan = _plan()
  alone = epsilon_after(plan, 4)
  assert alone == pytest.approx(plan.epsilon(4))
  budget = tfdpflows.PrivacyBudget(epsilon=20.0, delta=1e-4)
  ledger = tfdpflows.PrivacyLedger(budget=budget)
  ledger.charge(plan.sampler.event(1.0), label='before')
  plan = _plan(ledger=ledger)
  assert epsilon_after(plan, 0) == pytest.approx(ledger.epsilon())
  assert epsilon_after(plan, 4) > max(alone, ledger.epsilon())


def test_mechanisms_of_the_same_label_count_and_those_without_proof():
  ledger = tfdpflows.PrivacyLedger()
  plan = _plan(ledger=ledger)
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(_x(), epochs=1, verbose=0)
  before = epsilon_after(plan, 3)
  ledger.charge(plan.event.event, label=plan.label)
  assert epsilon_after(plan, 3) > before
  ledger.charge(accounting.NoProofDpEvent('ExpM+NF', 1.0), label='flow')
  assert epsilon_after(plan, 3) == math.inf


def test_tensorboard_shows_epsilon(tmp_path):
  pytest.importorskip('tensorboard')
  from tensorboard.backend.event_processing import event_accumulator

  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01, loss_bound=9.0))
  callbacks = [EpsilonLogger(), keras.callbacks.TensorBoard(str(tmp_path))]
  model.fit(_x(), verbose=0, callbacks=callbacks)
  events = event_accumulator.EventAccumulator(str(tmp_path / 'train'))
  events.Reload()
  tags = set(events.Tags()['tensors'])
  assert {'epoch_epsilon', 'epoch_steps_per_second', 'epoch_loss'} <= tags


def test_a_training_can_stop_at_an_epsilon():
  class Stop(keras.callbacks.EarlyStopping):
    def on_epoch_end(self, epoch, logs=None):
      self.model.stop_training = self.get_monitor_value(logs) > limit

  plan = _plan()
  limit = plan.epsilon(3)
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(_x(), verbose=0, callbacks=[EpsilonLogger(), Stop('epsilon')])
  assert plan.remaining_steps == 4  # After the second epoch, six steps.
  with pytest.raises(ValueError, match='put a .*EpsilonLogger.* before it'):
    model.fit(_x(), verbose=0, callbacks=[Stop('epsilon'), EpsilonLogger()])
  assert plan.remaining_steps == 4


def test_epsilon_without_proof_says_so():
  plan = _plan(accountant='gdp')
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  stop = keras.callbacks.EarlyStopping('epsilon')
  with pytest.raises(ValueError, match="logged as 'asymptotic_epsilon'"):
    model.fit(_x(), verbose=0, callbacks=[EpsilonLogger(), stop])
  stop.monitor = 'asymptotic_epsilon'
  history = model.fit(_x(), verbose=0, callbacks=[EpsilonLogger(), stop])
  assert set(history.history) == {'asymptotic_epsilon', 'steps_per_second'}


def test_epsilon_without_a_plan_is_refused():
  model = _model(keras.optimizers.legacy.SGD(0.01))
  with pytest.raises(ValueError, match=r'compile the model with plan\.opt'):
    model.fit(_x(), verbose=0, callbacks=[EpsilonLogger()])


def test_weights_that_are_taken_back_take_no_epsilon_back(lines, tmp_path):
  """A callback that restores the first epoch after every other one."""
  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)

  class Rollback(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      if not epoch:
        self.path = checkpoint.save(str(tmp_path / 'c'))
      checkpoint.restore(self.path)

  logger = EpsilonLogger()
  history = model.fit(_x(), verbose=0, callbacks=[Rollback(), logger]).history
  assert history['epsilon'] == [plan.epsilon(step) for step in (2, 6, STEPS)]
  assert min(history['steps_per_second']) > 0


@pytest.mark.parametrize('replay', [False, True])
def test_what_an_earlier_process_spent_is_logged(replay, lines, tmp_path):
  path, secret = tmp_path / 'ledger', bytes(32)
  with accounting.PrivacyLedger(path) as ledger:
    plan = _plan(ledger=ledger, seed=None, randomness=Randomness(secret=secret))
    model = _model(plan.optimizer('sgd', learning_rate=0.01))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    model.fit(_x(), epochs=1, verbose=0)
    saved = checkpoint.save(str(tmp_path / 'c'))
    model.fit(_x(), epochs=1, verbose=0)
    spent = ledger.epsilon(1e-4)
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(ledger=ledger, seed=None, randomness=Randomness(secret=secret))
    model = _model(plan.optimizer('sgd', learning_rate=0.01))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(saved)
    plan.resume(model.optimizer, replay=replay)
    lines.clear()
    logger = EpsilonLogger()
    found = model.fit(_x(), verbose=0, callbacks=[logger]).history
    assert f'Epsilon is {round_up(spent, 3)} now' in lines[0]
    assert found['epsilon'][0] >= spent


def test_a_training_is_logged_in_lines(lines, monkeypatch):
  monkeypatch.setattr(progress, '_FIRST_LINE', 0.0)
  monkeypatch.setattr(progress, '_LINE_PAUSE', 0.0)
  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01, loss_bound=9.0))
  model.fit(_x(), epochs=1, verbose=0)
  begin, *steps, end = (x for x in lines if re.match('Training: |step ', x))
  assert re.fullmatch(
    r'Training: 10 of 10 steps are left\. Each is charged as: Gaussian '
    r'mechanism, noise multiplier 2, on a Poisson sample with probability '
    r'0\.25\. Epsilon is 0 now and [\d.]+ at the end, at delta 0\.0001 '
    r'\(pld\)\. Ledger: in memory\.',
    begin,
  )
  assert len(steps) == 4
  for number, line in enumerate(steps, 1):
    epsilon = round_up(plan.epsilon(number), 3)
    assert line.startswith(f'step {number}/10, epsilon {epsilon}')
    # The first step compiles: no time is known from it.
    timed = re.search(r' per second, 00:\d\d left$', line)
    assert bool(timed) == (number > 1)
  assert ', loss ' in steps[-1]
  assert re.search(r'^step 4/10, epsilon .* taken$', end)
  lines.clear()
  model.fit(_x(), verbose=0)
  assert 'Training: 6 of 10 steps are left' in lines[0]


def test_lines_say_that_an_epsilon_is_asymptotic(lines, monkeypatch):
  monkeypatch.setattr(progress, '_FIRST_LINE', 0.0)
  monkeypatch.setattr(progress, '_LINE_PAUSE', 0.0)
  plan = _plan(accountant='gdp')
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(_x(), epochs=1, verbose=0)
  progress.log_charge('Training', plan.ledger, plan.label)
  with progress.bar('round', 2, lines_only=True) as shown:
    progress.add_one(shown, plan.ledger)
    progress.add_one(shown, plan.ledger)
  found = [line for line in lines if 'psilon' in line]
  assert len(found) > 6 and all('asymptotic' in line for line in found)


def test_without_level_info_nothing_is_computed(monkeypatch):
  def fail(*args):
    raise AssertionError('epsilon is computed')

  monkeypatch.setattr('tfdpflows.training.progress.epsilon_after', fail)
  monkeypatch.setattr(progress, 'is_logged', lambda: False)
  monkeypatch.setattr('tfdpflows.training.fit.is_logged', lambda: False)
  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(_x(), verbose=0)
  assert plan.remaining_steps == 0


def test_epsilon_is_computed_for_lines_only(lines, monkeypatch):
  asked = []

  def epsilon(plan, steps):
    asked.append(steps)
    return 0.5

  monkeypatch.setattr('tfdpflows.training.progress.epsilon_after', epsilon)
  monkeypatch.setattr(progress, '_FIRST_LINE', math.inf)
  plan = _plan()
  model = _model(plan.optimizer('sgd', learning_rate=0.01))
  model.fit(_x(), verbose=0)
  assert asked == [0, STEPS, STEPS]  # At the beginning, and for the last line.
  assert re.search(r'^step 10/10, epsilon 0\.5, .*taken$', lines[-1])


def test_lines_come_now_and_then(lines, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  with progress.bar('marginal', 100, done=20, lines_only=True) as shown:
    for _ in range(80):
      now[0] += 1.0
      shown.set_postfix_str('epsilon 0.5')
      shown.update()
  assert lines == [
    'marginal 25/100, epsilon 0.5, 1 per second, 01:15 left',
    'marginal 55/100, epsilon 0.5, 1 per second, 00:45 left',
    'marginal 85/100, epsilon 0.5, 1 per second, 00:15 left',
    'marginal 100/100, epsilon 0.5, 01:20 taken',
  ]


def test_the_time_left_is_not_that_of_the_first_step(lines, monkeypatch):
  now = [0.0]
  monkeypatch.setattr('time.monotonic', lambda: now[0])
  with progress.bar('step', 512, lines_only=True) as shown:
    for seconds in (12.0, *[0.0625] * 511):
      now[0] += seconds
      shown.update()
  assert lines == [
    'step 1/512',
    'step 81/512, 16 per second, 00:26 left',
    'step 512/512, 00:43 taken',
  ]
