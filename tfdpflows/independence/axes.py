"""Whether rows stay apart in a graph, at any weights and for any values.

A run on probe rows shows that an example changes another; that it changed none
shows nothing of other values, weights or numbers of rows. So the graph of the
losses and of what clipping takes from the backward pass is followed from its
rows on. Each tensor is

- of no row: a constant, a variable, random numbers, a shape;
- apart: along one axis, element i is of row i alone;
- joined: an operation computed it from several rows, or from their number or
  their order, which other rows change as well;
- unknown: an operation without a rule got rows.

`axis_values` has what is known of a tensor, `axis_rules` the rules of
operations, `axis_turns` those of lists of tensors. Here are those of functions,
branches and loops. A loop over rows, as `tf.map_fn` makes it, is followed too:
what a turn computes from the row with its number is that row's, see
`axis_turns`.

#### Formal guarantee

If all that is asked for is apart, then for any number of rows, any values of
them and of all variables, element i is a function of row i, of the variables
and of random numbers which no other row changes, as TensorFlow documents its
operations. It is assumed that

- numbers drawn at random by different seeds, or by the state of a generator
  that moves on, are independent of each other and of where they are drawn (see
  `axis_draws`), and no variable is written from rows: `graph_scan` refuses
  that;
- no size of a tensor in the graph stands for the number of rows by chance: it
  is a prime of five digits here; and no whole number that is made of it is too
  large for its dtype;
- sizes of other axes that were not known when the graph was traced are like 101
  (those of arrays are known);
- training computes this graph. Under a plan `Checker` runs it in each step,
  other than in eager steps, under XLA, on several replicas, for variables used
  without a rule of `gradients`, and where operations draw random numbers from a
  state of their own. There Python makes the graph anew, and what it makes then
  is not seen.

Rounding is not considered: that of a matrix product may depend on how many rows
it has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfdpflows.independence import (
  axis_draws,
  axis_rules,
  axis_turns,
  axis_values,
  graph_scan,
  shape_arithmetic,
)
from tfdpflows.independence.axis_rules import Call
from tfdpflows.independence.axis_values import (
  APART,
  EVEN,
  JOINED,
  LIST,
  PLACE,
  PUBLIC,
  SIZED,
  TURN,
  UNKNOWN,
  Finding,
  JoinedError,
  UnruledError,
  Value,
  joined_if,
  unruled_if,
)
from tfdpflows.independence.shape_arithmetic import ROWS, Numbers

# Stands for sizes that are not known and not of rows.
_LENGTH = 101
_LARGEST = 4096
_CALLS = {'PartitionedCall', 'StatefulPartitionedCall'}
_BRANCHES = {'If', 'StatelessIf', 'Case', 'StatelessCase'}
_LOOPS = {'While', 'StatelessWhile'}
_WITH_FUNCTIONS = {*_CALLS, *_BRANCHES, *_LOOPS, 'IdentityN'}
_TURNS = 30
# Operations that write tables, and that move states of generators.
_WRITES_TABLES = re.compile('LookupTable(Import|Insert|Remove)')
_DRAWS = re.compile('Rng|Stateful')
_OF_STATES = {'Bitcast', 'Identity', 'StridedSlice'}
_DRAWN = '', axis_values.SOME, axis_values.ALL


class Result(NamedTuple):
  """What a graph does with rows."""

  joined: tuple[Finding, ...]  # Where rows meet in what was asked for.
  unknown: tuple[Finding, ...]  # Operations that got rows and have no rule.

  @property
  def apart(self) -> bool:
    """Whether it is proven that no row changes what is another's."""
    return not (self.joined or self.unknown)


def follow(
  traced: tf.types.experimental.ConcreteFunction,
  inputs: Sequence[int] = (0,),
  of_rows: Optional[Sequence[tf.Tensor]] = None,
  public: Sequence[tf.Tensor] = (),
) -> Result:
  """Follows rows through a graph.

  Args:
    traced: a concrete function that was traced for any number of rows.
    inputs: which of its flat arguments are rows `[batch, ...]`; the others are
      of no row.
    of_rows: tensors of its graph which must be apart: `[batch, ...]`, or
      `[batch * k, ...]` with those of a row together; its outputs by default.
    public: tensors of its graph which must depend on no row.
  """
  graph = _Graph(traced, inputs)
  joined, unknown = {}, {}
  of_rows = traced.graph.outputs if of_rows is None else of_rows
  for tensors, by_row in ((of_rows, True), (public, False)):
    for tensor in tensors:
      if isinstance(tensor, (np.ndarray, tf.__internal__.EagerTensor)):
        continue  # A constant.
      value = graph.value(tensor)
      finding = _fault(value, tensor.op, by_row)
      if finding is not None:
        place = unknown if value.kind == UNKNOWN else joined
        place[finding] = None
  return Result(tuple(joined), tuple(unknown))


def _fault(value, op, by_row):
  """Returns what keeps a value from being what was asked for, or `None`."""
  if value.finding is not None:
    return value.finding
  if value.kind == PUBLIC:
    return None
  apart = value.kind == APART and (value.axis, value.outer) == (0, 1)
  even = value.kind == EVEN and value.shape[0] % ROWS == 0
  if by_row and (apart or even):
    return None
  why = 'depends on rows' if not by_row else 'does not give each row its own'
  return Finding(op.type, op.name, why)


class _Graph:
  """The tensors of a concrete function."""

  def __init__(self, traced, inputs):
    self._own = traced.graph
    definition = traced.graph.as_graph_def(add_shapes=True)
    self.functions = {f.signature.name: f for f in definition.library.function}
    in_functions = {n.op for f in self.functions.values() for n in f.node_def}
    ops = in_functions.union(n.op for n in definition.node)
    # Names of captured variables that it writes; None stands for any.
    writes = graph_scan.writes_variable
    self._written = {n.input[0] for n in definition.node if writes(n.op)}
    captured = {inner.op.name for _, inner in traced.graph.captures}
    if any(map(writes, in_functions)) or self._written - captured:
      self._written.add(None)
    self.writes_tables = any(map(_WRITES_TABLES.match, ops))
    self._draws = any(map(_DRAWS.match, ops))
    self.shapes = {}
    self.draws = axis_draws.Draws()
    known = {}
    rows = set(inputs)
    flat = list(traced.graph.inputs)
    count = len(flat) - len(traced.graph.captures)
    for i, tensor in enumerate(flat[:count]):
      shape = tensor.shape.as_list() if tensor.shape.rank is not None else None
      if i not in rows:
        known[tensor.op.name] = [Value(PUBLIC, _filled_shape(shape))]
      elif shape is None or not shape or shape[0] is not None:
        raise ValueError('Rows must be traced for any number of them.')
      else:
        whole = ROWS, *_filled_shape(shape[1:])
        known[tensor.op.name] = [Value(APART, whole)]
    for outer, inner in traced.graph.captures:
      known[inner.op.name] = [_captured(outer, inner)]
    self._scope = _Scope(self, definition.node, known)

  def may_change(self, variable, dtype):
    """Whether a variable may be written in this graph."""
    _, shape, name = variable.tag or (None, None, None)
    state = dtype == tf.int64 and shape in (None, (2,), (3,))
    written = name is None or None in self._written or name in self._written
    return bool(self._written and written) or (self._draws and state)

  def fixed(self, body):
    """Returns which arguments the body of a loop gives as it got them."""
    return self._returned(body, ('Identity',))

  def kept_lists(self, body):
    """Returns which arguments of a loop it gives back with items set."""
    return self._returned(body, ('Identity', 'TensorListSetItem'))

  def _returned(self, body, kinds):
    function = self.functions[body]
    nodes = {n.name: n for n in function.node_def}
    found = set()
    pairs = zip(function.signature.input_arg, function.signature.output_arg)
    for i, (argument, output) in enumerate(pairs):
      name = function.ret[output.name].split(':')[0]
      while name in nodes and nodes[name].op in kinds:
        name = nodes[name].input[0].split(':')[0]
      if name == argument.name:
        found.add(i)
    return found

  def value(self, tensor):
    if tensor.graph is not self._own:
      raise ValueError(f'{tensor.name} is no tensor of the graph.')
    return self._scope.value(f'{tensor.op.name}:{tensor.value_index}')


def _with_tag(value, node, inputs):
  """Returns an output with the tag of what not all operations may read."""
  if value.kind in (JOINED, UNKNOWN) or not inputs:
    return value
  if node.op == 'Sum' and isinstance(inputs[1].tag, axis_values.Axes):
    summed = None if node.attr['keep_dims'].b else axis_values.SUMMED
    return value._replace(tag=summed)
  if node.op == 'Reshape' and value.tag == axis_values.SUMMED:
    return value._replace(tag=None)  # It has its shape from there.
  if node.op in _OF_STATES and axis_values.is_for_some(inputs[0].tag):
    return value._replace(tag=inputs[0].tag)
  return value


def _may_read(op, place, inputs):
  """Whether an operation may read what has a tag, its input at a place."""
  tag = inputs[place].tag
  if tag == axis_values.RESERVED:
    return 'BatchNormGrad' in op
  if tag == axis_values.STATE:
    return (op in _OF_STATES and place == 0) or (
      axis_rules.draws_by_state(op) and place in (1, 2)
    )
  if isinstance(tag, axis_values.Axes):
    if op != 'Sum' or place != 1:
      return op == 'Identity'
    # Further axes, for one row, have one element each.
    shape = inputs[0].shape
    return shape is not None and all(
      axis < len(shape) and shape[axis] in (1, ROWS) for axis in tag.more
    )
  if tag == axis_values.SUMMED:
    # How many axes it has depends on the number of rows.
    shape = inputs[-1].numbers
    whole = shape is not None and -1 not in shape.list()
    return op == 'Identity' or (op == 'Reshape' and place == 0 and whole)
  return True


def _filled_shape(shape):
  if shape is None:
    return None
  return tuple(_LENGTH if n is None else n for n in shape)


def _captured(outer, inner):
  data = getattr(outer, '_handle_data', None)
  if inner.dtype == tf.resource:
    if data is not None and data.is_set and len(data.shape_and_type) == 1:
      shape = tf.TensorShape(data.shape_and_type[0].shape)
      if shape.is_fully_defined():
        tag = 'variable', tuple(shape.as_list()), inner.op.name
        return Value(PUBLIC, (), tag=tag)
    return Value(PUBLIC, ())
  if not inner.shape.is_fully_defined():
    return Value(PUBLIC)
  shape = tuple(inner.shape.as_list())
  small = inner.dtype.is_integer or inner.dtype.is_bool
  if small and math.prod(shape) <= _LARGEST and hasattr(outer, 'numpy'):
    return Value(PUBLIC, shape, numbers=Numbers(outer.numpy()))
  return Value(PUBLIC, shape)


class _Scope:
  """The nodes of one call of a function, or of the whole graph.

  `known` are the values of its arguments, by their names.
  """

  def __init__(self, graph, nodes, known, path=''):
    self._graph, self._path = graph, path
    self._nodes = {n.name: n for n in nodes}
    self._values = dict(known)

  def value(self, reference):
    """Returns the value of `node:index`, or in a function `node:name:index`."""
    name = reference.split(':')[0]
    waiting = [name]
    while waiting:
      name = waiting[-1]
      if name in self._values:
        waiting.pop()
        continue
      node = self._nodes[name]
      missing = [
        i.split(':')[0]
        for i in shape_arithmetic.data_inputs(node)
        if i.split(':')[0] not in self._values
      ]
      if missing:
        waiting += missing
        continue
      inputs = [self._known(i) for i in shape_arithmetic.data_inputs(node)]
      outputs = self._outputs(node, inputs)
      if node.op not in _WITH_FUNCTIONS:  # There each output has its own.
        outputs = [axis_turns.inherited(v, inputs, node) for v in outputs]
        outputs = [_with_tag(v, node, inputs) for v in outputs]
        path = self._path + node.name
        outputs = axis_draws.named(node, inputs, outputs, path)
      self._values[name] = outputs
      waiting.pop()
    return self._known(reference)

  def _known(self, reference):
    name, *rest = reference.split(':')
    values = self._values[name]
    index = int(rest[-1]) if rest else 0
    if len(rest) == 2 and name in self._nodes:
      names = shape_arithmetic.output_names(self._nodes[name])
      index += names.get(rest[0], 0)
    return values[index] if index < len(values) else values[-1]

  def _outputs(self, node, inputs):
    try:
      return self._apply(node, inputs)
    except JoinedError as error:
      kind, why = JOINED, str(error)
    except UnruledError:
      kind, why = UNKNOWN, 'has no rule for how it is used here'
    finding = Finding(node.op, self._path + node.name, why)
    count = shape_arithmetic.count_outputs(node)
    return [Value(kind, finding=finding)] * count

  def _apply(self, node, inputs):
    op = node.op
    if op_def_registry.get(op) is None:  # A function, called by its name.
      raise UnruledError
    if op == 'Const':
      return [_constant(node)]
    if op in _CALLS:
      return self._call(node.attr['f'].func.name, inputs, node.name)
    if op in _BRANCHES:
      return self._branches(node, inputs)
    if op in _LOOPS:
      return self._loop(node, inputs)
    if op == 'IdentityN':
      return list(inputs)
    for found in (_bounded(node, inputs), _chosen(node, inputs)):
      if found is not None:
        return [found]
    for kind in (JOINED, UNKNOWN):
      for value in inputs:
        if value.kind == kind:
          count = shape_arithmetic.count_outputs(node)
          return [value._replace(tag=None)] * count
    unruled_if(not all(_may_read(op, i, inputs) for i in range(len(inputs))))
    if op.startswith('TensorList') or op == 'EmptyTensorList':
      return axis_turns.of_list(node, inputs)
    if any(v.kind == LIST for v in inputs):
      return [axis_turns.plain_list(op, inputs)]
    unruled_if(graph_scan.may_keep(op))
    self._graph.draws.add(node, inputs, self._path + node.name)
    if any(v.kind == TURN for v in inputs):
      unruled_if(shape_arithmetic.functions_of(node))
      return axis_turns.alone(node, inputs)
    if op in ('ReadVariableOp', 'ResourceGather', 'ResourceGatherNd'):
      dtype = tf.as_dtype(node.attr['dtype'].type)
      unruled_if(self._graph.may_change(inputs[0], dtype))
    unruled_if(op.startswith('LookupTable') and self._graph.writes_tables)
    if op == 'ReadVariableOp' and inputs[0].tag is not None:
      return [Value(PUBLIC, inputs[0].tag[1])]
    if op in ('Shape', 'ShapeN', 'Size', 'Rank'):
      return [axis_values.sizes(node, v) for v in inputs]
    if op == 'VariableShape' and inputs[0].tag is not None:
      return [
        axis_values.numbered(Numbers(np.array(inputs[0].tag[1], np.int32)))
      ]
    if shape_arithmetic.is_folded(op) and all(
      v.numbers is not None and not axis_values.is_for_some(v.tag)
      for v in inputs
    ):
      try:
        numbers = [v.numbers for v in inputs]
        folded = shape_arithmetic.fold(node, numbers)
      except (ValueError, tf.errors.OpError):
        raise JoinedError('works for some numbers of rows only') from None
      if folded is not None:
        found = [axis_values.numbered(n) for n in folded]
        if op == 'BroadcastGradientArgs':
          more = shape_arithmetic.axes_of_one_row(node, numbers)
          tags = map(axis_values.Axes, more)
          found = [v._replace(tag=t) for v, t in zip(found, tags)]
        return found
    if op in ('OnesLike', 'ZerosLike'):
      if inputs[0].shape is None:
        return (
          [Value(PUBLIC)] if inputs[0].kind == PUBLIC else axis_values.unruled()
        )
      return [axis_values.filled(inputs[0].shape)]
    if op in ('RngReadAndSkip', 'RngSkip') and all(
      v.kind in (PUBLIC, SIZED) for v in inputs
    ):
      # The state moves by how much is drawn.
      return [Value(PUBLIC, (3,), drawn=axis_values.ALL, tag=axis_values.STATE)]
    if op in axis_rules.PLACED and any(v.kind == PLACE for v in inputs):
      call = Call(node, inputs, self._shapes(node, inputs))
      return [axis_rules.PLACED[op](call)]
    for found in (
      axis_turns.is_turn(node, inputs),
      axis_turns.row_of_turn(node, inputs),
    ):
      if found is not None:
        return [found]
    shaped = axis_rules.SHAPED.get(op, ())
    if any(v.kind == SIZED and i not in shaped for i, v in enumerate(inputs)):
      raise JoinedError(axis_values.SIZE)
    if all(v.kind == PUBLIC for v in inputs):
      unruled_if(op == 'Placeholder' or shape_arithmetic.functions_of(node))
      drawn = axis_rules.drawn_by(op, inputs)
      shapes = self._shapes(node, inputs)
      found = [Value(PUBLIC, s, drawn=drawn) for s in shapes]
      return [
        axis_turns.counted(op, inputs, axis_values.settled(v)) for v in found
      ]
    if any(v.kind == PLACE for v in inputs) and not _keeps_place(node):
      raise JoinedError(axis_values.PLACES)
    rule = axis_rules.RULES.get(op)
    unruled_if(rule is None)
    return rule(Call(node, inputs, self._shapes(node, inputs)))

  def _call(self, name, inputs, path):
    function = self._graph.functions.get(name)
    unruled_if(function is None)
    arguments = [a.name for a in function.signature.input_arg]
    known = {a: [v] for a, v in zip(arguments, inputs)}
    scope = _Scope(
      self._graph, function.node_def, known, f'{self._path}{path}/'
    )
    return [
      scope.value(function.ret[a.name]) for a in function.signature.output_arg
    ]

  def _branches(self, node, inputs):
    choice, *arguments = inputs
    if choice.kind == SIZED:
      raise JoinedError('decides by the number of rows in the batch')
    names = [node.attr[b].func.name for b in ('then_branch', 'else_branch')]
    if node.op.endswith('Case'):
      names = [f.name for f in node.attr['branches'].list.func]
    found = [
      self._call(name, arguments, f'{node.name}/{i}')
      for i, name in enumerate(names)
    ]
    joined = [self._join(node, values) for values in zip(*found)]
    if choice.kind in (PUBLIC, TURN):
      # A public choice may be another in each turn.
      if choice.kind == TURN:
        joined = [self._join(node, [choice, v]) for v in joined]
      return [self._decided(node, v, choice) for v in joined]
    # The branches may be alike for all that the rows can hold.
    why = 'lets rows decide what is computed for others'
    other = self._fault(UNKNOWN, node, why)
    return [v if v.kind == JOINED else other for v in joined]

  def _decided(self, node, value, choice):
    """Returns what a choice decides about, that may be another in each turn."""
    loops = {value.tag} if value.kind == TURN else set()
    if axis_values.is_list_of_rows(value):
      loops = choice.by_turn
    if loops & choice.by_turn:
      return self._fault(JOINED, node, axis_values.PLACES)
    return axis_turns.inherited(value, [choice])

  def _join(self, node, values):
    """Returns a value that is one of several, as no row decides."""
    try:
      first, *others = values
      for other in others:
        axis_turns.refuse_places([first, other])
        # The less of both.
        drawn = min(first.drawn, other.drawn, key=_DRAWN.index)
        first = axis_turns.inherited(
          axis_turns.either(first, other), [first, other]
        )
        first = first._replace(drawn=drawn)
    except JoinedError as error:
      return self._fault(JOINED, node, str(error))
    except UnruledError:
      return self._fault(UNKNOWN, node, 'has no rule for how it is used here')
    return first

  def _fault(self, kind, node, why):
    return Value(kind, finding=Finding(node.op, self._path + node.name, why))

  def _loop(self, node, inputs):
    condition, body = (node.attr[n].func.name for n in ('cond', 'body'))
    # One counter is as good as another, as all begin with 0.
    loop = self._path + node.name
    fixed, kept = self._graph.fixed(body), self._graph.kept_lists(body)
    counts = {
      i
      for i, v in enumerate(inputs)
      if i not in fixed and v.kind == PUBLIC and axis_values.is_zero(v.numbers)
    }
    values = list(inputs)
    for _ in range(_TURNS):
      start = [
        v
        if i in fixed or (i in kept and axis_values.is_list_of_rows(v))
        else axis_turns.in_each_turn(
          Value(PUBLIC, (), tag=('turn', loop, 0))
          if i in counts
          else axis_turns.changing(v),
          loop,
        )
        for i, v in enumerate(values)
      ]
      (asked,) = self._call(condition, start, f'{node.name}/cond')
      after = self._call(body, start, f'{node.name}/body')
      wrong = {i for i in counts if after[i].tag != ('turn', loop, 1)}
      if wrong:
        counts -= wrong
        continue
      after = [
        self._carried(node, i) if v.kind == TURN and v.tag == loop else v
        for i, v in enumerate(after)
      ]
      joined = [
        a
        if i in fixed or i in counts
        else self._join(node, [a, b])
        if i in kept and axis_values.is_list_of_rows(a)
        else axis_turns.in_each_turn(
          self._join(node, [a, axis_turns.changing(b)]), loop
        )
        for i, (a, b) in enumerate(zip(start, after))
      ]
      if joined == start:
        return self._after_loop(node, asked, start, fixed, kept, counts)
      values = [
        v if i in counts else j for i, (v, j) in enumerate(zip(values, joined))
      ]
    raise UnruledError

  def _carried(self, node, place):
    """Returns what one row leaves to the turn of the next."""
    if node.attr['T'].list.type[place] == tf.variant.as_datatype_enum:
      # Lists that the backward pass reads from the end, perhaps.
      return self._fault(UNKNOWN, node, 'has no rule for how it is used here')
    return self._fault(JOINED, node, 'carries on from one row to the next')

  def _after_loop(self, node, asked, start, fixed, kept, counts):
    """Returns what a loop gives, of what it holds after any turn."""
    loop = self._path + node.name
    turns = axis_turns.tagged(asked, 'below') == loop
    # Outside, all is of the last turn.
    # What has converged may keep its value in all further turns, or not; and
    # the loop of `tf.map_fn` is not known by its gradient's form.
    why = 'lets rows decide for how long a loop goes on for others'
    if asked.kind == SIZED:
      why = 'changes with the number of iterations, which is that of rows'
    other = self._fault(UNKNOWN, node, why)
    asked = asked._replace(by_turn=asked.by_turn - {loop})
    start = [
      v if i in fixed else self._decided(node, v, asked)
      for i, v in enumerate(start)
    ]
    start = [v._replace(by_turn=v.by_turn - {loop}) for v in start]
    found = []
    for i, v in enumerate(start):
      if i in fixed or v.kind in (JOINED, UNKNOWN):
        found.append(v)
      elif turns and i in counts:
        rows = shape_arithmetic.of_shape([ROWS])
        found.append(axis_values.numbered(rows.astype(np.int32, ())))
      elif turns:
        # All rows have had their turn.
        found.append(v if i in kept and v.by_row else other)
      elif asked.kind == PUBLIC:
        v = v._replace(tag=None) if i in counts else v
        some = v.kind == LIST and v.by_row
        found.append(
          self._fault(JOINED, node, 'takes some rows of the batch')
          if some
          else v
        )
      elif asked.kind == TURN and asked.tag == loop:
        found.append(other)
      elif asked.kind == TURN:
        v = v._replace(tag=None) if i in counts else v
        found.append(self._join(node, [asked, v]))
      else:
        found.append(other)
    return found

  def _shapes(self, node, inputs):
    """Returns the shape of each output, as TensorFlow computes it."""
    op = node.op
    if op in axis_rules.ELEMENTWISE and all(
      v.shape is not None for v in inputs
    ):
      try:
        return [np.broadcast_shapes(*(v.shape for v in inputs))]
      except ValueError:
        raise JoinedError('works for some numbers of rows only') from None
    if op == 'ResourceGather' and inputs[0].tag and inputs[1].shape is not None:
      skipped = node.attr['batch_dims'].i
      shape = inputs[0].tag[1]
      return [
        (*shape[:skipped], *inputs[1].shape[skipped:], *shape[skipped + 1 :])
      ]
    if op == 'LookupTableFindV2':
      # Keys may be vectors, which is not known of a table.
      shapes, keys = node.attr['_output_shapes'].list.shape, inputs[1].shape
      rank = tf.TensorShape(shapes[0]).rank if shapes else None
      return [keys if keys is not None and rank == len(keys) else None]
    plain = type(node)()
    plain.CopyFrom(node)
    plain.name, plain.device = 'node', ''
    del plain.input[:]
    for name in list(plain.attr):
      if name.startswith('_'):
        del plain.attr[name]
    key = (
      plain.SerializeToString(deterministic=True),
      tuple(
        (v.shape, None if v.numbers is None else str(v.numbers.one.tolist()))
        for v in inputs
      ),
    )
    if key not in self._graph.shapes:
      self._graph.shapes[key] = _inferred(plain, inputs)
    found = self._graph.shapes[key]
    joined_if(found is None, 'works for some numbers of rows only')
    return found


def _inferred(node, inputs):
  """Returns the shapes of what a node gives, `None` where it cannot work."""
  graph = tf.Graph()
  with graph.as_default():
    dtypes = _input_dtypes(node)
    given = {}
    definition = tf.compat.v1.GraphDef()
    added = definition.node.add()
    added.CopyFrom(node)
    for i, (value, dtype) in enumerate(zip(inputs, dtypes)):
      if value.numbers is not None and dtype != tf.resource:
        x = tf.constant(value.numbers.one, dtype)
      else:
        x = tf.compat.v1.placeholder(dtype, value.shape)
      given[f'i{i}'] = x
      added.input.append(f'i{i}')
    try:
      (made,) = tf.graph_util.import_graph_def(
        definition, given, return_elements=['node'], name=''
      )
    except (ValueError, tf.errors.OpError):
      return None
    return [
      tuple(x.shape.as_list()) if x.shape.is_fully_defined() else None
      for x in made.outputs
    ]


def _input_dtypes(node):
  found = []
  for argument in op_def_registry.get(node.op).input_arg:
    if argument.type_list_attr:
      found += node.attr[argument.type_list_attr].list.type
      continue
    dtype = argument.type or node.attr[argument.type_attr].type
    repeat = node.attr[argument.number_attr].i if argument.number_attr else 1
    found += [dtype] * repeat
  return [tf.as_dtype(d) for d in found]


def _constant(node):
  tensor = node.attr['value'].tensor
  dtype = tf.as_dtype(tensor.dtype)
  shape = tf.TensorShape(tensor.tensor_shape)
  if not shape.is_fully_defined():
    return Value(PUBLIC)
  shape = tuple(shape.as_list())
  small = dtype.is_integer or dtype.is_bool
  if math.prod(shape) <= (_LARGEST if small else dtype.is_floating):
    return Value(PUBLIC, shape, numbers=Numbers(tf.make_ndarray(tensor)))
  return Value(PUBLIC, shape)


def _bounded(node, inputs):
  """Returns the one number between bounds that are alike, or `None`.

  Integers from c on, or `JOINED` with the tag of this, to c are c.
  """
  op = node.op
  if op not in ('Maximum', 'Minimum'):
    return None
  for x, bound in (inputs, inputs[::-1]):
    numbers = bound.numbers
    if bound.kind != PUBLIC or numbers is None or numbers.one.size != 1:
      continue
    if numbers.one.dtype.kind != 'i' or not _gives_one(node):
      continue
    least = int(numbers.one.reshape(-1)[0])
    if op == 'Maximum' and x.kind in (JOINED, UNKNOWN):
      return x._replace(tag=('least', least, None))
    bound_below = axis_turns.tagged(x, 'least')
    if op == 'Minimum' and bound_below is not None and bound_below >= least:
      return axis_values.numbered(Numbers(numbers.one.reshape(())))
  return None


def _gives_one(node):
  shapes = node.attr['_output_shapes'].list.shape
  return bool(shapes) and tf.TensorShape(shapes[0]).rank == 0


def _chosen(node, inputs):
  """Returns what does not depend on a choice, or `None`.

  Either both choices are one number; or the rows' numbers are chosen where
  there is more than one row, else 0, which is the same. TensorFlow's
  vectorized maps do that.
  """
  if node.op == 'Greater':
    many, one = (v.numbers for v in inputs)
    if many is None or one is None or inputs[0].kind != SIZED:
      return None
    if (
      many.one.shape == ()
      and axis_turns.one_batch(many)
      and one.one.tolist() == 1
    ):
      return Value(SIZED, (), tag=('many', None, None))
  if node.op not in ('Select', 'SelectV2'):
    return None
  condition, first, second = inputs
  if first.kind == second.kind == PUBLIC and _gives_one(node):
    one, other = first.numbers, second.numbers
    # Zeros of either sign are not the same.
    if one is not None and one == other and one.alike(other):
      return axis_values.numbered(one)
  many = condition.tag == ('many', None, None)
  numbers = first.kind == PLACE and first.shape == (ROWS,) and not first.tag
  return (
    first if many and numbers and axis_values.is_zero(second.numbers) else None
  )


def _keeps_place(node):
  if node.op == 'Cast':
    return tf.as_dtype(node.attr['DstT'].type) in (tf.int32, tf.int64)
  return node.op in axis_rules.KEEPING_PLACE
