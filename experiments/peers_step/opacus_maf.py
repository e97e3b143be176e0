"""The MAF's training step with Opacus: hooks, ghost clipping, not private.

Opacus knows no masked layer: rules for it are written by hand here, or it
would refuse the model. Reads a shape as JSON from its argument, prints median
milliseconds as JSON. Runs in an environment of its own: `make bench-peers`.
"""

import json
import statistics
import sys
import time

import numpy as np
import opacus
import torch
from opacus import grad_sample, optimizers
from opacus.utils import fast_gradient_clipping_utils as fast


class MaskedLinear(torch.nn.Module):
  """`x @ (weight * mask) + bias`."""

  def __init__(self, mask):
    super().__init__()
    # No buffer: Opacus refuses layers that have one.
    self.mask = torch.tensor(mask, dtype=torch.float32)
    self.weight = torch.nn.Parameter(0.05 * torch.randn(*mask.shape))
    self.bias = torch.nn.Parameter(torch.zeros(mask.shape[1]))

  def forward(self, x):
    return torch.addmm(self.bias, x, self.weight * self.mask)


@grad_sample.register_grad_sampler(MaskedLinear)
def per_example_gradients(layer, activations, backprops):
  a = activations[0]
  outer = torch.einsum('ni,no->nio', a, backprops)
  return {layer.weight: outer * layer.mask, layer.bias: backprops}


@grad_sample.register_norm_sampler(MaskedLinear)
def per_example_norms(layer, activations, backprops):
  a, squared = activations[0], backprops**2
  norms = ((a**2 @ layer.mask) * squared).sum(1)
  return {layer.weight: norms.sqrt(), layer.bias: squared.sum(1).sqrt()}


def degrees(units, event_size):
  return np.sort(np.arange(units) % max(event_size - 1, 1)) + 1


class Flow(torch.nn.Module):
  """Maps rows `[n, d]` to minus their log-densities `[n]`."""

  def __init__(self, event_size, num_blocks, hidden_units):
    super().__init__()
    found = [np.arange(1, event_size + 1)]
    found += [degrees(units, event_size) for units in hidden_units]
    masks = [a[:, None] <= b for a, b in zip(found[:-1], found[1:])]
    masks.append(np.repeat(found[-1][:, None] < found[0], 2, 1))
    self.blocks = torch.nn.ModuleList(
      torch.nn.ModuleList(MaskedLinear(mask) for mask in masks)
      for _ in range(num_blocks)
    )

  def forward(self, x):
    log_det = 0.0
    for block in self.blocks:
      h = x = x.flip(-1)
      for layer in block[:-1]:
        h = torch.relu(layer(h))
      h = block[-1](h).reshape(*x.shape, 2)
      x = (x - h[..., 0]) * torch.exp(-h[..., 1])
      log_det = log_det - h[..., 1].sum(-1)
    return 0.5 * (x**2).sum(-1) - log_det


def each(losses):
  return losses


each.reduction = 'mean'  # Which Opacus sets to 'none' while it calls it.


def make_step(way, shape, x):
  torch.manual_seed(0)
  sizes = ('event_size', 'num_blocks', 'hidden_units')
  flow = Flow(*(shape[name] for name in sizes))
  adam = torch.optim.Adam(flow.parameters(), 1e-3)
  criterion = torch.mean
  privacy = {
    'noise_multiplier': 1.0,
    'max_grad_norm': 1.0,
    'expected_batch_size': len(x),
  }
  if way == 'hooks':
    flow = grad_sample.GradSampleModule(flow)
    adam = optimizers.DPOptimizer(adam, **privacy)
  elif way == 'ghost':
    flow = grad_sample.GradSampleModuleFastGradientClipping(
      flow, max_grad_norm=1.0, use_ghost_clipping=True
    )
    adam = optimizers.DPOptimizerFastGradientClipping(adam, **privacy)
    criterion = fast.DPLossFastGradientClipping(flow, adam, each)

  def step():
    adam.zero_grad()
    criterion(flow(x)).backward()
    adam.step()

  return step


def main():
  shape = json.loads(sys.argv[1])
  if torch.cuda.is_available():
    torch.set_default_device('cuda')
  rng = np.random.default_rng(0)
  x = rng.normal(size=[shape['batch'], shape['event_size']])
  x = torch.tensor(x, dtype=torch.float32)
  median = {}
  for name, way, rounds in (
    ('not private', None, shape['rounds']),
    ('ghost clipping', 'ghost', shape['rounds']),
    ('hooks', 'hooks', shape['slow_rounds']),
  ):
    step, times = make_step(way, shape, x), []
    count = shape.get('steps', 1)
    for _ in range(rounds + 1):
      start = time.perf_counter()
      for _ in range(count):
        step()
      if torch.cuda.is_available():
        torch.cuda.synchronize()
      times.append(1e3 * (time.perf_counter() - start) / count)
    median[name] = statistics.median(times[1:])
  versions = {'torch': torch.__version__, 'opacus': opacus.__version__}
  print(json.dumps({'median_ms': median, 'versions': versions}))


if __name__ == '__main__':
  main()
