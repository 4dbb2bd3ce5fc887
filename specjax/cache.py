"""Key-value memory: slot index = position, written in place, never rolled back.

Rejected slots lie above a row's `length` and are overwritten before anyone
can see them, so there is no rollback operation.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from specjax.sharding import alone, spec
from specjax.types import KV

# Told, since a TPU would turn a long loop's caches slot-major, and back.
ORDER = Layout((0, 1, 2, 3))


def empty(batch: int, heads: int, capacity: int, dim: int, dtype) -> KV:
  """One layer's cache of zeros; two arrays, so that it can be donated."""
  # A CPU rewrites a whole bfloat16 cache, widened, to write one slot.
  dtype = "float32" if alone("cpu") else dtype
  shape = batch, heads, capacity, dim
  layout = spec("batch", "kv_heads", None, None, shape=shape)
  zeros = lambda: jnp.zeros(shape, dtype, out_sharding=layout)
  return KV(zeros(), zeros())


def sound(new: KV) -> KV:
  """Values that are not finite become zeros under keys of NaN.

  Weight zero times NaN is NaN, so a bad value would reach even those who do
  not see its slot; a bad key's score is masked for them.
  """
  ok = jnp.all(jnp.isfinite(new.v), -1, keepdims=True)
  return KV(jnp.where(ok, new.k, jnp.nan), jnp.where(ok, new.v, 0))


def write(kv: KV, new: KV, start: jax.Array) -> KV:
  """Puts a window of keys and values [H T D] at slots start..start+T.

  `dynamic_update_slice` clamps a start that would not fit and so destroys
  good slots: whoever allocates must leave room for the widest window
  (`states.bucket`).
  """
  put = jax.vmap(lambda c, n, at: jax.lax.dynamic_update_slice(
      c, n.astype(c.dtype), (0, at, 0)
  ))
  return jax.tree.map(
      lambda c, n: put(with_layout_constraint(c, ORDER), n, start), kv, new
  )
