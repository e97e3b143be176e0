"""AIM, AIM-GDP, SWIFT and MST of google/dpsynth, behind the interface of ours.

It is on no package index. The environment `.venv-peers-dpsynth` is made by hand
with Python 3.12: `pip install mbi 'jax[cpu]==0.11.0' pydantic pyyaml tqdm attrs
more-itertools networkx pandas 'etils[epath]' importlib_resources`, then from
clones of google/differential-privacy (the folder `python/dp_accounting`;
version 0.6.0 of the index divides by zero here) and, with `--no-deps`, of
google/dpsynth.
"""

from __future__ import annotations

import pathlib

from experiments.peers import peer
from tfdpflows.evaluation import discretization

PYTHON = peer.ROOT / '.venv-peers-dpsynth' / 'bin' / 'python'
METHODS = ('swift', 'aim_gdp', 'dpsynth_aim', 'dpsynth_mst')
_WORKER = pathlib.Path(__file__).resolve().parent / 'dpsynth_worker.py'
# Integers of so few possible values are categories, as its users declare them.
_FEW = 20


class DpsynthSynthesizer(peer.PrivatePeer):
  """One of `METHODS`, fitted and sampled by a process of its own.

  It gets the same public domain as ours: categories and bounds of the schema.
  Numbers are cut at 32 private quantiles, which is paid for out of `epsilon`.

  Args:
    schema: a `TableSchema`.
    epsilon: the budget, with `delta`.
    delta: see `epsilon`.
    method: one of `METHODS`.
    target: the column that rows should predict, or `None`. The workload is
      then all pairs and all triples with the target; otherwise all triples, or
      what the mechanism has by default.
    seed: of its noise.
    decode: whether numbers are the 'midpoint' of their bin, as by default, or a
      'sample' of it.
    options: fields of the mechanism's configuration.
    python: interpreter of the environment of the peer.
    limit_s: seconds after which a fit is given up, or `None`.

  Attributes:
    peak_mib: after `fit`, the most memory that the process held.
    details: after `fit`, the answer of the process.

  Raises:
    ValueError: for an unknown method.
    PeerUnavailableError: if there is no such environment.
  """

  accountant = 'PLD of a Gaussian mechanism'
  told = ('target', 'decode')

  def __init__(
    self,
    schema,
    epsilon=1.0,
    delta=1e-5,
    *,
    method,
    target=None,
    seed=None,
    decode='midpoint',
    options=None,
    python=PYTHON,
    limit_s=None,
  ):
    if method not in METHODS:
      raise ValueError(f'No method {method!r}. Choose one of {METHODS}.')
    request = {
      'method': method.removeprefix('dpsynth_'),
      'domain': domain(schema),
      'target': target,
      'decode': decode,
      'options': options or {},
      'seed': seed,
    }
    super().__init__(
      schema,
      epsilon,
      delta,
      method=method,
      package='dpsynth',
      worker=_WORKER,
      request=request,
      python=python,
      limit_s=limit_s,
      takes_missing=True,
    )


def domain(schema):
  """Returns the public domain of a schema as dpsynth takes it, by column.

  #### Example

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> domain(TableSchema([Field('age', 'integer', 0, 99, required=True)]))
  {'age': {'lower': 0, 'upper': 99, 'integer': True, 'missing': False}}
  """
  found = {}
  for field in schema:
    values = discretization.declared_values(field)
    if field.is_numeric and not values:
      if field.minimum == field.maximum:
        values = (field.minimum,)
      elif field.type == 'integer' and field.maximum - field.minimum < _FEW:
        values = range(field.minimum, field.maximum + 1)
    if values:
      missing = [] if field.required else ['']
      names = [*missing, *(str(value) for value in values)]
      found[field.name] = {'categories': names}
    else:
      found[field.name] = {
        'lower': field.minimum,
        'upper': field.maximum,
        'integer': field.type == 'integer',
        'missing': not field.required,
      }
  return found
