"""Several processes, one program: each has some of the mesh's devices.

All of them run the same host code on the same input, so whatever steers that
code must be alike in all: arrays by `fetch`, what one process alone knows by
`agreed`, what any may be told by `anywhere`. One of them `leads`, and writes;
what it finds there the others have by `led`.
With one process there is nothing to agree on.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def leads() -> bool:
  """Whether this process is the one that writes."""
  return jax.process_index() == 0


def fetch(tree):
  """Arrays of the mesh on the host, whole, in every process."""
  return jax.tree.map(_fetched, tree)


def _fetched(x):
  if not isinstance(x, jax.Array):
    return x
  if x.is_fully_addressable or x.is_fully_replicated:
    return np.asarray(x)
  return multihost_utils.process_allgather(x, tiled=True)


def agreed(value):
  """A tree of numbers, or arrays, as the leading process has them."""
  if jax.process_count() == 1:
    return value
  return multihost_utils.broadcast_one_to_all(value)


def told(data: bytes) -> bytes:
  """The leading process's bytes, however many."""
  length = int(agreed(np.int32(len(data))))
  if jax.process_count() == 1:
    return data
  mine = np.frombuffer(data, np.uint8)
  mine = mine if leads() else np.zeros(length, np.uint8)
  return np.asarray(agreed(mine)).tobytes()


def led(what, work: Callable[[], Any]) -> Any:
  """What `work()` gives in the leading process, as JSON has it, in all.

  `what` it opens is named in the ValueError of the others where it raises.
  """
  found = None
  try:
    if leads():
      found = work()
  finally:  # the others wait for a word, whatever went wrong
    data = told(json.dumps(found).encode())
  found = json.loads(data)
  if found is None:
    raise ValueError(f"{what}: refused; the leading process says why.")
  return found


def anywhere(asked: bool) -> bool:
  """Whether any process says yes."""
  if jax.process_count() == 1:
    return asked
  return bool(multihost_utils.process_allgather(np.array(asked)).any())
