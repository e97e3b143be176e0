r"""Scores the rows of a CSV file by an exported model, in Apache Beam.

`RunInference` loads the SavedModel once in each worker, which needs TensorFlow
and Apache Beam, and not tfdpflows:

    tfdpflows export --model_dir=model --output=exported
    pip install apache-beam tensorflow
    python beam_inference.py --model=exported --input=people.csv \
      --output=log_prob.csv

writes a line for each row, its number in the file and its log-density, in the
order in which workers are done. Beam's own `TFModelHandlerTensor` cannot be
used: it loads models of Keras, and this is a SavedModel with signatures. The
scores of private rows are private.
"""

from __future__ import annotations

import csv
import json
import os

import apache_beam as beam
import tensorflow as tf
from absl import app, flags
from apache_beam.ml.inference.base import (
  KeyedModelHandler,
  ModelHandler,
  RunInference,
)
from apache_beam.options.pipeline_options import PipelineOptions

FLAGS = flags.FLAGS


class LogProb(ModelHandler):
  """The log-density of rows, dicts of column -> text.

  Args:
    path: folder of the exported model.
    batch_size: most rows that are scored together.
  """

  def __init__(self, path, batch_size=1024):
    super().__init__()
    self._path, self._batch_size = path, batch_size

  def batch_elements_kwargs(self):
    return {'max_batch_size': self._batch_size}

  def load_model(self):
    model = tf.saved_model.load(self._path)
    with open(os.path.join(self._path, 'model_card.json'), 'rb') as file:
      model.card = json.load(file)
    return model

  def run_inference(self, batch, model, inference_args=None):
    columns = {}
    for tensor in model.card['tensors']:
      column, dtype = tensor['column'], tensor['dtype']
      cells = [_value(row[column], dtype) for row in batch]
      columns[tensor['tensor']] = tf.constant(cells, dtype)
    yield from model.signatures['log_prob'](**columns)['log_prob'].numpy()


def _value(text, dtype):
  """Returns a cell as the model takes it: NaN, or '', if it is missing."""
  if dtype == 'string':
    return text
  if dtype == 'bool' or text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  return float(text or 'nan') if dtype == 'float64' else int(text)


def numbered_rows(path):
  """Yields the number and the dict of each row of a CSV file."""
  with open(path, newline='', encoding='utf-8') as file:
    yield from enumerate(csv.DictReader(file))


def run(model, source, target, options=None):
  """Runs the pipeline.

  Args:
    model: folder of the exported model.
    source: CSV file of rows.
    target: file to write.
    options: of Beam; its local runner by default.
  """
  with beam.Pipeline(options=options) as pipeline:
    _ = (
      pipeline
      | 'File' >> beam.Create([source])
      | 'Rows' >> beam.FlatMap(numbered_rows)
      | 'Score' >> RunInference(KeyedModelHandler(LogProb(model)))
      | 'Line' >> beam.MapTuple(lambda number, found: f'{number},{found:.6g}')
      | 'Write'
      >> beam.io.WriteToText(
        target, header='row,log_prob', shard_name_template=''
      )
    )


def main(argv):
  run(FLAGS.model, FLAGS.input, FLAGS.output, PipelineOptions(argv[1:]))


if __name__ == '__main__':
  flags.DEFINE_string('model', None, 'Folder of the exported model.')
  flags.DEFINE_string('input', None, 'CSV file of the rows.')
  flags.DEFINE_string('output', None, 'CSV file to write.')
  flags.mark_flags_as_required(['model', 'input', 'output'])
  app.run(main)
