"""Functional models: equal to their Keras forms, model by model."""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows.expm import functional

MODELS = {
  'logistic regression': lambda: functional.LogisticRegression(5),
  'gru-d': lambda: functional.GRUD(num_features=3, num_steps=4, units=2),
}


def _case(name, models=3, rows=6, seed=0):
  model = MODELS[name]()
  rng = np.random.default_rng(seed)
  parameters = rng.normal(size=[models, model.num_parameters])
  x = rng.normal(size=[rows, *model.row_shape])
  if x.ndim == 4:
    x[:, :, 1] = x[:, :, 1] > 0
    x[:, :, 2] = np.abs(x[:, :, 2])
  return model, parameters.astype('float32'), x.astype('float32')


@pytest.mark.parametrize('name', MODELS)
class TestEachModel:
  def test_is_the_keras_model_of_each_vector(self, name):
    model, parameters, x = _case(name)
    logits = model.logits(parameters, x)
    outputs = model(parameters, x)
    assert outputs.shape == logits.shape == [3, 6]
    assert np.all((outputs >= 0) & (outputs <= 1))
    np.testing.assert_allclose(outputs, tf.sigmoid(logits), rtol=1e-6)
    for vector, expected in zip(parameters, logits):
      keras_model = model.from_vector(vector)
      np.testing.assert_allclose(
        keras_model(x)[:, 0], expected, rtol=1e-4, atol=1e-5
      )
      np.testing.assert_array_equal(model.to_vector(keras_model), vector)

  def test_models_and_rows_do_not_change_each_other(self, name):
    model, parameters, x = _case(name)
    one = model(parameters[1:2], x[2:3])
    np.testing.assert_allclose(one[0, 0], model(parameters, x)[1, 2], rtol=1e-5)

  def test_gradients_reach_every_parameter_with_unknown_sizes(self, name):
    model, parameters, x = _case(name)
    specs = [
      tf.TensorSpec([None, model.num_parameters]),
      tf.TensorSpec([None, *model.row_shape]),
    ]

    @tf.function(input_signature=specs)
    def slopes(parameters, x):
      with tf.GradientTape() as tape:
        tape.watch(parameters)
        total = tf.reduce_sum(model(parameters, x))
      return tape.gradient(total, parameters)

    assert np.all(np.any(slopes(parameters, x) != 0, axis=0))

  def test_offset_is_the_logit_at_zero_and_stays_out_of_the_vector(self, name):
    model, parameters, x = _case(name)
    expected = model.logits(parameters, x) - 2
    model.offset = -2.0
    np.testing.assert_allclose(
      model.logits(parameters, x), expected, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
      model.logits(0 * parameters, x), -2 * np.ones([3, 6])
    )
    keras_model = model.from_vector(parameters[0])
    np.testing.assert_allclose(
      keras_model(x)[:, 0], expected[0], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
      model.to_vector(keras_model), parameters[0], rtol=1e-5
    )
    # A new one starts with it.
    assert model.to_vector(model.keras_model())[-1] == 0

  def test_float64(self, name):
    model, parameters, x = _case(name)
    found = model(parameters.astype('float64'), x)
    assert found.dtype == tf.float64
    np.testing.assert_allclose(
      found, model(parameters, x), rtol=1e-4, atol=1e-5
    )

  def test_a_vector_of_another_length_is_refused(self, name):
    model, parameters, _ = _case(name)
    with pytest.raises(ValueError, match='shape'):
      model.from_vector(parameters[0, 1:])

  def test_parameters_and_rows_of_another_shape_are_refused(self, name):
    model, parameters, x = _case(name)
    with pytest.raises(ValueError, match=r'parameters has shape'):
      model(parameters[:, 1:], x)
    with pytest.raises(ValueError, match=r'x has shape .* must be \[n, '):
      model(parameters, x[..., 1:])


def test_gru_d_is_the_recurrence_of_the_paper():
  model, (vector,), x = _case('gru-d', models=1)
  w = {k: v.numpy()[0] for k, v in model._split(vector[None]).items()}
  sigmoid = lambda a: 1 / (1 + np.exp(-a))
  h = np.zeros([len(x), 2])
  w_z, w_r, w_c = np.split(w['kernel'][:3], 3, 1)
  v_z, v_r, v_c = np.split(w['kernel'][3:], 3, 1)
  b_z, b_r, b_c = np.split(w['bias'], 3)
  u_z, u_r = np.split(w['gate_kernel'], 2, 1)
  u_c = w['candidate_kernel']
  for t in range(4):
    value, m, delta = x[:, t, 0], x[:, t, 1], x[:, t, 2]
    gamma = np.exp(
      -np.maximum(0, w['input_decay'] * delta + w['input_decay_bias'])
    )
    value = m * value + (1 - m) * gamma * value
    h = h * np.exp(
      -np.maximum(0, delta @ w['state_decay'] + w['state_decay_bias'])
    )
    z = sigmoid(value @ w_z + h @ u_z + m @ v_z + b_z)
    r = sigmoid(value @ w_r + h @ u_r + m @ v_r + b_r)
    c = np.tanh(value @ w_c + (r * h) @ u_c + m @ v_c + b_c)
    h = (1 - z) * h + z * c
  expected = (h @ w['last_kernel'] + w['last_bias'])[:, 0]
  np.testing.assert_allclose(
    model.logits(vector[None], x)[0], expected, rtol=1e-4, atol=1e-5
  )
