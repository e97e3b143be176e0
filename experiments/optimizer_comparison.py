r"""Which optimizer makes most of noised gradients.

The tasks of `experiments.banded_noise`, a classifier of images and a flow, are
trained at the same epsilon, batch, clip and number of steps, so with the same
noise, by each optimizer. The learning rate of each is the best of five on rows
apart, by one seed: not charged, for all alike.

    python -m experiments.optimizer_comparison --seeds=0,1,2 \
      --output=experiments/results/optimizer_comparison.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import itertools

import tensorflow as tf
from absl import app

from experiments import flag_values
from experiments.banded_noise import BATCH, DELTA, STEPS, TASKS, run_best
from experiments.results_file import ResultsFile
from tfdpflows import optimizers

EPSILONS = (1.0,)
_KEYS = ('task', 'epsilon', 'optimizer', 'learning_rate', 'seed')


class DPAdamBC(optimizers.DPKerasAdam):
  """Adam whose second moment has the variance of the noise subtracted.

  The result is at least a tenth of that variance (Tang et al. 2024, "DP-AdamBC:
  Your DP-Adam is actually DP-SGD", algorithm 1).
  """

  def _resource_apply_dense(self, grad, var, apply_state=None):
    device, dtype = var.device, var.dtype.base_dtype
    known = (apply_state or {}).get((device, dtype))
    values = known or self._fallback_apply_state(device, dtype)
    beta_1, beta_2 = values['beta_1_t'], values['beta_2_t']
    m, v = self.get_slot(var, 'm'), self.get_slot(var, 'v')
    m_t = m.assign(beta_1 * m + (1 - beta_1) * grad)
    v_t = v.assign(beta_2 * v + (1 - beta_2) * grad**2)
    # Corrected for its start at zero, the noise's part is its variance.
    noise = (tf.cast(self.noise_stddev, dtype) / self.expected_batch_size) ** 2
    v_hat = tf.maximum(v_t / (1 - values['beta_2_power']) - noise, 0.1 * noise)
    step = m_t / (1 - values['beta_1_power']) / tf.sqrt(v_hat)
    return var.assign_sub(values['lr_t'] * step, use_locking=self._use_locking)


# The optimizer, its arguments, and the smallest of five learning rates, each
# three times the one before, for images and for flows.
OPTIMIZERS = {
  'SGD': ('sgd', {}, 0.1, 0.001),
  'SGD, momentum .9': ('sgd', {'momentum': 0.9}, 0.01, 0.0001),
  'Adagrad': ('adagrad', {}, 0.003, 0.001),
  'Adam': ('adam', {}, 0.0003, 0.0003),
  'Adam, beta_2 .99': ('adam', {'beta_2': 0.99}, 0.0003, 0.0003),
  'DP-AdamBC': (DPAdamBC, {}, 0.0001, 0.0001),
  'AdaBelief': ('adabelief', {}, 0.0003, 0.0003),
  'AdaBelief, corrected': (
    'adabelief',
    {'noise_variance_correction': True},
    0.0001,
    0.0001,
  ),
}
_RATES = 5


def run(
  tasks=('mnist', 'lifesci'),
  *,
  names=tuple(OPTIMIZERS),
  epsilons=EPSILONS,
  seeds=(0,),
  output=None,
  smoke=False,
):
  """Trains each task with each optimizer.

  Args:
    tasks: some of `banded_noise.TASKS`.
    names: some of `OPTIMIZERS`.
    epsilons: budgets, each at `DELTA`.
    seeds: of weights and noise; the first one chooses the learning rate.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to make five steps only, with two learning rates.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(
    output,
    {'delta': DELTA, 'steps': STEPS, 'batch': BATCH, 'smoke': smoke},
    _KEYS,
  )
  for name in tasks:
    task = TASKS[name]()
    for epsilon, optimizer in itertools.product(epsilons, names):
      kind, settings, images, flow = OPTIMIZERS[optimizer]
      start = images if task.optimizer == 'sgd' else flow
      rates = [
        float(f'{start * 3**i:.3g}') for i in range(2 if smoke else _RATES)
      ]
      run_best(
        results,
        task,
        rates,
        seeds,
        {'task': name, 'epsilon': epsilon, 'optimizer': optimizer},
        optimizer=kind,
        **settings,
      )
  return results


def main(argv):
  """Runs what the flags ask for."""
  flag_values.run_all(argv, run, 'tasks')


if __name__ == '__main__':
  flag_values.define('tasks', ['mnist', 'lifesci'], EPSILONS)
  app.run(main)
