r"""Columns and principal components of synthetic rows: figures 3, 4 and 11.

Draws the histogram of every column, and the density of the first two principal
components, of real rows and of as many synthetic ones:

    python -m experiments.density_marginals --dataset=lifesci --epsilon=1 \
      --plot=docs/density_marginals.png \
      --output=experiments/results/marginals_lifesci.json

The real rows, their components, and the ranges of the pictures are drawn as
they are, without privacy. Seeds make the results reproducible and therefore
not private.
"""

from __future__ import annotations

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments import density_binary, density_methods

METHODS = ('DP-MoG, pld', 'DP-NF, pld')
_REAL = 'real rows'
_COLORS = {_REAL: '#bbbbbb', 'DP-MoG, pld': '#0072b2', 'DP-NF, pld': '#d55e00'}
_BINS = 50
_WIDTH = 5


def run(
  dataset='lifesci',
  *,
  epsilons=(1.0,),
  splits=(0,),
  output=None,
  plot=None,
  smoke=False,
):
  """Fits methods, samples from them, and draws what they made.

  Args:
    dataset: one of `density_datasets.NAMES`.
    epsilons: budgets; the picture is of the last one.
    splits: which of ten splits; the picture is of the last one.
    output: JSON file. What it holds is run again: there are no rows of it.
    plot: PNG file, or `None`.
    smoke: whether to use 600 rows and tiny models.

  Returns:
    A JSON-able dict; `runs` has the Kolmogorov-Smirnov distance of every column
    (`ks_by_column`) from held-out rows, and their mean, `ks`.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs.
  """
  rows = density_binary.load(dataset, smoke)
  results = density_binary.results_file(
    output, density_methods.KEYS, rows, smoke
  )
  overrides = density_binary.overrides(smoke)
  samples = {}

  def one_run(method, epsilon, split):
    train, test = rows.split(split)
    samples[_REAL] = samples[method] = train
    if method != _REAL:
      fit, _ = density_methods.fit(
        train, method, epsilon, rows.delta, split, overrides
      )
      sample = fit.distribution.sample(len(train), seed=[split, 0]).numpy()
      samples[method] = sample[np.isfinite(sample).all(1)]
    distances = ks_distances(samples[method], test)
    return {
      'ks': float(np.mean(distances)),
      'ks_by_column': list(map(float, distances)),
    }

  cases = density_methods.cases((_REAL, *METHODS), epsilons, splits)
  density_binary.sweep(results, cases, one_run, again=True)
  if plot:
    draw(samples, f'{dataset}, ε = {epsilons[-1]:g}').savefig(plot, dpi=80)
  return results.content


def ks_distances(x, y):
  """Returns the largest differences of the columns' distribution functions.

  Args:
    x: rows `[n, d]`.
    y: rows `[m, d]`.

  Returns:
    float64 `[d]`, in [0, 1].

  #### Example

  >>> x = np.arange(4.)[:, None]
  >>> ks_distances(x, x + 1)
  array([0.25])
  """
  x, y = np.sort(x, axis=0), np.sort(y, axis=0)
  found = []
  for a, b in zip(x.T, y.T):
    places = np.concatenate([a, b])
    shares = [np.searchsorted(c, places, 'right') / len(c) for c in (a, b)]
    found.append(np.abs(shares[0] - shares[1]).max())
  return np.array(found)


def draw(samples, title):
  """Returns a figure of histograms, and of principal components below.

  Args:
    samples: dict of rows `[n, d]` by what they are; the first are real.
    title: of the figure.
  """
  real = samples[_REAL]
  d = real.shape[1]
  lines = -(-d // _WIDTH)
  figure = Figure(figsize=(12, 2.1 * lines + 4.6), layout='constrained')
  figure.suptitle(title)
  top, bottom = figure.subfigures(2, 1, height_ratios=[2.1 * lines, 4.3])
  axes = top.subplots(lines, _WIDTH, squeeze=False).ravel()
  for i, ax in enumerate(axes[:d]):
    bins = np.linspace(*_range(real[:, i]), _BINS + 1)
    for name, x in samples.items():
      kind = 'stepfilled' if name == _REAL else 'step'
      ax.hist(
        x[:, i],
        bins,
        density=True,
        histtype=kind,
        color=_COLORS[name],
        label=name,
      )
    ax.set_title(f'column {i + 1}', fontsize=9)
    ax.set_yticks([])
    ax.tick_params(labelsize=7)
  for ax in axes[d:]:
    ax.axis('off')
  top.legend(
    *axes[0].get_legend_handles_labels(), loc='outside upper right', ncols=3
  )
  _draw_components(bottom.subplots(1, len(samples)), samples)
  return figure


def _draw_components(axes, samples):
  """Densities along the first two principal components of the real rows."""
  real = samples[_REAL]
  center = real.mean(0)
  components = np.linalg.svd(real - center, full_matrices=False)[2][:2]
  projected = {name: (x - center) @ components.T for name, x in samples.items()}
  edges = [np.linspace(*_range(column), 61) for column in projected[_REAL].T]
  top = None
  for ax, (name, x) in zip(axes, projected.items()):
    density = np.sqrt(np.histogram2d(*x.T, bins=edges, density=True)[0])
    top = density.max() if top is None else top
    ax.pcolormesh(*edges, density.T, cmap='magma', vmin=0, vmax=top)
    ax.set_title(f'{name}: first two components', fontsize=9)
    ax.tick_params(labelsize=7)


def _range(column):
  low, high = np.quantile(column, [0.001, 0.999])
  margin = 0.05 * (high - low)
  return low - margin, high + margin


def _lines(results):
  for found in results['runs']:
    yield (
      f'{density_methods.label(found)}: Kolmogorov-Smirnov distance '
      f'{found["ks"]:.4f}, mean of the columns'
    )


def main(argv):
  """Runs what the flags ask for and prints the distances."""
  names = ('dataset', 'splits', 'plot')
  density_binary.main(argv, run, _lines, names)


def _define_flags():
  density_binary.define_flags()
  flags.DEFINE_string('plot', None, 'PNG file to write.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
