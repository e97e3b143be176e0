"""A `tf.data.Dataset` of sampled batches, each with the number of its step."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows.training import rows


def dataset(x, sampler, workers, *, begin, randomness):
  """Returns the batches of steps, in their order, as they are asked for.

  Args:
    x: arrays, see `rows.arrays`.
    sampler: how a batch is drawn, such as a `PoissonSampler`.
    workers: `replicas.Workers`, each replica of which gets its share.
    begin: a function without arguments, called when batches begin to be asked
      for; gives a function that returns the next step, or `None` at the end.
    randomness: a function from a step to a fresh `np.random.Generator`.

  Returns:
    A dataset of (rows, weights, step), distributed where there are replicas.
    Its list `failures` gets what was raised where a batch was drawn, of which
    TensorFlow raises the text only.
  """
  numbers = np.arange(sampler.num_examples)
  failures = []

  def draw():
    failures.clear()
    try:
      next_step = begin()
      while (step := next_step()) is not None:
        drawn = sampler.batch(numbers, randomness(step))
        for share, weights in workers.shares(*drawn):
          yield rows.take(x, share, weights), weights, step
    except Exception as error:
      failures.append(error)
      raise

  weights, step = tf.TensorSpec([None]), tf.TensorSpec([], tf.int64)
  signature = rows.signature(x), weights, step
  options = tf.data.Options()
  # There is nothing to tune, and the thread that tunes can sleep for a minute
  # before it lets an iterator go.
  options.autotune.enabled = False
  found = workers.distribute(
    tf.data.Dataset.from_generator(
      draw, output_signature=signature
    ).with_options(options)
  )
  found.signature, found.failures = signature, failures
  return found
