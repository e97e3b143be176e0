"""DP-MERF: a generator that matches a noisy mean embedding of a table.

The strongest private baseline of the DP-HFlow paper, as in F. Harder,
K. Adamczewski and M. Park (2021), *DP-MERF: Differentially Private Mean
Embeddings with Random Features for Practical Privacy-preserving Data
Generation*: random Fourier features of the numbers and one-hot categories,
a mean embedding for each label beside private class counts, one Gaussian
mechanism. What differs from the paper: numbers are scaled by the bounds of the
schema and the length scale follows from their number, where the paper reads
both off the rows without paying; categories are drawn from the generator's
probabilities; everything is charged to a ledger and accounted exactly.
"""

from __future__ import annotations

import dp_accounting
import numpy as np
import pandas as pd

from experiments.baselines import mean_embedding
from experiments.baselines.embedding_generator import EmbeddingGenerator
from tfdpflows import accounting
from tfdpflows.randomness import Randomness

_CHUNK = 20_000


class DPMerf:
  """Synthesizes labelled tables, with the interface of `TabularSynthesizer`.

  #### Formal guarantee

  What `fit` leaves behind is (epsilon, delta)-differentially private under
  adding or removing one row: it depends on the rows through one release of
  `mean_embedding.noisy_embedding` alone, whose proof is there, and through
  their number, which counts as public like the schema. A `seed` and
  floating-point attacks on the noise are outside of it.

  Args:
    schema: a `TableSchema` without marks.
    epsilon: the budget, with `delta`.
    delta: see `epsilon`.
    target: name of the column of labels; it needs an enum.
    accountant: name of the accountant.
    seed: for tests and papers: not private against anyone who knows it.
    num_features: number of random Fourier features, even.
    lengthscale: see `FeatureMap.draw`.
    count_share: share of the precision that goes to the class counts.
    steps: training steps of the generator.
    batch_size: its rows per step.
    hidden_units: its widths.
    learning_rate: of Adam.

  Raises:
    ValueError: for arguments out of range, or a target without an enum.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([
  ...   Field('age', 'integer', minimum=0, maximum=99, required=True),
  ...   Field('sex', 'string', enum=('f', 'm'), required=True)])
  >>> rng = np.random.default_rng(0)
  >>> table = pd.DataFrame({
  ...   'age': rng.integers(20, 60, 500), 'sex': rng.choice(['f', 'm'], 500)})
  >>> model = DPMerf(schema, 1., 1e-5, target='sex', steps=5)
  >>> model.fit(table).sample(3).shape
  (3, 2)
  """

  def __init__(
    self,
    schema,
    epsilon=1.0,
    delta=1e-5,
    *,
    target,
    accountant='pld',
    seed=None,
    num_features=2000,
    lengthscale=None,
    count_share=0.1,
    steps=2000,
    batch_size=1000,
    hidden_units=(256, 256),
    learning_rate=2e-3,
  ):
    if schema.is_draft:
      column = next(iter(schema.draft_marks()))
      raise ValueError(
        f'The schema is a draft: constraints of column {column!r} came from '
        'the data. Replace them by public knowledge and remove the marks.'
      )
    if num_features < 2 or num_features % 2:
      raise ValueError(
        f'num_features is {num_features}; it must be even and at least 2.'
      )
    if lengthscale is not None and not 0 < lengthscale < np.inf:
      raise ValueError(f'lengthscale is {lengthscale}; it must be positive.')
    if not 0 < count_share < 1:
      raise ValueError(f'count_share is {count_share}; it must be in (0, 1).')
    if steps < 1 or batch_size < 1:
      raise ValueError(
        f'steps is {steps} and batch_size {batch_size}; both must be >= 1.'
      )
    self.schema = schema
    self.budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    self.accountant = accountant
    self.seed = seed
    self.ledger = None
    self._blocks = mean_embedding.Blocks.of(schema, target)
    self._num_features = num_features
    self._lengthscale = lengthscale
    self._count_share = count_share
    self._hidden_units = hidden_units
    self._training = {
      'steps': steps,
      'batch_size': batch_size,
      'learning_rate': learning_rate,
    }
    self.num_examples = None
    self._shares = None
    self._generator = None

  def fit(self, df):
    """Releases the embedding and trains the generator on it.

    Args:
      df: `DataFrame` with the columns of the schema.

    Returns:
      The synthesizer.

    Raises:
      ValueError: naming the column and row that the schema does not allow; for
        a synthesizer that is fitted.
    """
    if self.ledger is not None:
      raise ValueError(
        'This synthesizer is fitted, its budget spent. Make a new one; on the '
        'same rows both budgets count.'
      )
    table = self.schema.validate(df)
    randomness = Randomness(self.seed)
    features = mean_embedding.FeatureMap.draw(
      self._blocks,
      self._num_features,
      self._lengthscale,
      randomness.numpy('frequencies'),
    )
    self.ledger = accounting.PrivacyLedger(
      budget=self.budget, accountant=self.accountant
    )
    self.num_examples = len(table)
    counts, sums = mean_embedding.noisy_embedding(
      features,
      *self._blocks.encode(table),
      self.noise_multiplier(),
      count_share=self._count_share,
      ledger=self.ledger,
      randomness=randomness,
    )
    # A class with less than one row has no embedding to speak of.
    counts = np.maximum(counts, 1.0)
    self._shares = counts / counts.sum()
    self._generator = EmbeddingGenerator(
      features,
      self._hidden_units,
      seed=int(randomness.numpy('generator').integers(2**31)),
    )
    embedding = sums / (self._shares * len(table))[:, None]
    self._generator.fit(embedding, **self._training)
    return self

  def noise_multiplier(self):
    """Returns the noise multiplier that the budget allows."""
    return accounting.calibrate_noise_multiplier(
      dp_accounting.GaussianDpEvent, self.budget, accountant=self.accountant
    )

  def sample(self, num_rows, seed=None):
    """Draws synthetic rows.

    Args:
      num_rows: number of rows, 0 or more.
      seed: of the labels and categories; numbers follow the generator.

    Returns:
      A `DataFrame` with the columns, types and values of the schema.
    """
    if self._generator is None:
      raise ValueError('The synthesizer is not fitted yet: call fit(df) first.')
    if num_rows != int(num_rows) or num_rows < 0:
      raise ValueError(f'num_rows is {num_rows}; it must be an integer >= 0.')
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(self._shares), int(num_rows), p=self._shares)
    parts = [
      self._decode(labels[start : start + _CHUNK], rng)
      for start in range(0, max(len(labels), 1), _CHUNK)
    ]
    table = pd.concat(parts, ignore_index=True)
    if not len(table):
      return table
    return self.schema.validate(table, fitting=False)

  def privacy_statement(self):
    """Returns the `PrivacyStatement` of all that the fit spent."""
    if self.ledger is None:
      raise ValueError('Nothing was spent yet: call fit(df) first.')
    return accounting.privacy_statement(
      self.ledger,
      num_examples=self.num_examples,
      sampling='none: every row is used, once',
    )

  def _decode(self, labels, rng):
    numbers, probabilities = self._generator(labels)
    codes = [_draw(part.numpy(), rng) for part in probabilities]
    target = self._blocks.target
    columns = {target.name: _categories(target, labels)}
    for i, field in enumerate(self._blocks.numbers):
      columns[field.name] = _numbers(field, numbers[:, i].numpy())
    for (field, _), code in zip(self._blocks.groups, codes):
      if field.name in columns:
        columns[field.name] = columns[field.name].mask(code == 1)
      else:
        columns[field.name] = _categories(field, code)
    return pd.DataFrame({name: columns[name] for name in self.schema.names})


def _draw(probabilities, rng):
  """Draws a code for every row of `[n, size]`."""
  cumulative = np.cumsum(probabilities, axis=1)
  draws = rng.random([len(cumulative), 1]) * cumulative[:, -1:]
  codes = (cumulative < draws).sum(axis=1)
  return np.minimum(codes, probabilities.shape[1] - 1)


def _categories(field, codes):
  values = np.array([*field.categories, None], dtype=object)
  return pd.Series(values[codes])


def _numbers(field, scaled):
  low, high = mean_embedding.bounds(field)
  values = np.clip(low + (high - low) * scaled.astype(np.float64), low, high)
  if field.enum:
    places = np.sort(np.asarray(field.enum, np.float64))
    middle = (places[1:] + places[:-1]) / 2
    values = places[np.searchsorted(middle, values)]
  elif field.type == 'integer':
    values = np.rint(values)
  return pd.Series(values)
