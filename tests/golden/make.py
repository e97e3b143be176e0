"""Writes the golden files: `python -m tests.golden.make accounting tables`.

What they hold was said by the code of 23 November 2026, before it was
rearranged. Whoever writes one anew says in CHANGELOG.md what changed, and why.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

NAMES = ('accounting', 'commands', 'files', 'refusals', 'tables', 'trainings')


def machine() -> str:
  """What the last digits of sums and of exponentials depend on.

  Returns:
    Versions and instruction sets; values are compared almost to the last digits
    where they are the same.
  """
  import numpy as np
  import scipy
  import tensorflow as tf

  try:
    from numpy._core._multiarray_umath import __cpu_features__ as features
  except ImportError:
    from numpy.core._multiarray_umath import __cpu_features__ as features
  wide = [
    name
    for name in ('AVX2', 'AVX512F', 'AVX512_SPR', 'AVX512_ICL')
    if features.get(name)
  ]
  versions = [f'{x.__name__} {x.__version__}' for x in (np, scipy, tf)]
  return ', '.join([*versions, *wide])


def read(name: str):
  """What a golden file holds, and whether this machine made it.

  Args:
    name: One of `NAMES`.

  Returns:
    A pair.
  """
  path = pathlib.Path(__file__).with_name(f'{name}.json')
  found = json.loads(path.read_text())
  return found['values'], found['machine'] == machine()


def dumps(values, depth: int = 2) -> str:
  """JSON with a line for each entry of the two outermost levels.

  Args:
    values: What to write.
    depth: How many levels are broken into lines.

  Returns:
    The text.
  """
  if not depth or not isinstance(values, (dict, list)) or not values:
    return json.dumps(values, ensure_ascii=False)
  if isinstance(values, list):
    return '[\n' + ',\n'.join(dumps(x, depth - 1) for x in values) + '\n]'
  lines = (f'{json.dumps(k)}: {dumps(x, depth - 1)}' for k, x in values.items())
  return '{\n' + ',\n'.join(lines) + '\n}'


def main() -> None:
  """Writes the files that are named on the command line."""
  if not sys.argv[1:] or set(sys.argv[1:]) - set(NAMES):
    sys.exit(f'Usage: python -m tests.golden.make NAME..., of {NAMES}.')
  for name in sys.argv[1:]:
    module = importlib.import_module(f'tests.golden.{name}')
    values = module.make()
    path = pathlib.Path(__file__).with_name(f'{name}.json')
    text = dumps({'machine': machine(), 'values': values}, 3)
    path.write_text(f'{text}\n')


if __name__ == '__main__':
  main()
