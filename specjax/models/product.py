"""Products with weights in [out, in]: the one place that suits a backend."""

import jax
import jax.numpy as jnp

from specjax.sharding import alone, laid, spec

FEW = 16  # rows; more are no faster with the weight on the left
FEW_WIDENED = 8  # rows of bfloat16; more are no faster as sums


def product(x: jax.Array, weight: jax.Array, out: str | None) -> jax.Array:
  """x [B T I] times weight [O I] -> float32 [B T O], laid out by O's name.

  On a CPU few rows cost what reading the weight costs, if they are written
  so that both cores read it once, in its own dtype (`tests/test_compile.py`).
  """
  B, T, _ = x.shape
  if not alone("cpu"):
    return _plain(x, weight, out)
  if x.dtype == jnp.bfloat16 and B * T <= FEW_WIDENED:
    return _read(x, weight, out)
  if x.dtype == jnp.float32 and 1 < B * T <= FEW:
    return _few(x, weight, out)
  return _plain(x, weight, out)


def unlifted(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Both unchanged; but a loop whose x varies makes nothing of weight alone.

  A CPU widens bfloat16 before most things, and a loop would do so once for
  all its weights, hold them twice more, and read those in every round.
  """
  return jax.lax.optimization_barrier((x, weight))


def _read(x, weight, out):
  B, T, I = x.shape
  # Not as a product, which would write out the weight as float32 first.
  x, weight = laid(x, None, None, None), laid(weight, None, None)
  x, weight = (a.astype(jnp.float32) for a in unlifted(x, weight))
  rows = x.reshape(B * T, I)
  if B * T == 1:
    y = jnp.sum(weight * rows[0], -1)
  else:
    y = jnp.sum(weight[:, None] * rows, -1).T
  return laid(y.reshape(B, T, -1), "batch", None, out)


def _few(x, weight, out):
  B, T, I = x.shape
  O = weight.shape[0]
  # All on one device: nothing moves, but a mesh wants to know the layout.
  x, weight = laid(x, None, None, None), laid(weight, None, None)
  # Weight times rows, in fours. As a batch of halves, or with a row to spare:
  # XLA turns the product of whole fours back, at two to three times the cost.
  halves, spare = 2 - O % 2, -(B * T) % 4 or 4 * (O % 2)
  rows = jnp.pad(x.reshape(B * T, I), ((0, spare), (0, 0)))
  rows = jnp.broadcast_to(rows, (halves, *rows.shape))
  y = jnp.einsum("hoi,hti->hot", weight.reshape(halves, -1, I), rows)
  y = jnp.moveaxis(y, 2, 0)[: B * T].reshape(B, T, O)
  return laid(y, "batch", None, out)


def _plain(x, weight, out):
  # float32 accumulation; on the CPU also ten times faster than bf16 -> bf16.
  return jnp.einsum(
      "bti,oi->bto",
      x,
      weight,
      preferred_element_type=jnp.float32,
      out_sharding=spec("batch", None, out),
  )
