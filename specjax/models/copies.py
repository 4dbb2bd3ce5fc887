"""KV heads repeated so that every chip of a wide mesh holds one.

A query head then finds its own copy beside it: no gather, and a fraction of
the memory of repeating all heads on all chips. Files hold each head once.
"""

import jax.numpy as jnp
import numpy as np

KEPT = ("k", "v", "k_bias", "v_bias")  # what has a part for each KV head


def times(c, name: str) -> int:
  """How often each head of the parameter `name` of a model is there."""
  mine = name.rpartition(".")[2] in KEPT
  return getattr(c, "kv_copies", 1) if mine else 1


def shapes(c, arrays: dict) -> dict[str, tuple[int, ...]]:
  """The shapes of parameters with each head once, by name."""
  once = lambda n, x: (x.shape[0] // times(c, n), *x.shape[1:])
  return {n: once(n, x) if x.ndim else () for n, x in arrays.items()}


def single(c, name: str, x):
  """A parameter with each head once, of a model that repeats them."""
  n = times(c, name)
  if n == 1:
    return x
  heads = x.reshape(-1, n, c.dim, *x.shape[1:])
  return heads[:, 0].reshape(-1, *x.shape[1:])


def spread(c, name: str, x):
  """The inverse of `single`."""
  n = times(c, name)
  if n == 1:
    return x
  heads = x.reshape(-1, 1, c.dim, *x.shape[1:])
  lib = np if isinstance(x, np.ndarray) else jnp
  whole = lib.broadcast_to(heads, (len(heads), n, *heads.shape[2:]))
  return whole.reshape(-1, *x.shape[1:])
