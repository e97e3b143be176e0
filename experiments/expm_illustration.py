r"""The exponential mechanism and a flow in its place, for two parameters.

The illustration of Bridges, Tombs and Stanley 2023, figures 5 and 6: a logistic
regression with a weight and an intercept, the l2 utility, and a prior, without
which the density has no integral. For each epsilon: the density of the
exponential mechanism on a grid, that of ExpM+NF with planar and with Sylvester
layers, and how far they are apart.

    python -m experiments.expm_illustration --plot=docs/expm_illustration.png \
      --output=experiments/results/expm_illustration.json

The rows are made from a seed, so that densities and distances may be shown;
those of private rows may not. A distance on one table proves no privacy.
"""

from __future__ import annotations

import time

import numpy as np
from absl import app, flags
from matplotlib import colormaps
from matplotlib.figure import Figure

from experiments.results_file import ResultsFile
from tfdpflows import expm
from tfdpflows.expm import functional
from tfdpflows.randomness import Randomness

EPSILONS = (0.1, 1.0, 10.0)
FLOWS = {'planar': None, 'sylvester': 2}
_L2 = 0.02
_COLORS = colormaps['magma'].resampled(40)


def rows(n, seed=0):
  """Returns rows `[n, 1]` and labels `[n]` of a logistic model."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[n, 1]).astype(np.float32)
  odds = 1.5 * x[:, 0] - 0.5
  return x, (rng.uniform(size=n) < 1 / (1 + np.exp(-odds))).astype(np.float32)


def target(epsilon, n):
  """Returns the exponential mechanism for the made rows."""
  x, y = rows(n)
  utility = expm.l2_utility(functional.LogisticRegression(1), x, y)
  return expm.ExponentialMechanism(
    utility, sensitivity=1.0, epsilon=epsilon, l2=_L2
  )


def box(mechanism, points):
  """Returns axes of a grid around almost all of the density, and its masses."""
  low, high = np.full(2, -25.0), np.full(2, 25.0)
  for _ in range(4):
    axes = [np.linspace(*ends, points) for ends in zip(low, high)]
    weights = _masses(mechanism, axes)
    for i in range(2):
      along = np.cumsum(weights.sum(1 - i))
      first, last = np.searchsorted(along, [5e-4, 1 - 5e-4])
      low[i] = axes[i][max(first - 2, 0)]
      high[i] = axes[i][min(last + 2, points - 1)]
  axes = [np.linspace(*ends, points) for ends in zip(low, high)]
  return axes, _masses(mechanism, axes)


def run(
  *, epsilons=EPSILONS, n=200, seed=0, output=None, plot=None, smoke=False
):
  """Trains flows, compares them with their targets and draws both.

  Args:
    epsilons: of the exponential mechanisms.
    n: number of rows.
    seed: of the flows.
    output: JSON file, or `None`. What it holds is run again.
    plot: PNG file, or `None`.
    smoke: whether to train for a few steps only.

  Returns:
    A JSON-able dict, with the `runs`.
  """
  steps, points, layers = (10, 21, 1) if smoke else (4000, 141, 10)
  header = {
    'rows': n,
    'l2': _L2,
    'seed': seed,
    'steps': steps,
    'layers': layers,
    'grid': points,
  }
  results = ResultsFile(output, header, ('epsilon', 'flow'))
  figure = Figure(
    figsize=(2.7 * len(epsilons), 2.5 * (1 + len(FLOWS))), layout='constrained'
  )
  axes = figure.subplots(1 + len(FLOWS), len(epsilons), squeeze=False)
  for column, epsilon in enumerate(epsilons):
    mechanism = target(epsilon, n)
    lines, weights = box(mechanism, points)
    top = weights.max()
    _draw(axes[0, column], weights, lines, top)
    axes[0, column].set_title(f'ε = {epsilon:g}')
    for row, (name, units) in enumerate(FLOWS.items(), 1):
      sampler = expm.NoProofFlowSampler(
        mechanism,
        layers=layers,
        units=units,
        base_scale=_moments(lines, weights)[1].astype(np.float32),
        randomness=Randomness(seed=seed),
      )
      start = time.perf_counter()
      sampler.fit(steps=steps, num_samples=100, patience=200)
      seconds = time.perf_counter() - start
      log_prob = sampler.private_log_prob(_points(lines)).reshape(weights.shape)
      cell = np.prod([axis[1] - axis[0] for axis in lines])
      density = np.exp(log_prob.astype(np.float64)) * cell
      _draw(axes[row, column], density, lines, top)
      results.add(
        {
          'epsilon': epsilon,
          'flow': name,
          'seconds': seconds,
          **compared(lines, weights, density),
        }
      )
  labels = ('exponential mechanism', *(f'{name} flow' for name in FLOWS))
  for line, label in zip(axes, labels):
    line[0].set_ylabel(label)
  if plot:
    figure.savefig(plot, dpi=80)
  return results.content


def compared(lines, weights, density):
  """Returns how far the flow is from the target, from masses of cells."""
  mean, deviation = _moments(lines, weights)
  mass = density.sum()
  flow_mean, flow_deviation = _moments(lines, density / mass)
  # Where a sample of the target is found but for 1 % of the time.
  order = np.sort(weights.ravel())
  often = weights >= order[np.searchsorted(np.cumsum(order), 0.01)]
  with np.errstate(divide='ignore'):
    log_p, log_q = np.log(weights), np.log(density)
  return {
    'mean': mean.tolist(),
    'deviation': deviation.tolist(),
    'flow_mean': flow_mean.tolist(),
    'flow_deviation': flow_deviation.tolist(),
    # Of determinants: below one, the flow is narrower.
    'volume_ratio': float(
      np.sqrt(
        np.linalg.det(_covariance(lines, density / mass))
        / np.linalg.det(_covariance(lines, weights))
      )
    ),
    'flow_mass_on_grid': float(mass),
    'total_variation_on_grid': float(np.abs(weights - density).sum() / 2),
    'dp_distance_on_grid': expm.dp_distance(log_p, log_q),
    'dp_distance_on_99_percent': expm.dp_distance(log_p[often], log_q[often]),
  }


def _points(axes):
  grid = np.meshgrid(*axes, indexing='ij')
  return np.stack(grid, -1).reshape(-1, 2).astype(np.float32)


def _masses(mechanism, axes):
  logs = mechanism.unnormalized_log_prob(_points(axes)).numpy()
  weights = np.exp((logs - logs.max()).astype(np.float64))
  return (weights / weights.sum()).reshape([len(axis) for axis in axes])


def _covariance(axes, weights):
  points, weights = _points(axes).astype(np.float64), weights.ravel()
  centred = points - weights @ points
  return centred.T @ (weights[:, None] * centred)


def _moments(axes, weights):
  mean = weights.ravel() @ _points(axes).astype(np.float64)
  return mean, np.sqrt(np.diag(_covariance(axes, weights)))


def _draw(ax, masses, axes, top):
  ends = [axes[0][0], axes[0][-1], axes[1][0], axes[1][-1]]
  ax.imshow(
    np.sqrt(masses.T),
    origin='lower',
    extent=ends,
    aspect='auto',
    cmap=_COLORS,
    vmin=0,
    vmax=np.sqrt(top),
  )
  ax.tick_params(labelsize=7)


def _lines(results):
  """Yields a line of text for each run."""
  for found in results['runs']:
    yield (
      f'epsilon {found["epsilon"]:g}, {found["flow"]}: volume of the flow '
      f'{found["volume_ratio"]:.2f} of the target, total variation '
      f'{found["total_variation_on_grid"]:.3f}, |log p - log q| up to '
      f'{found["dp_distance_on_99_percent"]:.2f} on 99 % of the target and '
      f'{found["dp_distance_on_grid"]:.2f} on the grid; '
      f'{found["seconds"]:.1f} s'
    )


def main(argv):
  """Runs what the flags ask for and prints the distances."""
  if len(argv) > 1:
    raise app.UsageError(f'Unknown arguments: {argv[1:]}')
  values = flags.FLAGS
  results = run(
    epsilons=[float(x) for x in values.epsilons],
    n=values.rows,
    seed=values.seed,
    output=values.output,
    plot=values.plot,
    smoke=values.smoke,
  )
  print('\n'.join(_lines(results)))


def _define_flags():
  flags.DEFINE_list(
    'epsilons', [str(x) for x in EPSILONS], 'Epsilons of the mechanisms.'
  )
  flags.DEFINE_integer('rows', 200, 'Number of rows.', lower_bound=1)
  flags.DEFINE_integer('seed', 0, 'Seed of the flows.')
  flags.DEFINE_string('output', None, 'JSON file to write.')
  flags.DEFINE_string('plot', None, 'PNG file to write.')
  flags.DEFINE_bool('smoke', False, 'A few steps, to see that it runs.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
