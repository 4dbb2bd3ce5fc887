"""Products with weights in [out, in]: the one place that suits a backend."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int8

from specjax.sharding import alone, gathered, laid, spec

FEW = 16  # rows; more are no faster with the weight on the left
FEW_WIDENED = 8  # rows of bfloat16; more are no faster as sums


class Quantised(NamedTuple):
  """A weight as int8 values, each row of which is times a scale of its own."""

  values: Int8[Array, "*X O I"]
  scale: Float32[Array, "*X O"]


def dequantised(weight: jax.Array | Quantised) -> jax.Array:
  """What a weight stands for, float32; an array is itself."""
  if isinstance(weight, Quantised):
    return weight.values.astype(jnp.float32) * weight.scale[..., None]
  return weight


def product(
    x: jax.Array, weight: jax.Array | Quantised, out: str | None
) -> jax.Array:
  """x [B T I] times weight [O I] -> float32 [B T O], laid out by O's name.

  On a CPU a few bfloat16 rows are sums, which read the weight once as it is
  (`tests/models/test_product.py`); and a few float32 rows, filled up to
  fours, cost a third less as weight times rows.
  """
  if isinstance(weight, Quantised):
    return _scaled(x, weight, out)
  B, T, _ = x.shape
  weight = gathered(weight)
  if not alone("cpu"):
    return _plain(x, weight, out)
  if x.dtype == jnp.bfloat16 and B * T <= FEW_WIDENED:
    return _read(x, weight, out)
  if x.dtype == jnp.float32 and 1 < B * T <= FEW:
    return _few(x, weight, out)
  return _plain(x, weight, out)


def unlifted(x, weight):
  """Both unchanged; but a loop whose x varies makes nothing of weight alone.

  A CPU widens bfloat16 before most things, and int8 is always widened; a loop
  would do so once for all its weights, hold them twice more, and read those in
  every round.
  """
  return jax.lax.optimization_barrier((x, weight))


def _scaled(x, weight, out):
  """int8 values are the same numbers in x's type; the scale comes after."""
  B, T, _ = x.shape
  if alone("cpu") and B * T <= FEW:
    y = _read(x, weight.values, out)
  else:
    x, values = unlifted(x, weight.values)
    y = product(x, values.astype(x.dtype), out)
  return y * laid(weight.scale, out)


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
  # All on one device: nothing moves, but a mesh wants to know the layout.
  x, weight = laid(x, None, None, None), laid(weight, None, None)
  rows = jnp.pad(x.reshape(1, B * T, I), ((0, 0), (0, -B * T % 4), (0, 0)))
  # As an einsum over a batch of one: XLA turns a plain product back.
  y = jnp.moveaxis(jnp.einsum("oi,bti->obt", weight, rows), 0, 2)
  return laid(y[0, : B * T].reshape(B, T, -1), "batch", None, out)


def _plain(x, weight, out):
  # float32 accumulation; on the CPU also ten times faster than bf16 -> bf16.
  # But parts that are added up over chips go there as they will be kept: half
  # the bytes.
  shape = *x.shape[:2], weight.shape[0]
  y = jnp.einsum(
      "bti,oi->bto",
      x,
      weight,
      preferred_element_type=x.dtype if _in_parts(x) else jnp.float32,
      out_sharding=spec("batch", None, out, shape=shape),
  )
  return y.astype(jnp.float32)


def _in_parts(x) -> bool:
  """Whether what is summed over lies on several chips."""
  layout = jax.typeof(x).sharding
  return not layout.mesh.empty and layout.spec[-1] is not None
