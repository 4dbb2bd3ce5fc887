"""K chosen while it runs: rounds cost what was measured, drafts what passed.

Widths are chosen between bursts of rounds, by tokens a second of the whole
batch (TurboSpec's goodput, arXiv:2406.14066). What a width is chosen by was
known before its first draft was drawn, so no law is bent: rows are told
apart by counts of drafts that passed, halved as they age.
"""

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax import engine, rules, states
from specjax.types import RUNNING, Draft, State, Tally

WIDTHS = (1, 2, 4, 8)  # and 0, which is no drafts
BURST = 8  # rounds at one width; after a burst without drafts, K + 1
KEEP = 0.97  # of a count a round; its half is forgotten in 23
BELIEF = 4.0  # drafts that a row is taken to have seen pass like the others'
HOPE = 0.7  # acceptance before there is any evidence
PATIENCE = (64, 1024)  # rounds without drafts before they are tried again
log = logging.getLogger("specjax")


class Track(NamedTuple):
  """Decayed counts of drafts, a row each; arrays of numpy or jax."""

  passed: Any
  judged: Any


def track(rows: int) -> Track:
  return Track(np.zeros(rows), np.zeros(rows))


def learn(seen: Track, passed, judged, rounds) -> Track:
  """The track after `rounds` in which so many of a row's drafts passed."""
  old = KEEP**rounds
  return Track(seen.passed * old + passed, seen.judged * old + judged)


def acceptance(seen: Track):
  """Each row's chance that a draft passes, leaning on that of all rows."""
  passed = seen.passed.sum() + BELIEF * HOPE
  mean = passed / (seen.judged.sum() + BELIEF)
  return (seen.passed + BELIEF * mean) / (seen.judged + BELIEF)


def rates(alpha, seconds: dict[int, float]) -> dict:
  """Tokens a second of rows of acceptance alpha [B] for each K, with what a
  round of it costs."""
  return {
      K: sum(alpha**i for i in range(K + 1)) / spent
      for K, spent in seconds.items()
  }


def narrowed(drafter, K: int):
  """The same drafter, K tokens a round."""
  out = copy.copy(drafter)
  out.K = K
  return out


class _Silent(nnx.Module):
  """Drafts nothing, but keeps the features that another drafter taps."""

  vocab = max_length = None

  def __init__(self, taps, window: int):
    self.taps, self.K = taps, window - 1

  def propose(self, target, state: State, keys):
    zero = jnp.zeros_like(state.rows.length)
    tokens = jnp.broadcast_to(zero[:, None], (zero.shape[0], self.K))
    return Draft(tokens, None, zero), state


@jax.jit(
    static_argnames=("rule", "window", "feed"), donate_argnames="state"
)
def rest(
    target, drafter, state: State, *, rule, window, feed, idle, rounds
) -> tuple[State, Tally]:
  """At most `rounds` rounds without drafts; `last` gathers what they commit.

  The drafter reads that when it next drafts, or at once if asked to `feed`
  it first, when `last` has no more room: once in K + 1 tokens.
  """
  silent = _Silent(drafter.taps, window)
  gathered, dstate = state.last, state.draft
  W = gathered.tokens.shape[1]
  if feed:
    dstate = drafter.ingest(target, dstate, gathered)
    gathered = gathered._replace(
        count=jnp.zeros_like(gathered.count), start=state.rows.length
    )

  def going(carry):
    now, _, tally = carry
    done = jnp.sum(now.rows.finish != RUNNING)
    return (done <= idle) & (tally.steps < rounds)

  def body(carry):
    now, gathered, tally = carry
    now, info = engine.step(target, silent, now, rule=rule)
    here = jnp.arange(W) == gathered.count[:, None]
    here &= info.emitted[:, None] > 0
    put = lambda new, old: jnp.where(
        jnp.expand_dims(here, range(2, new.ndim)), new[:, :1], old
    )
    gathered = gathered._replace(
        tokens=put(now.last.tokens, gathered.tokens),
        features=put(now.last.features, gathered.features),
        count=gathered.count + info.emitted,
    )
    return now, gathered, engine.add(tally, info)

  begun = (state, gathered, engine.empty_tally(state, silent.K))
  now, gathered, tally = jax.lax.while_loop(going, body, begun)
  last = engine.choose(gathered.count > 0, gathered, state.last)
  return now._replace(draft=dstate, last=last), tally


class Auto:
  """Generates like `engine.generate`, a K of its own choosing at a time.

  Prefill with `drafter`, whose K is the most it may choose. The first call for
  a state of another shape calibrates, unless `seconds` a round by K, 0
  included, are given; rows may come and go.
  """

  def __init__(
      self, target, drafter, *, rule: Callable = rules.token,
      widths: Sequence[int] = WIDTHS, seconds: dict[int, float] | None = None,
  ):
    self.target, self.rule = target, rule
    self.most = drafter.K
    widths = {K for K in widths if K < drafter.K} | {drafter.K}
    self.drafters = {K: narrowed(drafter, K) for K in sorted(widths)}
    self.seconds, self.window, self._given = seconds, 1, seconds is not None
    self.calibrating = 0.0  # seconds spent on it so far
    self.rounds = {K: 0 for K in (0, *self.drafters)}  # made at each K
    self._seen, self._lengths = track(0), np.zeros(0, int)
    self._shape = None  # of the states that were calibrated for
    self._idle, self._patience, self._said = 0, PATIENCE[0], False

  def calibrate(self, state: State, turns: int = 3) -> None:
    """Measures what a round costs at each K, on copies of `state`.

    The first turn compiles. Medians over turns of all, which take turns.
    """
    began = time.perf_counter()
    rows = range(state.rows.length.shape[0])
    state = _awake(state, self.most)
    ways = [(K, 1) for K in (0, *self.drafters)] + [(0, 2)]
    spent: dict[tuple, list[float]] = {way: [] for way in ways}
    for i in range(turns + 1):
      for K, window in ways[:: 1 if i % 2 else -1]:
        own = jax.block_until_ready(states.fork(state, rows, i))
        start = time.perf_counter()
        _, tally = self._burst(own, K, window, None, BURST)
        steps = int(tally.steps)
        spent[K, window].append((time.perf_counter() - start) / steps)
    found = {way: float(np.median(x[1:])) for way, x in spent.items()}
    self.window = 2 if found[0, 2] < found[0, 1] else 1
    self.seconds = {K: found[K, 1] for K in self.drafters}
    self.seconds[0] = found[0, self.window]
    self.calibrating += time.perf_counter() - began

  def __call__(
      self, state: State, *, idle: int | None = None, rounds: int = 2**30
  ) -> tuple[State, Tally]:
    """As `engine.generate`; the Tally is on the host, as wide as the most K."""
    B = state.rows.length.shape[0]
    if not self._given and self._shape != state.rows.tokens.shape:
      self.calibrate(state)
      self._shape = state.rows.tokens.shape
    idle = B - 1 if idle is None else min(idle, B - 1)
    total = _wide(jax.device_get(engine.empty_tally(state, 0)), self.most)
    finish, lengths = jax.device_get((state.rows.finish, state.rows.length))
    self._welcome(lengths)
    while (finish != RUNNING).sum() <= idle and total.steps < rounds:
      K = self.choose(finish == RUNNING)
      burst = min(rounds - int(total.steps), BURST)
      state, tally = self._burst(state, K, self.window, idle, burst)
      tally, finish, self._lengths = jax.device_get(
          (tally, state.rows.finish, state.rows.length)
      )
      self._learn(K, tally)
      total = jax.tree.map(np.add, total, _wide(tally, self.most))
    return state, total

  def choose(self, running) -> int:
    """The K of the next rounds, for rows that are `running` [B]."""
    found = rates(acceptance(self._seen), self.seconds)
    best = max(found, key=lambda K: (found[K] * running).sum())
    if best:
      return best
    if self._idle < self._patience:
      self._say(running)
      return 0
    # One burst of the fewest drafts, ever more rarely while they stay bad.
    self._idle, self._patience = 0, min(2 * self._patience, PATIENCE[1])
    return min(self.drafters)

  def _say(self, running) -> None:
    if not self._said:
      alpha, rows = acceptance(self._seen)[running].mean(), running.sum()
      log.warning(
          "auto: drafts do not pay for a batch of %d, of which %.0f %% pass:"
          " off; they are tried again now and then.", rows, 100 * alpha,
      )
    self._said = True

  def _burst(self, state, K: int, window: int, idle, rounds: int):
    common = dict(rule=self.rule, rounds=rounds)
    if K:
      drafter = self.drafters[K]
      return engine.generate(
          self.target, drafter, state, idle=idle, **common
      )
    idle = state.rows.length.shape[0] - 1 if idle is None else idle
    room = self.most + 1 - int(np.max(state.last.count))
    feed = room < 1
    common["rounds"] = min(rounds, self.most + 1 if feed else room)
    return rest(
        self.target, self.drafters[self.most], state, window=window, feed=feed,
        idle=idle, **common,
    )

  def _welcome(self, lengths) -> None:
    """Rows that are not as they were left are new, and nothing is known."""
    if self._lengths.shape != lengths.shape:
      self._seen = track(len(lengths))
    else:
      same = self._lengths == lengths
      self._seen = Track(*(np.where(same, x, 0.0) for x in self._seen))
    self._lengths = lengths

  def _learn(self, K: int, tally: Tally) -> None:
    steps = int(tally.steps)
    self.rounds[K] += steps
    if not K:
      self._idle += steps
      return
    info = tally.info
    self._seen = learn(
        self._seen, info.passed.sum(1), info.reached.sum(1), info.rounds
    )
    found = rates(acceptance(self._seen), self.seconds)
    if max(found, key=lambda K: found[K].sum()):
      self._idle, self._patience, self._said = 0, PATIENCE[0], False


def _awake(state: State, most: int) -> State:
  """The state with rows that write on as long as they have slots."""
  rows = state.rows
  end = jnp.full_like(rows.limit, rows.tokens.shape[1] - most - 1)
  return state._replace(rows=rows._replace(
      limit=jnp.maximum(end, rows.length), eos=jnp.full_like(rows.eos, -1),
      finish=jnp.where(rows.length < end, RUNNING, rows.finish),
  ))


def _wide(tally: Tally, K: int) -> Tally:
  """Its positions filled up to K, with zeros."""
  by_position = ("reached", "passed", "overlap")
  fill = lambda x: np.pad(x, ((0, 0), (0, K - x.shape[1])))
  info = tally.info._replace(
      **{name: fill(getattr(tally.info, name)) for name in by_position}
  )
  return Tally(info, tally.steps)
