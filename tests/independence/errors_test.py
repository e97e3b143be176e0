"""Errors of private steps quote no rows; those of programs stay helpful."""

import contextlib
import traceback

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.unproven import unproven
from tfdpflows import accounting, gradients, optimizers, sampling
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import errors

L = keras.layers
tfd = tfp.distributions
N = 40
# No check can know of it.
SECRET = 17171


def _lookup(ids):
  bad = tf.cast(tf.equal(ids[:, 0], SECRET), tf.int32)
  return tf.gather(tf.eye(3), bad * tf.cast(ids[:, 0], tf.int32))


def _rows():
  return np.where(np.arange(N) == 5, SECRET, 1)[:, None], np.arange(N) % 2


def _plan():
  return tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=N, sampling_probability=0.99),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=3,
    delta=1e-4,
    seed=0,
  )


def _private(*layers, plan=True, **kwargs):
  private = tfdpflows.PrivateModel(keras.Sequential([*layers, L.Dense(1)]))
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )
  if plan:
    optimizer = _plan().optimizer('sgd', learning_rate=0.1)
  private.compile(optimizer, 'mse', **kwargs)
  return private


def _error(function, *args, **kwargs):
  """Returns the error, which says nothing of the rows wherever one looks."""
  with pytest.raises(tf.errors.InvalidArgumentError) as info:
    function(*args, **kwargs)
  error = info.value
  assert error.message == errors._FAILED
  assert error.__cause__ is None
  assert error.__context__ is None
  assert error.node_def is None and error.op is None
  assert str(SECRET) not in ''.join(traceback.format_exception(error))
  return error


@pytest.mark.core
@pytest.mark.parametrize('plan', [False, True])
@pytest.mark.parametrize('run_eagerly', [False, True])
def test_operations_that_fail_in_training(plan, run_eagerly):
  private = _private(L.Lambda(_lookup), plan=plan, run_eagerly=run_eagerly)
  _error(private.fit, *_rows(), verbose=0)
  # And again: Keras keeps the function.
  _error(private.fit, *_rows(), verbose=0)
  if not plan:
    _error(private.train_on_batch, *_rows())


def test_python_that_fails_on_rows():
  class Own(L.Layer):
    def call(self, x):
      if tf.executing_eagerly() and np.any(x == SECRET):
        raise KeyError(f'bad rows: {x}')
      return x

  _error(_private(Own(), run_eagerly=True).fit, *_rows(), verbose=0)
  tf.config.run_functions_eagerly(True)
  try:
    _error(_private(Own()).fit, *_rows(), verbose=0)
  finally:
    tf.config.run_functions_eagerly(False)


@pytest.mark.core
@pytest.mark.parametrize('run_eagerly', [False, True])
def test_pipelines_that_fail(run_eagerly):
  x, y = _rows()
  finite = lambda a: tf.debugging.check_numerics(a, f'{SECRET}')
  rows = tf.data.Dataset.from_tensor_slices((x.astype('float32'), y))
  rows = rows.map(lambda a, b: (finite(a / tf.cast(b, tf.float32)), b))

  def generated():
    yield x[:4].astype('float32'), y[:4]
    raise RuntimeError(f'bad row {SECRET}')

  spec = tf.TensorSpec([None, 1]), tf.TensorSpec([None], tf.int64)
  other = tf.data.Dataset.from_generator(generated, output_signature=spec)
  private = _private(plan=False, run_eagerly=run_eagerly)
  for dataset in (rows.batch(8), other):
    _error(private.fit, dataset, verbose=0)


def test_densities_and_thresholds():
  class Strict(tfd.MultivariateNormalDiag):
    def _log_prob(self, x):
      bad = tf.cast(tf.equal(x[..., 0], SECRET), tf.int32)
      return super()._log_prob(x) + tf.gather([0.0], 9 * bad)

  x = np.ones([N, 2], 'float32')
  x[5] = SECRET
  density = Strict(tf.Variable([0.0, 0.0]), [1.0, 1.0])
  model = tfdpflows.DensityModel(density)
  model.compile(_plan().optimizer('sgd', learning_rate=0.1))
  _error(model.fit, x, verbose=0)
  ledger = tfdpflows.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=2.0, delta=1e-5)
  )
  _error(
    tfdpflows.models.AnomalyDetector.from_private,
    density,
    x,
    false_positive_rate=0.1,
    epsilon=1.0,
    bounds=(0.0, 10.0),
    ledger=ledger,
  )


def test_text_is_never_what_a_batch_fails_at():
  """TensorFlow quoted the batch where one value was no text."""
  words = np.array(['a', 'b'], object)[np.arange(N) % 2][:, None]
  words[3, 0], words[4, 0], words[5, 0] = None, '\ud800', SECRET
  words[6, 0], words[7, 0] = b'\xff', float('nan')
  unicode = np.array(['a', 'b'])[np.arange(N) % 2][:, None]
  unicode[4, 0] = '\ud800'
  # The second model is the first, and was checked then.
  for x, checked in ((words, contextlib.nullcontext()), (unicode, unproven())):
    private = _private(
      keras.Input([1], dtype='string'),
      L.StringLookup(vocabulary=['a', 'b'], output_mode='one_hot'),
    )
    with checked:
      private.fit(x, _rows()[1], verbose=0)


@pytest.mark.parametrize('run_eagerly', [False, True])
@pytest.mark.parametrize('plan', [False, True])
def test_mistakes_of_programs_are_told(plan, run_eagerly):
  x, y = np.ones([N, 4], 'float32'), _rows()[1]
  wrong = L.Lambda(lambda x: tf.matmul(x, tf.ones([5, 5])))
  with pytest.raises(ValueError, match='Dimensions must be equal.* 4 and 5'):
    _private(wrong, plan=plan, run_eagerly=run_eagerly).fit(x, y, verbose=0)


def test_the_end_of_data_and_of_memory_are_told_apart():
  ended = tf.errors.OutOfRangeError(None, None, 'End of sequence [[It]]')
  full = tf.errors.ResourceExhaustedError(None, None, f'OOM: {SECRET}')
  lost = tf.errors.UnavailableError(None, None, f'gone: {SECRET}')
  other = tf.errors.OutOfRangeError(None, None, f'StopIteration: {SECRET}')

  def failing(error):
    def function(unused_iterator):
      raise error

    return errors.without_rows(function)

  with pytest.raises(tf.errors.OutOfRangeError):
    failing(ended)(None)
  with pytest.raises(tf.errors.ResourceExhaustedError, match='chunk_size'):
    failing(full)(None)
  with pytest.raises(tf.errors.UnavailableError, match='could not be reached'):
    failing(lost)(None)
  _error(failing(other), None)
  with pytest.raises(KeyError, match='own'):
    failing(KeyError('own'))(None)


def test_summaries_of_layers_write_no_rows(tmp_path):
  class Told(L.Layer):
    def call(self, x):
      tf.summary.write('rows', x)
      return x

  x = np.full([N, 4], SECRET, 'float32')
  for plan in (False, True):
    private = _private(Told(), plan=plan)
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=1):
      private.fit(x, _rows()[1], verbose=0)
      tf.summary.write('other', tf.zeros([1]))
  found = b''.join(p.read_bytes() for p in tmp_path.rglob('*tfevents*'))
  assert b'other' in found
  assert b'rows' not in found


def test_models_without_privacy_tell_all():
  model = tfdpflows.DensityModel(
    tfd.MultivariateNormalDiag(tf.Variable([0.0, 0.0]), [1.0, 1.0]),
    lambda x: tf.debugging.check_numerics(x, 'my check'),
  )
  model.compile('sgd')
  with pytest.raises(tf.errors.InvalidArgumentError, match='my check'):
    model.fit(np.full([4, 2], np.nan, 'float32'), verbose=0)
