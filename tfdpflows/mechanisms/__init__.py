"""One-shot private releases: histograms, marginals, bounds, quantiles, means.

All of them take

- `ledger`: the `PrivacyLedger` that is charged before anything is computed from
  the table, except a fingerprint that tells nothing without the secret;
- `randomness`: a `tfdpflows.randomness.Randomness`, of which the stream `label`
  is used, or `None` for one that nobody knows. Keep a secret to one ledger: of
  the same table another one has the same numbers again, and of a changed table
  others, so that both releases together tell whether it changed;
- `label`: the label of the charge, and no name of the library's own streams,
  such as 'noise' or 'release';
- `resume`: whether a charge of that label which is already in the ledger
  covers this call: a repeated one, with the same table, parameters and
  `randomness`, which releases the same numbers again;

those that count rows also

- `units`: the `sampling.Units` that are protected in place of rows. A row then
  counts by its weight, and a unit, with all its rows, as much as a row does
  without; the ledger must be one for these units (`privacy_unit`);

and raise

- `ValueError` for arguments out of range, if `randomness` was used under this
  label before, to resume without `randomness`, for a ledger of another privacy
  unit, or for a neighbouring relation that nothing is proven for;
- `BudgetExceededError` if the ledger refuses the charge: nothing is released;
- `LedgerError` to resume with another table, parameter or secret, or if the
  same noise was charged before.

Noise is drawn in floating point, and noisy sums are rounded to a public grid:
see `tfdpflows.noise_grid`.
"""

from tfdpflows.mechanisms.bounds import private_bounds
from tfdpflows.mechanisms.exact_counts import from_exact_counts
from tfdpflows.mechanisms.histograms import Histogram, noisy_histograms
from tfdpflows.mechanisms.marginals import (
  Marginal,
  noisy_marginals,
  select_marginal,
)
from tfdpflows.mechanisms.max_rows import private_max_rows
from tfdpflows.mechanisms.mean import noisy_mean
from tfdpflows.mechanisms.normalization import (
  Normalization,
  private_normalization,
)
from tfdpflows.mechanisms.quantile import private_quantile
from tfdpflows.mechanisms.total_variation import noisy_total_variation

__all__ = [
  'Histogram',
  'Marginal',
  'Normalization',
  'from_exact_counts',
  'noisy_histograms',
  'noisy_marginals',
  'noisy_mean',
  'noisy_total_variation',
  'private_bounds',
  'private_max_rows',
  'private_normalization',
  'private_quantile',
  'select_marginal',
]
