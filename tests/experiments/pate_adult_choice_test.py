"""The choice of teachers on training rows of Adult."""

import pytest

from experiments import pate_adult_choice


def test_few_rows():
  try:
    results = pate_adult_choice.run(
      num_teachers=(16,), num_queries=(100,), splits=(0,), rows=1500
    )
  except FileNotFoundError as error:
    pytest.skip(str(error))
  runs = results['runs']
  assert [run['teachers'] for run in runs] == list(pate_adult_choice.TEACHERS)
  for run in runs:
    assert run['plurality'] > 0.7
    assert 0 < run['accuracy'] < 1
