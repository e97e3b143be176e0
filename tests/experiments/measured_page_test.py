"""Numbers of the README and of docs/measured.md are those of the results."""

import json
import pathlib
import re

import numpy as np
import pytest

from experiments import results_document, rival_tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'experiments' / 'results'
PAGES = ('README.md', 'docs/measured.md')
SCORES = ('macro_f1', 'auroc', 'average_precision')


def load(name):
  return json.loads((RESULTS / f'{name}.json').read_text('utf-8'))


def short(value):
  return f'{value:.3f}'.lstrip('0')


def adult(name):
  """The cells of a method on Adult at epsilon 1, but its name."""
  runs = [run for run in load(name)['runs'] if run['epsilon'] == 1]
  cells = []
  for score in SCORES:
    values = [run['scores'][score] for run in runs]
    spread = f' ({short(np.std(values, ddof=1))})' if len(values) > 1 else ''
    cells.append(f'{short(np.mean(values))}{spread}')
  seconds = [run['seconds']['fit'] for run in runs]
  ends = (f'{end:,.0f}' for end in (min(seconds), max(seconds)))
  cells.append(' to '.join(dict.fromkeys(ends)) + ' s')
  return cells


def rows(page, start):
  """The cells of the lines of a page that begin so, but the first."""
  text = (ROOT / page).read_text('utf-8')
  lines = [x for x in text.splitlines() if x.startswith(f'| {start}')]
  return [re.split(r' ?\| ?', line)[2:-1] for line in lines]


@pytest.mark.parametrize('page', PAGES)
@pytest.mark.parametrize(
  'start, name',
  [
    ("tfdpflows, `target='income'`, mean of 5 seeds", 'tabular_adult'),
    ('AIM (dpmm, 32 bins, 80 MB), one seed', 'tabular_adult_aim'),
    ('MST (dpmm), one seed', 'tabular_adult_mst'),
  ],
)
def test_adult(page, start, name):
  assert rows(page, start) == [adult(name)]


@pytest.mark.parametrize('page', PAGES)
def test_real_rows_of_adult(page):
  real = load('tabular_adult')['real']
  assert rows(page, 'real rows') == [[short(real[s]) for s in SCORES] + ['']]


def test_means_over_tables():
  """Those that the comparison with other methods has, without a target."""
  lines = [
    [cell.strip() for cell in line.split('|')[1:-1]]
    for line in rival_tables.section(RESULTS).splitlines()
  ]
  for rival in ('AIM-GDP', 'SWIFT'):
    (line,) = [x for x in lines if x[:3] == ['1', '', rival]]
    ours, other = zip(*(cell.split(' / ') for cell in line[5:8]))
    (found,) = rows('docs/measured.md', f'tfdpflows, {line[3]} tables')
    assert found[:3] == list(ours)
    (found,) = rows('docs/measured.md', rival)
    assert found[:3] == list(other)


def test_the_page_of_tables_has_the_comparison_that_its_script_writes():
  page = (ROOT / 'docs' / 'understand' / 'tables.md').read_text()
  script = 'experiments/rival_tables.py'
  section = rival_tables.section(RESULTS)
  assert page == results_document.replace_section(
    page, 'rivals', script, section
  )


@pytest.mark.parametrize(
  'start, variant',
  [
    ('TensorFlow, not private', 'not private'),
    ('tfdpflows, `DPKerasAdam`', 'tfdpflows Flat'),
    ('TF Privacy, `DPModel`', 'TF Privacy DPModel'),
    ('TF Privacy, `Vectorized', 'TF Privacy VectorizedDPKerasAdam'),
  ],
)
def test_training_step(start, variant):
  steps = load('bench_step')['steps']['found']['maf']
  found = steps['variants'][variant]
  (cells,) = rows('docs/measured.md', start)
  median, ratio = found['median_ms'], found['ratio']
  assert cells == [
    f'{median:,.0f} ms' if median > 100 else f'{median:.1f} ms',
    f'{ratio:.0f}' if ratio in (1.0,) or ratio > 10 else f'{ratio:.2f}',
  ]


def test_training_step_on_a_gpu():
  runs = load('bench_step')['gpu']['found']
  of_maf = [x for r in runs for x in r['steps'] if x['model'] == 'maf']
  ours = next(x for x in of_maf if x['variant'] == 'tfdpflows Flat, XLA')
  times = next(r['peers']['JAX']['median_ms'] for r in runs if r['peers'])
  jax = times['vmap(grad), jitted']
  with open('docs/measured.md', encoding='utf-8') as file:
    text = ' '.join(file.read().split())
  own = jax / times['not private']
  assert f'takes {ours["median_ms"]:.2f} ms, {ours["ratio"]:.2f} times' in text
  assert f'takes {jax:.2f} ms there, {own:.2f} times its own' in text
