"""The page of public names is that of the code."""

import importlib

import pytest

from tools import api


def test_the_page_is_up_to_date():
  assert api.PATH.read_text() == api.page(), 'run `make api`'


@pytest.mark.parametrize('package', api.names())
def test_public_names_exist_and_say_what_they_are(package):
  module = importlib.import_module(package)
  for name in api.names()[package]:
    value = getattr(module, name)
    assert isinstance(value, str) or value.__doc__, name
