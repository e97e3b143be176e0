"""Streams of random numbers: replayable, apart, from one secret."""

import contextlib
import copy
import os
import pickle
import sys
from concurrent import futures

import numpy as np
import pytest

from tfdpflows import mechanisms, randomness
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.randomness import Randomness


@pytest.mark.core
def test_streams_are_functions_of_secret_and_name():
  a = Randomness()
  b = Randomness(secret=a.secret)
  for stream in (('batch', 3), ('noise',), ('batch', '3')):
    assert a.numpy(*stream).normal() == b.numpy(*stream).normal()
    assert (
      a.tensorflow(*stream).normal([]).numpy()
      == b.tensorflow(*stream).normal([]).numpy()
    )
  draws = [
    a.numpy(*stream).normal()
    for stream in (('batch', 3), ('batch', 4), ('batch', '3'), ('batch/int:3',))
  ]
  assert len(set(draws)) == 4
  assert Randomness().numpy('x').normal() != Randomness().numpy('x').normal()


def test_copies_and_forks_draw_no_noise_twice(monkeypatch):
  one = Randomness()
  for copied in (copy.copy, copy.deepcopy):
    assert copied({'source': one})['source'] is one
    assert copied(one) is one
  with pytest.raises(TypeError, match='not pickled'):
    pickle.dumps(one)
  seeded = Randomness(seed=3)
  assert pickle.dumps(seeded)
  process = os.getpid()
  monkeypatch.setattr(os, 'getpid', lambda: process + 1)
  child = PrivacyLedger()
  for use in (one.key, one.claim, one.numpy):
    with pytest.raises(RuntimeError, match='forked from'):
      use('a')
  with pytest.raises(RuntimeError, match='forked from'):
    mechanisms.noisy_mean(
      [0.5],
      lower=0,
      upper=1,
      noise_multiplier=1.0,
      ledger=child,
      randomness=one,
    )
  assert not child.entries
  assert seeded.key('a')


def test_of_two_threads_one_has_the_numbers():
  randomness, taken = Randomness(seed=0), []

  def claim(thread):
    for label in range(300):
      with contextlib.suppress(ValueError):
        randomness.claim('label', label)
        taken.append(label)

  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  try:
    with futures.ThreadPoolExecutor(4) as pool:
      list(pool.map(claim, range(4)))
  finally:
    sys.setswitchinterval(interval)
  assert sorted(taken) == list(range(300))


def test_seed_marks_and_fingerprint_needs_the_secret():
  assert not Randomness().seeded
  assert Randomness(seed=0).seeded
  x = np.arange(6.0)
  a = Randomness(seed=0)
  assert a.fingerprint(x) == Randomness(seed=0).fingerprint(x)
  assert a.fingerprint(x) != Randomness(seed=1).fingerprint(x)
  assert a.fingerprint(x) != a.fingerprint(x.reshape(2, 3))
  assert a.fingerprint(x) != a.fingerprint(x + 1)


@pytest.mark.core
@pytest.mark.parametrize('label', [0.5, True, None, b'a', ('a',)])
def test_what_would_be_rounded_names_no_stream(label):
  """0.5 and 0.9 had the same noise."""
  randomness = Randomness(seed=0)
  for use in (randomness.key, randomness.numpy, randomness.claim):
    with pytest.raises(TypeError, match='label that is a str or an int'):
      use('noise', label)
  assert randomness.key(np.int64(3)) == randomness.key(3)


@pytest.mark.parametrize('label', randomness._TAKEN)
def test_no_label_draws_from_a_key_that_ledgers_show(label, tmp_path):
  """The noise of ('release', 'age') was in the charge of the label 'age'."""
  source, ledger = Randomness(), PrivacyLedger(tmp_path / 'ledger.jsonl')
  with pytest.raises(ValueError, match=f"'{label}' cannot be a label"):
    mechanisms.from_exact_counts({'age': [5]}, 1.0, source, ledger, label=label)
  assert not ledger.entries
  mechanisms.from_exact_counts({'x': [5]}, 1.0, source, ledger, label='age')
  shown = (tmp_path / 'ledger.jsonl').read_text()
  assert source.key('release', 'age').hex() in shown
  for stream in (('age',), ('age', 'x'), ('noise', 'age')):
    assert source.key(*stream).hex() not in shown


def test_bad_input():
  with pytest.raises(ValueError, match='either'):
    Randomness(seed=1, secret=b'0' * 32)
  with pytest.raises(ValueError, match='5 bytes'):
    Randomness(secret=b'short')


def test_fingerprints_tell_tables_apart_in_any_process(monkeypatch):
  monkeypatch.setattr(randomness, '_BLOCK', 2)
  blocks = []
  fingerprint = Randomness.fingerprint

  def counted(self, array):
    blocks.append(array)
    return fingerprint(self, array)

  monkeypatch.setattr(Randomness, 'fingerprint', counted)
  text = np.array(['a', 'é', 'c'], object)
  x = [np.arange(3), text]
  found = Randomness(seed=0).table_fingerprint(x)
  assert len(blocks) == 4
  # Objects of the same value elsewhere in memory.
  same = [np.arange(3), np.array([chr(ord(c)) for c in text], 'O')]
  assert Randomness(seed=0).table_fingerprint(same) == found
  for other in (
    [np.arange(3)[::-1], text],
    [np.arange(3), text[[1, 0, 2]]],
  ):
    assert Randomness(seed=0).table_fingerprint(other) != found
  assert Randomness(seed=1).table_fingerprint(x) != found


class _Unreadable:
  """What a cell may be: it cannot be written out."""

  def __init__(self, error):
    self._error = error

  def __repr__(self):
    raise self._error


@pytest.mark.core
def test_fingerprints_of_cells_that_cannot_be_written_out():
  """A row must not decide whether training begins."""
  for error in (ValueError('no'), RecursionError(), AttributeError()):
    x = np.array([1, 'a', _Unreadable(error)], object)
    found = Randomness(seed=0).fingerprint(x)
    assert found == Randomness(seed=0).fingerprint(np.copy(x))
    assert found != Randomness(seed=0).fingerprint(x[:2])
    assert found != Randomness(seed=0).fingerprint(x[[0, 2, 1]])
