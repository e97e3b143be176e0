"""The pass over a table as an Apache Beam pipeline, file by file.

It validates and encodes as `code_store.read` does, on as many machines as
Beam's runner has. It releases nothing, and nothing is charged for it: noise is
added afterwards, once, by the process that has the ledger.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import json
import os
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from tfdpflows import atomic
from tfdpflows.tabular import code_store
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.sources import Source

_CODES, _IDS, _FACTS = '.codes', '.ids', '.json'
# Bytes that are read at one time.
_BLOCK = 1 << 24


def encode(
  data: Any,
  schema: TableSchema,
  folder: str | os.PathLike,
  *,
  out_of_range: str = 'error',
  options: Sequence[str] = (),
) -> Source:
  """Validates and encodes the files of a table by a Beam pipeline.

  Each file becomes a shard of codes in a folder that is private to the user.
  The rows of all shards, in the order of the files, are to the last bit those
  that a fit reads from the files itself. What a pipeline that failed has
  written is gone on with; a shard of a file that has changed since is written
  again.

  Args:
    data: paths, patterns or folders, see `Source.of`. Driver and workers must
      all reach them, as the folder, under the same names: on a file system that
      they share.
    schema: `TableSchema` without marks.
    folder: where shards are written. Remove it after the fit: they are rows.
    out_of_range: see `TableSchema.validate`; that of the fit.
    options: of Beam, such as `['--runner=DataflowRunner', ...]` or
      `['--direct_running_mode=multi_processing', '--direct_num_workers=4']`. By
      default it runs in this process.

  Returns:
    The shards, as `shards` does, for `TabularSynthesizer.fit`.

  Raises:
    ImportError: without Apache Beam.
    ValueError: for what `TableSchema.validate` refuses, naming file, row and
      column: of the first of the files that have such a row. For a draft
      schema.
    OSError: if a file cannot be read, or a shard not be written.

  #### Example

      store = beam_encoding.encode('claims/*.parquet', schema, '/mnt/shards')
      TabularSynthesizer(schema, epsilon=1., delta=1e-9).fit(store)
  """
  beam, pipeline_options = _import_beam()
  if schema.is_draft:
    raise ValueError(
      'The schema is a draft, and a pipeline encodes by a public one. Replace '
      'the marks by public knowledge, or fit the files themselves '
      '(TabularSynthesizer.fit), which pays for what they mark.'
    )
  folder = os.path.abspath(folder)
  code_store.make_private(folder)
  parts = Source.of(data, schema.dialect).parts
  if None in [part.identity for part in parts]:
    raise ValueError(
      'The table is in no files, and a pipeline reads files: give their paths.'
    )
  function = _encoder(beam)(data, schema.to_dict(), out_of_range, folder)
  with beam.Pipeline(
    options=pipeline_options.PipelineOptions(list(options))
  ) as pipeline:
    _ = (
      pipeline
      | beam.Create(range(len(parts)))
      # Else one worker might have all files.
      | beam.Reshuffle()
      | 'Encode' >> beam.ParDo(function)
    )
  found = shards(folder, data, schema, out_of_range=out_of_range)
  logging.info('Rows: %d files encoded.', len(found.parts))
  return found


def shards(
  folder: str | os.PathLike,
  data: Any,
  schema: TableSchema,
  *,
  out_of_range: str = 'error',
) -> Source:
  """Returns the shards that `encode` wrote, of the same arguments.

  Raises:
    ValueError: naming the file, if a shard is missing, or of another schema or
      version of the file; or what `encode` found wrong with it.
  """
  folder = os.path.abspath(folder)
  facts = code_store.facts(schema, out_of_range)
  found = []
  for number, part in enumerate(Source.of(data, schema.dialect).parts):
    shard = Shard(folder, number, part.name, part.identity)
    shard.check(facts)
    found.append(shard)
  return Source(tuple(found))


class Shard:
  """The codes of a file, a `sources.Part` that is encoded already."""

  def __init__(self, folder: str, number: int, name: str, identity: list):
    self.name, self.identity = name, identity
    self._path = os.path.join(folder, f'{number:06d}')

  def _found(self, facts):
    """What was written beside it, `None` if not of this file and schema."""
    try:
      with open(self._path + _FACTS, 'rb') as file:
        found = json.loads(file.read())
    except (FileNotFoundError, ValueError):
      return None
    is_this = found['facts'] == facts and found['identity'] == self.identity
    return found if is_this else None

  def is_current(self, facts: list) -> bool:
    """Whether it is of this file and schema, and complete."""
    found = self._found(facts)
    if found is None or 'error' in found:
      return False
    return self._is_whole(found, facts)

  def _is_whole(self, found, facts):
    return found['sizes'] == [
      os.path.getsize(path) if os.path.exists(path) else None
      for path in self._paths(facts)
    ]

  def check(self, facts: list) -> dict[str, Any]:
    """Returns what was written beside it, or refuses what is not current.

    Raises:
      ValueError: naming the file.
    """
    found = self._found(facts)
    if found is None:
      raise ValueError(
        f'{self.name} was not encoded with this schema and out_of_range, or '
        f'has changed since: run the pipeline again. Its shard is {self._path}.'
      )
    if 'error' in found:
      raise ValueError(found['error'])
    return found

  def _paths(self, facts):
    """The files of codes and of units.

    Their names tell of what they are: a pipeline of another schema, that was
    stopped or that still runs somewhere, writes none of them.
    """
    key = json.dumps([facts, self.identity]).encode()
    key = hashlib.sha256(key).hexdigest()[:16]
    return [f'{self._path}-{key}{end}' for end in (_CODES, _IDS)]

  def _remove_others(self, paths):
    for path in glob.glob(f'{glob.escape(self._path)}-*'):
      if path not in paths:
        with contextlib.suppress(FileNotFoundError):
          os.unlink(path)

  def write(self, part: Any, encode: code_store.ChunkEncoder) -> None:
    """Encodes the file; what is wrong with it is written in its place."""
    facts = code_store.facts(encode.schema, encode.out_of_range)
    found = {'facts': facts, 'identity': self.identity, 'part': self.name}
    paths = self._paths(facts)
    self._remove_others(paths)
    try:
      with _file_aside(paths[0]) as codes, _file_aside(paths[1]) as ids:
        for records, of_rows in code_store.records_of(part, encode):
          codes.write(records.tobytes())
          ids.write(of_rows.tobytes())
    except ValueError as error:
      found['error'] = str(error)
    else:
      sizes = [os.path.getsize(path) for path in paths]
      found.update(rows=encode.rows, present=encode.present, sizes=sizes)
    content = json.dumps(found).encode()
    atomic.write_file(self._path + _FACTS, content, private=True)

  def records(
    self, encode: code_store.ChunkEncoder
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields what `write` wrote, and adds to what `encode` has counted.

    Raises:
      ValueError: if a file has not the size that it was written with, or was
        replaced since `check`.
    """
    facts = code_store.facts(encode.schema, encode.out_of_range)
    found, paths = self.check(facts), self._paths(facts)
    if not self._is_whole(found, facts):
      raise ValueError(
        f'The shard {self._path} is damaged: run the pipeline again.'
      )
    most = max(_BLOCK // encode.dtype.itemsize, 1)
    with open(paths[0], 'rb') as codes, open(paths[1], 'rb') as ids:
      for start in range(0, found['rows'], most):
        count = min(most, found['rows'] - start)
        yield (
          _records(codes, encode.dtype, count),
          _records(ids, encode.id_dtype, count),
        )
    encode.rows += found['rows']
    encode.present = [a or b for a, b in zip(encode.present, found['present'])]


def _records(file, dtype, count):
  if not dtype.itemsize:
    return np.empty(count, dtype)
  return np.frombuffer(file.read(count * dtype.itemsize), dtype)


@contextlib.contextmanager
def _file_aside(path):
  with (
    atomic.file_aside(path, private=True) as aside,
    open(aside, 'wb') as file,
  ):
    yield file


def _encoder(beam: types.ModuleType) -> type:
  """Returns the `DoFn`, a class that needs Beam to be defined."""

  class Encode(beam.DoFn):
    """Encodes the file with a number; there is no output."""

    def __init__(self, data, schema, out_of_range, folder):
      self._arguments = data, schema, out_of_range, folder

    def process(self, number):
      data, schema, out_of_range, folder = self._arguments
      schema = TableSchema.from_dict(schema)
      part = Source.of(data, schema.dialect).parts[number]
      shard = Shard(folder, number, part.name, part.identity)
      if not shard.is_current(code_store.facts(schema, out_of_range)):
        shard.write(part, code_store.ChunkEncoder(schema, out_of_range))

  return Encode


def _import_beam():
  try:
    return (
      importlib.import_module('apache_beam'),
      importlib.import_module('apache_beam.options.pipeline_options'),
    )
  except ImportError as error:
    raise ImportError(
      'This needs Apache Beam: pip install tfdpflows[beam].'
    ) from error
