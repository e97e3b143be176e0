"""An extension of Griffe, which reads docstrings for the reference.

Examples of docstrings are doctests below `#### Example`. Markdown would take
their `>>>` for quotations, so that they get fences here. Headings become bold
lines: the table of contents is for names.
"""

from __future__ import annotations

import re

import griffe

_HEADING = re.compile(r'^#### (.+)$', re.MULTILINE)
_DOCTEST = re.compile(r'(?:^>>> .*\n(?:^(?!\s*$).*\n?)*)', re.MULTILINE)


def for_markdown(text: str) -> str:
  """Puts doctests between fences, and makes headings bold.

  Args:
    text: docstring, without common indent.

  Returns:
    The text; doctests that only an empty line divides are blocks of their own.
  """
  text = _HEADING.sub(r'**\1**', text)
  return _DOCTEST.sub(
    lambda found: f'```pycon\n{found[0].rstrip()}\n```\n', text + '\n'
  ).rstrip()


class Examples(griffe.Extension):
  """Changes every docstring to Markdown before it is parsed."""

  def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
    """Changes the docstring of an object that was loaded.

    Args:
      obj: what Griffe has loaded.
      **kwargs: not used.
    """
    del kwargs
    if obj.docstring is not None:
      obj.docstring.value = for_markdown(obj.docstring.value)
