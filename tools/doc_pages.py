"""Runs the pages of docs/ from top to bottom, and keeps what they show.

    make pages

runs the blocks of every page that has any: Python, and commands of `tfdpflows`
in blocks of `bash`. A block of `text` right behind one of these is what it
prints, and is written anew where that has changed; one that ends with a line
`...` shows as many of the first lines as it has. Pictures that a page saves are
put beside it. `--check` writes nothing, and fails where output has changed: it
has other words, or numbers that are not within a tenth of those shown, or
within two of their last digit.

Pages whose blocks stand for themselves are run by tests/readme_test.py.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple, Optional

DOCS = pathlib.Path(__file__).resolve().parents[1] / 'docs'
# In these each block is a program of its own.
STANDALONE = (
  'how-to/pate.md',
  'how-to/people.md',
  'how-to/resume.md',
  'how-to/train.md',
  'how-to/tune.md',
  'how-to/work-with-tables.md',
  'understand/accounting.md',
  'understand/auditing.md',
  'understand/expm.md',
)
_BLOCK = re.compile(
  r'^```(?P<kind>python|bash)\n(?P<code>.*?)^```$'
  r'(?P<between>\n\n```text\n)?(?(between)(?P<shown>.*?)^```$)',
  re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r'[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?')
# How long something took is shown, and not compared.
_SECONDS = re.compile(r'\bin [\d.]+ s\b')


class Block(NamedTuple):
  """A block of a page.

  Attributes:
    kind: 'python' or 'bash'.
    code: its text.
    shown: the output that the page shows, or `None`.
  """

  kind: str
  code: str
  shown: Optional[str]


def blocks(text: str) -> list[Block]:
  """The blocks of a page that run.

  Args:
    text: Markdown.

  Returns:
    A list of `Block`.
  """
  return [
    Block(found['kind'], found['code'], found['shown'])
    for found in _BLOCK.finditer(text)
  ]


def pages() -> list[pathlib.Path]:
  """Returns the pages that run from top to bottom, sorted."""
  return [
    path
    for path in sorted(DOCS.rglob('*.md'))
    if path.relative_to(DOCS).as_posix() not in STANDALONE
    and blocks(path.read_text(encoding='utf-8'))
  ]


def run(text: str) -> list[str]:
  """Runs a page in the folder where the process is.

  Args:
    text: Markdown.

  Returns:
    What each block printed.

  Raises:
    RuntimeError: if a command ends with another code than 0, or is none of
      `tfdpflows`.
  """
  # So that names of a page are global to its functions, and found by pickle.
  before, module = sys.modules['__main__'], type(sys)('__main__')
  sys.modules['__main__'] = module
  outputs = []
  try:
    for block in blocks(text):
      out = io.StringIO()
      with contextlib.redirect_stdout(out):
        if block.kind == 'python':
          exec(compile(block.code, '<page>', 'exec'), module.__dict__)
        else:
          for line in block.code.replace('\\\n', '').splitlines():
            _command(shlex.split(line))
      outputs.append(out.getvalue())
  finally:
    sys.modules['__main__'] = before
  return outputs


def _command(words):
  from tfdpflows import cli  # noqa: PLC0415 (pages may need no TensorFlow)

  if words[:1] != ['tfdpflows']:
    raise RuntimeError(f'Only tfdpflows is run, not {shlex.join(words)}.')
  code = cli.main(words[1:])
  if code:
    raise RuntimeError(f'{shlex.join(words)} ended with code {code}.')


def shortened(output: str, shown: str) -> str:
  """As much of an output as a page shows of it.

  Args:
    output: what a block printed.
    shown: the old text of the page.

  Returns:
    Lines; the last one is `...` where there are more.
  """
  lines, old = output.rstrip().splitlines(), shown.rstrip().splitlines()
  if old[-1:] == ['...'] and len(lines) >= len(old):
    lines = [*lines[: len(old) - 1], '...']
  return '\n'.join(line.rstrip() for line in lines) + '\n'


def same(output: str, shown: str) -> bool:
  """Whether an output is like the one that is shown.

  Args:
    output: what was printed, shortened.
    shown: text of the page.

  Returns:
    Whether the words are the same, and the numbers close.
  """
  texts = [_SECONDS.sub('', text) for text in (output, shown)]
  words = [' '.join(_NUMBER.sub(' # ', text).split()) for text in texts]
  # Columns of tables are as wide as their numbers.
  if words[0] != words[1]:
    return False
  found, known = ([m[0] for m in _NUMBER.finditer(text)] for text in texts)
  return all(map(_close, found, known))


def _close(found, known):
  digits = known.replace(',', '')
  mantissa, _, exponent = digits.partition('e')
  last = 10.0 ** (int(exponent or 0) - len(mantissa.partition('.')[2]))
  value = float(digits)
  away = abs(float(found.replace(',', '')) - value)
  return away <= max(2.001 * last, 0.1 * abs(value))


def update(path: pathlib.Path, write: bool) -> str:
  """Runs one page.

  Args:
    path: of the page.
    write: whether to write what it shows, and its pictures.

  Returns:
    How outputs differ from what is shown; empty where they are alike.
  """
  text = path.read_text(encoding='utf-8')
  here = os.getcwd()
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    try:
      outputs = iter(run(text))
    finally:
      os.chdir(here)
    pictures = sorted(pathlib.Path(folder).glob('*.png'))
    if write:
      for picture in pictures:
        shutil.copy(picture, path.parent)
  differences = []

  def replaced(found):
    output = next(outputs)
    if found['shown'] is None:
      return found[0]
    new = shortened(output, found['shown'])
    if same(new, found['shown']):
      return found[0]
    differences.extend(
      difflib.unified_diff(
        found['shown'].splitlines(),
        new.splitlines(),
        f'{path.name}, as it is',
        'as it was printed',
        lineterm='',
      )
    )
    return f'```{found["kind"]}\n{found["code"]}```{found["between"]}{new}```'

  text = _BLOCK.sub(replaced, text)
  if write:
    path.write_text(text, encoding='utf-8')
  return '\n'.join(differences)


def main() -> None:
  """Writes pages, or checks them; several have a process each."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--check', action='store_true')
  parser.add_argument('pages', nargs='*', type=pathlib.Path)
  arguments = parser.parse_args()
  if len(arguments.pages) == 1:
    found = update(arguments.pages[0].resolve(), not arguments.check)
    if found and arguments.check:
      sys.exit(f'{found}\nRun `make pages`, and look at what has changed.')
    print(found)
    return
  flags = ['--check'] if arguments.check else []
  for path in arguments.pages or pages():
    command = [sys.executable, '-m', 'tools.doc_pages', *flags, str(path)]
    subprocess.run(command, check=True)


if __name__ == '__main__':
  os.environ.setdefault('MPLBACKEND', 'Agg')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  main()
