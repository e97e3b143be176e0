"""`tfdpflows report`: real and synthetic rows compared in one HTML file."""

from __future__ import annotations

from tfdpflows.cli import files
from tfdpflows.cli.command import Command, UsageError

# A share that is shown has a standard error of .0007 at most.
_MOST_ROWS = 500_000


def _define(options):
  options.section('Data')
  files.add_model_dir(
    options,
    'Folder that `tfdpflows fit` wrote; for its schema and privacy statement.',
  )
  text = 'Real rows, preferably ones that were not used for the fit: {}'
  files.add_rows(options, 'real', text)
  text = 'File that `tfdpflows sample` wrote, or several, likewise.'
  files.add_rows(options, 'synthetic', text)
  options.number(
    'max_rows',
    'Most rows of each table that are compared, by default 500,000. Of more a '
    'uniform sample is drawn, the same each time, and the page says so.',
    whole=True,
    lower_bound=2,
  )
  files.add_out_of_range(
    options,
    'clip',
    'What to do with a value of a real row that the schema does not allow: '
    'compare it as it is, and show how many of each column a fit would have '
    'clipped (clip); or stop and name its row and column (error).',
  )
  options.section('Report')
  options.text(
    'target',
    'Column that classifiers learn to predict from the synthetic rows.',
    metavar='COLUMN',
  )
  options.text('title', 'Heading of the page.', metavar='TEXT')
  options.text(
    'compare',
    'Folder of another model of the same columns, to compare with: as many '
    'rows are drawn from it. May be given several times.',
    repeated=True,
    metavar='DIR',
  )
  files.add_output(options, 'HTML file to write.')


def _others(paths, schema, num_rows):
  """Returns rows and statement of other models, by their folders."""
  from tfdpflows.evaluation import SyntheticTable

  found = {}
  for path in paths:
    other = files.load_model(path)
    if set(other.schema.names) != set(schema.names):
      raise UsageError(
        f'--compare={path} has the columns {", ".join(other.schema.names)}, '
        f'and --model_dir {", ".join(schema.names)}: fits of the same columns '
        'can be compared.'
      )
    rows = other.sample(num_rows, seed=0)
    found[path] = SyntheticTable(rows, other.privacy_statement())
  return found


def _run(values):
  compared = list(dict.fromkeys(values.compare or ()))
  files.check_model(values.model_dir)
  for path in compared:
    files.check_model(path, 'compare')
  flags = ('model_dir', 'compare', 'real', 'synthetic')
  reads = {flag: values[flag].value for flag in flags}
  files.check_output(values.output, values.overwrite, reads)
  if not values.output.endswith(('.html', '.htm')):
    raise UsageError(
      f'--output={values.output} must end in .html, which a report is.'
    )
  from tfdpflows.evaluation.report import write_report

  schema = files.schema_of(values.model_dir)
  if schema is not None:
    files.check_target(values.target, schema, 'the model')
  synthesizer = files.load_model(values.model_dir)
  schema = synthesizer.schema
  files.check_target(values.target, schema, 'the model')
  real, synthetic = _samples(values, schema)
  counts = {}
  if values.out_of_range == 'clip':
    counts = schema.count_clipped(real.rows)
  others = _others(compared, schema, len(synthetic.rows))
  write_report(
    values.output,
    real=real.rows,
    synthetic=synthetic.rows,
    schema=schema,
    statement=synthesizer.privacy_statement(),
    target=values.target,
    title=values.title,
    out_of_range=values.out_of_range,
    name=values.model_dir,
    others=others,
    num_real=real.of,
    num_synthetic=synthetic.of,
  )
  for found, what in ((real, 'real'), (synthetic, 'synthetic')):
    if len(found.rows) < found.of:
      print(
        f'Of the {found.of:,} {what} rows {len(found.rows):,} are compared, '
        'drawn uniformly:\n--max_rows=N takes more.'
      )
  files.print_clipped(counts, len(real.rows), 'are compared as they are')
  print(
    f'Wrote {values.output}. It is computed from the real rows without noise: '
    'where they are\nprivate, so is the report.'
  )


def _samples(values, schema):
  """Returns samples of the real and of the synthetic rows."""
  from tfdpflows.tabular import row_blocks

  most = values.max_rows or _MOST_ROWS
  # Of their own seeds, or equal tables would give equal samples.
  source = files.source_of(values.real, schema)
  real = row_blocks.sample_rows(source, schema, values.out_of_range, most, 0)
  source = files.source_of(values.synthetic, schema)
  try:
    synthetic = row_blocks.sample_rows(source, schema, 'error', most, 1)
  except ValueError as error:
    # That flag is of real rows.
    raise ValueError(
      str(error).replace('set out_of_range to clip', 'give rows of the model')
    ) from error
  return real, synthetic


COMMAND = Command(
  name='report',
  summary='Compare real and synthetic rows in HTML',
  description="""
    Writes one HTML file that needs no network and no script: the columns of
    both tables over each other, their associations side by side, what
    classifiers learn from the synthetic rows (--target), and the privacy
    statement.

    The report itself is not private: it shows the real rows' statistics
    without noise. Do not publish it where the real rows are sensitive.
  """,
  example="""
    tfdpflows report --model_dir=model --real=holdout.csv \\
      --synthetic=synthetic.csv --target=income --output=report.html
  """,
  define=_define,
  run=_run,
)
