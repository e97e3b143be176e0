"""Static scan of a graph: operations that may fail for a row, or show it.

Clipping and noise hide what a row adds to an update. They do not hide that a
training ended, or goes on for ever, nor what its error says. So a step is
traced, forward and backward, before anything is computed, and refused where an
operation that is known to fail for some values, to write them down or to keep
them gets values from the rows, or where rows decide how long a loop goes on and
nothing shows that it ends, see `loops`. Indices (of a lookup, of labels) pass:
where a model keeps them in bounds it is as good as any other. Those are run on
unusual rows, see `checker`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tfdpflows.independence.loops import Loop

if TYPE_CHECKING:
  from tfdpflows._keras import keras


def _inputs_of(*rows):
  """Returns the numbers of inputs for each operation named in the rows."""
  return {op: places for places, ops in rows for op in ops.split()}


# What fails for some values of these inputs; `None`: of any.
_FAILING = _inputs_of(
  (
    None,
    """
    CheckNumerics CheckNumericsV2 Cholesky DecodeAndCropJpeg DecodeBase64
    DecodeBmp DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJSONExample
    DecodeJpeg DecodePaddedRaw DecodePng DecodeProtoV2 DecodeRaw DecodeWav Eig
    Lu MatchingFiles MatrixInverse MatrixLogarithm MatrixSolveLs ParseExample
    ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2
    ParseSingleExample ParseSingleSequenceExample ParseTensor Range ReadFile
    SelfAdjointEig SelfAdjointEigV2 StringToNumber Substr
    """,
  ),
  ((0,), 'Assert BandedTriangularSolve MatrixSolve MatrixTriangularSolve'),
  ((0,), 'TridiagonalSolve'),
  ((1,), 'CTCBeamSearchDecoder CTCGreedyDecoder RegexFullMatch RegexReplace'),
  ((1, 2), 'RandomUniformInt'),
  ((1, 2, 3), 'CTCLoss CTCLossV2'),
  ((2, 3), 'StatelessRandomUniformInt'),
  ((3, 4), 'StatefulUniformInt StatelessRandomUniformIntV2'),
  # Sizes.
  ((0,), 'Fill'),
  ((1,), 'BroadcastTo MirrorPad OneHot Pad PadV2 Reshape SplitV'),
  ((1,), 'TensorListReserve Tile TopKV2 Transpose'),
  ((1, 2), 'Slice'),
  ((2,), 'LinSpace'),
)
# Of integers: divisors, and exponents.
_INTEGERS = {'Div', 'FloorDiv', 'FloorMod', 'Mod', 'Pow', 'TruncateDiv'}
_INTEGERS |= {'TruncateMod'}
# Unless they are asked to replace what they cannot read.
_STRICT = {'UnicodeDecode', 'UnicodeDecodeWithOffsets', 'UnicodeEncode'}
_STRICT |= {'UnicodeTranscode'}
_SHOWING = re.compile(
  'Print(V2)?$|WriteFile$|Write.*Summary|.*Summary(V2)?$|Save(V2|Slices)?$|'
  'Queue(TryEnqueue|Enqueue)|.*QueueEnqueue|LookupTable(Insert|Import|Remove)|'
  'Stack?Push|Stage$|(Ordered)?Map(Unordered)?Stage$|Barrier.*Insert|'
  'Assign.*Variable|Resource(Scatter|StridedSliceAssign|(Sparse)?Apply)'
)
# A variable keeps what it was given, without noise.
_VARIABLE = re.compile('Assign|Resource')
_PYTHON = re.compile('.*PyFunc')
# Give the shape of their input, and nothing of its values.
_SHAPES = {'Rank', 'Shape', 'ShapeN', 'Size', 'TensorListLength'}
_CONSTANT = {'OnesLike', 'ZerosLike'}
# The shape of what they give depends on values of any input.
_SHAPING = re.compile(
  'Where$|Unique|DynamicPartition$|ListDiff$|NonMaxSuppression|StringSplit|'
  'UnicodeDecode|Ragged|StringNGrams$|DenseTo|DenseCount|'
  'Sparse(Bincount|Concat|Count|Cross|FillEmptyRows|Slice|Split|To)'
)
# Of these the inputs that say what shape comes out, or a part of it.
_SHAPED_BY = _inputs_of(
  ((0,), 'Fill'),
  ((0, 1, 2), 'Range'),
  ((1,), 'BroadcastTo MirrorPad Pad PadV2 Reshape Tile TopKV2'),
  ((1, 2), 'Slice'),
  ((1, 2, 3), 'StridedSlice'),
  ((2,), 'ScatterNd UnsortedSegmentMax UnsortedSegmentSum'),
)
_SHAPED_WHOLLY = {'BroadcastTo', 'Fill', 'Range', 'ScatterNd'}
_SHAPED_WHOLLY |= {'UnsortedSegmentMax', 'UnsortedSegmentSum'}
_OURS = b'must be the examples of the loss'
_REPLACE = (
  'Replace it by what gives every row some number (NaN will do: such a row is '
  'left out), or do it to the table before.'
)
_CHANGES = (
  'keeps what comes from rows: it changes a variable by itself, from private '
  'rows and without noise'
)
_KEEPS = (
  'Set `trainable = False` on the layer, if it then stops, or replace it (a '
  'recurrent layer must not be stateful).'
)
_COUNT = (
  'Give the loop a number of turns that ends it for every row: '
  'tf.while_loop(..., maximum_iterations=...).'
)
_LIST = tf.variant.as_datatype_enum


class _Flow(NamedTuple):
  """What of a tensor depends on what is in the rows.

  Attributes:
    values: its values.
    sizes: its values, by shapes only.
    shape: its shape.
    turns: no more of its values than how many turns a loop made that ends:
      rows may decide about the number, but not make it endless.
  """

  values: bool = False
  sizes: bool = False
  shape: bool = False
  turns: bool = False

  def joined(self, *others):
    flows = self, *others
    values, sizes, shape, _ = map(any, zip(*flows))
    turns = values and all(flow.turns for flow in flows if flow.values)
    return _Flow(values, sizes, shape, turns)


def refuse_operations(
  traced: tf.types.experimental.ConcreteFunction,
  layers: Sequence[keras.layers.Layer],
  what: str,
  loops: bool = True,
) -> None:
  """Refuses a graph in which rows reach what may fail, show or keep them.

  Args:
    traced: a concrete function whose arguments are private.
    layers: the Keras layers, to name the one it is.
    what: what the graph computes, at the start of a sentence.
    loops: whether to look at loops too, which must end.

  Raises:
    ValueError: naming the operation, the layer if it is one's, and the fix.
  """
  captured = {id(x) for x in traced.graph.internal_captures}
  private = {x.op.name for x in traced.graph.inputs if id(x) not in captured}
  found = _Scan(traced.graph.as_graph_def(), private, loops).found
  for op, path, why, fix in found:
    raise ValueError(
      f'{place(path, layers, what)} uses the operation {op}, which {why}. '
      'Private rows must not decide whether training goes on, nor be written '
      f'down. {fix}'
    )


def place(path: str, layers: Sequence[keras.layers.Layer], what: str) -> str:
  """Returns what to call a node: its layer, or `what` and its path."""
  names = {layer.name for layer in layers}
  for part in reversed(re.split('[/:]', path)):
    if part in names:
      return f'The layer {part}'
  return f'{what} ({path})' if path else what


class _Scan:
  """Follows what comes from rows through a graph and its functions.

  Args:
    graph: a `GraphDef`.
    private: names of the placeholders of rows.
    loops: whether loops must end.

  Attributes:
    found: (operation, path of its node, what it does, what to do about it), for
      each refused.
  """

  def __init__(self, graph, private, loops):
    self._loops = loops
    self._functions = {f.signature.name: f for f in graph.library.function}
    self._done = {}
    self.found = []
    self._nodes(graph.node, {n: [_Flow(values=True)] for n in private}, False)

  def _function(self, name, flows, inside):
    """Returns what the outputs of a function depend on."""
    key = name, tuple(flows), inside
    if key not in self._done:
      # A function that calls itself would not end.
      function = self._functions[name]
      outputs = function.signature.output_arg
      self._done[key] = [_Flow(True, True, True)] * len(outputs)
      arguments = [a.name for a in function.signature.input_arg]
      known = {a: [f] for a, f in zip(arguments, flows)}
      of = self._nodes(function.node_def, known, inside)
      self._done[key] = [of(function.ret[a.name]) for a in outputs]
    return self._done[key]

  def _nodes(self, nodes, known, inside):
    """Follows nodes; returns a function from a reference to its `_Flow`."""
    flows = dict(known)

    def of(reference):
      parts = reference.split(':')
      found = flows.get(parts[0], [_Flow()])
      index = int(parts[-1]) if len(parts) > 1 else 0
      return found[index] if index < len(found) else found[-1]

    nodes = [n for n in nodes if n.name not in flows]
    # That axis 0 is the examples is checked by the gradients themselves.
    ours = {n.name for n in nodes if n.op == 'Const' and _is_ours(n)}
    waiting = {n.name for n in nodes}

    def visit(node):
      waiting.discard(node.name)
      said = {i.split(':')[0] for i in node.input}
      if node.op != 'Assert' or not ours & said:
        found = [of(i) for i in _inputs(node)]
        flows[node.name] = self._node(node, found, inside)

    # Those of a function may stand in any order.
    while nodes:
      later = []
      for node in nodes:
        if any(i.split(':')[0] in waiting for i in _inputs(node)):
          later.append(node)
        else:
          visit(node)
      if len(later) == len(nodes):
        visit(later.pop(0))
      nodes = later
    return of

  def _node(self, node, inputs, inside):
    functions = _functions_of(node)
    functions = [f for f in functions if f in self._functions]
    if node.op in ('While', 'StatelessWhile'):
      return self._loop(node, inputs, inside)
    if node.op in ('If', 'StatelessIf', 'Case', 'StatelessCase'):
      chosen = inputs[0].values or inputs[0].sizes
      branches = [
        self._function(f, inputs[1:], inside or chosen) for f in functions
      ]
      joined = []
      for outputs in zip(*branches):
        joined.append(_Flow(chosen).joined(*outputs))
      return joined or [_Flow(chosen)]
    if functions and 'PartitionedCall' in node.op:
      return self._function(functions[0], inputs, inside) or [_Flow()]
    whole = _Flow().joined(*inputs)
    for function in functions:
      # Of some operation that is not known: as if all was private.
      arguments = self._functions[function].signature.input_arg
      self._function(function, [whole] * len(arguments), inside)
    self._refuse(node, inputs, whole, inside)
    return [_after(node, inputs, whole)]

  def _loop(self, node, inputs, inside):
    condition, body = node.attr['cond'].func.name, node.attr['body'].func.name
    loop = Loop(condition, body, self._functions)
    flows = list(inputs)
    # Ends: what depends on rows only grows.
    while True:
      (more,) = self._function(condition, flows, inside)
      chosen = more.values or more.sizes
      after = self._function(body, flows, inside or chosen)
      turns = _Flow(more.values, more.sizes)
      # Of a list of what was computed in each turn only the length.
      length = _Flow(shape=more.values or more.sizes)
      joined = [
        a if fixed else a.joined(b, length if kind == _LIST else turns)
        for a, b, fixed, kind in zip(
          flows, after, loop.fixed, node.attr['T'].list.type
        )
      ]
      if joined == flows:
        break
      flows = joined
    if self._loops and (chosen or inside):
      counters = loop.counters([not f.values or f.turns for f in inputs])
      if counters is None:
        why = 'goes on for as long as rows say, perhaps for ever'
        self.found.append((node.op, node.name, why, _COUNT))
      for i in counters or ():
        flows[i] = flows[i]._replace(turns=True)
    return flows or [_Flow()]

  def _refuse(self, node, inputs, whole, inside):
    private, fix = any(whole), _REPLACE
    if _PYTHON.match(node.op) and (private or inside):
      why = 'runs Python on rows, which may fail or write them down'
    elif _SHOWING.match(node.op) and (private or inside):
      why = 'writes down, or keeps, what comes from rows'
      if _VARIABLE.match(node.op):
        why, fix = _CHANGES, _KEEPS
    elif node.op in ('Abort', 'Assert', 'CheckNumerics') and inside:
      why = 'fails for some rows'
    elif _fails(node, inputs):
      why = 'fails for some values, and gets them from rows'
    else:
      return
    self.found.append((node.op, node.name, why, fix))


def _fails(node, inputs):
  op = node.op
  if op == 'EnsureShape':
    return inputs[0].shape
  if op in _STRICT:
    return inputs[0].values and node.attr['errors'].s == b'strict'
  if op in _INTEGERS:
    if not tf.as_dtype(node.attr['T'].type).is_integer:
      return False
    places = (1,)
  elif op == 'StridedSlice':
    # Ranges are cut to what there is; single places are not.
    if not node.attr['shrink_axis_mask'].i:
      return False
    places = (1, 2)
  elif op in _FAILING:
    places = _FAILING[op] or range(len(inputs))
  else:
    return False
  found = [inputs[i] for i in places if i < len(inputs)]
  # Sizes that come from shapes fit the shapes, as a rule.
  by_sizes = op == 'Assert' and any(flow.sizes for flow in found)
  return by_sizes or any(flow.values for flow in found)


def _after(node, inputs, whole):
  """Returns what the outputs of a plain operation depend on."""
  op = node.op
  if op in _SHAPES:
    return _Flow(sizes=whole.shape)
  if op in _CONSTANT:
    return _Flow(shape=whole.shape)
  shape = whole.shape
  if _SHAPED_BY.get(op) is not None:
    by = [inputs[i] for i in _SHAPED_BY[op] if i < len(inputs)]
    shape = any(flow.values or flow.sizes for flow in by)
    # All the others keep something of the shape of what they take.
    shape |= op not in _SHAPED_WHOLLY and inputs[0].shape
  elif _SHAPING.match(op):
    shape |= whole.values or whole.sizes
  return whole._replace(shape=shape)


def _inputs(node):
  return [i for i in node.input if not i.startswith('^')]


def _is_ours(node):
  return any(_OURS in text for text in node.attr['value'].tensor.string_val)


def _functions_of(node):
  found = []
  for value in node.attr.values():
    if value.HasField('func'):
      found.append(value.func.name)
    found += [f.name for f in value.list.func]
  return found
