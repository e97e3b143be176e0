"""Twelve classic bugs, put into our code one by one: the audits find each.

`python -m tests.audit.broken_test` writes the table in `PAGE`.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable
from unittest import mock

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from tfdpflows import accounting, audit, gradients, mechanisms, optimizers, pate
from tfdpflows._keras import keras
from tfdpflows.mechanisms import marginals
from tfdpflows.models import PrivateModel
from tfdpflows.noise_grid import add_noise
from tfdpflows.optimizers.noise import GeneratorNoise
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import PoissonSampler
from tfdpflows.training import TrainingPlan

PAGE = pathlib.Path(__file__).parents[2] / 'docs/understand/auditing.md'
KINDS = ('many runs', 'one run', 'replay', 'guard')
DELTA = 1e-3
SIGMA = 2.0
Gaussian = dp_accounting.GaussianDpEvent
Composed = dp_accounting.SelfComposedDpEvent


def _optimizer(
  cls=optimizers.DPKerasSGD,
  clipping=gradients.Flat,
  noise=GeneratorNoise,
  batch=10.0,
  seed=None,
  **kwargs,
):
  source = noise(Randomness(seed).tensorflow('noise'), checkpointed=False)
  return cls(
    clipping=clipping(1.0),
    noise_multiplier=SIGMA,
    expected_batch_size=batch,
    noise_source=source,
    **kwargs,
  )


def _ledger(event=None, count=1):
  ledger = accounting.PrivacyLedger()
  if event is not None:
    ledger.charge(event, count, label='releases')
  return ledger


def _step(optimizer, rows, losses=None, kernel=None):
  """One update of a linear model: the gradient of an example is its row."""
  rows = tf.constant(rows, tf.float32)
  if kernel is None:
    kernel = tf.Variable(tf.zeros([rows.shape[1], 1]))
  losses = losses or (lambda rows: gradients.linear(rows, kernel)[:, 0])
  if losses is _batch_normalized or losses is _row_normalized:
    losses = functools.partial(losses, kernel=kernel)
  means, loss = optimizer.private_gradients_of(losses, rows, [kernel])
  return means[0].numpy()[:, 0], loss


def _release(optimizer, totals, rows=10):
  """Noises numbers by one update: each is a Gaussian mechanism of its own."""
  totals = tf.constant(totals, tf.float32)
  # An optimizer is for the variables of its first update.
  variable = optimizer.__dict__.setdefault(
    'released', tf.Variable(tf.zeros_like(totals))
  )
  sums = lambda rows, weights: {'gradients': [totals]}
  means, _ = optimizer.noised(sums, tf.zeros([rows]), [variable], None, None)
  return means[0].numpy()


def _many_runs(run, table, neighbor, claim, num_runs, **kwargs):
  found = audit.audit_mechanism(
    run,
    table,
    neighbor,
    claim=claim,
    delta=DELTA,
    num_runs=num_runs,
    **kwargs,
  )
  return found.refuted


# Rows of norms up to 1, and an outlier that is removed.
ROWS = np.random.default_rng(0).uniform(-0.4, 0.4, size=[10, 3])
ROWS[-1] = -30.0


def _replay_of_a_step(rows=ROWS, losses=None, **kwargs):
  def fit(rows):
    _ledger(Gaussian(SIGMA))
    return _step(_optimizer(**kwargs), rows, losses)[0]

  return not audit.replay(fit, rows, rows[:-1]).passed


def _canaries_of_a_step(**kwargs):
  """One update on Dirac canaries whose gradients have norm 5."""
  included = np.random.default_rng(0).random(1000) < 0.5
  rows = 5.0 * np.eye(1000)[included]
  scores, _ = _step(_optimizer(batch=1000.0, seed=0, **kwargs), rows)
  return _one_run(scores, included, Gaussian(SIGMA))


def _one_run(scores, included, claim):
  found = audit.audit_one_run(
    scores, included, delta=DELTA, claim=claim, num_guesses=[100, 500]
  )
  return found.refuted


# Clipping.


class NoClip(gradients.Flat):
  def clip_and_sum(self, per_example, weights=None):
    return per_example.weighted_sum(
      tf.ones_like(per_example.squared_norms()), np.inf
    )


class ClipOfTheMean(NoClip):
  """Clips the mean gradient; batches are of 10 rows."""

  def clip_and_sum(self, per_example, weights=None):
    totals = super().clip_and_sum(per_example, weights)
    means, _ = tf.clip_by_global_norm([t / 10.0 for t in totals], 1.0)
    return [10.0 * mean for mean in means]


def _clipping(patched, audit_of):
  return lambda broken: audit_of(clipping=patched if broken else gradients.Flat)


# Noise.


class NoisePerReplica(GeneratorNoise):
  """Each of four replicas adds a quarter of the noise, with its own draw."""

  def add(self, taken, total, stddev, correlated=False):
    return sum(
      super(type(self), self).add(taken, total / 4, stddev / 4)
      for _ in range(4)
    )


def _per_replica(broken):
  noise = NoisePerReplica if broken else GeneratorNoise
  optimizer = _optimizer(noise=noise, seed=0)
  run = lambda table, runs: _release(optimizer, np.full(runs, sum(table)))
  return _many_runs(run, [1.0, 1.0], [1.0], Gaussian(SIGMA), 100_000)


def _per_replica_replay(broken):
  noise = NoisePerReplica if broken else GeneratorNoise
  return _replay_of_a_step(noise=noise)


class ReusedNoise(GeneratorNoise):
  """Begins again with the same noise in each step."""

  def __init__(self, generator, checkpointed):
    super().__init__(generator, checkpointed)
    self._state = generator.state.numpy()

  def take(self, step):
    return tf.random.Generator.from_state(self._state, alg='philox')


def _reused(broken):
  """Of two steps the first has the row in its batch."""
  noise = ReusedNoise if broken else GeneratorNoise

  def run(table, runs):
    optimizer = _optimizer(noise=noise)
    first = _release(optimizer, np.full(runs, sum(table)))
    return first - _release(optimizer, np.zeros(runs))

  claim = Composed(Gaussian(SIGMA), 2)
  return _many_runs(run, [1.0], [], claim, 20_000)


def _reused_replay(broken):
  def fit(rows):
    _ledger(Gaussian(SIGMA), 2)
    optimizer = _optimizer(noise=ReusedNoise if broken else GeneratorNoise)
    kernel = tf.Variable(tf.zeros([3, 1]))
    return [_step(optimizer, rows, kernel=kernel)[0] for _ in range(2)]

  return not audit.replay(fit, ROWS, ROWS[:-1]).passed


def _reused_guard(broken):
  """Two histograms of one secret and one label."""
  randomness, ledger = Randomness(), _ledger()
  codes = np.zeros([3, 1], int)
  try:
    for i in range(2):
      mechanisms.noisy_marginals(
        codes,
        [2],
        [(0,)],
        SIGMA,
        randomness,
        ledger,
        label='counts' if broken else f'counts {i}',
      )
  except ValueError as error:
    if 'used already' not in str(error):
      raise
    return True
  return False


def _counts(codes, groups=((0,),), randomness=None, ledger=None):
  codes = np.asarray(codes, int)
  found = mechanisms.noisy_marginals(
    codes,
    [2] * codes.shape[1],
    groups,
    SIGMA,
    randomness,
    _ledger() if ledger is None else ledger,
  )
  return np.array([marginal.counts[1] for marginal in found])


def _seeds(broken):
  """The attacker takes seeds 0, 1, ... off the noisy count."""
  randomness = lambda i: Randomness(i if broken else None)
  run = lambda table, runs: np.array(
    [_counts(table, randomness=randomness(i))[0] for i in range(runs)]
  )
  noise = np.array(
    [_counts(np.zeros([0, 1]), randomness=Randomness(i))[0] for i in range(500)]
  )
  score = lambda outputs: outputs - noise
  return _many_runs(
    run, np.ones([1, 1]), np.zeros([0, 1]), Gaussian(SIGMA), 500, score=score
  )


def _seeds_replay(broken):
  fit = lambda codes: _counts(
    codes, randomness=Randomness(0 if broken else None)
  )
  return not audit.replay(fit, np.ones([3, 1]), np.ones([2, 1])).passed


# Batches.


class RealisedSize(optimizers.DPKerasSGD):
  """Divides by the number of rows in the batch."""

  def noised(self, sums, rows, variables, weights, step):
    means, loss = super().noised(sums, rows, variables, weights, step)
    factor = self.expected_batch_size / rows.shape[0]
    return [factor * mean for mean in means], loss


def _realised(broken):
  cls = RealisedSize if broken else optimizers.DPKerasSGD
  optimizer = _optimizer(cls, seed=0)
  # The largest movement of a mean: one row against all others.
  run = lambda table, runs: _release(
    optimizer, np.full(runs, sum(table)), len(table)
  )
  table = [1.0] * 9
  return _many_runs(run, table, [*table, -1.0], Gaussian(SIGMA), 100_000)


def _realised_replay(broken):
  cls = RealisedSize if broken else optimizers.DPKerasSGD
  return _replay_of_a_step(cls=cls)


class Shuffled(PoissonSampler):
  """Batches of one shuffled order, the same in every epoch."""

  def batch(self, data, rng):
    if not hasattr(self, '_batches'):
      numbers = rng.permutation(self.num_examples)
      batches = np.split(numbers, self.steps_per_epoch)
      self.__dict__.update(_batches=batches, _next=0)
    drawn = self._batches[self._next % len(self._batches)]
    self.__dict__['_next'] += 1
    return data[drawn], np.ones(len(drawn), np.float32)


def _shuffled(broken):
  """Each example is a Dirac canary."""
  m, per_epoch, epochs = 1000, 10, 60
  sampler = (Shuffled if broken else PoissonSampler)(
    num_examples=m, sampling_probability=1 / per_epoch
  )
  rng = np.random.default_rng(0)
  included = rng.random(m) < 0.5
  sums = np.zeros([epochs * per_epoch, m])
  for total in sums:
    drawn, weights = sampler.batch(np.arange(m), rng)
    total[drawn[weights > 0]] = 1.0
  totals = (sums * included).ravel()
  found = _release(_optimizer(batch=1.0, seed=0), totals)
  found = found.reshape([epochs, per_epoch, m]) / SIGMA**2
  # Likelihood ratios of the two ways to draw a batch, up to constants.
  shuffled = special.logsumexp(found.sum(0), 0)
  poisson = np.logaddexp(np.log(per_epoch - 1), found - 1 / (2 * SIGMA**2))
  claim = Composed(sampler.event(SIGMA), epochs * per_epoch)
  return any(
    _one_run(scores, included, claim)
    for scores in (shuffled, poisson.sum((0, 1)))
  )


def _batch_normalized(rows, kernel):
  rows -= tf.reduce_mean(rows, 0)
  rows /= tf.math.reduce_std(rows, 0) + 1e-3
  return gradients.linear(rows, kernel)[:, 0]


def _row_normalized(rows, kernel):
  rows -= tf.reduce_mean(rows, 1, keepdims=True)
  rows /= tf.math.reduce_std(rows, 1, keepdims=True) + 1e-3
  return gradients.linear(rows, kernel)[:, 0]


def _batch_norm_replay(broken):
  losses = _batch_normalized if broken else _row_normalized
  return _replay_of_a_step(losses=losses)


def _batch_norm_guard(broken):
  """`PrivateModel.fit` refuses the model, before anything is charged."""
  layers = keras.layers
  norm = layers.BatchNormalization if broken else layers.LayerNormalization
  plan = TrainingPlan(
    PoissonSampler(num_examples=len(ROWS), sampling_probability=0.5),
    gradients.Flat(1.0),
    noise_multiplier=SIGMA,
    steps=1,
  )
  model = PrivateModel(keras.Sequential([norm(), layers.Dense(1)]))
  optimizer = plan.optimizer('sgd', learning_rate=0.1)
  model.compile(optimizer, keras.losses.MeanSquaredError())
  rows = ROWS.astype('float32')
  try:
    model.fit(rows, np.ones([len(rows), 1], 'float32'), verbose=0)
  except ValueError as error:
    if 'normalizes over the batch' not in str(error):
      raise
    return plan.ledger.entries == ()
  return False


# Sensitivities and charges.


def _patched_marginals(broken):
  """Noise as for one group, whatever the number of them."""
  root = np.sqrt(len(SINGLES)) if broken else 1.0
  made = lambda counts, std, draw: add_noise(counts, std / root, draw)
  return mock.patch.object(marginals, 'add_noise', made)


SINGLES = tuple((j,) for j in range(9))


def _histogram(broken):
  run = lambda codes, runs: np.array(
    [_counts(codes, SINGLES).sum() for _ in range(runs)]
  )
  with _patched_marginals(broken):
    return _many_runs(
      run, np.ones([2, 9]), np.ones([1, 9]), Gaussian(SIGMA), 1000
    )


def _histogram_replay(broken):
  fit = lambda codes: _counts(codes, SINGLES)
  with _patched_marginals(broken):
    return not audit.replay(fit, np.ones([2, 9]), np.ones([1, 9])).passed


def _own_statistics(x, **unused_kwargs):
  return mechanisms.normalization.Normalization(x.mean(0), x.std(0))


def _statistics_replay(broken):
  """Columns are standardized, and a histogram of their signs is released."""
  normalize = _own_statistics if broken else mechanisms.private_normalization

  def fit(x):
    ledger, randomness = _ledger(), Randomness()
    found = normalize(
      x,
      bound=40.0,
      epsilon=1.0,
      num_examples=10,
      ledger=ledger,
      randomness=randomness,
    )
    codes = (x > found.mean).astype(int)
    return found, _counts(codes, ((0,),), randomness, ledger)

  return not audit.replay(fit, ROWS, ROWS[:-1]).passed


class FreeQueries(pate.GNMax):
  """Charges the first query of a call alone."""

  def _charged(self, event, arrays, count, **facts):
    return super()._charged(event, arrays, 1, **facts)


QUERIES = 64
# 200 teachers, of whom one changes the vote.
TIE, MOVED = ([100, 100], [99, 101])


def _answers(broken, votes, ledger):
  aggregator = (FreeQueries if broken else pate.GNMax)(
    4.0, num_teachers=200, num_classes=2, ledger=ledger
  )
  return aggregator.query([votes] * QUERIES)


def _free_queries(broken):
  claim = _ledger()
  _answers(broken, TIE, claim)
  run = lambda votes, runs: np.array(
    [_answers(broken, votes, _ledger()).mean() for _ in range(runs)]
  )
  return _many_runs(run, TIE, MOVED, claim, 1000)


def _free_queries_replay(broken):
  fit = lambda votes: _answers(broken, votes, _ledger())
  return not audit.replay(fit, TIE, MOVED).passed


def _early_stopping_replay(broken):
  """Ends when the loss is low: that of the rows, or the released one."""

  def fit(rows):
    ledger, optimizer = _ledger(), _optimizer(loss_bound=1.0)
    kernel = tf.Variable(tf.ones([3, 1]))
    for i in range(6):
      ledger.charge(Gaussian(SIGMA), label=f'step {i}')
      mean, loss = _step(optimizer, rows, kernel=kernel)
      if broken:
        loss = np.mean(rows @ kernel.numpy())
      kernel.assign_sub(0.1 * mean[:, None])
      if loss < -0.5:
        break
    return kernel.numpy()

  return not audit.replay(fit, ROWS, ROWS[:-1]).passed


@dataclasses.dataclass(frozen=True)
class Bug:
  """A bug, and the audits of it: functions of whether the code is broken.

  Attributes:
    patched: what is patched, and into what.
    found: the audits that find it, by kind; they find nothing in our code.
    missed: the audits that were run and do not find it.
  """

  patched: str
  found: dict[str, Callable[[bool], bool]]
  missed: dict[str, Callable[[bool], bool]] = dataclasses.field(
    default_factory=dict
  )


BUGS = {
  'no clipping': Bug(
    '`gradients.Flat` sums gradients as they are',
    {
      'one run': _clipping(NoClip, _canaries_of_a_step),
      'replay': _clipping(NoClip, _replay_of_a_step),
    },
  ),
  'clipping after the mean': Bug(
    '`gradients.Flat` clips the mean gradient of the batch',
    {'replay': _clipping(ClipOfTheMean, _replay_of_a_step)},
  ),
  'noise per replica': Bug(
    'the noise source of `DPKerasSGD`: each of 4 replicas adds noise of a '
    'quarter of the standard deviation',
    {'many runs': _per_replica, 'replay': _per_replica_replay},
  ),
  'realised batch size': Bug(
    '`DPKerasSGD` divides by the number of rows in the batch',
    {'many runs': _realised, 'replay': _realised_replay},
  ),
  'shuffled batches': Bug(
    '`PoissonSampler` shuffles once and goes through the rows in that order; '
    'charged as Poisson',
    {'one run': _shuffled},
  ),
  'batch normalization': Bug(
    'a `PrivateModel` with `BatchNormalization`; in the replay a loss of '
    '`DPKerasSGD`, where no check refuses it',
    {'replay': _batch_norm_replay, 'guard': _batch_norm_guard},
  ),
  'reused noise': Bug(
    'the noise source of `DPKerasSGD` gives every step the same noise; for the '
    'guard, two `noisy_marginals` with one secret and one label',
    {'many runs': _reused, 'guard': _reused_guard},
    {'replay': _reused_replay},
  ),
  'wrong sensitivity of a histogram': Bug(
    '`noisy_marginals` of 9 columns has the noise of one',
    {'many runs': _histogram, 'replay': _histogram_replay},
  ),
  'statistics of the private data': Bug(
    'the mean of the rows in place of `private_normalization`',
    {'replay': _statistics_replay},
  ),
  'free queries': Bug(
    '`pate.GNMax` charges the first of 64 queries',
    {'many runs': _free_queries, 'replay': _free_queries_replay},
  ),
  'seeds': Bug(
    '`noisy_marginals` draws from a seed that the attacker knows',
    {'many runs': _seeds},
    {'replay': _seeds_replay},
  ),
  'early stopping': Bug(
    'steps of `DPKerasSGD` end when the loss of the rows is low, in place of '
    'the released loss',
    {'replay': _early_stopping_replay},
  ),
}


def _cases(which):
  return [
    pytest.param(check, id=f'{name}, {kind}')
    for name, bug in BUGS.items()
    for kind, check in getattr(bug, which).items()
  ]


@pytest.mark.parametrize('check', _cases('found'))
def test_finds_the_bug_and_nothing_without_it(check):
  assert check(True)
  assert not check(False)


@pytest.mark.parametrize('check', _cases('missed'))
def test_what_an_audit_does_not_find(check):
  assert not check(True)


def table() -> str:
  """Returns the table of docs/understand/auditing.md."""
  lines = [
    f'| bug | what is patched | {" | ".join(KINDS)} |',
    '|---|---|' + '---|' * len(KINDS),
  ]
  for name, bug in BUGS.items():
    marks = [
      'finds it' if k in bug.found else 'misses it' if k in bug.missed else ''
      for k in KINDS
    ]
    cells = ' | '.join([name, bug.patched, *marks])
    lines.append(f'| {cells} |'.replace('  ', ' '))
  return '\n'.join(lines) + '\n'


_TABLE = re.compile(r'\| bug \|.*\n(?:\|.*\n)*')


def test_there_are_twelve_and_each_is_found():
  assert len(BUGS) == 12
  for bug in BUGS.values():
    assert bug.found and not bug.found.keys() & bug.missed.keys()
    assert {*bug.found, *bug.missed} <= {*KINDS}


def test_the_table_is_that_of_the_cases():
  found = _TABLE.findall(PAGE.read_text(encoding='utf-8'))
  assert found == [table()], 'run python -m tests.audit.broken_test'


if __name__ == '__main__':
  text, count = _TABLE.subn(
    lambda unused_match: table(), PAGE.read_text(encoding='utf-8')
  )
  assert count == 1, f'{PAGE} has {count} tables of bugs; it must have one.'
  PAGE.write_text(text, encoding='utf-8')
