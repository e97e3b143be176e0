"""DP-CGAN: labels, what it learns, and what it spends."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.baselines import dp_cgan
from tests.tabular import small_table
from tfdpflows.tabular.encoding import TableEncoder

TINY = {'epochs': 1, 'expected_batch_size': 50, 'hidden_units': (8,)}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


def _generator(people, target):
  columns = TableEncoder(people.schema).columns
  model = dp_cgan.DPCGANModel.for_table(400, 5, target=target, noise_units=3)
  marginals = [
    {'edges': [0.0, 1.0, c.size], 'probabilities': [0.7, 0.3]} for c in columns
  ]
  return model.make_distribution(columns, marginals, 0)


def test_rows_have_the_label_that_the_generator_was_told(people):
  """And labels have the released marginal, whatever the weights are."""
  generator = _generator(people, 'member')
  rng = np.random.default_rng(0)
  for variable in generator.network.variables:
    variable.assign(rng.normal(0, 1, variable.shape))
  noise = tf.constant(rng.normal(size=[20_000, 4]), tf.float32)
  labels = generator.labels(noise).numpy()
  assert np.mean(labels == 0) == pytest.approx(0.7, abs=0.02)
  block = generator._logits(noise).numpy()[:, -2:]
  np.testing.assert_array_equal(block.argmax(1), labels)
  random = tf.random.Generator.from_seed(1)
  rows, probabilities = generator.make_rows(20_000, random)
  np.testing.assert_allclose(rows[:, -2:], probabilities[:, -2:], atol=1e-6)
  assert np.mean(rows[:, -2]) == pytest.approx(0.7, abs=0.02)
  drawn = generator.sample(20_000, np.random.default_rng(2))
  assert np.mean(drawn[:, -1] < 1) == pytest.approx(0.7, abs=0.02)


@pytest.mark.full
def test_learns_what_depends_on_the_label():
  people = small_table.make(6400)
  model = dp_cgan.DPCGAN(
    people.schema,
    1000.0,
    1e-5,
    target='member',
    seed=0,
    epochs=20,
    expected_batch_size=400,
  )
  rows = model.fit(people.table, progress=False).sample(3000, seed=0)
  means = rows.groupby('member')['age'].mean()
  assert means[True] > means[False] + 15


def test_spends_its_budget(people):
  model = dp_cgan.DPCGAN(people.schema, 8.0, 1e-4, target='city', **TINY)
  model.fit(people.table, progress=False)
  assert 7 < model.ledger.epsilon() <= 8
  statement = model.privacy_statement().to_dict()
  assert statement['neighboring_relation'] == 'ADD_OR_REMOVE_ONE'
  labels = [entry.label for entry in model.ledger.entries]
  assert labels == ['marginals', 'DP-SGD']
  rows = model.sample(50, seed=0)
  pd.testing.assert_frame_equal(people.schema.validate(rows), rows)


def test_bad_arguments(people):
  with pytest.raises(ValueError, match="target 'nope' is not a column"):
    dp_cgan.DPCGAN(people.schema, target='nope')
  with pytest.raises(ValueError, match=r"\['depth'\] of model 'dp_cgan'"):
    dp_cgan.DPCGAN(people.schema, target='city', depth=3)
