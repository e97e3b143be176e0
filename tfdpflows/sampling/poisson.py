"""Poisson sampling: every row joins every batch by a coin of its own."""

from __future__ import annotations

import bisect
import itertools

import dp_accounting
import numpy as np

from tfdpflows._checks import check_integer
from tfdpflows.accounting import TruncatedSubsampledGaussianDpEvent
from tfdpflows.accounting.mechanisms import overflow
from tfdpflows.randomness import drawn_below
from tfdpflows.sampling.sampler import Sampler
from tfdpflows.sampling.units import in_words

# A larger probability is a mistake: it costs rows, and privacy where an
# accountant counts it as a failure.
_MAX_OVERFLOW = 1e-3
# A coin for each row takes eight bytes. Of more rows, and where few join, it is
# drawn how many do, and which.
_MOST_COINS, _FEW = 1 << 20, 1 / 8
# Fixed-point digits of the probabilities of sizes, as bits, and of the number
# that is drawn to choose one.
_BITS, _DRAWN_BITS = 200, 256


class PoissonSampler(Sampler):
  """Draws each row independently with one probability.

  The size of a batch is random. Batches are padded with rows of zeros and
  weight 0 to a multiple of `chunk`, so that a training step is compiled for few
  shapes. `max_batch_size` bounds the memory of a step: of a larger batch a
  uniformly random subset of that size is kept.

  #### Formal guarantee

  A Gaussian mechanism on a batch drawn like this costs
  `PoissonSampledDpEvent(sampling_probability, GaussianDpEvent(...))` under
  adding or removing one row. With a cap it costs
  `TruncatedSubsampledGaussianDpEvent`: more in the batches that overflow, where
  the row that differs takes the place of another one. The number of rows is
  taken to be public, since it sets the probability.

  Args:
    num_examples: number of rows n.
    sampling_probability: probability of a row to join a batch.
    chunk: what batches are padded to a multiple of.
    max_batch_size: the cap, or None. Eight standard deviations above the
      expected batch size it costs next to nothing.

  Raises:
    ValueError: for values out of range.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import sampling
  >>> sampler = sampling.PoissonSampler(
  ...   num_examples=1000, sampling_probability=.1, chunk=64)
  >>> rng = np.random.default_rng(0)
  >>> rows, weights = sampler.batch(np.ones([1000, 3]), rng)
  >>> len(rows) % 64, bool(rows.sum() == 3 * weights.sum())
  (0, True)
  """

  def __init__(
    self,
    *,
    num_examples: int,
    sampling_probability: float,
    chunk: int | None = None,
    max_batch_size: int | None = None,
  ):
    self.num_examples = check_integer('num_examples', num_examples)
    self.sampling_probability = checked_probability(sampling_probability)
    self.chunk = checked_chunk(chunk, self.expected_batch_size)
    if max_batch_size is not None:
      max_batch_size = check_integer('max_batch_size', max_batch_size)
    self.max_batch_size = max_batch_size
    self._sizes = None
    if max_batch_size is not None:
      self._check_cap()

  def _check_cap(self):
    cap, overflow = self.max_batch_size, self.overflow_probability
    if cap < self.expected_batch_size or overflow > _MAX_OVERFLOW:
      n, q = self.num_examples, self.sampling_probability
      enough = self.expected_batch_size + 8 * np.sqrt(n * q * (1 - q))
      raise ValueError(
        f'max_batch_size is {cap}, and batches are as large with probability '
        f'{overflow:.3g} (expected size {self.expected_batch_size:g}). That '
        'costs rows, and privacy; give a cap such as '
        f'{int(np.ceil(enough)) + 1}, or none.'
      )

  @property
  def expected_batch_size(self) -> float:
    """The public constant that a noised sum is divided by."""
    return self.num_examples * self.sampling_probability

  @property
  def steps_per_epoch(self) -> int:
    """Batches in which a row is drawn once on average."""
    return max(1, round(1 / self.sampling_probability))

  @property
  def overflow_probability(self) -> float:
    """Probability that a batch has to be cut, at most; 0 without a cap."""
    if self.max_batch_size is None:
      return 0.0
    return overflow(self.event(1.0))

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of one noised sum over one batch."""
    if self.max_batch_size is not None:
      return TruncatedSubsampledGaussianDpEvent(
        self.num_examples,
        self.sampling_probability,
        self.max_batch_size,
        noise_multiplier,
      )
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.PoissonSampledDpEvent(
      self.sampling_probability, gaussian
    )

  def describe(self, unit: str | None = None) -> str:
    """Returns how batches are drawn, in words.

    Args:
      unit: what an example is; a row by default.
    """
    one, all_ = in_words(unit)
    words = (
      f'Poisson: each {one} joins each batch independently with probability '
      f'{self.sampling_probability:.6g}, drawn afresh for every step '
      f'(expected batch {self.expected_batch_size:.6g} of '
      f'{self.num_examples} {all_})'
    )
    if self.max_batch_size is not None:
      words += (
        f'; of more than {self.max_batch_size} {all_} a random subset of that '
        f'size is kept, which happens with probability '
        f'{self.overflow_probability:.3g} and is in the privacy cost'
      )
    return words

  def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws one batch, as numbers of rows.

    Args:
      rng: `np.random.Generator`.

    Returns:
      int64 `[padded]`, 0 for padding, and weights float32 `[padded]`, 1 for
      drawn rows and 0 for padding. `padded` is at least `chunk`, and at most
      `max_batch_size` rounded up to a multiple of it.
    """
    drawn = self._joining(rng)
    if self.max_batch_size is not None and len(drawn) > self.max_batch_size:
      drawn = rng.choice(
        drawn, self.max_batch_size, replace=False, shuffle=False
      )
    return padded(drawn, self.chunk)

  def batch(
    self, data: np.ndarray, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws one batch.

    Args:
      data: array `[num_examples, ...]`.
      rng: `np.random.Generator`.

    Returns:
      rows `[padded, ...]`, zeros for padding, and weights, see `draw`.
    """
    numbers, weights = self.draw(rng)
    rows = np.zeros(numbers.shape + data.shape[1:], data.dtype)
    rows[weights > 0] = data[numbers[weights > 0]]
    return rows, weights

  def _joining(self, rng):
    """Returns the numbers of the rows that join a batch, increasing."""
    n, probability = self.num_examples, drawn_below(self.sampling_probability)
    if n <= _MOST_COINS or probability > _FEW:
      return np.flatnonzero(rng.random(n) < probability)
    if self._sizes is None:
      self._sizes = BinomialSizes(n, probability)
    return subset(n, self._sizes.draw(rng), rng)


def checked_probability(sampling_probability: float) -> float:
  """Returns a sampling probability, as a float in (0, 1]."""
  if not 0 < sampling_probability <= 1:
    raise ValueError(
      f'sampling_probability is {sampling_probability}; it must be in (0, 1].'
    )
  return float(sampling_probability)


def checked_chunk(chunk: int | None, expected_batch_size: float) -> int:
  """Returns what batches are padded to a multiple of.

  By default about one standard deviation of their size: a handful of shapes.
  """
  if chunk is None:
    chunk = 8 * (1 + int(np.sqrt(expected_batch_size) / 8))
  return check_integer('chunk', chunk)


def padded(drawn: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
  """Pads a batch to a multiple of `chunk`; see `PoissonSampler.draw`.

  >>> import numpy as np
  >>> numbers, weights = padded(np.array([5, 7]), 4)
  >>> numbers.tolist(), weights.tolist()
  ([5, 7, 0, 0], [1.0, 1.0, 0.0, 0.0])
  """
  size = chunk * max(1, -(-len(drawn) // chunk))
  numbers = np.zeros(size, np.int64)
  numbers[: len(drawn)] = drawn
  weights = np.zeros(size, np.float32)
  weights[: len(drawn)] = 1
  return numbers, weights


class BinomialSizes:
  """How many of `n` coins show heads, drawn without tossing them.

  NumPy's `binomial` computes probabilities with floats; here they are ratios of
  integers. Those of neighbouring sizes have the ratio

      P(k + 1) / P(k) = (n - k) / (k + 1) * p / (1 - p),

  which is followed from the mode to both sides, in fixed point with 200 bits
  behind the point, to where nothing is left. `p` is a float, and so exactly a
  ratio of integers itself.

  #### Formal guarantee

  A size has its binomial probability up to an error that adds up to less than
  2^-150 over all sizes: 2^-200 for each of at most some million products, and
  the tails below 2^-200. What a size and a `subset` of that size then select
  has the law of independent coins up to that.

  Args:
    n: number of coins.
    probability: of heads, in (0, 1).

  #### Example

  >>> import numpy as np
  >>> sizes = BinomialSizes(10**9, 1e-6)
  >>> 900 < sizes.draw(np.random.default_rng(0)) < 1100
  True
  """

  def __init__(self, n: int, probability: float):
    p, whole = probability.as_integer_ratio()
    mode = (n + 1) * p // whole
    one = 1 << _BITS
    above, below = [], []
    weight, k = one, mode
    while weight and k < n:
      weight = weight * ((n - k) * p) // ((k + 1) * (whole - p))
      k += 1
      above.append(weight)
    weight, k = one, mode
    while weight and k > 0:
      weight = weight * (k * (whole - p)) // ((n - k + 1) * p)
      k -= 1
      below.append(weight)
    self._first = mode - len(below)
    self._ends = list(itertools.accumulate([*below[::-1], one, *above]))

  def draw(self, rng: np.random.Generator) -> int:
    """Returns a size."""
    words = rng.integers(1 << 32, size=_DRAWN_BITS // 32, dtype=np.uint32)
    place = int.from_bytes(words.tobytes(), 'little') * self._ends[-1]
    return self._first + bisect.bisect_right(self._ends, place >> _DRAWN_BITS)


def subset(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
  """Returns a random subset of `range(n)`, increasing, int64 `[size]`.

  Numbers are drawn until so many are different. That treats all numbers alike,
  so that all subsets of the size, at most half of `n`, are as likely.

  >>> import numpy as np
  >>> len(set(subset(10**12, 1000, np.random.default_rng(0))))
  1000
  """
  found = np.zeros(0, np.int64)
  while len(found) < size:
    more = rng.integers(n, size=size - len(found))
    found = np.unique(np.concatenate([found, more]))
  return found
