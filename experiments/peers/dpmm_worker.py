"""Fits a synthesizer of `dpmm` and writes its rows; knows nothing of ours.

Runs in the environment of the peers, one process for a fit:

    .venv-peers-tabular/bin/python dpmm_worker.py FOLDER REQUEST

FOLDER holds `train.csv` and gets `synthetic.csv`. REQUEST is JSON; the last
line printed is the JSON answer.
"""

import importlib.metadata
import json
import logging
import os
import platform
import resource
import sys
import time

import numpy as np
import pandas as pd

_PACKAGES = ('dpmm', 'numpy', 'opendp', 'pandas', 'scikit-learn', 'scipy')


def main(folder, request):
  """Fits, samples and returns what it took.

  Args:
    folder: path of the folder.
    request: dict of `method` ('mst', 'aim' or 'privbayes'), `domain` (by
      column, as dpmm takes it), `epsilon` (all of it), `binning_epsilon` (the
      part that binning spends), `bins` ('auto' or a number), `delta`,
      `iterations` (`None` for dpmm's own), `max_model_size` (MB, `None` for no
      limit), `rounds` (of AIM, `None` for its own), `jobs`, `num_rows` and
      `seed`.

  Returns:
    A JSON-able dict.
  """
  from dpmm import pipelines

  classes = {
    'mst': pipelines.MSTPipeline,
    'aim': pipelines.AIMPipeline,
    'privbayes': pipelines.PrivBayesPipeline,
  }
  # dpmm warns of every column with few values.
  logging.getLogger('dpmm').setLevel(logging.ERROR)
  domain = request['domain']
  texts = {c: str for c, known in domain.items() if 'categories' in known}
  table = pd.read_csv(
    os.path.join(folder, 'train.csv'), dtype=texts, keep_default_na=False
  )
  for column in texts:
    # All that are declared: dpmm makes rows of others missing.
    table[column] = pd.Categorical(
      table[column], categories=domain[column]['categories']
    )
  times = [time.perf_counter()]
  own = {'n_iters': request['iterations'], 'rounds': request['rounds']}
  # The two parts compose: dpmm adds binning on top of the model's epsilon.
  model = classes[request['method']](
    epsilon=request['epsilon'] - request['binning_epsilon'],
    delta=request['delta'],
    proc_epsilon=request['binning_epsilon'] or None,
    n_bins=request['bins'],
    max_model_size=request['max_model_size'],
    n_jobs=request['jobs'],
    gen_kwargs={name: value for name, value in own.items() if value},
  )
  model.fit(table, domain, random_state=request['seed'])
  times.append(time.perf_counter())
  draw_from_points()
  rows = model.generate(
    n_records=request['num_rows'], random_state=request['seed']
  )
  times.append(time.perf_counter())
  rows.to_csv(os.path.join(folder, 'synthetic.csv'), index=False)
  binners = model.proc.binners
  return {
    'seconds': {'fit': times[1] - times[0], 'sample': times[2] - times[1]},
    'peak_mib': _peak_memory(),
    'bins': {name: int(binner.n_bins) for name, binner in binners.items()},
    'versions': {
      'python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _PACKAGES},
    },
  }


def draw_from_points():
  """Lets dpmm draw numbers of bins that have no width.

  PrivTree halves the range around a spike until halves are one number in
  floating point, as on Intrusion; dpmm then divides by the width, which is
  zero, and gives up after the whole fit.
  """
  from dpmm.processing.binners import UniformBinner

  get_intervals = UniformBinner.get_intervals

  def with_shares(self, bin_idx):
    with np.errstate(invalid='ignore'):
      intervals, shares = get_intervals(self, bin_idx)
    if np.isnan(shares).any():
      shares = np.full(len(intervals), 1 / len(intervals))
    return intervals, shares

  UniformBinner.get_intervals = with_shares


def _peak_memory():
  """Most memory that this process, or one that it started, held: MiB."""
  peak = max(
    resource.getrusage(who).ru_maxrss
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  )
  # Linux counts KiB, macOS bytes.
  return peak / 2 ** (20 if sys.platform == 'darwin' else 10)


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
