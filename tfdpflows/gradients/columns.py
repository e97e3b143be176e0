"""Equal columns of a mask: outputs that have the same inputs."""

from __future__ import annotations

import hashlib

import numpy as np
import tensorflow as tf

_GROUPS = {}
# Models have few masks, but a program may go through many models.
_MAX_GROUPS = 64


def column_groups(mask):
  """Returns a mask's distinct columns `[in, k]`, and who has them `[out, k]`.

  Outputs with equal columns share `a^2 M`, and the masks of autoregressive
  networks have no more distinct columns than there are degrees. A mask that is
  not known before the step counts as all distinct: members are `None`.

  Args:
    mask: `[in, out]`, a tensor or an array.
  """
  values = tf.get_static_value(mask)
  if values is None:
    return mask, None
  # By content: an array may be changed in place, and another one may get the
  # address of one that is gone.
  content = hashlib.sha256(np.ascontiguousarray(values)).digest()
  key = values.shape, values.dtype.str, content
  found = _GROUPS.get(key)
  if found is None:
    columns, inverse = np.unique(values, axis=1, return_inverse=True)
    members = np.eye(columns.shape[1], dtype=columns.dtype)[inverse.ravel()]
    found = columns, members
    if len(_GROUPS) >= _MAX_GROUPS:
      _GROUPS.clear()
    _GROUPS[key] = found
  return found
