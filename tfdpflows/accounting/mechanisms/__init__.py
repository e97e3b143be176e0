"""Mechanisms: what accountants ask of each, and which events they stand for.

One class for each, in one file with its proofs and its events.
"""

from tfdpflows.accounting.mechanisms import (
  sampling as sampling,  # Registers its events.
)
from tfdpflows.accounting.mechanisms.base import (
  RELATIONS,
  Composition,
  Mechanism,
  NonPrivate,
  RefusedEventError,
  Relation,
  ZCDPGuarantee,
  amplified,
  count_approximate,
  failure,
  given_delta,
  loss_distributions,
  pure_epsilon,
  renyi_curve,
  summed_epsilons,
  total_curve,
  total_zcdp,
)
from tfdpflows.accounting.mechanisms.bounded_range import (
  BoundedRange,
)
from tfdpflows.accounting.mechanisms.capped import (
  Mixture,
  overflow,
  without_mixtures,
)
from tfdpflows.accounting.mechanisms.decompose import (
  decompose,
  mechanisms_of,
)
from tfdpflows.accounting.mechanisms.discrete import (
  DiscreteLaplace,
  RandomizedResponse,
  RandomizedResponseOrNull,
)
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  EpsilonDelta,
)
from tfdpflows.accounting.mechanisms.gaussian import (
  Gaussian,
  joined,
  joint_noise,
)
from tfdpflows.accounting.mechanisms.laplace import (
  Laplace,
)
from tfdpflows.accounting.mechanisms.matrix import (
  cyclic_blocks,
  has_stream,
)
from tfdpflows.accounting.mechanisms.null_row import (
  NullRowGaussian,
)
from tfdpflows.accounting.mechanisms.parallel import (
  Parallel,
)
from tfdpflows.accounting.mechanisms.sampled import (
  ABSENT,
  OPPOSITE,
  PRESENT,
  SampledMechanism,
)
from tfdpflows.accounting.mechanisms.selection import (
  RepeatAndSelect,
)
from tfdpflows.accounting.mechanisms.votes import (
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
  data_dependent_event,
)
from tfdpflows.accounting.mechanisms.zero_concentrated import (
  ZeroConcentrated,
)

__all__ = [
  'ABSENT',
  'OPPOSITE',
  'PRESENT',
  'RELATIONS',
  'BoundedRange',
  'Composition',
  'DataDependentGNMax',
  'DataDependentLNMax',
  'DataDependentThreshold',
  'DiscreteLaplace',
  'EpsilonDelta',
  'Gaussian',
  'Laplace',
  'Mechanism',
  'Mixture',
  'NonPrivate',
  'NullRowGaussian',
  'Parallel',
  'RandomizedResponse',
  'RandomizedResponseOrNull',
  'RefusedEventError',
  'Relation',
  'RepeatAndSelect',
  'SampledMechanism',
  'ZCDPGuarantee',
  'ZeroConcentrated',
  'amplified',
  'count_approximate',
  'cyclic_blocks',
  'data_dependent_event',
  'decompose',
  'failure',
  'given_delta',
  'has_stream',
  'joined',
  'joint_noise',
  'loss_distributions',
  'mechanisms_of',
  'overflow',
  'pure_epsilon',
  'renyi_curve',
  'summed_epsilons',
  'total_curve',
  'total_zcdp',
  'without_mixtures',
]
