"""One of the processes that `fit_workers_test.py` starts.

Usage: fit_worker.py FOLDER PHASE, of begin, kill, resume, rows and mirrored.
TF_CONFIG says which of the workers it is.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys
import time
import traceback

from tests.tabular import small_table
from tests.unproven import unproven
from tfdpflows.cli import cluster
from tfdpflows.tabular.schema import TableSchema

# Fits with a secret of their own: no seed, but the same for all.
SECRET = bytes(range(32))
UNITS = {
  'max_rows_per_unit': 2,
  'max_rows_epsilon': 0.5,
  'adaptive_marginals': 2,
  'seed': None,
  # The rows that it draws turn rounding into other bins of some of them.
  'matching': False,
}
# In the second of two epochs of four steps.
KILLED_AT = 7
# Seconds that one waits for the other to come to its end.
PATIENCE = 100.0


def settings(people, **more):
  return {**people.budget, **people.tiny, 'seed': 1, **more}


def secret(size):
  """What `os.urandom` is replaced by."""
  return SECRET[:size].ljust(size, b'.')


def of_people(schema):
  return dataclasses.replace(schema, privacy_unit='person')


def main(folder, phase):
  folder = pathlib.Path(folder)
  if phase == 'mirrored':
    _mirrored(folder)
    return
  workers = cluster.Cluster.of_environment(os.environ)
  team = workers.team()
  worker = Worker(folder, workers.number, team)
  # That replicas are proven is in tests/training.
  with small_table.short(), small_table.unexported(), unproven():
    getattr(worker, phase)()


class Worker:
  """What both workers do, and leave in a folder that they share."""

  def __init__(self, folder, number, team):
    self._folder, self._number, self._strategy = folder, number, team.strategy
    self._people = small_table.make()
    self._found = {}

  def begin(self):
    schema = TableSchema.from_json(self._folder / 'schema.json')
    self._fit('bad', schema, table='bad.csv')
    self._fit('large delta', schema, delta=0.01)
    more = {'epsilon': 7.0} if self._number == 1 else {}
    self._fit('other', schema, **more)
    self._fit('gan', schema, model='dpgan')
    self._same_secret()
    self._fit_people('people')
    _stop_before_training()
    self._fit_people('stopped')
    self._write('begin')
    self._stay('begin')

  def kill(self):
    self._same_secret()
    if self._number == 1:
      _kill_in_training()
    self._fit_people('killed')
    self._write('killed')

  def resume(self):
    self._fit_people('killed', resume=True)
    self._write('resume')

  def _same_secret(self):
    if self._number == 0:
      os.urandom = secret

  def _fit_people(self, name, **more):
    schema = TableSchema.from_json(self._folder / 'schema.json')
    self._fit(name, of_people(schema), table='people.csv', **UNITS, **more)

  def rows(self):
    self._fit('whole', TableSchema.from_json(self._folder / 'schema.json'))
    self._write('rows')

  def _fit(self, name, schema, table='rows.csv', resume=False, **more):
    """Fits; keeps what was refused, or what `fit_to_directory` returned."""
    from tfdpflows.tabular import workers
    from tfdpflows.tabular.synthesizer import fit_to_directory

    try:
      found = fit_to_directory(
        str(self._folder / table),
        schema,
        self._folder / name,
        team=workers.Team(self._strategy),
        progress=False,
        resume=resume,
        **settings(self._people, **more),
      )
    except Exception as error:
      self._found[name] = f'{type(error).__name__}: {error}'
      traceback.print_exc()
    else:
      self._found[name] = type(found).__name__

  def _write(self, phase):
    self._path(self._number, phase).write_text(json.dumps(self._found))

  def _path(self, number, phase):
    return self._folder / f'{number} {phase}.json'

  def _stay(self, phase):
    """Waits until the other worker has written, too.

    One that ends takes the connection away from the other, which may be behind
    on a busy machine: its last fit would end by that, not by what is tested.
    """
    end = time.monotonic() + PATIENCE
    while not self._path(1 - self._number, phase).exists():
      if time.monotonic() > end:
        raise TimeoutError('The other worker has not written what it found.')
      time.sleep(0.05)


def _stop_before_training():
  from tfdpflows.tabular.models import dp_sgd

  def stop(*unused_args, **unused_kwargs):
    raise InterruptedError('No training.')

  dp_sgd.train = stop


def _kill_in_training():
  from tfdpflows.sampling import PoissonSampler

  batches, draw = [], PoissonSampler.draw

  def killed(self, *args):
    batches.append(1)
    if len(batches) == KILLED_AT:
      os.kill(os.getpid(), signal.SIGKILL)
    return draw(self, *args)

  PoissonSampler.draw = killed


def _mirrored(folder):
  """A fit inside of the scope of two devices of one process."""
  import tensorflow as tf

  from tfdpflows.tabular.synthesizer import TabularSynthesizer

  tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices('CPU')[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
  )
  people = small_table.make()
  synthesizer = TabularSynthesizer(people.schema, **settings(people))
  with tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1']).scope():
    synthesizer.fit(people.table, progress=False)
  synthesizer.save(folder / 'mirrored')


if __name__ == '__main__':
  main(*sys.argv[1:])
