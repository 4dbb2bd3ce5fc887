"""What a round's parts cost, in loops of one program, by turns."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine, states
from specjax.bench.machine import timed
from specjax.drafters.nothing import Nothing
from specjax.processes import agreed
from specjax.sharding import spec
from specjax.stream import stream

LOOP = 40  # rounds
TURNS = 9  # of the loops


def costs(
    target, drafter, rule: Callable, texts: list[list[int]], law: dict,
    window: int = 1,
) -> dict[str, float]:
  """Milliseconds a round of the parts of rounds after prompts, under a law.

  propose: K draft steps; verify: the target's pass over K + 1 tokens and
  their law; both: these in turn, where each finds the processor's cache as
  the other leaves it; rounds: whole rounds in a loop; one: whole rounds
  without drafts, over `window`; streamed: rounds by a host loop. Medians over
  turns of what each took beside `one` in the same turn, since machines drift.
  """
  K = max(drafter.K, 1)
  state = states.prefill(
      target, drafter, texts, max_new_tokens=LOOP * (K + 2), sampling=law
  )
  draft, _ = jax.jit(engine.propose)(target, drafter, state)
  args, plain = (target, drafter, state), Nothing(window)
  bare = states.prefill(
      target, plain, texts, max_new_tokens=2 * LOOP, sampling=law,
      capacity=state.rows.tokens.shape[1],
  )
  copy = lambda: states.fork(state, range(len(texts)), 0)
  tasks = dict(
      propose=lambda _: _propose(*args),
      verify=lambda _: _verify(*args, draft),
      one=lambda _: _rounds(target, plain, bare, rule=rule),
      both=lambda _: _both(*args),
      rounds=lambda _: _rounds(*args, rule=rule),
      streamed=lambda own: _streamed(target, drafter, own, rule),
  )
  spent: dict[str, list[float]] = {name: [] for name in tasks}
  for i in range(TURNS + 1):  # the first one compiles
    for name in list(tasks)[:: 1 if i % 2 else -1]:
      own = jax.block_until_ready(copy()) if name == "streamed" else None
      spent[name].append(timed(lambda: tasks[name](own))[0])  # noqa: B023
  one = np.array(spent["one"][1:])
  base = float(np.median(one)) * 1e3 / LOOP
  beside = lambda x: float(np.median(np.array(x[1:]) / one))
  return {name: base * beside(x) for name, x in spent.items()}


def baseline(target, texts: list[list[int]]) -> tuple[Nothing, float]:
  """(the faster of the windows that a pass without drafts can have, how long
  a window of two takes over one of one)."""
  both = [Nothing(1), Nothing(2)]
  state = [
      states.prefill(target, d, texts, max_new_tokens=LOOP) for d in both
  ]
  spent: list[list[float]] = [[], []]
  for i in range(TURNS + 1):
    for j in (0, 1) if i % 2 else (1, 0):
      own = jax.block_until_ready(states.fork(state[j], range(len(texts)), 0))
      run = lambda: engine.generate(target, both[j], own)  # noqa: B023
      spent[j].append(timed(run)[0])
  one, two = agreed([float(np.median(x[1:])) for x in spent])
  return both[int(two < one)], float(two / one)


def _varied(state, i, vocab):
  """The state with other keys and tokens, so that a pass hangs on the loop's
  counter and XLA can lift no part of it out of the loop."""
  rows, last = state.rows, state.last
  key = jax.vmap(jax.random.fold_in, (0, None))(rows.key, i)
  move = lambda tokens: (tokens + i) % vocab
  return state._replace(
      rows=rows._replace(key=key, tokens=move(rows.tokens)),
      last=last._replace(tokens=move(last.tokens)),
  )


@jax.jit
def _propose(target, drafter, state):
  def body(i, carry):
    dstate, total = carry
    now = _varied(state._replace(draft=dstate), i, target.vocab)
    draft, now = engine.propose(target, drafter, now)
    return now.draft, total + draft.tokens

  shape = state.rows.length.shape[0], drafter.K
  zero = jnp.zeros(shape, jnp.int32, out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state.draft, zero))[1]


@jax.jit
def _verify(target, drafter, state, draft):
  def body(i, carry):
    cache, total = carry
    now = _varied(state._replace(cache=cache), i, target.vocab)
    moved = draft._replace(tokens=(draft.tokens + i) % target.vocab)
    scores, now = engine.verify(target, drafter.taps, now, moved)
    return now.cache, total + jnp.max(scores.logp, -1) + scores.finite

  B, K = draft.tokens.shape
  zero = jnp.zeros((B, K + 1), out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state.cache, zero))[1]


@jax.jit
def _both(target, drafter, state):
  def body(i, carry):
    now, total = carry
    moved = _varied(now, i, target.vocab)
    draft, moved = engine.propose(target, drafter, moved)
    scores, moved = engine.verify(target, drafter.taps, moved, draft)
    now = now._replace(cache=moved.cache, draft=moved.draft)
    return now, total + jnp.max(scores.logp, -1) + scores.finite

  shape = state.rows.length.shape[0], drafter.K + 1
  zero = jnp.zeros(shape, out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state, zero))[1]


@jax.jit(static_argnames="rule")
def _rounds(target, drafter, state, *, rule):
  """Whole rounds in one place: the length is set back each time."""
  rows = state.rows

  def body(i, carry):
    now = _varied(carry[0], i, target.vocab)
    now, info = engine.step(target, drafter, now, rule=rule)
    back = dict(length=rows.length, finish=rows.finish, key=rows.key)
    now = now._replace(
        rows=now.rows._replace(**back),
        last=now.last._replace(start=rows.length - now.last.count),
    )
    return now, engine.add(carry[1], info)

  start = (state, engine.empty_tally(state))
  return jax.lax.fori_loop(0, LOOP, body, start)[1]


def _streamed(target, drafter, state, rule) -> Any:
  """LOOP rounds, one call of a program each, by a host that looks."""
  events = stream(target, drafter, state, rule=rule)
  for _, event in zip(range(LOOP), events):
    last = event
  return last.state.rows.length
