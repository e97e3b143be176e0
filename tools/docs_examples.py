"""An extension of Griffe, which reads docstrings for the reference.

Examples of docstrings are doctests below `#### Example`. Markdown would take
their `>>>` for quotations, so that they get fences here.
"""

from __future__ import annotations

import re

import griffe

_DOCTEST = re.compile(r'(?:^>>> .*\n(?:^(?!\s*$).*\n?)*)', re.MULTILINE)


def fenced(text: str) -> str:
  """Puts doctests between fences.

  Args:
    text: docstring, without common indent.

  Returns:
    The text; doctests that only an empty line divides are blocks of their own.
  """
  return _DOCTEST.sub(
    lambda found: f'```pycon\n{found[0].rstrip()}\n```\n', text + '\n'
  ).rstrip()


class Examples(griffe.Extension):
  """Fences the examples of every docstring before it is parsed."""

  def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
    """Changes the docstring of an object that was loaded.

    Args:
      obj: what Griffe has loaded.
      **kwargs: not used.
    """
    del kwargs
    if obj.docstring is not None:
      obj.docstring.value = fenced(obj.docstring.value)
