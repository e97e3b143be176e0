"""Histograms of oriented gradients of small grey images, a public function.

Dalal and Triggs 2005, "Histograms of oriented gradients for human detection",
with signed orientations, after the slant of a digit was taken out. Every image
is mapped by itself, with nothing that is learned.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

_EPSILON = 1e-2
# Images that are mapped at one time.
_BLOCK = 2000


def hog(images, *, cell=4, bins=8, blur=0.5, slant=True):
  """Returns features of unit norm.

  Args:
    images: uint8 `[n, height, width]`.
    cell: width of the cells that a histogram is made of, in pixels.
    bins: orientations of a histogram.
    blur: standard deviation in pixels of the Gaussian filter before gradients.
    slant: whether each image is sheared until its second moments are upright.

  Returns:
    float32 `[n, d]`.

  #### Example

  >>> import numpy as np
  >>> image = np.zeros([1, 28, 28], np.uint8)
  >>> image[0, 10:20] = 255
  >>> hog(image).shape
  (1, 392)
  """
  blocks = [
    _hog(
      images[start : start + _BLOCK] / np.float32(255), cell, bins, blur, slant
    )
    for start in range(0, len(images), _BLOCK)
  ]
  return np.concatenate(blocks)


def _hog(x, cell, bins, blur, slant):
  if slant:
    x = deslanted(x)
  x = ndimage.gaussian_filter1d(x, blur, axis=1)
  x = ndimage.gaussian_filter1d(x, blur, axis=2)
  dy, dx = np.gradient(x, axis=(1, 2))
  size = np.sqrt(dx * dx + dy * dy)
  place = np.arctan2(dy, dx) * (bins / (2 * np.pi)) % bins
  first = np.floor(place).astype(np.int32)
  share = place - first
  maps = np.zeros([*x.shape, bins], np.float32)
  for which, weight in ((first, 1 - share), (first + 1, share)):
    index = (which % bins)[..., None]
    old = np.take_along_axis(maps, index, 3)
    np.put_along_axis(maps, index, old + (size * weight)[..., None], 3)
  # Triangular weights, so that a stroke moves from cell to cell gradually.
  kernel = np.convolve(np.ones(cell), np.ones(cell)) / cell**2
  for axis in (1, 2):
    maps = ndimage.convolve1d(maps, kernel, axis=axis, mode='constant')
  start = cell // 2
  cells = maps[:, start::cell, start::cell]
  # Contrast of the neighbourhood.
  energy = np.sum(cells**2, axis=3)
  for axis in (1, 2):
    energy = ndimage.convolve1d(energy, [1, 1, 1], axis=axis, mode='constant')
  cells = cells / np.sqrt(energy + _EPSILON)[..., None]
  found = np.sqrt(cells).reshape(len(x), -1)
  norms = np.linalg.norm(found, axis=1, keepdims=True)
  return (found / np.maximum(norms, 1e-6)).astype(np.float32)


def deslanted(x):
  """Returns images whose moment of inertia is upright, about its centre.

  Args:
    x: float32 `[n, height, width]`.
  """
  n, height, width = x.shape
  rows, columns = np.mgrid[:height, :width]
  mass = x.sum((1, 2)) + 1e-6
  middle_row = (x * rows).sum((1, 2)) / mass
  middle_column = (x * columns).sum((1, 2)) / mass
  y = rows - middle_row[:, None, None]
  z = columns - middle_column[:, None, None]
  shear = (x * y * z).sum((1, 2)) / ((x * y * y).sum((1, 2)) + 1e-3)
  # Where each pixel comes from; linear between two columns and two rows.
  source_row = rows + (middle_row - (height - 1) / 2)[:, None, None]
  source = (
    columns
    + (middle_column - (width - 1) / 2)[:, None, None]
    + shear[:, None, None] * (rows - (height - 1) / 2)
  )
  index = np.broadcast_to(np.arange(n)[:, None, None], x.shape)
  coordinates = np.stack([index, source_row, source])
  return ndimage.map_coordinates(x, coordinates, order=1)
