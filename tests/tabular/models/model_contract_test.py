"""What a fit asks of every table model."""

import dataclasses
import json
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.tabular import small_table
from tests.unproven import proven
from tfdpflows import accounting
from tfdpflows.independence import checker
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import models
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.models.flow import FlowModel
from tfdpflows.tabular.synthesizer import TabularSynthesizer

# Hyper-parameters that make each model small; a new model is one row.
FLOWS = {
  'histogram': {'hidden_units': (8,), 'num_bins': 4},
  'spline': {'num_blocks': 1, 'hidden_units': (8,)},
  'hflow': {'num_blocks': 1, 'hidden_units': (8,)},
}
MODELS = {
  **FLOWS,
  'dpgan': {'hidden_units': (8,), 'generator_units': (8,)},
  'pategan': {'num_teachers': 12, 'hidden_units': (8,)},
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


def _made(people, name, **changes):
  """The model of a name, its untrained distribution, and codes of rows."""
  model = models.model_class(name).for_table(
    len(people.table), 5, **{**MODELS[name], **changes}
  )
  encoder = TableEncoder(people.schema)
  marginals = []
  for column in encoder.columns:
    middle = column.value_size / 2
    edges = [0.0, np.floor(middle) if column.cell else middle, column.size]
    marginals.append({'edges': edges, 'probabilities': [0.6, 0.4]})
  codes = encoder.encode(people.schema.validate(people.table))
  return model, model.make_distribution(encoder.columns, marginals, 0), codes


def test_every_model_has_a_row():
  assert set(MODELS) == set(models.MODELS)
  for name in MODELS:
    assert models.model_class(name).name == name
  with pytest.raises(ValueError, match="model is 'gan'.*'histogram'"):
    models.model_class('gan')


@pytest.mark.parametrize('name', MODELS)
class TestContract:
  def test_settings_come_back_from_a_file(self, people, name):
    model = _made(people, name)[0]
    settings = {'model': name, 'hyperparameters': dataclasses.asdict(model)}
    settings = json.loads(json.dumps(settings))
    found = models.current_settings(settings)
    assert found == settings
    assert models.model_class(name)(**found['hyperparameters']) == model

  def test_what_is_no_hyper_parameter_is_refused(self, name):
    cls = models.model_class(name)
    with pytest.raises(ValueError, match=rf"\['depth'\] of model '{name}'"):
      cls.for_table(100, 5, depth=3)
    with pytest.raises(ValueError, match='marginal_share is 0'):
      cls.for_table(100, 5, marginal_share=0)

  def test_columns_are_independent_before_training(self, people, name):
    """And have the marginals that they were made with."""
    model, distribution, _ = _made(people, name)
    assert model.has_density == (name in FLOWS)
    rows = distribution.sample(20_000, np.random.default_rng(0))
    assert rows.shape == (20_000, 5)
    encoder = TableEncoder(people.schema)
    middles = []
    for column in encoder.columns:
      middle = column.value_size / 2
      middles.append(np.floor(middle) if column.cell else middle)
    halves = rows < middles
    np.testing.assert_allclose(halves.mean(0), 0.6, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(halves.T), np.eye(5), atol=0.03)
    assert (rows >= 0).all()
    assert (rows <= [c.size for c in encoder.columns]).all()

  def test_the_first_of_equal_seeds_are_equal(self, people, name):
    one, two = (_made(people, name)[1].saved_parts() for _ in range(2))
    assert one.keys() == two.keys()
    for part in one:
      for a, b in zip(one[part].variables, two[part].variables):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('name', FLOWS)
class TestFlows:
  def test_gains_and_densities_before_training(self, people, name):
    _, density, codes = _made(people, name)
    points, *_ = density.dequantize(codes, np.full(codes.shape, 0.5, 'f4'))
    np.testing.assert_allclose(density.gains(points), 0, atol=1e-4)
    assert np.isfinite(
      density.log_prob(codes[:4], np.random.default_rng(0))
    ).all()

  @pytest.mark.parametrize('dequantization', ['uniform', 'variational'])
  def test_every_variable_has_a_gradient(self, people, name, dequantization):
    _, density, codes = _made(people, name, dequantization=dequantization)
    rng = np.random.default_rng(1)
    for variable in density.trained:
      variable.assign_add(rng.normal(0, 0.1, variable.shape))
    uniform = rng.random(codes[:8].shape, np.float32)
    with tf.GradientTape() as tape:
      points, _, log_q = density.dequantize(codes[:8], uniform)
      loss = tf.reduce_sum(log_q - density.gains(points))
    for gradient in tape.gradient(loss, density.trained):
      assert np.isfinite(gradient).all()
      assert np.any(gradient)

  def test_a_start_is_paid_before_it_looks(self, people, name):
    """Without rounds nothing is charged, and the codes are not looked at."""
    none = {'adaptive_marginals': 0, 'matching': False}
    none = none if name == 'histogram' else {}
    model, density, _ = _made(people, name, **none)
    assert model.plan_start(1.0) == ()
    work = types.SimpleNamespace(
      randomness=Randomness(seed=0),
      ledger=accounting.PrivacyLedger(),
      team=None,
    )
    spending = types.SimpleNamespace(rounds=(), plan=None)
    with (
      mock.patch.object(dp_sgd, 'charged_plan'),
      mock.patch.object(FlowModel, 'train_steps') as steps,
    ):
      model.train(density, None, spending, work, units=None, total=400)
    steps.assert_called_once()
    assert not work.ledger.entries


@pytest.mark.parametrize(
  'name, dequantization',
  [
    ('histogram', 'uniform'),
    pytest.param('spline', 'uniform', marks=pytest.mark.full),
    ('hflow', 'variational'),
    ('dpgan', None),
  ],
)
def test_examples_of_a_training_are_proven_independent(
  people, name, dequantization
):
  given = {'dequantization': dequantization} if dequantization else {}
  steps = {'epochs': 1, 'expected_batch_size': 200}
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, model=name, **MODELS[name], **steps, **given
  )
  sums = checker.Checker._check_sums
  with (
    proven(),
    small_table.short(),
    mock.patch.object(
      checker.Checker, '_check_sums', autospec=True, side_effect=sums
    ) as check,
  ):
    synthesizer.fit(people.table)
  assert check.call_args.args[0].independence == 'proven'
