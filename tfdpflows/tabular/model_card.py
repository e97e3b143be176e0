"""Model cards: what a model was made from, what it protects, its limits."""

from __future__ import annotations

import dataclasses
import html
import math
import numbers
from typing import TYPE_CHECKING, Any

from tfdpflows.version import __version__

if TYPE_CHECKING:
  from tfdpflows.tabular.models.base import TableModel
  from tfdpflows.tabular.schema import TableSchema

FORMAT = 'tfdpflows model card'

_SEEDED = (
  'The fit was seeded: it is not private against anyone who knows the seed.'
)


def make(
  model: TableModel,
  schema: TableSchema,
  *,
  num_examples: int,
  tensors: list[dict[str, Any]],
  statement: dict[str, Any],
  metrics: dict[str, Any] | None,
  seeded: bool,
  out_of_range: str,
) -> dict[str, Any]:
  """Returns the model card, a JSON-able dict.

  Args:
    model: the model.
    schema: of the table.
    num_examples: the public number of rows, or of units.
    tensors: `RawTable.describe`.
    statement: `PrivacyStatement.to_dict`.
    metrics: finite numbers to publish, by name, or `None`.
    seeded: whether the fit was seeded.
    out_of_range: how it treats undeclared values, see `TabularSynthesizer`.

  Raises:
    ValueError: for metrics that are not finite numbers by name.
  """
  for name, value in (metrics or {}).items():
    if not isinstance(name, str) or not (
      isinstance(value, numbers.Real) and math.isfinite(value)
    ):
      raise ValueError(
        f'metrics[{name!r}] is {value!r}: give finite numbers by name, such as '
        "{'tstr_auc': 0.87}."
      )
  if metrics is not None:
    metrics = {name: float(value) for name, value in metrics.items()}
  signatures = {
    'sample': {
      'inputs': {
        'num_rows': 'int64 [], 0 or more',
        'seed': 'int64 [], 0 or more: the same rows for the same seed',
      },
      'outputs': 'one tensor [num_rows] for each column',
    }
  }
  if model.has_density:
    signatures['log_prob'] = {
      'inputs': 'one tensor [n] for each column',
      'outputs': {'log_prob': 'float32 [n], in nats'},
    }
  examples = {'num_rows': num_examples}
  if schema.privacy_unit is not None:
    examples = {'num_units': num_examples, 'privacy_unit': schema.privacy_unit}
  limits = _limits(model, schema.privacy_unit, out_of_range)
  return {
    'format': FORMAT,
    'format_version': 1,
    'library_version': __version__,
    'model': model.name,
    'hyperparameters': dataclasses.asdict(model),
    'data': {
      **examples,
      'num_columns': len(schema),
      'schema': schema.to_dict(),
    },
    'signatures': signatures,
    'tensors': tensors,
    'privacy': statement,
    'metrics': metrics,
    'limits': [_SEEDED, *limits] if seeded else limits,
  }


def _limits(model, privacy_unit, out_of_range):
  """Returns the limits of a model, in sentences."""
  if privacy_unit is None:
    several = 'where several rows belong to one person, a person is protected'
    several += ' less than a row'
  else:
    several = f'where several values of {privacy_unit!r} belong to one person, '
    several += 'the person is protected less'
  examples = 'rows' if privacy_unit is None else 'units'
  found = [
    'The guarantee covers the released model, and any number of rows drawn '
    'from it. It holds for the unit and the neighboring relation of the '
    f'statement alone: {several}.',
    f'Schema and number of {examples} were taken for public and are part of '
    'this model.',
    'Synthetic rows have the distribution of the model, which is that of the '
    'table only approximately: check results on the table itself before '
    'relying on them, rare categories and relations of many columns above all.',
    'Rows are independent: links between rows, and rare rows as such, are not '
    'reproduced.',
  ]
  if model.has_density:
    how = (
      'computed exactly, up to rounding; where the schema has inequalities, '
      'their normalizing constant is estimated'
      if model.exact_density
      else 'logarithms of unbiased estimates from 16 points per row: lower '
      'bounds in expectation'
    )
    found.append(
      'Log-probabilities of private rows are private: no noise is added. '
      f'They are {how}.'
    )
    rule = {
      'error': 'is an error, which names the column and the row',
      'clip': 'is replaced as `TableSchema.validate` does under clip',
    }[out_of_range]
    found.append(f'A value that the schema does not declare {rule}.')
  else:
    found.append(
      'This kind of model has no density: rows can be drawn, and none be given '
      'a probability, so there is no signature log_prob.'
    )
  return found


def to_markdown(card: dict[str, Any], statement: str) -> str:
  """Returns a model card as Markdown.

  Args:
    card: from `make`.
    statement: `PrivacyStatement.to_markdown`.
  """
  fields = {f['name']: f for f in card['data']['schema']['fields']}
  lines = [
    '# Model card',
    '',
    f'A model of a table under differential privacy, made by tfdpflows '
    f'{card["library_version"]}, model `{card["model"]}`.',
    '',
    '## Data',
    '',
    f'{_described(card["data"])} (taken for public), '
    f'{card["data"]["num_columns"]} columns.',
    '',
    '| column | tensor | dtype | values | missing value |',
    '|---|---|---|---|---|',
  ]
  for tensor in card['tensors']:
    missing = tensor['missing']
    cells = [
      tensor['column'],
      f'`{tensor["tensor"]}`',
      ', '.join(filter(None, (tensor['dtype'], tensor.get('unit')))),
      _values(fields[tensor['column']]),
      'none' if missing is None else f'`{missing}`' if missing else 'empty',
    ]
    lines.append('| ' + ' | '.join(map(_cell, cells)) + ' |')
  lines += ['', '## Signatures', '', _USE[len(card['signatures']) > 1], '']
  # The statement has a title of its own.
  lines += [f'#{x}' if x.startswith('#') else x for x in statement.split('\n')]
  lines += ['', '## Metrics', '', _METRICS, '']
  lines += [
    f'- {_cell(str(name))}: {value}'
    for name, value in (card['metrics'] or {'none given': '-'}).items()
  ]
  lines += ['', '## Limits', '', *(f'- {limit}' for limit in card['limits'])]
  return '\n'.join(lines) + '\n'


_METRICS = (
  'Given by whoever exported the model, and no part of what the statement '
  'claims unless it lists their release.'
)
_SAMPLE = (
  '`sample(num_rows, seed)` draws rows, one tensor for each column of the '
  'table above.'
)
_USE = {
  False: _SAMPLE,
  True: f'{_SAMPLE} `log_prob` takes such tensors and gives the log-density of '
  'each row, in nats.',
}


def _values(field):
  limits = field['constraints']
  if 'enum' in limits:
    shown = ', '.join(map(str, limits['enum'][:20]))
    rest = len(limits['enum']) - 20
    return f'{shown}, and {rest} more' if rest > 0 else shown
  if 'minimum' in limits:
    return f'{field["type"]}, {limits["minimum"]} to {limits["maximum"]}'
  return field['type']


def _cell(text):
  text = html.escape(text, quote=False)
  return ' '.join(text.replace('|', '\\|').split())


def _described(data):
  if 'num_rows' in data:
    return f'{data["num_rows"]:,} rows'
  return f'Rows of {data["num_units"]:,} values of `{data["privacy_unit"]}`'
