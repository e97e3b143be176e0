"""A whole fit, replayed on neighbouring tables with the same noise."""

import contextlib
import functools
import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting
from tfdpflows.mechanisms import histograms, marginals
from tfdpflows.optimizers import dp_keras
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import fitting, models
from tfdpflows.tabular.models import adaptive_marginals, dp_sgd

ROW = 7
MODELS = {
  'adaptive': {
    'model': 'histogram',
    'target': 'member',
    'adaptive_marginals': 3,
  },
  'hflow': {
    'model': 'hflow',
    'num_blocks': 1,
    'dequantization': 'variational',
    'clipping': 'per_layer',
  },
  'dpgan': {'model': 'dpgan', 'discriminator_steps': 3},
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


class Releases:
  """What a fit releases: recorded first, then compared and given again."""

  def __init__(self):
    self.counts, self.steps = [], {}
    self.choices, self.joint = [], []
    self.replay = False

  def start_replay(self):
    self.replay, self._number = True, 0
    self.moved_counts, self.moved_steps = [], {}
    self.moved_choices, self.moved_joint = [], []
    self._choices, self._joint = iter(self.choices), iter(self.joint)

  def histogram(self, original):
    def release(x, column, stds, rng, max_bins):
      levels = original(x, column, stds, rng, max_bins)
      if not self.replay:
        self.counts.append(levels)
        return levels
      theirs = self.counts[self._number]
      self._number += 1
      for (bounds, mine, _), (same, other, _), std in zip(levels, theirs, stds):
        np.testing.assert_array_equal(bounds, same)
        self.moved_counts.append(np.linalg.norm(mine - other) / std)
      return theirs

    return release

  def choice(self, original):
    def choose(utilities, scale, rng):
      chosen = original(utilities, scale, rng)
      if not self.replay:
        self.choices.append((utilities, chosen))
        return chosen
      others, theirs = next(self._choices)
      self.moved_choices.append(np.abs(utilities - others).max())
      return theirs

    return choose

  def marginal(self, original):
    def release(counts, groups, std, rng):
      found = original(counts, groups, std, rng)
      if not self.replay:
        self.joint.append(found)
        return found
      theirs = next(self._joint)
      self.moved_joint.append(
        np.linalg.norm(found[0].counts - theirs[0].counts) / std
      )
      return theirs

    return release

  def training(self, original):
    def release(optimizer, sums, step):
      means, loss = original(optimizer, sums, step)
      batch = optimizer.expected_batch_size
      of_gradient, of_loss, _ = optimizer._noise_multipliers()
      unit = of_gradient * optimizer.clipping.l2_sensitivity / batch
      flat, units = [*means], [unit] * len(means)
      if loss is not None:
        flat.append(loss)
        units.append(of_loss * optimizer.loss_bound / batch)

      def look(step, *arrays):
        if not self.replay:
          self.steps[int(step)] = arrays
          return arrays
        theirs = self.steps[int(step)]
        squares = [
          np.sum(np.square((a.astype(np.float64) - b) / unit))
          for a, b, unit in zip(arrays, theirs, units)
        ]
        self.moved_steps[int(step)] = np.sqrt(sum(squares))
        return theirs

      found = tf.numpy_function(look, [step, *flat], [t.dtype for t in flat])
      for tensor, like in zip(found, flat):
        tensor.set_shape(like.shape)
      return found[: len(means)], None if loss is None else found[-1]

    return release


@contextlib.contextmanager
def watched(releases):
  """Lets `releases` see what is released inside of the context."""
  with pytest.MonkeyPatch.context() as patch:
    for owner, name, wrap in (
      (histograms, '_release', releases.histogram),
      (dp_keras.DPOptimizer, '_release', releases.training),
      (marginals, '_choose', releases.choice),
      (marginals, '_release', releases.marginal),
    ):
      patch.setattr(owner, name, wrap(getattr(owner, name)))
    patch.setattr(adaptive_marginals, '_SAMPLE', 2048)
    patch.setitem(adaptive_marginals._DISTILLATION, 'steps', 5)
    yield


@pytest.fixture(scope='module')
def record(people):
  """Returns a function of a model and a row: table, releases, fit, spending.

  Each fit is made and recorded once, and replayed in several tests.
  """

  @functools.cache
  def record(name, row):
    table = people.table.copy()
    if row == 'extreme':
      columns = ['age', 'income', 'visits', 'city']
      table.loc[ROW, columns] = [0, 200, 12, 'Bonn']
    releases = Releases()
    with watched(releases):
      fitted, spending = run(people, table, name)
    return table, releases, fitted, spending

  return record


def run(people, table, name, without=None):
  """Runs all mechanisms; `without` is the number of a row that is not there.

  The number of rows is public, so that the sampler has its place: what is
  drawn from it is no number, which training leaves out.
  """
  settings = {**people.tiny, **MODELS[name]}
  model = models.model_class(settings.pop('model')).for_table(
    len(table), 5, **settings
  )
  budget = accounting.PrivacyBudget(**people.budget)
  spending = fitting.split_budget(
    people.schema,
    len(table),
    model,
    budget=budget,
    bounds_epsilon=None,
    accountant='pld',
  )
  work = types.SimpleNamespace(
    randomness=Randomness(seed=5),
    ledger=accounting.PrivacyLedger(budget=budget),
    checkpoints=None,
  )
  noisy, train = fitting.mechanisms.noisy_histograms, dp_sgd.train
  with pytest.MonkeyPatch.context() as patch:
    if without is not None:
      patch.setattr(
        fitting.mechanisms,
        'noisy_histograms',
        lambda x, *args, **kwargs: noisy(
          np.delete(x, without, 0), *args, **kwargs
        ),
      )

      def train_without(model, plan, codes, **kwargs):
        codes = codes.copy()
        codes[without] = np.nan
        train(model, plan, codes, **kwargs)

      patch.setattr(dp_sgd, 'train', train_without)
      refine = adaptive_marginals.refine
      patch.setattr(
        adaptive_marginals,
        'refine',
        lambda density, x, *args, **kwargs: refine(
          density, np.delete(x, without, 0), *args, **kwargs
        ),
      )
    fitted = fitting.run_mechanisms(
      people.schema.validate(table),
      people.schema,
      spending,
      model,
      work,
      resume=False,
      progress=False,
    )
  assert work.ledger.epsilon() <= budget.epsilon
  return fitted, spending


def output(fitted):
  parts = fitted.distribution.saved_parts().values()
  variables = [v for part in parts for v in part.variables]
  return [v.numpy() for v in variables], fitted.marginals


def assert_same(found, expected):
  assert found[1] == expected[1]
  for a, b in zip(found[0], expected[0]):
    np.testing.assert_array_equal(a, b)


CASES = [
  ('adaptive', 'extreme'),
  ('hflow', 'ordinary'),
  ('dpgan', 'ordinary'),
]


@pytest.mark.parametrize(
  'name, row', thinned([*CASES, ('adaptive', 'ordinary')], len(CASES))
)
def test_one_row_moves_every_release_by_its_sensitivity(
  people, name, row, record
):
  table, releases, fitted, spending = record(name, row)
  releases.start_replay()
  with watched(releases):
    neighbour, _ = run(people, table, name, without=ROW)
  assert len(releases.moved_steps) == spending.plan.steps == 16
  # One Gaussian mechanism over all columns and levels.
  counts = np.linalg.norm(releases.moved_counts)
  assert counts <= (1 + 1e-6) / spending.marginal_noise
  assert counts > 0.5 / spending.marginal_noise
  # And one for each step, with its loss; the row is in some batches only.
  steps = np.array(list(releases.moved_steps.values()))
  assert (steps * spending.plan.noise_multiplier <= 1 + 1e-4).all()
  assert 0 < (steps > 1e-6).sum() < len(steps)
  # A choice by utilities of sensitivity 1 and a Gaussian mechanism per round.
  assert len(releases.moved_choices) == len(spending.rounds)
  assert all(0 < moved <= 1 + 1e-9 for moved in releases.moved_choices)
  np.testing.assert_allclose(
    releases.moved_joint, [1 / r.noise_multiplier for r in spending.rounds]
  )
  assert_same(output(neighbour), output(fitted))


@pytest.mark.parametrize('name, row', CASES)
def test_nothing_but_the_releases_depends_on_the_rows(
  people, name, row, record
):
  """Other rows, the same releases: the same model."""
  table, releases, fitted, _ = record(name, row)
  other = pd.concat([table[200:], table[:200]])
  other['member'] = ~other['member'].astype(bool)
  releases.start_replay()
  with watched(releases):
    replayed, _ = run(people, other.reset_index(drop=True), name)
  assert max(releases.moved_steps.values()) > 1
  assert_same(output(replayed), output(fitted))
