"""Generative adversarial networks: whole fits of a small table."""

import numpy as np
import pandas as pd
import pytest

from tests.tabular import alone, small_table
from tfdpflows import sampling
from tfdpflows.tabular import Field, models
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory

TINY = {
  'dpgan': {
    'epochs': 2,
    'expected_batch_size': 50,
    'hidden_units': (8,),
    'discriminator_steps': 2,
  },
  'pategan': {
    'num_teachers': 12,
    'rounds': 3,
    'queries': 8,
    'teacher_steps': 3,
    'student_steps': 2,
    'generator_steps': 2,
  },
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


def _fit(people, folder, name, **arguments):
  return fit_to_directory(
    people.table,
    people.schema,
    folder,
    model=name,
    progress=False,
    **{**people.budget, **TINY[name], **arguments},
  )


@pytest.fixture(scope='module')
def fits(people, tmp_path_factory):
  """By name fitted synthesizers and the folders of their models."""
  folders = {name: tmp_path_factory.mktemp(name) / 'model' for name in TINY}
  return {
    name: (_fit(people, folder, name, seed=1), folder)
    for name, folder in folders.items()
  }


@pytest.fixture(params=TINY)
def fitted(request, fits):
  """One of them."""
  return fits[request.param]


def test_rows_are_valid_and_come_back(fitted, people, tmp_path):
  synthesizer, folder = fitted
  rows = synthesizer.sample(3000, seed=0)
  pd.testing.assert_frame_equal(people.schema.validate(rows), rows)
  assert len(synthesizer.sample(0)) == 0
  pd.testing.assert_frame_equal(rows[:40], synthesizer.sample(40, seed=0))
  # The marginals are those that were released.
  for name in ('income', 'visits', 'city'):
    share = people.table[name].isna().mean()
    assert rows[name].isna().mean() == pytest.approx(share, abs=0.05)
  synthesizer.save(tmp_path / 'copy')
  for path in (folder, tmp_path / 'copy'):
    again = TabularSynthesizer.load(path)
    assert again.model == synthesizer.model
    pd.testing.assert_frame_equal(again.sample(3000, seed=0), rows)


def test_budget_and_statement(fitted, people):
  synthesizer, _ = fitted
  assert 0.9 * people.budget['epsilon'] < synthesizer.ledger.epsilon()
  assert synthesizer.ledger.epsilon() <= people.budget['epsilon']
  statement = synthesizer.privacy_statement()
  assert statement.epsilon <= people.budget['epsilon']
  for note in synthesizer.model.notes():
    assert note in statement.notes


def test_no_density(fitted, people):
  synthesizer, _ = fitted
  message = (
    f"'{synthesizer.model.name}' has no density.*'histogram', 'spline', 'hflow'"
  )
  with pytest.raises(ValueError, match=message):
    synthesizer.log_prob(people.table)


def test_conditions_are_met_by_rejection(fitted):
  synthesizer, _ = fitted
  rows = synthesizer.sample(50, seed=0, conditions={'city': 'Bonn'})
  assert set(rows['city']) == {'Bonn'}
  assert rows.attrs['conditions']['method'] == 'exact'
  with pytest.raises(ValueError, match='value of a continuous column.*density'):
    synthesizer.sample(50, seed=0, conditions={'income': 30.0})


_WITHOUT_US = """
import tensorflow as tf
for path in sys.argv[1:]:
  model = tf.saved_model.load(path)
  sample = model.signatures['sample'](
    num_rows=tf.constant(7), seed=tf.constant([1, 2]))['x']
  assert sample.shape == (7, 5), sample.shape
  assert list(model.signatures) == ['sample']
"""


def test_saved_models_need_no_tfdpflows(fits):
  folders = [folder / 'saved_model' for _, folder in fits.values()]
  assert len(folders) == len(TINY)
  alone.run(_WITHOUT_US, *folders)


@pytest.mark.parametrize('name', TINY)
def test_one_column_gets_the_whole_budget(people, name):
  """And needs no training: its histogram is all there is to learn."""
  schema = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])
  synthesizer = TabularSynthesizer(
    schema, **people.budget, model=name, seed=2, **TINY[name]
  )
  synthesizer.fit(people.table[['age']], progress=False)
  assert [e.label for e in synthesizer.ledger.entries] == ['marginals']
  assert synthesizer.sample(500, seed=0)['age'].between(0, 99).all()
  assert synthesizer.model.notes()[0] not in str(
    synthesizer.privacy_statement()
  )


@pytest.mark.parametrize('name', TINY)
def test_bad_arguments(people, name):
  for arguments, message in (
    ({'num_blocks': 2}, rf"\['num_blocks'\] of model '{name}'.*'noise_units'"),
    ({'target': 'age'}, "only model='histogram'"),
    ({'temperature': 0}, 'temperature is 0; it must be a number from'),
  ):
    with pytest.raises(ValueError, match=message):
      TabularSynthesizer(people.schema, model=name, **arguments)


def test_interrupted_dpgan_goes_on(fits, people, tmp_path, monkeypatch):
  """Charged steps are made again: the same rows, and nothing charged twice."""
  expected, _ = fits['dpgan']
  draw, drawn = sampling.PoissonSampler.draw, []

  def batch(self, *args):
    drawn.append(1)
    if len(drawn) == 13:
      raise OSError('no disk')
    return draw(self, *args)

  with monkeypatch.context() as patch:
    patch.setattr(sampling.PoissonSampler, 'draw', batch)
    with pytest.raises(OSError, match='no disk'):
      _fit(people, tmp_path / 'model', 'dpgan', seed=1)
  assert (tmp_path / 'model.partial' / 'checkpoints').exists()
  resumed = _fit(people, tmp_path / 'model', 'dpgan', seed=1, resume=True)
  assert resumed.ledger.entries == expected.ledger.entries
  pd.testing.assert_frame_equal(
    resumed.sample(500, seed=0), expected.sample(500, seed=0)
  )


@pytest.mark.parametrize(
  'name, settings',
  [
    (
      'dpgan',
      {
        'expected_batch_size': 100,
        'epochs': 75,
        'discriminator_steps': 1,
        'learning_rate': 1e-2,
      },
    ),
    pytest.param(
      'pategan',
      {
        'num_teachers': 8,
        'rounds': 40,
        'student_learning_rate': 1e-2,
        'generator_steps': 10,
      },
      marks=pytest.mark.full,
    ),
  ],
)
def test_training_learns_what_columns_have_in_common(people, name, settings):
  """Without much noise: being a member follows from the age."""
  synthesizer = TabularSynthesizer(
    people.schema,
    epsilon=200.0 if name == 'dpgan' else 2000.0,
    delta=1e-4,
    accountant='rdp',
    model=name,
    seed=0,
    generator_learning_rate=3e-3,
    **settings,
  )
  rows = synthesizer.fit(people.table, progress=False).sample(4000, seed=0)
  assert np.mean((rows['age'] > 50) == rows['member']) > 0.7


def test_every_model_without_a_density_is_tested_here():
  without = {n for n in models.MODELS if not models.model_class(n).has_density}
  assert without == set(TINY)
