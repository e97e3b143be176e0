"""The documentation site is built, and none of its links is broken."""

import re

import pytest

from tests import forked

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
  log = tmp_path_factory.mktemp('log') / 'mkdocs'
  # It imports the package for its list of names.
  code = forked.run(
    ['-m', 'mkdocs', 'build', '--strict', '--quiet', '-d', folder],
    log,
    environment={'NO_MKDOCS_2_WARNING': '1'},
  )
  assert code == 0, log.read_text()[-4000:]
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
