"""HTML pages that need nothing else; `report.css` is their style."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2
import markupsafe


def rendered(package: str, name: str, **values: Any) -> str:
  """Returns a page: a template, the file `name` of a package, filled in."""
  template = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  ).from_string(_read(package, name))
  css = _read('tfdpflows.evaluation', 'report.css')
  return template.render(css=markupsafe.Markup(css), **values)


def _read(package, name):
  return resources.files(package).joinpath(name).read_text(encoding='utf-8')
