"""The page of an audit: one HTML file, and the same as JSON.

`page.html` is the template; the style is that of the report.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from typing import Any, Optional

from tfdpflows import accounting, atomic
from tfdpflows.accounting import registry
from tfdpflows.accounting.rounding import (
  delta_text,
  finite,
  round_up_decimals,
)
from tfdpflows.audit.ledgers import LedgerAudit
from tfdpflows.audit.replaying import Replay
from tfdpflows.evaluation.page import rendered
from tfdpflows.version import __version__

_TITLE = 'Privacy audit'
_REPLAYED = ('label', 'releases', 'norm', 'moved', 'problem')


def write_page(
  path: str | os.PathLike,
  found: LedgerAudit,
  *,
  source: str,
  replay: Optional[Replay] = None,
  row: Optional[int] = None,
) -> None:
  """Writes an audit as HTML, and as JSON beside it, each complete or not.

  `source` is a sentence on where the ledger is from; `replay` is of the fit
  without one row, counted from 1, if there was one.

  Raises:
    ValueError: for a path that does not end in '.html'.
  """
  content = as_dict(found, source=source, replay=replay, row=row)
  page = _page(found, source, replay, row)
  text = json.dumps(content, indent=1, allow_nan=False) + '\n'
  beside = json_path(path)
  was_there = os.path.lexists(beside)
  atomic.write_file(beside, text.encode())
  try:
    atomic.write_file(path, page.encode())
  except BaseException:
    if not was_there:
      os.unlink(beside)
    raise


def json_path(path: str | os.PathLike) -> str:
  """Returns the path of the JSON file beside an HTML file."""
  root, end = os.path.splitext(os.fspath(path))
  if end != '.html':
    raise ValueError(
      f'{path} must end in .html: a .json file is put beside it.'
    )
  return root + '.json'


def as_dict(
  found: LedgerAudit,
  *,
  source: str,
  replay: Optional[Replay] = None,
  row: Optional[int] = None,
) -> dict[str, Any]:
  """Returns an audit as a JSON-able dict; infinite numbers are `None`."""
  content = {
    'source': source,
    'library_version': __version__,
    'refuted': found.refuted,
    'complete': found.complete,
    'could_refute': found.could_refute,
    'epsilon_claimed': finite(found.epsilon_claimed),
    'epsilon_lower': finite(found.epsilon_lower),
    'mu_lower': finite(found.mu_lower),
    'delta': found.delta,
    'confidence': found.confidence,
    'accountant': found.accountant,
    'guarantee': accounting.create_accountant(found.accountant).guarantee,
    'neighboring_relation': found.neighboring_relation,
    'num_runs': found.num_runs,
    'seconds': round(found.seconds, 2),
    'entries': [
      {
        **dataclasses.asdict(entry),
        'epsilon_claimed': finite(entry.epsilon_claimed),
        'epsilon_lower': finite(entry.epsilon_lower),
      }
      for entry in found.entries
    ],
    'roc': {
      'false_positive': found.claimed_roc[:, 0].tolist(),
      'claimed': found.claimed_roc[:, 1].tolist(),
      'attack': found.roc[:, 1].tolist() if len(found.roc) else None,
    },
  }
  if replay is not None:
    content['replay'] = {
      'note': 'This is computed from private rows and is not private.',
      'row': row,
      'passed': replay.passed,
      'differences': list(replay.differences),
      'entries': [
        {name: getattr(entry, name) for name in _REPLAYED}
        for entry in replay.entries
      ],
    }
  return content


def _page(found, source, replay, row):
  from tfdpflows.evaluation import figures  # noqa: PLC0415 (slow to import)

  now = datetime.datetime.now(datetime.timezone.utc)
  return rendered(
    'tfdpflows.audit',
    'page.html',
    title=_TITLE,
    source=source,
    audit=found,
    verdict=_verdict(found, replay),
    notes=_notes(found, replay),
    claimed=round_up_decimals(found.epsilon_claimed),
    caveat=registry.caveat(found.accountant),
    lower=_down(found.epsilon_lower),
    delta=delta_text(found.delta),
    seconds=f'{found.seconds:.1f}',
    most=f'{math.log(found.num_runs / 8):.1f}',
    figure=figures.roc_figure(
      found.claimed_roc,
      found.roc,
      'True- by false-positive rates of the attack',
    ),
    entries=[
      {
        **dataclasses.asdict(entry),
        'claimed': 'ε ≤ ' + round_up_decimals(entry.epsilon_claimed),
        'lower': '–'
        if entry.epsilon_lower is None
        else 'ε ≥ ' + _down(entry.epsilon_lower),
      }
      for entry in found.entries
    ],
    replay=None if replay is None else str(replay),
    row=row,
    now=f'{now:%Y-%m-%d %H:%M}',
  )


def _verdict(found, replay):
  if found.refuted:
    return 'The attack refutes the claim.'
  if replay is not None and not replay.passed:
    return 'The claim is not refuted, and the replay failed.'
  if found.rates is None:
    return 'Nothing was attacked.'
  if not found.could_refute:
    return 'With so few runs no attack could refute the claim.'
  return 'The attack does not refute the claim.'


def _notes(found, replay):
  notes = []
  if not found.complete:
    names = ', '.join(repr(x.label) for x in found.entries if x.reason)
    notes.append(
      f'Not audited, since no worst pair is known for them: {names}. The '
      'attack is on the other entries alone, and the claim is for all.'
    )
  if replay is None:
    notes.append(
      'This page is about the ledger alone: the mechanisms that it records '
      'were simulated, and no private row was read.'
    )
  return notes


def _down(epsilon):
  return (
    'inf' if math.isinf(epsilon) else f'{math.floor(epsilon * 1e4) / 1e4:g}'
  )
