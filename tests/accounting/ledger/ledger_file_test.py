"""The file of a ledger: damage is found and named, crashes are survived."""

import errno
import json
import os

import dp_accounting
import pytest

from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting.ledger import file as ledger_file

GAUSSIAN = dp_accounting.GaussianDpEvent(5.0)


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'ledger.jsonl'


@pytest.fixture
def written(path):
  """A ledger of five lines."""
  with PrivacyLedger(path) as ledger:
    ledger.charge(GAUSSIAN, label='first')
    steps = ledger.reserve(GAUSSIAN, 10, 'training')
    steps.ensure(4)
    steps.ensure(8)
  assert len(path.read_bytes().splitlines()) == 5
  return path


def test_existing_file_is_never_overwritten(written):
  before = written.read_bytes()
  with pytest.raises(LedgerError, match=r'exists.*PrivacyLedger\.open'):
    PrivacyLedger(written)
  assert written.read_bytes() == before
  assert [x.name for x in written.parent.iterdir()] == [written.name]


def test_missing_file(path):
  with pytest.raises(LedgerError, match='There is no ledger'):
    PrivacyLedger.open(path)
  with pytest.raises(LedgerError, match='Cannot create'):
    PrivacyLedger(path / 'no' / 'such' / 'folder')


def test_one_writer_at_a_time(path):
  with PrivacyLedger(path) as ledger:
    with pytest.raises(LedgerError, match='in use'):
      PrivacyLedger.open(path)
    ledger.charge(GAUSSIAN)
    with PrivacyLedger.open(path, read_only=True) as reader:
      assert len(reader.entries) == 1
      with pytest.raises(LedgerError, match='read only'):
        reader.charge(GAUSSIAN)
  PrivacyLedger.open(path).close()
  with pytest.raises(LedgerError, match='closed'):
    ledger.charge(GAUSSIAN)
  assert len(ledger.entries) == 1


@pytest.mark.parametrize('number', range(5))
def test_every_changed_byte_is_found_in_its_line(written, number):
  good = written.read_bytes()
  lines = good.splitlines(keepends=True)
  start = sum(len(line) for line in lines[:number])
  for offset in range(start, start + len(lines[number]), 7):
    bad = bytearray(good)
    bad[offset] ^= 1
    written.write_bytes(bytes(bad))
    with pytest.raises(LedgerError) as error:
      PrivacyLedger.open(written)
    if number:
      assert f'line {number + 1}:' in str(error.value)
  written.write_bytes(good)
  PrivacyLedger.open(written).close()


@pytest.mark.parametrize('number', range(1, 5))
def test_removed_line_is_found(written, number):
  lines = written.read_bytes().splitlines(keepends=True)
  written.write_bytes(b''.join(lines[:number] + lines[number + 1 :]))
  message = f'line {number + 1}: the hash' if number < 4 else 'cut off'
  with pytest.raises(LedgerError, match=message):
    PrivacyLedger.open(written)


def test_moved_repeated_and_added_lines_are_found(written):
  lines = written.read_bytes().splitlines(keepends=True)
  for bad in (
    [*lines[:3], lines[4], lines[3]],
    [*lines[:4], lines[3], lines[4]],
    [*lines, lines[4]],
    [*lines, b'\n'],
    [*lines, b'{"hash":"00"}\n'],
    [*lines[:2], b'\n', *lines[2:]],
  ):
    written.write_bytes(b''.join(bad))
    with pytest.raises(LedgerError, match=r'line [1-6]:'):
      PrivacyLedger.open(written)


@pytest.mark.parametrize('kept', range(5))
def test_cut_off_file_is_found(written, kept):
  good = written.read_bytes()
  ends = [i + 1 for i, byte in enumerate(good) if byte == ord('\n')]
  end = ends[kept - 1] if kept else 0
  for size in (end, end + 10, ends[kept] - 2):
    if size == len(good):
      continue
    written.write_bytes(good[:size])
    with pytest.raises(LedgerError):
      PrivacyLedger.open(written)


def test_line_of_another_ledger_is_found(written, tmp_path):
  other = tmp_path / 'other.jsonl'
  with PrivacyLedger(other, metadata={'other': 1}) as ledger:
    ledger.charge(GAUSSIAN, label='first')
  lines = written.read_bytes().splitlines(keepends=True)
  lines[1] = other.read_bytes().splitlines(keepends=True)[1]
  written.write_bytes(b''.join(lines))
  with pytest.raises(LedgerError, match='line 2: the hash'):
    PrivacyLedger.open(written)


def rewritten(path, number, **changes):
  """A ledger whose chain was computed anew after a change."""
  lines = path.read_bytes().splitlines()
  last, result = '0' * 64, []
  for i, line in enumerate(lines):
    record = json.loads(line)
    record.pop('hash')
    record.pop('head', None)
    record.update(changes if i + 1 == number else {})
    body = ledger_file._canonical(record)
    last = ledger_file._digest(last, body)
    result.append((body, last))
  head = f'{len(lines):010d}:{last}'
  return b''.join(
    ledger_file._line(body, digest, None if i else head)
    for i, (body, digest) in enumerate(result)
  )


@pytest.mark.parametrize(
  ('number', 'changes', 'message'),
  [
    (1, {'format_version': 2}, 'format version 2'),
    (1, {'format': 'other'}, 'not a ledger'),
    (1, {'accountant': 'none'}, 'line 1: .*Unknown accountant'),
    (
      1,
      {'neighboring_relation': 'REPLACE_NONE'},
      'line 1: .*NONE is not supp',
    ),
    (
      1,
      {'neighboring_relation': 'swap'},
      'line 1: .*swap is not supported; us',
    ),
    (1, {'metadata': None}, 'line 1: not a valid record'),
    (1, {'budget': 7}, 'line 1: not a valid record'),
    (2, {'kind': 'seal'}, 'line 2: .*into'),
    (
      2,
      {'kind': 'seal', 'into': 'x', 'sources': []},
      'line 3: .*after the merge',
    ),
    (1, {'budget': {'epsilon': -1.0, 'delta': 0.1}}, 'line 1: .*epsilon'),
    (2, {'kind': 'gift'}, 'line 2: .*gift'),
    (2, {'count': 0}, 'line 2: .*count'),
    (2, {'event': {'kind': 'Magic'}}, 'line 2: .*Magic'),
    (4, {'total': 11}, 'line 4: .*from 0 to 11'),
    (5, {'total': 4}, 'line 5: .*from 4 to 4'),
    (5, {'label': 'other'}, 'line 5: .*other'),
  ],
)
def test_wrong_records_are_named(written, number, changes, message):
  written.write_bytes(rewritten(written, number))
  PrivacyLedger.open(written).close()
  written.write_bytes(rewritten(written, number, **changes))
  with pytest.raises(LedgerError, match=message):
    PrivacyLedger.open(written)


def test_other_files_are_refused(path):
  for data in (b'', b'hello', b'hello\n', b'{}\n', b'[]\n', b'\xff\xfe\n'):
    path.write_bytes(data)
    with pytest.raises(LedgerError):
      PrivacyLedger.open(path)


def test_every_torn_last_line_is_dropped_or_counted(path, caplog):
  """What a crash can leave: an old head, and part of a new line."""
  with PrivacyLedger(path) as ledger:
    ledger.charge(GAUSSIAN, label='first')
    before = path.read_bytes()
    ledger.charge(GAUSSIAN, label='second')
    after = path.read_bytes()
  line = after[len(before) :]
  for cut in range(1, len(line)):
    path.write_bytes(before + line[:cut])
    with PrivacyLedger.open(path, read_only=True) as ledger:
      seen = len(ledger.entries)
    assert path.read_bytes() == before + line[:cut]
    with PrivacyLedger.open(path) as ledger:
      whole = cut == len(line) - 1
      assert len(ledger.entries) == seen == (2 if whole else 1)
      assert ('counts' if whole else 'dropped') in ledger.notes[0]
      ledger.charge(GAUSSIAN, label='third')
    with PrivacyLedger.open(path) as ledger:
      assert not ledger.notes
      assert [x.label for x in ledger.entries][-1] == 'third'
  assert 'dropped' in caplog.text


def test_head_that_is_behind_is_caught_up(path):
  with PrivacyLedger(path) as ledger:
    head = path.read_bytes()[:85]
    ledger.charge(GAUSSIAN)
    ledger.charge(GAUSSIAN)
  good = path.read_bytes()
  path.write_bytes(head + good[85:])
  with PrivacyLedger.open(path) as ledger:
    assert len(ledger.entries) == 2
  assert path.read_bytes() == good


def test_full_disk_charges_nothing_and_keeps_the_file(written, monkeypatch):
  good = written.read_bytes()
  real = os.pwrite

  def short(descriptor, data, offset):
    if len(data) > 100:
      return real(descriptor, data[:50], offset)
    raise OSError(errno.ENOSPC, 'No space left on device')

  with PrivacyLedger.open(written) as ledger:
    monkeypatch.setattr(os, 'pwrite', short)
    with pytest.raises(LedgerError, match=r'No space.*Nothing was charged'):
      ledger.charge(GAUSSIAN, label='more')
    assert written.read_bytes() == good
    assert len(ledger.entries) == 2
    monkeypatch.undo()
    ledger.charge(GAUSSIAN, label='more')
  with PrivacyLedger.open(written) as ledger:
    assert len(ledger.entries) == 3


def test_disk_that_cannot_be_repaired_stops_everything(written, monkeypatch):
  def fail(*unused_args):
    raise OSError(errno.EIO, 'Input/output error')

  with PrivacyLedger.open(written) as ledger:
    monkeypatch.setattr(os, 'fsync', fail)
    monkeypatch.setattr(os, 'ftruncate', fail)
    with pytest.raises(LedgerError, match='Input/output'):
      ledger.charge(GAUSSIAN, label='more')
    monkeypatch.undo()
    with pytest.raises(LedgerError, match='failed before'):
      ledger.charge(GAUSSIAN, label='more')


def test_full_disk_at_the_start_leaves_nothing(path, monkeypatch):
  def fail(*unused_args):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'pwrite', fail)
  with pytest.raises(LedgerError, match='No space'):
    PrivacyLedger(path)
  assert not list(path.parent.iterdir())


def test_file_system_without_links(path, monkeypatch):
  def fail(*unused_args):
    raise OSError(errno.EPERM, 'Operation not permitted')

  monkeypatch.setattr(os, 'link', fail)
  with PrivacyLedger(path) as ledger:
    ledger.charge(GAUSSIAN)
  with pytest.raises(LedgerError, match='exists'):
    PrivacyLedger(path)
  with PrivacyLedger.open(path) as ledger:
    assert len(ledger.entries) == 1


@pytest.mark.parametrize(
  'end',
  [b'[' * 200_000, b'{"hash":"\\ud800"}\n{"kind":"seal"}\n', b'', b'\xff\n'],
)
def test_what_is_no_merged_ledger_stays(end):
  content = b'{"kind":"ledger"}\n' + end
  assert ledger_file.before_merge(content) == content
