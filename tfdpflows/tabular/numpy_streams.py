"""NumPy's `default_rng` in TensorFlow operations.

An exported model draws the numbers that the library draws with NumPy, so that
both give the same rows for a seed and the same log-probabilities. The algorithm
is that of `numpy.random.SeedSequence` and PCG64 (O'Neill 2014): a linear
congruential generator of 128 bits, of which each step gives 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_MASK = 2**128 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_LOW = 2**32 - 1
_POOL = 4

# The upper and lower halves of numbers of 128 bits, uint64 tensors.
Wide = tuple


def seeded(seed: tf.Tensor) -> tuple[Wide, Wide]:
  """Returns the state and the increment of `np.random.default_rng(seed)`.

  Args:
    seed: int64 `[]`, 0 or more.
  """
  seed = tf.cast(seed, tf.uint64)
  low, high = _cast32(seed), _cast32(_right(seed, 32))
  zero = tf.zeros([], tf.uint32)
  factor = [0x43B0D7E5]

  def mixed(value):
    value = tf.bitwise.bitwise_xor(value, _u32(factor[0]))
    factor[0] = factor[0] * 0x931E8875 & _LOW
    return _folded(value * _u32(factor[0]))

  pool = [mixed(word) for word in (low, high, zero, zero)]
  for source in range(_POOL):
    for target in range(_POOL):
      if source != target:
        other = mixed(pool[source])
        pool[target] = _folded(
          pool[target] * _u32(0xCA01F9DD) - other * _u32(0x4973F715)
        )
  words, constant = [], 0x8B51F9DD
  for i in range(8):
    word = tf.bitwise.bitwise_xor(pool[i % _POOL], _u32(constant))
    constant = constant * 0x58F38DED & _LOW
    words.append(tf.cast(_folded(word * _u32(constant)), tf.uint64))
  parts = [a + _left(b, 32) for a, b in zip(words[::2], words[1::2])]
  start, increment = (parts[0], parts[1]), (parts[2], parts[3])
  increment = _add(_add(increment, increment), _constant(1))
  state = _add(increment, start)
  return step(state, increment), increment


def step(state: Wide, increment: Wide) -> Wide:
  """Returns the next state."""
  return _add(_multiply(state, _constant(_MULTIPLIER)), increment)


def word(state: Wide) -> tf.Tensor:
  """Returns the 64 bits that a state gives, uint64."""
  high, low = state
  mixed = tf.bitwise.bitwise_xor(high, low)
  turn = _right(high, 58)
  back = tf.bitwise.bitwise_and(_u64(64) - turn, _u64(63))
  return tf.bitwise.bitwise_or(
    tf.bitwise.right_shift(mixed, turn), tf.bitwise.left_shift(mixed, back)
  )


def halves(words: tf.Tensor) -> tf.Tensor:
  """Returns the lower and the upper 32 bits of words, uint32 `[..., 2]`."""
  return tf.stack([_cast32(words), _cast32(_right(words, 32))], -1)


class UniformBlocks:
  """The uniform numbers of `rng.random([draws, rows, columns], np.float32)`.

  The generator is `np.random.default_rng(seed)`, called for one such block
  after the other. Rows of a block may be left out at its end.

  Args:
    seed: of the generator.
    draws: size of a block.
    rows: size of a block, even.
    columns: size of a block.

  #### Example

  >>> rng = np.random.default_rng(0)
  >>> first, second = (rng.random([2, 4, 3], np.float32) for _ in range(2))
  >>> found = UniformBlocks(0, 2, 4, 3)(tf.constant(1), tf.constant(3))
  >>> np.array_equal(found, second[:, :3])
  True
  """

  def __init__(self, seed: int, draws: int, rows: int, columns: int):
    inner = np.random.default_rng(seed).bit_generator.state['state']
    self._state, self._increment = inner['state'], inner['inc']
    self._columns = columns
    self._block = draws * rows * columns // 2
    starts = [i * rows * columns // 2 for i in range(draws)]
    self._draws = self._jumps(starts)
    self._rows = self._jumps([i * columns // 2 for i in range(rows)])
    self._words = self._jumps(range(1, columns // 2 + 2))

  def __call__(self, block: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the first rows of a block, float32 `[draws, rows, columns]`.

    Args:
      block: number of the block, int32 `[]`, below 2**31.
      rows: how many rows, int32 `[]`.
    """
    state = _constant(self._state)
    for bit in range(31):
      factor, add = self._jump(self._block << bit)
      is_set = tf.bitwise.bitwise_and(tf.bitwise.right_shift(block, bit), 1)
      moved = _add(_multiply(state, _constant(factor)), _constant(add))
      state = tuple(tf.where(is_set > 0, m, s) for m, s in zip(moved, state))
    state = _moved(state, self._draws, [-1, 1, 1], slice(None))
    state = _moved(state, self._rows, [1, -1, 1], slice(0, rows))
    state = _moved(state, self._words, [1, 1, -1], slice(None))
    bits = halves(word(state))
    shape = tf.shape(bits)
    bits = tf.reshape(bits, tf.concat([shape[:2], [-1]], 0))
    uniform = tf.cast(tf.bitwise.right_shift(bits, _u32(8)), tf.float32)
    uniform *= np.float32(2.0**-24)
    # Rows of an odd number of columns begin in the middle of a word.
    odd = (tf.range(rows) * self._columns) % 2 > 0
    return tf.where(
      odd[None, :, None],
      uniform[..., 1 : self._columns + 1],
      uniform[..., : self._columns],
    )

  def _jump(self, steps):
    """Factor and summand of a number of steps at once."""
    factor, add = 1, 0
    one_factor, one_add = _MULTIPLIER, self._increment
    while steps:
      if steps & 1:
        factor = factor * one_factor & _MASK
        add = (add * one_factor + one_add) & _MASK
      one_add = (one_factor + 1) * one_add & _MASK
      one_factor = one_factor * one_factor & _MASK
      steps >>= 1
    return factor, add

  def _jumps(self, steps: Sequence[int]):
    jumps = [self._jump(s) for s in steps]
    return [np.array([_split(j[k]) for j in jumps]).T for k in range(2)]


def _moved(state, jumps, shape, part):
  factor, add = (
    tuple(tf.reshape(tf.constant(half)[part], shape) for half in jump)
    for jump in jumps
  )
  return _add(_multiply(state, factor), add)


def _multiply(a, b):
  (a_high, a_low), (b_high, b_low) = a, b
  high = _upper(a_low, b_low) + a_low * b_high + a_high * b_low
  return high, a_low * b_low


def _upper(a, b):
  """The upper half of a product of 64 bits."""
  a0, a1, b0, b1 = _lower32(a), _right(a, 32), _lower32(b), _right(b, 32)
  first = a1 * b0 + _right(a0 * b0, 32)
  second = a0 * b1 + _lower32(first)
  return a1 * b1 + _right(first, 32) + _right(second, 32)


def _add(a, b):
  low = a[1] + b[1]
  return a[0] + b[0] + tf.cast(low < b[1], tf.uint64), low


def _split(number):
  return np.uint64(number >> 64), np.uint64(number & (2**64 - 1))


def _constant(number):
  return tuple(tf.constant(half) for half in _split(number))


def _u32(number):
  return tf.constant(number, tf.uint32)


def _u64(number):
  return tf.constant(number, tf.uint64)


def _cast32(x):
  return tf.cast(_lower32(x), tf.uint32)


def _lower32(x):
  return tf.bitwise.bitwise_and(x, _u64(_LOW))


def _right(x, bits):
  return tf.bitwise.right_shift(x, _u64(bits))


def _left(x, bits):
  return tf.bitwise.left_shift(x, _u64(bits))


def _folded(x):
  return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(16)))
