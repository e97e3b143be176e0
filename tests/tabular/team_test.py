"""What a process tells the others of its team, without others."""

import pytest
import tensorflow as tf

from tests.tabular import small_table
from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.workers import Team


class _Workers:
  """Notes what the others would hear."""

  def __init__(self):
    self.heard = []

  def agree(self, begin):
    try:
      self.heard.append(begin())
    except ValueError:
      self.heard.append('failed')
      raise

  def greatest(self, number):
    self.heard.append(number)
    return number


@pytest.fixture
def team():
  team = Team(tf.distribute.get_strategy())
  team.alone, team._workers = False, _Workers()
  return team


def test_each_fit_of_a_team_tells_once(team):
  for _ in range(2):
    # As the command does around the function.
    with pytest.raises(KeyError), team.together(), team.together():
      raise KeyError
    with team.together(), team.together():
      pass
  assert team._workers.heard == ['failed', [], 0] * 2


def test_what_fails_after_training_began_is_not_told(team):
  def train():
    team._tell()
    raise KeyError

  with pytest.raises(KeyError), team.together():
    train()
  assert team._workers.heard == [[], 1]


def test_one_replica_is_no_team():
  people = small_table.make()
  with tf.distribute.MirroredStrategy(['cpu:0']).scope():
    synthesizer = TabularSynthesizer(
      people.schema, **people.quick, **people.budget
    ).fit(people.table, progress=False)
    assert len(synthesizer.sample(5)) == 5
