"""Trainings without what takes most of the time of a few steps.

That is the proof that examples are independent, which has tests of its own; and
what TensorFlow does to graphs before they run, as it does in all other tests.
"""

import contextlib
from unittest import mock

import tensorflow as tf

from tfdpflows.independence import checker, probe_rows, runs


def _build(self, spec):
  """Makes the variables, as a check does first, if they are not all there.

  Where one was missed, the first step would be refused for it.
  """
  made = False
  with contextlib.suppress(ValueError):  # Of Keras, which asks for a call.
    made = self._variables() and all(layer.built for layer in self.layers)
  if made:
    self._when_built()
    return
  rows, _ = probe_rows.rows_for(spec, self._example)
  infer = lambda rows, unused_weights: self._losses(rows, training=False)[0]
  runs.trace(infer, rows, tf.float64)
  self._when_built()


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


@contextlib.contextmanager
def unoptimized():
  """Runs graphs as they were traced.

  To rewrite a graph, which TensorFlow does before it runs for the first time,
  takes longer than to run it a few times.
  """
  options = tf.config.optimizer.get_experimental_options()
  before = options.get('disable_meta_optimizer', False)
  tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
  try:
    yield
  finally:
    tf.config.optimizer.set_experimental_options(
      {'disable_meta_optimizer': before}
    )
