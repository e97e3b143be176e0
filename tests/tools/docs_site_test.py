"""The documentation site is built, and none of its links is broken."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What a browser loads; links are for readers to follow.
_LOADED = re.compile(
  r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]*)"'
  r'|<link[^>]*\brel="?(?:stylesheet|icon|preload|preconnect)[^>]*'
  r'\shref="(https?:[^"]*)"'
)


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  pytest.importorskip('material', reason='mkdocs-material is not installed')
  pytest.importorskip('mkdocstrings', reason='mkdocstrings is not installed')
  folder = tmp_path_factory.mktemp('site')
  found = subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--quiet', '-d']
    + [str(folder)],
    cwd=ROOT,
    env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert found.returncode == 0, found.stderr[-4000:]
  return folder


@pytest.mark.slow
def test_nothing_comes_from_other_hosts(site):
  pages = list(site.rglob('*.html'))
  assert len(pages) > 40
  for page in pages:
    assert not _LOADED.search(page.read_text('utf-8')), page


@pytest.mark.slow
def test_the_questions_asked_most_are_one_click_away(site):
  home = (site / 'index.html').read_text('utf-8')
  for page in ('how-to/constraints.html', 'how-to/save.html'):
    assert f'href="{page}"' in home
    assert (site / page).exists()


@pytest.mark.slow
def test_results_are_a_page_with_their_pictures(site):
  page = (site / 'results.html').read_text('utf-8')
  pictures = re.findall(r'<img[^>]*\ssrc="([^"]*)"', page)
  assert len(pictures) > 5
  assert all((site / picture).exists() for picture in pictures)


@pytest.mark.slow
def test_the_reference_has_the_examples_of_docstrings(site):
  page = (site / 'reference/accounting.html').read_text('utf-8')
  assert 'PrivacyLedger' in page
  assert 'class="language-pycon highlight"' in page
  assert '<blockquote>' not in page
  assert '```' not in page
