"""DP-CGAN: DP-GAN whose generator is told the label of each row.

A baseline of the DP-HFlow paper, as in R. Torkzadehmahani, P. Kairouz and
B. Paten (2019), *DP-CGAN: Differentially Private Synthetic Data and Label
Generation*: generator and discriminator are conditioned on the label, and
DP-SGD trains the discriminator alone. Optimizer, plan, encoder, discriminator
and generator are those of our DP-GAN (`tfdpflows.tabular.models.dpgan`). What
differs from the paper: the gradients of a real row and of its generated one are
clipped as one, where the paper clips them one by one; labels of generated rows
are drawn from the released marginal of the target; the generator begins at the
released marginals of all columns, and its loss keeps it near them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models.dpgan import DPGANModel
from tfdpflows.tabular.models.gan import Network, TableGenerator

# Logit of labels that a row does not have: below all noise that is added to it.
_NEVER = -100.0


@dataclasses.dataclass(frozen=True)
class DPCGANModel(DPGANModel):
  """Hyper-parameters of `DPCGAN`.

  Attributes:
    target: name of the column of labels.
  """

  name: ClassVar[str] = 'dp_cgan'

  target: str = ''

  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> ConditionalGenerator:
    """See `TableModel`."""
    return ConditionalGenerator(
      columns,
      marginals,
      target=self.target,
      num_bins=self.num_bins,
      noise_units=self.noise_units,
      hidden_units=self.generator_units,
      seed=seed,
    )


class ConditionalGenerator(TableGenerator):
  """A `TableGenerator` that draws the label first and is told it.

  The last of the normal numbers that a row is made from decides its label, by
  the released marginal of the target.

  Args:
    columns: see `TableGenerator`, as the others.
    marginals: see there.
    target: name of the column of labels, whose bins are the labels.
    num_bins: see there.
    noise_units: how many normal numbers the network is given with the label.
    hidden_units: see there.
    seed: see there.
  """

  def __init__(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    *,
    target: str,
    num_bins: int,
    noise_units: int,
    hidden_units: Sequence[int],
    seed: int | None,
  ):
    super().__init__(
      columns,
      marginals,
      num_bins=num_bins,
      noise_units=noise_units + 1,
      hidden_units=hidden_units,
      seed=seed,
    )
    self._target = [column.name for column in columns].index(target)
    start = sum(self._sizes[: self._target])
    count = self._sizes[self._target]
    shares = np.exp(self._log_masses[start : start + count], dtype=np.float64)
    cumulative = np.cumsum(shares)[:-1] / shares.sum()
    self._cumulative = cumulative.astype(np.float32)
    self.network = Network(
      [noise_units + count, *hidden_units, self.num_indicators],
      np.random.default_rng(seed),
      last_scale=0.0,
    )

  def labels(self, noise: tf.Tensor) -> tf.Tensor:
    """Returns the labels, int32 `[n]`, of rows made from `noise`."""
    uniform = 0.5 + 0.5 * tf.math.erf(noise[:, -1] / math.sqrt(2))
    return tf.searchsorted(self._cumulative, uniform, side='right')

  def _logits(self, noise):
    labels = tf.one_hot(self.labels(noise), self._sizes[self._target])
    logits = self.network(tf.concat([noise[:, :-1], labels], 1))
    blocks = tf.split(logits + self._log_masses, self._sizes, axis=1)
    blocks[self._target] = _NEVER * (1 - labels)
    return tf.concat(blocks, 1)


class DPCGAN(TabularSynthesizer):
  """Synthesizes labelled tables, with the interface of `TabularSynthesizer`.

  #### Formal guarantee

  That of `TabularSynthesizer` with `model='dpgan'`: (epsilon, delta)-
  differential privacy under adding or removing one row, by the same ledger,
  sampler and optimizer. Labels of generated rows follow the released marginals.

  Args:
    schema: a `TableSchema` without marks.
    epsilon: the budget, with `delta`.
    delta: see `epsilon`.
    target: name of the column of labels.
    seed: for tests and papers: not private against anyone who knows it.
    **hyperparameters: of `DPCGANModel`.

  Raises:
    ValueError: for arguments out of range, or a target that is no column.
  """

  def __init__(
    self,
    schema,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    *,
    target: str,
    seed: int | None = None,
    **hyperparameters: Any,
  ):
    super().__init__(
      schema, epsilon=epsilon, delta=delta, model='dpgan', seed=seed
    )
    if target not in self.schema.names:
      raise ValueError(
        f'The target {target!r} is not a column of the schema. Its columns '
        f'are: {", ".join(self.schema.names)}.'
      )
    self._model_class = DPCGANModel
    self._hyperparameters = {**hyperparameters, 'target': target}
    self.model = self._model_for(1)
