"""GS-WGAN: what a row can change, what is released, and what it costs."""

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.baselines import gs_wgan
from tests.tabular import small_table
from tfdpflows import accounting
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.stacked import Shards

ROW = 7
CLIP = 0.3
TINY = {
  'num_discriminators': 12,
  'steps': 4,
  'warm_up_steps': 2,
  'generator_batch_size': 16,
  'l2_norm_clip': CLIP,
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def codes(people):
  return TableEncoder(people.schema).encode(
    people.schema.validate(people.table)
  )


@pytest.fixture(scope='module')
def neighbor(codes):
  """The codes with one row replaced, in its place, by another one."""
  other = codes.copy()
  other[ROW] = np.where(codes[ROW] < 1, 2, 0)
  return other


def _training(people):
  """A training that has not begun, and its generator."""
  columns = TableEncoder(people.schema).columns
  model = gs_wgan.GSWGANModel.for_table(400, 5, **TINY)
  marginals = [
    {'edges': [0.0, c.size / 2, c.size], 'probabilities': [0.5, 0.5]}
    for c in columns
  ]
  generator = model.make_distribution(columns, marginals, 5)
  training = gs_wgan.GSWGANTraining(generator, model, Randomness(seed=5))
  return training, generator


def _ledger():
  return accounting.PrivacyLedger(neighboring_relation=gs_wgan.RELATION)


def _weights(generator):
  return [v.numpy() for v in generator.network.variables]


def test_a_row_changes_its_own_discriminator_alone(people, codes, neighbor):
  """And what is released of it by no more than what is charged for."""
  places = np.random.default_rng(0).integers(12, size=400)
  found = []
  for rows in (codes, neighbor):
    training, generator = _training(people)
    shards = Shards(rows, places, 12)
    # Each row is drawn: the one that is replaced too.
    for _ in range(40):
      training._discriminator_step(shards.codes, shards.starts, shards.sizes)
    made, _ = generator.make_rows(16, tf.random.Generator.from_seed(3))
    upstream = [training._upstream(tf.constant(k), made) for k in range(12)]
    weights = [v.numpy() for v in training._discriminators.trained]
    found.append((weights, np.stack(upstream), made.numpy()))
  (one, upstream, made), (other, moved, same) = found
  np.testing.assert_array_equal(made, same)
  differs = [(a != b).reshape(12, -1).any(1) for a, b in zip(one, other)]
  assert np.flatnonzero(np.any(differs, 0)).tolist() == [places[ROW]]
  norms = np.linalg.norm(upstream, axis=2)
  assert (norms <= CLIP).all()
  assert norms.max() > 0.99 * CLIP
  change = np.linalg.norm((upstream - moved).reshape(12, -1), axis=1)
  assert np.flatnonzero(change).tolist() == [places[ROW]]
  assert change.max() <= 2 * CLIP * np.sqrt(16)


def test_the_generator_is_a_function_of_what_is_released(
  people, codes, neighbor, monkeypatch
):
  """Other rows, the same released gradients: the same generator."""
  found = []
  fixed = tf.random.stateless_normal([16, 10], [1, 2])
  with monkeypatch.context() as patch:
    patch.setattr(
      gs_wgan.GSWGANTraining, '_upstream', lambda self, drawn, made: fixed
    )
    for rows in (codes, neighbor, codes[::-1]):
      training, generator = _training(people)
      training.fit(rows, 1.0, _ledger(), progress=False)
      found.append(_weights(generator))
  for a, b, c in zip(*found):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
  training, generator = _training(people)
  training.fit(codes, 1.0, _ledger(), progress=False)
  assert any((a != b).any() for a, b in zip(found[0], _weights(generator)))


def test_all_discriminators_are_trained_whichever_is_drawn(
  people, codes, monkeypatch
):
  """So that they do not depend on secret draws."""
  found, released = [], tf.zeros([16, 10])
  for drawn in (3, 4):
    training, _ = _training(people)
    step = training._generator_step
    with monkeypatch.context() as patch:
      # What is released is the same; the draw is not.
      patch.setattr(training, '_upstream', lambda drawn, made: released)
      patch.setattr(
        training,
        '_generator_step',
        lambda _, noise, d=drawn, s=step: s(tf.constant(d, tf.int32), noise),
      )
      training.fit(codes, 1.0, _ledger(), progress=False)
    found.append([v.numpy() for v in training._discriminators.trained])
  for a, b in zip(*found):
    np.testing.assert_array_equal(a, b)


def test_noise_has_the_charged_size(people, codes, monkeypatch):
  training, _ = _training(people)
  noise = []
  monkeypatch.setattr(
    training, '_generator_step', lambda _, given: noise.append(given.numpy())
  )
  ledger = _ledger()
  training.fit(codes, 5.0, ledger, progress=False)
  assert np.std(noise) == pytest.approx(5 * CLIP * np.sqrt(16), rel=0.1)
  (entry,) = ledger.entries
  assert (entry.event, entry.count) == (
    dp_accounting.SampledWithoutReplacementDpEvent(
      12, 1, dp_accounting.GaussianDpEvent(5.0)
    ),
    4,
  )


def test_another_relation_is_refused(people, codes):
  training, _ = _training(people)
  with pytest.raises(ValueError, match='must be for neighbours of REPLACE_ONE'):
    training.fit(codes, 5.0, accounting.PrivacyLedger(), progress=False)


@pytest.mark.parametrize('weight', [np.nan, np.inf, 1e30])
def test_gradients_without_numbers_do_not_show(people, weight):
  training, generator = _training(people)
  for variable in training._discriminators.trained:
    variable.assign(tf.fill(variable.shape, tf.constant(weight, tf.float32)))
  made, _ = generator.make_rows(16, tf.random.Generator.from_seed(3))
  upstream = training._upstream(tf.constant(0), made).numpy()
  assert (np.linalg.norm(upstream, axis=1) <= CLIP).all()


@pytest.mark.full
def test_learns():
  people = small_table.make(6400)
  model = gs_wgan.GSWGAN(
    people.schema,
    1e5,
    1e-5,
    seed=0,
    steps=300,
    num_discriminators=50,
  )
  rows = model.fit(people.table, progress=False).sample(3000, seed=0)
  means = rows.groupby('member')['age'].mean()
  assert means[True] > means[False] + 10


def test_spends_its_budget(people):
  model = gs_wgan.GSWGAN(people.schema, 8.0, 1e-4, accountant='rdp', **TINY)
  with pytest.raises(ValueError, match='not fitted yet'):
    model.sample(3)
  model.fit(people.table, progress=False)
  assert 7 < model.ledger.epsilon() <= 8
  statement = model.privacy_statement().to_dict()
  assert statement['neighboring_relation'] == 'REPLACE_ONE'
  assert '12 disjoint shards' in statement['sampling']
  labels = [entry.label for entry in model.ledger.entries]
  assert labels == ['marginals', 'upstream gradients']
  rows = model.sample(50, seed=0)
  pd.testing.assert_frame_equal(people.schema.validate(rows), rows)
  with pytest.raises(ValueError, match='is fitted, its budget spent'):
    model.fit(people.table)


def test_bad_arguments(people, tmp_path):
  with pytest.raises(ValueError, match=r"\['depth'\] of model 'gs_wgan'"):
    gs_wgan.GSWGAN(people.schema, depth=3)
  with pytest.raises(ValueError, match='give no work_dir'):
    gs_wgan.GSWGAN(people.schema).fit(people.table, work_dir=tmp_path / 'work')
  with pytest.raises(ValueError, match='num_discriminators is 500, and the'):
    gs_wgan.GSWGAN(people.schema, num_discriminators=500).fit(people.table)
