"""Keeps pytest from importing what needs a process of its own."""

import os

# It splits the CPU in two, for all that comes after.
collect_ignore = []
if 'TFDPFLOWS_TWO_CPUS' not in os.environ:
  collect_ignore.append('two_replicas.py')
