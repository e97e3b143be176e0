"""What synthesizers of other libraries share: a process that fits them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

import pandas as pd

from tfdpflows import accounting

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PeerUnavailableError(RuntimeError):
  """The environment of a peer is not there, or lacks its package."""


class PeerFailedError(RuntimeError):
  """A fit of a peer ended with an error, or took too long."""


class Peer:
  """A synthesizer that is fitted and sampled by a process of its own.

  Args:
    schema: a `TableSchema` whose fields are all required.
    method: what it is called.
    package: the package that the process needs.
    worker: path of its script, which takes a folder and a request.
    request: JSON-able dict; `fit` adds `num_rows`.
    python: interpreter of the environment of the peers.
    limit_s: seconds after which a fit is given up, or `None`.
    takes_missing: whether fields may be missing.

  Attributes:
    peak_mib: after `fit`, the most memory that the process held.
    details: after `fit`, the answer of the process.

  Raises:
    ValueError: for a field that may be missing, unless `takes_missing`.
    PeerUnavailableError: if there is no such environment.
  """

  def __init__(
    self,
    schema,
    method,
    *,
    package,
    worker,
    request,
    python,
    limit_s,
    takes_missing=False,
  ):
    for field in schema:
      if not field.required and not takes_missing:
        raise ValueError(
          f'Column {field.name!r} may be missing, which {package} would learn '
          'without paying. Set "required" to true, or drop the column.'
        )
    if not os.path.exists(python):
      raise PeerUnavailableError(
        f'There is no {python}: run `make peers-tabular`.'
      )
    self.schema = schema
    self.method = method
    self.ledger = self
    self.peak_mib = None
    self.details = None
    self._package = package
    self._worker = str(worker)
    self._request = request
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
      PeerUnavailableError: if its environment has no such package.
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
        na_values={f.name: [''] for f in self.schema if not f.required},
      )
    self.peak_mib = self.details['peak_mib']
    for field in self.schema:
      if field.type == 'integer':
        rows[field.name] = rows[field.name].round()
    # Numbers may be outside of the bounds.
    self._rows = self.schema.validate(rows, 'clip', fitting=False)
    return self

  @property
  def num_rows(self):
    """How many rows were drawn."""
    self._check_fitted()
    return len(self._rows)

  def sample(self, num_rows, seed=None):
    """Returns `num_rows` of the rows that were drawn, at most all of them."""
    self._check_fitted()
    if not 0 <= num_rows <= len(self._rows):
      raise ValueError(
        f'num_rows is {num_rows}; {len(self._rows)} rows were drawn.'
      )
    if num_rows == len(self._rows):
      return self._rows
    return self._rows.sample(int(num_rows), random_state=seed)

  def privacy_statement(self):
    """Returns the synthesizer, whose `to_dict` has what its library claims."""
    return self

  def _check_fitted(self):
    if self._rows is None:
      raise ValueError('The synthesizer is not fitted yet: call fit(df) first.')

  def _ask(self, folder, request):
    try:
      process = subprocess.run(
        [self._python, self._worker, folder, json.dumps(request)],
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
    if f"No module named '{self._package}'" in last:
      raise PeerUnavailableError(
        f'{self._python} has no {self._package}: run `make peers-tabular`.'
      )
    if process.returncode:
      raise PeerFailedError(f'{self.method} failed: {last}')
    return json.loads(process.stdout.splitlines()[-1])


class PrivatePeer(Peer):
  """A `Peer` that claims to be private.

  Args:
    schema: see `Peer`.
    epsilon: the budget, with `delta`.
    delta: see `epsilon`.
    request: see `Peer`; the budget is added.
    **kwargs: see `Peer`.

  Attributes:
    accountant: how the package adds up what it spends, in words.
    told: names of what `to_dict` repeats of the request.
  """

  accountant = None
  told = ()

  def __init__(self, schema, epsilon, delta, *, request, **kwargs):
    request = {**request, 'epsilon': epsilon, 'delta': delta}
    super().__init__(schema, request=request, **kwargs)
    self.budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)

  def epsilon(self):
    """Returns the epsilon that the package claims to have spent."""
    return self.budget.epsilon

  def to_dict(self):
    """Returns what the package claims: a JSON-able dict."""
    request = self._request
    return {
      'claim': f'epsilon {request["epsilon"]:g} at delta={request["delta"]:g}, '
      f'by {self._package}',
      'accountant': self.accountant,
      'sampling': 'none: every row is used in every measurement',
      **{name: request[name] for name in self.told},
      'details': self.details,
    }
