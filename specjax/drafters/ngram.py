"""Prompt lookup: what followed the last time these tokens were written.

After Saxena's prompt lookup decoding; the longest match wins, then the most
recent. The proposal is a point mass, since it is a function of the text.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.types import Commit, Draft, State


class NGram(nnx.Module):
  """Copies up to K tokens after an earlier match of `shortest`..`longest`."""

  taps = ()
  vocab = max_length = None

  def __init__(self, K: int, shortest: int = 1, longest: int = 3):
    if K < 1 or not 1 <= shortest <= longest:
      raise ValueError(
          f"ngram: K = {K}, shortest = {shortest}, longest = {longest}; K must"
          " be positive and 1 <= shortest <= longest."
      )
    self.K, self.shortest, self.longest = K, shortest, longest

  def init(self, target, source, capacity: int):
    return ()

  def ingest(self, target, dstate, commit: Commit):
    return ()

  def propose(self, target, state: State, keys):
    rows = state.rows
    tokens, count = jax.vmap(self.look)(rows.tokens, rows.length)
    return Draft(tokens, None, count), state

  def look(self, tokens, length):
    """One row: (tokens [L], length) -> (continuation [K], K or 0)."""
    L = tokens.shape[0]
    slot = jnp.arange(L)
    run, same = jnp.zeros(L, jnp.int32), True
    for back in range(self.longest):
      inside = (slot >= back) & (length > back)
      tail = tokens[jnp.maximum(length - 1 - back, 0)]
      same = same & inside & (jnp.roll(tokens, back) == tail)
      run = run + same
    # Longest run first, most recent second; the text's own end is no match.
    found = (slot < length - 1) & (run >= self.shortest)
    at = jnp.argmax(jnp.where(found, run * L + slot, -1))
    # A match that reaches the end goes on into its own copy: a text with a
    # period is continued for ever.
    period = length - 1 - at
    take = at + 1 + jnp.arange(self.K) % jnp.maximum(period, 1)
    return tokens[jnp.minimum(take, L - 1)], jnp.where(found[at], self.K, 0)
