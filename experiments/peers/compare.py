r"""Runs the synthesizers of other libraries on a table, scored as ours.

    python -m experiments.peers.compare --dataset=adult --epsilon=1 \
      --methods=mst --methods=privbayes --output_dir=experiments/results

Writes `tabular_DATASET_METHOD.json` for each method, as
`experiments.tabular_synthesis` writes them. `make peers-tabular` makes the
environments that they run in. CTGAN is not private, and takes --epsilon=1e6
alone.
"""

from __future__ import annotations

import os

from absl import app, flags

from experiments import datasets, flag_values, tabular_synthesis
from experiments.peers import ctgan_synthesizer, dpmm_synthesizer, peer
from experiments.run_record import command_line

METHODS = (*dpmm_synthesizer.METHODS, *ctgan_synthesizer.METHODS)


def run(dataset, methods, output_dir, **arguments):
  """Runs methods one after the other.

  Args:
    dataset: one of `datasets.DATASETS`.
    methods: some of `METHODS`.
    output_dir: folder of the JSON files; runs that are there are kept.
    **arguments: of `tabular_synthesis.run`.

  Returns:
    `(summaries, skipped)`: dicts by method, of its summary and of the reason
    why it did not run.
  """
  summaries, skipped = {}, {}
  for method in methods:
    path = os.path.join(output_dir, f'tabular_{dataset}_{method}.json')
    try:
      found = tabular_synthesis.run(
        dataset, method=method, output=path, resume=True, **arguments
      )
    except (
      peer.PeerUnavailableError,
      peer.PeerFailedError,
    ) as error:
      skipped[method] = str(error)
      continue
    summaries[method] = found['summary']
  return summaries, skipped


def main(argv):
  """Runs what the flags ask for."""
  options = flag_values.read(argv)
  os.makedirs(options.output_dir, exist_ok=True)
  summaries, skipped = run(
    options.dataset,
    options.methods,
    options.output_dir,
    epsilons=[float(epsilon) for epsilon in options.epsilon],
    seeds=[int(seed) for seed in options.seeds],
    delta=options.delta,
    hyperparameters={'limit_s': options.limit_s} if options.limit_s else None,
    smoke=options.smoke,
    command=command_line(),
  )
  for method, summary in summaries.items():
    print(f'{method}: {summary}')
  for method, reason in skipped.items():
    print(f'{method}: skipped. {reason}')


def _define_flags():
  flags.DEFINE_enum('dataset', 'randhie', datasets.DATASETS, 'Data set.')
  flags.DEFINE_multi_enum(
    'methods',
    ['mst'],
    METHODS,
    'What to run; may be given several times.',
  )
  flags.DEFINE_list('epsilon', ['1'], 'Privacy budgets, comma-separated.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds, comma-separated.')
  flags.DEFINE_float('delta', 1e-5, 'Delta of the budgets.')
  flags.DEFINE_float('limit_s', None, 'Seconds after which a fit is given up.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')
  flags.DEFINE_string('output_dir', None, 'Folder to write to.', required=True)


if __name__ == '__main__':
  _define_flags()
  app.run(main)
