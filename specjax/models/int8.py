"""Weights in int8: half of bfloat16's memory, and of what a round reads.

Each row [O] of a weight [O I] has one scale and no zero point; what products
give is computed as before. Another model than the unquantised one, whose law
speculation then keeps as exactly as any other's.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models.product import Quantised

# Parameters that `product` and `look` read; all others stay.
WEIGHTS = ("embedding", "free_head", "q", "k", "v", "o", "gate", "up", "down")
MOST = 127  # symmetric: -128 is not used


class Int8(nnx.Module):
  """What stands in a parameter's place; `[...]` reads it as `Quantised`."""

  def __init__(self, weight: jax.Array):
    values, scale = _rounded(weight)
    self.values, self.scale = nnx.Param(values), nnx.Param(scale)

  def __getitem__(self, key) -> Quantised:
    return Quantised(self.values[key], self.scale[key])


def quantised(model: nnx.Module) -> nnx.Module:
  """The model itself, its weights replaced one by one by `Int8`.

  So it needs memory for one of them beside what is there. Parts on a mesh
  stay where they are. Products of a mixture's router are exact as before.
  """
  for _, module in list(nnx.iter_modules(model)):
    for name in WEIGHTS:
      held = getattr(module, name, None)
      if isinstance(held, nnx.Param):
        setattr(module, name, jax.block_until_ready(Int8(held[...])))
        del held  # frees it before the next one is made
  return model


def refuse(model: nnx.Module, path) -> None:
  """Raises ValueError for a model that `quantised` made, which no file has."""
  if any(isinstance(m, Int8) for _, m in nnx.iter_modules(model)):
    raise ValueError(
        f"{path}: a model with int8 weights is not written; save it before it"
        " is quantised."
    )


@jax.jit
def _rounded(weight):
  """[*X O I] -> (values, scale), the nearest ones; ties to even."""
  wide = weight.astype(jnp.float32)
  scale = jnp.max(jnp.abs(wide), -1) / MOST
  values = jnp.round(wide / jnp.where(scale > 0, scale, 1)[..., None])
  return jnp.clip(values, -MOST, MOST).astype(jnp.int8), scale
