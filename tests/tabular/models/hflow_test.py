"""DP-HFlow for tables: what the default model can, with learned cells too."""

import itertools
import json
import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.tabular import alone, small_table
from tfdpflows import flows
from tfdpflows.tabular import Field, models
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.histogram import HistogramModel
from tfdpflows.tabular.models.spline import HFlowModel, SplineModel
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory


@pytest.fixture(scope='module')
def people():
  return small_table.make()


def _fit(people, model_dir, **arguments):
  ours = {
    'num_blocks': 1,
    'expected_batch_size': 100,
    'augmentation_multiplicity': 2,
  }
  return fit_to_directory(
    people.table,
    people.schema,
    model_dir,
    progress=False,
    model='hflow',
    dequantization='variational',
    **{**people.budget, **people.tiny, **ours, **arguments},
  )


@pytest.fixture(scope='module')
def fitted(people, tmp_path_factory):
  """A fit that was interrupted behind its last step, and gone on with."""
  folder = tmp_path_factory.mktemp('hflow')
  save, averages = tf.train.CheckpointManager.save, []

  def stop(self, *args, **kwargs):
    path = save(self, *args, **kwargs)
    averages.append(_averages(path))
    if len(averages) == 3:
      raise KeyboardInterrupt

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tf.train.CheckpointManager, 'save', stop)
    with pytest.raises(KeyboardInterrupt):
      _fit(people, folder / 'model')
  with pytest.raises(ValueError, match='another hyperparameters'):
    _fit(people, folder / 'model', resume=True, augmentation_multiplicity=1)
  resumed = _fit(people, folder / 'model', resume=True)
  return types.SimpleNamespace(
    model=resumed, folder=folder / 'model', averages=averages
  )


def _averages(path):
  """Returns the averages of the weights in a checkpoint, in their order."""
  reader = tf.train.load_checkpoint(path)
  key = 'model/_average/_averages/{}/.ATTRIBUTES/VARIABLE_VALUE'
  found = []
  while reader.has_tensor(key.format(len(found))):
    found.append(reader.get_tensor(key.format(len(found))))
  return found


@pytest.mark.slow
def test_goes_on_where_it_was_interrupted(fitted):
  model = fitted.model
  assert 0.99 * 8 < model.ledger.epsilon() <= 8
  trained = model._fitted.distribution.trained
  # The first is of the start.
  _, first, last = fitted.averages
  # The flow and the places in the cells: all of it moved and came back.
  placing = model._fitted.distribution.dequantization.trainable_variables
  assert len(placing) == 8 and len(trained) == len(last) > 8
  assert {v.ref() for v in placing} <= {v.ref() for v in trained}
  for variable, before, after in zip(trained, first, last):
    assert np.any(before != after)
    np.testing.assert_array_equal(variable, after)


def test_can_be_loaded_and_says_what_it_is(fitted, people):
  loaded = TabularSynthesizer.load(fitted.folder)
  assert loaded.model.name == 'hflow'
  h = loaded.model
  assert (h.linear, h.shared, h.dequantization) == (
    'low_rank',
    True,
    'variational',
  )
  np.testing.assert_array_equal(
    loaded.log_prob(people.table), fitted.model.log_prob(people.table)
  )
  assert np.isfinite(loaded.log_prob(people.table)).all()
  rows = loaded.sample(300, seed=0)
  pd.testing.assert_frame_equal(people.schema.validate(rows), rows)


def test_rows_with_conditions(fitted):
  wanted = {'city': 'Köln', 'member': True}
  rows = fitted.model.sample(20, seed=0, conditions=wanted)
  assert len(rows) == 20 and (rows['city'] == 'Köln').all()
  assert rows['member'].all()
  assert rows.attrs['conditions'] == {'method': 'exact', 'effective_rows': 20}
  rows = fitted.model.sample(20, seed=0, conditions={'income': 50})
  assert rows.attrs['conditions']['method'] == 'importance'
  np.testing.assert_allclose(rows['income'], 50)
  with pytest.raises(ValueError, match="condition 'city': 'Rom' is outside"):
    fitted.model.sample(20, conditions={'city': 'Rom'})
  # As text, as the command line has it.
  rows = fitted.model.sample(5, conditions={'city': None, 'age': '30'})
  assert rows['city'].isna().all() and (rows['age'] == 30).all()


_WITHOUT_US = """
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
log_prob = model.signatures['log_prob'](x=tf.constant(np.load(sys.argv[2])))
np.save(sys.argv[3], log_prob['log_prob'].numpy())
"""


@pytest.mark.full
def test_saved_model_needs_no_tfdpflows(fitted, tmp_path):
  distribution = fitted.model._fitted.distribution.distribution
  points = distribution.sample(7, seed=(1, 2)).numpy()
  np.save(tmp_path / 'points.npy', points)
  alone.run(
    _WITHOUT_US,
    fitted.folder / 'saved_model',
    tmp_path / 'points.npy',
    tmp_path / 'found.npy',
  )
  np.testing.assert_allclose(
    np.load(tmp_path / 'found.npy'), distribution.log_prob(points), atol=1e-4
  )


def _listed(scale):
  """A density of a table that can be listed, its cells placed anyhow."""
  schema = TableSchema(
    [
      Field('a', 'string', enum=('x', 'y', 'z')),
      Field('b', 'boolean', required=True),
      Field('c', 'integer', minimum=1, maximum=4, required=True),
    ]
  )
  marginals = [
    {'edges': list(range(k + 1)), 'probabilities': list(range(2, k + 2))}
    for k in (4, 2, 4)
  ]
  model = HFlowModel.for_table(
    500,
    3,
    dequantization='variational',
    num_blocks=2,
    hidden_units=(16,),
  )
  columns = TableEncoder(schema).columns
  density = model.make_distribution(columns, marginals, seed=0)
  rng = np.random.default_rng(0)
  for variable in density.trained:
    variable.assign_add(
      tf.constant(rng.normal(size=variable.shape) * scale, variable.dtype)
    )
  codes = itertools.product(range(4), range(2), range(4))
  return density, np.array(list(codes), np.float32)


@pytest.mark.core
def test_log_prob_is_weighted_for_where_points_are_drawn():
  density, codes = _listed(0.05)
  even = flows.dequantization.UniformDequantization([4, 2, 4])
  found = []
  for dequantization in (density.dequantization, even):
    density.dequantization = dequantization
    uniform = np.random.default_rng(1).random((2000, *codes.shape), np.float32)
    points, volume, log_q = density.dequantize(codes, uniform)
    np.testing.assert_array_equal(
      np.floor(points), np.broadcast_to(codes, points.shape)
    )
    draws = density.distribution.log_prob(points) + volume - log_q
    found.append(np.exp(draws))
    assert found[-1].mean(0).sum() == pytest.approx(1, abs=0.02)
  assert np.std(log_q) == 0 and found[0].std() > 0
  error = sum(f.var(0) for f in found) / 2000
  difference = found[0].mean(0) - found[1].mean(0)
  np.testing.assert_array_less(np.abs(difference), 5 * np.sqrt(error))


def test_defaults_and_bad_arguments(people):
  h = HFlowModel.for_table(32_561, 15)
  assert (h.num_blocks, h.linear, h.shared) == (3, 'low_rank', True)
  h = SplineModel.for_table(32_561, 15)
  assert (h.num_blocks, h.linear, h.shared) == (2, 'none', False)
  for arguments, message in (
    ({'model': 'hflows'}, "model is 'hflows'.*'spline', 'hflow'"),
    ({'model': 'spline', 'linear': 'LU'}, "linear is 'LU'.*'lu'"),
    ({'dequantization': 'none'}, "dequantization is 'none'"),
    ({'model': 'hflow', 'rank': 6}, 'rank is 6; the table has 5 columns'),
    ({'model': 'hflow', 'rank': 0}, 'rank is 0'),
    ({'augmentation_multiplicity': 0}, 'augmentation_multiplicity is 0'),
  ):
    with pytest.raises(ValueError, match=message):
      TabularSynthesizer(people.schema, **arguments)
  # Numbers have no cells: there is nothing to place.
  schema = TableSchema(
    [Field(n, 'number', minimum=0, maximum=1, required=True) for n in 'ab']
  )
  model = HistogramModel.for_table(100, 2, dequantization='variational')
  marginals = [{'edges': [0, 1], 'probabilities': [1]}] * 2
  density = model.make_distribution(TableEncoder(schema).columns, marginals)
  assert not density.dequantization.variables


def test_older_models_are_of_the_default(fitted, tmp_path):
  """What was written before there was a choice does not name it."""
  with open(fitted.folder / 'model.json', encoding='utf-8') as file:
    settings = json.load(file)['settings']
  assert settings['model'] == 'hflow'
  h = settings['hyperparameters']
  for name in (
    'shared',
    'linear',
    'rank',
    'dequantization',
    'augmentation_multiplicity',
  ):
    del h[name]
  del settings['model']
  settings = models.current_settings(settings)
  assert settings['model'] == 'spline'
  h = SplineModel(**settings['hyperparameters'])
  assert (h.linear, h.shared, h.dequantization) == ('none', False, 'uniform')
