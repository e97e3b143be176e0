"""AdaBelief on noised gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdpflows._keras import VectorizedDPKerasAdamOptimizer
from tfdpflows.optimizers.dp_keras import DPOptimizer

# The estimate of the second moment, less the noise, is at least this share of
# the noise: over a thousand steps (beta_2 = .999) the estimate of pure noise
# has a standard deviation of 3 % of it.
_FLOOR = 0.1


class DPKerasAdaBelief(DPOptimizer, VectorizedDPKerasAdamOptimizer):
  """AdaBelief (Zhuang et al. 2020) on noised gradients.

  Adam, with the second moment of the gradient about its running mean:

      m_t = beta_1 m_{t-1} + (1 - beta_1) g_t
      s_t = beta_2 s_{t-1} + (1 - beta_2) (g_t - m_t)^2 + epsilon
      x_t = x_{t-1} - lr m^_t / (sqrt(s^_t) + epsilon)

  with m^ and s^ corrected for their start at zero. Under DP-SGD s is mostly
  the variance of the noise, the same for all coordinates, and known:
  `g_t - m_t = beta_1 (g_t - m_{t-1})` holds noise of variance
  `beta_1^2 (sigma^2 + q_{t-1})`, where sigma is the noise of one mean gradient
  and `q_t = beta_1^2 q_{t-1} + (1 - beta_1)^2 sigma^2` that of m_t.
  `noise_variance_correction` subtracts its part in s^, as Tang et al. 2023 do
  for Adam; the result is at least a tenth of it. This is post-processing of
  what is released.

  Args:
    noise_variance_correction: whether to subtract the variance of the noise.
      With `gradients.AdaptiveQuantile` sigma is that of the next threshold,
      which differs by a few percent; under `StochasticSparsification` it is
      the noise of coordinates that are not dropped.
    epsilon: as above; 1e-16 as in the paper, since it adds up in s.
    **kwargs: `DPOptimizer` has the other arguments.

  #### Example

  >>> from tfdpflows import optimizers
  >>> optimizer = optimizers.DPKerasAdaBelief(
  ...   l2_norm_clip=1., noise_multiplier=1.1, expected_batch_size=256,
  ...   noise_variance_correction=True)
  >>> optimizer.get_config()['noise_variance_correction']
  True

  #### References

  Zhuang et al. AdaBelief Optimizer: Adapting Stepsizes by the Belief in
  Observed Gradients. NeurIPS 2020. arXiv:2010.07468
  Tang, Shpilevskiy, Lécuyer. DP-AdamBC: Your DP-Adam Is Actually DP-SGD
  (Unless You Apply Bias Correction). 2023. arXiv:2312.14334
  """

  def __init__(
    self,
    *,
    noise_variance_correction: bool = False,
    epsilon: float = 1e-16,
    **kwargs: Any,
  ):
    if kwargs.pop('amsgrad', False):
      raise ValueError('DPKerasAdaBelief has no amsgrad.')
    kwargs.setdefault('name', 'DPKerasAdaBelief')
    super().__init__(epsilon=epsilon, **kwargs)
    self.noise_variance_correction = bool(noise_variance_correction)

  def _create_slots(self, var_list):
    super()._create_slots(var_list)
    for variable in var_list:
      # Variances of the noise in m and in v.
      self.add_slot(variable, 'm_noise', shape=[])
      self.add_slot(variable, 'v_noise', shape=[])

  def _resource_apply_dense(self, grad, var, apply_state=None):
    device, dtype = var.device, var.dtype.base_dtype
    known = (apply_state or {}).get((device, dtype))
    values = known or self._fallback_apply_state(device, dtype)
    beta_1, beta_2 = values['beta_1_t'], values['beta_2_t']
    m, v = self.get_slot(var, 'm'), self.get_slot(var, 'v')
    m_t = m.assign(beta_1 * m + (1 - beta_1) * grad)
    v_t = v.assign(
      beta_2 * v + (1 - beta_2) * (grad - m_t) ** 2 + values['epsilon']
    )
    m_hat = m_t / (1 - values['beta_1_power'])
    v_hat = v_t / (1 - values['beta_2_power'])
    if self.noise_variance_correction:
      sigma = tf.cast(self.noise_stddev, dtype) / self.expected_batch_size
      q, p = self.get_slot(var, 'm_noise'), self.get_slot(var, 'v_noise')
      noise = beta_1**2 * (sigma**2 + q)
      p_t = p.assign(beta_2 * p + (1 - beta_2) * noise)
      q_t = q.assign(beta_1**2 * q + (1 - beta_1) ** 2 * sigma**2)
      noise = p_t / (1 - values['beta_2_power'])
      with tf.control_dependencies([q_t]):
        v_hat = tf.maximum(v_hat - noise, _FLOOR * noise)
    step = values['lr_t'] * m_hat / (tf.sqrt(v_hat) + values['epsilon'])
    return var.assign_sub(step, use_locking=self._use_locking)

  def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
    raise ValueError(
      f'The gradient of {var.name} is sparse, and has no noise: take it from '
      'private_gradients.'
    )

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config['noise_variance_correction'] = self.noise_variance_correction
    return config
