import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.peers import compare, dpmm_synthesizer, peer
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99, required=True),
    Field('rate', 'number', enum=(0.0, 25.0, 95.0), required=True),
    Field('code', 'string', enum=('NA', '01', '1'), required=True),
    Field('member', 'boolean', required=True),
  ]
)
needs_dpmm = pytest.mark.skipif(
  not dpmm_synthesizer.PYTHON.exists(),
  reason='no environment of the peers: make peers-tabular',
)


def table(n=300):
  rng = np.random.default_rng(0)
  age = rng.integers(0, 100, n)
  return SCHEMA.validate(
    pd.DataFrame(
      {
        'age': age,
        'rate': rng.choice([0.0, 25.0, 95.0], n),
        'code': rng.choice(['NA', '01', '1'], n),
        'member': age > 50,
      }
    )
  )


def make(**arguments):
  return dpmm_synthesizer.DpmmSynthesizer(
    SCHEMA, **{'method': 'mst', 'python': sys.executable, **arguments}
  )


def test_domain_is_what_the_schema_declares():
  assert dpmm_synthesizer.domain(SCHEMA) == {
    'age': {'lower': 0, 'upper': 99},
    'rate': {'lower': 0.0, 'upper': 95.0},
    'code': {'categories': ['NA', '01', '1']},
    'member': {'categories': ['False', 'True']},
  }


def test_bad_arguments():
  with pytest.raises(ValueError, match="No method 'gem'"):
    make(method='gem')
  with pytest.raises(ValueError, match='binning_epsilon is 1.0'):
    make(binning_epsilon=1.0)
  with pytest.raises(ValueError, match='Only AIM has rounds, mst'):
    make(rounds=10)
  schema = TableSchema([Field('age', 'integer', 0, 99)])
  with pytest.raises(ValueError, match="Column 'age' may be missing"):
    dpmm_synthesizer.DpmmSynthesizer(schema, method='mst')
  with pytest.raises(ValueError, match='not fitted yet'):
    make().sample(1)


def test_an_environment_that_is_not_there_is_named():
  with pytest.raises(peer.PeerUnavailableError, match='make peers-tabular'):
    make(python='/nowhere/python')


def test_an_environment_without_dpmm_is_named():
  if importlib.util.find_spec('dpmm'):
    pytest.skip('dpmm is installed here')
  with pytest.raises(peer.PeerUnavailableError, match='has no dpmm'):
    make().fit(table())


def test_a_fit_that_takes_too_long_is_given_up():
  with pytest.raises(
    peer.PeerFailedError, match='given up after 0.001 seconds'
  ):
    make(limit_s=0.001).fit(table())


def test_what_cannot_run_is_skipped_with_its_reason(tmp_path):
  pytest.importorskip('statsmodels')
  summaries, skipped = compare.run(
    'randhie',
    ['mst', 'aim'],
    tmp_path,
    smoke=True,
    hyperparameters={'python': '/nowhere/python'},
  )
  assert not summaries
  assert 'make peers-tabular' in skipped['aim']
  assert not list(tmp_path.iterdir())


@needs_dpmm
def test_mst_learns_the_columns():
  fitted = make(
    python=dpmm_synthesizer.PYTHON, epsilon=8.0, iterations=30, bins=16
  )
  rows = fitted.fit(table()).sample(300)
  assert (rows.dtypes == table().dtypes).all()
  assert abs(rows['member'].mean() - 0.5) < 0.15
  assert set(rows['code']) == {'NA', '01', '1'}
  assert len(fitted.sample(10, seed=0)) == 10
  assert fitted.peak_mib > 50
  statement = json.loads(json.dumps(fitted.privacy_statement().to_dict()))
  assert statement['details']['seconds']['fit'] > 0
  assert statement['details']['versions']['dpmm']
  assert fitted.ledger.epsilon() == 8.0
  with pytest.raises(ValueError, match='300 rows were drawn'):
    fitted.sample(301)


@needs_dpmm
def test_noise_may_draw_categories_that_no_row_has():
  schema = TableSchema(
    [
      Field('code', 'string', enum=('a', 'b', 'c', 'd'), required=True),
      Field('member', 'boolean', required=True),
    ]
  )
  rows = pd.DataFrame({'code': ['a', 'b'] * 20, 'member': [True, False] * 20})
  fitted = dpmm_synthesizer.DpmmSynthesizer(
    schema, method='mst', epsilon=0.2, iterations=30, seed=0
  )
  drawn = fitted.fit(rows).sample(40)
  assert not drawn.isna().any(axis=None)
  assert set(drawn['code']) - {'a', 'b'}


@needs_dpmm
def test_aim_of_few_rounds():
  fitted = make(
    method='aim',
    python=dpmm_synthesizer.PYTHON,
    epsilon=8.0,
    iterations=20,
    bins=4,
    max_model_size=1,
    rounds=4,
  )
  assert len(fitted.fit(table()).sample(300)) == 300


@needs_dpmm
def test_bins_without_width_can_be_drawn_from():
  script = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import dpmm_worker
from dpmm.processing.binners import PrivTreeBinner
dpmm_worker.draw_from_points()
binner = PrivTreeBinner(n_bins=2)
binner.bins, binner.dtype = [0.0, 0.0, 1.0], np.dtype(float)
numbers = binner.inverse_transform(np.array([0, 0, 1, 1]))
print(numbers[:2], all(0 < number < 1 for number in numbers[2:]))
"""
  folder = pathlib.Path(dpmm_synthesizer.__file__).parent
  found = subprocess.run(
    [dpmm_synthesizer.PYTHON, '-c', script, folder],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  assert found.stdout.split() == ['[0.0', '0.0]', 'True']
