"""No noise twice: what is restored, interrupted or free, against the steps."""

import shutil

import numpy as np
import pytest
import small_training
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tests.unproven import proven
from tfdpflows import _keras, accounting, gradients, sampling
from tfdpflows.accounting.ledger import ledger as ledger_lib
from tfdpflows.randomness import Randomness
from tfdpflows.training.step_noise import StepNoise

keras = _keras.keras
STEPS = 6
# So many that not all are drawn ahead.
MANY = 20


class _Updates(keras.callbacks.Callback):
  """Notes every update, and does something after one of them."""

  def __init__(self, after=None, do=None):
    super().__init__()
    self.found, self._after, self._do = [], after, do

  def _kernel(self):
    return self.model.distribution.kernel.numpy()

  def on_train_batch_begin(self, batch, logs=None):
    self._old = self._kernel()

  def on_train_batch_end(self, batch, logs=None):
    self.found.append(self._kernel() - self._old)
    if len(self.found) == self._after:
      self._do()


class _StopError(Exception):
  pass


def _stop():
  raise _StopError


def _plan(secret=None, steps=STEPS, seed=None, **kwargs):
  clipping = kwargs.pop('clipping', gradients.Flat(1.0))
  randomness = Randomness(seed, secret=secret)
  sampler = sampling.PoissonSampler(num_examples=60, sampling_probability=0.5)
  return tfdpflows.TrainingPlan(
    kwargs.pop('sampler', sampler),
    clipping,
    noise_multiplier=1.0,
    steps=steps,
    delta=1e-3,
    randomness=randomness,
    **kwargs,
  )


def _rows(scale=1.0):
  rng = np.random.default_rng(0)
  return (scale * rng.normal(size=[60, 4])).astype('float32')


def _assert_no_noise_twice(updates):
  found = np.stack(updates).reshape(len(updates), -1)
  assert np.all(np.std(found, 1) > 1e-3)
  correlation = np.corrcoef(found) - np.eye(len(found))
  assert np.max(np.abs(correlation)) < 0.9


def _interrupted(model, x, after, *callbacks):
  updates = _Updates(after, _stop)
  with pytest.raises(_StopError):
    model.fit(x, verbose=0, callbacks=[*callbacks, updates])
  return updates.found


@pytest.mark.parametrize('way', ['checkpoint', 'weights', 'backup'])
def test_what_is_restored_in_one_process_takes_no_noise_back(way, tmp_path):
  """Weights go back; batches, noise and charges go on."""
  x = np.zeros([60, 4], 'float32')
  plan = _plan()
  model = small_training.linear_model(plan)
  checkpoint = small_training.checkpoint(model)
  path, weights = checkpoint.write(str(tmp_path / 'c')), model.get_weights()
  state = [w.copy() for w in model.optimizer.get_weights()]
  backup = keras.callbacks.BackupAndRestore(str(tmp_path / 'b'))
  backup = [backup] if way == 'backup' else []
  found = _interrupted(model, x, 3, *backup)
  assert len(found) == plan.step == 3
  if way == 'checkpoint':
    checkpoint.restore(path)
    assert int(model.optimizer.plan_step) == 0
  elif way == 'weights':
    model.set_weights(weights)
    model.optimizer.set_weights(state)
  updates = _Updates()
  model.fit(x, verbose=0, callbacks=[*backup, updates])
  found += updates.found
  assert len(found) == STEPS
  _assert_no_noise_twice(found)
  assert plan.remaining_steps == 0
  assert int(model.optimizer.plan_step) == STEPS
  assert plan.ledger.entries[0].count == STEPS


@proven()
def test_an_interrupted_fit_goes_on_as_if_nothing_had_been():
  """What was drawn ahead is drawn again: batches and noise stay in step."""
  kernels = []
  for after in (None, 1, 3):
    plan = _plan(seed=5)
    model = small_training.linear_model(plan, 'adam')
    if after:
      _interrupted(model, _rows(), after)
      assert plan.step == after
    model.fit(_rows(), verbose=0)
    assert plan.remaining_steps == 0
    kernels.append(model.distribution.kernel.numpy())
  np.testing.assert_array_equal(kernels[1], kernels[0])
  np.testing.assert_array_equal(kernels[2], kernels[0])


def test_a_dataset_is_gone_on_with_where_its_fit_stopped():
  plan = _plan()
  model = small_training.linear_model(plan)
  dataset = plan.dataset(_rows(), 4)
  _interrupted(model, dataset, 1)
  model.fit(dataset, verbose=0)
  assert plan.step == 4
  with pytest.raises(ValueError, match='it ends at step 4'):
    model.fit(dataset, verbose=0)


def test_batches_drawn_outside_of_a_fit_are_not_trained_on():
  """Somebody may have released something of them."""
  plan = _plan(bytes(32))
  seen = list(plan.dataset(_rows(), 2))
  steps = []

  class Noted(tfdpflows.DensityModel):
    def train_step(self, data):
      tf.py_function(lambda step: steps.append(int(step)), [data[2]], [])
      return super().train_step(data)

  model = Noted(small_training.Linear())
  model.compile(optimizer=plan.optimizer('sgd', learning_rate=0.5))
  model.fit(_rows(), verbose=0)
  assert [int(step) for _, _, step in seen] == [0, 1]
  assert steps == [2, 3, 4, 5]


CLIPPING = {
  'flat': gradients.Flat(1.0),
  'adaptive': gradients.AdaptiveQuantile(1.0),
  'sparse': gradients.StochasticSparsification(1.0, 0.5),
}


@pytest.mark.core
@pytest.mark.parametrize(
  'clipping', thinned(CLIPPING, lambda n: n == 'adaptive')
)
def test_a_new_process_replays_bit_for_bit(clipping, tmp_path):
  """From a checkpoint before the end of what was charged and released."""
  secret = bytes(range(32))
  budget = accounting.PrivacyBudget(epsilon=1000.0, delta=1e-3)
  kwargs = {'secret': secret, 'clipping': CLIPPING[clipping]}

  path = tmp_path / 'ledger.jsonl'
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    model = small_training.linear_model(
      _plan(ledger=ledger, **kwargs), 'adabelief', loss_bound=9.0
    )
    updates = _Updates(
      2, lambda: small_training.checkpoint(model).write(str(tmp_path / 'c'))
    )
    model.fit(_rows(), verbose=0, callbacks=[updates])
    expected = model.distribution.kernel.numpy()
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(ledger=ledger, **kwargs)
    assert not plan._steps.replays
    model = small_training.linear_model(plan, 'adabelief', loss_bound=9.0)
    small_training.checkpoint(model).read(str(tmp_path / 'c')).assert_consumed()
    plan.resume(model.optimizer, replay=True)
    assert plan._steps.replays and plan.step == 2
    again = _Updates()
    found = _interrupted(model, _rows(), 1, again)
    model.fit(_rows(), verbose=0, callbacks=[again])
    np.testing.assert_array_equal(found, updates.found[2:3])
    np.testing.assert_array_equal(again.found, updates.found[2:])
    np.testing.assert_array_equal(model.distribution.kernel, expected)
    assert [e.count for e in ledger.entries] == [STEPS]
    with pytest.raises(ValueError, match='All 6 steps of the plan were made'):
      model.fit(_rows(), verbose=0)


@pytest.mark.parametrize('kept', [True, False])
def test_a_new_process_goes_on_with_noise_that_was_never_used(kept, tmp_path):
  """Whatever its weights, learning rate, table and optimizer are."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    model = small_training.linear_model(plan)
    saved = str(tmp_path / 'c')
    updates = _Updates(2, lambda: small_training.checkpoint(model).write(saved))
    found = _interrupted(model, x, 5, updates)
    charged = ledger.entries[0].count
    # Blocks are small, and some batches may be drawn ahead.
    assert 5 <= charged < MANY
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    model = small_training.linear_model(plan, loss_bound=2.0)
    if kept:
      saved = small_training.checkpoint(model)
      saved.read(str(tmp_path / 'c')).assert_consumed()
    plan.resume(model.optimizer)
    assert not plan._steps.replays
    assert plan.step == charged and plan.remaining_steps == MANY - charged
    updates = _Updates()
    model.fit(x, verbose=0, callbacks=[updates])
    assert [e.count for e in ledger.entries] == [MANY]
  assert len(updates.found) == MANY - charged
  _assert_no_noise_twice(found + updates.found)


@pytest.mark.core
def test_nothing_is_made_twice_in_a_process_that_replays(tmp_path):
  """Weights that are taken back are not those that had that noise."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  with small_training.ledger(path) as ledger:
    model = small_training.linear_model(
      _plan(bytes(32), ledger=ledger, steps=MANY)
    )
    start = small_training.checkpoint(model).write(str(tmp_path / 'c'))
    first = _interrupted(model, x, 4)
    charged = ledger.entries[0].count
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer, replay=True)
    found = _interrupted(model, x, 2)
    np.testing.assert_array_equal(found, first[:2])
    small_training.checkpoint(model).read(start)
    updates = _Updates()
    model.fit(x, verbose=0, callbacks=[updates])
    assert len(updates.found) == MANY - charged
    _assert_no_noise_twice(first + updates.found)


def test_a_replay_skips_no_batch_that_was_handed_out(tmp_path):
  """The noise of a later one would meet weights that never had it."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  with small_training.ledger(path) as ledger:
    first = _interrupted(
      small_training.linear_model(_plan(bytes(32), ledger=ledger, steps=MANY)),
      x,
      3,
    )
    charged = ledger.entries[0].count
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer, replay=True)
    assert len(_interrupted(model, x, 1)) == 1
    list(plan.dataset(x, 1))
    updates = _Updates()
    model.fit(x, verbose=0, callbacks=[updates])
    assert len(updates.found) == MANY - charged
    _assert_no_noise_twice(first + updates.found)


@pytest.mark.parametrize('replay', [False, True])
def test_a_ledger_that_knows_less_than_the_optimizer_is_refused(replay):
  """Whatever ran after the checkpoint, nobody could tell."""
  plan = _plan()
  model = small_training.linear_model(plan)
  model.optimizer.plan_step.assign(2)
  if replay:  # When the table is known.
    plan.resume(model.optimizer, replay=True)
    go_on = lambda: model.fit(_rows(), verbose=0)
  else:
    go_on = lambda: plan.resume(model.optimizer)
  with pytest.raises(ValueError, match='has made 2 steps, and the ledger has'):
    go_on()


@pytest.mark.parametrize('way', ['checkpoint', 'weights', 'backup'])
def test_what_another_plan_has_charged_is_not_trained_on(way, tmp_path):
  """The statement would claim the steps of this plan alone."""
  x, folder = np.zeros([60, 4], 'float32'), tmp_path / 'b'
  first = small_training.linear_model(_plan())
  backup = [keras.callbacks.BackupAndRestore(str(folder))]
  _interrupted(first, x, 4, *(backup if way == 'backup' else []))
  saved = small_training.checkpoint(first).write(str(tmp_path / 'c'))
  first.save_weights(str(tmp_path / 'w'))
  plan = _plan()
  model, callbacks = small_training.linear_model(plan), []
  if way == 'checkpoint':
    small_training.checkpoint(model).restore(saved)
  elif way == 'weights':
    model.load_weights(str(tmp_path / 'w'))
  else:
    callbacks = [keras.callbacks.BackupAndRestore(str(folder))]
  kept = sorted(folder.rglob('*'))
  with pytest.raises(ValueError, match='that this plan has not charged'):
    model.fit(x, verbose=0, callbacks=callbacks)
  assert sorted(folder.rglob('*')) == kept
  assert not any(entry.count for entry in plan.ledger.entries)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_nor_if_it_is_restored_within_an_epoch(jit_compile, tmp_path):
  x = np.zeros([60, 4], 'float32')
  first = small_training.linear_model(_plan())
  _interrupted(first, x, 4)
  saved = small_training.checkpoint(first).write(str(tmp_path / 'c'))
  plan = _plan()
  model = small_training.linear_model(plan, jit_compile=jit_compile)
  callback = keras.callbacks.Callback()
  callback.on_epoch_begin = lambda *_: small_training.checkpoint(model).restore(
    saved
  )
  if jit_compile:  # Which knows no assertions: nothing is released then.
    model.fit(x, verbose=0, epochs=1, callbacks=[callback])
    assert np.isnan(model.trainable_variables[0]).all()
  else:
    with pytest.raises(
      tf.errors.InvalidArgumentError, match='restore none within'
    ):
      model.fit(x, verbose=0, callbacks=[callback])


@pytest.mark.parametrize('replay', [False, True])
def test_a_backup_is_gone_on_with_under_its_own_ledger(replay, tmp_path):
  """A replay may not restore from a callback, and claims no less if it does."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  backup = keras.callbacks.BackupAndRestore(str(tmp_path / 'b'), save_freq=1)
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    _interrupted(small_training.linear_model(plan), x, 5, backup)
    charged = ledger.entries[0].count
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger, steps=MANY)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer, replay=replay)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / 'b'), save_freq=1)
    updates = _Updates()
    model.fit(x, verbose=0, callbacks=[backup, updates])
    assert [e.count for e in ledger.entries] == [MANY]
  assert len(updates.found) >= MANY - charged


@pytest.mark.core
@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'clipping': gradients.Flat(2.0)}, 'clipping.*1.0.*and not.*2.0'),
    ({'clipping': gradients.PerLayer(1.0)}, 'clipping.*Flat.*PerLayer'),
    ({'loss_bound': 4.0}, 'loss_bound: 3.0, and not 4.0'),
    ({'augmentation_multiplicity': 2}, 'num_draws: 1, and not 2'),
    ({'learning_rate': 0.1}, 'learning_rate: 0.5, and not 0.1'),
    ({'set_to': 0.1}, 'learning_rate: 0.5, and not 0.1'),
    ({'learning_rate': 0.1, 'set_to': 0.5}, None),
    ({'name': 'adam'}, 'DPKerasSGD.*and not.*DPKerasAdam'),
    ({'x': _rows(2.0)}, 'table: '),
    ({'compiled': True}, 'jit_compile'),
    ({'chunk_size': 8}, None),
  ],
)
def test_a_replay_of_something_else_is_refused(change, message, tmp_path):
  """The same noise on other sums, or on what comes of other weights."""
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=1000.0, delta=1e-3)
  ledger = accounting.PrivacyLedger(path, budget=budget)

  def train(
    ledger,
    x=None,
    name='sgd',
    clipping=None,
    resume=True,
    set_to=None,
    compiled=False,
    **kwargs,
  ):
    plan = _plan(
      bytes(32), clipping=clipping or gradients.Flat(1.0), ledger=ledger
    )
    model = tfdpflows.DensityModel(small_training.Linear())
    optimizer = plan.optimizer(
      name, **{'learning_rate': 0.5, 'loss_bound': 3.0, **kwargs}
    )
    model.compile(optimizer=optimizer)
    if resume:
      plan.resume(optimizer, replay=True)
    if set_to is not None:
      optimizer.learning_rate = set_to
    with plan._steps.train(optimizer, compiled):
      plan.dataset(_rows() if x is None else x)

  with ledger:
    train(ledger, resume=False)
  with accounting.PrivacyLedger.open(path) as ledger:
    if message is None:
      train(ledger, **change)
      return
    with pytest.raises(accounting.LedgerError, match=message):
      train(ledger, **change)


@pytest.mark.parametrize('noise', ['independent', 'banded'])
def test_trainings_of_one_secret_in_two_ledgers_have_two_noises(noise):
  """And draw other batches, even from one table: they are charged for both."""
  x = np.zeros([60, 4], 'float32')
  found, batches = [], []
  cyclic = sampling.CyclicPoissonSampler(
    num_examples=60, sampling_probability=0.5, parts=2
  )
  for _ in range(2):
    plan = _plan(bytes(32), sampler=cyclic, noise=noise)
    updates = _Updates()
    model = small_training.linear_model(plan)
    model.fit(x, verbose=0, callbacks=[updates])
    found.append(np.ravel(updates.found))
    rows = lambda step, plan=plan: plan.sampler.draw_step(
      plan._steps.randomness, plan.label, step
    )
    batches.append([sorted(drawn[w > 0]) for drawn, w in map(rows, range(2))])
  assert abs(np.corrcoef(*found)[0, 1]) < 0.5
  assert batches[0] != batches[1]


@pytest.mark.parametrize('earlier', [False, True])
def test_a_resumed_training_has_the_random_numbers_of_then(
  earlier, tmp_path, monkeypatch
):
  """Reservations of earlier versions have none of their own."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  if earlier:
    monkeypatch.setattr(ledger_lib, '_new_nonce', lambda: 0)
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger)
    first = _interrupted(small_training.linear_model(plan), x, 2)
    assert (plan._steps.randomness is plan.randomness) == earlier
  monkeypatch.undo()
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger)
    model = small_training.linear_model(plan)
    plan.resume(model.optimizer, replay=True)
    np.testing.assert_array_equal(_interrupted(model, x, 2), first)
    assert (plan._steps.randomness is plan.randomness) == earlier


def test_calls_that_the_state_does_not_allow_are_refused():
  plan = _plan()
  steps, optimizer = plan._steps, plan.optimizer('sgd')
  for call in (steps.begin, steps.epoch_and_batch):
    with pytest.raises(ValueError, match='trains no model right now'):
      call()
  with steps.train(optimizer):
    with pytest.raises(ValueError, match='only a new plan'):
      plan.resume(optimizer)
    with (
      pytest.raises(ValueError, match='another model'),
      steps.train(optimizer),
    ):
      pass
  assert plan.step == 0 and plan.ledger.entries == ()


@pytest.mark.parametrize(
  ('changed', 'resumed'), [(False, False), (True, False), (True, True)]
)
def test_copies_that_go_on_with_two_tables_have_two_noises(
  changed, resumed, tmp_path
):
  """Else the difference of what they release would be that of the tables."""
  x, path = np.zeros([60, 4], 'float32'), tmp_path / 'ledger.jsonl'
  with small_training.ledger(path) as ledger:
    plan = _plan(bytes(32), ledger=ledger)
    model = small_training.linear_model(plan)
    if resumed:  # What is to be resumed may have charged nothing.
      plan.resume(model.optimizer)
    _interrupted(model, x, 2, _Updates())
  copy = tmp_path / 'copy.jsonl'
  shutil.copy(path, copy)
  found = []
  for place in (path, copy):
    if changed and place == copy:
      x[0] = np.nan  # Which moves nothing.
    with small_training.ledger(place) as ledger:
      plan = _plan(bytes(32), ledger=ledger)
      model = small_training.linear_model(plan)
      plan.resume(model.optimizer)
      updates = _Updates()
      model.fit(x, verbose=0, callbacks=[updates])
      found.append(np.ravel(updates.found))
  assert np.allclose(*found) != changed
  assert (abs(np.corrcoef(*found)[0, 1]) < 0.5) == changed


def test_an_optimizer_that_knows_no_step_is_not_resumed():
  plan = _plan()
  optimizer = plan.optimizer('sgd')
  optimizer.iterations.assign(3)
  with pytest.raises(ValueError, match='3 updates, and none of them is a step'):
    plan.resume(optimizer)
  with pytest.raises(ValueError, match='not made by this plan'):
    plan.resume(_plan().optimizer('sgd'))


@pytest.mark.core
def test_one_optimizer_trains():
  """Another one would look at batch 0 again, with noise of its own."""
  plan = _plan()
  idle, model = (
    small_training.linear_model(plan),
    small_training.linear_model(plan),
  )
  # Finding the step anew does not forget who has trained.
  begin = keras.callbacks.LambdaCallback(
    on_train_end=lambda logs: plan._steps.begin()
  )
  model.fit(_rows(), epochs=1, verbose=0, callbacks=[begin])
  with pytest.raises(ValueError, match='Another optimizer of this plan has'):
    idle.fit(_rows(), verbose=0)
  with pytest.raises(ValueError, match='trains on one table'):
    model.fit(_rows(2.0), verbose=0)
  model.fit(_rows(), verbose=0)
  assert plan.remaining_steps == 0


@pytest.mark.core
def test_one_that_has_failed_before_an_update_makes_way():
  plan = _plan()
  model = small_training.linear_model(plan)
  callback = keras.callbacks.LambdaCallback(
    on_train_batch_begin=lambda batch, logs: _stop()
  )
  with pytest.raises(_StopError):
    model.fit(_rows(), verbose=0, callbacks=[callback])
  small_training.linear_model(plan).fit(_rows(), verbose=0)
  assert plan.remaining_steps == 0


@pytest.mark.core
def test_free_updates_are_refused():
  """By hand, by the functions of Keras, with and without XLA."""
  plan = _plan()
  model = small_training.linear_model(plan)
  kernel = model.distribution.kernel
  errors = []

  def by_hand():
    # Step 2 may be drawn by now; the last one cannot be.
    with pytest.raises(ValueError, match=r'with their `step`'):
      model.optimizer.private_gradients_of(model._row_losses, _rows(), [kernel])
    for step in (0, STEPS - 1, STEPS):
      with pytest.raises(tf.errors.InvalidArgumentError, match='no step'):
        model.optimizer.private_gradients_of(
          model._row_losses, _rows(), [kernel], step=step
        )
    errors.append(None)

  model.fit(_rows(), verbose=0, epochs=2, callbacks=[_Updates(1, by_hand)])
  assert errors == [None]
  before = kernel.numpy()
  own = tf.data.Dataset.from_tensors(
    (_rows(), tf.ones([60]), tf.constant(4, tf.int64))
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match='no step'):
    model.train_function(iter(own))
  np.testing.assert_array_equal(kernel, before)
  plain = tfdpflows.optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=30
  )
  with pytest.raises(ValueError, match='no plan'):
    plain.private_gradients_of(model._row_losses, _rows(), [kernel], step=0)


@pytest.mark.core
def test_no_step_is_made_before_it_is_charged():
  plan = _plan()
  model = small_training.linear_model(plan)
  optimizer, kernel = model.optimizer, model.distribution.kernel

  def update(step):
    return optimizer.private_gradients_of(
      model._row_losses, _rows(), [kernel], step=step
    )

  with plan._steps.train(optimizer):
    with pytest.raises(tf.errors.InvalidArgumentError, match='no step'):
      update(0)
    for _, _, step in plan.dataset(_rows(), 1):
      update(step)
    with pytest.raises(tf.errors.InvalidArgumentError, match='no step'):
      update(1)
  assert int(optimizer.plan_step) == 1


def test_epochs_are_those_of_the_plan():
  """A schedule by epochs goes on where it was; what is left comes first."""
  seen = []
  epochs = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: seen.append([epoch]),
    on_train_batch_end=lambda batch, logs: seen[-1].append(batch),
  )
  plan = _plan(steps=7)  # Of two steps each.
  model = small_training.linear_model(plan)
  model.fit(_rows(), epochs=1, verbose=0, callbacks=[epochs])
  _interrupted(model, _rows(), 2, epochs)
  model.fit(_rows(), verbose=0, callbacks=[epochs])
  assert seen == [[0, 0, 1], [1, 1], [2, 0], [2, 1], [3, 0, 1]]
  with pytest.raises(ValueError, match='drop initial_epoch'):
    model.fit(_rows(), initial_epoch=1)


@pytest.mark.parametrize('step', [1, 5, 6])
def test_xla_makes_nothing_of_a_free_update(step):
  """It drops the assertion; the noise is NaN then."""
  steps = StepNoise(_plan()._steps)
  steps.open(2)
  steps.charged(5)
  take = tf.function(lambda s: steps.take(s)[1], jit_compile=True)
  assert np.isnan(take(tf.constant(step, tf.int64)))
  assert steps.unused == 2
  assert take(tf.constant(3, tf.int64)) == 1
  assert steps.unused == int(steps.done) == 4
  assert np.isnan(take(tf.constant(3, tf.int64)))


def test_xla_compiles_one_program_for_all_steps():
  """The number of a step is a parameter of the program, not a constant."""
  steps = StepNoise(_plan()._steps)
  steps.open(1_234_560)
  steps.charged(1_234_599)
  optimizer = keras.optimizers.legacy.SGD(1.0)
  weights = tf.Variable([1.0, 2.0])

  @tf.function(jit_compile=True)
  def update(step):
    taken = steps.take(step)
    optimizer.apply_gradients([(steps.add(taken, weights, 1.0), weights)])

  step = tf.constant(1_234_567, tf.int64)
  program = update.experimental_get_compiler_ir(step)(stage='hlo')
  assert 'parameter(0)' in program and 'constant(' in program
  assert not any(f'({number})' in program for number in range(1234560, 1234600))


@pytest.mark.parametrize('probability', [0.02, 0.3])
def test_steps_that_xla_compiles_see_few_sizes(probability):
  x = np.arange(1.0, 2001.0, dtype=np.float32)[:, None] * np.ones([1, 4])
  found = []
  for few in (False, True):
    plan = tfdpflows.TrainingPlan(
      tfdpflows.sampling.PoissonSampler(
        num_examples=2000, sampling_probability=probability
      ),
      tfdpflows.gradients.Flat(1.0),
      noise_multiplier=1.0,
      steps=80,
      delta=1e-5,
      seed=3,
    )
    dataset = plan._steps.dataset(x, few_sizes=few)
    found.append(list(dataset.as_numpy_iterator()))
  plain, padded = found
  sizes = {len(weights) for _, weights, _ in padded}
  mean = 2000 * probability
  assert len(sizes) <= 2 and max(sizes) <= mean + 6 * mean**0.5 + 8
  for (rows, weights, _), (others, wider, _) in zip(plain, padded):
    np.testing.assert_array_equal(rows[weights > 0], others[wider > 0])
    assert not others[wider == 0].any() and wider.sum() == weights.sum()
