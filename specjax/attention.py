"""The one place where attention kernels plug in."""

import jax
import jax.numpy as jnp

from specjax.sharding import alone, spec
from specjax.types import KV

SHORTEST = 128  # slots of the smallest static prefix that `attend` reads
COPIED = 4  # a CPU copies a long prefix: worth it for a quarter of the slots


def visible(pos: jax.Array, slots: int, window: int) -> jax.Array:
  """[B 1 1 T S]: slot s is seen from position p iff p - window < s <= p.

  A window of 0 means no window; it counts the query's own position.
  """
  slot = jnp.arange(slots)
  age = pos[:, None, None, :, None] - slot
  return (age >= 0) & (age < window) if window else age >= 0


def attend(
    q: jax.Array, kv: KV, pos: jax.Array, *, window=0, scale, cap=0.0, bias=None
):
  """Grouped-query attention of a window over the slots it may see.

  q [B T H D] at positions pos [B T], kv [B K S D] already holding the window
  -> [B T H D]. Reads a static prefix of the slots chosen by the longest row,
  so that a round costs by length, not by capacity. Slots that a query does
  not see may hold any keys and any finite values (`cache.sound`). `bias`,
  added to the scores, broadcasts to [B K T H/K S].
  """
  slots, sizes, prefix = kv.k.shape[2], [], SHORTEST
  factor = COPIED if alone("cpu") else 1
  # The first one always: without a switch a CPU copies the cache as it writes
  # (`tests/test_compile.py` looks at 256 slots).
  while prefix < slots and (not sizes or factor * prefix <= slots):
    sizes, prefix = [*sizes, prefix], 2 * prefix
  sizes.append(slots)
  run = lambda n: lambda q, kv, pos, bias: _attend(
      q, KV(kv.k[:, :, :n], kv.v[:, :, :n]), pos, window, scale, cap,
      None if bias is None else bias[..., :n],
  )
  # A window that fills its slots (training) has no shorter prefix, and the
  # gradient of a switch would keep every branch's residuals.
  if len(sizes) == 1 or q.shape[1] == slots:
    return run(slots)(q, kv, pos, bias)
  longest = jnp.max(pos) + 1
  index = sum((longest > n).astype(jnp.int32) for n in sizes[:-1])
  return jax.lax.switch(index, [run(n) for n in sizes], q, kv, pos, bias)


def _attend(q, kv, pos, window, scale, cap, bias):
  B, T, H, D = q.shape
  K, S = kv.k.shape[1:3]
  lay = lambda x, *shape: x.reshape(
      shape, out_sharding=spec("batch", "kv_heads", *[None] * (len(shape) - 2))
  )
  # [B K T*G D]: with the cache's own two batch axes first, and keys on the
  # left, neither keys nor values are copied; four times faster on a CPU.
  q = q.reshape(
      (B, T, K, H // K, D),
      out_sharding=spec("batch", None, "kv_heads", None, None),
  )
  q = lay(jnp.swapaxes(q, 1, 2), B, K, T * H // K, D)
  # Asked for, since a TPU would otherwise round float32 scores to bfloat16.
  exact = dict(preferred_element_type=jnp.float32, precision="highest")
  score = jnp.einsum("bksd,bknd->bksn", kv.k, q, **exact)
  score = lay(jnp.swapaxes(score, 2, 3), B, K, T, H // K, S) * scale
  if cap:
    score = cap * jnp.tanh(score / cap)
  if bias is not None:
    score = score + bias
  seen = jnp.swapaxes(visible(pos, S, window), 2, 3)
  score = jnp.where(seen, score, -1e30)
  weight = lay(jax.nn.softmax(score, -1), B, K, T * H // K, S)
  out = jnp.einsum("bkns,bksd->bknd", weight.astype(kv.v.dtype), kv.v, **exact)
  out = jnp.swapaxes(lay(out, B, K, T, H // K, D), 1, 2).astype(q.dtype)
  return out.reshape(
      (B, T, H, D), out_sharding=spec("batch", None, "heads", None)
  )
