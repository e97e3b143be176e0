"""Seeded weights after three steps of every flow and clipping strategy."""

from __future__ import annotations

import numpy as np

import tfdpflows
from tfdpflows import flows, gradients, sampling

_ROWS, _STEPS = 64, 3
_KNOTS = [[-1.0, 0.0, 1.0], [0.0], [-0.5, 0.5]]

FLOWS = {
  'masked_autoregressive_flow': lambda: flows.masked_autoregressive_flow(
    3, num_blocks=2, hidden_units=(8, 8), seed=1
  ),
  'neural_spline_flow': lambda: flows.neural_spline_flow(
    3, num_blocks=2, hidden_units=(8,), num_bins=4, seed=1
  ),
  'histogram_flow': lambda: flows.histogram_flow(_KNOTS, (8,), seed=1),
  'dp_nf': lambda: flows.dp_nf(3, num_blocks=2, hidden_units=(8,), seed=1),
  'dp_hflow_low_rank': lambda: flows.dp_hflow(
    3, num_blocks=2, hidden_units=(8,), num_bins=4, seed=1
  ),
  'dp_hflow_lu': lambda: flows.dp_hflow(
    3, num_blocks=2, hidden_units=(8,), num_bins=4, linear='lu', seed=1
  ),
  'dp_hflow_apart': lambda: flows.dp_hflow(
    3, num_blocks=2, hidden_units=(8,), num_bins=4, shared=False, seed=1
  ),
}
STRATEGIES = {
  'Flat': lambda: gradients.Flat(1.0),
  'PerLayer': lambda: gradients.PerLayer(1.0),
  'PerUnit': lambda: gradients.PerUnit(1.0),
  'StochasticSparsification': lambda: gradients.StochasticSparsification(
    1.0, sparsity=0.5
  ),
  'Automatic': lambda: gradients.Automatic(1.0),
  'AdaptiveQuantile': lambda: gradients.AdaptiveQuantile(1.0),
}


def _rows():
  return np.random.default_rng(2).normal(size=[_ROWS, 3]).astype('float32')


def cases():
  """Names of a flow, a strategy and an optimizer; all pairs of the first two.

  Returns:
    A list of triples.
  """
  optimizers = ('sgd', 'adam', 'adagrad', 'adabelief')
  return [
    (flow, strategy, optimizers[(i + j) % 4])
    for i, flow in enumerate(FLOWS)
    for j, strategy in enumerate(STRATEGIES)
  ]


def values(flow, strategy, optimizer):
  """Trains, and says where it ended.

  Args:
    flow: A key of `FLOWS`.
    strategy: A key of `STRATEGIES`.
    optimizer: Name of an optimizer.

  Returns:
    A dict of lists: for each variable the sum, the sum of squares and a dot
    product with fixed numbers; log-densities of rows; and epsilon.
  """
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=_ROWS, sampling_probability=0.25),
    STRATEGIES[strategy](),
    noise_multiplier=1.0,
    steps=_STEPS,
    delta=1e-4,
    seed=3,
  )
  model = tfdpflows.DensityModel(FLOWS[flow]())
  model.compile(optimizer=plan.optimizer(optimizer, learning_rate=0.05))
  model.fit(_rows(), verbose=0)
  found = []
  for variable in model.trainable_variables:
    x = variable.numpy().astype(np.float64).ravel()
    found.append([x.sum(), x @ x, x @ np.cos(np.arange(x.size))])
  return {
    'weights': [[float(f'{x:.9g}') for x in row] for row in found],
    'log_prob': [float(f'{x:.9g}') for x in model.log_prob(_rows()[:5])],
    'epsilon': plan.epsilon(),
  }


def make():
  """Everything that the file holds.

  Returns:
    What `json.dumps` takes.
  """
  return {' '.join(case): values(*case) for case in cases()}
