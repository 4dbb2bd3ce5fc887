"""Prompt lookup: what followed the last time these tokens were written.

After Saxena's prompt lookup decoding; the longest match wins, then the most
recent, and what an encoder reads is older than all that is written. The
proposal is a point mass, since it is a function of the text.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.types import Commit, Draft, Source, State


class NGram(nnx.Module):
  """Copies up to K tokens after an earlier match of `shortest`..`longest`."""

  taps = ()
  vocab = max_length = None

  def __init__(self, K: int, shortest: int = 2, longest: int = 3):
    if K < 1 or not 1 <= shortest <= longest:
      raise ValueError(
          f"ngram: K = {K}, shortest = {shortest}, longest = {longest}; K must"
          " be positive and 1 <= shortest <= longest."
      )
    self.K, self.shortest, self.longest = K, shortest, longest

  @property
  def widths(self) -> tuple[int, int]:
    return (0, self.K)  # where nothing matches, a round is a plain pass

  def init(self, target, source, capacity: int):
    return ()

  def ingest(self, target, dstate, commit: Commit):
    return ()

  def propose(self, target, state: State, keys):
    rows = state.rows
    older = rows.source
    if older is None:
      older = Source(rows.tokens[:, :0], jnp.zeros_like(rows.length))
    tokens, count = jax.vmap(self.look)(rows.tokens, rows.length, older)
    return Draft(tokens, None, count), state

  def look(self, tokens, length, older: Source):
    """One row: (text [L], length, older text [N]) -> (continuation [K], how
    much of it is real)."""
    N = older.tokens.shape[0]
    both = jnp.concatenate([older.tokens, tokens])
    slot = jnp.arange(both.shape[0])
    first = jnp.where(slot < N, 0, N)  # of the text that this slot is in
    final = jnp.where(slot < N, older.length, N + length) - 1
    run, same = jnp.zeros_like(slot), True
    for back in range(self.longest):
      inside = (slot - first >= back) & (length > back)
      tail = tokens[jnp.maximum(length - 1 - back, 0)]
      same = same & inside & (jnp.roll(both, back) == tail)
      run = run + same
    # Longest run first, most recent second; a text's own end is no match.
    found = (slot < final) & (run >= self.shortest)
    at = jnp.argmax(jnp.where(found, run * both.shape[0] + slot, -1))
    # A match that reaches the end goes on into its own copy: a text with a
    # period is continued for ever. An older text just ends.
    period = final[at] - at
    take = at + 1 + jnp.arange(self.K) % jnp.maximum(period, 1)
    count = jnp.where(at < N, jnp.minimum(period, self.K), self.K)
    return both[jnp.minimum(take, slot[-1])], jnp.where(found[at], count, 0)
