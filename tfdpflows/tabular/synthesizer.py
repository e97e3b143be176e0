"""A private density of a table, and synthetic rows from it."""

from __future__ import annotations

import dataclasses
import os
import shutil

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting, flows, gradients, mechanisms
from tfdpflows.plan import TrainingPlan
from tfdpflows.tabular import model_directory, work_directory
from tfdpflows.tabular.density import TableDensity, TableModel
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.hyperparameters import Hyperparameters
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.training import train

# The share of delta that private bounds may use; Gaussian noise and sampling
# need most of it.
_BOUNDS_DELTA_SHARE = 0.1


class TabularSynthesizer:
  """Learns the joint density of a mixed table under differential privacy.

  Every column's distribution is measured by a noisy histogram and made
  standard normal by its CDF; a flow of autoregressive splines, trained with
  DP-SGD, learns how the columns hang together. Afterwards the model's columns
  are matched to the measured ones again.

  #### Formal guarantee

  What `fit` leaves behind (the model, samples, log-densities of rows that are
  not private, the progress it shows) is (epsilon, delta)-differentially
  private under adding or removing one row. Schema and number of rows count as
  public. Every mechanism is in the `ledger`, charged before it ran. A `seed`,
  log-densities of private rows, and floating-point attacks on the noise are
  outside of it.

  Args:
    schema: a `TableSchema`. Its bounds and categories count as public, except
      what is marked as read off the data: that is refused, or paid for.
    epsilon: the budget, with `delta`, for all that `fit` does.
    delta: see `epsilon`; should be well below one over the number of rows.
    bounds_epsilon: what private bounds may cost, out of `epsilon`, where the
      schema is a draft.
    accountant: name of the accountant.
    out_of_range: 'error' refuses values that the schema does not declare,
      'clip' moves them.
    seed: for tests and papers: makes everything reproducible, and the result
      not private against anyone who knows the seed.
    **hyperparameters: see `Hyperparameters`.

  Raises:
    ValueError: for arguments out of range.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer
  >>> schema = TableSchema([
  ...   Field('age', 'integer', minimum=0, maximum=99, required=True),
  ...   Field('sex', 'string', enum=('f', 'm'), required=True),
  ... ])
  >>> rng = np.random.default_rng(0)
  >>> table = pd.DataFrame({
  ...   'age': rng.integers(20, 60, 1000), 'sex': rng.choice(['f', 'm'], 1000)})
  >>> synthesizer = TabularSynthesizer(schema, epsilon=1., delta=1e-5, epochs=1)
  >>> synthesizer.fit(table, progress=False).sample(3).shape
  (3, 2)
  >>> synthesizer.ledger.epsilon() <= 1.
  True
  """

  def __init__(
    self,
    schema,
    epsilon=1.0,
    delta=1e-5,
    *,
    bounds_epsilon=None,
    accountant='pld',
    out_of_range='error',
    seed=None,
    **hyperparameters,
  ):
    self.schema = schema
    self.budget = accounting.PrivacyBudget(epsilon, delta)
    self.accountant = accountant
    accounting.create_accountant(accountant)  # Refuses a name that is none.
    if out_of_range not in ('error', 'clip'):
      raise ValueError(
        f"out_of_range is {out_of_range!r}; it must be 'error' or 'clip'."
      )
    self.out_of_range = out_of_range
    if bounds_epsilon is not None and not 0 < bounds_epsilon < epsilon:
      raise ValueError(
        f'bounds_epsilon is {bounds_epsilon}; it is a part of epsilon and '
        f'must be between 0 and {epsilon}.'
      )
    self.bounds_epsilon = bounds_epsilon
    self.seed = seed
    self._overrides = hyperparameters
    Hyperparameters.for_table(1, 1, **hyperparameters)
    self.hyperparameters = None
    self.ledger = None
    self._earlier_ledgers = []
    self._num_rows = None
    self._sampling = None
    self._marginals = None
    self._density = None

  def fit(self, df, work_dir=None, resume=False, progress=True):
    """Fits the density.

    Args:
      df: `DataFrame` with the columns of the schema.
      work_dir: folder that does not exist yet, for the ledger and for
        checkpoints; it holds the secret that all noise derives from, until
        the caller deletes it. Without one all is in memory.
      resume: go on with what an interrupted fit of the same table left in
        `work_dir`. Steps that were paid are replayed with the same
        randomness, not paid again.
      progress: whether to show a progress bar.

    Returns:
      The synthesizer.

    Raises:
      ValueError: naming the column and row that the schema does not allow; for
        a draft schema without `bounds_epsilon`; for a synthesizer that is
        fitted.
      BudgetExceededError: if the budget is too small to do anything.
      LedgerError: if the ledger in `work_dir` was edited.
    """
    if self.ledger is not None:
      raise ValueError(
        'This synthesizer is fitted, its budget spent. Make a new one; on the '
        'same rows both budgets count.'
      )
    if self.schema.is_draft and self.bounds_epsilon is None:
      column, marks = next(iter(self.schema.draft_marks().items()))
      raise ValueError(
        f'The schema is a draft: of column {column!r}, {", ".join(marks)} '
        'came from the data. Replace them by public knowledge and remove the '
        'marks, or pay for private bounds with bounds_epsilon.'
      )
    table = self.schema.validate(df, self.out_of_range)
    self.hyperparameters = Hyperparameters.for_table(
      len(table), len(self.schema.fields), **self._overrides
    )
    work = work_directory.WorkDirectory(
      work_dir,
      resume=resume,
      settings=self._settings(len(table)),
      table=table,
      seed=self.seed,
      budget=self.budget,
      accountant=self.accountant,
    )
    self._num_rows = len(table)
    self.ledger = work.ledger
    self._earlier_ledgers = work.earlier_ledgers
    spent = []
    if self.schema.is_draft:
      delta = self.budget.delta * _BOUNDS_DELTA_SHARE
      spent = [mechanisms.bounds_event(self.schema, self.bounds_epsilon, delta)]
      self.schema = mechanisms.private_bounds(
        table,
        self.schema,
        self.bounds_epsilon,
        delta,
        work.randomness.numpy('bounds'),
        self.ledger,
        resume=resume,
      )
      table = self.schema.validate(table, 'clip')
    encoder = TableEncoder(self.schema)
    codes = encoder.encode(table)
    marginal_noise = self._marginal_noise(spent)
    plan = self._plan(spent, marginal_noise, work.randomness)
    histograms = mechanisms.noisy_histograms(
      codes,
      encoder.columns,
      marginal_noise,
      work.randomness,
      self.ledger,
      resume=resume,
    )
    self._marginals = [
      {
        'name': histogram.name,
        'edges': histogram.edges.tolist(),
        'probabilities': histogram.probabilities().tolist(),
      }
      for histogram in histograms
    ]
    seed = int(work.randomness.numpy('weights').integers(2**31))
    self._density = self._make_density(seed)
    if len(encoder.columns) > 1:  # One column depends on nothing.
      self._sampling = plan.sampler.describe()
      model = TableModel(
        self._density,
        work.randomness.tensorflow('dequantization'),
        self.hyperparameters.ema_momentum,
      )
      train(
        model,
        plan,
        codes,
        learning_rate=self.hyperparameters.learning_rate,
        loss_bound=self.hyperparameters.loss_bound,
        folder=work.checkpoints,
        progress=progress,
      )
      rng = work.randomness.numpy('match')
      self._density, matched = self._density.with_matched_marginals(rng)
      for marginal, probabilities in zip(self._marginals, matched):
        marginal['probabilities'] = probabilities
    return self

  def _marginal_noise(self, spent):
    """Noise multiplier of the marginals: their share of a Gaussian's budget."""
    whole = accounting.calibrate_noise_multiplier(
      dp_accounting.GaussianDpEvent,
      self.budget,
      spent=dp_accounting.ComposedDpEvent(spent) if spent else None,
      accountant=self.accountant,
    )
    return whole / np.sqrt(self.hyperparameters.marginal_share)

  def _plan(self, spent, marginal_noise, randomness):
    """The plan that spends what the marginals leave."""
    marginals = dp_accounting.GaussianDpEvent(marginal_noise)
    return TrainingPlan.for_epsilon(
      epsilon=self.budget.epsilon,
      delta=self.budget.delta,
      num_examples=self._num_rows,
      expected_batch_size=self.hyperparameters.expected_batch_size,
      epochs=self.hyperparameters.epochs,
      clipping=gradients.Flat(self.hyperparameters.l2_norm_clip),
      accountant=self.accountant,
      spent=dp_accounting.ComposedDpEvent([*spent, marginals]),
      ledger=self.ledger,
      randomness=randomness,
    )

  def _make_density(self, seed=None):
    latent = flows.neural_spline_flow(
      len(self.schema.fields),
      self.hyperparameters.num_blocks,
      self.hyperparameters.hidden_units,
      num_bins=self.hyperparameters.num_bins,
      seed=seed,
    )
    return TableDensity(
      TableEncoder(self.schema).columns,
      [m['edges'] for m in self._marginals],
      [m['probabilities'] for m in self._marginals],
      latent,
    )

  def _settings(self, num_rows):
    """What a resumed fit must agree with."""
    return {
      'schema': self.schema.to_dict(),
      'epsilon': self.budget.epsilon,
      'delta': self.budget.delta,
      'bounds_epsilon': self.bounds_epsilon,
      'accountant': self.accountant,
      'out_of_range': self.out_of_range,
      'seed': self.seed,
      'num_rows': num_rows,
      'hyperparameters': dataclasses.asdict(self.hyperparameters),
    }

  def _check_fitted(self):
    if self._density is None:
      raise ValueError('The synthesizer is not fitted yet: call fit(df) first.')

  def sample(self, num_rows, seed=None):
    """Draws synthetic rows.

    Args:
      num_rows: number of rows, 0 or more.
      seed: for rows that can be drawn again; `None` for fresh ones.

    Returns:
      A `DataFrame` with the columns, types and values of the schema.
    """
    self._check_fitted()
    if num_rows != int(num_rows) or num_rows < 0:
      raise ValueError(f'num_rows is {num_rows}; it must be an integer >= 0.')
    codes = self._density.sample(int(num_rows), np.random.default_rng(seed))
    return TableEncoder(self.schema).decode(codes)

  def log_prob(self, df):
    """Returns the log-density of rows, in nats.

    Categories, integers and missing values count with their probability,
    other numbers with their density in the units of the column. Probabilities
    are integrals over cells, estimated from 16 fixed random points each. The
    result for private rows is not private.

    Args:
      df: `DataFrame` with the columns of the schema.

    Returns:
      float32 array `[n]`.
    """
    self._check_fitted()
    table = self.schema.validate(df, self.out_of_range, fitting=False)
    codes = TableEncoder(self.schema).encode(table)
    return self._density.log_prob(codes, np.random.default_rng(0))

  def privacy_statement(self):
    """Returns the `PrivacyStatement` of all that the fit spent."""
    if self.ledger is None:
      raise ValueError('Nothing was spent yet: call fit(df) first.')
    h = self.hyperparameters
    notes = [
      f'Clipping: {gradients.Flat(h.l2_norm_clip)!r}. Each step releases, '
      'within the same mechanism, the mean loss of its batch too (each row '
      f'clipped to +-{h.loss_bound:g} nats).'
    ]
    notes += [
      work_directory.describe_earlier(path) for path in self._earlier_ledgers
    ]
    extra = {} if self._sampling is None else {'sampling': self._sampling}
    return accounting.privacy_statement(
      self.ledger, num_examples=self._num_rows, notes=notes, **extra
    )

  def save(self, model_dir, overwrite=False):
    """Writes the model to a folder: complete, or not at all.

    Args:
      model_dir: the folder. It gets the schema, the ledger, the statement,
        the weights, and a SavedModel that needs no tfdpflows.
      overwrite: whether to replace a model that is there. Its ledger is kept
        in the new one, since what it spent stays spent.

    Raises:
      FileExistsError: if `model_dir` exists and may not be replaced.
    """
    self._check_fitted()
    with model_directory.written_aside(model_dir, overwrite) as folder:
      self.schema.to_json(folder.path('schema.json'))
      folder.add_ledger(self.ledger, self._earlier_ledgers)
      tf.train.Checkpoint(flow=self._density.latent).write(
        folder.path('weights', 'flow')
      )
      self._density.export(folder.path('saved_model'))
      folder.write_json(
        'model.json',
        {
          **model_directory.header(folder.ledger_digest()),
          'settings': self._settings(self._num_rows),
          'sampling': self._sampling,
          'marginals': self._marginals,
        },
      )
      statement = self.privacy_statement()
      folder.write_json('statement.json', statement.to_dict())
      folder.write_text('statement.txt', f'{statement}\n')

  @classmethod
  def load(cls, model_dir):
    """Reads a model that `save` wrote.

    Raises:
      FileNotFoundError: if there is no model.
      LedgerError: if its ledger is missing or was edited.
      ValueError: if another version wrote it.
    """
    model = model_directory.read_model(model_dir)
    settings = model['settings']
    self = cls(
      TableSchema.from_json(os.path.join(model_dir, 'schema.json')),
      settings['epsilon'],
      settings['delta'],
      bounds_epsilon=settings['bounds_epsilon'],
      accountant=settings['accountant'],
      out_of_range=settings['out_of_range'],
      seed=settings['seed'],
      **settings['hyperparameters'],
    )
    self.hyperparameters = Hyperparameters(**settings['hyperparameters'])
    self.ledger, self._earlier_ledgers = model_directory.read_ledger(
      model_dir, model
    )
    self._num_rows = settings['num_rows']
    self._sampling = model['sampling']
    self._marginals = model['marginals']
    self._density = self._make_density()
    weights = os.path.join(model_dir, 'weights', 'flow')
    checkpoint = tf.train.Checkpoint(flow=self._density.latent)
    checkpoint.read(weights).assert_existing_objects_matched()
    return self


def fit_to_directory(
  table,
  schema,
  model_dir,
  *,
  epsilon,
  delta,
  overwrite=False,
  resume=False,
  progress=True,
  **kwargs,
):
  """Fits a synthesizer and writes it to a folder, in the way of a long job.

  Until the model is complete, all work stands in `model_dir + '.partial'`:
  ledger, checkpoints, and the secret of the noise. A fit that was killed goes
  on from there with `resume`, without paying twice.

  Args:
    table: `DataFrame` of private rows.
    schema: `TableSchema`.
    model_dir: the folder to write.
    epsilon: see `TabularSynthesizer`.
    delta: see `TabularSynthesizer`.
    overwrite: whether to replace a model that exists, and to drop unfinished
      work. The ledgers of both are kept.
    resume: whether to go on with unfinished work.
    progress: whether to show a progress bar.
    **kwargs: further arguments of `TabularSynthesizer`.

  Returns:
    The fitted `TabularSynthesizer`, as loaded from `model_dir`.

  Raises:
    FileExistsError: if the model or unfinished work exists and neither
      `overwrite` nor `resume` says what to do with it.
    FileNotFoundError: if there is nothing to resume.
  """
  model_dir = os.path.normpath(model_dir)
  work_dir = f'{model_dir}.partial'
  model_directory.check_target(model_dir, overwrite)
  synthesizer = TabularSynthesizer(schema, epsilon, delta, **kwargs)
  if overwrite and not resume:
    work_directory.drop(work_dir)
  synthesizer.fit(table, work_dir, resume=resume, progress=progress)
  synthesizer.save(model_dir, overwrite=overwrite)
  synthesizer.ledger.close()
  shutil.rmtree(work_dir)
  return TabularSynthesizer.load(model_dir)
