"""An extension of Griffe, which reads docstrings for the reference.

Examples of docstrings are doctests below `#### Example`. Markdown would take
their `>>>` for quotations, so that they get fences here. Headings become bold
lines: the table of contents is for names.
"""

from __future__ import annotations

import re

import griffe

_HEADING = re.compile(r'^#### (.+)\n+', re.MULTILINE)
# A block between fences, or a doctest without.
_EXAMPLE = re.compile(
  r'^```(?P<language>\w*)\n(?P<code>.*?)^```$'
  r'|(?P<doctest>^>>> [^\n]*\n(?:^(?![ ]*$)[^\n]*\n?)*)',
  re.MULTILINE | re.DOTALL,
)


def for_markdown(text: str) -> str:
  """Puts doctests between fences, and makes headings bold.

  Args:
    text: docstring, without common indent.

  Returns:
    The text; doctests that only an empty line divides are blocks of their own.
  """
  text = _HEADING.sub(r'**\1**\n\n', text + '\n')
  return _EXAMPLE.sub(_fenced, text).rstrip()


def _fenced(found):
  if found['doctest']:
    return f'```pycon\n{found["doctest"].rstrip()}\n```\n'
  language, code = found['language'], found['code']
  if code.startswith('>>> '):
    language = 'pycon'
  return f'```{language}\n{code}```'


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
