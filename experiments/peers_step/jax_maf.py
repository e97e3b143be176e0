"""The MAF's training step in JAX: vmap(grad), jitted, and without privacy.

Reads a shape as JSON from its argument, prints median milliseconds as JSON.
Runs in an environment of its own: `make bench-peers`.
"""

import functools
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def degrees(units, event_size):
  return np.sort(np.arange(units) % max(event_size - 1, 1)) + 1


def made_masks(event_size, hidden_units):
  found = [np.arange(1, event_size + 1)]
  found += [degrees(units, event_size) for units in hidden_units]
  masks = [a[:, None] <= b for a, b in zip(found[:-1], found[1:])]
  masks.append(np.repeat(found[-1][:, None] < found[0], 2, 1))
  return [jnp.asarray(mask, jnp.float32) for mask in masks]


def initial(masks, num_blocks):
  rng = np.random.default_rng(0)
  return [
    (
      jnp.asarray(rng.normal(size=mask.shape) * 0.05, jnp.float32),
      jnp.zeros(mask.shape[1]),
    )
    for _ in range(num_blocks)
    for mask in masks
  ]


def loss(params, masks, x):
  """Minus the log-density of one row `[d]`, or of each row."""
  log_det = 0.0
  for block in range(0, len(params), len(masks)):
    h = x = x[..., ::-1]
    for i, mask in enumerate(masks):
      kernel, bias = params[block + i]
      h = h @ (kernel * mask) + bias
      h = jax.nn.relu(h) if i < len(masks) - 1 else h
    h = h.reshape((*x.shape, 2))
    x = (x - h[..., 0]) * jnp.exp(-h[..., 1])
    log_det -= h[..., 1].sum(-1)
  return 0.5 * (x**2).sum(-1) - log_det


def adam(state, gradients):
  params, first, second, count = state
  count += 1
  tree = jax.tree.map
  first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
  second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
  rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
  params = tree(
    lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7), params, first, second
  )
  return params, first, second, count


def plain_step(masks, state, x, unused_key):
  mean = lambda params: loss(params, masks, x).mean()
  return adam(state, jax.grad(mean)(state[0]))


def private_step(masks, state, x, key):
  one = lambda row: jax.grad(loss)(state[0], masks, row)
  gradients = jax.vmap(one)(x)
  leaves, tree = jax.tree.flatten(gradients)
  squared = sum((g**2).reshape(len(x), -1).sum(1) for g in leaves)
  scale = jnp.minimum(1.0, jax.lax.rsqrt(squared))
  keys = jax.random.split(key, len(leaves))
  sums = [
    jnp.tensordot(scale, g, 1) + jax.random.normal(k, g.shape[1:])
    for k, g in zip(keys, leaves)
  ]
  return adam(state, tree.unflatten([s / len(x) for s in sums]))


def main():
  shape = json.loads(sys.argv[1])
  masks = made_masks(shape['event_size'], shape['hidden_units'])
  x = np.random.default_rng(0).normal(size=[shape['batch'], len(masks[0])])
  x = jnp.asarray(x, jnp.float32)
  median = {}
  for name, step, rounds in (
    ('not private', plain_step, shape['rounds']),
    ('vmap(grad), jitted', private_step, shape['slow_rounds']),
  ):
    params = initial(masks, shape['num_blocks'])
    zeros = jax.tree.map(jnp.zeros_like, params)
    state, times = (params, zeros, zeros, 0), []
    jitted = jax.jit(functools.partial(step, masks))
    count = shape.get('steps', 1)
    for i in range(rounds + 1):
      start = time.perf_counter()
      for j in range(count):
        state = jitted(state, x, jax.random.key(i * count + j))
      jax.block_until_ready(state)
      times.append(1e3 * (time.perf_counter() - start) / count)
    median[name] = statistics.median(times[1:])
  print(json.dumps({'median_ms': median, 'versions': {'jax': jax.__version__}}))


if __name__ == '__main__':
  main()
