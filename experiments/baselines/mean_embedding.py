"""Noisy mean embedding of a labelled table, as DP-MERF releases it."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from tfdpflows.evaluation import discretization
from tfdpflows.mechanisms.releases import charge_release

_BLOCK = 4096


@dataclasses.dataclass(frozen=True)
class Blocks:
  """How the columns of a table lie in the inputs of the features.

  Attributes:
    numbers: fields that become one number in [0, 1] each, by public bounds.
    groups: `(field, size)`: a one-hot block each. Of a categorical field, one
      place per category and one for missing values if it may have them; of a
      numeric field that may be missing, (present, missing).
    target: the field of the labels.
    num_classes: number of labels, one for missing ones included.
  """

  numbers: tuple
  groups: tuple
  target: object
  num_classes: int

  @classmethod
  def of(cls, schema, target):
    """Returns the blocks of a schema.

    Raises:
      ValueError: if `target` is not a column with categories, or the only one.
    """
    if target not in schema.names:
      raise ValueError(
        f'The target {target!r} is not a column of the schema. Its columns '
        f'are: {", ".join(schema.names)}.'
      )
    label = schema[target]
    if label.categories is None:
      raise ValueError(
        f'The target {target!r} is a range of numbers; DP-MERF learns a '
        'distribution for each label. Choose a column with an enum.'
      )
    rest = [field for field in schema if field.name != target]
    if not rest:
      raise ValueError(
        f'The target {target!r} is the only column; add one to learn.'
      )
    numbers = tuple(f for f in rest if f.is_numeric)
    groups = [
      (f, len(f.categories) + (not f.required))
      for f in rest
      if not f.is_numeric
    ]
    groups += [(f, 2) for f in numbers if not f.required]
    num_classes = len(label.categories) + (not label.required)
    return cls(numbers, tuple(groups), label, num_classes)

  def encode(self, table):
    """Returns a validated table as arrays.

    Args:
      table: DataFrame `[n, d]`.

    Returns:
      `(numbers [n, k] float64 in [0, 1], codes [n, g] int64, labels [n]
      int64)`. A missing number is in the middle of its range.
    """
    numbers = [_scaled(table[f.name], f) for f in self.numbers]
    codes = [_codes(table[f.name], f, size) for f, size in self.groups]
    n = len(table)
    return (
      np.stack(numbers, 1) if numbers else np.zeros([n, 0]),
      np.stack(codes, 1) if codes else np.zeros([n, 0], np.int64),
      _labels(table[self.target.name], self.target, self.num_classes),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureMap:
  """The features `phi` of a row, of l2 norm at most 1.

  Numbers get random Fourier features `sqrt(2 / D) (cos(w x), sin(w x))` of a
  Gaussian kernel, whose norm is 1; one-hot blocks are divided by the root of
  their number, which makes their norm 1. Where there are both, the two are
  stacked and divided by `sqrt(2)`.

  Attributes:
    blocks: the `Blocks`.
    frequencies: float64 `[k, D / 2]`, the rows w; public.
  """

  blocks: Blocks
  frequencies: np.ndarray

  @classmethod
  def draw(cls, blocks, num_features, lengthscale, rng):
    """Returns a map with random frequencies.

    Args:
      blocks: the `Blocks`.
      num_features: number D of features of the numbers, even.
      lengthscale: of the Gaussian kernel on [0, 1]^k. `None` is half the
        median distance of two uniform points, `sqrt(k / 6) / 2`: the paper
        takes the median over the rows, which costs privacy and is not paid
        for there.
      rng: `np.random.Generator`.
    """
    size = len(blocks.numbers)
    if lengthscale is None:
      lengthscale = math.sqrt(max(size, 1) / 6) / 2
    frequencies = rng.normal(size=[size, num_features // 2]) / lengthscale
    return cls(blocks, frequencies)

  @property
  def scales(self):
    """What the features of numbers and the one-hot blocks are multiplied by."""
    both = math.sqrt(2) if self.blocks.numbers and self.blocks.groups else 1.0
    return (
      1 / math.sqrt(max(self.frequencies.shape[1], 1)) / both,
      1 / math.sqrt(max(len(self.blocks.groups), 1)) / both,
    )

  @property
  def size(self):
    """Number of features."""
    fourier = 2 * self.frequencies.shape[1] if self.blocks.numbers else 0
    return fourier + sum(size for _, size in self.blocks.groups)

  def __call__(self, numbers, codes):
    """Returns the features `[n, size]` of rows as of `Blocks.encode`."""
    fourier_scale, one_hot_scale = self.scales
    parts = []
    if self.blocks.numbers:
      angles = numbers @ self.frequencies
      parts += [np.cos(angles) * fourier_scale, np.sin(angles) * fourier_scale]
    for i, (_, size) in enumerate(self.blocks.groups):
      parts.append((codes[:, i, None] == np.arange(size)) * one_hot_scale)
    return np.concatenate(parts, axis=1)


def sums_by_class(features, numbers, codes, labels):
  """Returns what is noised: `(counts [c], embeddings [c, f])`, sums of rows."""
  num_classes = features.blocks.num_classes
  counts = np.bincount(labels, minlength=num_classes).astype(np.float64)
  sums = np.zeros([num_classes, features.size])
  for start in range(0, len(labels), _BLOCK):
    rows = slice(start, start + _BLOCK)
    one_hot = labels[rows, None] == np.arange(num_classes)
    sums += one_hot.T.astype(np.float64) @ features(numbers[rows], codes[rows])
  return counts, sums


def noisy_embedding(
  features,
  numbers,
  codes,
  labels,
  noise_multiplier,
  *,
  count_share,
  ledger,
  randomness,
  label='embedding',
):
  """Releases the number of rows and the sum of features of every class.

  Args:
    features: a `FeatureMap`.
    numbers: see `Blocks.encode`.
    codes: see `Blocks.encode`.
    labels: see `Blocks.encode`.
    noise_multiplier: of the joint Gaussian release.
    count_share: share of its precision that goes to the counts, in (0, 1).
    ledger: `PrivacyLedger` that is charged first.
    randomness: `tfdpflows.randomness.Randomness`.
    label: label of the charge, and stream of the noise.

  Returns:
    `(counts [c], embeddings [c, f])`, float64, with noise.

  Raises:
    BudgetExceededError: if the ledger refuses the charge.

  #### Formal guarantee

  A row of class y adds `(e_y / s_0, e_y phi(x)' / s_1)` to the two sums in
  units of their noise, with `|phi(x)| <= 1`: `1 / s_0^2 + 1 / s_1^2` at most
  in squared l2 norm, which is `1 / noise_multiplier^2` by
  `s_0^2 = noise_multiplier^2 / count_share` and
  `s_1^2 = noise_multiplier^2 / (1 - count_share)`. Under adding or removing a
  row the release costs `GaussianDpEvent(noise_multiplier)`; replacing one
  moves the sums by at most twice that. Noise is drawn in floating point.
  """
  randomness = charge_release(
    ledger,
    dp_accounting.GaussianDpEvent(noise_multiplier),
    label=label,
    randomness=randomness,
    facts={
      'release': 'mean embedding by class',
      'noise_multiplier': noise_multiplier,
      'count_share': count_share,
      'frequencies': features.frequencies.shape,
    },
    arrays=[numbers, codes, labels],
  )
  rng = randomness.numpy(label)
  counts, sums = sums_by_class(features, numbers, codes, labels)
  count_std = noise_multiplier / math.sqrt(count_share)
  sum_std = noise_multiplier / math.sqrt(1 - count_share)
  return (
    counts + count_std * rng.normal(size=counts.shape),
    sums + sum_std * rng.normal(size=sums.shape),
  )


def bounds(field):
  """Returns lowest and highest declared value of a numeric field."""
  declared = discretization.declared_values(field)
  if declared:
    return float(declared[0]), float(declared[-1])
  return float(field.minimum), float(field.maximum)


def _scaled(series, field):
  low, high = bounds(field)
  values = discretization.numbers(series)
  values = (values - low) / (high - low) if high > low else values * 0
  # What a schema does not allow is bounded all the same.
  return np.clip(np.where(np.isfinite(values), values, 0.5), 0, 1)


def _codes(series, field, size):
  """Codes of one group in `[0, size)`, the last one for missing values."""
  if not field.is_numeric:
    return _last_if_missing(discretization.category_codes(series, field), size)
  present = np.isfinite(discretization.numbers(series))
  return np.where(present, 0, 1)


def _labels(series, field, size):
  """Codes of the target in `[0, size)`, the last one for missing values."""
  if not field.is_numeric:
    return _last_if_missing(discretization.category_codes(series, field), size)
  place = {value: code for code, value in enumerate(field.categories)}
  codes = series.map(place).astype('float64').fillna(-1).to_numpy()
  return _last_if_missing(codes.astype(np.int64), size)


def _last_if_missing(codes, size):
  return np.where(codes < 0, size - 1, codes)
