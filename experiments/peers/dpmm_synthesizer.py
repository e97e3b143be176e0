"""MST, AIM and PrivBayes of PyPI `dpmm`, behind the interface of ours."""

from __future__ import annotations

import pathlib

from experiments.peers import peer
from tfdpflows.evaluation import discretization

PYTHON = peer.ROOT / '.venv-peers-tabular' / 'bin' / 'python'
METHODS = ('mst', 'aim', 'privbayes')
_WORKER = pathlib.Path(__file__).resolve().parent / 'dpmm_worker.py'


class DpmmSynthesizer(peer.PrivatePeer):
  """One of `METHODS`, fitted and sampled by a process of its own.

  It gets the same public domain as ours: categories and bounds of the schema.
  Numbers are binned by dpmm's private PrivTree, which is paid for out of
  `epsilon`; dpmm drops columns that are constant in the rows, which it does
  not pay for.

  Args:
    schema: a `TableSchema` whose fields are all required.
    epsilon: the budget, binning included, with `delta`.
    delta: see `epsilon`.
    method: one of `METHODS`.
    seed: of what dpmm lets one seed; its noise is not.
    binning_epsilon: the part of `epsilon` that binning spends.
    bins: most bins of a number, or 'auto'.
    iterations: of the inference, `None` for dpmm's own.
    max_model_size: MB that the graphical model of MST and AIM may take, or
      `None`; AIM's authors have 80.
    rounds: of AIM, which measures a marginal in each; `None` for 16 for each
      column, as its authors have.
    jobs: processes of dpmm. It hands each of them the model again for every
      marginal: AIM on Adult was no faster with two.
    python: interpreter of the environment of the peers.
    limit_s: seconds after which a fit is given up, or `None`.

  Attributes:
    peak_mib: after `fit`, the most memory that the process held.
    details: after `fit`, the answer of the process.

  Raises:
    ValueError: for an unknown method, a field that may be missing, a
      `binning_epsilon` outside (0, epsilon), or `rounds` of another method.
    PeerUnavailableError: if there is no such environment.
  """

  accountant = 'zCDP for the model, basic composition with the binning'
  told = ('binning_epsilon',)

  def __init__(
    self,
    schema,
    epsilon=1.0,
    delta=1e-5,
    *,
    method,
    seed=None,
    binning_epsilon=0.1,
    bins='auto',
    iterations=None,
    max_model_size=None,
    rounds=None,
    jobs=1,
    python=PYTHON,
    limit_s=None,
  ):
    if method not in METHODS:
      raise ValueError(f'No method {method!r}. Choose one of {METHODS}.')
    if not 0 < binning_epsilon < epsilon:
      raise ValueError(
        f'binning_epsilon is {binning_epsilon}; it is a part of epsilon and '
        f'must be between 0 and {epsilon}.'
      )
    if rounds is not None and method != 'aim':
      raise ValueError(f'Only AIM has rounds, {method} has none.')
    request = {
      'method': method,
      'domain': domain(schema),
      'binning_epsilon': binning_epsilon,
      'bins': bins,
      'iterations': iterations,
      'max_model_size': max_model_size,
      'rounds': rounds,
      'jobs': jobs,
      'seed': seed,
    }
    super().__init__(
      schema,
      epsilon,
      delta,
      method=method,
      package='dpmm',
      worker=_WORKER,
      request=request,
      python=python,
      limit_s=limit_s,
    )


def domain(schema):
  """Returns the public domain of a schema as dpmm takes it, by column.

  #### Example

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> domain(TableSchema([Field('age', 'integer', 0, 99, required=True)]))
  {'age': {'lower': 0, 'upper': 99}}
  """
  found = {}
  for field in schema:
    values = discretization.declared_values(field)
    if not field.is_numeric:
      found[field.name] = {'categories': [str(value) for value in values]}
    elif values:
      found[field.name] = {'lower': values[0], 'upper': values[-1]}
    else:
      found[field.name] = {'lower': field.minimum, 'upper': field.maximum}
  return found
