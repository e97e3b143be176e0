"""Audits of trainings and of whole fits."""

import os

import numpy as np
import pytest

from experiments import audit_fits, audit_tables, audit_training


@pytest.mark.parametrize(
  'parts',
  [['white_box'], pytest.param(['one_run', 'lira'], marks=pytest.mark.full)],
)
def test_trainings(parts, tmp_path):
  arguments = {
    'data_dir': str(tmp_path),
    'output': str(tmp_path / 'audit_training.json'),
    'plot': str(tmp_path / 'figure.png'),
    'smoke': True,
  }
  found = audit_training.run(parts, **arguments)
  assert {run['part'] for run in found['runs']} == set(parts)
  for run in found['runs']:
    if run['part'] == 'white_box':
      assert run['mu_roc'] <= run['mu_claimed']
    if run['part'] == 'one_run':
      assert not run['refuted']
  assert audit_training.run(parts, **arguments) == found
  assert os.path.getsize(tmp_path / 'figure.png') > 1000
  tables = {
    'white_box': audit_tables.white_box_table,
    'one_run': audit_tables.one_run_table,
    'lira': audit_tables.lira_table,
  }
  for part in parts:
    same = [run for run in found['runs'] if run['part'] == part]
    assert len(tables[part](same).splitlines()) > 4
  # Smoke runs are in no document.
  assert '###' not in audit_tables.section(tmp_path)


def test_fits(tmp_path):
  found = audit_fits.run(smoke=True)
  (run,) = found['runs']
  assert [attack['attack'] for attack in run['attacks']] == [
    'histograms',
    'share of 4,096 rows',
  ]
  for attack in run['attacks']:
    assert attack['mu_lower'] <= run['mu']
  assert run['epsilon'] <= 1
  audit_fits.draw(found['runs']).savefig(tmp_path / 'figure.png')
  assert '| column_1 |' in audit_tables.fits_table(found['runs'])


def test_bounds_of_gaussians_are_below_their_claim():
  rng = np.random.default_rng(0)
  columns = len(audit_fits.SCORES)
  first = rng.normal(size=[3000, columns])
  for attack in audit_fits.audits(first, first + 1.0):
    # All scores together are a sum of as many Gaussians.
    most = 1.0 if attack['attack'] in audit_fits.SCORES else columns**0.5
    assert 0.5 < attack['mu_lower'] <= most
    assert abs(attack['mu_estimate'] - 1) < 0.1 or most > 1
