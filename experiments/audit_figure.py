r"""Draws attacks on mechanisms beside their claims, for the page on audits.

python -m experiments.audit_figure --output=docs/auditing.png
"""

from __future__ import annotations

import dp_accounting
from absl import app, flags
from matplotlib.figure import Figure

from experiments import flag_values
from tfdpflows import accounting, audit

DELTA = 1e-5
_GAUSSIAN = dp_accounting.GaussianDpEvent(1.0)
CASES = {
  'Gaussian, noise multiplier 1': _GAUSSIAN,
  'Laplace, epsilon 1': dp_accounting.LaplaceDpEvent(1.0),
  'Exponential mechanism, epsilon 2': accounting.ExponentialMechanismDpEvent(
    2.0
  ),
  '1,000 steps of DP-SGD': dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.02, _GAUSSIAN), 1000
  ),
}


def draw(num_runs=20_000, seed=0, cases=CASES):
  """Returns a figure with the ROC of the attack on each mechanism.

  Args:
    num_runs: on each table.
    seed: of the runs.
    cases: dict of `DpEvent`s by title.

  Returns:
    A `matplotlib.figure.Figure`.
  """
  figure = Figure(figsize=(3 * len(cases), 3.7), layout='constrained')
  panels = figure.subplots(1, len(cases), squeeze=False)[0]
  for panel, (title, event) in zip(panels, cases.items()):
    ledger = accounting.PrivacyLedger()
    ledger.charge(event, label=title)
    found = audit.audit_ledger(
      ledger, delta=DELTA, num_runs=num_runs, seed=seed
    )
    panel.plot(*found.claimed_roc.T, color='#d55e00', label='most by the claim')
    panel.plot(*found.roc.T, '--', color='#0072b2', label='attack')
    panel.plot([0, 1], [0, 1], ':', color='#888888', linewidth=1)
    panel.set_title(
      f'{title}\n{found.epsilon_lower:.2f} <= epsilon <= '
      f'{found.epsilon_claimed:.2f}',
      fontsize=8,
    )
    panel.set_xlabel('false positives')
  panels[0].set_ylabel('true positives')
  panels[0].legend(fontsize=7, frameon=False, loc='lower right')
  return figure


def main(argv):
  """Writes the figure."""
  options = flag_values.read(argv)
  draw(options.num_runs).savefig(options.output, dpi=110)


if __name__ == '__main__':
  flags.DEFINE_string('output', None, 'PNG file to write.', required=True)
  flags.DEFINE_integer('num_runs', 20_000, 'Runs on each table.')
  app.run(main)
