"""Anomaly detection by a threshold on the likelihood."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

import tfdpflows
from tests import saved_graphs
from tfdpflows import accounting, flows
from tfdpflows._keras import tfp
from tfdpflows.accounting import ExponentialMechanismDpEvent
from tfdpflows.models import AnomalyDetector, anomaly
from tfdpflows.models.anomaly import evaluate_scores
from tfdpflows.randomness import Randomness

tfb, tfd = tfp.bijectors, tfp.distributions


def _normal(d=2, dtype='float32'):
  return tfd.MultivariateNormalDiag(np.zeros(d, dtype), np.ones(d, dtype))


def _data(n=2000, seed=0):
  return np.random.default_rng(seed).normal(size=[n, 2]).astype('float32')


def _private(x, rate=0.1, seed=0, **kwargs):
  kwargs = {
    'epsilon': 1.0,
    'bounds': (0.0, 50.0),
    'ledger': accounting.PrivacyLedger(),
    **kwargs,
  }
  return AnomalyDetector.from_private(
    _normal(),
    x,
    false_positive_rate=rate,
    randomness=Randomness(seed=seed),
    **kwargs,
  )


@pytest.mark.core
def test_score_is_minus_log_prob_whatever_the_model_is():
  x = _data(20_000)
  flow = flows.dp_nf(2, 1, [4])
  for model in (flow, tfdpflows.DensityModel(flow), _normal()):
    detector = AnomalyDetector(model, threshold=4.0)
    scores = detector.score(x)
    assert scores.shape == (20_000,) and scores.dtype == np.float64
    np.testing.assert_allclose(scores, -_normal().log_prob(x), rtol=1e-4)
    np.testing.assert_array_equal(detector.predict(x), scores > 4.0)
  assert AnomalyDetector(flow, 1.0).score(x[:0]).shape == (0,)
  assert AnomalyDetector(_normal(dtype='float64'), 1.0).score(x[:1]).size == 1


@pytest.mark.core
def test_rows_without_density_are_anomalies_and_nan_is_named(monkeypatch):
  uniform = tfd.Independent(tfd.Uniform([0.0, 0.0], [1.0, 1.0]), 1)
  detector = AnomalyDetector(uniform, threshold=1e9)
  rows = np.array([[0.5, 0.5], [0.5, 2.0]])
  assert detector.score(rows).tolist() == [0.0, np.inf]
  assert detector.predict(rows).tolist() == [False, True]
  detector = AnomalyDetector(flows.dp_nf(2, 2, [4]), threshold=10.0)
  far = np.array([[1e38, -1e38], [np.inf, -np.inf], [0.0, 0.0]])
  assert detector.predict(far).tolist() == [True, True, False]
  rows = np.zeros([9, 2])
  rows[[4, 7], [0, 1]] = np.nan
  for method in (detector.score, detector.predict):
    with pytest.raises(ValueError, match=r'Row 4 of x has NaN \(2 of 9'):
      method(rows)
  with pytest.raises(ValueError, match=r'must be \[n, 2\]'):
    detector.score(np.zeros([9, 3]))


def test_threshold_from_public_rows_keeps_the_rate():
  x = _data(1000)
  for rate in (0.0, 0.01, 0.05, 0.5, 0.999):
    detector = AnomalyDetector.from_public(_normal(), x, rate)
    flagged = detector.predict(x).sum()
    assert flagged == round(1000 * rate)
  fresh = AnomalyDetector.from_public(_normal(), x, 0.05).predict(_data(seed=1))
  assert 0.02 < fresh.mean() < 0.1
  same = np.ones([10, 2], 'float32')
  assert (
    not AnomalyDetector.from_public(_normal(), same, 0.5).predict(same).any()
  )
  with pytest.raises(ValueError, match='no rows'):
    AnomalyDetector.from_public(_normal(), x[:0], 0.1)


@pytest.mark.core
def test_threshold_from_private_rows_is_charged_and_near_the_rate():
  x, ledger = _data(), accounting.PrivacyLedger()
  detector = _private(x, ledger=ledger)
  assert abs(detector.predict(x).mean() - 0.1) < 0.02
  (entry,) = ledger.entries
  assert entry.event == ExponentialMechanismDpEvent(1.0)
  assert entry.label == 'anomaly threshold'


@pytest.mark.core
def test_refused_threshold_scores_nothing(monkeypatch):
  def unread(*unused_args):
    raise AssertionError('The rows were scored.')

  monkeypatch.setattr(AnomalyDetector, '_scores', unread)
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.5, delta=1e-6)
  )
  with pytest.raises(accounting.BudgetExceededError):
    _private(_data(), ledger=ledger)
  assert ledger.entries == ()


def test_private_threshold_says_nothing_of_odd_rows():
  x = _data(200)
  x[3], x[5], x[7] = np.nan, np.inf, 3e38
  clean = x.copy()
  clean[[3, 5, 7]] = 30.0  # Beyond the upper bound too.
  assert _private(x).threshold == _private(clean).threshold
  assert 0 <= _private(x[:0]).threshold <= 50


@pytest.mark.core
def test_private_scores_of_equal_rows_are_equal_to_the_last_bit(monkeypatch):
  """In batches of their own number the last rows are rounded otherwise."""
  found = []

  def release(values, *unused_args, **unused_kwargs):
    found.append(values())
    return 1.0

  monkeypatch.setattr(anomaly, 'private_quantile', release)
  student = tfd.Independent(tfd.StudentT([3.0], [0.0], [1.3]), 1)
  for row in (0.1, 1.2, 2.3):
    for count in (1023, 1032, 7):
      AnomalyDetector.from_private(
        student,
        np.full([count, 1], row),
        false_positive_rate=0.1,
        epsilon=1.0,
        bounds=(0.0, 50.0),
        ledger=accounting.PrivacyLedger(),
      )
    assert list(map(len, found)) == [1023, 1032, 7]
    assert len(np.unique(np.concatenate(found))) == 1
    found.clear()


@pytest.mark.core
def test_models_that_mix_last_digits_are_refused():
  mixing = tfd.TransformedDistribution(
    _normal(),
    tfb.Inline(
      forward_fn=lambda y: y,
      inverse_fn=lambda y: (
        y * (1 + 1e-6 * tf.cast(tf.reduce_mean(y[:5]) > 0.5, y.dtype))
      ),
      inverse_log_det_jacobian_fn=lambda y: tf.zeros(tf.shape(y)[:-1]),
      forward_min_event_ndims=1,
    ),
  )
  with pytest.raises(ValueError, match='by their place in a batch'):
    AnomalyDetector.from_private(
      mixing,
      _data(50),
      false_positive_rate=0.1,
      epsilon=1.0,
      bounds=(0.0, 50.0),
      ledger=accounting.PrivacyLedger(),
    )


@pytest.mark.core
def test_models_that_mix_rows_are_refused():
  """By name, or since a made-up row changes the scores of others."""
  x, ledger = _data(50), accounting.PrivacyLedger()
  kwargs = {
    'false_positive_rate': 0.1,
    'epsilon': 1.0,
    'bounds': (0.0, 50.0),
    'ledger': ledger,
  }
  flow = lambda b: tfd.TransformedDistribution(_normal(), b)
  named = flow(tfb.Chain([tfb.Shift([1.0, 1.0]), tfb.BatchNormalization()]))
  named.log_prob(x)
  for make in (
    lambda: AnomalyDetector(named, 1.0),
    lambda: AnomalyDetector.from_private(named, x, **kwargs),
  ):
    with pytest.raises(ValueError, match='BatchNormalization .*mixes the rows'):
      make()
  seen = tf.Variable(0.0)

  def keeps(y):
    seen.assign(tf.reduce_max(y))
    return y

  for inverse, message in (
    (lambda y: y - 1e-3 * tf.reduce_mean(y, 0), 'mixes examples'),
    (lambda y: y + 1e-2 * tf.roll(y, 1, 0), 'mixes examples'),
    (lambda y: y * tf.cast(tf.shape(y)[0], y.dtype), 'mixes examples'),
    (lambda y: y + tf.random.normal(tf.shape(y)), 'second time'),
    (keeps, 'writes its variables'),
  ):
    mixing = flow(
      tfb.Inline(
        forward_fn=lambda y: y,
        inverse_fn=inverse,
        inverse_log_det_jacobian_fn=lambda y: tf.zeros(tf.shape(y)[:-1]),
        forward_min_event_ndims=1,
      )
    )
    mixing.seen = seen
    with pytest.raises(ValueError, match=message):
      AnomalyDetector.from_private(mixing, x, **kwargs)
  assert seen.numpy() == 0.0
  assert ledger.entries == ()


@pytest.mark.core
def test_resume_pays_for_the_same_model_rows_and_noise_only(tmp_path):
  x, path = _data(200), str(tmp_path / 'ledger.jsonl')
  kwargs = {
    'false_positive_rate': 0.1,
    'epsilon': 1.0,
    'bounds': (0.0, 50.0),
  }

  def find(model, x, source, **more):
    opened = accounting.PrivacyLedger
    with (opened.open if more.get('resume') else opened)(path) as ledger:
      try:
        return AnomalyDetector.from_private(
          model, x, **{**kwargs, **more}, ledger=ledger, randomness=source
        ).threshold
      finally:
        assert len(ledger.entries) == 1

  source = Randomness()
  again = lambda: Randomness(secret=source.secret)
  first = find(_normal(), x, source)
  assert find(_normal(), x, again(), resume=True) == first
  with pytest.raises(ValueError, match='randomness'):
    find(_normal(), x, None, resume=True)
  wide = tfd.MultivariateNormalDiag(np.zeros(2, 'float32'), [2.0, 2.0])
  for model, rows, source, more in (
    (_normal(), x, Randomness(), {}),
    (wide, x, again(), {}),
    (_normal(), x[:-1], again(), {}),
    (_normal(), x, again(), {'false_positive_rate': 0.2}),
    (_normal(), x, again(), {'bounds': (0.0, 40.0)}),
  ):
    with pytest.raises(accounting.LedgerError, match='anomaly threshold'):
      find(model, rows, source, resume=True, **more)


def test_saved_and_live_detectors_agree_at_the_threshold(tmp_path):
  x = _data(1)
  score = AnomalyDetector(_normal(), 0.0).score(x)[0]
  below = float(np.nextafter(np.float32(score), np.float32(0)))
  for share in (0.1, 0.4, 0.6):
    detector = AnomalyDetector(_normal(), score - share * (score - below))
    path = str(tmp_path / str(share))
    detector.save(path)
    saved = tf.saved_model.load(path).signatures['score_anomaly']
    found = saved(rows=tf.constant(x))
    assert detector.predict(x) == found['is_anomaly'].numpy()
    assert detector.threshold == found['threshold'].numpy()


def test_too_many_rows_without_density_have_no_threshold():
  uniform = tfd.Independent(tfd.Uniform([0.0, 0.0], [1.0, 1.0]), 1)
  x = np.full([100, 2], 0.5)
  x[:10] = 2.0
  with pytest.raises(ValueError, match='no density to 10 of 100'):
    AnomalyDetector.from_public(uniform, x, 0.05)
  found = AnomalyDetector.from_public(uniform, x, 0.1)
  assert found.predict(x).sum() == 10


def test_evaluation_equals_scikit_learns():
  rng = np.random.default_rng(0)
  scores = np.round(rng.normal(size=300), 1)
  scores[:5] = np.inf
  labels = rng.random(300) < 0.3
  found = evaluate_scores(scores, labels, 0.5)
  finite = np.minimum(scores, 100.0)
  fpr, tpr, thresholds = metrics.roc_curve(
    labels, finite, drop_intermediate=False
  )
  np.testing.assert_allclose(found.false_positive_rates, fpr)
  np.testing.assert_allclose(found.true_positive_rates, tpr)
  np.testing.assert_allclose(
    np.minimum(found.thresholds[2:], 100), thresholds[2:]
  )
  assert found.auc == pytest.approx(metrics.roc_auc_score(labels, finite))
  flagged = scores > 0.5
  assert found.true_positive_rate == flagged[labels].mean()
  assert found.false_positive_rate == flagged[~labels].mean()


@pytest.mark.core
def test_evaluate_tells_tails_from_the_bulk():
  x = np.concatenate([_data(500), _data(50) * 6])
  labels = np.repeat([0, 1], [500, 50])
  detector = AnomalyDetector.from_public(_normal(), _data(seed=1), 0.05)
  found = detector.evaluate(x, labels)
  assert found.auc > 0.9
  assert found.false_positive_rate < 0.1 and found.true_positive_rate > 0.7
  assert found.auc == pytest.approx(
    np.trapz(found.true_positive_rates, found.false_positive_rates)
  )
  for labels, message in (
    (np.zeros(550), '0 anomalies and 550 other'),
    (np.full(550, 2), 'of 0, for ordinary rows, and 1'),
    (np.zeros(3), r'shape \(3,\)'),
  ):
    with pytest.raises(ValueError, match=message):
      detector.evaluate(x, labels)


_LOAD = """
import sys
sys.modules['tfdpflows'] = sys.modules['tensorflow_probability'] = None
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
rows = tf.constant([[0., 0.], [9., 9.], [1e38, -1e38]])
found = loaded.signatures['score_anomaly'](rows=rows)
print(*found['is_anomaly'].numpy(), *found['score'].numpy()[:2])
print(*found['threshold'].numpy())
print(*loaded.signatures['log_prob'](rows=rows)['log_prob'].numpy()[:2])
try:
  loaded.signatures['score_anomaly'](rows=rows + [[0.], [np.nan], [0.]])
except tf.errors.InvalidArgumentError as error:
  print('NaN' in str(error) and '[1]' in str(error))
"""


def test_saved_detector_scores_without_this_package(tmp_path):
  base = tfd.MixtureSameFamily(
    tfd.Categorical(probs=[0.5, 0.5]),
    tfd.MultivariateNormalTriL(
      [[0.0, 0.0], [1.0, 1.0]], tf.eye(2, batch_shape=[2])
    ),
  )
  model = tfdpflows.DensityModel(
    flows.dp_nf(2, 2, [4], transform='spline', base=base)
  )
  detector = AnomalyDetector(model, threshold=7.5)
  path = str(tmp_path / 'detector')
  detector.save(path)
  run = subprocess.run(
    [sys.executable, '-c', _LOAD, path],
    capture_output=True,
    text=True,
    check=False,
  )
  assert run.returncode == 0, run.stderr[-2000:]
  flags, thresholds, log_probs, named = run.stdout.strip().splitlines()
  scores = detector.score([[0.0, 0.0], [9.0, 9.0]])
  assert flags.split()[:3] == ['False', 'True', 'True']
  np.testing.assert_allclose(
    np.array(flags.split()[3:], float), scores, rtol=1e-5
  )
  np.testing.assert_allclose(
    np.array(log_probs.split(), float), -scores, rtol=1e-5
  )
  assert thresholds.split() == ['7.5'] * 3
  assert named == 'True'


def test_bad_arguments_are_named():
  for model in (tfd.Normal(0.0, 1.0), object(), tf.Module()):
    with pytest.raises(ValueError, match='no distribution over rows'):
      AnomalyDetector(model, 1.0)
  for threshold in (np.nan, np.inf, -np.inf, 1e39):
    with pytest.raises(ValueError, match='threshold is .*finite in float32'):
      AnomalyDetector(_normal(), threshold)
  for shape in ([3, 2], [1, 2]):
    batch = tfd.MultivariateNormalDiag(tf.zeros(shape))
    with pytest.raises(ValueError, match=r'batch shape \[\]'):
      AnomalyDetector(batch, 1.0)
  with pytest.raises(ValueError, match='dtype complex'):
    _private(_data(9) + 1j)
  for rate in (-0.1, 1.0, np.nan):
    with pytest.raises(ValueError, match='false_positive_rate'):
      AnomalyDetector.from_public(_normal(), _data(9), rate)
    with pytest.raises(ValueError, match='false_positive_rate'):
      _private(_data(9), rate)
  for bounds in ((1.0, 1.0), (0.0, np.inf)):
    with pytest.raises(ValueError, match='lower is'):
      _private(_data(9), bounds=bounds)


def test_a_saved_detector_does_not_tell_what_was_done_before(tmp_path):
  detector = AnomalyDetector(_normal(), threshold=3.0)
  one, other = saved_graphs.written_twice(detector.save, tmp_path)
  assert one == other
