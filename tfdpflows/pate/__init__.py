"""PATE: private answers to queries, from votes of teachers or of neighbours."""

from tfdpflows.pate.aggregators import (
  Aggregator,
  ConfidentGNMax,
  ExponentialVote,
  GNMax,
  InteractiveGNMax,
  LNMax,
  SparseVector,
  count_votes,
)
from tfdpflows.pate.anomaly import AnomalyEnsemble
from tfdpflows.pate.partition import partition
from tfdpflows.pate.planning import (
  QueryPlan,
  data_dependent_epsilon,
  plan_queries,
)
from tfdpflows.pate.private_knn import PrivateKNN, private_knn_event
from tfdpflows.pate.smooth_sensitivity import (
  BoundedCostGNMax,
  ReleasedCost,
  release_vote_cost,
)
from tfdpflows.pate.students import fit_student
from tfdpflows.pate.teachers import TeacherEnsemble

__all__ = [
  'Aggregator',
  'AnomalyEnsemble',
  'BoundedCostGNMax',
  'ConfidentGNMax',
  'ExponentialVote',
  'GNMax',
  'InteractiveGNMax',
  'LNMax',
  'PrivateKNN',
  'QueryPlan',
  'ReleasedCost',
  'SparseVector',
  'TeacherEnsemble',
  'count_votes',
  'data_dependent_epsilon',
  'fit_student',
  'partition',
  'plan_queries',
  'private_knn_event',
  'release_vote_cost',
]
