"""Static scan of a graph: operations that may fail for a row, or show it.

Clipping and noise hide what a row adds to an update. They do not hide that a
training ended, or goes on for ever, nor what its error says. So a step is
traced, forward and backward, before anything is computed, and refused where

- an operation that is known to fail for some values, to write them down or to
  keep them gets values from rows;
- rows decide the shape of a tensor: most operations fail for some shapes. This
  stays within layers of Keras that work for all rows, see `_is_known`;
- rows decide how long a loop goes on and nothing shows that it ends, see
  `loops`;
- a lookup gets an index that is computed from rows and weights and not known to
  be in range: that it is at some weights says nothing of others. Indices from
  rows alone are run on unusual rows, see `checker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfdpflows._keras import keras
from tfdpflows.independence import loops, ranges, shape_arithmetic


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
    InvertPermutation Lu MatchingFiles MatrixInverse MatrixLogarithm
    MatrixSolveLs MatrixSquareRoot ParameterizedTruncatedNormal ParseExample
    ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2
    ParseSingleExample ParseSingleSequenceExample ParseTensor Range ReadFile
    SelfAdjointEig SelfAdjointEigV2 StatelessParameterizedTruncatedNormal
    StringToNumber Substr
    """,
  ),
  ((0,), 'Assert BandedTriangularSolve MatrixSolve MatrixTriangularSolve'),
  ((0,), 'TridiagonalSolve'),
  ((1,), 'CTCBeamSearchDecoder CTCGreedyDecoder RegexFullMatch RegexReplace'),
  ((1,), 'ReverseSequence TensorListGetItem TensorListSetItem'),
  ((1, 2), 'CropAndResize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3'),
  ((1, 2), 'QuantizeAndDequantizeV4 RandomUniformInt'),
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
_WRITES = re.compile(
  'Assign|Resource(Apply|CountUpTo|Scatter|Sparse|StridedSliceAssign)'
)
_PYTHON = re.compile('.*PyFunc')
# Have a state that no row changes, or stop.
_STATEFUL = {
  *('Abort', 'Assert', 'CheckNumerics', 'CheckNumericsV2', 'ReadVariableOp'),
  *('ResourceGather', 'ResourceGatherNd', 'VarHandleOp'),
  *('HashTableV2', 'LookupTableFindV2', 'LookupTableSizeV2', 'Multinomial'),
  *('RandomShuffle', 'RngReadAndSkip', 'RngSkip', 'StatefulStandardNormalV2'),
  *('StatefulTruncatedNormal', 'StatefulUniform', 'StatefulUniformFullInt'),
  *('StatefulUniformInt', 'RandomUniform', 'RandomStandardNormal'),
  *('RandomUniformInt', 'TruncatedNormal', 'RandomGamma', 'RandomPoissonV2'),
  *('ParameterizedTruncatedNormal', 'VarIsInitializedOp', 'VariableShape'),
}
# Give another shape for other values of these inputs.
_SHAPED_BY = _inputs_of(
  (
    None,
    """
    CombinedNonMaxSuppression DenseCountSparseOutput DenseToDenseSetOperation
    DenseToSparseSetOperation DynamicPartition ListDiff NonMaxSuppression
    NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4
    NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps RaggedCountSparseOutput
    RaggedCross RaggedFillEmptyRows RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor StringNGrams StringSplit
    StringSplitV2 UnicodeDecode UnicodeDecodeWithOffsets Unique UniqueV2
    UniqueWithCounts UniqueWithCountsV2 Where
    """,
  ),
  ((0,), 'DynamicStitch ParallelDynamicStitch RandomStandardNormal'),
  ((0,), 'RandomUniform StatelessRandomNormalV2 StatelessRandomUniformV2'),
  ((1,), 'Bincount DenseBincount RaggedBincount SegmentMax SegmentMean'),
  ((1,), 'SegmentMin SegmentProd SegmentSum'),
  ((2,), 'ScatterNd UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd'),
  ((2,), 'UnsortedSegmentSum'),
  ((1, 2, 3), 'StridedSlice'),
)
_SPARSE = re.compile('Sparse(?!Softmax)')
# In layers that work for all rows these make one shape of what has many.
_CLOSING = {'RaggedBincount', 'RaggedTensorToTensor', 'Reshape'}
# Give the shape of their input, and nothing of its values.
_SHAPES = {'Rank', 'Shape', 'ShapeN', 'Size'}
_CONSTANT = {'OnesLike', 'ZerosLike'}
_OF_ALL = re.compile('TensorList(Concat|Gather|Split|Stack)')
# Index, table and axis (`None`: of another input); each fails out of range.
_LOOKUPS = {
  'Gather': (1, 0, 0),
  'GatherV2': (1, 0, None),
  'ResourceGather': (1, 0, 0),
  'SparseSoftmaxCrossEntropyWithLogits': (1, 0, -1),
}
# Fail at other indices than a tensor has; the place of the index.
_OTHER_LOOKUPS = {
  **dict.fromkeys(
    ('Bincount', 'DenseBincount', 'ScatterNd', 'UnravelIndex'), 0
  ),
  **{f'TensorScatter{k}': 1 for k in ('Add', 'Max', 'Min', 'Sub', 'Update')},
  **dict.fromkeys(('GatherNd', 'MatrixBandPart'), 1),
}
# Hand on what they are given.
_HANDING = re.compile('Identity$|Optional|TensorList(PopBack|PushBack)')
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
  'Bound the number of iterations for every row: '
  'tf.while_loop(..., maximum_iterations=...).'
)
_SHAPE = 'works on shapes that rows decide, and fails for some'
_FIXED = (
  'Keep the shape: tf.where with three arguments in place of tf.boolean_mask, '
  'a mask to multiply by, padding to a fixed length. For text, give '
  'TextVectorization an output_sequence_length.'
)
_INDEX = (
  'looks up at an index computed from rows and weights, which may leave its '
  'range'
)
_CLIP = 'Clip the index as an integer, after any cast: tf.clip_by_value.'
_HANDLES = (tf.variant.as_datatype_enum, tf.resource.as_datatype_enum)


class _Flow(NamedTuple):
  """What of a tensor depends on what is in the rows."""

  values: bool = False
  weights: bool = False  # Whether its values also depend on variables.
  shape: bool = False
  length: bool = False  # That of a list of tensors.
  # Whether it holds counts of turns of loops that end, and nothing computed
  # from rows or weights: these are limits of other loops.
  turns: bool = False
  span: Optional[ranges.Span] = None  # Least and largest number, if known.
  dims: Optional[tuple] = None  # Static shape, if known.

  def joined(self, *others):
    flows = self, *others
    *depends, turns, spans, dims = zip(*flows)
    others = [f for f in flows if (f.values or f.weights) and not f.turns]
    return _Flow(
      *map(any, depends),
      any(turns) and not others,
      *(x[0] if len(set(x)) == 1 else None for x in (spans, dims)),
    )


def refuse_operations(
  traced: tf.types.experimental.ConcreteFunction,
  layers: Sequence[keras.layers.Layer],
  what: str,
  retraced: Optional[Callable] = None,
) -> None:
  """Refuses a graph in which rows reach what may fail, show or keep them.

  All arguments of the graph are private. `retraced` is a function that returns
  the same for a fixed number of rows, where all shapes are known that rows do
  not decide; without it shapes, loops and lookups are not looked at.

  Raises:
    ValueError: naming the operation, the layer if it is one's, and the fix.
  """
  scan = _Scan(traced, layers, strict=retraced is not None)
  found = scan.found
  if retraced is not None and scan.chooses and not found:
    found = _Scan(retraced(), layers, strict=True, fixed=True).found
  # What an assertion is made from tells less of the mistake.
  for op, path, why, fix in sorted(found, key=lambda one: one[0] != 'Assert'):
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

  If `strict`, also through loops, branches and lookups; `fixed` if the shapes
  are known that rows do not decide.

  Attributes:
    found: (operation, path of its node, what it does, what to do about it), for
      each refused.
    chooses: whether rows choose a branch or the length of a loop.
  """

  def __init__(self, traced, layers, strict, fixed=False):
    self._strict, self._fixed = strict, fixed
    self._known = {layer.name for layer in layers if _is_known(layer)}
    self._known -= {layer.name for layer in layers if not _is_known(layer)}
    graph = traced.graph.as_graph_def(add_shapes=True)
    self._functions = {f.signature.name: f for f in graph.library.function}
    self._done = {}
    self.found, self.chooses = [], False
    known = {x.op.name: [_Flow(values=True)] for x in traced.graph.inputs}
    for outer, inner in traced.graph.captures:
      dims = _variable_dims(outer)
      known[inner.op.name] = [_Flow(weights=dims is not None, dims=dims)]
    self._nodes(graph.node, known, False)

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
        found = self._node(
          node, [of(i) for i in shape_arithmetic.data_inputs(node)], inside
        )
        dims = _dims_of(node) or [None]
        found = found if len(found) == len(dims) else found * len(dims)
        flows[node.name] = [f._replace(dims=d) for f, d in zip(found, dims)]

    # Those of a function may stand in any order.
    while nodes:
      later = []
      for node in nodes:
        if any(
          i.split(':')[0] in waiting for i in shape_arithmetic.data_inputs(node)
        ):
          later.append(node)
        else:
          visit(node)
      if len(later) == len(nodes):
        visit(later.pop(0))
      nodes = later
    return of

  def _node(self, node, inputs, inside):
    """Returns what the outputs of a node depend on; one for all alike."""
    called = shape_arithmetic.functions_of(node)
    functions = [f for f in called if f in self._functions]
    if node.op in ('While', 'StatelessWhile'):
      return self._loop(node, inputs, inside)
    if node.op in ('If', 'StatelessIf', 'Case', 'StatelessCase'):
      return self._branches(node, functions, inputs, inside)
    if functions and 'PartitionedCall' in node.op:
      return self._function(functions[0], inputs, inside) or [_Flow()]
    whole = _Flow().joined(*inputs)
    for function in functions:
      # Of some operation that is not known: as if all was private.
      arguments = self._functions[function].signature.input_arg
      self._function(function, [whole] * len(arguments), inside)
    in_known = not self._known.isdisjoint(node.name.split('/'))
    self._refuse(node, inputs, whole, inside, in_known)
    if self._strict and _is_shaped(node.op, inputs, whole):
      whole = whole._replace(shape=True)
    return _after(node, inputs, whole, in_known)

  def _branches(self, node, functions, inputs, inside):
    chosen = inputs[0].values
    branches = [
      self._function(f, inputs[1:], inside or chosen) for f in functions
    ]
    if chosen:
      self._refuse_shapes(node, node.attr['Tout'])
    choice = _Flow(chosen, inputs[0].weights)
    joined = [choice.joined(*outputs) for outputs in zip(*branches)]
    return joined or [choice]

  def _loop(self, node, inputs, inside):
    condition, body = node.attr['cond'].func.name, node.attr['body'].func.name
    loop = loops.Loop(condition, body, self._functions)
    kinds = node.attr['T'].list.type
    flows = list(inputs)
    # Ends: what depends on rows only grows.
    while True:
      (more,) = self._function(condition, flows, inside)
      chosen = more.values
      after = self._function(body, flows, inside or chosen)
      # Of a list of what was computed in each turn only the length.
      joined = [
        a
        if fixed
        else a.joined(b, _Flow(length=chosen))
        if kind == _HANDLES[0]
        else a.joined(b, _Flow(chosen, more.weights))
        for a, b, fixed, kind in zip(flows, after, loop.fixed, kinds)
      ]
      if joined == flows:
        break
      flows = joined
    counters = loop.counters(
      [f.turns or ranges.is_small(f.span) for f in inputs]
    )
    if self._strict and (chosen or inside) and counters is None:
      why = 'goes on for as long as rows say, perhaps for ever'
      self.found.append((node.op, node.name, why, _COUNT))
    if chosen:
      self._refuse_shapes(node, node.attr['T'])
    for i in counters or ():
      flows[i] = flows[i]._replace(turns=True)
    return flows or [_Flow()]

  def _refuse_shapes(self, node, kinds):
    """Refuses what has another shape for another choice of rows."""
    self.chooses = True
    shapes = node.attr['output_shapes'].list.shape
    known = [
      kind in _HANDLES or tf.TensorShape(shape).is_fully_defined()
      for kind, shape in zip(kinds.list.type, shapes)
    ]
    if self._fixed and not all(known):
      self.found.append((node.op, node.name, _SHAPE, _FIXED))

  def _refuse(self, node, inputs, whole, inside, in_known):
    op = node.op
    private, fix = whole.values or whole.shape or whole.length, _REPLACE
    if _PYTHON.match(op) and (private or inside):
      why = 'runs Python on rows, which may fail or write them down'
    elif _SHOWING.match(op) and (private or inside):
      why = 'writes down, or keeps, what comes from rows'
      if _VARIABLE.match(op):
        why, fix = _CHANGES, _KEEPS
    elif op in ('Abort', 'Assert', 'CheckNumerics') and inside:
      why = 'fails for some rows'
    elif op != 'Assert' and in_known:
      return
    elif _fails(node, inputs):
      why = 'fails for some values, and gets them from rows'
    elif self._strict and _is_shaped(op, inputs, whole):
      why, fix = _SHAPE, _FIXED
    elif self._strict and _leaves_range(node, inputs):
      why, fix = _INDEX, _CLIP
    else:
      return
    self.found.append((op, node.name, why, fix))


def writes_variable(op: str) -> bool:
  """Whether an operation writes the variable that is its first input."""
  return bool(_WRITES.match(op))


def may_keep(op: str) -> bool:
  """Whether an operation has a state, in which it may keep its inputs."""
  definition = op_def_registry.get(op)
  stateful = definition is None or definition.is_stateful
  return stateful and op not in _STATEFUL


def _at(table, op, inputs):
  """Returns the inputs that a table names for an operation."""
  places = range(len(inputs)) if table[op] is None else table[op]
  return [inputs[i] for i in places if i < len(inputs)]


def _fails(node, inputs):
  op = node.op
  if op in _STRICT and node.attr['errors'].s == b'strict':
    return inputs[0].values
  if op in _INTEGERS:
    return tf.as_dtype(node.attr['T'].type).is_integer and inputs[1].values
  if op == 'StridedSlice' and node.attr['shrink_axis_mask'].i:
    # Ranges are cut to what there is; single places are not.
    return inputs[1].values
  return op in _FAILING and any(f.values for f in _at(_FAILING, op, inputs))


def _is_shaped(op, inputs, whole):
  """Whether rows decide a shape that an operation takes or gives."""
  if whole.shape and op not in _SHAPES:
    return True
  if op in _SHAPED_BY:
    return any(f.values for f in _at(_SHAPED_BY, op, inputs))
  if _SPARSE.match(op):
    return whole.values
  return whole.length and _OF_ALL.match(op)


def _leaves_range(node, inputs):
  if node.op in _OTHER_LOOKUPS:
    index = inputs[_OTHER_LOOKUPS[node.op]]
    if not (index.values and index.weights):
      return False
    # Which axis an index is for is not known: it must fit all.
    dims = inputs[0].dims if node.op == 'GatherNd' else None
    fits = index.span is not None and dims and None not in dims
    return not (fits and index.span[0] >= 0 and index.span[1] < min(dims))
  if node.op not in _LOOKUPS:
    return False
  place, table, axis = _LOOKUPS[node.op]
  index, dims = inputs[place], inputs[table].dims
  if not (index.values and index.weights):
    return False
  if axis is None:
    axis = ranges.constant(inputs[2].span)
  if index.span is None or dims is None or axis is None:
    return True
  size = dims[axis]
  return size is None or index.span[0] < 0 or index.span[1] >= size


def _after(node, inputs, whole, in_known):
  """Returns what the outputs of a plain operation depend on."""
  op, span = node.op, ranges.after(node, inputs, _dims_of(node))
  if op in _SHAPES:
    return [_Flow(values=whole.shape, span=span)]
  if op == 'TensorListLength':
    return [_Flow(values=whole.length)]
  turns = whole.turns and bool(_HANDING.match(op))
  flow = whole._replace(span=span, turns=turns)
  if ranges.constant(span) is not None:
    flow = flow._replace(values=False, weights=False)
  if op in _CONSTANT:
    flow = _Flow(shape=whole.shape, length=whole.length, span=span)
  if op == 'TensorListPushBack':
    flow = flow._replace(length=inputs[0].length)
  if op == 'TensorListPopBack':
    return [flow, flow._replace(length=False)]
  if in_known and op in _CLOSING:
    dims = _dims_of(node)[0]
    if dims and len(dims) > 1 and None not in dims[1:]:
      flow = flow._replace(shape=False)
  return [flow]


def _is_known(layer):
  """Whether a layer of Keras works for all rows, by no function of the user."""
  if type(layer) is keras.layers.HashedCrossing:
    return not layer.sparse
  if type(layer) is not keras.layers.TextVectorization:
    return False
  options = layer.get_config()
  return not callable(options['standardize']) and not callable(options['split'])


def _dims_of(node):
  """Returns the static shapes of the outputs of a node, where it has them."""
  # Not by `TensorShape`, whose making is a tenth of a scan.
  return [
    None
    if shape.unknown_rank
    else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    for shape in node.attr['_output_shapes'].list.shape
  ]


def _variable_dims(handle):
  """Returns the static shape of a variable; `None` for what is none."""
  data = getattr(handle, '_handle_data', None)
  if handle.dtype != tf.resource or data is None or not data.is_set:
    return None
  shape = tf.TensorShape(data.shape_and_type[0].shape)
  return None if shape.rank is None else tuple(shape.as_list())


def _is_ours(node):
  return any(_OURS in text for text in node.attr['value'].tensor.string_val)
