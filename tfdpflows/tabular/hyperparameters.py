"""What a fit can be tuned by, and one public formula for the defaults."""

from __future__ import annotations

import dataclasses
import math

from tfdpflows import gradients

# What the models differ in; 'spline' has the defaults of the class.
MODELS = {
  'histogram': {
    'transform': 'histogram',
    'num_blocks': 1,
    'hidden_units': (64,),
    'num_bins': 16,
    'marginal_share': 0.25,
    'epochs': 64.0,
    'l2_norm_clip': 12.0,
    'learning_rate': 0.015,
  },
  'spline': {},
  'hflow': {'num_blocks': 3, 'shared': True, 'linear': 'low_rank'},
}
# More than that is time which large tables do not pay back.
_LARGEST_BATCH, _MOST_STEPS = 4000.0, 1000
_CLIPPING = {
  'flat': gradients.Flat,
  'per_layer': gradients.PerLayer,
  'per_unit': gradients.PerUnit,
  'sparsification': gradients.StochasticSparsification,
}
_CHOICES = {
  'transform': ('spline', 'histogram'),
  'clipping': tuple(_CLIPPING),
  'linear': ('none', 'low_rank', 'lu'),
  'dequantization': ('uniform', 'variational'),
}


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
  """Everything that decides a fit besides the table, schema and budget.

  Attributes:
    marginal_share: share of the budget (of the squared signal-to-noise ratio)
      that goes to the private marginals; the rest trains the flow.
    transform: what a block does to a column: a 'spline', or a 'histogram' of
      conditional probabilities, of which there is one block.
    num_blocks: autoregressive blocks of the flow.
    hidden_units: width of each hidden layer of a block.
    num_bins: bins of each spline; most bins of an ordered column's histogram.
    expected_batch_size: mean size of a Poisson batch.
    epochs: passes over the table, on average.
    l2_norm_clip: bound of one row's gradient.
    clipping: what is clipped to it: the 'flat' gradient, its parts 'per_layer'
      or 'per_unit', or what 'sparsification' leaves of it.
    sparsity: share of the coordinates that each step drops, for clipping
      'sparsification'.
    learning_rate: of Adam, before it decays along half a cosine.
    ema_momentum: of the average of the weights over the steps.
    loss_bound: bound of one row's loss in the progress that is released, in
      nats.
    shared: whether one network serves all blocks.
    linear: the linear layer before each block: 'none', 'low_rank' or 'lu'.
    rank: of the 'low_rank' one, at most the number of columns.
    dequantization: how points are placed in the cells of discrete columns in
      training and for log-probabilities: 'uniform' or 'variational'.
    num_draws: points per row and step, whose gradients are averaged before
      they are clipped.
    target: name of the column whose dependence on the others matters most, for
      transform 'histogram'. It depends on all others.
    target_weight: how many times its log-probability counts in training.
    matching: whether the trained columns are given the released histograms
      again, for transform 'histogram'.
    guides: how many joint marginals of columns are measured after training,
      where the model is most wrong, and taught to it (`guides.guide`); for
      transform 'histogram'.
    guide_share: share of the budget that goes to them, as `marginal_share`.
  """

  marginal_share: float = 0.15
  transform: str = 'spline'
  num_blocks: int = 2
  hidden_units: tuple = (128, 128)
  num_bins: int = 8
  expected_batch_size: float = 2000.0
  epochs: float = 20.0
  l2_norm_clip: float = 10.0
  clipping: str = 'flat'
  sparsity: float = 0.0
  learning_rate: float = 2e-3
  ema_momentum: float = 0.99
  loss_bound: float = 20.0
  shared: bool = False
  linear: str = 'none'
  rank: int = 1
  dequantization: str = 'uniform'
  num_draws: int = 1
  target: str | None = None
  target_weight: float = 4.0
  matching: bool = True
  guides: int = 0
  guide_share: float = 0.2

  def __post_init__(self):
    hidden_units = tuple(self.hidden_units)
    object.__setattr__(self, 'hidden_units', hidden_units)
    for name in ('marginal_share', 'guide_share'):
      if not 0 < getattr(self, name) < 1:
        raise ValueError(
          f'{name} is {getattr(self, name)}; it must be in (0, 1).'
        )
    if self.guides and self.marginal_share + self.guide_share >= 1:
      raise ValueError(
        f'marginal_share is {self.marginal_share} and guide_share '
        f'{self.guide_share}; they must leave something to train with.'
      )
    if self.guides and not (self.transform == 'histogram' and self.matching):
      raise ValueError(
        f'guides is {self.guides}, with transform {self.transform!r} and '
        f"matching {self.matching}; it takes 'histogram' and matching."
      )
    if not 0 <= self.ema_momentum < 1:
      raise ValueError(
        f'ema_momentum is {self.ema_momentum}; it must be in [0, 1).'
      )
    for name in (
      'expected_batch_size',
      'epochs',
      'l2_norm_clip',
      'learning_rate',
      'loss_bound',
      'target_weight',
    ):
      if not 0 < getattr(self, name) < math.inf:
        raise ValueError(f'{name} is {getattr(self, name)}; it must be > 0.')
    if not hidden_units:
      raise ValueError('hidden_units is empty; give at least one width.')
    for name, choices in _CHOICES.items():
      if getattr(self, name) not in choices:
        raise ValueError(
          f'{name} is {getattr(self, name)!r}; it must be one of {choices}.'
        )
    if not 0 <= self.sparsity < 1:
      raise ValueError(f'sparsity is {self.sparsity}; it must be in [0, 1).')
    if self.sparsity and self.clipping != 'sparsification':
      raise ValueError(
        f'sparsity is {self.sparsity} and clipping {self.clipping!r}; only '
        "clipping='sparsification' drops coordinates."
      )
    if self.target is not None and self.transform != 'histogram':
      raise ValueError(
        f"target is {self.target!r}, which only model='histogram' takes."
      )
    several = self.num_blocks > 1 or self.linear != 'none'
    if self.transform == 'histogram' and several:
      raise ValueError(
        f'num_blocks is {self.num_blocks} and linear {self.linear!r}; '
        "transform='histogram' has one block and no linear layer."
      )
    whole = [
      ('num_blocks', self.num_blocks, 1),
      ('num_bins', self.num_bins, 2),
      ('rank', self.rank, 1),
      ('guides', self.guides, 0),
      ('num_draws', self.num_draws, 1),
    ]
    whole += [('hidden_units', width, 1) for width in hidden_units]
    for name, value, least in whole:
      if value != int(value) or value < least:
        raise ValueError(
          f'{name} is {getattr(self, name)}; it must be whole and at least '
          f'{least}.'
        )

  def clipping_strategy(self):
    """Returns the `gradients.Strategy` of `clipping` and its settings."""
    settings = {}
    if self.clipping == 'sparsification':
      settings['sparsity'] = self.sparsity
    return _CLIPPING[self.clipping](self.l2_norm_clip, **settings)

  @classmethod
  def for_table(cls, num_examples, num_columns, model='histogram', **overrides):
    """Returns the defaults for a table, a function of public sizes alone.

    Args:
      num_examples: number of rows.
      num_columns: number of columns.
      model: 'histogram', 'spline' or 'hflow'.
      **overrides: values that replace the defaults.

    Raises:
      ValueError: for another model, a name that is not a hyper-parameter, or
        a bad value.

    #### Example

    >>> from tfdpflows.tabular.hyperparameters import Hyperparameters
    >>> Hyperparameters.for_table(32_561, 15, epochs=5).epochs
    5
    """
    if model not in MODELS:
      raise ValueError(
        f'model is {model!r}; it must be one of {tuple(MODELS)}.'
      )
    names = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(overrides) - names)
    if unknown:
      raise ValueError(
        f'Unknown hyper-parameters {unknown}; there are {sorted(names)}.'
      )
    # A sixteenth of a small table, so that 16 steps make an epoch at most.
    batch = max(1.0, min(_LARGEST_BATCH, num_examples / 16))
    defaults = {'expected_batch_size': batch}
    found = cls(**{**defaults, **MODELS[model], **overrides})
    if 'epochs' not in overrides:
      most = _MOST_STEPS * found.expected_batch_size / max(num_examples, 1)
      found = dataclasses.replace(found, epochs=min(found.epochs, most))
    if found.linear == 'low_rank' and found.rank > num_columns:
      raise ValueError(
        f'rank is {found.rank}; the table has {num_columns} columns, and it '
        'can be no more than that.'
      )
    return found
