"""PATE: teachers on disjoint shards, and private answers from their votes."""

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
from tfdpflows.pate.teachers import TeacherEnsemble

__all__ = [
  'Aggregator',
  'ConfidentGNMax',
  'ExponentialVote',
  'GNMax',
  'InteractiveGNMax',
  'LNMax',
  'SparseVector',
  'TeacherEnsemble',
  'count_votes',
  'partition',
]
