"""DP-NF-INIT: what the layers become, and what it costs."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import accounting, bijectors, flows
from tfdpflows._keras import tfp
from tfdpflows.flows import initialization
from tfdpflows.randomness import Randomness

tfb, tfd = tfp.bijectors, tfp.distributions
D = 3


def _data(n=4000):
  rng = np.random.default_rng(0)
  x = rng.normal([1.0, -2.0, 0.5], [0.1, 0.5, 1.0], [n, D])
  return x.astype('float32')


def _flow(num_blocks=3, identity=True, **kwargs):
  flow = flows.dp_nf(D, num_blocks, [8], actnorm=True, seed=0, **kwargs)
  if not identity:
    rng = np.random.default_rng(1)
    for v in flow.trainable_variables:
      v.assign_add(tf.constant(rng.normal(size=v.shape) * 0.2, v.dtype))
  return flow


def _initialize(flow, x, seed=0, ledger=None, **kwargs):
  return flows.initialize_privately(
    flow,
    x,
    **{'bound': 6.0, **kwargs},
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    randomness=Randomness(seed=seed),
  )


def _activations(flow, x):
  """What comes out of every ActNorm, on the way from the data."""
  found = []
  for part in flow.bijector.bijectors:
    x = part.inverse(tf.identity(x))
    if isinstance(part, bijectors.ActNorm):
      found.append(x.numpy())
  return found


@pytest.mark.core
@pytest.mark.parametrize(
  ('identity', 'kind'),
  thinned(
    [
      (True, 'epsilon'),
      (False, 'noise_multiplier'),
      (True, 'noise_multiplier'),
      (False, 'epsilon'),
    ],
    2,
  ),
)
def test_columns_are_normalized_where_noise_is_small(kind, identity):
  flow, x = _flow(identity=identity), _data()
  layers = _initialize(
    flow,
    x,
    later_bound=20.0,
    **{kind: {'epsilon': 1e4, 'noise_multiplier': 1e-3}[kind]},
  )
  assert [layer.name for layer in layers] == [f'actnorm_{i}' for i in range(3)]
  for h in _activations(flow, x):
    np.testing.assert_allclose(h.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(h.std(0), 1, rtol=0.1)


def test_helps_at_a_small_epsilon():
  flow, x = _flow(), _data()
  before = np.mean(flow.log_prob(x))
  _initialize(flow, x, epsilon=0.5, num_layers=1)
  after = np.mean(flow.log_prob(x))
  best = np.mean(tfd.MultivariateNormalDiag(x.mean(0), x.std(0)).log_prob(x))
  assert before < best - 3
  assert after > best - 1


def test_each_layer_is_charged_before_its_rows_are_read(monkeypatch):
  x, ledger = _data(200), accounting.PrivacyLedger()
  seen = []
  real = initialization._inverse

  def inverse(part, rows):
    seen.append((part.name, len(ledger.entries)))
    return real(part, rows)

  monkeypatch.setattr(initialization, '_inverse', inverse)
  _initialize(_flow(), x, ledger=ledger, epsilon=0.6)
  charged = [n for name, n in seen if name.startswith('actnorm')]
  assert charged == [1, 2, 3][: len(charged)] and len(charged) >= 2
  assert [e.event for e in ledger.entries] == (
    [dp_accounting.LaplaceDpEvent(1 / (0.6 / 3))] * 3
  )
  assert 'actnorm_1 (2 of 3)' in ledger.entries[1].label
  assert ledger.epsilon(1e-9) <= 0.6001
  ledger = accounting.PrivacyLedger()
  _initialize(_flow(), x, ledger=ledger, noise_multiplier=2.0)
  assert ledger.epsilon(1e-5) == pytest.approx(
    accounting.compute_epsilon(dp_accounting.GaussianDpEvent(2.0), 1e-5),
    rel=1e-3,
  )


@pytest.mark.core
def test_a_refused_layer_stays_as_it_was():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.5, delta=1e-9)
  )
  flow = _flow()
  with pytest.raises(accounting.BudgetExceededError, match='actnorm_1'):
    _initialize(flow, _data(200), ledger=ledger, epsilon=0.9)
  first, second = (
    part
    for part in flow.bijector.bijectors[:4]
    if isinstance(part, bijectors.ActNorm)
  )
  assert np.any(first.shift) and not np.any(second.shift)
  assert len(ledger.entries) == 1


def test_one_row_moves_a_layer_by_no_more_than_its_share():
  """Frozen noise; the first layer, before rounding to float32."""
  x = _data(500)
  for row in ([6.0] * D, [-1e30] * D, [np.nan] * D, [np.inf, 0, 1]):
    more = np.concatenate([x, np.array([row], 'float32')])
    shifts = []
    for rows in (x, more):
      flow = _flow()
      (layer,) = _initialize(
        flow, rows, epsilon=50.0, num_layers=1, num_examples=500
      )
      assert all(np.isfinite(v).all() for v in (layer.shift, layer.log_scale))
      shifts.append(layer.shift.numpy())
    moved = np.abs(shifts[1] - shifts[0]).sum() * 500 / 6.0
    assert moved <= D * 9 / 8 + 1e-3


def test_rows_that_break_a_later_layer_count_as_zero():
  flow, x = _flow(identity=False), _data(200)
  x[0], x[1] = np.nan, 3e38
  _initialize(flow, x, epsilon=100.0)
  assert all(np.isfinite(v).all() for v in flow.trainable_variables)


def test_resumes_what_was_paid(tmp_path):
  x, path = _data(200), str(tmp_path / 'ledger.jsonl')
  found = []
  for resume in (False, True):
    ledger = (
      accounting.PrivacyLedger.open(path)
      if resume
      else accounting.PrivacyLedger(path)
    )
    flow = _flow()
    _initialize(flow, x, ledger=ledger, epsilon=1.0, resume=resume)
    found.append([v.numpy() for v in flow.trainable_variables])
    assert len(ledger.entries) == 3
    ledger.close()
  for a, b in zip(*found):
    np.testing.assert_array_equal(a, b)


@pytest.mark.core
@pytest.mark.parametrize(
  'inverse',
  [
    lambda y: y / tf.reduce_max(tf.abs(y)),
    lambda y: y - tf.reduce_mean(y, 0),
    lambda y: y + tf.reverse(y, [0]),
  ],
)
def test_parts_that_mix_rows_are_refused(inverse):
  """Found by a try on made-up rows, before anything is charged."""
  mixing = tfb.Inline(
    forward_fn=lambda y: y,
    inverse_fn=inverse,
    inverse_log_det_jacobian_fn=lambda y: tf.zeros([]),
    forward_min_event_ndims=1,
    name='mixing',
  )
  base = tfd.MultivariateNormalDiag(tf.zeros([D]))
  ledger = accounting.PrivacyLedger()
  kwargs = {'ledger': ledger, 'epsilon': 1.0}
  flow = tfd.TransformedDistribution(
    base, tfb.Chain([mixing, bijectors.ActNorm(D)])
  )
  with pytest.raises(ValueError, match="Inline 'mixing' mixes examples"):
    _initialize(flow, _data(20), **kwargs)
  assert ledger.entries == ()
  # What no row passes before the last layer may be anything.
  flow = tfd.TransformedDistribution(
    base, tfb.Chain([bijectors.ActNorm(D), mixing])
  )
  _initialize(flow, _data(20), **kwargs)


def test_what_it_takes_from_the_budget_is_missing_in_the_plan():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-4)
  )
  x, flow = _data(200), _flow()
  _initialize(flow, x, ledger=ledger, epsilon=0.3)
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-4,
    num_examples=200,
    expected_batch_size=50,
    steps=2,
    clipping=tfdpflows.gradients.Flat(3.0),
    spent=ledger.committed_event,
    ledger=ledger,
  )
  list(plan.dataset(x))
  assert 0.99 < ledger.epsilon() <= 1.0


def test_bad_arguments_are_named():
  x = _data(10)
  hidden = tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.zeros([D])),
    tfb.Chain([bijectors.ActNorm(D), tfb.Invert(bijectors.ActNorm(D))]),
  )
  batch = tfd.TransformedDistribution(_flow(), tfb.BatchNormalization())
  batch.log_prob(x)
  for flow, kwargs, message in (
    (batch, {'epsilon': 1.0}, 'mixes the rows'),
    (flows.dp_nf(D, 1), {'epsilon': 1.0}, 'actnorm=True'),
    (hidden, {'epsilon': 1.0}, 'no tfb.Chain'),
    (_flow(), {'epsilon': 1.0, 'num_layers': 4}, r'num_layers is 4.*\[1, 3\]'),
    (_flow(), {'epsilon': 1.0, 'num_layers': 0}, 'num_layers'),
    (_flow(), {}, 'epsilon'),
    (_flow(), {'epsilon': -1.0}, 'epsilon is -1'),
    (_flow(), {'epsilon': 1.0, 'bound': -1.0}, 'bound'),
  ):
    with pytest.raises(ValueError, match=message):
      _initialize(flow, x, **kwargs)
