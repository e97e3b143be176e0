"""The benchmark of a training step runs, and compares what it says."""

import numpy as np
import pytest

from experiments import bench_step, bench_step_cases, bench_step_report
from experiments.bench_step_timing import interleave, summarize
from tests.grids import thinned

_FLAT = bench_step_cases.ours('Flat')


@pytest.fixture(scope='module')
def results():
  # Peak memory has a test of its own.
  parts = ['steps', 'sweeps', 'tracing']
  return list(bench_step.run_parts(parts, smoke=True))[-1]


def test_every_variant_is_timed(results):
  variants = results['steps']['found']['maf']['variants']
  assert set(variants) == {
    'not private',
    'tfdpflows Flat',
    'TF Privacy VectorizedDPKerasAdam',
    'TF Privacy DPModel',
  }
  assert variants['not private']['ratio'] == 1
  assert variants['tfdpflows Flat']['rounds'] == 2
  assert variants['TF Privacy DPModel']['rounds'] == 1


@pytest.mark.parametrize(
  'variant', thinned([_FLAT, bench_step_cases.DP_MODEL_FAST], 1)
)
def test_steps_of_a_classifier_train_it(variant):
  step = bench_step_cases.make_step('mlp', variant, **bench_step.SMALL['mlp'])
  before = [v.numpy() for v in step.variables]
  step()
  for old, variable in zip(before, step.variables):
    # The first step of Adam: the noise moves every weight by the learning rate.
    assert np.abs(variable.numpy() - old).max() == pytest.approx(1e-3, rel=0.02)


def test_sweeps_and_first_steps(results):
  points = results['sweeps']['found']['batch']
  assert [p['value'] for p in points] == [4]
  for point in points:
    low, high = point['ratio_quartiles']
    assert low <= point['ratio'] <= high
    cost = 1e3 * point['private_ms'] / point['value']
    assert point['private_us_per_example'] == pytest.approx(cost)
  assert set(results['tracing']['found'][_FLAT]) == {'1'}


def test_every_part_says_how_it_was_measured(results):
  for part in results.values():
    about = part['run']
    assert about['smoke'] is True
    assert about['command'].startswith('python -m experiments.bench_step')
    assert about['wall_s'] > 0
    assert about['versions']['tensorflow']


def test_unknown_parts_are_refused():
  with pytest.raises(ValueError, match='everything'):
    next(bench_step.run_parts(['everything']))


def test_unknown_variants_are_refused():
  with pytest.raises(ValueError, match='Keras'):
    bench_step_cases.make_step('maf', 'Keras')


def test_report(results, tmp_path):
  tables = bench_step_report.tables(results)
  assert '| tfdpflows Flat |' in tables
  assert 'bench_step' in tables
  figure = tmp_path / 'step.png'
  bench_step_report.draw(results).savefig(figure)
  page = tmp_path / 'page.md'
  page.write_text('# Before\n', encoding='utf-8')
  bench_step_report.write_section(page, results, 'step.png')
  once = page.read_text(encoding='utf-8')
  assert once.startswith('# Before\n\n## Measured\n')
  assert '(step.png)' in once
  # Written again, it takes the place of what was there.
  page.write_text(once + 'After\n', encoding='utf-8')
  bench_step_report.write_section(page, results, 'step.png')
  assert page.read_text(encoding='utf-8') == once + 'After\n'


def test_times_are_interleaved():
  called = []
  calls = {name: lambda name=name: called.append(name) for name in 'abc'}
  times = interleave(calls, rounds=3, few='c', few_rounds=1, warm_up=2)
  assert ''.join(called) == 'aabbc' + 'abc' + 'ba' + 'ab'
  assert {name: len(found) for name, found in times.items()} == {
    'a': 3,
    'b': 3,
    'c': 1,
  }


def test_ratios_are_to_the_floor_of_the_same_round():
  # All was ten times slower in the last round.
  times = {'a': [1.0, 1.0, 10.0], 'b': [2.0, 2.0, 20.0]}
  found = summarize(times, lambda _: 'a')
  assert found['b']['ratio'] == 2
  assert found['b']['ratio_quartiles'] == [2, 2]
  assert found['b']['floor'] == 'a'
