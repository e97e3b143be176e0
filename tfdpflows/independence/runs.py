"""Losses and gradients that can be computed again with the same chance."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Operations that keep a state of their own, which nothing can reset or save.
# Those named Stateful have theirs in a variable.
_LEGACY = re.compile(
  '(?!State(less|ful)|RandomIndexShuffle$).*(Random|Multinomial|'
  'TruncatedNormal|CandidateSampler|DistortedBoundingBox|PyFunc|'
  'Fractional(Max|Avg)Pool|CudnnRNN|XlaRng(Uniform|Normal)|Skipgram|'
  'RecordInput|Timestamp)'
)


class Run(NamedTuple):
  """What one run gave, as arrays."""

  losses: Any  # [batch]
  gradient: Any  # of the weighted sum of losses, by each variable
  seen: Any  # pairs of a description and an array
  backward: Any  # as `seen`: the gradient there, of what is a float


class Trial:
  """A computation on a few rows that are not private, traced once.

  It runs in pairs that draw the same random numbers: generators are set back
  in between, and operations that draw from a state of their own exist twice,
  in step with each other. The program's own chance is not touched.

  Args:
    compute: a function from rows to losses `[batch]` and to pairs of a
      description and a tensor; it is traced.
    variables: the trainable variables.
    rows: rows as `compute` takes them.
    named: all variables that have a name in messages.

  Attributes:
    legacy: names of the operations that draw random numbers from a state of
      their own.
  """

  def __init__(self, compute, variables, rows, named):
    names, floats = [], []

    def run(rows, weights):
      # Of this graph alone: it makes the seeds of legacy operations.
      tf.random.set_seed(0)
      with tf.GradientTape() as tape:
        losses, seen = compute(rows)
      graph = tf.compat.v1.get_default_graph()
      # Those made in a loop or branch are out of sight.
      seen = [s for s in seen if getattr(s[1], 'graph', None) is graph]
      names[:] = [name for name, _ in seen]
      tensors = [x for _, x in seen]
      floats[:] = [i for i, x in enumerate(tensors) if x.dtype.is_floating]
      found = tape.gradient(
        losses,
        [*variables, *(tensors[i] for i in floats)],
        output_gradients=tf.cast(weights, losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
      )
      found = [tf.convert_to_tensor(g) for g in found]
      return (
        losses,
        found[: len(variables)],
        tensors,
        found[len(variables) :],
      )

    spec = tf.nest.map_structure(
      lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), rows
    )
    self._traced = tf.function(run).get_concrete_function(
      spec, tf.TensorSpec([None], tf.float64)
    )
    self._names, self._floats = list(names), list(floats)
    nodes = self._traced.graph.as_graph_def()
    functions = nodes.library.function
    ops = {n.op for n in nodes.node}
    ops.update(n.op for f in functions for n in f.node_def)
    self.legacy = sorted(op for op in ops if _LEGACY.match(op))
    self._state = [
      Captured(handle, variables, named)
      for handle in self._traced.captured_inputs
      if handle.dtype == tf.resource and holds_one(handle)
    ]
    self._changing = self._state
    again = self._traced
    if self.legacy:
      # Another instance, with the seeds of the first.
      again = tf.function(functools.partial(again)).get_concrete_function(
        spec, tf.TensorSpec([None], tf.float64)
      )
    self._instances = self._traced, again

  def pair(self, rows, others, index, weights=None):
    """Runs twice with the same chance.

    Args:
      rows: rows of the first run.
      others: rows of the second run.
      index: number of the loss whose gradient is returned.
      weights: weights of the losses in the second run, if others.

    Returns:
      Two `Run`s.
    """
    start = [captured.value() for captured in self._changing]
    first = self._run(0, rows, _one_hot(rows, index))
    for captured, value in zip(self._changing, start):
      captured.assign(value)
    if weights is None:
      weights = _one_hot(others, index)
    return first, self._run(1, others, weights)

  def alike(self, rows, weights):
    """Runs on the same rows with the same chance and other weights of losses.

    Not where there is `legacy` chance, which cannot be set back.

    Args:
      rows: rows of all runs.
      weights: `[batch]` for each run.

    Returns:
      A `Run` for each.
    """
    start = [captured.value() for captured in self._changing]
    found = []
    for one in weights:
      for captured, value in zip(self._changing, start):
        captured.assign(value)
      found.append(self._run(0, rows, one))
    return found

  def _run(self, instance, rows, weights):
    losses, gradient, seen, backward = self._instances[instance](
      rows, tf.constant(weights, tf.float64)
    )
    return Run(
      losses.numpy(),
      [g.numpy() for g in gradient],
      [(name, x.numpy()) for name, x in zip(self._names, seen)],
      [(self._names[i], x.numpy()) for i, x in zip(self._floats, backward)],
    )

  def set_back(self):
    """Gives what a run changes the values of the start."""
    for captured in self._changing:
      captured.assign(captured.old)

  def find_changes(self, rows, others):
    """Finds what a run changes; to be called first.

    Returns:
      Names of the variables that a run changes, other than generators: a
      generator is moved alike by all rows.
    """
    after = []
    for instance, data in enumerate((rows, others)):
      self._run(instance, data, _one_hot(data, 0))
      after.append([captured.value() for captured in self._state])
      self.set_back()
    changed = [
      (captured, one, other)
      for captured, one, other in zip(self._state, *after)
      if not (captured.is_old(one) and captured.is_old(other))
    ]
    self._changing = [captured for captured, _, _ in changed]
    return [
      captured.name
      for captured, one, other in changed
      if not captured.is_generator or not np.array_equal(one, other)
    ]

  def chance(self, kept):
    """Describes the random numbers of a run that no checkpoint keeps.

    Args:
      kept: the variables that checkpoints keep.

    Returns:
      Descriptions, none if there is no such chance.
    """
    handles = {id(v.handle) for v in kept}
    generators = [c for c in self._changing if id(c.handle) not in handles]
    return self.legacy + ['tf.random.Generator'] * bool(generators)

  @property
  def random(self):
    """Whether random numbers are drawn at all."""
    return bool(self.legacy or self._changing)


def _one_hot(rows, index):
  return np.eye(tf.nest.flatten(rows)[0].shape[0])[index]


class Captured:
  """A variable that a traced function uses, by its handle."""

  def __init__(self, handle, trained, named):
    self.handle = handle
    names = {id(v.handle): v.name for v in (*named, *trained)}
    self.name = names.get(id(handle), 'a variable outside of the model')
    data = handle._handle_data.shape_and_type[0]
    self._dtype = tf.as_dtype(data.dtype)
    self.old = self.value()
    self.is_generator = self._dtype == tf.int64 and self.old.shape in (
      (2,),
      (3,),
    )

  def value(self):
    value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)
    return value.numpy()

  def assign(self, value):
    tf.raw_ops.AssignVariableOp(
      resource=self.handle, value=tf.constant(value, self._dtype)
    )

  def is_old(self, value):
    return np.array_equal(self.old, value)


def holds_one(handle):
  """Whether this is the handle of a variable, and not of a table, say."""
  data = getattr(handle, '_handle_data', None)
  return data is not None and data.is_set and len(data.shape_and_type) == 1
