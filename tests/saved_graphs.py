"""What a SavedModel tells of the process that wrote it."""

import pathlib

import tensorflow as tf


def written_twice(save, folder):
  """Returns the bytes of two graphs that `save(path)` writes.

  TensorFlow numbers functions by all that the process has made; between the two
  it makes another one.
  """
  found = []
  for name in ('one', 'other'):
    path = pathlib.Path(folder) / name
    save(str(path))
    found.append((path / 'saved_model.pb').read_bytes())
    tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([]))
  return found
