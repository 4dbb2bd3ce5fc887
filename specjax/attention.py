"""The one place where attention kernels plug in."""

import jax
import jax.numpy as jnp

from specjax.sharding import spec
from specjax.types import KV

SHORTEST = 128  # slots of the smallest static prefix that `attend` reads


def visible(pos: jax.Array, slots: int, window: int) -> jax.Array:
  """[B 1 1 T S]: slot s is seen from position p iff p - window < s <= p.

  A window of 0 means no window; it counts the query's own position.
  """
  slot = jnp.arange(slots)
  age = pos[:, None, None, :, None] - slot
  return (age >= 0) & (age < window) if window else age >= 0


def attend(q: jax.Array, kv: KV, pos: jax.Array, *, window=0, scale, cap=0.0):
  """Grouped-query attention of a window over the slots it may see.

  q [B T H D] at positions pos [B T], kv [B K S D] already holding the window
  -> [B T H D]. Reads a static power-of-two prefix of the slots chosen by the
  longest row, so that a round costs by length, not by capacity.
  """
  slots, sizes, prefix = kv.k.shape[2], [], SHORTEST
  while prefix < slots:
    sizes, prefix = [*sizes, prefix], 2 * prefix
  sizes.append(slots)
  run = lambda n: lambda q, kv, pos: _attend(
      q, KV(kv.k[:, :, :n], kv.v[:, :, :n]), pos, window, scale, cap
  )
  # A window that fills its slots (training) has no shorter prefix, and the
  # gradient of a switch would keep every branch's residuals.
  if len(sizes) == 1 or q.shape[1] == slots:
    return run(slots)(q, kv, pos)
  longest = jnp.max(pos) + 1
  index = sum((longest > n).astype(jnp.int32) for n in sizes[:-1])
  return jax.lax.switch(index, [run(n) for n in sizes], q, kv, pos)


def _attend(q, kv, pos, window, scale, cap):
  B, T, H, D = q.shape
  K, S = kv.k.shape[1:3]
  q = q.reshape(
      (B, T, K, H // K, D),
      out_sharding=spec("batch", None, "kv_heads", None, None),
  )
  # Asked for, since a TPU would otherwise round float32 scores to bfloat16.
  score = jnp.einsum(
      "btkgd,bksd->bkgts",
      q,
      kv.k,
      preferred_element_type=jnp.float32,
      precision="highest",
  )
  score = score * scale
  if cap:
    score = cap * jnp.tanh(score / cap)
  # Weight zero times NaN is NaN, so a bad value may count only for who sees
  # it: not for rows that reuse its slot, nor for drafts before it.
  sound = jnp.all(jnp.isfinite(kv.v), -1)  # [B K S]
  score = jnp.where(sound[:, :, None, None], score, jnp.nan)
  score = jnp.where(visible(pos, S, window), score, -1e30)
  weight = jax.nn.softmax(score, -1).astype(kv.v.dtype)
  v = jnp.where(sound[..., None], kv.v, 0)
  out = jnp.einsum(
      "bkgts,bksd->btkgd",
      weight,
      v,
      preferred_element_type=jnp.float32,
      precision="highest",
  )
  return out.astype(q.dtype).reshape(
      (B, T, H, D), out_sharding=spec("batch", None, "heads", None)
  )
