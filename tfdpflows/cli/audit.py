"""`tfdpflows audit`: attacks on what a ledger records, beside its claim."""

from __future__ import annotations

import sys

from tfdpflows.cli import files, quiet, training
from tfdpflows.cli.command import Command, UsageError

_USAGE = """\
Usage: tfdpflows audit --ledger=FILE --output=FILE.html [flags]
   or: tfdpflows audit --model_dir=FOLDER --output=FILE.html [--data=FILE]
         [flags]"""


def _define(options):
  options.section('What is audited')
  options.text(
    'ledger',
    'Ledger whose entries are run as mechanisms and attacked. It is only read, '
    'and may be in use.',
    metavar='FILE',
  )
  options.text(
    'model_dir',
    'Folder that `tfdpflows fit` wrote, instead of a ledger: its own is '
    'audited.',
    metavar='FOLDER',
  )
  files.add_rows(
    options,
    'data',
    'The rows that --model_dir was fitted on, given as they were to fit: {} '
    'The fit is made again with and without one of them, with the same random '
    'numbers, and the page shows by how much each release moves: it is then '
    'not private.',
    required=False,
  )
  options.number(
    'row',
    'Number of the row of --data that is left out, from 1 and through all of '
    'its files, with all rows of its privacy unit. By default the one that the '
    'model finds least likely.',
    whole=True,
    lower_bound=1,
  )
  options.section('Attack')
  training.add_delta(options, ' By default that of the budget.')
  options.number(
    'num_runs',
    'Runs of the mechanisms on each of two tables, by default 20000. More '
    'prove larger epsilons.',
    whole=True,
    lower_bound=100,
  )
  options.number(
    'confidence',
    'Probability with which all bounds of the attack hold, by default 0.95.',
  )
  options.number(
    'seed', 'For results that can be repeated.', whole=True, lower_bound=0
  )
  options.section('Output')
  options.switch('progress', 'Show a progress bar in a terminal.', default=True)
  files.add_output(
    options,
    'HTML file to write, such as audit.html; the same numbers are put beside '
    'it, in audit.json.',
  )


def _run(values):
  _check(values)
  settings = {
    'delta': values.delta,
    'num_runs': values.num_runs or 20_000,
    'confidence': 0.95 if values.confidence is None else values.confidence,
    'seed': values.seed,
    'show_progress': values.progress,
  }
  replay = row = None
  if values.ledger is not None:
    with training.open_ledger(values.ledger, read_only=True) as ledger:
      _check_ledger(ledger, values)
      found = _audit(ledger, settings)
    source = f'Of the ledger {values.ledger}.'
  else:
    synthesizer = files.load_model(values.model_dir)
    rows = None
    if values.data is not None:
      if synthesizer.is_best_of_search:
        raise UsageError(
          f'{values.model_dir} holds the best of several fits (--tune), which '
          'one fit cannot replay: leave --data out.'
        )
      # Before anything that takes time.
      rows = _rows(synthesizer, values.data)
      row = _row(synthesizer, rows, values)
    _check_ledger(synthesizer.ledger, values)
    found = _audit(synthesizer.ledger, settings)
    source = f'Of the model in {values.model_dir}.'
    if rows is not None:
      replay = _replay(synthesizer, rows, row)
      row += 1
  from tfdpflows.audit.page import write_page

  write_page(values.output, found, source=source, replay=replay, row=row)
  _report(found, replay, values)


def _audit(ledger, settings):
  with quiet.importing():
    from tfdpflows.audit.ledgers import audit_ledger

  return audit_ledger(ledger, **settings)


def _check(values):
  """Refuses flags that do not fit together, before anything is imported."""
  if (values.ledger is None) == (values.model_dir is None):
    raise UsageError('Give one of --ledger=FILE and --model_dir=FOLDER.')
  training.check_one_ledger(values, 'each ledger has an audit of its own.')
  if values.data is not None and values.model_dir is None:
    raise UsageError(
      '--data is for a --model_dir, whose fit is made again: leave it out.'
    )
  if values.row is not None and values.data is None:
    raise UsageError('--row is a row of --data=FILE: give that too.')
  if values.delta is not None:
    training.check_delta(values.delta)
  if values.confidence is not None and not 0 < values.confidence < 1:
    raise UsageError(
      f'--confidence={values.confidence:g} must be above 0 and below 1, such '
      'as 0.95.'
    )
  if values.model_dir is not None:
    files.check_model(values.model_dir)
  if not values.output.endswith('.html'):
    raise UsageError(
      f'--output={values.output} must end in .html: a file that ends in .json '
      'is put beside it.'
    )
  reads = {flag: values[flag].value for flag in ('ledger', 'model_dir', 'data')}
  for path in (values.output, values.output[: -len('.html')] + '.json'):
    files.check_output(path, values.overwrite, reads)
  if values.data is not None:
    from tfdpflows.tabular.sources import Source

    Source.of(values.data)  # Refuses what is no file.


def _data(values):
  """The flag as it was given."""
  return ' '.join(f'--data={path}' for path in values.data)


def _check_ledger(ledger, values):
  which = 'ledger' if values.ledger is not None else 'model_dir'
  name = f'--{which}={values[which].value}'
  if not any(entry.count for entry in ledger.entries):
    raise UsageError(f'{name} has charged nothing: there is no claim to audit.')
  if ledger.budget is None and values.delta is None:
    raise UsageError(
      f'{name} has no budget and so no delta: give one, such as --delta=1e-5.'
    )


def _rows(synthesizer, paths):
  """Reads the rows that a model was fitted on, as its fit did."""
  from tfdpflows.tabular import row_blocks

  schema = synthesizer.schema
  return row_blocks.read_rows(
    files.source_of(paths, schema),
    schema,
    synthesizer.out_of_range,
    units=schema.privacy_unit is not None,
  )


def _row(synthesizer, rows, values):
  """Returns the number, from 0, of the row that is left out."""
  count = synthesizer._count_examples(rows)
  if count != synthesizer.num_examples:
    what = 'rows' if synthesizer.schema.privacy_unit is None else 'units'
    raise UsageError(
      f'{_data(values)} has {count} {what}, and the model was fitted on '
      f'{synthesizer.num_examples}: give the rows that it was fitted on.'
    )
  if values.row is not None:
    if values.row > len(rows):
      raise UsageError(
        f'--row={values.row} is not in {_data(values)}, which has '
        f'{len(rows)} rows.'
      )
    return values.row - 1
  if synthesizer.model.has_density:
    return int(synthesizer.log_prob(rows).argmin())
  return 0


def _replay(synthesizer, rows, row):
  """Fits again, as the model in the folder was, and without one row."""
  with quiet.importing():
    from tfdpflows.audit import fit_without, replay
    from tfdpflows.tabular.synthesizer import TabularSynthesizer

  def fit(absent):
    # Its bounds are public by now: what found them is not run again.
    again = TabularSynthesizer(
      synthesizer.schema, **synthesizer._refit_arguments()
    )
    return fit_without(again, rows, absent)

  print('Fitting the model twice.', file=sys.stderr)
  return replay(fit, [], [row])


def _report(found, replay, values):
  print(found)
  if replay is not None:
    print(replay)
  print(f'Wrote {values.output} and the same as .json.')
  if values.data is not None:
    print(
      'The replay is computed from the rows of --data: where they are private, '
      'so is the\npage.'
    )


COMMAND = Command(
  name='audit',
  summary='Attack what a ledger records, beside its claim',
  description="""
    Runs every mechanism of a ledger many times on the two tables that it tells
    apart best, attacks the outputs with their likelihood ratio, and writes one
    HTML file and one JSON file: the claim, what the attack proves of epsilon
    with which confidence, their ROC, and which entries cannot be audited.

    The mechanisms are those that the ledger records. Whether the program ran
    these, and nothing else, is tested with --data alone, which fits the model
    again with and without one row.
  """,
  example="""
    tfdpflows audit --model_dir=model --output=audit.html
  """,
  define=_define,
  run=_run,
  usage=_USAGE,
)
