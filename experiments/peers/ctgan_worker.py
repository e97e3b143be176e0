"""Fits CTGAN of `ctgan` and writes its rows; knows nothing of ours.

Runs in an environment of its own, one process for a fit:

    .venv-peers-ctgan/bin/python ctgan_worker.py FOLDER REQUEST

FOLDER holds `train.csv` and gets `synthetic.csv`. REQUEST is JSON; the last
line printed is the JSON answer.
"""

import importlib.metadata
import json
import os
import platform
import resource
import sys
import time

import numpy as np
import pandas as pd

_PACKAGES = ('ctgan', 'numpy', 'pandas', 'rdt', 'scikit-learn', 'torch')


def main(folder, request):
  """Fits, samples and returns what it took.

  Args:
    folder: path of the folder.
    request: dict of `texts` and `discrete` (names of columns), `epochs` (`None`
      for those of ctgan), `num_rows` and `seed`.

  Returns:
    A JSON-able dict.
  """
  import ctgan
  import torch

  # Random numbers of the transformations of the table, and of the training.
  if request['seed'] is not None:
    np.random.seed(request['seed'])
    torch.manual_seed(request['seed'])
  table = pd.read_csv(
    os.path.join(folder, 'train.csv'),
    dtype=dict.fromkeys(request['texts'], str),
    keep_default_na=False,
  )
  own = {'epochs': request['epochs']} if request['epochs'] else {}
  model = ctgan.CTGAN(enable_gpu=False, **own)
  times = [time.perf_counter()]
  model.fit(table, request['discrete'])
  times.append(time.perf_counter())
  rows = model.sample(request['num_rows'])
  times.append(time.perf_counter())
  rows.to_csv(os.path.join(folder, 'synthetic.csv'), index=False)
  # Linux counts KiB, macOS bytes.
  unit = 2 ** (20 if sys.platform == 'darwin' else 10)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    'seconds': {'fit': times[1] - times[0], 'sample': times[2] - times[1]},
    'peak_mib': peak / unit,
    'versions': {
      'python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _PACKAGES},
    },
  }


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
