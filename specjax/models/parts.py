"""What models are made of: parameters, products, norms, MLPs, mixtures.

`c` is a frozen config with the fields that `decoder.Config` documents.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models.product import dequantised, product, unlifted
from specjax.sharding import gathered, size, spec

NORMED = -1  # the tap that reads what the head reads
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def checked(c, kind: str, sizes: Sequence[str]) -> Callable[[bool, str], None]:
  """Checks what all configs have -> `need(ok, text)` for the fields of one.

  `sizes` must be positive. Raises ValueError naming `kind` and the field.
  """

  def need(ok, text):
    if not ok:
      raise ValueError(f"{kind} config: {text}")

  for f in sizes:
    need(getattr(c, f) > 0, f"{f} = {getattr(c, f)} must be positive.")
  need(
      0 <= c.norm_eps < 1e30, f"norm_eps = {c.norm_eps} must not be negative."
  )
  need(
      c.act in ACTIVATIONS,
      f"act {c.act!r} is not one of {', '.join(ACTIVATIONS)}.",
  )
  need(
      c.dtype in ("float32", "bfloat16"),
      f"dtype {c.dtype!r} is not float32 or bfloat16.",
  )
  return need


def tapped(model, streams, taps):
  """Residual streams [B T E] at `taps`, side by side -> [B T F].

  Stream t enters block t, the last one leaves them all; see `NORMED`.
  """
  seen = dict(enumerate(streams))
  if NORMED in taps:
    seen[NORMED] = model.norm(streams[-1])
  none = streams[-1][..., :0]
  return jnp.concatenate([none, *(seen[t] for t in taps)], -1)


def param(rngs, shape, names, dtype, std=None, value=None) -> nnx.Param:
  """A parameter laid out by the logical names of its dimensions."""
  layout = spec(*names, shape=shape)
  if value is not None:
    made = jnp.full(shape, value, dtype, out_sharding=layout)
  else:
    std = shape[-1] ** -0.5 if std is None else std
    made = std * jax.random.normal(
        rngs.params(), shape, jnp.float32, out_sharding=layout
    )
  return nnx.Param(made.astype(dtype))


def dense(x, weight, bias=None, out=None):
  """x [B T I] times weight [O I] -> [B T O], laid out by the name of O."""
  y = product(x, weight[...], out)
  if bias is not None:
    y = y + bias[...].astype(jnp.float32)
  return y.astype(x.dtype)


def look(table, tokens, dtype):
  """Rows of table [V E] for tokens [B T] -> [B T E]; others read its border."""
  tokens, table = unlifted(tokens, jax.tree.map(gathered, table[...]))
  rows = lambda x: x.at[tokens].get(
      mode="clip", out_sharding=spec("batch", *[None] * x.ndim)
  )
  return dequantised(jax.tree.map(rows, table)).astype(dtype)


class Norm(nnx.Module):
  """RMS or layer normalisation over the last axis, computed in float32."""

  def __init__(self, c, width: int, *, rngs):
    self.c = c
    self.weight = param(
        rngs, (width,), (None,), c.dtype, value=1.0 - c.norm_offset
    )
    layer = c.norm == "layer"
    self.bias = (
        param(rngs, (width,), (None,), c.dtype, value=0.0) if layer else None
    )

  def __call__(self, x):
    wide = x.astype(jnp.float32)
    if self.bias is not None:
      wide = wide - jnp.mean(wide, -1, keepdims=True)
    power = jnp.mean(wide * wide, -1, keepdims=True)
    wide = wide * jax.lax.rsqrt(power + self.c.norm_eps)
    weight = self.weight[...].astype(jnp.float32)
    wide = wide * (self.c.norm_offset + weight)
    if self.bias is not None:
      wide = wide + self.bias[...].astype(jnp.float32)
    return wide.astype(x.dtype)


class MLP(nnx.Module):

  def __init__(self, c, *, rngs):
    self.c = c
    bias = lambda n, name: (
        param(rngs, (n,), (name,), c.dtype, value=0.0) if c.mlp_bias else None
    )
    up = lambda: param(rngs, (c.mlp, c.width), ("mlp", "width"), c.dtype)
    self.gate = up() if c.gated else None
    self.gate_bias = bias(c.mlp, "mlp") if c.gated else None
    self.up, self.up_bias = up(), bias(c.mlp, "mlp")
    residual = (2 * c.layers * c.mlp) ** -0.5
    self.down = param(
        rngs, (c.width, c.mlp), ("width", "mlp"), c.dtype, residual
    )
    self.down_bias = bias(c.width, None)

  def __call__(self, x):
    act = ACTIVATIONS[self.c.act]
    y = dense(x, self.up, self.up_bias, "mlp")
    if self.gate is None:
      y = act(y)
    else:
      y = act(dense(x, self.gate, self.gate_bias, "mlp")) * y
    return dense(y, self.down, self.down_bias)


class Experts(nnx.Module):
  """A mixture of MLPs: the router's likeliest answer each token, weighted.

  Softmax over all experts, then the choice (Mixtral, Qwen3-MoE). No expert
  is ever full, so a token's answer does not depend on its neighbours. Each
  MLP is cut over the mesh; which ones are read is known on every chip.
  """

  def __init__(self, c, *, rngs):
    self.c = c
    X, M, E = c.experts, c.expert_mlp, c.width
    up = lambda: param(rngs, (X, M, E), (None, "mlp", "width"), c.dtype)
    self.router = param(rngs, (X, E), (None, None), c.dtype)
    self.gate, self.up = up(), up()
    residual = (2 * c.layers * M) ** -0.5
    self.down = param(
        rngs, (X, E, M), (None, "width", "mlp"), c.dtype, residual
    )

  def __call__(self, x):
    c, (B, T, _) = self.c, x.shape
    share = jax.nn.softmax(product(x, self.router[...], None), -1)
    weight, index = jax.lax.top_k(share, c.chosen)
    if c.renormalise:
      weight = weight / jnp.sum(weight, -1, keepdims=True)
    # Few tokens read those that they chose, pair by pair; many read each once.
    few = B * T * c.chosen < c.experts and size("batch") == 1
    mixed = (self._few if few else self._many)(x, weight, index)
    return mixed.astype(x.dtype)

  def _answer(self, x, expert):
    act = ACTIVATIONS[self.c.act]
    one = lambda w: jax.lax.dynamic_index_in_dim(w, expert, 0, False)
    times = lambda x, p, out=None: product(
        x, jax.tree.map(one, p[...]), out
    ).astype(x.dtype)
    y = act(times(x, self.gate, "mlp"))
    return times(y * times(x, self.up, "mlp"), self.down)

  def _few(self, x, weight, index):
    """x [B T E], weight and index [B T N] -> float32 [B T E]."""
    B, T, E = x.shape
    N = self.c.chosen
    rows = x.reshape(B * T, 1, 1, E)

    def one(_, pair):
      row, expert = pair
      answer = self._answer(rows[row], expert)
      return None, answer.astype(jnp.float32)

    pairs = jnp.repeat(jnp.arange(B * T), N), index.reshape(-1)
    answers = jax.lax.scan(one, None, pairs)[1].reshape(B, T, N, E)
    return jnp.sum(answers * weight[..., None], 2)

  def _many(self, x, weight, index):
    def one(total, expert):
      share = jnp.sum(jnp.where(index == expert, weight, 0), -1)
      answer = self._answer(x, expert).astype(jnp.float32)
      return total + share[..., None] * answer, None

    zero = jnp.zeros_like(x, jnp.float32)
    return jax.lax.scan(one, zero, jnp.arange(self.c.experts))[0]
