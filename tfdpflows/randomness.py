"""One secret from which every random number of a private fit derives."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import numbers
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Optional, Union

import numpy as np

from tfdpflows import _observer
from tfdpflows._checks import Home
from tfdpflows.stored_rows import StoredRows

if TYPE_CHECKING:
  import numpy.typing as npt
  import tensorflow as tf

_SECRET_BYTES = 32
# How many numbers `np.random.Generator.random` draws from.
_DRAWS = 2**53
# Rows that are copied at one time.
_BLOCK = 1 << 16
# Names of the library's own streams. The first four are of keys that ledgers
# show, to tell one secret from others: a label that is one of them would draw
# its noise from such a key.
_TAKEN = (
  *('owner', 'release', 'search', 'table'),
  *('batch', 'fingerprint', 'layers', 'noise', 'parts', 'workers'),
)

__all__ = ['Randomness', 'drawn_below']


def drawn_below(probability: float) -> float:
  """Returns a number that `rng.random()` is below with a given probability.

  The numbers of `np.random.Generator.random` are multiples of 2^-53: they are
  below p with a probability of p rounded up to such a multiple, which is more
  than an event with the probability p was charged for. They are below the
  result with a probability of exactly the result.

  Args:
    probability: in [0, 1].

  Returns:
    The largest multiple of 2^-53 up to `probability`.

  #### Example

  >>> from tfdpflows import randomness
  >>> randomness.drawn_below(.25), randomness.drawn_below(1e-20)
  (0.25, 0.0)
  """
  return math.floor(probability * _DRAWS) / _DRAWS


class Randomness:
  """Named, replayable streams of random numbers from one 256-bit secret.

  The secret comes from the operating system. Every stream is a fixed function
  of the secret and of its name: an interrupted fit that goes on with the same
  secret and data draws the same batches and noise again, which reveals and
  costs nothing more. Whoever knows the secret can remove the noise: if you
  store it, delete it when the fit ends.

  `copy.copy` and `copy.deepcopy` give the object itself, as copies would draw
  the same noise. Without a `seed` it is neither pickled nor used in a process
  that was forked from the one that made it.

  Args:
    seed: an integer in place of the secret, for tests and papers: `seeded` is
      then true, and releases are not private against anyone who knows it.
    secret: 32 bytes of an earlier `secret`, to go on with the same streams.

  Raises:
    ValueError: if both are given, or `secret` is not 32 bytes.

  #### Example

  >>> from tfdpflows.randomness import Randomness
  >>> a = Randomness(seed=1).numpy('batch', 7).normal()
  >>> a == Randomness(seed=1).numpy('batch', 7).normal()
  True
  """

  def __init__(
    self, seed: Optional[int] = None, *, secret: Optional[bytes] = None
  ):
    if seed is not None and secret is not None:
      raise ValueError('Give either `seed` or `secret`, not both.')
    if secret is not None and len(secret) != _SECRET_BYTES:
      raise ValueError(f'`secret` has {len(secret)} bytes; it needs 32.')
    observer = _observer.current()
    if observer is not None and seed is None and secret is None:
      # Replayed, and therefore not private.
      seed = observer.seed()
    self.seeded = seed is not None
    self._claimed = {}
    if seed is not None:
      secret = hashlib.sha256(f'tfdpflows seed {int(seed)}'.encode()).digest()
    self._secret = secret or os.urandom(_SECRET_BYTES)
    self._home = Home()

  def __copy__(self) -> Randomness:
    return self

  def __deepcopy__(self, memo: dict) -> Randomness:
    return self

  def __reduce_ex__(self, protocol: int) -> tuple:
    if not self.seeded:
      raise TypeError(
        'A Randomness is not pickled: its copy would draw the same noise. Make '
        'one in the other process, and give it another `secret`.'
      )
    return super().__reduce_ex__(protocol)

  @property
  def secret(self) -> bytes:
    """The 32 bytes that all streams derive from; must be kept secret."""
    return self._secret

  def key(self, *path: Union[str, int]) -> bytes:
    """Returns 32 bytes that depend on the secret and on `path` alone.

    Raises:
      RuntimeError: in a process that was forked from the one that made this,
        unless it has a seed: both would draw the same.
      TypeError: for a part of `path` that is neither a `str` nor an integer.
    """
    self._check_process()
    name = _name(path).encode()
    return hmac.new(self._secret, name, hashlib.sha256).digest()

  def _check_process(self):
    if not self.seeded:
      self._home.check('This Randomness was made')

  def claim(self, *path: Union[str, int]) -> None:
    """Reserves the streams below `path` for the caller, once.

    Two releases with the same noise can be subtracted from each other, which
    leaves no noise at all.

    Raises:
      RuntimeError: as `key`.
      ValueError: if they were claimed before, or the library has streams of
        that name.
    """
    self._check_process()
    name = _name(path)
    if path and path[0] in _TAKEN:
      raise ValueError(
        f'{path[0]!r} cannot be a label: the library has random numbers of '
        'that name, some of which ledgers show. Noise that is drawn from them '
        'would not be secret. Give another label.'
      )
    # In one step, so that of two threads one has them.
    mine = object()
    if self._claimed.setdefault(name, mine) is not mine:
      raise ValueError(
        f'The random numbers {"/".join(map(str, path))!r} were used already: '
        'noise must not be used twice. Give another label or Randomness.'
      )

  @contextlib.contextmanager
  def claiming(self, *path: Union[str, int]) -> Iterator[None]:
    """Claims streams for a caller that may still be refused inside.

    If the context raises, such as for a charge over the budget, they are not
    claimed. Draw from them after the context.

    Raises:
      ValueError: if they were claimed before.
    """
    self.claim(*path)
    try:
      yield
    except BaseException:
      self._claimed.pop(_name(path), None)
      raise

  def numpy(self, *path: Union[str, int]) -> np.random.Generator:
    """Returns a fresh `np.random.Generator` at the start of stream `path`."""
    bits = np.random.Philox(key=np.frombuffer(self.key(*path)[:16], np.uint64))
    observer = _observer.current()
    if observer is not None:
      return observer.stream(bits, path)
    return np.random.Generator(bits)

  def tensorflow(self, *path: Union[str, int]) -> tf.random.Generator:
    """Returns a fresh `tf.random.Generator` at the start of stream `path`."""
    import tensorflow as tf  # noqa: PLC0415 (mechanisms need no TensorFlow)

    state = np.frombuffer(self.key(*path)[:24], np.int64)
    return tf.random.Generator.from_state(state, alg='philox')

  def fingerprint(self, array: npt.ArrayLike) -> str:
    """Returns a hex digest of `array`, keyed by the secret."""
    array = np.asarray(array)
    if array.dtype == object:
      # Their bytes are where they lie in memory.
      array = np.array([_repr(value) for value in array.ravel()])
    array = np.ascontiguousarray(array)
    text = f'{array.dtype}{array.shape}'.encode()
    keyed = hmac.new(self.key('fingerprint'), text, hashlib.sha256)
    keyed.update(array.tobytes())
    return keyed.hexdigest()

  def table_fingerprint(self, arrays: Iterable[npt.ArrayLike]) -> str:
    """Returns a hex digest of several arrays, as `fingerprint` of one.

    Block by block: an array may be a file that is larger than the memory. For
    `StoredRows` stands their own digest.
    """
    parts = [
      self.fingerprint(array[start : start + _BLOCK])
      for array in map(_digest_or_array, arrays)
      for start in range(0, max(len(array), 1), _BLOCK)
    ]
    return hashlib.sha256('\n'.join(parts).encode()).hexdigest()


def _digest_or_array(array):
  if isinstance(array, StoredRows):
    return array.digest
  return np.atleast_1d(array)


def _repr(value):
  try:
    return repr(value)
  except Exception:  # Whatever a row holds, training goes on.
    return ''


def _name(path):
  """Returns a text for `path` that no other path has."""
  for part in path:
    whole = isinstance(part, numbers.Integral) and not isinstance(part, bool)
    # Rounding one, two streams would become the same.
    if not (isinstance(part, str) or whole):
      raise TypeError(
        f'{part!r} cannot name random numbers; give a label that is a str or '
        'an int.'
      )
  return json.dumps([p if isinstance(p, str) else int(p) for p in path])
