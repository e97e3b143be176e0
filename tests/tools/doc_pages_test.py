"""The pages of docs/ run, and print what they show."""

import contextlib

import pytest

from tests.unproven import unproven
from tfdpflows.tabular.models.histogram import HistogramModel
from tools import doc_pages

ROOT = doc_pages.DOCS.parent
# Of rows that readers bring: what a page shows of them must be proven.
_OWN_MODELS = 'DensityModel', 'PrivateModel'
PAGES = [path.relative_to(ROOT).as_posix() for path in doc_pages.pages()]


def test_every_tutorial_runs():
  assert [page for page in PAGES if page.startswith('docs/learn/')] == [
    f'docs/learn/{name}.md' for name in ('audit', 'classifier', 'flow', 'table')
  ]


@pytest.mark.slow
@pytest.mark.parametrize('page', PAGES)
def test_page_prints_what_it_shows(page, monkeypatch):
  """From top to bottom, where TensorFlow is imported: that takes seconds."""
  monkeypatch.setenv('MPLBACKEND', 'Agg')
  # Only the tutorial shows what 512 steps learn; the others have 16.
  if page != 'docs/learn/table.md':
    monkeypatch.setattr(HistogramModel, 'epochs', 1.0)
  # Models of tables are proven in the tutorials, which have the same.
  own = any(m in (ROOT / page).read_text('utf-8') for m in _OWN_MODELS)
  proven = own or page.startswith('docs/learn/')
  with contextlib.nullcontext() if proven else unproven():
    assert not doc_pages.update(ROOT / page, write=False)


def test_standalone_pages_have_blocks():
  for page in doc_pages.STANDALONE:
    assert doc_pages.blocks((doc_pages.DOCS / page).read_text()), page


def test_blocks_and_what_they_show():
  text = (
    '```python\nprint(1)\n```\n\n```text\n1\n```\n\n```bash\nls\n```\n\n'
    'Words.\n\n```text\nno output\n```\n'
  )
  assert doc_pages.blocks(text) == [
    doc_pages.Block('python', 'print(1)\n', '1\n'),
    doc_pages.Block('bash', 'ls\n', None),
  ]


@pytest.mark.parametrize(
  'output, shown, same',
  [
    ('auroc 0.81', 'auroc 0.83', True),  # Two of the last digit.
    ('auroc 0.81', 'auroc 0.95', False),
    ('16,217 rows', '16,000 rows', True),
    ('16,217 rows', '10,000 rows', False),
    ('epsilon 1', 'delta 1', False),
    ('a  1\nb 20', 'a 1\nb   20', True),  # Columns may be wider.
    ('1 2', '1', False),
    ('in 0.5 s.', 'in 99 s.', True),
    ('1e-05', '1e-06', False),
    ('-0.5', '0.5', False),
  ],
)
def test_same(output, shown, same):
  assert doc_pages.same(output, shown) == same


def test_what_is_shown_may_be_the_first_lines():
  assert doc_pages.shortened('1\n2\n3\n', '0\n...\n') == '1\n...\n'
  assert doc_pages.shortened('1\n2\n', '0\n') == '1\n2\n'


def test_update_writes_what_is_printed(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('```python\nprint(40 + 2)\n```\n\n```text\n7\n```\n')
  assert '+42' in doc_pages.update(page, write=False)
  assert '7' in page.read_text()
  doc_pages.update(page, write=True)
  assert page.read_text() == (
    '```python\nprint(40 + 2)\n```\n\n```text\n42\n```\n'
  )
  assert not doc_pages.update(page, write=False)


def test_only_commands_of_the_package_run(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('```bash\nrm -r /nothing\n```\n')
  with pytest.raises(RuntimeError, match='Only tfdpflows is run'):
    doc_pages.update(page, write=False)
