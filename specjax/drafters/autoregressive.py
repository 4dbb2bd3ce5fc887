"""A small model that shares the target's vocabulary (Leviathan; Chen)."""

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.sampling import draw, log_probs
from specjax.types import Commit, Draft, Source, State


class Autoregressive(nnx.Module):
  """Drafts K tokens one after another from `model`, under the row's law.

  Whatever was committed is ingested as one window, "all accepted" included,
  so its cache has no holes; the last draft's keys are never needed. Beside a
  target with an encoder, `model` reads the source too if it has one itself;
  a decoder sees what is written only.
  """

  taps = ()

  def __init__(self, model: nnx.Module, K: int):
    if K < 1:
      raise ValueError(f"autoregressive: K = {K} must be at least 1.")
    self.model, self.K = model, K

  @property
  def vocab(self) -> int:
    return self.model.vocab

  @property
  def max_length(self) -> int | None:
    return self.model.max_length

  def init(self, target, source: Source, capacity: int):
    if target.opening is None and self.model.opening is not None:
      raise ValueError(
          "autoregressive: its model has an encoder, but the target reads no"
          " source; choose a decoder as drafter."
      )
    return self.model.start(*source, capacity)[0]

  def ingest(self, target, dstate, commit: Commit):
    return self.model(commit.tokens, commit.start, dstate)[2]

  def propose(self, target, state: State, keys):
    rows, last = state.rows, state.last
    hidden, _, cache = self.model(last.tokens, last.start, state.draft)
    fold = jax.vmap(jax.random.fold_in, (0, None))

    def choose(hidden, seen, i):
      logits = self.model.head(self.model.norm(hidden))
      counted = None if seen is None else seen[:, None]
      logp = log_probs(logits, rows, i[None], counted)[:, 0]
      token = draw(fold(keys, i), logp)
      if seen is not None:
        seen = seen + (token[:, None] == jnp.arange(logp.shape[1]))
      return token, logp, seen

    def forward(carry, i):
      token, cache, seen = carry
      hidden, _, cache = self.model(
          token[:, None], rows.length + i - 1, cache
      )
      token, logp, seen = choose(hidden, seen, i)
      return (token, cache, seen), (token, logp)

    end = jnp.arange(last.tokens.shape[1]) == last.count[:, None] - 1
    hidden = jnp.sum(jnp.where(end[..., None], hidden, 0), 1, keepdims=True)
    seen = None if rows.counts is None else jnp.zeros_like(rows.counts[:, 0])
    token, logp, seen = choose(hidden, seen, jnp.int32(0))
    (_, cache, _), rest = jax.lax.scan(
        forward, (token, cache, seen), jnp.arange(1, self.K)
    )
    join = lambda a, b: jnp.concatenate([a[:, None], jnp.swapaxes(b, 0, 1)], 1)
    draft = Draft(
        join(token, rest[0]),
        join(logp, rest[1]),
        jnp.full_like(rows.length, self.K),
    )
    return draft, state._replace(draft=cache)
