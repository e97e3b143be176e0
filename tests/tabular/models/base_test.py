"""The public formula of the defaults, and the target column."""

import types

import numpy as np
import pytest

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import bijectors, gradients
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.models import flow
from tfdpflows.tabular.models.histogram import HistogramModel
from tfdpflows.tabular.models.spline import SplineModel
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory

pytestmark = pytest.mark.usefixtures('unexported')


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.mark.parametrize(
  'num_rows, batch, epochs',
  [(1, 1, 20), (160, 10, 20), (32_000, 2000, 20), (400_000, 4000, 10)],
)
def test_batch_and_epochs_are_a_function_of_the_rows(num_rows, batch, epochs):
  h = SplineModel.for_table(num_rows, 9)
  assert (h.expected_batch_size, h.epochs) == (batch, epochs)
  h = HistogramModel.for_table(num_rows, 9, adaptive_marginals=0)
  steps = h.epochs * num_rows / h.expected_batch_size
  assert steps == (64 if num_rows == 1 else 1000)
  h = HistogramModel.for_table(400_000, 9, expected_batch_size=2000)
  assert h.epochs == 5
  assert HistogramModel.for_table(400_000, 9, epochs=30).epochs == 30


@pytest.mark.parametrize(
  'num_rows, noise, bins',
  [(1, 3.7, 4), (4000, 3.7, 4), (32_000, 3.7, 12), (32_000, 37.0, 4),
   (32_000, 0.9, 16), (10**9, 3.7, 16)],
)  # fmt: skip
def test_bins_are_a_function_of_rows_and_noise(num_rows, noise, bins):
  found = HistogramModel.for_table(num_rows, 9, noise)
  assert found.num_bins == bins
  assert HistogramModel.for_table(num_rows, 9, noise, num_bins=9).num_bins == 9


@pytest.mark.parametrize(
  'num_rows, columns, rounds',
  [(10**4, 1, 2), (10**4, 9, 18), (10**4, 200, 80), (10**9, 9, 18),
   (1000, 15, 12), (100, 15, 2), (1, 15, 2)],
)  # fmt: skip
def test_rounds_are_a_function_of_columns_rows_and_noise(
  num_rows, columns, rounds
):
  found = HistogramModel.for_table(num_rows, columns, 3.73)
  assert found.adaptive_marginals == rounds


def test_with_more_bins_than_can_be_training_gets_more():
  few, many, most = (
    HistogramModel.for_table(n, 9, 4.0) for n in (65_536, 200_000, 10**9)
  )
  assert (few.learning_rate, few.adaptive_share) == (0.003, 0.4)
  assert 0.005 < many.learning_rate < 0.006
  found = most.learning_rate, most.marginal_share, most.adaptive_share
  assert found == pytest.approx((0.009, 0.25, 0.4 / 3))
  given = HistogramModel.for_table(10**9, 9, 4.0, learning_rate=0.01)
  assert given.learning_rate == 0.01


@pytest.mark.parametrize('columns', [1, 9])
def test_training_alone_has_farther_to_go(columns):
  found = HistogramModel.for_table(1000, columns)
  assert found.epochs == 32
  far = HistogramModel.for_table(1000, columns, adaptive_marginals=0)
  assert far.epochs > found.epochs and far.learning_rate > found.learning_rate


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'target': 'agee'}, "target is 'agee'.*no column.*'age', 'income'"),
    ({'target': 'age', 'model': 'spline'}, "only model='histogram'"),
    ({'target_weight': 0}, 'target_weight is 0; it must be a number from'),
    ({'num_blocks': 2}, r"\['num_blocks'\] of model 'histogram'.*'num_bins'"),
    ({'linear': 'lu'}, r"\['linear'\] of model 'histogram'"),
    ({'clipping': 'per_row'}, "clipping is 'per_row'.*'per_layer', 'per_unit'"),
    ({'clipping': 'sparsification', 'sparsity': 1.0}, r'must be in \[0, 1\)'),
    ({'sparsity': 0.5}, "sparsity is 0.5 and clipping 'flat'"),
  ],
)
def test_bad_arguments(people, arguments, message):
  with pytest.raises(ValueError, match=message):
    TabularSynthesizer(people.schema, **arguments)


@pytest.mark.parametrize(
  'arguments, strategy',
  thinned(
    [
      ({}, gradients.Flat(3.0)),
      (
        {'clipping': 'sparsification', 'sparsity': 0.5},
        gradients.StochasticSparsification(3.0, sparsity=0.5),
      ),
      ({'clipping': 'per_layer'}, gradients.PerLayer(3.0)),
      ({'clipping': 'per_unit'}, gradients.PerUnit(3.0)),
    ],
    lambda point: 'sparsity' in point[0],
  ),
)
def test_clipping_is_what_trains_and_what_is_stated(
  people, tmp_path, arguments, strategy
):
  fitted = fit_to_directory(
    people.table,
    people.schema,
    tmp_path / 'model',
    progress=False,
    seed=3,
    l2_norm_clip=3.0,
    **{**people.budget, **people.quick, **arguments},
  )
  statement = fitted.privacy_statement()
  assert f'Clipping: {strategy!r}' in ' '.join(statement.notes)
  assert statement.epsilon <= people.budget['epsilon']
  again = TabularSynthesizer.load(tmp_path / 'model')
  assert repr(again.model.clipping_strategy()) == repr(strategy)


def test_matching_can_be_left_out(people, tmp_path, monkeypatch):
  def refuse(*args, **kwargs):
    raise InterruptedError

  monkeypatch.setattr(
    bijectors.AutoregressiveHistogram, 'match_marginals', refuse
  )
  for matching in (False, True):
    synthesizer = TabularSynthesizer(
      people.schema, **people.budget, **people.quick, matching=matching
    )
    with small_table.untrained():
      if matching:
        with pytest.raises(InterruptedError):
          synthesizer.fit(people.table, progress=False)
      else:
        synthesizer.fit(people.table, progress=False)


@pytest.mark.parametrize('last', thinned(['member', 'age'], 1))
def test_target_counts_more_and_comes_back_from_a_file(last, people, tmp_path):
  """A column that says all of the target is found sooner for it."""
  arguments = {**people.budget, 'seed': 3, 'epochs': 16}
  found = {}
  for target in dict.fromkeys([None, 'member', last]):
    fitted = TabularSynthesizer(people.schema, target=target, **arguments)
    fitted.fit(people.table, progress=False)
    assert fitted.model.target == target
    rows = fitted.sample(4000, seed=0)
    found[target] = np.mean((rows['age'] > 50) == rows['member'])
  assert found['member'] > found[None] > 0.6
  # Age that depends on all others takes a part of what there is to know.
  assert found[last] > 0.58
  fitted.save(tmp_path / 'model')
  again = TabularSynthesizer.load(tmp_path / 'model')
  assert again.target == last
  log_prob = again.log_prob(people.table[:5])
  np.testing.assert_array_equal(log_prob, fitted.log_prob(people.table[:5]))


def test_points_of_a_step_on_replicas_are_taken_once(monkeypatch):
  """In chunks the rows at one place of all would have the same points."""
  monkeypatch.setattr(flow, 'TableDensityModel', lambda *args: None)
  sizes = []

  class Plan:
    steps = 10

    def optimizer(self, name, chunk_size, **kwargs):
      sizes.append(chunk_size)
      raise KeyError

  density = types.SimpleNamespace(training_rows=lambda codes: codes)
  for team in (None, 'of workers'):
    work = types.SimpleNamespace(
      team=team, randomness=Randomness(seed=0), checkpoints=None
    )
    with pytest.raises(KeyError):
      SplineModel().train_steps(density, None, Plan(), work)
  assert sizes[0] is None
  assert sizes[1] > 10**9
