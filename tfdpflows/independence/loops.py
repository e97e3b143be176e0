"""Whether a loop ends whatever is in the rows, from its graph alone.

A loop that goes on for as long as rows say may never end, and that it does not
would tell of the row. A loop is known to end where it counts its turns:

- A variable n of the loop becomes n + c in every turn, with a constant c > 0,
  and the condition, or the condition after a few more turns, is false once n is
  past the limits that it is compared with. That is `maximum_iterations` of
  `tf.while_loop`, and a flag to stop that is set when a count is reached.
- Each element of n becomes n + c unless a mask m is true there, as in TFP's
  root searches. The condition asks whether any element of X is true, where X is
  computed element by element, is false where n is past its limit, and false
  where m is true, in this turn or the one before. Then every turn has an
  element that counts, or counted in the turn before, and was not past its
  limit; n never falls; so the turns are at most one more than elements times
  counts.

Limits and what n begins with are constants of at most `ranges.LARGEST`, sizes
of tensors, or counts of other loops. So n of int32 or int64 does not begin anew
before it is past them, and n of float32 or float64, with c >= 1, is not rounded
to itself. A short type, or a limit from weights, shows nothing.

Both are decided by evaluating the graphs of condition and body on "past every
limit", true and false; what is not understood is unknown, so that a loop of
which nothing is known counts as one that may not end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tfdpflows.independence import ranges

_PAST, _TRUE, _FALSE = 'past', 'true', 'false'
_ALWAYS = ()
_LESS = {'Less', 'LessEqual'}
_GREATER = {'Greater', 'GreaterEqual'}
_SUMS = {'Add', 'AddV2', 'Sub'}
_NUMBERS = {'Cast', 'Maximum', 'Minimum', *_SUMS}
_KNOWN = {'All', 'Any', 'Equal', 'IsNan', 'LogicalAnd', 'LogicalNot'}
_KNOWN |= {'LogicalOr', 'NotEqual', 'SelectV2'}
_KNOWN |= _LESS | _GREATER | _NUMBERS
_SAME = {'BroadcastTo', 'Identity', 'Snapshot'}
# The least constant c of counters, by dtype.
_COUNTING = {'<i4': 1, '<i8': 1, '<f4': 1.0, '<f8': 1.0}
# What is past all limits of its type stays so.
_WIDE_CASTS = {f'Cast {t}' for t in ('int32', 'int64', 'float32', 'float64')}
# A count reaches the condition through at most this many variables.
_TURNS = 3
_DEPTH = 100


class Loop:
  """What the graphs of a loop, condition and body, say of its variables.

  Attributes:
    fixed: for each variable of the loop, whether it stays as it is.
  """

  def __init__(self, condition: str, body: str, functions: dict[str, Any]):
    count = len(functions[body].signature.input_arg)
    self._terms = terms = _Terms(functions)
    self._arguments = [terms.make('argument', i) for i in range(count)]
    (self._condition,) = terms.of_function(
      condition, self._arguments, is_condition=True
    )
    self._after = terms.of_function(body, self._arguments)
    self.fixed = [a == b for a, b in zip(self._after, self._arguments)]

  def counters(self, small: Sequence[bool]) -> Optional[list[int]]:
    """Returns the counters that show that a loop ends, `None` if it may not.

    They are numbers of variables that count every turn from a `small` start,
    one that `ranges.is_small` holds for.
    """
    terms = self._terms
    terms.limits = {
      argument
      for argument, fixed, fine in zip(self._arguments, self.fixed, small)
      if fixed and fine
    }
    found = {
      i: terms.counts(term, self._arguments[i])
      for i, term in enumerate(self._after)
      if small[i]
    }
    masks = {i: mask for i, mask in found.items() if mask is not None}
    if not any(self._ends(i, mask) for i, mask in masks.items()):
      return None
    return [i for i, mask in masks.items() if mask == _ALWAYS]

  def _ends(self, counter, mask):
    """Whether the condition ends a loop with this counter."""
    terms, argument = self._terms, self._arguments[counter]
    asked = self._condition
    by_element = mask != _ALWAYS
    if by_element:
      asked = terms.by_element(asked)
    known = {argument: _PAST}
    for _ in range(_TURNS):
      if terms.value(asked, known, by_element) == _FALSE:
        break
      found = [terms.value(term, known, by_element) for term in self._after]
      known = {
        a: value
        for a, value in zip(self._arguments, found)
        if value in (_TRUE, _FALSE)
      }
      known[argument] = _PAST
    else:
      return False
    if not by_element:
      return True
    term, rests = mask
    same = [a for a, t in zip(self._arguments, self._after) if t == term]
    return any(
      terms.value(asked, {m: rests}, True) == _FALSE for m in (term, *same)
    )


class _Terms:
  """Expressions as numbers: equal ones have the same number.

  Attributes:
    limits: those that stay as they are in the loop, and rows do not decide.
  """

  def __init__(self, functions):
    self._functions = functions
    self._numbers, self._terms, self._calls = {}, [], 0
    self.limits = set()

  def make(self, *term):
    if term not in self._numbers:
      self._numbers[term] = len(self._terms)
      self._terms.append(term)
    return self._numbers[term]

  def of_function(self, name, arguments, depth=0, is_condition=False):
    """Returns the terms of what a function gives."""
    function = self._functions[name]
    names = [argument.name for argument in function.signature.input_arg]
    found = dict(zip(names, arguments))
    nodes = {node.name: node for node in function.node_def}
    # What an operation gives is known only within one call.
    self._calls += 1
    call = self._calls

    def of(reference, depth=depth):
      if reference not in found:
        found[reference] = read(reference, depth + 1)
      return found[reference]

    def read(reference, depth):
      node = nodes.get(reference.split(':')[0])
      opaque = 'opaque', call, reference
      if node is None or depth > _DEPTH:
        return self.make(*opaque)
      inputs = [i for i in node.input if not i.startswith('^')]
      if node.op in _SAME:
        return of(inputs[0], depth)
      if node.op == 'Squeeze' and is_condition and depth == 1:
        # Of the whole condition, which is one number.
        return of(inputs[0], 0)
      if node.op == 'Const':
        value = tf.make_ndarray(node.attr['value'].tensor)
        return self.make(
          'constant', value.dtype.str, value.shape, _bytes(value)
        )
      if node.op in ('If', 'StatelessIf') or 'PartitionedCall' in node.op:
        index = int(reference.split(':')[-1])
        inputs = [of(i, depth) for i in inputs]
        if 'PartitionedCall' in node.op:
          return self.of_function(node.attr['f'].func.name, inputs, depth)[
            index
          ]
        branches = [
          self.of_function(node.attr[b].func.name, inputs[1:], depth)[index]
          for b in ('then_branch', 'else_branch')
        ]
        return self.make('SelectV2', inputs[0], *branches)
      # What keeps an axis is not aligned with what does not.
      if node.op not in _KNOWN or node.attr['keep_dims'].b:
        return self.make(*opaque)
      op = node.op
      if op == 'Cast':
        # To other types it gives other numbers.
        op = f'Cast {tf.as_dtype(node.attr["DstT"].type).name}'
      return self.make(op, *(of(i, depth) for i in inputs))

    return [of(function.ret[a.name]) for a in function.signature.output_arg]

  def by_element(self, term):
    """Returns X of "any of X", for a condition that asks for it."""
    op, *inputs = self._terms[term]
    if op == 'Any':
      return inputs[0]
    if op == 'LogicalNot':
      inner, *every = self._terms[inputs[0]]
      if inner == 'All':
        return self.make('LogicalNot', every[0])
    return term

  def counts(self, after, before):
    """Returns when an element does not count: a term, and its value then.

    `_ALWAYS` for what counts in every turn; `None` for what is no counter.
    """
    op, *inputs = self._terms[after]
    if op == 'SelectV2' and before in inputs[1:]:
      counted = inputs[2 if inputs[1] == before else 1]
      if self.counts(counted, before) == _ALWAYS:
        return inputs[0], _TRUE if inputs[1] == before else _FALSE
    if op in ('Add', 'AddV2') and before in inputs:
      step = self._terms[inputs[1 - inputs.index(before)]]
      if step[0] == 'constant' and _positive(step[1:]):
        return _ALWAYS
    return None

  def is_limit(self, term, of_sums=False):
    """Whether a term is small, or, within no sum, a sum of two of these."""
    if not isinstance(term, int):
      return False
    op, *inputs = self._terms[term]
    if op == 'constant':
      return _small(_values(inputs))
    if term in self.limits:
      return True
    sums = of_sums or op in _SUMS
    return (
      _name(op) in _NUMBERS
      and not (of_sums and op in _SUMS)
      and all(self.is_limit(i, sums) for i in inputs)
    )

  def value(self, term, known, by_element):
    """Evaluates a term: 'past', 'true' or 'false', or a simpler term.

    Some are known, all their elements or, `by_element`, one.
    """
    found = dict(known)

    def of(term):
      if term not in found:
        found[term] = self._evaluated(term, of, by_element)
      return found[term]

    return of(term)

  def _evaluated(self, term, of, by_element):
    op, *inputs = self._terms[term]
    if op == 'constant' and inputs[0] == '|b1' and len(set(inputs[2])) == 1:
      return _TRUE if inputs[2][0] else _FALSE
    if op in ('argument', 'constant', 'opaque'):
      return term
    values = [of(i) for i in inputs]
    first, last = values[0], values[-1]
    past = _PAST in values and all(
      v == _PAST or self.is_limit(v) for v in values
    )
    simpler = self.make(op, *values)
    if op == 'LogicalNot':
      return {_TRUE: _FALSE, _FALSE: _TRUE}.get(first, simpler)
    if op == 'LogicalAnd' and _FALSE in values:
      return _FALSE
    if op == 'LogicalOr' and (_TRUE in values or self._covers(simpler)):
      return _TRUE
    if op in ('LogicalAnd', 'LogicalOr'):
      neutral = _TRUE if op == 'LogicalAnd' else _FALSE
      rest = [v for v in values if v != neutral]
      return rest[0] if len(rest) == 1 else simpler if rest else neutral
    if op in ('Any', 'All'):
      # Of no elements any is false, and all is true.
      keeps = first == (_FALSE if op == 'Any' else _TRUE)
      return first if keeps and not by_element else self.make('opaque', simpler)
    if op == 'SelectV2':
      if first in (_TRUE, _FALSE):
        return values[1] if first == _TRUE else last
      return last if values[1] == last else simpler
    if op in _LESS | _GREATER | {'Equal', 'NotEqual'} and past:
      if first == last:
        return simpler
      if op in ('Equal', 'NotEqual'):
        return _FALSE if op == 'Equal' else _TRUE
      return _TRUE if (op in _GREATER) == (first == _PAST) else _FALSE
    if op in _WIDE_CASTS and past:
      return _PAST
    if op in _SUMS and past and (op != 'Sub' or last != _PAST):
      # Of the counter itself, so that it is past a sum of few limits.
      counter = inputs[values.index(_PAST)]
      if _name(self._terms[counter][0]) in ('argument', 'Cast'):
        return _PAST
    return simpler

  def _covers(self, term):
    """Whether one of "x is NaN" and "x equals x" is in a disjunction."""
    parts, waiting = set(), [term]
    while waiting:
      one = self._terms[waiting.pop()]
      parts.add(one)
      if one[0] == 'LogicalOr':
        waiting += [i for i in one[1:] if isinstance(i, int)]
    same = [p[1] for p in parts if p[0] == 'Equal' and p[1] == p[2]]
    return any(('IsNan', x) in parts for x in same)


def _bytes(value):
  return value.tobytes() if value.dtype != object else repr(value)


def _name(op):
  return op.split()[0]


def _small(values):
  known = values.size and values.dtype.kind in 'iuf'
  return bool(known) and ranges.is_small(
    (values.min().item(), values.max().item())
  )


def _positive(constant):
  values = _values(constant)
  least = _COUNTING.get(values.dtype.str)
  return least is not None and _small(values) and bool(np.all(values >= least))


def _values(constant):
  dtype, _, data = constant
  if not isinstance(data, bytes):
    return np.array([], object)
  return np.frombuffer(data, dtype)
