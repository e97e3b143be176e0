"""The table of events in the documentation says what the code does."""

import pathlib
import re

import dp_accounting
import pytest

from tfdpflows import accounting

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'accounting.md'
GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
LAPLACE = dp_accounting.LaplaceDpEvent(2.0)
EVENTS = [
  GAUSSIAN,
  LAPLACE,
  accounting.EpsilonDeltaDpEvent(0.1, 1e-9),
  accounting.ZCDpEvent(0.1),
  accounting.ExponentialMechanismDpEvent(0.1),
  accounting.ReportNoisyMaxDpEvent(0.1),
  accounting.SparseVectorDpEvent(0.1, 0.1),
  accounting.LNMaxDpEvent(0.1),
  accounting.GNMaxDpEvent(10.0),
  accounting.ConfidentGNMaxDpEvent(10.0, 10.0, 10.0),
  accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(10.0), -9.0),
  dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN),
  accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 50, 2.0),
  dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
  accounting.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, 1.0),
  accounting.ParallelDpEvent([GAUSSIAN, GAUSSIAN]),
  accounting.ParallelDpEvent([GAUSSIAN, LAPLACE]),
]


def rows():
  lines = PAGE.read_text(encoding='utf-8').split('\n## Events\n')[1].split('\n')
  cells = [re.split(r' ?\| ?', line)[1:-1] for line in lines if line[:1] == '|']
  return cells[0][2:], [row for row in cells[2:] if len(row) == 7]


def test_every_event_has_a_row():
  assert len(rows()[1]) == len(EVENTS)


@pytest.mark.parametrize('number', range(len(EVENTS)))
def test_row(number):
  event, (heads, body) = EVENTS[number], rows()
  assert body[number][1] == f'`{type(event).__name__}`'
  for head, cell in zip(heads, body[number][2:]):
    for name in head.split(', '):
      made = accounting.create_accountant(name)
      assert cell == ('yes' if made.supports(event) else ''), name
