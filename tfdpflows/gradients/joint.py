"""Norms and weighted sums of several terms at once.

What is computed per example and term is a few numbers: on a CPU the number of
operations costs more time than their size. And a bias shares with the kernel of
the same use what both compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpflows.gradients.terms import BiasTerm, LinearTerm


def squared_norms(terms: Sequence[Any]) -> tf.Tensor:
  """Returns `[batch, len(terms)]`: the squared l2 norms, a column per term.

  Where one norm of an example is not finite, its others may be nan.
  """
  kernels = _kernels(terms)
  factored = [k for k in dict.fromkeys(kernels) if k and k.factors]
  alone = [i for i, k in enumerate(kernels) if k not in factored]
  norms = [terms[i].squared_norms() for i in alone]
  if not factored:
    return tf.stack(norms, 1)
  inputs = [k.input_squares() for k in factored]
  outputs = [k.output_squares() for k in factored]
  sizes = [x.shape[1] for x in inputs]
  starts = np.cumsum([0, *sizes])
  # A tiny input can meet a huge gradient: what their squares lost when they
  # were rounded to zero is added again.
  rounded = sum(k.lost for k in factored)
  inputs = tf.concat(inputs, 1) + rounded
  outputs = tf.concat(outputs, 1) + rounded
  parts = [inputs * outputs, outputs]
  parts += [tf.stack(norms, 1)] if norms else []
  # Which of these numbers each term's norm has.
  total = starts[-1]
  has = np.zeros([2 * total + len(alone), len(terms)])
  for i, (term, kernel) in enumerate(zip(terms, kernels)):
    if kernel in factored:
      place = factored.index(kernel)
      start = starts[place] + (0 if term is kernel else total)
      has[start : start + sizes[place], i] = 1
  for row, i in enumerate(alone, start=2 * total):
    has[row, i] = 1
  return tf.matmul(tf.concat(parts, 1), tf.constant(has, inputs.dtype))


def weighted_sums(
  terms: Sequence[Any],
  weights: Sequence[tf.Tensor],
  clean: Callable[[tf.Tensor], tf.Tensor],
) -> list[tf.Tensor]:
  """Returns `weighted_sum` of each term, with its own entry of `weights`."""
  places = {term: i for i, term in enumerate(terms)}
  found = [None] * len(terms)
  for i, (term, kernel) in enumerate(zip(terms, _kernels(terms))):
    if kernel in (None, term) or weights[places[kernel]] is not weights[i]:
      continue
    both = kernel.weighted_sums(clean(weights[i]), clean)
    found[places[kernel]], found[i] = both
  return [
    term.weighted_sum(clean(w), clean) if total is None else total
    for term, w, total in zip(terms, weights, found)
  ]


def _kernels(terms):
  """Returns for each term the kernel of its use: of a kernel, itself."""
  kernels = [t for t in terms if isinstance(t, LinearTerm)]
  by_output = {id(t.one_output): t for t in kernels if t.one_output is not None}
  found = []
  for term in terms:
    if isinstance(term, BiasTerm):
      found.append(by_output.get(id(term.output)))
    else:
      found.append(term if isinstance(term, LinearTerm) else None)
  return found
