"""MST, AIM and PrivBayes of PyPI `dpmm`, behind the interface of ours."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

import pandas as pd

from tfdpflows import accounting
from tfdpflows.evaluation import discretization

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / '.venv-peers-tabular' / 'bin' / 'python'
METHODS = ('mst', 'aim', 'privbayes')
_WORKER = pathlib.Path(__file__).resolve().parent / 'dpmm_worker.py'


class PeerUnavailableError(RuntimeError):
  """The environment of the peers is not there, or lacks dpmm."""


class PeerFailedError(RuntimeError):
  """A fit of a peer ended with an error, or took too long."""


class DpmmSynthesizer:
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
    for field in schema:
      if not field.required:
        raise ValueError(
          f'Column {field.name!r} may be missing, which dpmm would learn '
          'without paying. Set "required" to true, or drop the column.'
        )
    if not os.path.exists(python):
      raise PeerUnavailableError(
        f'There is no {python}: run `make peers-tabular`.'
      )
    self.schema = schema
    self.budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    self.method = method
    self.ledger = self
    self.peak_mib = None
    self.details = None
    self._request = {
      'method': method,
      'domain': domain(schema),
      'epsilon': epsilon,
      'delta': delta,
      'binning_epsilon': binning_epsilon,
      'bins': bins,
      'iterations': iterations,
      'max_model_size': max_model_size,
      'rounds': rounds,
      'jobs': jobs,
      'seed': seed,
    }
    self._python = str(python)
    self._limit_s = limit_s
    self._rows = None

  def fit(self, df):
    """Fits, and draws as many rows as there are, which `sample` gives out.

    Args:
      df: `DataFrame` with the columns of the schema.

    Returns:
      The synthesizer.

    Raises:
      ValueError: naming the column and row that the schema does not allow.
      PeerFailedError: if the process fails or takes too long.
      PeerUnavailableError: if its environment has no dpmm.
    """
    table = self.schema.validate(df)
    with tempfile.TemporaryDirectory() as folder:
      table.to_csv(os.path.join(folder, 'train.csv'), index=False)
      request = {**self._request, 'num_rows': len(table)}
      self.details = self._ask(folder, request)
      rows = pd.read_csv(
        os.path.join(folder, 'synthetic.csv'),
        dtype={f.name: str for f in self.schema if not f.is_numeric},
        keep_default_na=False,
      )
    self.peak_mib = self.details['peak_mib']
    for field in self.schema:
      if field.type == 'integer':
        rows[field.name] = rows[field.name].round()
    # Bins are wider than what they hold.
    self._rows = self.schema.validate(rows, 'clip', fitting=False)
    return self

  def sample(self, num_rows, seed=None):
    """Returns `num_rows` of the rows that were drawn, at most all of them."""
    if self._rows is None:
      raise ValueError('The synthesizer is not fitted yet: call fit(df) first.')
    if not 0 <= num_rows <= len(self._rows):
      raise ValueError(
        f'num_rows is {num_rows}; {len(self._rows)} rows were drawn.'
      )
    if num_rows == len(self._rows):
      return self._rows
    return self._rows.sample(int(num_rows), random_state=seed)

  def epsilon(self):
    """Returns the epsilon that dpmm claims to have spent."""
    return self.budget.epsilon

  def privacy_statement(self):
    """Returns the synthesizer, whose `to_dict` says what dpmm claims."""
    return self

  def to_dict(self):
    """Returns what dpmm claims: a JSON-able dict."""
    request = self._request
    return {
      'claim': f'epsilon {request["epsilon"]:g} at delta={request["delta"]:g}, '
      'by dpmm',
      'accountant': 'zCDP for the model, basic composition with the binning',
      'sampling': 'none: every row is used in every measurement',
      'binning_epsilon': request['binning_epsilon'],
      'details': self.details,
    }

  def _ask(self, folder, request):
    try:
      process = subprocess.run(
        [self._python, str(_WORKER), folder, json.dumps(request)],
        capture_output=True,
        check=False,
        text=True,
        timeout=self._limit_s,
        # The path of this project is none of the other environment's.
        env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
      )
    except subprocess.TimeoutExpired as error:
      raise PeerFailedError(
        f'{self.method} was given up after {self._limit_s} seconds.'
      ) from error
    last = ''.join(process.stderr.strip().splitlines()[-1:])
    if "No module named 'dpmm'" in last:
      raise PeerUnavailableError(
        f'{self._python} has no dpmm: run `make peers-tabular`.'
      )
    if process.returncode:
      raise PeerFailedError(f'{self.method} failed: {last}')
    return json.loads(process.stdout.splitlines()[-1])


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
