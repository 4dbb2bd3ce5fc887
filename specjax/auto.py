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
from specjax.processes import agreed, fetch
from specjax.types import RUNNING, UNUSED, Draft, State, Tally

WIDTHS = (1, 2, 4, 8)  # and 0, which is no drafts
BURST = 8  # rounds before the host looks up
TRIAL = 4  # where little is known, or drafts have failed
KEEP = 0.97  # of a row's count a round; its half is forgotten in 23
LONG = 0.995  # of the count of all rows there ever were
BELIEF = 4.0  # drafts that a row is taken to have seen pass like the others'
HOPE = 0.7  # acceptance before there is any evidence
PATIENCE = (32, 1024)  # rounds without drafts before they are tried again
log = logging.getLogger("specjax")


class Track(NamedTuple):
  """Decayed counts of drafts, a row each; arrays of numpy or jax."""

  passed: Any
  judged: Any


def track(rows: int) -> Track:
  return Track(np.zeros(rows), np.zeros(rows))


def learn(seen: Track, passed, judged, rounds, keep=KEEP) -> Track:
  """The track after `rounds` in which so many of a row's drafts passed."""
  old = keep**rounds
  return Track(seen.passed * old + passed, seen.judged * old + judged)


def acceptance(seen: Track, every: Track):
  """Each row's chance that a draft passes, leaning on that of `every` row
  there was so far, a single count."""
  mean = (every.passed + BELIEF * HOPE) / (every.judged + BELIEF)
  return (seen.passed + BELIEF * mean) / (seen.judged + BELIEF)


def rates(alpha, seconds: dict[int, float]) -> dict:
  """Tokens a second of rows of acceptance alpha [B], by K; `seconds`: what a
  round costs at each."""
  return {
      K: sum(alpha**i for i in range(K + 1)) / spent
      for K, spent in seconds.items()
  }


def with_k(drafter, K: int):
  """The same drafter, K tokens a round: a copy whose `K` is another, which
  nothing that it keeps hangs on (`engine.Drafter`)."""
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


@jax.jit(static_argnames=("rule", "window"), donate_argnames="state")
def rest(
    target, drafter, state: State, *, rule, window, idle, rounds
) -> tuple[State, Tally]:
  """At most `rounds` rounds without drafts; `last` counts what they commit.

  A drafter without taps reads that from the text when it next drafts
  (`states.caught_up`), which may be never. One with taps is handed it whenever
  `last` has no more room, once in K + 1 tokens.
  """
  silent, W = _Silent(drafter.taps, window), state.last.tokens.shape[1]
  idle = engine.bearable(state.rows, idle)

  def going(carry):
    now, _, tally = carry
    done = jnp.sum(now.rows.finish != RUNNING)
    return (done <= idle) & (tally.steps < rounds)

  def fed(_, carry):
    dstate, gathered = carry
    dstate = drafter.ingest(target, dstate, gathered)
    some = gathered.count > 0
    return dstate, engine.choose(some, engine.final(gathered, W), gathered)

  def body(carry):
    now, gathered, tally = carry
    if drafter.taps:
      # A loop of one turn or none: a branch would copy the drafter's cache.
      full = jnp.any(gathered.count == W).astype(jnp.int32)
      dstate, gathered = jax.lax.fori_loop(0, full, fed, (now.draft, gathered))
      now = now._replace(draft=dstate)
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

  begun = (state, state.last, engine.empty_tally(state))
  now, gathered, tally = jax.lax.while_loop(going, body, begun)
  return now._replace(last=gathered), tally


class Auto:
  """Generates like `engine.generate`, a K of its own choosing at a time.

  Prefill with `drafter`, whose K is the most it may choose. The first call for
  a state of another shape calibrates, unless `seconds` a round by K, 0
  included, are given; rows may come and go. A text may then depend on the
  clock and on its neighbours; its law does not.
  """

  def __init__(
      self, target, drafter, *, rule: Callable = rules.token,
      widths: Sequence[int] = WIDTHS, seconds: dict[int, float] | None = None,
  ):
    if drafter.K < 1 or min(widths, default=1) < 1:
      raise ValueError(
          f"auto: K = {drafter.K}, widths = {tuple(widths)}; give a drafter and"
          " widths of at least 1."
      )
    self.target, self.rule = target, rule
    self.most = drafter.K
    widths = {K for K in widths if K < drafter.K} | {drafter.K}
    self.drafters = {K: with_k(drafter, K) for K in sorted(widths)}
    if seconds is not None and set(seconds) != {0, *self.drafters}:
      raise ValueError(
          f"auto: seconds are given for K {sorted(seconds)}; give them for"
          f" {[0, *self.drafters]}."
      )
    self.rounds = {K: 0 for K in (0, *self.drafters)}  # made at each K
    self.calibrating = 0.0  # seconds spent on it so far
    self._given, self._costs = seconds, {}  # by the shape of a state
    self._seen, self._lengths = track(0), np.zeros(0, int)
    self._every = Track(0.0, 0.0)
    self._idle, self._patience, self._said = 0, PATIENCE[0], False
    self._trying = 0  # rounds that are left of a trial

  def calibrate(self, state: State, turns: int = 3) -> None:
    """Measures what a round costs at each K, on copies of `state`.

    The ways take turns; the first turn compiles and does not count.
    """
    began = time.perf_counter()
    B = state.rows.length.shape[0]
    state = _awake(state, self.most)
    ways = [(K, 1) for K in (0, *self.drafters)] + [(0, 2)]
    spent: dict[tuple, list[float]] = {way: [] for way in ways}
    for i in range(turns + 1):
      for K, window in ways[:: 1 if i % 2 else -1]:
        own = jax.block_until_ready(states.fork(state, range(B), i))
        start = time.perf_counter()
        # Without drafts so many that taps are handed on, as they are at times.
        rounds = BURST if K else 2 * (self.most + 1)
        own, tally = self._burst(own, K, window, B - 1, rounds)
        steps = max(int(tally.steps), 1)
        spent[K, window].append((time.perf_counter() - start) / steps)
        # Compiles what reads on after a rest.
        states.caught_up(self.target, self.drafters[self.most], own)
    # One clock for all processes, which have to choose alike.
    found = agreed([float(np.median(x[1:])) for x in spent.values()])
    found = dict(zip(spent, found))
    window = 2 if found[0, 2] < found[0, 1] else 1
    seconds = {0: found[0, window]} | {K: found[K, 1] for K in self.drafters}
    self._costs[state.rows.tokens.shape] = seconds, window
    self.calibrating += time.perf_counter() - began

  def costs(self, state: State) -> tuple[dict[int, float], int]:
    """(seconds a round by K, the window of rounds without drafts) for states
    of this shape."""
    if self._given is not None:
      return self._given, 1
    shape = state.rows.tokens.shape
    if shape not in self._costs:
      self.calibrate(state)
    return self._costs[shape]

  def __call__(
      self, state: State, *, idle: int | None = None, rounds: int = 2**30
  ) -> tuple[State, Tally]:
    """As `engine.generate`; the Tally is on the host, as wide as the most K."""
    seconds, window = self.costs(state)
    total, left = None, rounds
    finish, lengths = fetch((state.rows.finish, state.rows.length))
    most = int(np.sum(finish != UNUSED)) - 1
    idle = most if idle is None else min(idle, most)
    self._welcome(lengths)
    while left > 0:
      running = finish == RUNNING
      if most + 1 - running.sum() > idle:
        break
      K = self.choose(seconds, running)
      burst = min(left, self._length(K))
      state, tally = self._burst(state, K, window, idle, burst)
      tally, finish, self._lengths = fetch(
          (tally, state.rows.finish, state.rows.length)
      )
      self._learn(K, tally, seconds, running)
      left -= int(tally.steps)
      total = tally if total is None else jax.tree.map(np.add, total, tally)
    return state, fetch(engine.empty_tally(state)) if total is None else total

  def choose(self, seconds: dict[int, float], running) -> int:
    """The K of the next rounds, for rows that are `running` [B]."""
    best = self._best(seconds, running)
    if best:
      return best
    if self._trying <= 0:
      if self._idle < self._patience:
        self._say(running)
        return 0
      # A few rounds of the fewest drafts, ever more rarely while they fail.
      self._idle, self._trying = 0, TRIAL
      self._patience = min(2 * self._patience, PATIENCE[1])
    return min(self.drafters)

  def _length(self, K: int) -> int:
    """Rounds until the next choice."""
    if not K:
      return self._patience - self._idle
    return TRIAL if self._every.judged < 2 * BURST or self._trying else BURST

  def _best(self, seconds, running) -> int:
    found = rates(acceptance(self._seen, self._every), seconds)
    return max(found, key=lambda K: (found[K] * running).sum())

  def _say(self, running) -> None:
    if not self._said:
      rows, judged = running.sum(), self._seen.judged[running].sum()
      mean = acceptance(self._seen, self._every)[running].mean()
      share = f" ({mean:.0%} of them pass)"
      log.warning(
          "auto: drafts do not pay at batch %d%s; off, tried again now and"
          " then.", rows, share if judged else "",
      )
    self._said = True

  def _burst(self, state, K: int, window: int, idle: int, rounds: int):
    if K:
      state = states.caught_up(
          self.target, self.drafters[self.most], state
      )
      return engine.generate(
          self.target, self.drafters[K], state, rule=self.rule, idle=idle,
          rounds=rounds,
      )
    return rest(
        self.target, self.drafters[self.most], state, rule=self.rule,
        window=window, idle=idle, rounds=rounds,
    )

  def _welcome(self, lengths) -> None:
    """Rows that are not as they were left are new, and nothing is known."""
    if self._lengths.shape != lengths.shape:
      self._seen = track(len(lengths))
    else:
      same = self._lengths == lengths
      self._seen = Track(*(np.where(same, x, 0.0) for x in self._seen))
    self._lengths = lengths

  def _learn(self, K: int, tally: Tally, seconds, running) -> None:
    steps, info = int(tally.steps), tally.info
    self.rounds[K] += steps
    if not K:
      self._idle += steps
      return
    self._trying -= steps
    # A round whose drafts did not all pass has one that failed, or that was
    # not made: to a width that is no difference.
    passed = info.passed.sum(1)
    judged = passed + info.rounds - info.passed[:, K - 1]
    self._seen = learn(self._seen, passed, judged, info.rounds)
    self._every = learn(
        self._every, passed.sum(), judged.sum(), info.rounds.max(), LONG
    )
    if self._best(seconds, running):
      self._idle, self._patience, self._said = 0, PATIENCE[0], False
      self._trying = 0


def _awake(state: State, most: int) -> State:
  """The state with rows that write on as long as they have slots; those that
  had finished stand half-way, where rows to come may be expected."""
  rows = state.rows
  slots = rows.tokens.shape[1]
  end = jnp.full_like(rows.limit, slots - most - 1)
  half = jnp.where(rows.finish == RUNNING, rows.length, slots // 2)
  length = jnp.minimum(half, jnp.maximum(end - 2 * BURST * (most + 1), 2))
  rows = rows._replace(
      length=length, limit=end, eos=jnp.full_like(rows.eos, -1),
      finish=jnp.full_like(rows.finish, RUNNING),
  )
  last = state.last._replace(start=length - state.last.count)
  return state._replace(rows=rows, last=last)
