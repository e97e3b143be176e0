"""Fits a mechanism of `dpsynth` and writes its rows; knows nothing of ours.

Runs in the environment of the peer, one process for a fit:

    .venv-peers-dpsynth/bin/python dpsynth_worker.py FOLDER REQUEST

FOLDER holds `train.csv` and gets `synthetic.csv`. REQUEST is JSON; the last
line printed is the JSON answer.
"""

import importlib.metadata
import itertools
import json
import logging
import os
import platform
import resource
import sys
import time

import numpy as np
import pandas as pd

_PACKAGES = ('dpsynth', 'mbi', 'jax', 'dp-accounting', 'numpy', 'pandas')


def main(folder, request):
  """Fits, samples and returns what it took.

  Args:
    folder: path of the folder.
    request: dict of `method` ('swift', 'aim', 'aim_gdp' or 'mst'), `domain` (by
      column, `categories` or `lower`, `upper`, `integer` and `missing`),
      `epsilon`, `delta`, `target` (a column, or `None`), `decode` ('midpoint'
      or 'sample'), `options` (fields of the configuration), and `seed`.

  Returns:
    A JSON-able dict.
  """
  import dpsynth
  import mbi
  from dpsynth import discrete_mechanisms

  logging.disable(logging.WARNING)
  # Compiling mbi's table of progress takes longer than SWIFT's fit of Adult.
  mbi.callbacks.default = lambda *args, **kwargs: lambda *args, **kwargs: None
  domain = request['domain']
  texts = {c: str for c, known in domain.items() if 'categories' in known}
  table = pd.read_csv(
    os.path.join(folder, 'train.csv'),
    dtype=texts,
    keep_default_na=False,
    na_values={c: [''] for c in domain if c not in texts},
  )
  options = dict(request['options'])
  if request['target'] is not None:
    options['workload'] = _workload(list(domain), request['target'])
  config = {
    'swift': discrete_mechanisms.SWIFTConfig,
    'aim': discrete_mechanisms.AIMConfig,
    'aim_gdp': discrete_mechanisms.AIMGDPConfig,
    'mst': discrete_mechanisms.MSTConfig,
  }[request['method']]
  start = time.perf_counter()
  mechanism = dpsynth.TabularConfig(
    domains={
      name: _attribute(dpsynth, known, request['decode'])
      for name, known in domain.items()
    },
    discrete_mechanism=config(**options),
  ).calibrate(epsilon=request['epsilon'], delta=request['delta'])
  result = mechanism(np.random.default_rng(request['seed']), table)
  seconds = time.perf_counter() - start
  result.synthetic_data.to_csv(
    os.path.join(folder, 'synthetic.csv'), index=False
  )
  cliques = [
    measured.clique
    for measured in result.discrete_mechanism_result.measurements
  ]
  return {
    'seconds': {'fit': seconds},
    'peak_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    'rows': len(result.synthetic_data),
    'measured': {
      str(size): len({c for c in cliques if len(c) == size})
      for size in sorted({len(c) for c in cliques})
    },
    'versions': {
      'python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _PACKAGES},
    },
  }


def _attribute(dpsynth, known, decode):
  if 'categories' in known:
    return dpsynth.CategoricalAttribute(known['categories'])
  return dpsynth.NumericalAttribute(
    known['lower'],
    known['upper'],
    # Missing values are then a value of their own.
    clip_to_range=not known['missing'],
    dtype='int' if known['integer'] else 'float',
    interval_handling=decode,
  )


def _workload(columns, target):
  """All pairs, and all triples with the target, of weight 1 each."""
  others = [name for name in columns if name != target]
  pairs = itertools.combinations(columns, 2)
  triples = ((target, *pair) for pair in itertools.combinations(others, 2))
  return dict.fromkeys(itertools.chain(pairs, triples), 1.0)


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
