"""`tfdpflows export`: a SavedModel of a model, for serving."""

from __future__ import annotations

from tfdpflows.cli import files
from tfdpflows.cli.command import Command


def _define(options):
  options.section('Model')
  files.add_model_dir(options)
  options.text('output', 'Folder to write.', metavar='FOLDER', required=True)
  options.switch('overwrite', 'Replace an export that exists already.')


def _run(values):
  files.check_model(values.model_dir)
  files.check_place(values.output, values.overwrite)
  synthesizer = files.load_model(values.model_dir)
  synthesizer.export(values.output, overwrite=values.overwrite)
  print(
    f'Wrote a SavedModel to {values.output}; its tensors and its privacy are '
    'described in\nmodel_card.md there.'
  )


COMMAND = Command(
  name='export',
  summary='Export a model to TensorFlow alone',
  description="""
    Writes a SavedModel that takes and gives the values of the table, and needs
    TensorFlow alone: for TensorFlow Serving, and for programs without
    tfdpflows. Its signature sample draws rows, log_prob gives log-densities.
    Beside it are model_card.md and model_card.json: the schema, the
    privacy statement, and the limits of the model.
  """,
  example="""
    tfdpflows export --model_dir=model --output=serving/1
  """,
  define=_define,
  run=_run,
)
