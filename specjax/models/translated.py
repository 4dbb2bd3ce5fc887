"""A model behind another vocabulary, to draft for a target with other tokens.

Its law is the model's over the tokens that both have (token-level
intersection, 2502.05202). The sampling transforms renormalise it, and what is
drawn from is what is recorded, so no rule needs to know.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from specjax.sharding import laid, put, spec

PASS = 128  # the widest pass; slots that no text may fill


class Memory(NamedTuple):
  """The model's own cache, whose slots count its own tokens.

  before[p] of them stand before the target's position p, where more than the
  cache has room for count as one more than that.
  """

  cache: Any
  before: Int[Array, "B L+1"]


class Translated(nnx.Module):
  """`model` behind the vocabulary of `tables` (`vocabularies.compare`).

  Where its own cache or positions have no room for a row, and where a window
  begins with tokens that it has no word for, it has no law (NaN): such rows
  draft nothing. That hangs on committed text alone. Raises ValueError for a
  model with an encoder, which would read the target's tokens.
  """

  opening = None
  max_length = None  # where its own positions end, it only stops drafting

  def __init__(self, model: nnx.Module, tables):
    if model.opening is not None:
      raise ValueError(
          "translated: the model has an encoder, which cannot read another"
          " vocabulary's tokens; choose a decoder as drafter."
      )
    self.model = model
    self.shared, self.first, self.count, self.pieces = (
        put(x, None) for x in tables
    )
    # A text that needs more than two of its tokens for each is no text to
    # draft for; memory for the longest token's count would mostly be empty.
    self.spread = 2 if tables.count.max() > 1 else 1

  @property
  def vocab(self) -> int:
    return self.shared.shape[0]

  def room(self, capacity: int) -> int:
    """Tokens of its own that a row may have beside `capacity` slots."""
    slots, most = self.spread * capacity, self.model.max_length
    return slots if most is None else min(slots, most)

  def start(self, source, length, capacity: int):
    cache, first = self.model.start(
        source, length, self.spread * capacity + PASS
    )
    before = jnp.zeros(
        (first.shape[0], capacity + 1), jnp.int32,
        out_sharding=spec("batch", None),
    )
    return Memory(cache, before), first

  def norm(self, hidden: jax.Array) -> jax.Array:
    return self.model.norm(hidden)

  def head(self, normed: jax.Array) -> jax.Array:
    """[B T E] -> logits [B T V], -inf for tokens that are not shared."""
    logits = laid(self.model.head(normed), "batch", None, None)
    shape = *logits.shape[:2], self.vocab
    return logits.at[..., self.shared].get(
        mode="fill", fill_value=-jnp.inf,
        out_sharding=spec("batch", None, "vocab", shape=shape),
    )

  def kept(self, normed: jax.Array) -> jax.Array:
    """[B T E] -> the share [B T] of the model's own law on shared tokens."""
    whole = jax.nn.logsumexp(self.model.head(normed), -1)
    return jnp.exp(jax.nn.logsumexp(self.head(normed), -1) - whole)

  def __call__(self, tokens, start, memory: Memory):
    """Runs the target's tokens [B W] at its positions start.. start+W.

    Returns (hidden [B W E] after the last piece of each, no features, memory
    holding the window). The pieces are read in as few passes as they need.
    """
    count, first = _look(self.count, tokens), _look(self.first, tokens)
    base = jax.vmap(lambda b, n: b[n])(memory.before, start)
    ends = base[:, None] + jnp.cumsum(count, 1)
    room = self.room(memory.before.shape[1] - 1)
    before = _write(memory.before, jnp.minimum(ends, room + 1), start + 1)
    width = min(tokens.shape[1], PASS)
    total = jnp.max(jnp.minimum(ends[:, -1], room) - base)

    def read(carry):
      done, cache, hidden = carry
      begin = base + done
      slot = begin[:, None] + jnp.arange(width)
      at = jax.vmap(_piece)(slot, ends, count, first)
      # Above `room` lies what nobody sees, for rows that have no more pieces.
      x, _, cache = self.model(
          _look(self.pieces, at), jnp.minimum(begin, room), cache
      )
      hidden = jax.vmap(_place)(hidden, x, ends - 1 - begin[:, None])
      return done + width, cache, hidden

    hidden = jnp.full_like(self.model.embed(tokens), jnp.nan)
    _, cache, hidden = jax.lax.while_loop(
        lambda carry: carry[0] < total, read,
        (jnp.int32(0), memory.cache, hidden),
    )
    fits = (ends <= room)[..., None]
    hidden = jnp.where(fits, hidden, jnp.nan)
    return hidden, hidden[..., :0], Memory(cache, before)


def _look(table, index):
  """table [N] at index [B W]; what lies outside reads the border."""
  return table.at[index].get(mode="clip", out_sharding=spec("batch", None))


def _piece(slot, ends, count, first):
  """Where in `pieces` the token of each slot [P] lies; one row."""
  word = jnp.sum(ends <= slot[:, None], -1)
  word = jnp.minimum(word, len(ends) - 1)
  return first[word] + slot - (ends - count)[word]


def _place(hidden, x, at):
  """Puts x[at[i]] at hidden[i] where `at` [W] lies in this pass; one row."""
  inside = (at >= 0) & (at < len(x))
  return jnp.where(inside[:, None], x[jnp.clip(at, 0, len(x) - 1)], hidden)


@jax.vmap
def _write(before, ends, at):
  return jax.lax.dynamic_update_slice(before, ends, (at,))
