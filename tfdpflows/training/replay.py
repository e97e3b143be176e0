"""What a training that is replayed must have in common with the first one."""

from __future__ import annotations

import hashlib
import json

import numpy as np

# They change how sums are computed, and nothing of what is summed.
_FREE = ('name', 'chunk_size')


def facts_of(optimizer):
  """Returns what the updates of an optimizer depend on, as it was made.

  Besides what it releases (clipping, bound of the loss, number of draws) that
  is how it makes weights of it: they are where the next gradients are taken.

  Args:
    optimizer: a `DPOptimizer`.

  Returns:
    A JSON-able dict.
  """
  config = {k: v for k, v in optimizer.get_config().items() if k not in _FREE}
  config = {'optimizer': type(optimizer).__name__, **config}
  return json.loads(json.dumps(config, default=_plain))


def table_of(fingerprints):
  """Returns one digest for the fingerprints of all arrays of a table."""
  return hashlib.sha256('\n'.join(fingerprints).encode()).hexdigest()


def _plain(value):
  array = np.asarray(value)
  return repr(value) if array.dtype == object else array.tolist()
