import json

import pytest

from experiments import tabular_figure


def content(dataset='adult', method='flow', epsilons=(1.0, 2.0), **changes):
  runs = [
    {
      'epsilon': epsilon,
      'seed': seed,
      'scores': {'macro_f1': 0.6 + epsilon / 10 + seed / 100},
      'seconds': {'fit': 20.0 + seed},
    }
    for epsilon in epsilons
    for seed in (0, 1)
  ]
  return {
    'dataset': dataset,
    'method': method,
    'smoke': False,
    'runs': runs,
    **changes,
  }


def test_a_column_for_each_data_set():
  figure = tabular_figure.draw(
    [
      content(epsilons=(1.0, 2.0, 1e6), real={'macro_f1': 0.8}),
      content(method='aim', epsilons=(1.0,)),
      content('census'),
    ]
  )
  above, census, below, _ = figure.axes
  assert [above.get_title(), census.get_title()] == ['adult', 'census']
  ours, aim = above.containers
  # Without privacy it has no place on the axis.
  assert ours.lines[0].get_xdata().tolist() == [1.0, 2.0]
  assert ours.lines[0].get_ydata() == pytest.approx([0.705, 0.805])
  assert aim.lines[0].get_xdata().tolist() == [1.0]
  assert below.containers[0].lines[0].get_xdata().tolist() == [20.5]
  (legend,) = figure.legends
  assert {text.get_text() for text in legend.get_texts()} == {
    'TabularSynthesizer',
    'AIM (dpmm)',
    'real rows',
  }


def test_reads_what_is_no_smoke_run(tmp_path):
  for name, smoke in (('a', False), ('b', True)):
    text = json.dumps(content(smoke=smoke))
    (tmp_path / f'tabular_{name}.json').write_text(text)
  (found,) = tabular_figure.load(tmp_path)
  assert not found['smoke']


def test_nothing_to_draw(tmp_path):
  with pytest.raises(ValueError, match='no results to draw'):
    tabular_figure.draw(tabular_figure.load(tmp_path))
