import importlib.util
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest

from experiments import tabular_synthesis
from experiments.peers import compare, ctgan_synthesizer, peer
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99, required=True),
    Field('code', 'string', enum=('NA', '01', '1'), required=True),
    Field('member', 'boolean', required=True),
  ]
)
needs_ctgan = pytest.mark.skipif(
  not ctgan_synthesizer.PYTHON.exists(),
  reason='no environment of ctgan: make peers-tabular',
)


def table(n=400):
  rng = np.random.default_rng(0)
  age = rng.integers(0, 100, n)
  columns = {
    'age': age,
    'code': rng.choice(['NA', '01', '1'], n),
    'member': age > 50,
  }
  return SCHEMA.validate(pd.DataFrame(columns))


def test_an_epsilon_is_not_claimed():
  with pytest.raises(ValueError, match='epsilon is 1.0, and CTGAN is not priv'):
    ctgan_synthesizer.CtganSynthesizer(SCHEMA, 1.0, python=sys.executable)


def test_an_environment_without_it_is_named():
  with pytest.raises(peer.PeerUnavailableError, match='make peers-tabular'):
    ctgan_synthesizer.CtganSynthesizer(SCHEMA, python='/nowhere/python')
  if importlib.util.find_spec('ctgan'):
    pytest.skip('ctgan is installed here')
  fitted = ctgan_synthesizer.CtganSynthesizer(SCHEMA, python=sys.executable)
  with pytest.raises(peer.PeerUnavailableError, match='has no ctgan'):
    fitted.fit(table())


def test_what_cannot_run_is_skipped_with_its_reason(tmp_path):
  pytest.importorskip('statsmodels')
  summaries, skipped = compare.run(
    'randhie',
    ['ctgan'],
    tmp_path,
    epsilons=[1e6],
    smoke=True,
    hyperparameters={'python': '/nowhere/python'},
  )
  assert not summaries
  assert 'make peers-tabular' in skipped['ctgan']


@needs_ctgan
def test_rows_are_valid():
  fitted = ctgan_synthesizer.CtganSynthesizer(SCHEMA, seed=0, epochs=1)
  rows = fitted.fit(table()).sample(400)
  assert (rows.dtypes == table().dtypes).all()
  assert set(rows['code']) <= {'NA', '01', '1'}
  assert fitted.peak_mib > 50
  assert fitted.ledger.epsilon() == math.inf
  statement = json.loads(json.dumps(fitted.privacy_statement().to_dict()))
  assert statement['claim'] is None
  assert statement['details']['versions']['ctgan']


@needs_ctgan
def test_results_have_no_epsilon(tmp_path):
  pytest.importorskip('statsmodels')
  results = tabular_synthesis.run(
    'randhie',
    method='ctgan',
    epsilons=(1e6,),
    smoke=True,
    output=tmp_path / 'results.json',
    hyperparameters={'epochs': 1},
  )
  assert results['runs'][0]['epsilon_spent'] is None
  assert results['summary'][0]['largest_epsilon_spent'] is None
