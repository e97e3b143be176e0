import numpy as np
import pytest
from absl import app, flags
from absl.testing import flagsaver

from experiments import density_binary, density_datasets


@pytest.fixture
def options():
  before = set(flags.FLAGS)
  density_binary.define_flags()
  flags.FLAGS(['here'])
  with flagsaver.flagsaver():
    yield flags.FLAGS
  for name in set(flags.FLAGS) - before:
    delattr(flags.FLAGS, name)


class TestMain:
  def test_flags_become_arguments(self, options, capsys):
    options.epsilon, options.splits = ['0.5', '2'], ['0', '3']
    density_binary.main(['here'], lambda **values: values, _lines)
    assert capsys.readouterr().out.splitlines() == [
      "dataset: 'lifesci'",
      'epsilons: [0.5, 2.0]',
      'output: None',
      'smoke: False',
      'splits: [0, 3]',
    ]

  def test_absent_data_is_skipped_with_a_reason(self, options, capsys):
    def absent(**values):
      raise FileNotFoundError('no folder')

    density_binary.main(['here'], absent, _lines)
    assert capsys.readouterr().out == 'Skipped: no folder\n'

  def test_unexpected_arguments(self, options):
    with pytest.raises(app.UsageError, match='more'):
      density_binary.main(['here', 'more'], None, _lines)


class TestSweep:
  def test_makes_only_what_is_not_there(self):
    rows = density_datasets.Rows('mine', np.zeros([3, 2]), 1e-5, 'none')
    results = density_binary.results_file(None, ('split',), rows, smoke=True)
    cases = [{'split': split} for split in range(3)]
    double = lambda split: {'double': 2 * split}
    density_binary.sweep(results, cases[:1], double)
    density_binary.sweep(results, cases, double)
    assert [run['double'] for run in results.runs] == [0, 2, 4]
    assert all(run['seconds'] >= 0 for run in results.runs)
    assert results.content['dataset'] == 'mine'


def _lines(values):
  for name in sorted(values):
    yield f'{name}: {values[name]!r}'
