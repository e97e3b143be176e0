"""CTGAN of PyPI `ctgan`, which is not private, behind the interface of ours."""

from __future__ import annotations

import math
import pathlib

from experiments.peers import peer

PYTHON = peer.ROOT / '.venv-peers-ctgan' / 'bin' / 'python'
METHODS = ('ctgan',)
# The epsilon that stands for no privacy in the files and tables of results.
NOT_PRIVATE = 1e6
_WORKER = pathlib.Path(__file__).resolve().parent / 'ctgan_worker.py'


class CtganSynthesizer(peer.Peer):
  """CTGAN (Xu et al. 2019), with the settings of its authors.

  It takes no bounds: it fits mixtures to the numbers and reads categories off
  the rows. Columns with categories in the schema are declared to be discrete,
  and synthetic numbers are clipped to the bounds of the schema.

  Args:
    schema: a `TableSchema` whose fields are all required.
    epsilon: 1e6, which stands for no privacy.
    delta: ignored.
    method: 'ctgan'.
    seed: of all its random numbers.
    epochs: passes over the rows, `None` for the 300 of the authors.
    python: interpreter of its environment.
    limit_s: seconds after which a fit is given up, or `None`.

  Raises:
    ValueError: for another epsilon, or a field that may be missing.
    PeerUnavailableError: if there is no such environment.
  """

  def __init__(
    self,
    schema,
    epsilon=NOT_PRIVATE,
    delta=1e-5,
    *,
    method='ctgan',
    seed=None,
    epochs=None,
    python=PYTHON,
    limit_s=None,
  ):
    del delta
    if epsilon != NOT_PRIVATE:
      raise ValueError(
        f'epsilon is {epsilon}, and CTGAN is not private: give '
        f'{NOT_PRIVATE:g}, which stands for that.'
      )
    super().__init__(
      schema,
      method,
      package='ctgan',
      worker=_WORKER,
      request={
        'texts': [f.name for f in schema if not f.is_numeric],
        'discrete': [f.name for f in schema if f.categories is not None],
        'epochs': epochs,
        'seed': seed,
      },
      python=python,
      limit_s=limit_s,
    )

  def epsilon(self):
    """Returns infinity: there is no privacy."""
    return math.inf

  def to_dict(self):
    """Returns that nothing is claimed: a JSON-able dict."""
    return {
      'claim': None,
      'accountant': 'none',
      'sampling': 'none: nothing is private',
      'details': self.details,
    }
