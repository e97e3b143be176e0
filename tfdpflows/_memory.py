"""Lets go of what TensorFlow and TFP would keep as long as the process runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdpflows._keras import tfp


def dataset_from_generator(
  generator: Callable[[], Iterator[Any]], output_signature: Any
) -> tf.data.Dataset:
  """Returns a dataset of what a generator yields, and keeps it no longer.

  TensorFlow keeps the Python functions of datasets for ever, and with them the
  tables that they refer to. Here they live as long as the dataset does, or any
  dataset or iterator that was made of it in Python. A `tf.function` that
  captured it, and what `tf.data` makes of it inside of others (`interleave`,
  `flat_map`), do not keep it: keep a reference to it beside them.

  Args:
    generator: see `tf.data.Dataset.from_generator`.
    output_signature: same.
  """
  source = _Source(generator)
  weak = weakref.ref(source)

  def start():
    source = weak()
    if source is None:
      raise RuntimeError(
        'The dataset does not exist any more. Keep a reference to it for as '
        'long as it is iterated over.'
      )
    yield from source.generator()

  dataset = tf.data.Dataset.from_generator(
    start, output_signature=output_signature
  )
  dataset.source = source
  return dataset


class _Source:
  def __init__(self, generator):
    self.generator = generator


def release_graph_tensors() -> None:
  """Takes the tensors of graphs out of the cache that all TFP bijectors share.

  TFP keeps what a bijector computes for as long as its input exists. The tensor
  of a graph exists as long as what was computed from it, so that graphs, and
  their weights, would never go. The cache has no use after tracing. Nothing is
  done while this thread traces a graph; of other threads, entries of functions
  that are not traced to their end yet stay.
  """
  if not tf.executing_eagerly():
    return
  # No public name lists the entries of all bijectors.
  storage = tfp.bijectors.Bijector._cache.storage
  for key in list(storage):
    tensors = [reference() for reference in key.ref_set]
    if any(_is_of_finished_graph(x) for x in tensors if tf.is_tensor(x)):
      key.cancel()
      storage.pop(key, None)


def forget_bijector_results() -> None:
  """Empties the cache in which TFP's bijectors keep results, by tensor."""
  storage = tfp.bijectors.Bijector._cache.storage
  for key in list(storage):
    key.cancel()
    storage.pop(key, None)


def _is_of_finished_graph(tensor):
  if not tf.is_symbolic_tensor(tensor):
    return False
  # A graph gets its outputs at the end of tracing.
  return bool(getattr(tensor.graph, 'outputs', True))
