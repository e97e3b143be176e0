"""Runs pytest on the files it is given; the main file of every Bazel test."""

import sys

import pytest

if __name__ == '__main__':
  sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))
