"""What a report says first: an answer to each question, and privacy in words.

The borders between answers are conventions of this page, written beside each.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tfdpflows.accounting.rounding import delta_text, round_up_decimals
from tfdpflows.evaluation import rare_groups
from tfdpflows.evaluation.comparison import Comparison

# Pairs that depend on each other, and how far their association may be off.
_STRONG, _NEAR = 0.2, 0.1
# How far a mean may be off, in standard deviations, and by which factor these.
_MEAN_OFF, _STD_OFF = 0.1, 1.25
# Standard errors that chance explains, and differences that rounding does.
_ERRORS, _EQUAL = 3.0, 1e-9
# Share of rows that are copies, beyond those of real rows among each other.
_COPIES = 0.5
# Epsilons up to which a guarantee is called strong, and moderate.
_STRICT, _MODERATE = 1.0, 10.0
# From here on delta is too large whatever the number of rows.
_LARGE_DELTA = 0.01
# The unit of statements in a sentence about the table.
_IN_A_SENTENCE = {'one row of the table': 'a row'}


class Verdict(NamedTuple):
  """The answer to one question."""

  question: str  # For instance 'Pairs'.
  level: str  # 'good', 'fair', 'poor' or 'none'.
  answer: str  # One sentence with the number that it rests on.
  meaning: str  # What to make of it.


def mean_or_std_is_off(real: np.ndarray, synthetic: np.ndarray) -> bool:
  """Whether numbers have another mean or standard deviation than real ones.

  The mean may be off by a tenth of the real standard deviation, the standard
  deviation by a factor of 1.25, and each by three standard errors. A column
  that is constant in one table alone is off where so many other values would
  hardly be missing in it by chance. All numbers are finite.

  >>> x = np.linspace(0., 1., 1000)
  >>> mean_or_std_is_off(x, x + .1), mean_or_std_is_off(x, x + .01)
  (True, False)
  """
  if not len(real) or not len(synthetic):
    return False
  largest = max(np.abs(real).max(), np.abs(synthetic).max()) or 1.0
  tables = real / largest, synthetic / largest
  means, stds = zip(*((np.mean(x), np.std(x)) for x in tables))
  chance = math.hypot(*(s / math.sqrt(len(x)) for s, x in zip(stds, tables)))
  most = max(_MEAN_OFF * stds[0], _ERRORS * chance, _EQUAL)
  if abs(means[1] - means[0]) > most:
    return True
  constant = [s <= _EQUAL * np.abs(x).max() for s, x in zip(stds, tables)]
  if all(constant):
    return False  # The mean has told.
  if any(constant):
    # The rule of three: so few other values are none in a sample by chance.
    varied, same = (1, 0) if constant[0] else (0, 1)
    others = np.abs(tables[varied] - means[same]) > _EQUAL
    return np.mean(others) > _ERRORS / len(tables[same])
  chance = math.hypot(*map(_error_of_log_std, tables))
  most = max(math.log(_STD_OFF), _ERRORS * chance)
  return abs(math.log(stds[1] / stds[0])) > most


def _error_of_log_std(x):
  """The standard error of log(std), by the fourth moment."""
  x = x - np.mean(x)
  kurtosis = np.mean(x**4) / np.mean(x**2) ** 2
  return math.sqrt(max(kurtosis - 1, 0) / (4 * len(x)))


def column_verdict(
  far: list[str], num_columns: int, moved: Sequence[str] = ()
) -> Verdict:
  """Judges single columns by those that are farther off than chance explains.

  `far` are names of columns whose shares are, the worst first, `moved` of those
  with another mean or standard deviation.

  >>> column_verdict(['age'], 10).level, column_verdict(['age'], 10, 'bc').level
  ('fair', 'poor')
  """
  off = list(dict.fromkeys([*far, *moved]))
  shares = f'All {num_columns} columns have about the shares of the real ones'
  if not off:
    return Verdict(
      'Columns',
      'good',
      f'{shares}.',
      'Counts and means of one column can be used as they are.',
    )
  judged = functools.partial(
    Verdict, 'Columns', 'fair' if len(off) <= num_columns / 5 else 'poor'
  )
  have = f'{"has" if len(moved) == 1 else "have"} another mean or standard '
  have += f'deviation: {_listed(moved)}.'
  if not far:
    return judged(
      f'{shares}; {len(moved)} {have}',
      'Counts can be used as they are. A few values far out, which noise puts '
      'into wide ranges, move a mean: look at it below before you use it.',
    )
  answer = f'{len(far)} of {num_columns} are farther off than chance explains: '
  answer += f'{_listed(far)}.'
  if len(off) > len(far):
    answer += f' {len(moved)} {have}'
  return judged(answer, 'Look at these columns below before you use them.')


def pairs_that_are_off(comparison: Comparison) -> list[tuple[str, str]]:
  """Returns pairs whose association is lost or made up, the worst first.

  Those of an association of .2 or more in the real table that is off by more
  than .1.
  """
  return [pair for pair, off in _strong(comparison) if not off <= _NEAR]


def _strong(comparison):
  """Pairs that depend on each other, and how far off they are."""
  names = list(comparison.association_real)
  real = comparison.association_real.to_numpy()
  off = np.abs(comparison.association_difference().to_numpy())
  found = [
    ((names[i], names[j]), off[i, j])
    for i, j in zip(*np.triu_indices(len(names), k=1))
    if abs(real[i, j]) >= _STRONG
  ]
  return sorted(found, key=lambda one: -one[1])


def pair_verdict(comparison: Comparison) -> Verdict:
  """Judges pairs by the associations of those that depend on each other."""
  strong = _strong(comparison)
  if not strong:
    return Verdict(
      'Pairs',
      'none',
      f'No two columns have an association of {_STRONG:g} or more.',
      'There is little dependence to reproduce.',
    )
  off = [' × '.join(pair) for pair, gap in strong if not gap <= _NEAR]
  share = 1 - len(off) / len(strong)
  answer = (
    f'{len(strong) - len(off)} of {len(strong)} pairs that depend on each '
    f'other (association of {_STRONG:g} or more) come within {_NEAR:g} of it'
  )
  return Verdict(
    'Pairs',
    'good' if share >= 0.9 else 'fair' if share >= 0.6 else 'poor',
    f'{answer}; not {_listed(off)}.' if off else f'{answer}.',
    'Cross tables and correlations can be used.'
    if share >= 0.9
    else 'Look up a pair in the list below before you rely on it.',
  )


def target_verdict(target: str, auroc: float, real: float) -> Verdict:
  """Judges a target by what is left of the AUROC above that of guessing.

  >>> target_verdict('income', .86, .89).level
  'fair'
  """
  question = f'Predicting {target}'
  if not real > 0.55:
    return Verdict(
      question,
      'none',
      f'Real rows hardly predict it (AUROC {real:.2f}).',
      'There is nothing to compare with.',
    )
  kept = max((auroc - 0.5) / (real - 0.5), 0.0)
  return Verdict(
    question,
    'good' if kept >= 0.95 else 'fair' if kept >= 0.8 else 'poor',
    f'AUROC {auroc:.3f} where real rows give {real:.3f}: {min(kept, 1):.0%} of '
    'what they have above guessing.',
    'Models may be developed on the synthetic rows.'
    if kept >= 0.95
    else 'Models may be tried out on the synthetic rows, and need real rows in '
    'the end.',
  )


def copies_verdict(synthetic: float, real: float) -> Verdict | None:
  """Judges how many synthetic rows are real ones; `None` where chance may be.

  By the shares of synthetic and of real rows that equal another real one.

  >>> copies_verdict(1., .1).level, copies_verdict(.3, .1)
  ('poor', None)
  """
  if synthetic <= real + _COPIES:
    return None
  return Verdict(
    'Copies',
    'poor',
    f'{synthetic:.0%} of the synthetic rows are rows of the real table, of '
    f'which {real:.0%} are there more than once.',
    'Were the files mixed up? A private model does not copy rows: all that '
    'follows then says nothing of it.',
  )


def rare_verdict(groups: pd.DataFrame) -> Verdict:
  """Judges the groups of `rare_groups`."""
  number, more = groups.attrs.get('pairs_of'), ''
  if number is not None:
    more = f' Pairs are those of the first {number} columns of categories.'
  if groups.empty:
    return Verdict(
      'Rare groups',
      'none',
      f'There is no group of 20 rows or more and at most 5 % of them.{more}',
      'Smaller groups, and numbers, are not looked at here.',
    )
  kept = int(rare_groups.kept(groups).sum())
  share = kept / len(groups)
  return Verdict(
    'Rare groups',
    'good' if share >= 0.9 else 'fair' if share >= 0.6 else 'poor',
    f'{kept} of {len(groups)} groups of at most 5 % of the rows have between '
    'half and twice their share. Those of fewer than 20 real rows are not '
    f'looked at.{more}',
    'How large small groups are can be used; what else their rows hold is not '
    'compared.'
    if share >= 0.9
    else 'Do not study small groups in the synthetic rows: noise hides few '
    'people, which is its purpose.',
  )


def privacy_verdict(statement: dict[str, Any] | None) -> Verdict:
  """Judges what a statement claims.

  >>> privacy_verdict({'epsilon': 1.0, 'delta': 1e-5}).level
  'good'
  """
  poor = functools.partial(Verdict, 'Privacy', 'poor')
  epsilon = (statement or {}).get('epsilon')
  if not isinstance(epsilon, (int, float)) or not math.isfinite(epsilon):
    return poor(
      'No finite epsilon is claimed.',
      'Treat the synthetic table like the real one.',
    )
  delta = statement.get('delta')
  proven = statement.get('guarantee', 'upper_bound') == 'upper_bound'
  text = f'ε {"≤" if proven else "≈"} {rounded_up(epsilon)}'
  has_delta = isinstance(delta, (int, float))
  if has_delta:
    text += f' at δ = {delta_text(delta)}'
  if not proven:
    text += f', {statement["guarantee"]}: no proven bound'
  if statement.get('seeded'):
    return poor(
      f'{text}, but the noise came from a seed.',
      'Whoever knows the seed can remove the noise: fit again without one.',
    )
  if not proven:
    return poor(
      f'{text}.', 'Compute epsilon with an accountant that is an upper bound.'
    )
  rows = statement.get('num_examples')
  rows = rows if isinstance(rows, (int, float)) else 0
  if has_delta and delta * rows >= 1:
    return poor(
      f'{text}; δ is as large as one over the {rows:,} rows.',
      'Publishing one row in full is as private as that: choose a smaller δ.',
    )
  if has_delta and delta >= _LARGE_DELTA:
    return poor(
      f'{text}.',
      f'With a probability of {delta:g} everything may be published: choose a '
      'smaller δ.',
    )
  if epsilon <= _STRICT:
    unit = statement.get('unit')
    whom = 'each row' if unit in (None, *_IN_A_SENTENCE) else unit
    level, meaning = 'good', f'A strong guarantee for {whom}.'
  elif epsilon <= _MODERATE:
    level, meaning = 'fair', 'A guarantee in common use, and no strong one.'
  else:
    level, meaning = 'poor', 'A guarantee that excludes little.'
  return Verdict('Privacy', level, f'{text}.', meaning)


def plain_privacy(
  statement: dict[str, Any] | None, clipped: int = 0
) -> list[tuple[str, str]]:
  """Returns what a statement means for people, as pairs of topic and text.

  The schema does not allow `clipped` of the real values.
  """
  if not statement or not isinstance(statement.get('epsilon'), (int, float)):
    return []
  epsilon = statement['epsilon']
  unit = statement.get('unit', 'one row of the table')
  mechanisms = statement.get('mechanisms') or ()
  labels = {m.get('label') for m in mechanisms if isinstance(m, dict)}
  delta = statement.get('delta', 0)
  found = {}
  if math.isfinite(epsilon) and isinstance(delta, (int, float)):
    found['One person'] = (
      f'Whether {_IN_A_SENTENCE.get(unit, unit)} had a part in it or not '
      'changes the odds of whatever anybody concludes from the synthetic rows '
      f'by a factor of {_factor(epsilon)} at most; or nobody learns more than '
      'if that were so and, with a probability of '
      f'{delta_text(delta)}, everything were published.{_limits(statement)}'
    )
  found['Several rows of a person'] = (
    'The guarantee is for one row. Whoever has k rows is protected about k '
    'times less; use a privacy unit where people have several.'
    if unit in _IN_A_SENTENCE
    else f'The guarantee is for {unit}, however many rows that is.'
  )
  found['Ranges and categories'] = (
    'Some were found in the rows; that is paid for within epsilon.'
    if 'bounds' in labels
    else 'They count as public: whoever wrote the schema must not have read '
    'them off the rows.'
  )
  found['Values outside of them'] = (
    f'{clipped:,} values of the real table compared here are outside; a fit '
    'moves such values to the nearest bound or takes them for missing.'
    if clipped
    else 'None in the real table compared here.'
  )
  found['Who may have what'] = (
    'The synthetic rows and the model may be given to anybody whom this '
    'epsilon is meant for. This report, logs and unfinished work may not: keep '
    'them with the real rows.'
  )
  return list(found.items())


def _limits(statement):
  """What must be said where epsilon is put into words."""
  text = ''
  guarantee = statement.get('guarantee', 'upper_bound')
  if guarantee != 'upper_bound':
    text += f' This is {guarantee} and not proven: the factor may be larger.'
  if statement.get('seeded'):
    text += (
      ' The noise came from a seed: whoever knows it is not bound by this.'
    )
  return text


def _listed(names):
  if len(names) <= 4:
    return ', '.join(names)
  return f'{", ".join(names[:3])} and {len(names) - 3} more'


def rounded_up(epsilon: float) -> str:
  """Writes epsilon with up to four digits after the point, never below it.

  >>> rounded_up(1.5), rounded_up(1e20)
  ('1.5', '100000000000000000000')
  """
  return f'{decimal.Decimal(round_up_decimals(epsilon)).normalize():f}'


def _factor(epsilon):
  if epsilon > 20:
    return 'more than 100 million'
  factor = math.exp(epsilon)
  # Never less than it is.
  return f'{math.ceil(factor * 10) / 10:,.1f}'
