"""What one of a bijector's value and log-determinant leaves to the other."""


class Memo:
  """Keeps what one of `_inverse` and its log-determinant leaves to the other.

  TFP asks for the two separately, with the same tensor. Without this the
  network would run twice per layer and each of its parameters would count as
  used twice. An entry serves once, so that it cannot outlive the tape it was
  computed under.
  """

  def __init__(self):
    self._entry = None

  def recall(self, y, compute, part):
    entry, self._entry = self._entry, None
    if entry is not None and entry[0] is y and entry[1] != part:
      return entry[2][part]
    result = compute(y)
    self._entry = (y, part, result)
    return result[part]
