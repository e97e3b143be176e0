"""Epsilons of random events against those of dp_accounting 0.6.

`experiments/accounting_peers.py` made the values, and says how.
"""

import json
import pathlib

import pytest

from experiments import accounting_peers
from tests.grids import thinned

CASES = json.loads(
  (pathlib.Path(__file__).parent / 'peer_epsilons.json').read_text()
)


def test_there_are_events_of_all_kinds():
  kinds = {
    (part['kind'], case['relation']) for case in CASES for part in case['parts']
  }
  assert len(CASES) > 250
  # Eight kinds under two relations; dp_accounting 0.6 has no Laplace noise on a
  # Poisson sample under REPLACE_ONE, and no fixed size under the other.
  assert len(kinds) == 14


@pytest.mark.parametrize('first', thinned(range(9), 2))
def test_no_event_costs_more_than_elsewhere(first):
  """Nor less than what is too little."""
  for case in CASES[first::18]:
    epsilon, name = accounting_peers.ours(case)
    best = min(case['theirs'].values())
    assert epsilon <= 1.001 * best, (name, case)
    assert epsilon >= case.get('floor', 0.0) * (1 - 1e-12), (name, case)
