"""What a mixture takes as rows: refused by type, never by value."""

from __future__ import annotations

import sys

import numpy as np

from tfdpflows.mechanisms.rows import as_numbers


def as_matrix(x):
  """Returns rows as a float64 array, with NaN where a value is missing.

  Whether it raises depends on types and on the number of columns alone. A
  refusal that depended on a value, such as one text among numbers, would tell
  of that value, and nobody would have paid for it.

  Args:
    x: what NumPy makes an array `[n, d]` of and that has a dtype of bool,
      integers or floats, or a `DataFrame` of such columns.

  Raises:
    ValueError: for other dtypes or shapes, or a masked array.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.models.mixture_rows import as_matrix
  >>> as_matrix(pd.DataFrame({'a': pd.array([1, None], 'Int64')})).tolist()
  [[1.0], [nan]]
  """
  pandas = sys.modules.get('pandas')
  if pandas is not None and isinstance(x, pandas.DataFrame):
    for name, dtype in x.dtypes.items():
      if dtype.kind not in 'biuf':
        raise ValueError(
          f'Column {name!r} has dtype {dtype}; x must be a matrix of numbers. '
          "Encode the column first, or x.astype('float64')."
        )
    # What NumPy makes of nullable columns depends on whether there is a null.
    x = x.to_numpy(np.float64, na_value=np.nan)
  if not hasattr(x, 'dtype'):
    raise ValueError(
      f'x is a {type(x).__name__}, whose type depends on its values; give a '
      "DataFrame or an array of numbers: np.asarray(x, 'float64')."
    )
  with np.errstate(over='ignore'):  # of float128, whose rows are left out
    rows = as_numbers(x).astype(np.float64)
  if rows.ndim != 2 or not rows.shape[1]:
    raise ValueError(
      f'x has {rows.ndim} dimensions; it needs [num_rows, d], d > 0.'
    )
  return rows
