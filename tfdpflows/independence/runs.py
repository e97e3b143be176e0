"""Runs on probe rows, again with the same random numbers or other weights."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tfdpflows._autograph import unconverted

if TYPE_CHECKING:
  import numpy.typing as npt

# Operations that keep a state of their own, which nothing can reset or save.
# Those named Stateful have theirs in a variable.
_OWN_STATE = re.compile(
  '(?!State(less|ful)|RandomIndexShuffle$).*(Random|Multinomial|'
  'TruncatedNormal|CandidateSampler|DistortedBoundingBox|PyFunc|'
  'Fractional(Max|Avg)Pool|CudnnRNN|XlaRng(Uniform|Normal)|Skipgram|'
  'RecordInput|Timestamp)'
)
# Shares of a weight's typical size; smaller where the loss is not finite.
_SHARES = (0.5, 0.05, 0.005)
# Stands for a name.
OUTSIDE = 'a variable outside of the model'
# The least of what counts as typical: zeros move too.
_SIZE = 0.3


class Run(NamedTuple):
  """What one run gave, as arrays."""

  losses: Any  # [batch]
  gradient: Any  # of the weighted sum of losses, by each variable
  outputs: Any  # pairs of a description and an array
  output_gradients: Any  # as `outputs`: the gradient there, of what is a float


class RepeatableRuns:
  """A computation on rows that are not private, traced once.

  It runs in pairs that draw the same random numbers: generators are restored
  in between, and operations that draw from a state of their own exist twice,
  in step with each other. The random numbers of the program are not touched.

  `compute`, which is traced, makes losses `[batch]` of rows, and pairs of a
  description and a tensor; the variables are trained, and those that are
  `named` have a name in messages.

  Attributes:
    traced: the `tf.function` of rows and weights of losses, made concrete.
    own_state: names of the operations that draw random numbers from a state
      of their own.
  """

  def __init__(
    self,
    compute: Callable[[Any], tuple[tf.Tensor, Any]],
    variables: Sequence[tf.Variable],
    rows: Any,
    named: Sequence[tf.Variable],
  ):
    names, floats = [], []

    def run(rows, weights):
      # Of this graph alone: it makes the seeds of operations with a state.
      tf.random.set_seed(0)
      with tf.GradientTape() as tape:
        losses, outputs = compute(rows)
      graph = tf.compat.v1.get_default_graph()
      # Those made in a loop or branch are out of sight.
      outputs = [o for o in outputs if getattr(o[1], 'graph', None) is graph]
      names[:] = [name for name, _ in outputs]
      tensors = [x for _, x in outputs]
      floats[:] = [i for i, x in enumerate(tensors) if x.dtype.is_floating]
      found = tape.gradient(
        losses,
        [*variables, *(tensors[i] for i in floats)],
        output_gradients=tf.cast(weights, losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
      )
      _run_loops_in_order(graph)
      found = [tf.convert_to_tensor(g) for g in found]
      count = len(variables)
      return losses, found[:count], tensors, found[count:]

    self._function = run
    self.traced = trace(run, rows, tf.float64)
    self._names, self._floats = list(names), list(floats)
    nodes = self.traced.graph.as_graph_def()
    ops = {n.op for n in nodes.node}
    ops.update(n.op for f in nodes.library.function for n in f.node_def)
    self.own_state = sorted(op for op in ops if _OWN_STATE.match(op))
    self._captured = captured_variables(self.traced, [*named, *variables])
    self._changing = self._captured
    again = self.traced
    if self.own_state:
      # Another instance, with the seeds of the first.
      again = trace(functools.partial(again), rows, tf.float64)
    self._instances = self.traced, again

  def traced_for(self, rows: Any) -> tf.types.experimental.ConcreteFunction:
    """Traces anew, for as many rows as these."""
    return trace(self._function, rows, tf.float64, fixed=True)

  def run(self, rows: Any, weights: npt.ArrayLike) -> Run:
    """Runs once, and lets the state go on from there."""
    return self._run(0, rows, weights)

  def pair(
    self,
    rows: Any,
    others: Any,
    index: int,
    weights: Optional[npt.ArrayLike] = None,
  ) -> tuple[Run, Run]:
    """Runs on rows and on others with the same random numbers.

    The gradients are those of the loss with this index, or in the second run
    of the losses with these weights.
    """
    start = [captured.value() for captured in self._changing]
    first = self._run(0, rows, _one_hot(rows, index))
    _assign(self._changing, start)
    if weights is None:
      weights = _one_hot(others, index)
    return first, self._run(1, others, weights)

  def with_weights(
    self, rows: Any, weights: Iterable[npt.ArrayLike]
  ) -> list[Run]:
    """Runs on the same rows with the same random numbers, for each weights.

    Not where there is `own_state`, which cannot be restored.
    """
    start = [captured.value() for captured in self._changing]
    found = []
    for one in weights:
      _assign(self._changing, start)
      found.append(self._run(0, rows, one))
    return found

  def _run(self, instance, rows, weights):
    losses, gradient, outputs, backward = self._instances[instance](
      rows, tf.constant(weights, tf.float64)
    )
    return Run(
      losses.numpy(),
      [g.numpy() for g in gradient],
      [(name, x.numpy()) for name, x in zip(self._names, outputs)],
      [(self._names[i], x.numpy()) for i, x in zip(self._floats, backward)],
    )

  def restore(self) -> None:
    """Gives what a run changes the values of the start."""
    restore(self._changing)

  def find_changes(self, rows: Any, others: Any) -> list[str]:
    """Returns names of variables that a run changes; to be called first.

    Generators are not among them, as all rows move them alike.
    """
    after = []
    for instance, data in enumerate((rows, others)):
      self._run(instance, data, _one_hot(data, 0))
      after.append([captured.value() for captured in self._captured])
      self.restore()
    changed = [
      (captured, one, other)
      for captured, one, other in zip(self._captured, *after)
      if not (captured.is_start(one) and captured.is_start(other))
    ]
    self._changing = [captured for captured, _, _ in changed]
    return [
      captured.name
      for captured, one, other in changed
      if not captured.is_generator or not np.array_equal(one, other)
    ]

  def untracked_randomness(self, kept: Sequence[tf.Variable]) -> list[str]:
    """Describes what random numbers are drawn, other than by those kept."""
    handles = {id(v.handle) for v in kept}
    generators = [c for c in self._changing if id(c.handle) not in handles]
    return self.own_state + ['tf.random.Generator'] * bool(generators)

  @property
  def generators(self) -> list[Captured]:
    """The states of the `tf.random.Generator`s that it draws from."""
    return [c for c in self._changing if c.is_generator]

  @property
  def random(self) -> bool:
    """Whether random numbers are drawn at all."""
    return bool(self.own_state or self._changing)


def seeded_operations(
  definition: tf.compat.v1.GraphDef,
) -> list[tuple[str, str]]:
  """Returns type and path of operations that draw from seeds of their own.

  The graph itself has no seed.
  """
  nodes = [(n, '') for n in definition.node]
  for function in definition.library.function:
    name = function.signature.name
    nodes += [(n, f'{name}/') for n in function.node_def]
  return [
    (node.op, path + node.name)
    for node, path in nodes
    if _OWN_STATE.match(node.op)
    and any(node.attr[a].i for a in ('seed', 'seed2') if a in node.attr)
  ]


def is_generator(handle: tf.Tensor) -> bool:
  """Whether a variable may be the state of a `tf.random.Generator`."""
  if not _is_variable(handle):
    return False
  (one,) = handle._handle_data.shape_and_type
  shape = tf.TensorShape(one.shape)
  return one.dtype == tf.int64.as_datatype_enum and shape in ([2], [3])


def trace(
  function: Callable[..., Any],
  rows: Any,
  weights_dtype: tf.DType,
  fixed: bool = False,
  weights_shape: Sequence[int] = (),
) -> tf.types.experimental.ConcreteFunction:
  """Traces a function of rows and weights, for any number of rows or this.

  AutoGraph rewrites nothing of it but Keras layers and what is `converted`.
  `weights_shape` is that of an example's weights.
  """
  batch = [tf.nest.flatten(rows)[0].shape[0]] if fixed else [None]
  spec = tf.nest.map_structure(
    lambda x: tf.TensorSpec([*batch, *x.shape[1:]], x.dtype), rows
  )

  @unconverted
  def call(*args):
    try:
      return function(*args)
    except Exception as error:
      # AutoGraph would write the lines of the program before what it says.
      vars(error).pop('ag_error_metadata', None)
      raise

  return tf.function(call).get_concrete_function(
    spec, tf.TensorSpec([*batch, *weights_shape], weights_dtype)
  )


def _run_loops_in_order(graph):
  """Has loops begin an iteration when the one before is done.

  Else operations of several that draw from one state take turns by chance.
  """
  for op in graph.get_operations():
    if op.type in ('While', 'StatelessWhile'):
      op._set_attr('parallel_iterations', attr_value_pb2.AttrValue(i=1))


def _one_hot(rows, index):
  return np.eye(tf.nest.flatten(rows)[0].shape[0])[index]


class Captured:
  """A variable that a traced function uses, by its handle.

  Attributes:
    start: its value when this was made.
  """

  def __init__(self, handle: tf.Tensor, name: str):
    self.handle, self.name = handle, name
    self._dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    self.start = self.value()
    self.is_generator = is_generator(handle)

  @classmethod
  def of(cls, variable: tf.Variable) -> Captured:
    """Returns that of a variable."""
    return cls(variable.handle, variable.name)

  def value(self) -> np.ndarray:
    value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)
    return value.numpy()

  def assign(self, value: npt.ArrayLike | tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(
      resource=self.handle, value=tf.convert_to_tensor(value, self._dtype)
    )

  def is_start(self, value: npt.ArrayLike) -> bool:
    return np.array_equal(self.start, value)


def captured_variables(
  traced: tf.types.experimental.ConcreteFunction,
  named: Sequence[tf.Variable] = (),
) -> list[Captured]:
  """Returns what a concrete function captures of variables, no tables."""
  names = {id(v.handle): v.name for v in named}
  return [
    Captured(handle, names.get(id(handle), OUTSIDE))
    for handle in traced.captured_inputs
    if handle.dtype == tf.resource and _is_variable(handle)
  ]


def _is_variable(handle):
  data = getattr(handle, '_handle_data', None)
  return data is not None and data.is_set and len(data.shape_and_type) == 1


def _assign(captured, values):
  for one, value in zip(captured, values):
    one.assign(value)


def restore(captured: Sequence[Captured]) -> None:
  """Gives variables the values that they had when they were captured."""
  for one in captured:
    if not one.is_start(one.value()):
      one.assign(one.start)


def weight_steps(
  variables: Sequence[tf.Variable], is_finite: Callable[[], bool]
) -> list[Optional[list[np.ndarray]]]:
  """Finds steps to other weights, where what zeros hide at the start shows.

  A step moves every element away from zero. What one sign closes (a gate behind
  a relu) the other opens. Returns `None` for the weights as they are, then for
  either sign the longest step that leaves the loss finite, if there is one.
  """
  rng = np.random.default_rng(0)
  whole = []
  for v in variables:
    values = v.numpy()
    size = np.sqrt(np.mean(np.square(values))) if values.size else 0.0
    move = rng.uniform(0.5, 1, values.shape) * rng.choice([-1, 1], values.shape)
    whole.append(move * max(size, _SIZE))
  found = [None]
  for sign in (1, -1):
    for share in _SHARES:
      step = [sign * share * m for m in whole]
      with moved(variables, step):
        if is_finite():
          found.append(step)
          break
  return found


@contextlib.contextmanager
def moved(
  variables: Sequence[tf.Variable], step: Optional[list[np.ndarray]]
) -> Iterator[None]:
  """Context in which a step is added to the variables; `None` is no step."""
  if step is None:
    yield
    return
  old = [v.numpy() for v in variables]
  try:
    for v, value, change in zip(variables, old, step):
      v.assign((value + change).astype(value.dtype))
    yield
  finally:
    for v, value in zip(variables, old):
      v.assign(value)


def said_by(error: tf.errors.OpError) -> str:
  """Returns what an error of a graph says, in one line."""
  lines = [line.strip() for line in error.message.splitlines()]
  lines = [line for line in lines if line] or [type(error).__name__]
  return next(
    (a for a, b in zip(lines, lines[1:]) if b.startswith('[[{{')), lines[-1]
  )
