"""Dispatch, help and errors of the command line."""

import errno
import logging
import os
import resource
import subprocess
import sys

import pytest

from tfdpflows import cli
from tfdpflows.cli import command, program, quiet
from tfdpflows.version import __version__

COMMANDS = list(program._COMMANDS)


def test_help_lists_every_command(capsys):
  for argv in ([], ['--help'], ['help']):
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
      assert f'\n  {name}' in out


@pytest.mark.parametrize('name', COMMANDS)
def test_help_of_a_command(name, capsys):
  assert cli.main([name, '--help']) == 0
  out = capsys.readouterr().out
  loaded = program._command(name)
  assert loaded.name == name
  assert f'  {name:<11}{loaded.summary}\n' in program._help()
  assert max(map(len, out.splitlines())) <= 80
  assert f'Usage: tfdpflows {name} --' in out
  assert f'Example:\n  tfdpflows {name} --' in out
  assert cli.main(['help', name]) == 0
  assert capsys.readouterr().out == out


@pytest.mark.parametrize('name', COMMANDS)
def test_the_example_has_flags_that_exist(name):
  loaded = program._command(name)
  words = loaded.example.replace('\\\n', ' ').split()
  assert words[:2] == ['tfdpflows', name]
  loaded.options().parse(words[2:])


def test_version(capsys):
  assert cli.main(['--version']) == 0
  assert capsys.readouterr().out == f'tfdpflows {__version__}\n'


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (
      ['acount'],
      "tfdpflows: There is no command 'acount'. Did you mean account",
    ),
    (['--epsilon=1'], "There is no command '--epsilon=1'"),
    (['sample'], 'Missing: --model_dir=FOLDER, --num_rows=N, --output=FILE.'),
    (['sample', '--num_row=3'], 'no flag --num_row. Did you mean --num_rows?'),
    (['sample', '--num_rows=0'], 'flag --num_rows=0'),
    (['sample', '--num_rows=x'], 'flag --num_rows=x'),
    (['sample', 'model'], "Unexpected argument 'model'"),
    (['sample', '--help_me'], 'See `tfdpflows sample --help`.'),
  ],
)
def test_bad_usage_is_one_line_and_code_2(argv, message, capsys):
  assert cli.main(argv) == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert message in err
  assert err.count('\n') == 1


def test_a_name_that_cannot_be_shown_ends_no_command(tmp_path):
  (tmp_path / 'a.csv').write_text('größe\n1\n2\n', encoding='utf-8')
  arguments = ['schema', '--input=a.csv', '--output=a.json']
  ended = subprocess.run(
    [sys.executable, '-m', 'tfdpflows.cli', *arguments],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    capture_output=True,
    check=True,
  )
  assert rb'gr\xf6\xdfe  integer, 1 to 2' in ended.stdout
  assert b'to a.json.' in ended.stdout


def _stand_in(monkeypatch, run):
  def define(options):
    options.section('Flags')

  stand_in = command.Command('sample', 's', 'd', 'e', define, run)
  monkeypatch.setitem(program._COMMANDS, 'sample', stand_in)


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (ValueError('two\n  lines'), 'two lines'),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'a.csv'), 'a.csv: No sp'),
    (FileExistsError('model exists'), 'model exists'),
    (ImportError('pip install tf-keras'), 'pip install tf-keras'),
    (MemoryError(), 'out of memory: ask for fewer rows at a time.'),
    (ValueError(), 'ValueError'),
    (
      ValueError('It is in use. Wait, or open it with read_only=True.'),
      'It is in use. Wait.\n',
    ),
  ],
)
def test_errors_of_the_user_have_no_traceback(
  error, message, monkeypatch, capsys
):
  def run(values):
    raise error

  _stand_in(monkeypatch, run)
  assert cli.main(['sample']) == 2
  err = capsys.readouterr().err
  assert err.startswith(f'tfdpflows sample: {message}')
  assert err.count('\n') == 1

  assert cli.main(['sample', '--debug']) == 2
  err = capsys.readouterr().err
  assert 'Traceback' in err
  assert f'tfdpflows sample: {message}' in err


def test_defects_keep_their_traceback(monkeypatch):
  def run(values):
    raise KeyError('a defect')

  _stand_in(monkeypatch, run)
  with pytest.raises(KeyError, match='a defect'):
    cli.main(['sample'])


def test_interrupt_says_what_it_was_told(monkeypatch, capsys):
  def run(values):
    raise KeyboardInterrupt('Go on with --resume.')

  _stand_in(monkeypatch, run)
  assert cli.main(['sample']) == 130
  err = capsys.readouterr().err
  assert err == '\ntfdpflows sample: interrupted. Go on with --resume.\n'


def test_what_an_import_writes_is_shown_if_it_fails(capfd):
  with quiet.importing():
    os.write(2, b'a driver is missing')
  assert capfd.readouterr().err == ''

  def fail():
    with quiet.importing():
      os.write(2, b'no such library')
      raise ImportError

  with pytest.raises(ImportError):
    fail()
  assert capfd.readouterr().err == 'no such library'

  def stop():
    with quiet.importing():
      os.write(2, b'a driver is missing')
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    stop()
  assert capfd.readouterr().err == ''


def test_boolean_flags_can_be_denied():
  options = program._command('fit').options()
  needed = [
    '--input=a',
    '--schema=b',
    '--epsilon=1',
    '--delta=1e-5',
    '--model_dir=m',
  ]
  assert options.parse(needed).progress
  assert not options.parse([*needed, '--noprogress']).progress


@pytest.mark.parametrize(
  'words',
  [
    '--help',
    'account --help',
    'account --sampling_probability=0.01'
    ' --noise_multiplier=1 --steps=1000 --delta=1e-5',
  ],
)
def test_starts_without_tensorflow(words):
  code = (
    'import sys\nfrom tfdpflows import cli\n'
    'code = cli.main(sys.argv[1:])\n'
    "heavy = {'tensorflow', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
    "sys.exit(code or (f'imported {heavy}' if heavy else 0))\n"
  )
  start = _seconds_of_children()
  result = subprocess.run(
    [sys.executable, '-c', code, *words.split()],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  )
  assert result.returncode == 0, result.stderr
  # TensorFlow alone takes several seconds.
  assert _seconds_of_children() - start < 10


@pytest.mark.parametrize('message', ['tfdpflows: %s rows', '%s rows'])
def test_a_message_begins_with_the_name_once(message):
  record = logging.LogRecord('absl', 30, 'plan.py', 1, message, (3,), None)
  assert quiet._Formatter().format(record) == 'tfdpflows: 3 rows'


def _seconds_of_children():
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime
