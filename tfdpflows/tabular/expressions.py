"""Arithmetic on columns, read from text and nothing but arithmetic."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

# No deeper than Python's stack.
_MOST_CHARACTERS = 300
_BINARY = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
  ast.Mod: operator.mod,
  ast.Pow: operator.pow,
}
_COMPARISONS = {
  ast.Lt: operator.lt,
  ast.LtE: operator.le,
  ast.Gt: operator.gt,
  ast.GtE: operator.ge,
}
_FUNCTIONS = {'abs': 1, 'floor': 1, 'min': 2, 'max': 2}
_NAMES = {'min': 'minimum', 'max': 'maximum'}


def _sides(node):
  """Returns what a node adds, subtracts or compares."""
  if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
    return node.left, node.right
  if isinstance(node, ast.Compare):
    return node.left, node.comparators[0]
  return (None,)


class Expression:
  """An arithmetic expression of columns.

  It has numbers, names of columns (in backticks if they are no identifiers, as
  pandas has it), `+ - * / // % **`, parentheses, one comparison by `<`, `<=`,
  `>` or `>=`, `abs` and `floor` of one argument, `min` and `max` of two.
  Nothing else is run. `x // y` is `floor(x / y)`.

  Args:
    text: the expression.

  Attributes:
    names: names of the columns, in the order of their first occurrence.
    sides: pairs of names that are added, subtracted or compared as they are.

  Raises:
    ValueError: saying what is no such expression.

  #### Example

  >>> import numpy as np
  >>> bmi = Expression('weight / (`height in cm` / 100) ** 2')
  >>> bmi.names
  ('weight', 'height in cm')
  >>> bmi({'weight': np.array([72.]), 'height in cm': np.array([180.])},
  ...     np).round(1)
  array([22.2])
  """

  def __init__(self, text: str):
    self._text = text
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
      raise self._error('it is not a string, or is too long')
    quoted = []

    def name(found):
      text = found[1] or found[2]
      # Python takes some letters for others, such as the sign of micro for mu.
      if found[2] and text.isascii() and not text.startswith('_quoted_'):
        return text
      quoted.append(text)
      return f'_quoted_{len(quoted) - 1}_'

    try:
      text = re.sub(r'`([^`]+)`|([^\W\d]\w*)', name, text).strip()
      if '#' in text:
        raise ValueError('Python would leave out what follows.')
      tree = ast.parse(text, mode='eval')
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
      raise self._error('it cannot be read') from error
    self._quoted = {f'_quoted_{i}_': name for i, name in enumerate(quoted)}
    self._body = tree.body
    found = []
    self._check(self._body, found, top=True)
    self.names = tuple(dict.fromkeys(found))
    self.sides = [
      tuple(self._quoted.get(side.id, side.id) for side in pair)
      for pair in map(_sides, ast.walk(self._body))
      if all(isinstance(side, ast.Name) for side in pair)
    ]

  def _error(self, problem):
    return ValueError(
      f'the expression {self._text!r}, which cannot be used: {problem}. Write '
      'numbers, names of columns (`in backticks` if they are no identifiers), '
      '+ - * / // % **, parentheses, abs, floor, min and max of two, and at '
      'most one comparison'
    )

  def _check(self, node, names, top=False):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
      if abs(node.value) > 1e30:
        raise self._error(f'{node.value} is too large')
    elif isinstance(node, ast.Name):
      names.append(self._quoted.get(node.id, node.id))
    elif isinstance(node, ast.BinOp) and (
      type(node.op) in _BINARY or isinstance(node.op, ast.FloorDiv)
    ):
      self._check(node.left, names)
      self._check(node.right, names)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
      self._check(node.operand, names)
    elif (
      top
      and isinstance(node, ast.Compare)
      and len(node.ops) == 1
      and type(node.ops[0]) in _COMPARISONS
    ):
      self._check(node.left, names)
      self._check(node.comparators[0], names)
    elif (
      isinstance(node, ast.Call)
      and isinstance(node.func, ast.Name)
      and not node.keywords
      and _FUNCTIONS.get(node.func.id) == len(node.args)
    ):
      for argument in node.args:
        self._check(argument, names)
    else:
      raise self._error(f'{ast.unparse(node)} is none of these')

  def __call__(
    self,
    columns: dict[str, Any],
    library: Any,
    constant: Callable[[float], Any] = np.float64,
  ) -> Any:
    """Returns the expression of some columns.

    Args:
      columns: dict of arrays or tensors, float64.
      library: where `minimum`, `maximum`, `abs` and `floor` are: `numpy` or
        `tensorflow`.
      constant: what a number of the text becomes, but in exponents. Not one of
        Python: 1 / 0 is infinite, and no error.
    """
    return self._value(self._body, columns, library, constant)

  def _value(self, node, columns, library, constant):
    value = lambda child: self._value(child, columns, library, constant)
    if isinstance(node, ast.Constant):
      return constant(node.value)
    if isinstance(node, ast.Name):
      return columns[self._quoted.get(node.id, node.id)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
      # NumPy and TensorFlow have others, which differ where 1 is divided by .1.
      return library.floor(value(node.left) / value(node.right))
    if isinstance(node, ast.BinOp):
      left = value(node.left)
      if isinstance(node.op, ast.Pow):
        # A square is exact where it is known to be one.
        constant = np.float64
      return _BINARY[type(node.op)](left, value(node.right))
    if isinstance(node, ast.UnaryOp):
      return -value(node.operand)
    if isinstance(node, ast.Compare):
      compare = _COMPARISONS[type(node.ops[0])]
      return compare(value(node.left), value(node.comparators[0]))
    function = getattr(library, _NAMES.get(node.func.id, node.func.id))
    return function(*map(value, node.args))
