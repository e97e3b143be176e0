r"""Pictures of private densities in two dimensions, beside the data.

One row of pictures for each data set: the points themselves, what DP-NF learns
at several epsilon, and what a spline flow learns without privacy.

    python -m experiments.density_2d --plot=docs/density_2d.png \
      --output=experiments/results/gallery_2d.json

The densities are computed from released models; the first column and the
frame around a picture come from the rows themselves. Seeds make the
results reproducible and therefore not private.
"""

from __future__ import annotations

import numpy as np
from absl import app, flags
from matplotlib import colormaps
from matplotlib.figure import Figure

from experiments import density_binary, density_fitting, density_methods
from experiments.results_file import ResultsFile

DATASETS = ('gaussians', 'half_moons', 'pinwheel')
EPSILONS = (0.2, 1.0, 4.0)
_TITLES = {
  'gaussians': 'gaussians',
  'half_moons': 'half-moons',
  'pinwheel': 'pinwheel',
  'gowalla_nyc': 'Gowalla, New York',
}
# Few levels: the file stays small.
_COLORS = colormaps['magma'].resampled(40)


def run(
  datasets=DATASETS,
  *,
  epsilons=EPSILONS,
  split=0,
  output=None,
  plot=None,
  smoke=False,
):
  """Fits and draws densities.

  Args:
    datasets: names of two-dimensional `density_datasets`.
    epsilons: budgets; a flow without privacy is fitted besides.
    split: which of ten splits; its test rows give the log-likelihoods.
    output: JSON file of log-likelihoods, or `None`. What it holds is run again:
      there are no pictures of it.
    plot: PNG file, or `None`.
    smoke: whether to use 600 rows and tiny models.

  Returns:
    A JSON-able dict, with the `runs`.

  Raises:
    ValueError: if `output` holds runs of another split.
  """
  header = {'smoke': smoke, 'split': split}
  results = ResultsFile(output, header, ('dataset', 'epsilon'))
  overrides = density_binary.overrides(smoke)
  pixels = 24 if smoke else 120
  figure = Figure(
    figsize=(2.5 * (len(epsilons) + 2), 2.65 * len(datasets)),
    layout='constrained',
  )
  axes = figure.subplots(len(datasets), len(epsilons) + 2, squeeze=False)
  for line, name in zip(axes, datasets):
    rows = density_binary.load(name, smoke)
    train, test = rows.split(split)
    box = _box(train)
    _draw(line[0], _histogram(train, box, pixels // 2), None)
    line[0].set_ylabel(_TITLES.get(name, name), fontsize=12)
    gaussian = density_fitting.full_gaussian(train).log_prob(test).mean()
    top = None
    for ax, epsilon in zip(line[:0:-1], (None, *epsilons[::-1])):
      method = 'spline flow' if epsilon is None else 'DP-NF, pld'
      fit, _ = density_methods.fit(
        train, method, epsilon, rows.delta, split, overrides
      )
      grid = _density(fit, box, pixels)
      # The colours of a line are those of its flow without privacy.
      top = grid.max() if top is None else top
      _draw(ax, grid, top)
      log_prob = float(fit.log_prob(test).mean())
      ax.set_xlabel(f'{log_prob:.2f} nats', fontsize=10)
      results.add(
        {
          'dataset': name,
          'scaling': rows.scaling,
          'epsilon': epsilon,
          'delta': None if epsilon is None else rows.delta,
          'log_prob': log_prob,
          'full_gaussian': float(gaussian),
          'seconds': fit.seconds,
        }
      )
  titles = ('data', *(f'ε = {e:g}' for e in epsilons), 'not private')
  for ax, title in zip(axes[0], titles):
    ax.set_title(title, fontsize=12)
  if plot:
    figure.savefig(plot, dpi=80)
  return results.content


def _box(x):
  """A square around almost all points: `(low [2], width)`."""
  low, high = np.quantile(x, [0.001, 0.999], axis=0)
  width = 1.1 * (high - low).max()
  return (low + high - width) / 2, width


def _histogram(x, box, bins):
  low, width = box
  edges = [low[i] + np.linspace(0, width, bins + 1) for i in range(2)]
  return np.histogram2d(*x.T, bins=edges, density=True)[0]


def _density(fit, box, pixels):
  low, width = box
  centers = (np.arange(pixels) + 0.5) * width / pixels
  points = np.stack(np.meshgrid(low[0] + centers, low[1] + centers), -1)
  found = np.exp(fit.log_prob(points.reshape(-1, 2)))
  return found.reshape(pixels, pixels).T


def _draw(ax, grid, top):
  ax.imshow(
    np.sqrt(grid.T),
    origin='lower',
    cmap=_COLORS,
    vmin=0,
    vmax=np.sqrt(np.quantile(grid, 0.999) if top is None else top),
  )
  ax.set_xticks([])
  ax.set_yticks([])


def _lines(results):
  for found in results['runs']:
    yield (
      f'{found["dataset"]} ({found["scaling"]}), epsilon {found["epsilon"]}: '
      f'{found["log_prob"]:.3f} nats per point; full Gaussian, not private: '
      f'{found["full_gaussian"]:.3f}'
    )


def main(argv):
  """Runs what the flags ask for and prints the log-likelihoods."""
  density_binary.main(argv, run, _lines, names=('datasets', 'plot'))


def _define_flags():
  density_binary.define_common_flags(EPSILONS)
  flags.DEFINE_list('datasets', list(DATASETS), 'Two-dimensional data sets.')
  flags.DEFINE_string('plot', None, 'PNG file to write.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
