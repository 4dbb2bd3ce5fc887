"""Batches as a pure function of (seed, step): a resumed run sees the same."""

import numpy as np


def batch(
    array: np.ndarray, step: int, seed: int, batch: int, length: int
) -> np.ndarray:
  """The `step`-th batch, int32 [B T+1], of a token array read without end.

  Each pass cuts a flat array into windows of T at a fresh offset and takes
  them in a fresh order, so a pass shows no token twice; an array [N T+1] is
  windows already. Raises ValueError when the array is shorter than two
  windows or its windows are not T+1 wide.
  """
  cut = array.ndim == 2
  if cut and array.shape[1] != length + 1:
    raise ValueError(
        f"batch: the windows hold {array.shape[1]} tokens, not length + 1 ="
        f" {length + 1}; cut them anew or change the length."
    )
  # One less in a flat array: room for the offset.
  windows = len(array) if cut else len(array) // length - 1
  if windows < 1:
    raise ValueError(
        f"batch: {len(array)} tokens are too few for windows of {length};"
        f" give at least {2 * length} tokens or a smaller length."
    )
  place = step * batch + np.arange(batch)
  out = np.empty((batch, length + 1), np.int32)
  for epoch in np.unique(place // windows):
    rng = np.random.default_rng((seed, int(epoch)))
    offset, order = rng.integers(length), rng.permutation(windows)
    rows = np.flatnonzero(place // windows == epoch)
    order = order[place[rows] % windows]
    if cut:
      out[rows] = array[order]
    else:
      begin = offset + length * order
      out[rows] = array[begin[:, None] + np.arange(length + 1)]
  return out


def fixed(
    array: np.ndarray, count: int, batch: int, length: int
) -> list[np.ndarray]:
  """Up to `count` batches [B T+1] evenly spread over an array, to evaluate on.

  Raises ValueError when the array does not fill one batch.
  """
  windows = (len(array) - 1) // length
  count = min(count, windows // batch)
  if count < 1:
    raise ValueError(
        f"fixed: {len(array)} tokens do not fill one batch of {batch} x"
        f" {length} + 1; give more tokens or a smaller batch."
    )
  begin = length * (np.arange(count * batch) * windows // (count * batch))
  rows = array[begin[:, None] + np.arange(length + 1)].astype(np.int32)
  return list(rows.reshape(count, batch, length + 1))
