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
from tfdpflows.pate.partition import partition
from tfdpflows.pate.private_knn import PrivateKNN, private_knn_event
from tfdpflows.pate.teachers import TeacherEnsemble

__all__ = [
  'Aggregator',
  'ConfidentGNMax',
  'ExponentialVote',
  'GNMax',
  'InteractiveGNMax',
  'LNMax',
  'PrivateKNN',
  'SparseVector',
  'TeacherEnsemble',
  'count_votes',
  'partition',
  'private_knn_event',
]
