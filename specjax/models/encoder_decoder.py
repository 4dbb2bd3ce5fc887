"""An encoder that reads the prompt and a decoder that writes: the T5 shape.

The source's padding needs no mask of its own: a query at position length - 1
sees the slots below `length` and no others, in the encoder and across.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from specjax import cache as caches
from specjax.attention import attend
from specjax.models.parts import MLP, Norm, checked, dense, look, param, tapped
from specjax.models.product import product
from specjax.sharding import divides, spec
from specjax.types import KV


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape and switches; hashable, so it is static under jit.

  Raises ValueError, naming the field, when the fields contradict each other.
  """

  vocab: int
  width: int
  encoder_layers: int
  layers: int  # of the decoder
  heads: int
  dim: int  # of one head; need not be width / heads
  mlp: int
  norm_eps: float = 1e-6
  gated: bool = True
  act: str = "gelu_tanh"
  buckets: int = 32  # of relative positions
  max_distance: int = 128  # from here on all share the last bucket
  opening: int = 0  # the token that begins every text
  tied: bool = False  # head = embedding, of what is scaled by width ** -0.5
  dtype: str = "float32"

  # What the parts ask of a config, the same for all.
  norm, norm_offset, mlp_bias, experts = "rms", 0.0, False, 0

  def __post_init__(self):
    need = checked(self, "encoder-decoder", (
        "vocab", "width", "encoder_layers", "layers", "heads", "dim", "mlp",
    ))
    deepest = max(self.encoder_layers, self.layers)
    need(deepest <= 1024, f"{deepest} layers are more than 1024.")
    need(self.buckets >= 4, f"buckets = {self.buckets} must be at least 4.")
    need(
        self.buckets // 2 < self.max_distance <= 2**16,
        f"max_distance = {self.max_distance} must lie above buckets / 2 ="
        f" {self.buckets // 2}, up to 2^16.",
    )
    need(
        0 <= self.opening < self.vocab,
        f"opening = {self.opening} is outside the vocabulary, 0 to"
        f" {self.vocab - 1}.",
    )


class Memory(NamedTuple):
  """The decoder's caches: of its own text, and of the source, which stays."""

  own: tuple[KV, ...]  # slot = position
  cross: tuple[KV, ...]  # slot = position in the source
  length: Int[Array, "B"]  # of the source


def bucket_numbers(buckets: int, most: int, ahead: bool) -> np.ndarray:
  """The bucket of a key that lies -most .. most from its query, [2 most + 1].

  Half of the buckets hold one distance each, the others grow by a constant
  factor up to `most`. With `ahead` the upper half of all is for keys ahead;
  without, those are as near as none. In float32 step by step, as trained:
  rounding decides at some borders.
  """
  away = np.arange(-most, most + 1)
  distance = np.abs(away) if ahead else np.maximum(-away, 0)
  side = buckets // 2 if ahead else buckets
  near = side // 2
  far = np.maximum(distance, near).astype(np.float32) / np.float32(near)
  grown = np.log(far) / np.float32(np.log(most / near))
  grown = near + (grown * np.float32(side - near)).astype(np.int32)
  found = np.where(distance < near, distance, np.minimum(grown, side - 1))
  return found + side * (ahead & (away > 0))


class Relative(nnx.Module):
  """A bias for each head by how far a key lies from the query."""

  def __init__(self, c: Config, ahead: bool, *, rngs):
    self.c, self.ahead = c, ahead
    self.table = param(
        rngs, (c.buckets, c.heads), (None, "kv_heads"), c.dtype, c.width**-0.5
    )

  def __call__(self, pos, slots: int, rows="batch"):
    """pos [B T] -> float32 [B H T 1 S], as `attend` adds it.

    `rows` names the layout of B; None for one row that serves all.
    """
    c, most = self.c, self.c.max_distance
    number = bucket_numbers(c.buckets, most, self.ahead)
    shape = len(number), c.heads
    by_distance = self.table[...].astype(jnp.float32).at[number].get(
        out_sharding=spec(None, "kv_heads", shape=shape)
    )
    away = jnp.clip(jnp.arange(slots) - pos[..., None], -most, most)
    bias = by_distance.at[away + most].get(
        out_sharding=spec(
            rows, None, None, "kv_heads", shape=(*away.shape, c.heads)
        )
    )
    return jnp.moveaxis(bias, -1, 1)[:, :, :, None]


class Attention(nnx.Module):
  """Heads without biases, rotation or scaling; keys may come from elsewhere."""

  def __init__(self, c: Config, *, rngs):
    self.c = c
    Q, E = c.heads * c.dim, c.width
    self.name = name = "heads" if divides("heads", c.heads, "heads") else None
    names = name, "width"
    # Scores are not scaled, so the queries begin small.
    self.q = param(rngs, (Q, E), names, c.dtype, (E * c.dim) ** -0.5)
    self.k = param(rngs, (Q, E), names, c.dtype)
    self.v = param(rngs, (Q, E), names, c.dtype)
    residual = (3 * c.layers * Q) ** -0.5
    self.o = param(rngs, (E, Q), names[::-1], c.dtype, residual)

  def _heads(self, x, weight):
    return dense(x, weight, out=self.name).reshape(
        (*x.shape[:2], self.c.heads, self.c.dim),
        out_sharding=spec("batch", None, self.name, None),
    )

  def keys(self, x) -> KV:
    """x [B S E] -> its keys and values [B H S D]."""
    k, v = (
        jnp.swapaxes(self._heads(x, w), 1, 2) for w in (self.k, self.v)
    )
    return caches.sound(KV(k, v))

  def __call__(self, x, kv: KV, pos, bias=None):
    """x [B T E] looks at slots up to pos [B T] -> [B T E]."""
    y = attend(self._heads(x, self.q), kv, pos, scale=1.0, bias=bias)
    flat = y.reshape(
        (*x.shape[:2], self.c.heads * self.c.dim),
        out_sharding=spec("batch", None, self.name),
    )
    return dense(flat, self.o)


class Block(nnx.Module):
  """A layer of either stack; the decoder's also looks at the source."""

  def __init__(self, c: Config, across: bool, *, rngs):
    norm = lambda on=True: Norm(c, c.width, rngs=rngs) if on else None
    self.attention_norm, self.mlp_norm = norm(), norm()
    self.cross_norm = norm(across)
    self.attention = Attention(c, rngs=rngs)
    self.cross = Attention(c, rngs=rngs) if across else None
    self.mlp = MLP(c, rngs=rngs)

  def encode(self, x, seen, bias):
    """x [B S E], each query sees slots up to seen [B S] -> [B S E]."""
    y = self.attention_norm(x)
    x = x + self.attention(y, self.attention.keys(y), seen, bias)
    return x + self.mlp(self.mlp_norm(x))

  def __call__(self, x, pos, start, own, cross, seen, bias):
    """x [B T E] at positions pos [B T] -> (x, own keys with the window)."""
    y = self.attention_norm(x)
    own = caches.write(own, self.attention.keys(y), start)
    x = x + self.attention(y, own, pos, bias)
    x = x + self.cross(self.cross_norm(x), cross, seen)
    return x + self.mlp(self.mlp_norm(x)), own


class Stack(nnx.Module):
  """Blocks that share one table of relative positions, and their norm."""

  def __init__(self, c: Config, layers: int, decodes: bool, *, rngs):
    self.relative = Relative(c, not decodes, rngs=rngs)
    self.blocks = nnx.List(
        [Block(c, decodes, rngs=rngs) for _ in range(layers)]
    )
    self.norm = Norm(c, c.width, rngs=rngs)


class EncoderDecoder(nnx.Module):
  """See `specjax.engine.Target` for its contract."""

  max_length = None

  def __init__(self, c: Config, *, rngs: nnx.Rngs):
    for what in ("mlp", "vocab"):
      divides(what, getattr(c, what), what)
    self.c = c
    table = lambda std: param(
        rngs, (c.vocab, c.width), ("vocab", "width"), c.dtype, std
    )
    self.embedding = table(1.0)
    self.encoder = Stack(c, c.encoder_layers, False, rngs=rngs)
    self.decoder = Stack(c, c.layers, True, rngs=rngs)
    self.free_head = None if c.tied else table(c.width**-0.5)

  @property
  def vocab(self) -> int:
    return self.c.vocab

  @property
  def opening(self) -> int:
    return self.c.opening

  def encode(self, source, length):
    """Source [B S] of which length [B] count -> its residual stream [B S E].

    Before the encoder's norm; rows above `length` hold finite rubbish.
    """
    seen = _last(source, length)
    slots = source.shape[1]
    bias = self.encoder.relative(jnp.arange(slots)[None], slots, None)
    x = self.embed(source)
    for block in self.encoder.blocks:
      x = block.encode(x, seen, bias)
    return x

  def start(self, source: jax.Array, length: jax.Array, capacity: int):
    """A text's beginning: (empty caches beside the source's keys, the opening
    tokens [B 1])."""
    c, B = self.c, source.shape[0]
    read = self.encoder.norm(self.encode(source, length))
    own = tuple(
        caches.empty(B, c.heads, capacity, c.dim, c.dtype)
        for _ in self.decoder.blocks
    )
    cross = tuple(block.cross.keys(read) for block in self.decoder.blocks)
    return Memory(own, cross, length), jnp.full_like(source[:, :1], c.opening)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """[B T] -> [B T E]; ids outside the vocabulary read its border."""
    return look(self.embedding, tokens, self.c.dtype)

  def norm(self, hidden: jax.Array) -> jax.Array:
    return self.decoder.norm(hidden)

  def head(self, normed: jax.Array) -> jax.Array:
    """[B T E] -> logits [B T V], float32."""
    if self.free_head is not None:
      return product(normed, self.free_head[...], "vocab")
    scaled = normed * jnp.asarray(self.c.width**-0.5, normed.dtype)
    return product(scaled, self.embedding[...], "vocab")

  def __call__(self, tokens, start, cache: Memory, taps=()):
    """Runs the decoder's tokens [B T] at positions start.. start+T.

    As `Decoder`: (hidden before the final norm, features at the taps, caches
    holding the window). Tap t is the stream entering the decoder's block t.
    """
    x = self.embed(tokens)
    pos = start[:, None] + jnp.arange(tokens.shape[1])
    bias = self.decoder.relative(pos, cache.own[0].k.shape[2])
    seen = _last(tokens, cache.length)
    out, streams = [], [x]
    for i, block in enumerate(self.decoder.blocks):
      x, own = block(
          x, pos, start, cache.own[i], cache.cross[i], seen, bias
      )
      out.append(own)
      streams.append(x)
    own = cache._replace(own=tuple(out))
    return x, tapped(self, streams, taps), own


def _last(tokens, length):
  """The position from which all of a source is seen, for each token [B T]."""
  return jnp.broadcast_to(length[:, None] - 1, tokens.shape)
