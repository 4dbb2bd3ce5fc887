"""One decoder for the Llama, Qwen, Gemma, GPT-2, Mixtral, Chinchilla shapes.

Families differ by the fields of `Config`, not by subclasses. Weights keep the
published [out, in] orientation, so loading is a map of names.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from specjax import cache as caches
from specjax.attention import attend
from specjax.models.copies import spread
from specjax.models.parts import (
    MLP,
    Experts,
    Norm,
    checked,
    dense,
    look,
    param,
    tapped,
)
from specjax.models.product import product
from specjax.models.rope import Rope, angles, rotate
from specjax.sharding import copies, divides, laid, spec
from specjax.types import KV


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape and switches of a decoder; hashable, so it is static under jit.

  Raises ValueError, naming the field, when the fields contradict each other.
  """

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  dim: int  # of one head; need not be width / heads
  mlp: int
  norm: str = "rms"  # or "layer"
  norm_eps: float = 1e-6
  norm_offset: float = 0.0  # Gemma multiplies by 1 + weight
  post_norm: bool = False  # Gemma 2 and 3 also norm each branch's output
  qk_norm: bool = False
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  gated: bool = True
  act: str = "silu"
  positions: str = "rope"  # or "learned", "none"
  max_positions: int = 0  # rows of the learned table; else a limit, 0 = none
  rope: Rope = Rope()
  local_rope: Rope | None = None  # for layers with a window, if different
  windows: tuple[int, ...] = ()  # one a layer, 0 = sees all; () = all see all
  scale: float | None = None  # of the scores; None = dim ** -0.5
  score_cap: float = 0.0
  logit_cap: float = 0.0
  embed_scale: float = 1.0
  tied: bool = False
  experts: int = 0  # of a mixture; 0 = none
  chosen: int = 0  # experts that answer a token
  expert_mlp: int = 0  # width of one
  renormalise: bool = True  # the chosen ones' weights sum to 1
  dense: tuple[int, ...] = ()  # layers with a plain MLP in spite of experts
  kv_copies: int = 1  # of each KV head; a decoder suits it to the mesh
  dtype: str = "float32"

  def __post_init__(self):
    need = checked(self, "decoder", (
        "vocab", "width", "layers", "heads", "kv_heads", "dim", "mlp",
    ))
    need(
        self.heads % self.kv_heads == 0,
        f"heads = {self.heads} is not a multiple of kv_heads ="
        f" {self.kv_heads}.",
    )
    need(self.norm in ("rms", "layer"), f"norm {self.norm!r}: rms or layer.")
    need(
        self.positions in ("rope", "learned", "none"),
        f"positions {self.positions!r} is not one of rope, learned, none.",
    )
    need(
        self.positions != "learned" or self.max_positions > 0,
        "learned positions need max_positions > 0.",
    )
    need(
        len(self.windows) in (0, self.layers),
        f"windows has {len(self.windows)} entries for {self.layers} layers.",
    )
    need(
        all(w >= 0 for w in self.windows),
        f"windows {self.windows}: positive widths, 0 for none.",
    )
    for f in ("score_cap", "logit_cap"):
      need(
          0 <= getattr(self, f) < 1e30,
          f"{f} = {getattr(self, f)} must not be negative.",
      )
    need(
        self.scale is None or 0 < self.scale < 1e30,
        f"scale = {self.scale} must be positive.",
    )
    need(self.max_positions >= 0, "max_positions must not be negative.")
    need(
        not self.experts or 0 < self.chosen <= self.experts
        and self.expert_mlp > 0 and self.gated,
        f"{self.experts} experts need gated = True, expert_mlp > 0 and chosen"
        f" = {self.chosen} within 1..{self.experts}.",
    )
    for rope in (self.rope, self.local_rope):
      turned = int(self.dim * rope.fraction) if rope else 0
      need(
          self.positions != "rope" or 0 <= turned <= self.dim
          and turned % 2 == 0,
          f"rope turns {turned} of dim = {self.dim}; it must be an even part.",
      )
      need(
          not rope or rope.scaling != "longrope"
          or len(rope.factors) == turned // 2,
          f"longrope needs {turned // 2} factors.",
      )
      need(
          not rope or self.positions != "rope" or rope.sound(self.dim),
          "its rotary settings give no angles.",
      )


class Attention(nnx.Module):

  def __init__(self, c: Config, *, rngs):
    self.c = c
    E, Q, K = c.width, c.heads * c.dim, c.kv_heads * c.dim
    self.kv_heads = c.kv_heads * c.kv_copies
    # All or none: a query head stays beside its keys.
    even = divides("kv_heads", self.kv_heads, "kv_heads")
    self.names = names = ("heads", "kv_heads") if even else (None, None)
    bias = lambda n, name, on: (
        param(rngs, (n,), (name,), c.dtype, value=0.0) if on else None
    )

    def kept():
      once = names[1] if c.kv_copies == 1 else None
      made = param(rngs, (K, E), (once, "width"), c.dtype)
      return nnx.Param(laid(spread(c, "k", made[...]), names[1], "width"))

    self.q = param(rngs, (Q, E), (names[0], "width"), c.dtype)
    self.k, self.v = kept(), kept()
    residual = (2 * c.layers * Q) ** -0.5  # keeps the stream's size with depth
    self.o = param(rngs, (E, Q), ("width", names[0]), c.dtype, residual)
    self.q_bias = bias(Q, names[0], c.qkv_bias)
    self.k_bias = bias(K * c.kv_copies, names[1], c.qkv_bias)
    self.v_bias = bias(K * c.kv_copies, names[1], c.qkv_bias)
    self.o_bias = bias(E, None, c.out_bias)
    self.q_norm = Norm(c, c.dim, rngs=rngs) if c.qk_norm else None
    self.k_norm = Norm(c, c.dim, rngs=rngs) if c.qk_norm else None

  def __call__(self, x, pos, start, kv, turn, window):
    """x [B T E], kv or None -> (output [B T E], kv holding the window)."""
    c = self.c
    B, T, _ = x.shape
    heads, kv_heads = self.names
    split = lambda w, b, n, name: dense(x, w, b, name).reshape(
        (B, T, n, c.dim), out_sharding=spec("batch", None, name, None)
    )
    q = split(self.q, self.q_bias, c.heads, heads)
    k = split(self.k, self.k_bias, self.kv_heads, kv_heads)
    v = split(self.v, self.v_bias, self.kv_heads, kv_heads)
    if self.q_norm is not None:
      q, k = self.q_norm(q), self.k_norm(k)
    if turn is not None:
      q, k = rotate(q, *turn), rotate(k, *turn)
    new = caches.sound(KV(jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)))
    kv = new if kv is None else caches.write(kv, new, start)
    scale = c.dim**-0.5 if c.scale is None else c.scale
    y = attend(q, kv, pos, window=window, scale=scale, cap=c.score_cap)
    flat = y.reshape(
        (B, T, c.heads * c.dim), out_sharding=spec("batch", None, heads)
    )
    return dense(flat, self.o, self.o_bias), kv


class Block(nnx.Module):

  def __init__(self, c: Config, layer: int, *, rngs):
    self.c, self.window = c, c.windows[layer] if c.windows else 0
    norm = lambda on=True: Norm(c, c.width, rngs=rngs) if on else None
    self.attention_norm, self.mlp_norm = norm(), norm()
    self.attention_post, self.mlp_post = norm(c.post_norm), norm(c.post_norm)
    self.attention = Attention(c, rngs=rngs)
    mixed = c.experts and layer not in c.dense
    self.mlp = (Experts if mixed else MLP)(c, rngs=rngs)

  def __call__(self, x, pos, start, kv):
    """x [B T E] at positions pos [B T] -> (x [B T E], kv)."""
    c, turn = self.c, None
    if c.positions == "rope":
      rope = c.local_rope if self.window and c.local_rope else c.rope
      turn = angles(rope, pos, c.dim)
    y, kv = self.attention(
        self.attention_norm(x), pos, start, kv, turn, self.window
    )
    x = x + (y if self.attention_post is None else self.attention_post(y))
    y = self.mlp(self.mlp_norm(x))
    return x + (y if self.mlp_post is None else self.mlp_post(y)), kv


class Decoder(nnx.Module):
  """A causal language model; see `specjax.engine.Target` for its contract."""

  opening = None

  def __init__(self, c: Config, *, rngs: nnx.Rngs):
    for what, name in (
        ("mlp", "mlp"), ("vocab", "vocab"), ("expert_mlp", "mlp")
    ):
      divides(what, getattr(c, what), name)
    n = copies(c.heads, c.kv_heads)
    self.c = c = dataclasses.replace(c, kv_copies=n)
    table = lambda n, name, std: param(
        rngs, (n, c.width), (name, "width"), c.dtype, std
    )
    std = c.width**-0.5
    self.embedding = table(c.vocab, "vocab", std if c.tied else 1.0)
    learned = c.positions == "learned"
    self.positions = table(c.max_positions, None, 0.02) if learned else None
    self.blocks = nnx.List([Block(c, i, rngs=rngs) for i in range(c.layers)])
    self.final_norm = Norm(c, c.width, rngs=rngs)
    self.free_head = None if c.tied else table(c.vocab, "vocab", std)

  @property
  def vocab(self) -> int:
    return self.c.vocab

  @property
  def max_length(self) -> int | None:
    """The most tokens a row may have, or None: a learned table ends."""
    return self.c.max_positions or None

  def start(self, source: jax.Array, length: jax.Array, capacity: int):
    """A prompt's beginning: (empty caches, first tokens [B 1])."""
    c = self.c
    make = lambda: caches.empty(
        source.shape[0], c.kv_heads * c.kv_copies, capacity, c.dim, c.dtype
    )
    return tuple(make() for _ in range(c.layers)), source[:, :1]

  def embed(self, tokens: jax.Array) -> jax.Array:
    """[B T] -> [B T E]; ids outside the vocabulary read its border."""
    x = look(self.embedding, tokens, self.c.dtype)
    return x if self.c.embed_scale == 1 else x * jnp.asarray(
        self.c.embed_scale, x.dtype
    )

  def norm(self, hidden: jax.Array) -> jax.Array:
    return self.final_norm(hidden)

  def head(self, normed: jax.Array) -> jax.Array:
    """[B T E] -> logits [B T V], float32."""
    weight = self.embedding if self.free_head is None else self.free_head
    logits = product(normed, weight[...], "vocab")
    cap = self.c.logit_cap
    return cap * jnp.tanh(logits / cap) if cap else logits

  def __call__(self, tokens, start, cache=None, taps=()):
    """Runs tokens [B T] at positions start.. start+T (start [B]).

    Returns (hidden [B T E] before the final norm, features [B T F] at the
    taps side by side, caches holding the window). Tap t is the residual
    stream entering block t; `NORMED` is what the head reads. Without a cache
    the window sees only itself, for training and scoring from position 0.
    """
    x = self.embed(tokens)
    pos = start[:, None] + jnp.arange(tokens.shape[1])
    if self.positions is not None:
      x = x + self.positions[...].at[pos].get(
          mode="clip", out_sharding=spec("batch", None, None)
      )
    out, streams = [], [x]
    for i, block in enumerate(self.blocks):
      x, kv = block(x, pos, start, None if cache is None else cache[i])
      out.append(kv)
      streams.append(x)
    return x, tapped(self, streams, taps), tuple(out)
