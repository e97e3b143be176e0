"""The plan: sampler, clipping, noise and ledger cannot disagree."""

import copy
import itertools
import threading
import time

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import accounting, gradients, optimizers, sampling
from tfdpflows._keras import keras
from tfdpflows.accounting.rounding import round_up
from tfdpflows.randomness import Randomness
from tfdpflows.training import step_noise

X = np.arange(200, dtype='float32')[:, None]


def _plan(steps=8, noise_multiplier=2.0, **kwargs):
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=200, sampling_probability=0.25),
    gradients.Flat(3.0),
    noise_multiplier=noise_multiplier,
    steps=steps,
    delta=1e-4,
    **kwargs,
  )


def test_there_is_one_ledger_whoever_asks_for_it_first(monkeypatch):
  """Made twice, the charges would be in the one that nobody sees."""
  plan, begun, found = _plan(), threading.Barrier(2), []
  monkeypatch.setattr(
    type(plan), 'epsilon', lambda self: time.sleep(0.1) or 1.0
  )

  def ask():
    begun.wait()
    found.append(plan.ledger)

  threads = [threading.Thread(target=ask) for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found[0] is found[1]
  assert copy.copy(plan) is plan


def test_for_epsilon_goes_on_with_the_noise_that_was_charged():
  """On another machine, calibration ends with other digits."""
  kwargs = {
    'epsilon': 1.0,
    'delta': 1e-5,
    'num_examples': 1000,
    'expected_batch_size': 100,
    'steps': 10,
    'clipping': gradients.Flat(1.0),
    'accountant': 'rdp',
  }
  plan = tfdpflows.TrainingPlan.for_epsilon(**kwargs)
  calibrated = plan.noise_multiplier
  for charged, label, same in (
    (calibrated * (1 + 1e-9), 'DP-SGD', True),
    (calibrated * (1 - 1e-7), 'DP-SGD', True),
    (calibrated * 1.01, 'DP-SGD', False),
    (calibrated * (1 + 1e-9), 'another', False),
  ):
    ledger = accounting.PrivacyLedger()
    ledger.charge(plan.sampler.event(charged), 10, label=label)
    found = tfdpflows.TrainingPlan.for_epsilon(**kwargs, ledger=ledger)
    assert found.noise_multiplier == (charged if same else calibrated)
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(calibrated), 10, label='DP-SGD')
  found = tfdpflows.TrainingPlan.for_epsilon(**kwargs, ledger=ledger)
  assert found.noise_multiplier == calibrated


@pytest.mark.core
def test_for_epsilon_keeps_the_budget_and_uses_it_up():
  for accountant in ('pld', 'rdp'):
    plan = tfdpflows.TrainingPlan.for_epsilon(
      epsilon=1.0,
      delta=1e-5,
      num_examples=5000,
      expected_batch_size=500,
      epochs=3,
      clipping=gradients.Flat(1.0),
      accountant=accountant,
    )
    assert plan.steps == 30
    assert 0.998 < plan.epsilon() <= 1.0
    assert plan.ledger.budget == accounting.PrivacyBudget(
      epsilon=1.0, delta=1e-5
    )


def test_for_epsilon_pays_for_what_was_spent():
  kwargs = {
    'epsilon': 1.0,
    'delta': 1e-5,
    'num_examples': 5000,
    'expected_batch_size': 500,
    'steps': 10,
    'clipping': gradients.Flat(1.0),
  }
  spent = dp_accounting.GaussianDpEvent(5.0)
  plan = tfdpflows.TrainingPlan.for_epsilon(**kwargs, spent=spent)
  free = tfdpflows.TrainingPlan.for_epsilon(**kwargs)
  assert plan.noise_multiplier > free.noise_multiplier
  both = dp_accounting.ComposedDpEvent([spent, plan.event])
  assert 0.998 < accounting.compute_epsilon(both, 1e-5) <= 1.0


@pytest.mark.core
def test_batches_are_charged_before_they_are_drawn():
  plan = _plan()
  assert plan.ledger.entries == ()
  charged = []
  for i, (rows, weights, step) in enumerate(plan.dataset(X).take(5)):
    assert int(step) == i
    charged.append(plan.ledger.entries[0].count)
    assert rows.shape[0] == weights.shape[0]
  assert all(i <= c for i, c in enumerate(charged, 1))
  assert plan.ledger.entries[0].event == plan.sampler.event(2.0)
  assert plan.ledger.epsilon() <= plan.epsilon()


def test_charges_are_blocks_of_a_tenth_of_an_epoch():
  """As many updates may be lost when a process dies."""
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=200, sampling_probability=0.02),
    gradients.Flat(3.0),
    noise_multiplier=2.0,
    steps=100,
  )
  list(plan.dataset(X, 7))
  assert plan.ledger.entries[0].count == 10


def test_steps_run_out_over_all_datasets():
  plan = _plan()
  assert len(list(plan.dataset(X, 5))) == 5
  assert plan.remaining_steps == 3
  with pytest.raises(ValueError, match='3 of 8 steps left'):
    plan.dataset(X, 4)
  dataset = plan.dataset(X)
  assert len(list(dataset)) == 3
  assert len(list(dataset)) == 0  # Iterating again draws nothing new.
  with pytest.raises(ValueError, match='All 8 steps of the plan were made'):
    plan.dataset(X)


def test_a_label_that_is_taken_says_how_to_go_on():
  ledger = accounting.PrivacyLedger()
  _plan(ledger=ledger).dataset(X)
  with pytest.raises(
    accounting.LedgerError,
    match=r"'DP-SGD' is taken .*plan.resume\(optimizer\).*label=...",
  ):
    _plan(ledger=ledger).dataset(X)
  _plan(ledger=ledger, label='another').dataset(X)


@pytest.mark.parametrize('own_ledger', [False, True])
def test_the_recipe_for_a_longer_training_counts_both(own_ledger):
  """In a ledger with a budget for both, or in one that the new plan makes."""
  ledger = None
  if own_ledger:
    budget = accounting.PrivacyBudget(epsilon=3.0, delta=1e-4)
    ledger = accounting.PrivacyLedger(budget=budget)
  kwargs = {
    'delta': 1e-4,
    'num_examples': 200,
    'expected_batch_size': 50,
    'steps': 4,
    'clipping': gradients.Flat(1.0),
  }
  x = np.zeros([200, 2], 'float32')
  flow = tfdpflows.flows.masked_autoregressive_flow(2, 1, [4])
  model = tfdpflows.DensityModel(flow)
  first = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0, ledger=ledger, **kwargs
  )
  model.compile(first.optimizer('sgd', learning_rate=0.1))
  model.fit(x, verbose=0)
  with pytest.raises(ValueError, match='spent=ledger.committed_event, ledger='):
    model.fit(x, verbose=0)
  second = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=3.0,
    spent=first.ledger.committed_event,
    **({'ledger': ledger, 'label': 'another'} if own_ledger else {}),
    **kwargs,
  )
  model.compile(second.optimizer('sgd', learning_rate=0.1))
  model.fit(x, verbose=0)
  both = dp_accounting.ComposedDpEvent([first.event, second.event])
  spent = accounting.compute_epsilon(both, 1e-4)
  assert 2.9 < spent <= 3.0
  assert second.privacy_statement().epsilon == pytest.approx(spent, rel=1e-6)


def test_nothing_tunes_the_batches():
  """The thread that would do so holds an iterator for up to a minute."""
  assert _plan().dataset(X).options().autotune.enabled is False


def test_ledger_refuses_what_its_budget_does_not_allow():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.1, delta=1e-4)
  )
  plan = _plan(ledger=ledger)
  with pytest.raises(accounting.BudgetExceededError):
    plan.dataset(X)
  assert ledger.entries == ()


@pytest.mark.core
def test_optimizer_takes_everything_from_the_plan():
  plan = _plan()
  for name, cls in (
    ('adam', optimizers.DPKerasAdam),
    ('adabelief', optimizers.DPKerasAdaBelief),
    ('sgd', optimizers.DPKerasSGD),
    ('adagrad', optimizers.DPKerasAdagrad),
  ):
    optimizer = plan.optimizer(name, learning_rate=0.1)
    assert isinstance(optimizer, cls)
    assert optimizer.clipping is plan.clipping
    assert optimizer.noise_multiplier == 2.0
    assert optimizer.expected_batch_size == 50
    assert optimizer.plan is plan
  with pytest.raises(ValueError, match="'rmsprop'"):
    plan.optimizer('rmsprop')
  with pytest.raises(ValueError, match='subclasses of optimizers.DPOptimizer'):
    plan.optimizer(keras.optimizers.legacy.SGD)

  class Slow(optimizers.DPKerasSGD):
    pass

  assert isinstance(plan.optimizer(Slow, learning_rate=0.1), Slow)


def test_no_two_optimizers_or_plans_share_noise(monkeypatch):
  # Before it is rounded: on the grid one number of a hundred is another one.
  monkeypatch.setattr(step_noise, 'on_grid', lambda x, stddev: x)

  def noise(plan):
    optimizer = plan.optimizer('sgd')
    kernel = tf.Variable(tf.zeros([4, 4]))
    found = []
    with plan._steps.train(optimizer):
      for _, _, step in plan.dataset(X, 2):
        with gradients.PerExampleTape() as tape:
          loss = tf.reduce_sum(gradients.linear(tf.zeros([1, 4]), kernel), -1)
        means, _ = optimizer.private_gradients(loss, [kernel], tape, step=step)
        found.append(means[0].numpy())
    return found

  plan = _plan(seed=0)
  draws = noise(plan)
  with pytest.raises(ValueError, match='Another optimizer'):
    noise(plan)
  draws += noise(_plan(seed=0, label='other'))
  for i in range(4):
    for j in range(i):
      assert not np.any(draws[i] == draws[j])
  # A replay of the same plan has the same noise, which is what resuming needs.
  np.testing.assert_array_equal(noise(_plan(seed=0)), draws[:2])


def test_seeded_batches_replay_from_any_step():
  batches = [rows.numpy() for rows, _, _ in _plan(seed=3).dataset(X)]
  again = _plan(seed=3)
  for start, stop in ((0, 5), (5, 8)):
    found = list(again.dataset(X, stop - start))
    for one, expected in zip(found, batches[start:stop]):
      np.testing.assert_array_equal(one[0], expected)
  other = [rows.numpy() for rows, _, _ in _plan(seed=4).dataset(X)]
  assert any(
    a.shape != b.shape or (a != b).any() for a, b in zip(batches, other)
  )


@pytest.mark.core
def test_a_ledger_goes_on_after_what_it_has_charged(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  randomness = Randomness(seed=3)
  plan = _plan(
    ledger=accounting.PrivacyLedger(
      path, budget=accounting.PrivacyBudget(epsilon=50.0, delta=1e-4)
    ),
    randomness=randomness,
  )
  optimizer = plan.optimizer('sgd')
  first = list(plan.dataset(X, 5))
  with pytest.raises(ValueError, match='begun to draw'):
    plan.resume(optimizer)
  plan.ledger.close()

  with accounting.PrivacyLedger.open(path) as ledger:
    with pytest.raises(accounting.LedgerError, match='is taken'):
      _plan(ledger=ledger, randomness=Randomness(seed=3)).dataset(X)
    other = _plan(ledger=ledger)
    with pytest.raises(accounting.LedgerError, match='other random numbers'):
      other.resume(other.optimizer('sgd'))
  with accounting.PrivacyLedger.open(path) as ledger:
    same = _plan(ledger=ledger, randomness=Randomness(seed=3))
    same.resume(same.optimizer('sgd'))
    charged = ledger.entries[0].count
    assert charged == same.step
    assert len(first) <= charged < 8
    steps = [int(step) for _, _, step in same.dataset(X)]
    assert steps == list(range(charged, 8))
    assert ledger.entries[0].count == 8


def test_what_was_charged_without_an_optimizer_is_not_replayed(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  budget = accounting.PrivacyBudget(epsilon=50.0, delta=1e-4)
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    _plan(ledger=ledger, seed=3).dataset(X)
  with accounting.PrivacyLedger.open(path) as ledger:
    plan = _plan(ledger=ledger, seed=3)
    optimizer = plan.optimizer('sgd')
    plan.resume(optimizer, replay=True)
    message = 'another optimizer: null, and not "DPKerasSGD"'
    refused = pytest.raises(accounting.LedgerError, match=message)
    with plan._steps.train(optimizer), refused:
      plan.dataset(X)


def test_updates_outside_of_fit_are_refused():
  kernel = tf.Variable(tf.zeros([4, 4]))
  plan = _plan()
  optimizer = plan.optimizer('sgd')
  with gradients.PerExampleTape() as tape:
    loss = tf.reduce_sum(gradients.linear(tf.zeros([1, 4]), kernel), -1)
  with pytest.raises(ValueError, match=r'DensityModel\.fit only'):
    optimizer.private_gradients(loss, [kernel], tape)
  with plan._steps.train(optimizer):
    with pytest.raises(ValueError, match='DensityModel'):
      plan.optimizer('sgd').private_gradients(loss, [kernel], tape)
    again = plan._steps.train(optimizer)
    with pytest.raises(ValueError, match='another model'):
      again.__enter__()


def test_two_plans_of_one_randomness_need_two_labels():
  randomness = Randomness()
  _plan(randomness=randomness)
  _plan(randomness=randomness, label='other')
  with pytest.raises(ValueError, match='used already'):
    _plan(randomness=randomness)


def test_own_ledger_counts_what_was_spent_besides():
  spent = dp_accounting.GaussianDpEvent(5.0)
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-5,
    num_examples=200,
    expected_batch_size=50,
    steps=4,
    clipping=gradients.Flat(1.0),
    spent=spent,
    seed=0,
  )
  assert plan.ledger.entries[0].event == spent
  list(plan.dataset(X))
  assert 0.998 < plan.ledger.epsilon() <= 1
  assert plan.privacy_statement().seeded


def test_statement_says_how_it_was_drawn_and_whether_seeded():
  plan = _plan(seed=0)
  list(plan.dataset(X))
  text = str(plan.privacy_statement())
  assert 'Poisson' in text
  assert 'seeded' in text
  assert 'DP-SGD' in text
  plain = _plan()
  list(plain.dataset(X))
  assert 'seeded: not private' not in str(plain.privacy_statement())


def test_statement_of_a_part_tells_the_claim_where_outputs_decided_the_end():
  """As `EarlyStopping` does: accountants take the steps for fixed."""
  plan = _plan()
  assert 'Steps:' not in str(plan.privacy_statement())
  list(plan.dataset(X, steps=1))
  (note,) = [n for n in plan.privacy_statement().notes if 'Steps:' in n]
  assert f"Steps: 1 of {plan.steps} of 'DP-SGD' are charged." in note
  assert f'then costs epsilon {round_up(plan.epsilon())}.' in note
  list(plan.dataset(X))
  assert 'Steps:' not in str(plan.privacy_statement())
  plan = _plan(accountant='gdp')
  list(plan.dataset(X, steps=1))
  (note,) = [n for n in plan.privacy_statement().notes if 'Steps:' in n]
  assert f'{round_up(plan.epsilon())} (gdp, asymptotic' in note


def test_a_ledger_of_ones_own_says_that_a_plan_was_seeded(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  with accounting.PrivacyLedger(path) as ledger:
    list(_plan(ledger=ledger).dataset(X))
    assert not ledger.seeded
    list(_plan(ledger=ledger, seed=0, label='seeded').dataset(X))
    assert ledger.seeded
    assert accounting.privacy_statement(ledger, delta=1e-5).seeded
  assert accounting.PrivacyLedger.open(path, read_only=True).seeded


def test_bad_input():
  plan = _plan()
  with pytest.raises(ValueError, match='x has 100 rows, the plan is for 200'):
    plan.dataset(X[:100])
  with pytest.raises(ValueError, match='have 200 and 100 rows'):
    plan.dataset((X, X[:100]))
  for arguments, message in (
    ({'noise_multiplier': 0.0}, 'noise_multiplier'),
    ({'steps': 0}, 'steps'),
    ({'steps': 1.5}, 'steps'),
  ):
    with pytest.raises(ValueError, match=message):
      _plan(**arguments)
  with pytest.raises(TypeError, match='noise_multiplier is of type str'):
    _plan(noise_multiplier='1')
  with pytest.raises(ValueError, match='too little noise'):
    _plan(noise_multiplier=1e-200).dataset(X)
  rare = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=200, sampling_probability=1e-9),
    gradients.Flat(3.0),
    noise_multiplier=2.0,
    steps=8,
  )
  for covered in (rare, _plan(noise_multiplier=1e9)):
    with pytest.raises(ValueError, match=r'delta=\S+ alone covers this plan'):
      covered.dataset(X)
  good = {
    'epsilon': 1.0,
    'delta': 1e-5,
    'num_examples': 100,
    'expected_batch_size': 10,
    'clipping': gradients.Flat(1.0),
    'epochs': 1,
  }
  with pytest.raises(TypeError, match='clipping .* float; .*Flat'):
    tfdpflows.TrainingPlan.for_epsilon(**{**good, 'clipping': 1.0})
  with pytest.raises(TypeError, match='ledger is of type str.*PrivacyLedger'):
    tfdpflows.TrainingPlan.for_epsilon(**good, ledger='l.jsonl')
  with pytest.raises(TypeError, match='ledger is of type str.*PrivacyLedger'):
    _plan(ledger='l.jsonl')
  for arguments, message in (
    ({'epsilon': 0.0}, 'epsilon'),
    ({'epsilon': '1'}, "epsilon must be a number, not '1'"),
    ({'epochs': 0}, 'epochs is 0; it must be positive'),
    ({'epochs': -1}, 'epochs is -1; it must be positive'),
    ({'epochs': float('nan')}, 'epochs is nan'),
    ({'delta': 1.0}, 'delta'),
    ({'expected_batch_size': 101}, 'expected_batch_size'),
    ({'steps': 3}, 'one of `epochs` and `steps`'),
    ({'accountant': 'plt'}, 'pld'),
  ):
    with pytest.raises(ValueError, match=message):
      tfdpflows.TrainingPlan.for_epsilon(**{**good, **arguments})


def _classifier(optimizer):
  layer = keras.layers.Dense(1)
  model = tfdpflows.PrivateModel(keras.Sequential([layer]))
  model.compile(optimizer, 'mse')
  return model


def _set(**values):
  def change(optimizer):
    for name, value in values.items():
      setattr(optimizer, name, value)

  return change


def _clip_in_place(optimizer):
  optimizer.clipping.l2_norm_clip = 30.0


CHANGES = {
  'noise_multiplier': _set(noise_multiplier=1e-6),
  'clipping': _set(clipping=gradients.Flat(30.0)),
  'clipping, in place': _clip_in_place,
  'loss_bound': _set(loss_bound=5.0),
  'expected_batch_size': _set(expected_batch_size=1.0),
  'augmentation_multiplicity': _set(augmentation_multiplicity=3),
}


@pytest.mark.core
def test_a_change_that_was_refused_is_in_no_later_step():
  plan = _plan(steps=1)
  model = _classifier(plan.optimizer('sgd', learning_rate=1.0))
  rows, y = 1e6 * X, np.zeros([200, 1], 'f')
  clipping = model.optimizer.clipping
  clipping.l2_norm_clip = 1e6
  with pytest.raises(ValueError, match='changed after'):
    model.fit(rows, y, verbose=0)
  clipping.l2_norm_clip = 3.0
  model.fit(rows, y, verbose=0)
  # 50 rows of at most 3, and noise of 6, over 50; not 1e6 each.
  assert np.abs(model.get_weights()[0]).max() < 10


@pytest.mark.parametrize(
  ('after', 'change'),
  thinned(
    itertools.product(['planning', 'a fit', 'a step'], CHANGES),
    lambda point: point[0] != 'a fit' or point[1] == 'noise_multiplier',
  ),
)
def test_an_optimizer_that_was_changed_is_refused(change, after):
  """Ledger and statement, and the next process, know it as it was made."""
  plan = _plan()
  model = _classifier(plan.optimizer('sgd', learning_rate=0.1))
  refused = pytest.raises(
    ValueError, match=f'changed after.*{change.partition(",")[0]}'
  )
  y = np.zeros([200, 1], 'f')
  if after == 'a step':
    with plan._steps.train(model.optimizer):
      CHANGES[change](model.optimizer)
      with refused:
        model.optimizer.check_step([], 0)
    return
  if after == 'a fit':
    model.fit(X, y, epochs=1, verbose=0)
  CHANGES[change](model.optimizer)
  charged = [e.count for e in plan.ledger.entries]
  with refused:
    model.fit(X, y, verbose=0)
  assert [e.count for e in plan.ledger.entries] == charged


def test_a_plan_and_its_sampler_cannot_be_changed():
  """What was charged was charged for them; one was exchanged in a callback."""
  plan = _plan()
  for value, names in (
    (plan, 'sampler clipping noise_multiplier steps accountant delta label'),
    (plan, 'randomness'),
    (plan.sampler, 'num_examples sampling_probability chunk max_batch_size'),
    (
      sampling.FixedSizeSampler(num_examples=9, batch_size=3),
      'num_examples batch_size',
    ),
  ):
    for name in names.split():
      before = getattr(value, name)
      with pytest.raises(AttributeError, match=f'{name} of a .* make a new'):
        setattr(value, name, 1.0)
      assert getattr(value, name) is before


def test_learning_rates_may_change():
  """What is made of releases is nobody's secret."""
  plan = _plan()
  model = _classifier(plan.optimizer('adam', learning_rate=0.1))
  y = np.zeros([200, 1], 'f')
  for learning_rate in (0.2, 0.01):
    model.optimizer.learning_rate = learning_rate
    model.fit(X, y, epochs=1, verbose=0)
  assert plan.remaining_steps == 0


def test_what_is_of_the_plan_is_no_argument_of_its_optimizer():
  plan = _plan()
  with pytest.raises(
    TypeError, match='l2_norm_clip and noise_multiplier.*drop'
  ):
    plan.optimizer('sgd', l2_norm_clip=1.0, noise_multiplier=1.1)
  with pytest.raises(TypeError, match='seed of the optimizer is that.*drop it'):
    plan.optimizer('sgd', seed=1)
