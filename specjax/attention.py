"""The one place where attention kernels plug in."""

import jax
import jax.numpy as jnp

from specjax.sharding import alone, spec
from specjax.types import KV

SHORTEST = 128  # slots of the smallest static prefix that `attend` reads
COPIED = 4  # a CPU copies a long prefix: worth it for a quarter of the slots
CUT = 2  # what a sliding window sees is copied, by any device
BLOCK = 256  # slots that a CPU reads at once
SEVERAL = 4  # queries of all rows that repay reading by blocks


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
  or the blocks that are seen, so that a round costs by length, not capacity;
  with a window that is short beside them, only what a row may see.
  Slots that a query does not see may hold any keys and any finite values
  (`cache.sound`). `bias`, added to the scores, broadcasts to [B K T H/K S].
  """
  slots, sizes, prefix = kv.k.shape[2], [], SHORTEST
  B, T = pos.shape
  factor = COPIED if alone("cpu") else 1
  near = -(-(window + T - 1) // SHORTEST) * SHORTEST
  if window and bias is None and max(CUT, factor) * near <= slots:
    begin = jnp.clip(jnp.min(pos, 1) + 1 - window, 0, slots - near)
    kv = jax.tree.map(lambda x: _cut(x, begin, near), kv)
    return _attend(q, kv, pos - begin[:, None], window, scale, cap, None)
  # Of 2,048 slots a thousand deep, for 30 layers of SmolLM2: 8 queries 12 ms
  # instead of 20, a batch of 8 takes 28 instead of 94; one query 2 ms more.
  if factor > 1 and bias is None and B * T >= SEVERAL and T < slots:
    if slots > factor * SHORTEST and slots % BLOCK == 0:
      return _by_blocks(q, kv, pos, window, scale, cap)
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


def _cut(x, begin, size):
  """[B K S D] -> the slots begin .. begin + size of each row."""
  one = lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, size, 1)
  return jax.vmap(one)(x, begin)


def _attend(q, kv, pos, window, scale, cap, bias):
  T = q.shape[1]
  q = _grouped(q, kv)
  score = _scores(q, kv.k, T, scale, cap)
  if bias is not None:
    score = score + bias
  seen = jnp.swapaxes(visible(pos, kv.k.shape[2], window), 2, 3)
  weight = jax.nn.softmax(jnp.where(seen, score, -1e30), -1)
  return _ungrouped(_weighed(weight, kv.v), T, q.dtype)


def _by_blocks(q, kv, pos, window, scale, cap):
  """Block after block of slots, but for those that no query sees; the sums so
  far shrink as a larger score comes (Milakov, Gimelshein, arXiv:1805.02867).
  """
  T, slots = pos.shape[1], kv.k.shape[2]
  q = _grouped(q, kv)
  last = jnp.max(pos)
  first = jnp.min(pos) - window + 1 if window else 0

  def add(carry, at):
    most, total, out = carry
    k, v = (jax.lax.dynamic_slice_in_dim(x, at, BLOCK, 2) for x in kv)
    seen = jnp.swapaxes(visible(pos - at, BLOCK, window), 2, 3)
    score = jnp.where(seen, _scores(q, k, T, scale, cap), -1e30)
    new = jnp.maximum(most, jnp.max(score, -1))
    # Not the score alone: a query that sees nothing yet has -1e30 throughout.
    weight = jnp.where(seen, jnp.exp(score - new[..., None]), 0.0)
    shrink = jnp.exp(most - new)
    total = total * shrink + jnp.sum(weight, -1)
    out = out * _flat(shrink)[..., None] + _weighed(weight, v)
    return new, total, out

  def step(carry, at):
    some = (at <= last) & (at + BLOCK > first)
    return jax.lax.cond(some, add, lambda carry, _: carry, carry, at), None

  zero = jnp.zeros_like(q, jnp.float32)
  none = _apart(zero[..., 0], T)
  carry = (none - 1e30, none, zero)
  # A fixed count, since a loop of any other has no gradient.
  carry, _ = jax.lax.scan(step, carry, jnp.arange(0, slots, BLOCK))
  _, total, out = carry
  return _ungrouped(out / _flat(total)[..., None], T, q.dtype)


# Asked for, since a TPU would otherwise round float32 scores to bfloat16.
EXACT = dict(preferred_element_type=jnp.float32, precision="highest")


def _lay(x, *shape):
  names = ("batch", "kv_heads", *[None] * (len(shape) - 2))
  return x.reshape(shape, out_sharding=spec(*names, shape=shape))


def _apart(x, T):
  """[B K T*G ...] -> [B K T G ...], queries and heads of a group apart."""
  B, K, N = x.shape[:3]
  return _lay(x, B, K, T, N // T, *x.shape[3:])


def _flat(x):
  B, K, T, G = x.shape[:4]
  return _lay(x, B, K, T * G, *x.shape[4:])


def _grouped(q, kv):
  """[B T H D] -> [B K T*G D]: with the cache's own two batch axes first, and
  keys on the left, nothing is copied; four times faster on a CPU."""
  B, T, H, D = q.shape
  K = kv.k.shape[1]
  apart = B, T, K, H // K, D
  names = "batch", None, "kv_heads", None, None
  q = q.reshape(apart, out_sharding=spec(*names, shape=apart))
  return _flat(jnp.swapaxes(q, 1, 2))


def _scores(q, k, T, scale, cap):
  """[B K T G S]"""
  score = jnp.einsum("bksd,bknd->bksn", k, q, **EXACT)
  score = _apart(jnp.swapaxes(score, 2, 3), T) * scale
  return cap * jnp.tanh(score / cap) if cap else score


def _weighed(weight, v):
  """Weights [B K T G S] -> sums of values [B K T*G D]."""
  weight = _flat(weight).astype(v.dtype)
  return jnp.einsum("bkns,bksd->bknd", weight, v, **EXACT)


def _ungrouped(out, T, dtype):
  B, K, N, D = out.shape
  out = jnp.swapaxes(_apart(out, T), 1, 2).astype(dtype)
  # By the KV heads, which decide for all whether they can be cut.
  layout = spec("batch", None, "kv_heads", None, shape=(B, T, K, D))
  return out.reshape((B, T, K * N // T, D), out_sharding=layout)
