"""Replays a fit on a neighbouring table, and measures what its releases move.

The two fits have the same random numbers. What the first one released is given
to the second one in place of its own releases, as the proofs of adaptive
composition take it: each release may depend on the table, and on nothing but
what was released before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import numbers
import types
from collections.abc import Callable, Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np

from tfdpflows import _observer, accounting
from tfdpflows.accounting import mechanisms as mechanisms_lib
from tfdpflows.accounting.events import describe_event
from tfdpflows.accounting.events_json import event_from_dict
from tfdpflows.accounting.mechanisms.matrix import cyclic_blocks
from tfdpflows.audit.watching import Stream, UsedNoise

# Which norm of a movement counts, in units of the noise, by the kind of noise.
_NORMS = {
  'gaussian': ('l2', lambda x: np.sum(np.square(x))),
  'laplace': ('l1', lambda x: np.sum(np.abs(x))),
  'gumbel': ('range', lambda x: np.ptp(x) if x.size else 0.0),
}
# Sums of float32 are rounded.
_SLACK = 1e-4
_NO_RELEASE = 'charged, and no release was observed'
_UNKNOWN = 'no sensitivity to compare with is known for this event'


@dataclasses.dataclass(frozen=True)
class ReplayedEntry:
  """What one entry of a ledger released, and how far that moved.

  Attributes:
    label: of the entry.
    event: of one run.
    count: how many runs were charged.
    releases: how many times noise was added for it.
    norm: 'l2' of Gaussian noise, 'l1' of Laplace noise, 'range' of Gumbel noise
      (the exponential mechanism), joined by '+'; empty if none was seen.
    movements: of each step of a training, or of all releases together, in
      units of what is declared: above 1 more is released than is charged.
    problem: why it was not measured; empty if it was.
  """

  label: str
  event: dp_accounting.DpEvent
  count: int
  releases: int
  norm: str
  movements: tuple[float, ...]
  problem: str = ''

  @property
  def moved(self) -> float:
    """The largest of `movements`, 0 if there are none."""
    return max(self.movements, default=0.0)

  @property
  def exceeds(self) -> bool:
    """Whether it moved by more than is declared."""
    return self.moved > 1 + _SLACK


@dataclasses.dataclass(frozen=True)
class Replay:
  """What `replay` found.

  Attributes:
    entries: a `ReplayedEntry` for each entry of the ledgers, in their order,
      without ledgers for which nothing was released at all (of plans that are
      not run, say).
    differences: in what the two fits differ besides the numbers released; a
      list of sentences. They may be empty only if nothing but the releases
      depends on the table.
    distance: the number of neighbouring steps between the tables.
  """

  entries: tuple[ReplayedEntry, ...]
  differences: tuple[str, ...]
  distance: int

  @property
  def passed(self) -> bool:
    """Whether all was measured, nothing exceeds its charge, nothing differs."""
    return not self.differences and not any(
      entry.exceeds or entry.problem for entry in self.entries
    )

  def __str__(self) -> str:
    rows = [('entry', 'releases', 'norm', 'moved / declared', '')]
    for entry in self.entries:
      verdict = entry.problem or ('EXCEEDS' if entry.exceeds else '')
      moved = '-' if entry.problem else f'{entry.moved:.4f}'
      rows.append(
        (entry.label, str(entry.releases), entry.norm or '-', moved, verdict)
      )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
      '  '.join(x.ljust(w) for x, w in zip(row, widths)).rstrip()
      for row in rows
    ]
    lines += [f'DIFFERS: {text}' for text in self.differences]
    if self.passed and not any(entry.moved for entry in self.entries):
      lines.append('Nothing moved: these two tables test nothing of this fit.')
    verdict = 'passed' if self.passed else 'FAILED'
    return '\n'.join([f'Replay on a neighbouring table: {verdict}', *lines])


def replay(
  fit: Callable[[Any], Any],
  table: Any,
  neighbor: Any,
  *,
  distance: int = 1,
  output: Optional[Callable[[Any], Any]] = None,
) -> Replay:
  """Runs a fit on two neighbouring tables, and measures what is released.

  `fit` is any function that keeps ledgers of this library and has its random
  numbers from it: `TabularSynthesizer.fit`, a training under a `TrainingPlan`,
  `mechanisms`, the aggregators of `pate`, or a pipeline of all these. It is
  called twice in this process, with the same random numbers. In the second
  call noisy sums are replaced by those of the first one, after the sums
  themselves were compared. What was charged for a release is compared with how
  far it moved, and the results of both calls must be equal: all that depends on
  the table is released with noise and charged.

  The random numbers of both calls are derived from one secret: neither result
  is private. Use public or made-up tables.

  Neighbours should be the worst that one can think of, such as an outlier in
  place of a common row. Each pair tests itself only: a replay that passes
  proves nothing for other pairs.

  Args:
    fit: a function of a table. It makes its models, ledgers and plans itself,
      since it runs twice, and is not compiled by XLA. Seeds are allowed.
    table: what `fit` takes.
    neighbor: one of its neighbours.
    distance: number of neighbouring steps from one to the other. A row that
      is replaced is 2 where the ledger is for rows added or removed, and what
      is allowed is twice as much. To remove a row while the number of rows
      stays public, `fit_without` is for synthesizers; a row of NaN adds nothing
      to the sums of a `TrainingPlan`.
    output: a function of what `fit` returned, to what must be the same for both
      tables (arrays, numbers, and structures of them); by default all that is
      found in it, without ledgers.

  Returns:
    A `Replay`; print it for a table of all entries.

  Raises:
    ValueError: for a distance below 1, or inside of another replay.

  #### Formal guarantee

  None: this is a test. Noise that other libraries draw, or that is not added by
  `+` to what NumPy's generator of a `Randomness` drew, is not seen; its entry
  is then listed with a problem, and the replay fails. It also fails where the
  parameters of another draw depend on the table, such as the probabilities of
  a `choice`. What passes although it may be wrong: `rng.random() < p`, where p
  depends on the table and the two fits fall on the same side; a charge for a
  sample of the rows where all of them were used; noise of float32 or on a grid
  that is used again in part, and other noise of which a few numbers out of
  millions are, or that is scaled by the table or mixed with other noise before
  it is used again; and what `fit` writes to files
  or other places, and does not return.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, audit, mechanisms
  >>> def fit(codes):
  ...   (pair,) = mechanisms.noisy_marginals(
  ...     codes, [2, 2], [(0, 1)], 4., None, accounting.PrivacyLedger())
  ...   return pair.counts
  >>> codes = np.array([[0, 1], [1, 1], [1, 0]])
  >>> print(audit.replay(fit, codes, codes[:2]))
  Replay on a neighbouring table: passed
  entry            releases  norm  moved / declared
  joint marginals  1         l2    1.0000
  """
  if not (isinstance(distance, numbers.Integral) and distance >= 1):
    raise ValueError(f'distance is {distance}; it must be an integer >= 1.')
  return record(fit, table, output).replay(neighbor, distance)


def record(
  fit: Callable[[Any], Any],
  table: Any,
  output: Optional[Callable[[Any], Any]] = None,
) -> Recording:
  """Runs the first fit of `replay`, for several neighbours."""
  output = output or (lambda found: found)
  run = _Run()
  with _observer.observing(run):
    found = list(_leaves(output(fit(own_copy(table)))))
  return Recording(fit, output, run, found)


def own_copy(table: Any) -> Any:
  """Returns a table, or a structure of tables, that a fit may change in place.

  Else a fit would see what another one left: of a neighbour that is a view of
  the table, say, rows that are clipped already.
  """
  if isinstance(table, dict):
    return {name: own_copy(part) for name, part in table.items()}
  if type(table) in (list, tuple):
    return type(table)(own_copy(part) for part in table)
  if isinstance(table, np.ndarray) or hasattr(table, 'to_numpy'):
    return table.copy()
  return table


@dataclasses.dataclass(frozen=True)
class Recording:
  """A fit that was run, see `record`."""

  _fit: Callable[[Any], Any]
  _output: Callable[[Any], Any]
  _run: _Run
  _found: list

  def replay(self, neighbor: Any, distance: int = 1) -> Replay:
    """Runs the fit on a neighbour of its table."""
    run = _Run(self._run)
    with _observer.observing(run):
      other = list(_leaves(self._output(self._fit(own_copy(neighbor)))))
    differences = [*run.differences, *_unlike(self._run, run)]
    differences += _different_outputs(self._found, other)
    if any(np.any(r.moved) for r in run.stray):
      differences.append('A sum was released that nothing was charged for.')
    return Replay(
      tuple(_measured(entry, made, distance) for entry, made in run.by_entry()),
      tuple(dict.fromkeys(differences)),
      distance,
    )


def fit_without(synthesizer: Any, table: Any, rows: Sequence[int]) -> Any:
  """Fits a `TabularSynthesizer` as if some rows were not in the table.

  No mechanism sees them, and the number of rows, which is public, stays: so
  neighbours differ for which a row is added or removed. For audits alone.

  Args:
    synthesizer: a `TabularSynthesizer`.
    table: a `DataFrame`.
    rows: numbers of the rows; none fits the table.

  Returns:
    The synthesizer.

  Raises:
    ValueError: for a model that DP-SGD does not train, and errors of `fit`.
  """
  return synthesizer._fit(
    table, None, resume=False, progress=False, absent=rows
  )


@dataclasses.dataclass
class _Release:
  """One addition of noise; `moved` is in units of the noise."""

  name: tuple
  kind: str
  total: np.ndarray
  scale: np.ndarray
  value: np.ndarray
  step: int
  entry: Optional[_Entry]
  moved: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(eq=False)
class _Entry:
  """An entry of a ledger; of which one, by their order."""

  ledger: int
  label: str
  event: dp_accounting.DpEvent
  count: int
  kind: str
  relation: Any


class _Run:
  """Observes a run: see `_observer`. The second one replays the `first`."""

  def __init__(self, first: Optional[_Run] = None):
    self._first = first
    self._ledgers, self._seeds = [], 0
    self._used, self._noises, self._draws = {}, UsedNoise(), {}
    self.entries, self.releases, self.differences = [], {}, []

  # What the library asks.

  def seed(self) -> int:
    """Returns the seed of the next secret that a run makes."""
    self._seeds += 1
    digest = hashlib.sha256(f'replay {self._seeds}'.encode()).digest()
    return int.from_bytes(digest[:8], 'big')

  def stream(self, bits: np.random.BitGenerator, path: tuple) -> Stream:
    """Returns a generator whose noise tells what it is added to."""
    stream = Stream(bits)
    stream.path, stream.observer = path, self
    return stream

  def tensor(self, total, noise, stddev, label, step):
    """Returns a noisy sum of TensorFlow."""
    import tensorflow as tf  # noqa: PLC0415 (audits need none)

    def look(total, noise, stddev, step):
      # Of the run in which it is computed; the graph may be older.
      run = _observer.current()
      if run is None:
        return total + noise
      name = ('noise', label)
      return run.release(
        name, 'gaussian', total, np.asarray(stddev), total + noise, int(step)
      )

    step = tf.cast(step, tf.int64)
    found = tf.numpy_function(look, [total, noise, stddev, step], total.dtype)
    found.set_shape(total.shape)
    return found

  def charged(self, ledger, record):
    """Notes a record of a ledger."""
    if not any(ledger is known for known in self._ledgers):
      self._ledgers.append(ledger)
    number = [ledger is known for known in self._ledgers].index(True)
    if record['kind'] in ('charge', 'reserve'):
      count = record['count'] if record['kind'] == 'charge' else 0
      facts = record['label'], event_from_dict(record['event']), count
      relation = ledger.neighboring_relation
      self.entries.append(_Entry(number, *facts, record['kind'], relation))
    elif record['kind'] == 'advance':
      for entry in self.entries:
        if (entry.ledger, entry.label) == (number, record['label']):
          entry.count = record['total']

  def release(self, name, kind, total, scale, value, step=-1):
    """Notes a noisy sum; returns it, or that of the first run."""
    total, scale = np.array(total, np.float64), np.array(scale, np.float64)
    entry = self._entry_of(name)
    made = _Release(name, kind, total, scale, np.array(value), step, entry)
    self.releases.setdefault(name, []).append(made)
    if self._first is None:
      return made.value
    number = self._used.get(name, 0)
    self._used[name] = number + 1
    earlier = self._first.releases.get(name, [])
    if number >= len(earlier):
      return made.value
    theirs = earlier[number]
    for what in ('kind', 'step'):
      if getattr(made, what) != getattr(theirs, what):
        return self._differs(made, what)
    if made.total.shape != theirs.total.shape:
      return self._differs(made, 'shape')
    if not np.array_equal(made.scale, theirs.scale):
      return self._differs(made, 'scale of the noise')
    with np.errstate(invalid='ignore'):
      moved = made.total - theirs.total
    # Minus infinity on both sides, such as the weight of an empty interval.
    same = (made.total == theirs.total) | (
      np.isnan(made.total) & np.isnan(theirs.total)
    )
    if not np.all(made.scale > 0):
      self.differences.append(f'A release of {_shown(made.name)} has no noise.')
    with np.errstate(divide='ignore', invalid='ignore'):
      moved = np.where(same, 0.0, moved) / made.scale
    # NaN in one of the sums alone tells the tables apart.
    made.moved = np.where(np.isnan(moved), np.inf, moved)
    # Of Gumbel noise only what is the largest is charged, not how large it is:
    # a result that depends on that differs.
    return 2 * theirs.value + 1 if kind == 'gumbel' else theirs.value

  def draws(self, path, method, parameters):
    """Notes the parameters of a draw of which no release is measured."""
    made = self._draws.setdefault((path, method), [])
    made.append(parameters)
    earlier = (
      () if self._first is None else self._first._draws.get((path, method), ())
    )
    if len(made) <= len(earlier) and not _same_parameters(
      parameters, earlier[len(made) - 1]
    ):
      self.differences.append(
        f'The parameters of a draw of {_shown(path)} by `{method}` depend on '
        'the table: what that reveals is not measured.'
      )

  def uses(self, noise, units, shape, path):
    """Notes noise, also in units of its scale: none may be used twice.

    Nor for two numbers of one release, of this shape.
    """
    again = self._noises.known(noise, units)
    if again or math.prod(shape) > np.size(noise):
      self.differences.append(
        f'Noise of {_shown(path)} is used twice: what it is added to differs '
        'by sums without noise.'
      )

  def _differs(self, made, what):
    self.differences.append(
      f'The {what} of a release of {_shown(made.name)} depends on the table.'
    )
    return made.value

  def _entry_of(self, name):
    """Returns the entry that a release is charged to: the last of its label."""
    labels = [part for part in name if isinstance(part, str)]
    for entry in reversed(self.entries):
      if entry.label in labels:
        return entry
    # Charges come before releases: the latest one, if its label is unknown.
    return self.entries[-1] if self.entries else None

  @property
  def stray(self):
    """Releases that nothing was charged for."""
    return [r for all_ in self.releases.values() for r in all_ if not r.entry]

  def by_entry(self):
    """Returns each entry with its releases."""
    made = [r for all_ in self.releases.values() for r in all_ if r.entry]
    # Ledgers of plans that only compute, and copies, are not what is replayed.
    used = {r.entry.ledger for r in made}
    return [
      (e, [r for r in made if r.entry is e])
      for e in self.entries
      if e.ledger in used or not used
    ]


def _same_parameters(some, others):
  return len(some) == len(others) and all(
    np.array_equal(x, y) for x, y in zip(some, others)
  )


def _shown(name):
  return '/'.join(map(str, name))


def _unlike(first, second):
  """Yields in what charges and numbers of releases differ."""
  facts = lambda run: [
    (e.ledger, e.label, describe_event(e.event), e.count) for e in run.entries
  ]
  if facts(first) != facts(second):
    yield (
      f'The charges depend on the table: {_charges(first)} for it, '
      f'{_charges(second)} for its neighbour.'
    )
  for name in {**first.releases, **second.releases}:
    counts = [len(run.releases.get(name, ())) for run in (first, second)]
    if counts[0] != counts[1]:
      yield (
        f'The number of releases of {_shown(name)} depends on the table: '
        f'{counts[0]} for it, {counts[1]} for its neighbour.'
      )


def _charges(run):
  return ', '.join(f'{e.label!r} x {e.count}' for e in run.entries) or 'none'


def _measured(entry, releases, distance):
  """Returns the `ReplayedEntry` of an entry and its releases."""
  norms = sorted({_NORMS[r.kind][0] for r in releases})
  problem, steps = '', {}
  allowed = _declared(entry.event, entry.relation)
  if not releases:
    problem = _NO_RELEASE
  elif not all(allowed.get(r.kind) for r in releases):
    problem = _UNKNOWN
  else:
    # Each step of a training by itself; all others together.
    for release in releases:
      steps.setdefault(release.step, []).append(release)
  movements = {
    step: _movement(
      some, allowed, 1 if step >= 0 else max(entry.count, 1), distance
    )
    for step, some in steps.items()
  }
  if steps:
    problem = _problem_of_steps(entry, movements, distance)
  facts = entry.label, entry.event, entry.count, len(releases)
  return ReplayedEntry(
    *facts, '+'.join(norms), tuple(movements.values()), problem
  )


def _movement(releases, allowed, runs, distance):
  """Returns how far the releases of some runs moved, over what they may."""
  found = []
  for kind in {r.kind for r in releases}:
    size = sum(_NORMS[kind][1](r.moved) for r in releases if r.kind == kind)
    most = allowed[kind] * distance
    if kind == 'gaussian':
      size, most = size**0.5, most * runs**0.5
    else:
      most *= runs
    found.append(float(size / most))
  return max(found)


def _problem_of_steps(entry, movements, distance):
  """Returns what is wrong with the steps of a training, by their numbers."""
  # A charge is for as many steps as there are parts of the rows, and a row is
  # in steps that far apart.
  parts = getattr(entry.event, 'parts', 1)
  charged = entry.count * parts
  number = sum(step >= 0 for step in movements)
  if number > max(charged, 1):
    return f'{number} steps were released, and {charged} are charged'
  moved = sorted(s for s, m in movements.items() if s >= 0 and m > _SLACK)
  near = [t - s for s, t in zip(moved, moved[1:]) if t - s < parts]
  if near and distance == 1:
    return f'steps {min(near)} apart moved, and {parts} are charged together'
  return ''


def _declared(event, relation):
  """Returns how far an event lets sums move, in units of their noise, by kind.

  Where it is on a sample, given that the sample has the row.
  """
  if isinstance(event, dp_accounting.ComposedDpEvent):
    parts = [(_declared(x, relation), 1) for x in event.events]
  elif isinstance(event, dp_accounting.SelfComposedDpEvent):
    parts = [(_declared(event.event, relation), event.count)]
  elif isinstance(event, accounting.TruncatedSubsampledGaussianDpEvent):
    noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    return _declared(noise, relation)
  elif isinstance(event, accounting.CyclicPoissonSampledDpEvent):
    # A step moves by its row alone, not by what is correlated with it.
    noise = cyclic_blocks(event)[0]
    return _declared(dp_accounting.GaussianDpEvent(noise), relation)
  elif isinstance(getattr(event, 'event', None), dp_accounting.DpEvent):
    return _declared(event.event, relation)
  else:
    parts = []
    for found, count in mechanisms_lib.decompose(event, relation).items():
      if found.name in ('gaussian', 'laplace'):
        parts.append(({found.name: 1 / found.noise_multiplier}, count))
      elif found.name == 'bounded_range':
        parts.append(({'gumbel': found.epsilon}, count))
      elif found.name == 'epsilon_delta':
        parts.append(({'laplace': found.epsilon}, count))
  total = {}
  for allowed, count in parts:
    for kind, most in allowed.items():
      power = 2 if kind == 'gaussian' else 1
      total[kind] = total.get(kind, 0.0) + count * most**power
  return {k: v**0.5 if k == 'gaussian' else v for k, v in total.items()}


def _different_outputs(found, other):
  """Yields a sentence for each part of the results that differs."""
  if [name for name, _ in found] != [name for name, _ in other]:
    yield 'The structure of the result depends on the table.'
    return
  for (name, one), (_, two) in zip(found, other):
    same = one.shape == two.shape and one.dtype == two.dtype
    if same and one.dtype.kind in 'fc':
      same = np.array_equal(one, two, equal_nan=True)
    elif same:
      same = np.array_equal(one, two)
    if not same:
      yield (
        f'The result{name} depends on the table, beyond what was released.'
      )


def _leaves(value, name='', within=()):
  """Yields all arrays of a result, with their names.

  Raises:
    TypeError: for what cannot be compared.
  """
  if len(within) > 20:
    raise TypeError(
      f'The result{name[:80]} is nested too deeply to be compared: give an '
      '`output` that returns arrays.'
    )
  if value is None or id(value) in within:
    return
  leaves = functools.partial(_leaves, within=(*within, id(value)))
  if isinstance(value, accounting.PrivacyLedger):
    # Its charges are compared one by one.
    yield f'{name}.metadata', np.asarray(str(value.metadata))
  elif isinstance(value, (np.random.Generator, type, types.ModuleType)):
    return
  elif hasattr(getattr(value, '_fitted', None), 'distribution'):
    parts = value._fitted.distribution.saved_parts().values()
    variables = [v for part in parts for v in part.variables]
    yield from leaves([value._fitted.marginals, variables], name)
  elif isinstance(value, dict):
    for key in value:
      yield from leaves(value[key], f'{name}[{key!r}]')
  elif isinstance(value, (list, tuple)):
    for number, part in enumerate(value):
      yield from leaves(part, f'{name}[{number}]')
  elif isinstance(value, (str, bytes, numbers.Number, np.ndarray, np.generic)):
    yield name, np.asarray(value)
  elif hasattr(value, 'to_numpy'):
    yield name, np.asarray(value.to_numpy())
    # Which categories there are, say.
    for label in ('columns', 'index'):
      if hasattr(getattr(value, label, None), 'to_numpy'):
        yield f'{name}.{label}', np.asarray(getattr(value, label).to_numpy())
  elif hasattr(value, 'numpy'):
    yield name, np.asarray(value.numpy())
  elif hasattr(value, 'variables'):
    yield from leaves(list(value.variables), f'{name}.variables')
  elif hasattr(value, 'toarray'):
    yield name, np.asarray(value.toarray())
  elif isinstance(value, (set, frozenset)):
    yield name, np.asarray(sorted(map(repr, value)))
  elif dataclasses.is_dataclass(value):
    for field in dataclasses.fields(value):
      yield from leaves(getattr(value, field.name), f'{name}.{field.name}')
  elif isinstance(value, dp_accounting.DpEvent):
    yield name, np.asarray(repr(value))
  elif callable(value):
    yield from leaves(_held(value), name)
  elif hasattr(value, '__dict__'):
    yield from leaves(vars(value), name)
  else:
    raise TypeError(
      f'The result{name} is a {type(value).__name__}, which cannot be '
      'compared: give an `output` that returns arrays.'
    )


def _held(value):
  """Returns what a callable computes with, a structure."""
  if isinstance(value, functools.partial):
    return [value.func, value.args, value.keywords]
  if isinstance(value, types.MethodType):
    return value.__self__
  if isinstance(value, types.FunctionType):
    cells = []
    for cell in value.__closure__ or ():
      # One that is not filled yet has no content.
      with contextlib.suppress(ValueError):
        cells.append(cell.cell_contents)
    return [cells, value.__defaults__, value.__kwdefaults__]
  return getattr(value, '__dict__', None)
