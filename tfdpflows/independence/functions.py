"""Whether a distribution or bijector treats every row by itself.

What one row changes behind a layer that mixes rows has no bound. Layers that
are known for it are refused by name, others by a try on made-up rows. A try
finds mistakes and proves nothing.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows._keras import keras, tfp

_BATCH_STATISTICS = (
  tfp.bijectors.BatchNormalization,
  keras.layers.BatchNormalization,
)
_NUM_ROWS = 7
_CHANGED = (0, 3, 6)
# Small changes where things saturate, large ones where they are averaged.
_SCALES = (1.0, 1e3)


def refuse_batch_statistics(*parts):
  """Refuses layers that mix rows and keep their statistics, by name.

  Args:
    *parts: distributions, bijectors, layers, or anything else, which passes.

  Raises:
    ValueError: naming the layer.
  """
  for part in parts:
    for module in (part, *getattr(part, 'submodules', ())):
      if isinstance(module, _BATCH_STATISTICS):
        raise ValueError(
          f'{type(module).__name__} {module.name!r} mixes the rows of a batch '
          'and keeps their mean: what one row changes behind it has no bound. '
          'Take it out; bijectors.ActNorm does its work.'
        )


def refuse_mixing(function, name, event_shape, dtype, variables=()):
  """Refuses a function of rows that mixes them, as far as a try can tell.

  Args:
    function: takes a tensor of rows `[n, *event_shape]` and returns one
      `[n, ...]` of floats.
    name: what it is called in messages.
    event_shape: shape of a row.
    dtype: NumPy's dtype of the rows.
    variables: those that it must not write, such as statistics of rows.

  Returns:
    What it gives for made-up rows, to know it by; float64 `[m, ...]`.

  Raises:
    ValueError: naming it, if a row changes what another row gives, if the
      number of rows does, if it writes a variable, or if it is random.
  """
  rng = np.random.default_rng(0)
  rows = rng.uniform(size=[_NUM_ROWS, *event_shape]).astype(dtype)
  tolerance = float(np.finfo(dtype).eps) ** 0.5
  before = [np.array(v) for v in variables]
  call = lambda x: np.asarray(function(tf.constant(x)), np.float64)
  try:
    whole = call(rows)
    if len(whole) != _NUM_ROWS or not _alike(whole, call(rows), tolerance):
      raise ValueError(
        f'{name} gives other numbers for the same rows at a second time, or '
        'not one for each row, so that nobody can tell whether a row changes '
        'those of another. Take random layers out.'
      )
    for scale in _SCALES:
      for row in _CHANGED:
        changed = rows.copy()
        changed[row] = scale * rng.normal(size=event_shape)
        kept = np.delete(np.arange(_NUM_ROWS), row)
        _check(name, whole[kept], call(changed)[kept], tolerance)
    _check(name, whole[:-1], call(rows[:-1]), tolerance)
    if any(np.any(a != np.array(b)) for a, b in zip(before, variables)):
      raise ValueError(
        f'{name} writes its variables while it looks at rows: what it keeps of '
        'private rows would be neither charged nor noised. Set `training` or '
        '`trainable` to False, or take the layer out.'
      )
  finally:
    for value, variable in zip(before, variables):
      variable.assign(value)
  return whole


def _check(name, before, after, tolerance):
  if not _alike(before, after, tolerance):
    raise ValueError(
      f'{name} mixes rows: one row changes what it gives for another, which '
      'has no bound. Replace it by one that treats each row by itself.'
    )


def _alike(a, b, tolerance):
  """Equal up to rounding."""
  if a.shape != b.shape:
    return False
  size = np.abs(a[np.isfinite(a)]).max(initial=0)
  return np.allclose(a, b, tolerance, tolerance * size, equal_nan=True)
