"""Masked autoregressive bijectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdpflows.bijectors.one_pass import OnePassInverse

if TYPE_CHECKING:
  from tfdpflows._keras import tfp


class MaskedAutoregressive(OnePassInverse):
  """Transforms each column by parameters computed from the columns before it.

  `y_j = T(x_j; network(y)_j)`, as in MAF (Papamakarios et al. 2017): from data
  to base (`inverse`, `log_prob`) in one network pass, from base to data
  (`forward`, sampling) column by column, which `MADE` also does at the cost of
  one pass.

  With a conditional network all methods take `conditional_input=c`, as those of
  TFP's `tfb.MaskedAutoregressiveFlow` do: `[..., k]`, which is broadcast to the
  rows of x.

  Args:
    network: a `networks.MADE`, or another autoregressive map from `[..., d]`
      to `[..., d, transform.num_params]` that has `columns()`; both take
      `conditional_input`, if it is conditional.
    transform: a callable from parameters `[..., num_params]` to a bijector over
      `[...]`, with the attribute `num_params`, such as `flows.Affine()`.

  Raises:
    ValueError: if the network has another number of parameters than the
      transform.

  #### Example

  >>> from tfdpflows import bijectors, flows, networks
  >>> made = networks.MADE(params=2, event_size=3, hidden_units=[16])
  >>> maf = bijectors.MaskedAutoregressive(made, flows.Affine())
  >>> maf.inverse([[1., 2., 3.]]).numpy().tolist()
  [[1.0, 2.0, 3.0]]
  """

  def __init__(
    self,
    network: Callable[[tf.Tensor], tf.Tensor],
    transform: Callable[[tf.Tensor], tfp.bijectors.Bijector],
    validate_args: bool = False,
    name: str = 'masked_autoregressive',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      self._network = network
      self._transform = transform
      if network.params != self._transform.num_params:
        raise ValueError(
          f'The network gives {network.params} parameters per column, '
          f'{type(self._transform).__name__} takes '
          f'{self._transform.num_params}.'
        )
      super().__init__(
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  def _inverse_and_log_det(self, y, conditional_input=None):
    given = _for_rows(y, conditional_input)
    column = self._transform(self._network(y, **given))
    x = column.inverse(y)
    log_det = column.inverse_log_det_jacobian(y, event_ndims=0)
    return x, tf.reduce_sum(log_det, -1)

  def _forward(self, x, conditional_input=None):
    shape, size = x.shape, self._network.event_size
    flat = tf.reshape(x, [-1, size])
    given = {
      key: tf.reshape(c, [-1, c.shape[-1]])
      for key, c in _for_rows(x, conditional_input).items()
    }
    columns = []
    for j, params_of in enumerate(self._network.columns(**given)):
      column = self._transform(params_of(columns))
      columns.append(column.forward(flat[:, j]))
    y = tf.reshape(tf.stack(columns, 1), tf.shape(x))
    return tf.ensure_shape(y, shape)


def _for_rows(x, conditional_input):
  """Returns what a network takes besides x, with a value for each row."""
  if conditional_input is None:
    return {}
  c = tf.cast(conditional_input, x.dtype)
  if c.shape.rank == 0 or c.shape[-1] is None:
    raise ValueError(
      f'conditional_input has shape {c.shape}; it must be [..., k], with k the '
      'conditional_event_size of the network. A single value for each row is '
      'c[..., tf.newaxis].'
    )
  shape = tf.concat([tf.shape(x)[:-1], [c.shape[-1]]], 0)
  c = tf.broadcast_to(c, shape)
  return {'conditional_input': tf.ensure_shape(c, x.shape[:-1] + c.shape[-1:])}
