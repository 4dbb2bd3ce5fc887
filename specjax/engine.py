"""Control flow: extend, step, generate; the same program for every drafter.

A round reads the window [anchor, K drafts], writes its keys at length - 1,
and raises `length` by what was emitted. Rejected slots lie above the new
`length` and are overwritten before anyone sees them. A prompt is committed
the same way, chunk by chunk; its last token is the first anchor, so the
acceptance rule is the one place that emits tokens.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from specjax import rules
from specjax.rules.base import laws
from specjax.sampling import log_probs
from specjax.sharding import laid, spec
from specjax.types import (
    BUDGET,
    END,
    NONFINITE,
    RUNNING,
    STOP,
    UNUSED,
    Commit,
    Draft,
    Info,
    Logprobs,
    Rows,
    Scores,
    State,
    Tally,
)

DRAFT, JUDGE = range(2)  # purposes of randomness within one round


class Target(Protocol):
  """A model that judges: embed, run a window over a cache, norm, head."""

  vocab: int
  max_length: int | None  # None = no end; a learned table of positions ends
  opening: int | None  # begins every text where an encoder reads the prompt

  def start(self, source, length, capacity) -> tuple[Any, jax.Array]: ...
  def embed(self, tokens) -> jax.Array: ...
  def __call__(self, tokens, start, cache, taps) -> tuple: ...
  def norm(self, hidden) -> jax.Array: ...
  def head(self, normed) -> jax.Array: ...


class Drafter(Protocol):
  """A proposer. `ingest` takes committed windows of any width; `propose`
  first ingests state.last, then drafts K tokens, and returns the state with
  its own part (or the target's cache) moved on. What `init` makes of the
  `types.Source` leads with the batch axis in every array and does not hang on
  K, which may be lowered on a copy between rounds. One that often has less
  than K to say may name `widths`, ascending and K the last: the round of a
  single row is as wide as its draft needs, each width compiled."""

  taps: tuple[int, ...]
  K: int
  vocab: int | None  # None = whatever the target has
  max_length: int | None

  def init(self, target, source, capacity) -> Any: ...
  def ingest(self, target, dstate, commit: Commit) -> Any: ...
  def propose(self, target, state: State, keys) -> tuple[Draft, State]: ...


fold = jax.vmap(jax.random.fold_in)


def round_keys(rows: Rows, purpose: int) -> jax.Array:
  """Keys of this round: row key, length at its start, purpose.

  Not each token's own position: a discarded draft and its later redraw would
  share noise (total variation 0.041 against 0.0017 under the block rule).
  """
  keys = fold(rows.key, rows.length)
  return jax.vmap(jax.random.fold_in, (0, None))(keys, purpose)


def anchor(rows: Rows) -> jax.Array:
  """The last committed token of each row, [B 1]."""
  return jax.vmap(lambda t, n: t[n - 1])(rows.tokens, rows.length)[:, None]


def one_hot(tokens: jax.Array, vocab: int) -> jax.Array:
  """[B W] -> int32 [B W V], laid out like logits."""
  hot = tokens[..., None] == jnp.arange(
      vocab, out_sharding=spec("vocab", shape=(vocab,))
  )
  return hot.astype(jnp.int32)


def extend(target, drafter, state: State, chunk, count) -> State:
  """Commits the first `count` [B] tokens of chunk [B C] without judging them.

  Rows with count 0 are untouched. Pure; the cache must have room for C slots
  above the longest row (`states.bucket`).
  """
  rows, last = state.rows, state.last
  C = chunk.shape[1]
  real = jnp.arange(C) < count[:, None]
  chunk = jnp.where(real, chunk, 0)  # padding may hold anything
  window = jnp.concatenate([anchor(rows), chunk[:, :-1]], 1)
  _, features, cache = target(
      window, rows.length - 1, state.cache, drafter.taps
  )
  whole = Commit(chunk, features, count, rows.length)
  dstate = drafter.ingest(target, state.draft, last)
  dstate = drafter.ingest(target, dstate, whole)
  rows = rows._replace(
      tokens=_write(rows.tokens, chunk, rows.length),
      length=rows.length + count,
  )
  new = final(whole, last.tokens.shape[1])
  return State(rows, cache, dstate, choose(count > 0, new, last))


def final(commit: Commit, width: int) -> Commit:
  """The last token of a window that was ingested, to be ingested once more: so
  `State.last` is never empty."""
  end = jnp.arange(commit.tokens.shape[1]) == commit.count[:, None] - 1
  only = lambda x: _spread(jnp.sum(jnp.where(_like(end, x), x, 0), 1), width)
  one = jnp.ones_like(commit.count)
  return Commit(
      only(commit.tokens), only(commit.features), one,
      commit.start + commit.count - 1,
  )


def catch_up(target, drafter, state: State) -> State:
  """Has the drafter read the text of rows whose `last` counts more tokens
  than it has room for, down to what it has room for. Pure."""
  rows, W = state.rows, state.last.tokens.shape[1]
  window = jax.vmap(lambda t, at: jax.lax.dynamic_slice_in_dim(t, at, W))

  def body(carry):
    dstate, last = carry
    dstate = drafter.ingest(target, dstate, last)
    more = jnp.clip(last.count - W, 0, W)
    start = last.start + more
    fresh = Commit(
        window(rows.tokens, start), last.features, last.count - more, start
    )
    return dstate, choose(more > 0, fresh, last)

  behind = lambda carry: jnp.any(carry[1].count > W)
  dstate, last = jax.lax.while_loop(
      behind, body, (state.draft, state.last)
  )
  return state._replace(draft=dstate, last=last)


def choose(where, new, old):
  """Row-wise choice between two pytrees of batch-leading arrays."""
  return jax.tree.map(
      lambda a, b: jnp.where(_like(where, b), a, b), new, old
  )


def _like(mask, x):
  # Not by reshape, which forgets how a batch of one is laid out.
  return jnp.expand_dims(mask, range(mask.ndim, x.ndim))


def _spread(x, width):
  """[B ...] -> [B width ...] with x first and zeros after it."""
  return _fill(x[:, None], width)


def _fill(x, width):
  """[B W ...] -> [B width ...], zeros behind."""
  rest = [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, [(0, 0), (0, width - x.shape[1]), *rest])


@jax.vmap
def _write(buffer, window, start):
  """Puts window [W ...] at buffer [L ...] slots start.. start + W."""
  at = (start,) + (0,) * (buffer.ndim - 1)
  return jax.lax.dynamic_update_slice(buffer, window.astype(buffer.dtype), at)


def propose(target, drafter, state: State) -> tuple[Draft, State]:
  """Drafts, with counts cut to each row's width and remaining budget.

  Counts depend on nothing that was drawn, which keeps the law.
  """
  rows = state.rows
  draft, state = drafter.propose(target, state, round_keys(rows, DRAFT))
  room = jnp.minimum(rows.width, rows.limit - rows.length - 1)
  room = jnp.where(rows.finish == RUNNING, room, 0)
  count = jnp.clip(draft.count, 0, jnp.maximum(room, 0))
  return draft._replace(count=count), state


def verify(target, taps, state: State, draft: Draft, mask=None):
  """One target pass over [anchor, drafts] -> (Scores, State).

  `mask(rows, window [B W])` -> bool [B W V], pure, tells the tokens allowed
  after each position of the window (structured output).
  """
  rows = state.rows
  window = jnp.concatenate([anchor(rows), draft.tokens], 1)
  hidden, features, cache = target(window, rows.length - 1, state.cache, taps)
  raw = target.head(target.norm(hidden))
  drafted = None
  if rows.counts is not None:
    drafted = jnp.cumsum(one_hot(draft.tokens, raw.shape[-1]), 1)
    drafted = jnp.pad(drafted, ((0, 0), (1, 0), (0, 0)))
  allowed = None if mask is None else mask(rows, window)
  ahead = jnp.arange(window.shape[1])
  logp = log_probs(raw, rows, ahead, drafted, allowed)
  finite = jnp.isfinite(jnp.max(logp, -1))
  return Scores(logp, raw, features, finite), state._replace(cache=cache)


def cut(rows: Rows, tokens, count, finite):
  """Resolves ends, stop strings, budgets, bad numbers inside a block.

  tokens [B W], of which the first `count` [B] were emitted -> (kept [B],
  finish [B], stop state [B] or None). The completing token is kept; frozen
  rows keep nothing.
  """
  index = jnp.arange(tokens.shape[1])
  extra = index == count[:, None] - 1
  bad = jnp.any(extra & ~finite, 1)  # no law to draw the extra token from
  valid = index < (count - bad)[:, None]
  length = rows.length[:, None] + index + 1  # once this token is committed
  reason = jnp.where(length >= rows.limit[:, None], BUDGET, RUNNING)
  states = None
  if rows.stop is not None:
    hits, states = _automaton(rows.stop, tokens)
    old = length - rows.prompt[:, None] >= rows.sampling.min_new[:, None]
    reason = jnp.where(hits & old, STOP, reason)
  ends = jnp.any(rows.eos[:, None] == tokens[..., None], -1)
  reason = jnp.where(ends, END, reason)
  reason = jnp.where(valid, reason, RUNNING)
  first = (jnp.cumsum(reason != RUNNING, 1) == 1) & (reason != RUNNING)
  ended = jnp.any(first, 1)
  at = jnp.sum(jnp.where(first, index, 0), 1)
  running = rows.finish == RUNNING
  kept = jnp.where(ended, at + 1, count - bad)
  kept = jnp.where(running, kept, 0)
  finish = jnp.sum(jnp.where(first, reason, 0), 1)
  finish = jnp.where(ended, finish, jnp.where(bad, NONFINITE, RUNNING))
  finish = jnp.where(running, finish, rows.finish)
  if states is not None:
    here = index == kept[:, None] - 1
    state = jnp.sum(jnp.where(here, states, 0), 1)
    states = jnp.where(kept > 0, state, rows.stop.state)
  return kept, finish, states


def _automaton(stop, tokens):
  """Whether a stop string of the row completes in each token; the states."""

  def one(state, token):
    hit = stop.hit.at[state, token].get(out_sharding=spec("batch"))
    state = stop.next.at[state, token].get(out_sharding=spec("batch"))
    state = state.astype(jnp.int32)
    return state, ((hit & stop.mask) != 0, state)

  _, (hits, states) = jax.lax.scan(one, stop.state, tokens.T)
  return hits.T, states.T


def commit(state: State, draft: Draft, scores: Scores, tokens, count):
  """Writes what was emitted: tokens [B W] of which `count` [B] -> (State,
  Info). Stops are resolved before anything is counted."""
  rows = state.rows
  kept, finish, stop = cut(rows, tokens, count, scores.finite)
  # A state may be wider than a round's K, if that changes from time to time.
  W = state.last.tokens.shape[1]
  info = _info(rows, draft, scores, count, kept, finish, W - 1)
  fill = lambda x: _fill(x, W)
  new = Commit(fill(tokens), fill(scores.features), kept, rows.length)
  last = choose(kept > 0, new, state.last)
  changes = dict(
      tokens=_write(rows.tokens, tokens, rows.length),
      length=rows.length + kept,
      finish=finish,
  )
  if stop is not None:
    changes["stop"] = rows.stop._replace(state=stop)
  if rows.counts is not None:
    real = jnp.arange(tokens.shape[1]) < kept[:, None]
    new = one_hot(tokens, rows.counts.shape[-1]) * real[..., None]
    output = rows.counts[:, 1] + jnp.sum(new, 1)
    changes["counts"] = jnp.stack([rows.counts[:, 0], output], 1)
  if rows.logprobs is not None:
    changes["logprobs"] = _record(rows, scores, tokens)
  return state._replace(rows=rows._replace(**changes), last=last), info


def _record(rows, scores, tokens):
  N = rows.logprobs.top.shape[-1]
  raw = jax.nn.log_softmax(scores.raw, -1)
  hot = one_hot(tokens, raw.shape[-1]) > 0
  pick = lambda m: jnp.sum(jnp.where(hot, m, 0), -1)
  top, top_tokens = jax.lax.top_k(laid(raw, "batch", None, None), N)
  new = Logprobs(pick(scores.logp), pick(raw), top, top_tokens)
  return jax.tree.map(
      lambda buffer, x: _write(buffer, x, rows.length), rows.logprobs, new
  )


def _info(rows, draft, scores, count, kept, finish, most):
  K = draft.tokens.shape[1]
  running = (rows.finish == RUNNING).astype(jnp.int32)
  accepted = (count - 1) * running
  index = jnp.arange(K)
  real = index < draft.count[:, None]
  reached = real & (index <= accepted[:, None])
  p = jnp.exp(scores.logp)
  q = jax.vmap(lambda d, p: laws(d, p)[0])(draft, p)
  overlap = jnp.sum(jnp.minimum(p, q), -1)[:, :K]
  fill = lambda x: _fill(x, most)
  return Info(
      rounds=running,
      drafted=draft.count,
      accepted=accepted,
      emitted=kept,
      bonus=(accepted == draft.count) * running,
      dropped=jnp.where(finish == NONFINITE, 0, count - kept) * running,
      reached=fill(reached.astype(jnp.int32)),
      passed=fill((real & (index < accepted[:, None])).astype(jnp.int32)),
      overlap=fill(jnp.where(reached, overlap, 0.0)),
  )


def step(target, drafter, state: State, *, rule=rules.token, mask=None):
  """One round of every row: propose, verify, accept, commit -> (State, Info).

  Pure. `rule` is `specjax.rules.token` or `.block`; `mask` as in `verify`.
  """
  draft, state = propose(target, drafter, state)
  widths = getattr(drafter, "widths", (drafter.K,))
  judge = lambda state, draft: _judged(
      target, drafter.taps, state, draft, rule, mask
  )
  # One row alone: several would round by what the others draft, and seldom
  # have all nothing to say.
  if len(widths) == 1 or draft.count.shape[0] > 1:
    return judge(state, draft)
  longest = draft.count[0]  # known before any draft that it cuts is drawn
  index = sum((longest > K).astype(jnp.int32) for K in widths[:-1])
  carry = state, empty_tally(state).info
  for i, K in enumerate(widths):
    # A loop of one turn or none: a switch would copy the caches.
    turn = lambda _, carry: judge(carry[0], _first(draft, K))  # noqa: B023
    carry = jax.lax.fori_loop(0, (index == i).astype(jnp.int32), turn, carry)
  return carry


def _first(draft: Draft, K: int) -> Draft:
  logits = None if draft.logits is None else draft.logits[:, :K]
  return Draft(draft.tokens[:, :K], logits, draft.count)


def _judged(target, taps, state, draft, rule, mask):
  """The round of a draft that is there."""
  keys = round_keys(state.rows, JUDGE)
  scores, state = verify(target, taps, state, draft, mask)
  # No law, no draft: what was drawn before tells whether a row is finite, so
  # the cut is exact, and no rule meets a NaN that it must not read.
  known = jnp.sum(jnp.cumprod(scores.finite.astype(jnp.int32), 1), 1)
  if draft.logits is not None:
    # All -inf, as a greedy law of NaN is, is no law either.
    drawn = jnp.isfinite(jnp.max(draft.logits, -1))
    sound = jnp.sum(jnp.cumprod(drawn.astype(jnp.int32), 1), 1)
    known = jnp.minimum(known, sound)
  draft = draft._replace(count=jnp.minimum(draft.count, known))
  even = -jnp.log(scores.logp.shape[-1])  # a law to read, never to draw from
  logp = jnp.where(scores.finite[..., None], scores.logp, even)
  scores = scores._replace(logp=logp)
  tokens, count = jax.vmap(rule)(keys, draft, scores.logp)
  return commit(state, draft, scores, tokens, count)


def empty_tally(state: State) -> Tally:
  """A Tally of zeros for the rows and the K of this state."""
  K = state.last.tokens.shape[1] - 1
  zero = jnp.zeros_like(state.rows.length)
  wide = jnp.broadcast_to(zero[:, None], (zero.shape[0], K))
  one = [zero] * 6 + [wide, wide, wide.astype(jnp.float32)]
  return Tally(Info(*one), jnp.int32(0))


def bearable(rows: Rows, idle: int | None) -> jax.Array:
  """How many rows may stand still while others run, if `idle` (None: all but
  one) of those in use may."""
  most = jnp.int32(rows.length.shape[0] - 1)
  unused = jnp.sum(rows.finish == UNUSED)
  return most if idle is None else jnp.minimum(idle + unused, most)


def add(tally: Tally, info: Info) -> Tally:
  return Tally(jax.tree.map(jnp.add, tally.info, info), tally.steps + 1)


@jax.jit(static_argnames=("rule", "mask"), donate_argnames="state")
def generate(
    target,
    drafter,
    state: State,
    *,
    rule: Callable = rules.token,
    mask: Callable | None = None,
    idle: int | None = None,
    rounds: int = 2**30,
) -> tuple[State, Tally]:
  """Rounds until every row has finished: one XLA program, no host trips.

  Leaves early after `rounds` rounds, or when more than `idle` rows have
  finished (to refill them). The state is donated: pass it once.
  """
  idle = bearable(state.rows, idle)

  def going(carry):
    state, tally = carry
    finished = jnp.sum(state.rows.finish != RUNNING)
    return (finished <= idle) & (tally.steps < rounds)

  def body(carry):
    state, info = step(target, drafter, carry[0], rule=rule, mask=mask)
    return state, add(carry[1], info)

  start = (state, empty_tally(state))
  return jax.lax.while_loop(going, body, start)
