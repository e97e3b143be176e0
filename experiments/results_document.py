"""Sections of a Markdown document that scripts write, between two markers."""

from __future__ import annotations

import json
import pathlib

import numpy as np
from absl import app, flags

from experiments import flag_values

ROOT = pathlib.Path(__file__).resolve().parents[1]


def define_flags():
  """Defines where the results are, and the document that tells of them."""
  flags.DEFINE_string(
    'folder', str(ROOT / 'experiments' / 'results'), 'Folder of the JSON files.'
  )
  flags.DEFINE_string(
    'document', str(ROOT / 'experiments' / 'RESULTS.md'), 'File to change.'
  )


def load_results(folder, pattern):
  """Returns the results in a folder, in order of their file names.

  Args:
    folder: of JSON files with `runs`; smoke runs and files without any are
      left out.
    pattern: of the file names, such as 'tabular_*.json'.

  Returns:
    A list of `(content, name)`: what is in the file, and its name.
  """
  found = []
  for path in sorted(pathlib.Path(folder).glob(pattern)):
    content = json.loads(path.read_text())
    if not content.get('smoke') and content.get('runs'):
      found.append((content, path.name))
  return found


def main(argv, name, script, section):
  """Replaces a section of the document that the flags name.

  Args:
    argv: what absl left of the command line.
    name: see `replace_section`.
    script: see there.
    section: function of the folder that the flags name, that returns it.
  """
  options = flag_values.read(argv)
  path = pathlib.Path(options.document)
  text = path.read_text() if path.exists() else '# Results'
  found = section(options.folder)
  path.write_text(replace_section(text, name, script, found))


def run(name, script, section):
  """Runs a binary that writes a section, and nothing else; see `main`."""
  define_flags()
  app.run(lambda argv: main(argv, name, script, section))


def replace_section(text, name, script, section):
  """Returns a document with one script's section replaced.

  Args:
    text: the document; without markers, the section is added at the end.
    name: what the markers call the section.
    script: path of the script that writes it.
    section: its new content, Markdown.

  Raises:
    ValueError: if a marker has lost the other.

  #### Example

  >>> text = replace_section('# Results', 'a', 'a.py', 'old')
  >>> print(replace_section(text, 'a', 'a.py', 'new').splitlines()[4])
  new
  """
  begin = f'<!-- {name}:begin, written by {script} -->'
  end = f'<!-- {name}:end -->'
  section = f'{begin}\n\n{section}\n\n{end}\n'
  if (begin in text) != (end in text):
    raise ValueError(
      f'The document has only one of {begin!r} and {end!r}. Restore the other, '
      'or remove the section.'
    )
  if begin not in text:
    return f'{text.rstrip()}\n\n{section}'
  before, rest = text.split(begin, 1)
  return before + section + rest.split(end, 1)[1].lstrip('\n')


def markdown_table(lines):
  """Returns a Markdown table.

  Args:
    lines: sequence of lists of str, the head first; short ones are filled up.

  #### Example

  >>> print(markdown_table([['a', 'b'], ['1']]))
  | a | b |
  | --- | --- |
  | 1 |  |
  """
  width = max(map(len, lines))
  lines = [[*line, *[''] * (width - len(line))] for line in lines]
  lines.insert(1, ['---'] * width)
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def mean_cell(numbers, digits=3, spread=True):
  """Returns a mean and, in brackets, the standard deviation, for a table.

  Args:
    numbers: one for each seed; `None` is left out.
    digits: behind the point.
    spread: whether to say the deviation, where there are several numbers.

  #### Example

  >>> mean_cell([0.5, 0.6, None], 2)
  '0.55 (0.07)'
  """
  numbers = [number for number in numbers if number is not None]
  if not numbers:
    return ''
  mean = f'{np.mean(numbers):.{digits}f}'
  if len(numbers) == 1 or not spread:
    return mean
  return f'{mean} ({np.std(numbers, ddof=1):.{digits}f})'
