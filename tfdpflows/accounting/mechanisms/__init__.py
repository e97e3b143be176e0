"""Mechanisms: what accountants ask of each, and which events they stand for.

One class for each, in one file with its proofs and its events.
"""

from tfdpflows.accounting.events import (
  RELATIONS,
  RefusedEventError,
  decompose,
  mechanisms_of,
)
from tfdpflows.accounting.mechanisms.base import (
  Mechanism,
  NonPrivate,
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
from tfdpflows.accounting.mechanisms.bounded_range import BoundedRange
from tfdpflows.accounting.mechanisms.capped import (
  Mixture,
  overflow,
  without_mixtures,
)
from tfdpflows.accounting.mechanisms.discrete import (
  DiscreteLaplace,
  RandomizedResponse,
  RandomizedResponseOrNull,
)
from tfdpflows.accounting.mechanisms.epsilon_delta import EpsilonDelta
from tfdpflows.accounting.mechanisms.gaussian import (
  Gaussian,
  joined,
  joint_noise,
)
from tfdpflows.accounting.mechanisms.laplace import Laplace
from tfdpflows.accounting.mechanisms.matrix import has_stream
from tfdpflows.accounting.mechanisms.null_row import NullRowGaussian
from tfdpflows.accounting.mechanisms.objective_perturbation import (
  ObjectivePerturbation,
)
from tfdpflows.accounting.mechanisms.parallel import Parallel
from tfdpflows.accounting.mechanisms.sampled import OPPOSITE, PRESENT
from tfdpflows.accounting.mechanisms.sampling import without_amplification
from tfdpflows.accounting.mechanisms.selection import RepeatAndSelect
from tfdpflows.accounting.mechanisms.smooth_sensitivity import (
  RenyiPrivate,
  SmoothSensitivity,
)
from tfdpflows.accounting.mechanisms.votes import (
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
)
from tfdpflows.accounting.mechanisms.zero_concentrated import ZeroConcentrated
