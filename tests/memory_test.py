"""What a fit keeps in memory after nobody has its result any more."""

import gc
import threading
import weakref

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from tensorflow.python.framework import func_graph

from tests.tabular import small_table
from tfdpflows import _memory, tabular
from tfdpflows._keras import tfp


def _objects(kind):
  # Some graphs go only after what refers to them is gone.
  for _ in range(3):
    gc.collect()
  return sum(isinstance(x, kind) for x in gc.get_objects())


@pytest.mark.parametrize(
  'model', ['histogram', pytest.param('hflow', marks=pytest.mark.full)]
)
def test_fits_leave_nothing_behind(model):
  rng = np.random.default_rng(0)
  table = pd.DataFrame(
    {'a': rng.integers(0, 4, 300), 'b': rng.choice(['x', 'y'], 300)}
  )
  schema = tabular.TableSchema(
    [
      tabular.Field('a', 'integer', minimum=0, maximum=3, required=True),
      tabular.Field('b', 'string', enum=('x', 'y'), required=True),
    ]
  )

  def fit():
    synthesizer = tabular.TabularSynthesizer(
      schema,
      epsilon=1.0,
      delta=1e-5,
      accountant='rdp',
      model=model,
      epochs=1,
      hidden_units=(4,),
    )
    with small_table.short():
      synthesizer.fit(table)
    synthesizer.sample(10)
    synthesizer.sample(10, conditions={'b': 'x'})
    synthesizer.log_prob(table[:5])
    return weakref.ref(synthesizer)

  fit()  # What is made once, on first use.
  graphs, variables = _objects(func_graph.FuncGraph), _objects(tf.Variable)
  found = fit()
  assert _objects(func_graph.FuncGraph) <= graphs
  assert _objects(tf.Variable) <= variables
  assert found() is None


def test_graphs_that_are_being_traced_keep_their_entries():
  bijector = tfp.bijectors.Exp()
  kept, graphs = [], []

  @tf.function
  def trace(x):
    graphs.append(x.graph)
    y = bijector.forward(x)
    # Another thread executes eagerly.
    thread = threading.Thread(target=_memory.release_graph_tensors)
    thread.start()
    thread.join()
    kept.append(bijector.inverse(y) is x)
    return y

  trace(tf.constant(1.0))
  assert kept == [True]

  def count():
    return sum(
      getattr(reference(), 'graph', None) is graphs[0]
      for key in list(tfp.bijectors.Bijector._cache.storage)
      for reference in key.ref_set
      if tf.is_symbolic_tensor(reference())
    )

  assert count()
  _memory.release_graph_tensors()
  assert not count()


def test_a_dataset_keeps_its_generator_and_nothing_else_does():
  rows = np.arange(6.0).reshape([3, 2])
  weak = weakref.ref(rows)

  def generator(rows=rows):
    yield from rows

  spec = tf.TensorSpec([2], tf.float64)
  dataset = _memory.dataset_from_generator(generator, spec).batch(2)
  del generator, rows
  gc.collect()
  for _ in range(2):
    assert [len(batch) for batch in dataset] == [2, 1]
  iterator = iter(dataset)
  del dataset
  gc.collect()
  assert len(next(iterator)) == 2 and len(next(iterator)) == 1
  del iterator
  gc.collect()
  assert weak() is None
