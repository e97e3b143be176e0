"""Trainings without the proof that examples are independent.

It takes most of the time of a few steps, and has tests of its own.
"""

import contextlib
from unittest import mock

import tensorflow as tf

from tfdpflows.gradients import layers
from tfdpflows.independence import checker, probe_rows, runs


def _build(self, spec):
  """Makes the variables, as a check does first, if they are not all there.

  Where one was missed, the first step would be refused for it. Rules are those
  of a check that compares none of them.
  """
  made = False
  with contextlib.suppress(ValueError):  # Of Keras, which asks for a call.
    made = self._variables() and all(x.built for x in self.layers)
  if not made:
    rows, _ = probe_rows.rows_for(spec, self._example)
    infer = lambda rows, unused_weights: self._losses(rows, training=False)[0]
    runs.trace(infer, rows, tf.float64)
  self._when_built()
  if self._use_rules:
    ruled = [x for x in self.layers if layers.rule_of(x) is not None]
    self._ruled = frozenset(map(id, ruled))


_check = checker.Checker._check


@contextlib.contextmanager
def unproven():
  """Lets models be trained that nothing has checked."""
  with mock.patch.object(checker.Checker, '_check', _build):
    yield


@contextlib.contextmanager
def proven():
  """Has models checked again, where `unproven` is around."""
  with mock.patch.object(checker.Checker, '_check', _check):
    yield


def is_unproven() -> bool:
  """Whether `unproven` is around."""
  return checker.Checker._check is _build
