"""A model that is tried, before it trains, on rows that are not private."""

from __future__ import annotations

import contextlib
from concurrent import futures

import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.independence import (
  comparison,
  errors,
  graph_scan,
  layer_calls,
  probe_rows,
)
from tfdpflows.independence.runs import Trial


class TriedModel(keras.Model):
  """What private models have in common: they are tried once per `compile`.

  Args:
    example: rows to try the model on, see the subclasses.
    examples_apart: see the subclasses.
    name: of the Keras model.
  """

  def __init__(self, example=None, examples_apart=False, name=None):
    super().__init__(name=name)
    # Hidden from Keras, which tracks what it finds in attributes.
    self._example = lambda: example
    self._declared = bool(examples_apart)
    self._known, self._tried = None, set()
    self._chance = ''

  def _try(self, spec):
    """Tries the model; ends with `_try_apart`. Of subclasses.

    Args:
      spec: structure of `tf.TensorSpec`, of a batch.
    """
    raise NotImplementedError

  def _private_variables(self):
    """Returns the trainable variables. Of subclasses."""
    raise NotImplementedError

  def compile(self, *args, **kwargs):
    self._known, self._tried = None, set()
    super().compile(*args, **kwargs)

  @tf.autograph.experimental.do_not_convert
  def _check_in_step(self, spec):
    """As `_check`, outside of the graph that is being traced, if one is."""
    with futures.ThreadPoolExecutor(1) as thread:
      return thread.submit(self._check, spec).result()

  def _check(self, spec):
    """Tries the model once, and sees later that it is still the one tried.

    Once for rows of one kind: of other dtypes or shapes it computes otherwise.

    Args:
      spec: structure of `tf.TensorSpec`, of a batch.

    Raises:
      ValueError: for a model that could not be private.
    """
    flat = tuple(tf.nest.flatten(spec))
    if not any(_alike(flat, tried) for tried in self._tried):
      try:
        with self.distribute_strategy.scope(), tf.summary.record_if(False):
          self._try(spec)
      except tf.errors.OpError as error:
        # Nothing private was read yet.
        raise ValueError(
          f'{self.name} cannot be computed on rows made up from shapes and '
          f'dtypes: {error.message} If that is for the values of these rows, '
          'give public ones that the model can work with: example=...'
        ) from error
      if self._known is None:
        self._known = {v.ref() for v in self._private_variables()}
      self._tried.add(flat)
    now = {v.ref(): v.name for v in self._private_variables()}
    if now.keys() != self._known:
      new = sorted(now[v] for v in now.keys() - self._known) or 'fewer'
      raise ValueError(
        f'The trainable variables have changed since the first step: {new}. '
        'Compile the model again.'
      )

  def _check_before_plan(self, rows, replays):
    """As `_check`, before the plan charges anything.

    Args:
      rows: structure of arrays or of `tf.TensorSpec`.
      replays: whether steps of an earlier process are made again.

    Raises:
      ValueError: also for chance of the model's own or eager steps under a
        replay.
    """
    self._check(probe_rows.spec_of(rows))
    if replays and self.run_eagerly:
      raise ValueError(
        f'The plan replays steps, and {self.name} runs eagerly: each step runs '
        'its Python code again, and may draw random numbers that nothing keeps '
        'and no trial sees. A replayed step would give another sum the same '
        'noise. Resume without `replay`.'
      )
    if replays and self._chance:
      raise ValueError(
        f'The plan replays steps, and {self.name} draws random numbers that no '
        f'checkpoint keeps ({self._chance}): a replayed step would '
        'give another sum the same noise, and their difference shows what the '
        'noise should hide. Resume without `replay`.'
      )

  def _private_gradients(self, losses, rows, variables, weights, step):
    """As `private_gradients_of`, and nothing of the rows is written down.

    Not in errors, and not by `tf.summary` in a layer, which a TensorBoard
    callback would switch on.
    """
    # What is refused of a step without looking at rows is said in words.
    self.optimizer.check_step(variables, step)
    gradients = self.optimizer.private_gradients_of
    with tf.summary.record_if(False):
      return errors.call(gradients, losses, rows, variables, weights, step)

  def _check_values(self, losses, spec, layers, what):
    """Refuses a model that rows could bring to fail, see `graph_scan`.

    Args:
      losses: a function from rows to losses `[batch]`, as in training.
      spec: structure of `tf.TensorSpec`, of rows.
      layers: the Keras layers that it calls.
      what: what computes the losses, at the start of a sentence.
    """
    variables = list(self._private_variables())
    graph_scan.check(
      lambda rows, weights: self.optimizer._sums_of(
        losses, rows, variables, weights
      ),
      spec,
      self._example(),
      self.variables,
      layers,
      what,
    )

  def _try_apart(self, compute, layers, rows, others, what):
    """Tries whether examples are kept apart, see `comparison.check`.

    Args:
      compute: a function from rows to (losses `[batch]`, outputs), as in
        training.
      layers: the Keras layers that it calls.
      rows: rows as `compute` takes them.
      others: as `rows`, different in every row.
      what: what computes the losses, at the start of a sentence.

    Returns:
      A `Trial` with random layers at rest.
    """
    variables = self._private_variables()
    parts = tf.train.TrackableView(self).descendants()
    kept = [part for part in parts if isinstance(part, tf.Variable)]

    def watched(rows):
      seen = []
      with layer_calls.watched(layers, seen):
        losses, outputs = compute(rows)
      outputs = tf.nest.flatten(outputs)
      return losses, seen + [('The model', x) for x in outputs]

    def at_rest(rows):
      with layer_calls.at_rest(layers):
        return watched(rows)

    trial = resting = Trial(watched, variables, rows, kept)
    if layer_calls.random_layers(layers):
      resting = Trial(at_rest, variables, rows, kept)
    comparison.check(
      trial,
      resting,
      variables,
      rows,
      others,
      declared=self._declared,
      what=what,
    )
    # Replicas draw numbers of their own each, which nothing keeps.
    alone = self.distribute_strategy.num_replicas_in_sync == 1
    self._chance = ', '.join(trial.chance(kept if alone else []))
    return resting


def _alike(spec, tried):
  """Whether rows are such as a model was tried on."""
  return len(spec) == len(tried) and all(
    a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:])
    for a, b in zip(spec, tried)
  )


def one_replica():
  """A context in which variables of several replicas are those of the first."""
  if not tf.distribute.has_strategy():
    return contextlib.nullcontext()
  return tf.distribute.ReplicaContext(tf.distribute.get_strategy(), 0)
