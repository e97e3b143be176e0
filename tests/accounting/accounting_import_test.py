"""What the package imports and exports."""

import os
import pathlib
import subprocess
import sys
import textwrap

from tfdpflows import accounting

ROOT = pathlib.Path(__file__).parents[2]


def test_import_needs_no_tensorflow():
  code = textwrap.dedent("""
    import sys, time
    start = time.process_time()
    import tfdpflows.accounting
    print(time.process_time() - start)
    heavy = ('tensorflow', 'keras', 'tf_keras', 'jax', 'pandas', 'sklearn')
    print([x for x in sys.modules if x.split('.')[0] in heavy])
  """)
  result = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  seconds, modules = result.stdout.splitlines()
  assert modules == '[]'
  # Of a processor: about 0.7 on an idle machine.
  assert float(seconds) < 5


def test_public_names_exist():
  for name in accounting.__all__:
    assert hasattr(accounting, name)
