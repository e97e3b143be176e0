"""Generators whose noise tells what it is added to, and noise that was used."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy import stats

# Other draws, and their parameters in order: no release is measured of them, so
# that these must not depend on the table. Sizes may, as do rows to choose from.
_PARAMETERS = {
  'beta': ('a', 'b'),
  'binomial': ('n', 'p'),
  'chisquare': ('df',),
  'choice': ('a', 'size', 'replace', 'p'),
  'dirichlet': ('alpha',),
  'exponential': ('scale',),
  'gamma': ('shape', 'scale'),
  'geometric': ('p',),
  'hypergeometric': ('ngood', 'nbad', 'nsample'),
  'integers': ('low', 'high'),
  'logistic': ('loc', 'scale'),
  'lognormal': ('mean', 'sigma'),
  'multinomial': ('n', 'pvals'),
  'multivariate_normal': ('mean', 'cov'),
  'negative_binomial': ('n', 'p'),
  'poisson': ('lam',),
  'standard_gamma': ('shape',),
  'standard_t': ('df',),
  'triangular': ('left', 'mode', 'right'),
  'uniform': ('low', 'high'),
}
# Numbers of noise that are kept, of 100 bytes each.
_MOST_NUMBERS = 2**17


class UsedNoise:
  """The noise that was used, also in part, in another order or negated.

  Of much noise some numbers are kept, chosen by themselves, so that they are
  the same ones wherever they are used again.
  """

  def __init__(self):
    self._wholes, self._numbers, self._level = set(), set(), 0

  def known(self, noise, units):
    """Whether noise was used before; it is from now on."""
    noise, units = np.ravel(noise), np.abs(np.ravel(units))
    if not len(noise):
      return False
    digest = hashlib.sha256(np.sort(np.round(units, 12)).tobytes()).digest()
    again = digest in self._wholes
    self._wholes.add(digest)
    # Numbers of fewer bits or digits, of float32 or on a grid, coincide by
    # chance: of these only all of a release tell something.
    with np.errstate(all='ignore'):
      digits = noise / 10 ** np.floor(np.log10(np.abs(noise)))
      fine = np.abs(digits - np.round(digits, 9)) > 1e-13
      fine &= (noise.astype(np.float32) != noise) & (units < 1e5)
    numbers, counts = np.unique(
      np.rint(units[fine] * 1e12).astype(np.int64), return_counts=True
    )
    pairs = max(counts.sum() * (counts.sum() - 1), 1)
    chance = 1e-12 + 4 * np.sum(counts * (counts - 1)) / pairs
    numbers = self._kept(numbers)
    while len(numbers) > _MOST_NUMBERS:
      self._level += 1
      numbers = self._kept(numbers)
    same = len(self._numbers.intersection(numbers.tolist()))
    # Of those that are kept, which are fewer, as many more coincide.
    expected = len(numbers) * len(self._numbers) * chance * 2.0**self._level
    again |= bool(same and stats.poisson.sf(same - 1, expected) < 1e-6)
    self._numbers.update(numbers.tolist())
    while len(self._numbers) > 2 * _MOST_NUMBERS:
      self._level += 1
      known = np.fromiter(self._numbers, np.int64)
      self._numbers = set(self._kept(known).tolist())
    return again

  def _kept(self, numbers):
    # The product of an odd number near 2^64 over the golden ratio is a hash.
    hashed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return numbers[hashed <= np.uint64((2**64 - 1) >> self._level)]


class Stream(np.random.Generator):
  """A generator whose noise knows its scale."""

  path: tuple
  observer: Any  # The run, which is told of draws and of releases.
  # Inside of a draw, which may use others.
  drawing = False

  def normal(self, loc=0.0, scale=1.0, size=None):
    return self._noise('gaussian', super().normal, loc, scale, size)

  def standard_normal(self, size=None, **kwargs):
    made = super().standard_normal(size, **kwargs)
    return self._made('gaussian', made, 1.0)

  def laplace(self, loc=0.0, scale=1.0, size=None):
    return self._noise('laplace', super().laplace, loc, scale, size)

  def gumbel(self, loc=0.0, scale=1.0, size=None):
    return self._noise('gumbel', super().gumbel, loc, scale, size)

  def _noise(self, kind, draw, loc, scale, size):
    if size is None and (np.ndim(loc) or np.ndim(scale)):
      size = np.broadcast_shapes(np.shape(loc), np.shape(scale))
    made = self._made(kind, draw(0.0, scale, size), scale)
    # A sum as the centre of its noise.
    return made if np.ndim(loc) == 0 and loc == 0 else made + loc

  def _made(self, kind, values, scale):
    noise = np.asarray(values).view(_Noise)
    noise.kind, noise.scale = kind, np.asarray(scale, np.float64)
    noise.stream = self
    return noise


def _watched(method):
  """Returns a method of `Stream` that tells its parameters."""
  draw, names = getattr(np.random.Generator, method), _PARAMETERS[method]

  def watched(self, *args, **kwargs):
    if self.drawing:
      return draw(self, *args, **kwargs)
    given = {**dict(zip(names, args)), **kwargs}
    compared = [
      np.array(given[name])
      for name in names
      if given.get(name) is not None
      # Of a choice, rows and their number are what is sampled from.
      and not (method == 'choice' and name != 'p' and np.ndim(given[name]))
      and name not in ('size', 'replace')
    ]
    self.observer.draws(self.path, method, compared)
    self.drawing = True
    try:
      return draw(self, *args, **kwargs)
    finally:
      self.drawing = False

  return watched


for _method in _PARAMETERS:
  setattr(Stream, _method, _watched(_method))


class _Noise(np.ndarray):
  """Noise of a known scale, which is released with what it is added to."""

  kind = scale = stream = None

  def __array_finalize__(self, other):
    # Parts of noise of one scale have that scale.
    scale = getattr(other, 'scale', None)
    if scale is not None and scale.ndim == 0:
      self.kind, self.scale, self.stream = other.kind, scale, other.stream

  def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
    plain = [np.asarray(x) if isinstance(x, _Noise) else x for x in inputs]
    noises = [
      i for i, x in enumerate(inputs) if isinstance(x, _Noise) and x.kind
    ]
    if method == '__call__' and len(noises) == 1 and not kwargs:
      noise, other = inputs[noises[0]], plain[noises[0] - 1]
      if ufunc in (np.add, np.subtract):
        found = noise._released(ufunc, plain, other, noises[0])
        if out is not None:
          out[0][...] = found
          return out[0]
        return found[()]
      scales = ufunc is np.multiply or (
        ufunc is np.true_divide and noises == [0]
      )
      if out is None and (scales or ufunc is np.negative):
        made = ufunc(*plain)
        factor = 1.0 if ufunc is np.negative else np.abs(other)
        made = np.asarray(made).view(_Noise)
        made.kind, made.stream = noise.kind, noise.stream
        if ufunc is np.true_divide:
          factor = 1 / factor
        made.scale = np.asarray(noise.scale * factor, np.float64)
        return made
    if out is not None:
      kwargs['out'] = tuple(
        x.view(np.ndarray) if isinstance(x, _Noise) else x for x in out
      )
    return getattr(ufunc, method)(*plain, **kwargs)

  def _released(self, ufunc, plain, other, place):
    value = ufunc(*plain)
    total = np.broadcast_to(np.asarray(other, np.float64), value.shape)
    if ufunc is np.subtract and place == 0:
      total = -total
    with np.errstate(divide='ignore', invalid='ignore'):
      units = np.asarray(plain[place], np.float64) / self.scale
    self.stream.observer.uses(
      plain[place], units, value.shape, self.stream.path
    )
    return self.stream.observer.release(
      self.stream.path, self.kind, total, self.scale, value
    )
