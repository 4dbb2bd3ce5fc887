"""Products with weights in [out, in]: the one place that suits a backend.

A CPU decodes with windows of a few rows, where its general product first
rearranges the weights and so costs as much as many rows; one-row products
over a slice of the weights that stays in the cache read memory once.
"""

import jax
import jax.numpy as jnp

from specjax.sharding import alone, laid, spec

SLICE = 2**18  # bytes of weights that stay in a core's cache
FEW = 8  # rows up to which one-row products win


def product(x: jax.Array, weight: jax.Array, out: str | None) -> jax.Array:
  """x [B T I] times weight [O I] -> float32 [B T O], laid out by O's name."""
  few = x.shape[0] * x.shape[1] <= FEW
  # Asked of the mesh's own devices, which need not be the default backend's.
  if few and alone("cpu"):
    y = (_sliced if x.dtype == jnp.float32 else _doubled)(
        laid(x, None, None, None), laid(weight, None, None)
    )
    return laid(y, "batch", None, out)
  return _plain(x, weight, spec("batch", None, out))


def _plain(x, weight, layout=None):
  # float32 accumulation; on the CPU also ten times faster than bf16 -> bf16.
  return jnp.einsum(
      "bti,oi->bto",
      x,
      weight,
      preferred_element_type=jnp.float32,
      out_sharding=layout,
  )


def _sliced(x, weight):
  """Every row by itself, over one slice of the weights after another."""
  (B, T, I), O = x.shape, weight.shape[0]
  if B * T == 1:
    return _plain(x, weight)
  parts = min(O, max(1, weight.nbytes // SLICE))
  while O % parts:
    parts += 1
  rows = x.reshape(B * T, 1, 1, I)
  one = lambda part: jnp.concatenate([_plain(r, part) for r in rows], 1)[0]
  y = jax.lax.map(one, weight.reshape(parts, O // parts, I))
  return jnp.swapaxes(y, 0, 1).reshape(B, T, O)


def _doubled(x, weight):
  """A lone bfloat16 row costs six to nine times what two rows cost."""
  if x.shape[0] * x.shape[1] > 1:
    return _plain(x, weight)
  return _plain(jnp.concatenate([x, x], 1), weight)[:, :1]
