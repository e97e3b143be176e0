"""The table of events in the documentation says what the code does."""

import pathlib
import re

import dp_accounting
import pytest
from dp_accounting import dp_event

from tfdpflows import accounting

PAGE = pathlib.Path(__file__).parents[2] / 'docs/understand/accounting.md'
GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
LAPLACE = dp_accounting.LaplaceDpEvent(2.0)
BANDED = accounting.CyclicPoissonSampledDpEvent(
  0.1, 3, accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9)
)
EVENTS = [
  GAUSSIAN,
  LAPLACE,
  accounting.DiscreteLaplaceDpEvent(0.1, 2),
  accounting.EpsilonDeltaDpEvent(0.1, 1e-9),
  accounting.ZCDpEvent(0.1),
  accounting.ExponentialMechanismDpEvent(0.1),
  accounting.PermuteAndFlipDpEvent(0.1),
  accounting.ReportNoisyMaxDpEvent(0.1),
  accounting.SparseVectorDpEvent(0.1, 0.1),
  accounting.LNMaxDpEvent(0.1),
  accounting.GNMaxDpEvent(10.0),
  accounting.ConfidentGNMaxDpEvent(10.0, 10.0, 10.0),
  accounting.VoteThresholdDpEvent(10.0),
  accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(10.0), -9.0),
  accounting.SmoothSensitivityDpEvent(10.0, 0.02),
  accounting.RenyiDpEvent(20.0, 0.1),
  accounting.ObjectivePerturbationDpEvent(10.0, 0.1),
  dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN),
  accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 50, 2.0),
  BANDED,
  dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
  dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, 1.0),
  accounting.ParallelDpEvent([GAUSSIAN, GAUSSIAN]),
  accounting.ParallelDpEvent([GAUSSIAN, LAPLACE]),
  accounting.NoProofDpEvent('flow', 1.0),
]


def rows():
  lines = PAGE.read_text(encoding='utf-8').split('\n## Events\n')[1].split('\n')
  cells = [re.split(r' ?\| ?', line)[1:-1] for line in lines if line[:1] == '|']
  return cells[0][2:], [row for row in cells[2:] if len(row) == 7]


ADDITIVE = [GAUSSIAN, LAPLACE, accounting.DiscreteLaplaceDpEvent(0.1, 2)]
CHOICES = [
  accounting.ExponentialMechanismDpEvent(0.1),
  accounting.PermuteAndFlipDpEvent(0.1),
  accounting.ReportNoisyMaxDpEvent(0.1),
  accounting.SparseVectorDpEvent(0.1, 0.1),
]
GIVEN = [CHOICES[0], accounting.EpsilonDeltaDpEvent(0.1, 1e-9)]


def poisson(events):
  return [dp_accounting.PoissonSampledDpEvent(0.1, event) for event in events]


def fixed(events):
  return [
    dp_accounting.SampledWithoutReplacementDpEvent(100, 10, event)
    for event in events
  ]


# The events of each row of the table of relations.
BY_RELATION = [
  ADDITIVE,
  [
    accounting.EpsilonDeltaDpEvent(0.1, 1e-9),
    accounting.ZCDpEvent(0.1),
    accounting.SmoothSensitivityDpEvent(10.0, 0.02),
    accounting.RenyiDpEvent(20.0, 0.1),
  ],
  CHOICES,
  [
    accounting.LNMaxDpEvent(0.1),
    accounting.GNMaxDpEvent(10.0),
    accounting.ConfidentGNMaxDpEvent(10.0, 10.0, 10.0),
    accounting.VoteThresholdDpEvent(10.0),
  ],
  [accounting.ObjectivePerturbationDpEvent(10.0, 0.1)],
  [accounting.RandomizedResponseDpEvent(0.5, 3)],
  [dp_event.SingleEpochTreeAggregationDpEvent(4.0, 8)],
  [
    accounting.MatrixMechanismDpEvent(4.0, [[1], [0.5, 1]]),
    accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9, 3, None),
  ],
  poisson(ADDITIVE),
  fixed(ADDITIVE),
  poisson(GIVEN),
  fixed(GIVEN),
  [accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 50, 2.0)],
  [BANDED],
  [dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, 1.0)],
  [accounting.ParallelDpEvent([GAUSSIAN, GAUSSIAN])],
]


def relation_rows():
  section = PAGE.read_text(encoding='utf-8').split('\n## Neighbouring tables\n')
  lines = section[1].split('\n## ')[0].split('\n')
  cells = [re.split(r' ?\| ?', line)[1:-1] for line in lines if line[:1] == '|']
  return cells[0][1:], cells[2:]


def test_every_kind_of_event_has_a_row_of_relations():
  assert len(relation_rows()[1]) == len(BY_RELATION)


@pytest.mark.parametrize('number', range(len(BY_RELATION)))
def test_row_of_relations(number):
  heads, body = relation_rows()
  for head, cell in zip(heads, body[number][1:]):
    relation = dp_accounting.NeighboringRelation[head.strip('`')]
    for event in BY_RELATION[number]:
      name = type(event).__name__
      if 'Sampled' not in name:
        assert f'`{name}`' in body[number][0]
      taken = [
        known
        for known in accounting.accountant_names()
        if accounting.create_accountant(known, relation).supports(event)
      ]
      assert bool(taken) == bool(cell), (name, head)


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
