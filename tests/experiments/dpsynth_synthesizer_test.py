import json
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.peers import dpsynth_synthesizer, peer
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99),
    Field('level', 'integer', 1, 3, required=True),
    Field('rate', 'number', -1.0, 1.0, required=True),
    Field('constant', 'number', 2.0, 2.0, required=True),
    Field('code', 'string', enum=('NA', '01', '1')),
  ]
)
needs_dpsynth = pytest.mark.skipif(
  not dpsynth_synthesizer.PYTHON.exists(),
  reason='no environment of dpsynth: see experiments/peers',
)


def make(**arguments):
  return dpsynth_synthesizer.DpsynthSynthesizer(
    SCHEMA, **{'method': 'swift', **arguments}
  )


def test_domain_is_what_the_schema_declares():
  assert dpsynth_synthesizer.domain(SCHEMA) == {
    'age': {'lower': 0, 'upper': 99, 'integer': True, 'missing': True},
    'level': {'categories': ['1', '2', '3']},
    'rate': {'lower': -1.0, 'upper': 1.0, 'integer': False, 'missing': False},
    'constant': {'categories': ['2.0']},
    'code': {'categories': ['', 'NA', '01', '1']},
  }


def test_bad_arguments():
  with pytest.raises(ValueError, match="No method 'gem'"):
    make(method='gem', python=sys.executable)
  with pytest.raises(peer.PeerUnavailableError, match='There is no /nowhere'):
    make(python='/nowhere/python')


@needs_dpsynth
@pytest.mark.parametrize('target', [None, 'level'])
def test_rows_are_of_the_schema(target):
  rng = np.random.default_rng(0)
  level = rng.integers(1, 4, 400)
  age = (level * 20).astype(float)
  age[:100] = np.nan
  code = np.where(level > 1, '01', 'NA').astype(object)
  code[100:150] = None
  table = pd.DataFrame(
    {
      'age': age,
      'level': level,
      'rate': level / 3 - 0.5,
      'constant': 2.0,
      'code': code,
    }
  )
  fitted = make(
    epsilon=50.0, target=target, seed=0, options={'pgm_iters': 200}
  ).fit(table)
  rows = fitted.sample(fitted.num_rows)
  assert abs(len(rows) - 400) < 20
  assert 0.2 < rows['age'].isna().mean() < 0.3
  assert 0.1 < rows['code'].isna().mean() < 0.15
  assert set(rows['constant']) == {2.0}
  high = rows['rate'][rows['level'] == 3].mean()
  assert high > rows['rate'][rows['level'] == 1].mean() + 0.3
  assert json.dumps(fitted.to_dict())
