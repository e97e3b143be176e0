"""Canaries of real trainings: what they are, and what the audit finds."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.unproven import proven
from tfdpflows import audit

ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _table(rows=100):
  x = np.random.default_rng(0).normal(size=[rows, 3]).astype('float32')
  return x, (x[:, 0] > 0).astype('int64')


def _plan(num_examples, q=1.0, noise_multiplier=4.0, steps=4):
  return tfdpflows.TrainingPlan(
    tfdpflows.sampling.PoissonSampler(
      num_examples=num_examples, sampling_probability=q
    ),
    tfdpflows.gradients.Flat(1.0),
    noise_multiplier=noise_multiplier,
    steps=steps,
    seed=0,
  )


def _classifier():
  return tf.keras.Sequential([tf.keras.layers.Dense(2)])


def _white_box(canaries, table, plan, name='sgd'):
  model = tfdpflows.PrivateModel(canaries.model(_classifier()))
  model.compile(plan.optimizer(name, learning_rate=0.1), canaries.loss(ENTROPY))
  one_run = audit.OneRunAudit(canaries)
  model.fit(*canaries.insert(table), callbacks=[one_run], verbose=0)
  return model, one_run


@proven()
def test_dirac_canaries_reach_mu_of_a_full_batch():
  canaries = audit.GradientCanaries(1500, seed=1)
  plan = _plan(1600)
  model, one_run = _white_box(canaries, _table(), plan)
  assert model.checked_independence == 'proven'
  scores, included = one_run.scores, canaries.included
  # Each canary is a Gaussian mechanism of its own, with mu 1/2.
  inside, outside = scores[included], scores[~included]
  gap = (inside.mean() - outside.mean()) / outside.std()
  assert gap == pytest.approx(0.5, abs=0.15)
  found = one_run.result()
  assert not found.refuted
  assert 0 < found.epsilon_lower < found.epsilon_claimed
  assert found.epsilon_claimed == pytest.approx(plan.epsilon())
  assert 0 < found.mu_lower < 0.5


def test_gradient_canaries_do_not_reach_the_model():
  """Their own gradients are zero, with sampling and another optimizer too."""
  canaries = audit.GradientCanaries(
    np.random.default_rng(0).normal(size=[60, 20]), seed=1
  )
  (x, gradients), (y, scales) = canaries.insert(_table())
  assert x.shape == (160, 3) and gradients.shape == (160, 20)
  assert not gradients[:100].any() and not scales[:100].any()
  np.testing.assert_allclose(np.linalg.norm(gradients[100:], axis=1), 1, 1e-5)
  np.testing.assert_array_equal(scales[100:, 0] > 0, canaries.included)
  model = tfdpflows.PrivateModel(canaries.model(_classifier()))
  optimizer = tfdpflows.optimizers.DPKerasSGD(
    l2_norm_clip=1.0,
    noise_multiplier=0.0,
    expected_batch_size=1.0,
    learning_rate=1.0,
  )
  model.compile(optimizer, canaries.loss(ENTROPY))
  rows = tuple(
    tuple(tf.constant(a[100:]) for a in part)
    for part in ((x, gradients), (y, scales))
  )
  model.model(tuple(rows[0]))
  own = [w.copy() for w in model.model.model.get_weights()]
  model.train_on_batch(*rows)
  for before, after in zip(own, model.model.model.get_weights()):
    np.testing.assert_array_equal(before, after)
  # The clipped sum: each canary counts 1, whatever its scale.
  moved = -model.model.head.get_weights()[0][:, 0]
  expected = gradients[100:][canaries.included].sum(0)
  np.testing.assert_allclose(moved, expected, atol=1e-4)


def test_rows_that_are_left_out_add_nothing():
  x, y = _table(40)
  canaries = audit.Canaries((x + 5, 1 - y), seed=0)
  more, labels = canaries.insert((x, y))
  assert more.shape == (80, 3) and labels.shape == (80,)
  np.testing.assert_array_equal(np.isnan(more[40:]).any(1), ~canaries.included)

  def weights_after(x, y):
    tf.keras.utils.set_random_seed(0)
    model = tfdpflows.PrivateModel(_classifier())
    model.compile(
      tfdpflows.optimizers.DPKerasSGD(
        l2_norm_clip=1.0,
        noise_multiplier=0.0,
        expected_batch_size=10.0,
        learning_rate=1.0,
      ),
      ENTROPY,
    )
    model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.model.get_weights()])

  rest = np.concatenate([np.ones(40, bool), canaries.included])
  np.testing.assert_allclose(
    weights_after(more, labels),
    weights_after(more[rest], labels[rest]),
    atol=1e-5,
  )


def test_models_that_fill_in_nan_are_refused():
  """There canaries that are left out move the model, the other way perhaps."""

  class Filling(tf.keras.layers.Layer):
    def call(self, x):
      return tf.where(tf.math.is_nan(x), -1.0, x)

  x, y = _table(40)
  for usable in (None, lambda x, y: ~tf.reduce_any(tf.math.is_nan(x), 1)):
    canaries = audit.Canaries((x, 1 - y), seed=0)
    table = canaries.insert((x, y))
    plan = _plan(80, steps=1)
    model = tf.keras.Sequential([Filling(), tf.keras.layers.Dense(2)])
    model = tfdpflows.PrivateModel(model, usable=usable)
    model.compile(plan.optimizer('sgd', learning_rate=0.1), ENTROPY)
    fit = lambda model=model, table=table, canaries=canaries: model.fit(
      *table, callbacks=[audit.OneRunAudit(canaries)], verbose=0
    )
    if usable is not None:
      fit()
      continue
    with pytest.raises(ValueError, match='fills in what is missing'):
      fit()
    assert not any(entry.count for entry in plan.ledger.entries)


def test_densities_are_scored_by_their_log_prob():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[200, 2]).astype('float32')
  canaries = audit.Canaries(x[:40] * 0 + 6, seed=0)
  plan = _plan(240, q=0.5, noise_multiplier=1.0)
  flow = tfdpflows.flows.masked_autoregressive_flow(
    2, num_blocks=1, hidden_units=[8]
  )
  model = tfdpflows.DensityModel(flow)
  model.compile(plan.optimizer('adam', learning_rate=1e-2))
  before = model.log_prob(canaries.rows).numpy()
  one_run = audit.OneRunAudit(canaries, num_guesses=40)
  model.fit(canaries.insert(x), callbacks=[one_run], verbose=0)
  np.testing.assert_allclose(
    one_run.scores, model.log_prob(canaries.rows) - before, rtol=1e-3
  )
  found = one_run.result()
  assert not found.refuted
  assert [g.num_guesses for g in found.guesses] == [40]


def test_without_a_plan_the_claim_is_given():
  x, y = _table(60)
  canaries = audit.Canaries((x, 1 - y), seed=0)
  event = dp_accounting.GaussianDpEvent(1.0)
  audits = [
    audit.OneRunAudit(canaries, claim=claim, delta=delta)
    for claim, delta in ((event, 1e-5), (None, 1e-5), (None, None))
  ]
  with pytest.raises(ValueError, match='no result before'):
    audits[0].result()
  model = tfdpflows.PrivateModel(_classifier())
  model.compile(
    tfdpflows.optimizers.DPKerasSGD(
      l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=120.0
    ),
    ENTROPY,
  )
  rows = canaries.insert((x, y))
  model.fit(*rows, batch_size=120, callbacks=audits, verbose=0)
  found = audits[0].result()
  assert not found.refuted and found.epsilon_claimed > 1
  found = audits[1].result()
  assert not found.refuted and found.epsilon_claimed is None
  assert 'No claim' in str(found)
  with pytest.raises(ValueError, match='give OneRunAudit a delta'):
    audits[2].result()


def test_gradient_canaries_are_not_for_counts_of_rows():
  canaries = audit.GradientCanaries(3)
  plan = tfdpflows.TrainingPlan(
    tfdpflows.sampling.PoissonSampler(
      num_examples=103, sampling_probability=1.0
    ),
    tfdpflows.gradients.AdaptiveQuantile(),
    noise_multiplier=1.0,
    steps=1,
  )
  with pytest.raises(ValueError, match='AdaptiveQuantile counts'):
    _white_box(canaries, _table(), plan)


def test_bad_canaries_are_named():
  for make, message in (
    (lambda: audit.Canaries((np.ones([3, 2]), np.ones(2))), r'\[2, 3\] rows'),
    (lambda: audit.GradientCanaries(0), 'gradients is 0'),
    (lambda: audit.GradientCanaries([[0.0, 0.0]]), 'A gradient is zero'),
    (lambda: audit.GradientCanaries(np.ones([2, 2, 2])), 'num_canaries, size'),
    (lambda: audit.GradientCanaries(3, scale=0.0), 'scale is 0'),
    (
      lambda: audit.Canaries(np.ones([3, 2], int)).insert(np.ones([3, 2], int)),
      'hold no floats',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      make()


def test_canaries_must_be_in_the_table():
  canaries = audit.GradientCanaries(3)
  one_run = audit.OneRunAudit(canaries)
  with pytest.raises(ValueError, match='in no table'):
    one_run.on_train_begin()
  x, y = _table(60)
  model = tfdpflows.PrivateModel(_classifier())
  plan = _plan(60, steps=1)
  model.compile(plan.optimizer('sgd', learning_rate=0.1), ENTROPY)
  one_run = audit.OneRunAudit(audit.Canaries((x, 1 - y)))
  with pytest.raises(ValueError, match='in no table'):
    model.fit(x, y, callbacks=[one_run], verbose=0)


def test_gradient_canaries_need_their_loss():
  """Without it their gradient is that of the model's loss, of no output."""
  canaries = audit.GradientCanaries(60)
  model = tfdpflows.PrivateModel(canaries.model(_classifier()))
  mean = lambda y, outputs: tf.reduce_mean((y - outputs) ** 2, -1)
  plan = _plan(160, steps=1)
  model.compile(plan.optimizer('sgd', learning_rate=0.1), [ENTROPY, mean])
  one_run = audit.OneRunAudit(canaries)
  with pytest.raises(ValueError, match=r'compile it with canaries.loss\(loss'):
    model.fit(*canaries.insert(_table()), callbacks=[one_run], verbose=0)
