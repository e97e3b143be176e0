"""Events in words, as JSON, and as mechanisms."""

import json
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, dp_event

from tfdpflows import accounting
from tfdpflows.accounting import events, events_json, mechanisms
from tfdpflows.accounting.mechanisms import Gaussian

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
EVENTS = [
  dp_accounting.NoOpDpEvent(),
  dp_accounting.NonPrivateDpEvent(),
  GAUSSIAN,
  dp_accounting.LaplaceDpEvent(0.1 + 0.2),
  accounting.DiscreteLaplaceDpEvent(0.1 + 0.2, 3),
  accounting.RandomizedResponseDpEvent(1 / 3, 2),
  accounting.PermuteAndFlipDpEvent(0.3),
  accounting.NoProofDpEvent('flow', 0.1 + 0.2),
  dp_event.SingleEpochTreeAggregationDpEvent(4.0, 7),
  dp_event.SingleEpochTreeAggregationDpEvent(4.0, [7, 8]),
  accounting.MatrixMechanismDpEvent(4.0, [[1], [1 / 3, 1]], 2, None),
  accounting.ToeplitzMechanismDpEvent(4.0, [1, 1 / 3], 100, 10, 10),
  accounting.CyclicPoissonSampledDpEvent(
    0.1, 3, accounting.ToeplitzMechanismDpEvent(4.0, [1, 1 / 3], 100)
  ),
  accounting.EpsilonDeltaDpEvent(0.5, 1e-7),
  accounting.ZCDpEvent(0.01, 0.001),
  accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 150, 1.1),
  accounting.ExponentialMechanismDpEvent(0.3),
  accounting.ReportNoisyMaxDpEvent(0.3, 'gumbel'),
  accounting.SparseVectorDpEvent(0.1, 0.2, 0.3),
  accounting.LNMaxDpEvent(0.05),
  accounting.GNMaxDpEvent(40.0),
  accounting.ConfidentGNMaxDpEvent(300.0, 200.0, 40.0, answered=False),
  accounting.VoteThresholdDpEvent(200.0),
  accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(40.0), log_q=-9.5),
  accounting.DataDependentDpEvent(
    accounting.ConfidentGNMaxDpEvent(300.0, 200.0, 40.0), -9.5, -0.25
  ),
  accounting.SmoothSensitivityDpEvent(10.0, 0.02, 30.0),
  accounting.RenyiDpEvent(20.0, 0.1, 1e-6),
  accounting.ObjectivePerturbationDpEvent(10.0, 0.1),
  accounting.ParallelDpEvent([GAUSSIAN, dp_accounting.LaplaceDpEvent(2.0)]),
  dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 1.0),
  dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, math.inf),
  dp_accounting.PoissonSampledDpEvent(1 / 3, GAUSSIAN),
  dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, GAUSSIAN),
  dp_accounting.SelfComposedDpEvent(GAUSSIAN, 10**7),
  dp_accounting.ComposedDpEvent(
    [
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN), 3
      ),
      dp_accounting.ComposedDpEvent([]),
    ]
  ),
]


def test_every_registered_event_has_a_row():
  assert {type(event) for event in EVENTS} == set(events.KINDS.values())


def test_the_kind_of_an_event_is_its_name():
  kinds = {cls.__name__: kind for kind, cls in events.KINDS.items()}
  assert kinds.pop('ZCDpEvent') == 'ZCDp'
  assert kinds == {name: name[: -len('DpEvent')] for name in kinds}


@pytest.mark.parametrize('event', EVENTS, ids=repr)
def test_json_round_trip_is_exact(event):
  text = json.dumps(events_json.event_to_dict(event), allow_nan=False)
  assert events_json.event_from_dict(json.loads(text)) == event


@pytest.mark.parametrize('event', EVENTS, ids=repr)
def test_description_is_one_line(event):
  assert events.describe_event(event)
  assert '\n' not in events.describe_event(event)


def test_unknown_event_is_refused_by_name():
  with pytest.raises(TypeError, match='UnsupportedDpEvent'):
    events_json.event_to_dict(dp_accounting.UnsupportedDpEvent())
  nested = dp_accounting.ComposedDpEvent([dp_accounting.UnsupportedDpEvent()])
  with pytest.raises(TypeError, match='UnsupportedDpEvent'):
    events_json.event_to_dict(nested)


@pytest.mark.parametrize(
  'data',
  [
    {'kind': 'os.system'},
    {'kind': ['Gaussian']},
    {'noise_multiplier': 1.0},
    {'kind': 'Gaussian'},
    {'kind': 'Gaussian', 'noise_multiplier': 1.0, 'more': 1},
    {'kind': 'Gaussian', 'noise_multiplier': math.nan},
    {'kind': 'SelfComposed', 'event': {'kind': 'NoOp'}, 'count': 1.5},
    {
      'kind': 'SingleEpochTreeAggregation',
      'noise_multiplier': 1.0,
      'step_counts': [1, 1.5],
    },
    {'kind': 'DiscreteLaplace', 'noise_parameter': 1.0, 'sensitivity': 0.5},
  ],
)
def test_bad_json_is_refused(data):
  with pytest.raises(ValueError):
    events_json.event_from_dict(data)


@pytest.mark.parametrize(
  'data',
  [
    'Gaussian',
    {'kind': 'Gaussian', 'noise_multiplier': '1'},
    {'kind': 'Gaussian', 'noise_multiplier': True},
    {'kind': 'Composed', 'events': {'kind': 'NoOp'}},
    {
      'kind': 'SingleEpochTreeAggregation',
      'noise_multiplier': 1.0,
      'step_counts': 'many',
    },
    {
      'kind': 'MatrixMechanism',
      'noise_multiplier': 1.0,
      'strategy': [1.0],
      'min_separation': 1,
      'max_participations': 1,
    },
    {
      'kind': 'ToeplitzMechanism',
      'noise_multiplier': 1.0,
      'coefficients': [[1.0]],
      'steps': 3,
      'min_separation': 1,
      'max_participations': None,
    },
    {'kind': 'SelfComposed', 'event': 3, 'count': 1},
  ],
)
def test_json_of_another_type_is_refused(data):
  with pytest.raises(TypeError):
    events_json.event_from_dict(data)


def test_equal_leaves_are_counted():
  event = dp_accounting.ComposedDpEvent(
    [
      GAUSSIAN,
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.ComposedDpEvent([GAUSSIAN, GAUSSIAN]), 10**6
      ),
      dp_accounting.NoOpDpEvent(),
    ]
  )
  counts = mechanisms.decompose(event, ADD)
  assert counts == {Gaussian(2.0): 2 * 10**6 + 1}


def test_one_sample_of_several_gaussians_is_one_gaussian():
  both = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(3.0),
      dp_accounting.GaussianDpEvent(4.0),
    ]
  )
  event = dp_accounting.PoissonSampledDpEvent(0.1, both)
  (mechanism,) = mechanisms.decompose(event, ADD)
  assert mechanism.noise_multiplier == pytest.approx(
    1 / math.sqrt(1 / 9 + 1 / 16)
  )
  assert mechanism.sampling_probability == 0.1


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.GaussianDpEvent(-1.0),
    dp_accounting.GaussianDpEvent(math.nan),
    dp_accounting.LaplaceDpEvent(math.inf),
    dp_accounting.PoissonSampledDpEvent(1.1, GAUSSIAN),
    dp_accounting.PoissonSampledDpEvent(-0.1, GAUSSIAN),
    dp_accounting.PoissonSampledDpEvent(math.nan, GAUSSIAN),
    dp_accounting.SelfComposedDpEvent(GAUSSIAN, -1),
    accounting.EpsilonDeltaDpEvent(-1.0, 0.0),
    accounting.EpsilonDeltaDpEvent(1.0, 1.1),
    accounting.ZCDpEvent(-1.0),
  ],
  ids=repr,
)
def test_values_out_of_range_are_named(event):
  for name in accounting.accountant_names():
    with pytest.raises(ValueError, match=r'must'):
      accounting.compute_epsilon(event, 1e-5, name)


@pytest.mark.parametrize('name', ['pld', 'rdp'])
def test_no_noise_is_no_privacy(name):
  for event in [
    dp_accounting.GaussianDpEvent(0.0),
    dp_accounting.NonPrivateDpEvent(),
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(0.0)),
  ]:
    assert accounting.compute_epsilon(event, 1e-5, name) == math.inf
    made = accounting.create_accountant(name).compose(event)
    assert made.get_delta(1.0) == 1.0


@pytest.mark.parametrize('name', ['pld', 'rdp'])
def test_nothing_costs_nothing(name):
  for event in [
    dp_accounting.NoOpDpEvent(),
    dp_accounting.ComposedDpEvent([]),
    dp_accounting.PoissonSampledDpEvent(0.0, GAUSSIAN),
    accounting.EpsilonDeltaDpEvent(0.0, 0.0),
    dp_accounting.ComposedDpEvent(
      [dp_accounting.SelfComposedDpEvent(GAUSSIAN, 0)]
    ),
  ]:
    assert accounting.compute_epsilon(event, 1e-5, name) == 0
    made = accounting.create_accountant(name).compose(event)
    assert made.get_delta(0.0) == 0


@pytest.mark.parametrize(
  ('event', 'relation', 'part'),
  [
    (dp_accounting.UnsupportedDpEvent(), ADD, 'UnsupportedDpEvent'),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1, accounting.EpsilonDeltaDpEvent(0.1)
      ),
      REPLACE,
      'REPLACE_ONE',
    ),
    (
      dp_accounting.SampledWithoutReplacementDpEvent(
        100, 10, accounting.ExponentialMechanismDpEvent(0.1)
      ),
      ADD,
      'SampledWithoutReplacement',
    ),
    (
      accounting.ParallelDpEvent([GAUSSIAN, GAUSSIAN]),
      REPLACE,
      'two shards',
    ),
    (
      dp_event.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
      REPLACE,
      'SampledWithReplacement',
    ),
    (
      accounting.ParallelDpEvent([GAUSSIAN, GAUSSIAN]),
      NeighboringRelation.REPLACE_SPECIAL,
      'REPLACE_SPECIAL',
    ),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1,
        dp_accounting.ComposedDpEvent(
          [GAUSSIAN, dp_accounting.LaplaceDpEvent(1.0)]
        ),
      ),
      ADD,
      'all of them are Gaussian',
    ),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN)
      ),
      ADD,
      'sample of a sample',
    ),
    (
      dp_accounting.PoissonSampledDpEvent(0.1, accounting.ZCDpEvent(0.1)),
      ADD,
      'zCDP',
    ),
  ],
)
@pytest.mark.parametrize('name', ['pld', 'rdp'])
def test_unsupported_events_are_refused_by_name(event, relation, part, name):
  made = accounting.create_accountant(name, relation)
  assert not made.supports(event)
  composed = dp_accounting.ComposedDpEvent([event])
  with pytest.raises(dp_accounting.UnsupportedEventError, match=part):
    accounting.compute_epsilon(composed, 1e-5, name, relation)
