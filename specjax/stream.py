"""Text as it is written: a host loop over the step that `generate` loops."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from specjax import engine, rules
from specjax.processes import fetch
from specjax.stops import cut_at_stop
from specjax.types import RUNNING, UNUSED, State, Tally


class Event(NamedTuple):
  """What some rounds brought. `state` serves until the next event."""

  tokens: list[list[int]]  # new ones, a list a row
  finish: np.ndarray  # [B] codes of `types.REASONS`
  state: State
  tally: Tally  # sums since the stream began


def stream(
    target,
    drafter,
    state: State,
    *,
    rule: Callable = rules.token,
    mask: Callable | None = None,
    rounds: int = 1,
    run: Callable | None = None,
) -> Iterator[Event]:
  """Yields an Event every `rounds` rounds until all rows have finished.

  The same tokens as `engine.generate`. The state is donated; stopping early
  leaves the last event's state, from which anything can go on. `run`, such
  as an `auto.Auto` of this pair, makes the rounds in its own way.
  """
  if rounds < 1:
    raise ValueError(f"stream: rounds = {rounds} must be at least 1.")
  if run is not None and mask is not None:
    raise ValueError("stream: `run` knows no mask; give one of them.")
  # Flattened once: 270 leaves cost 0.4 to 0.9 ms a call as modules.
  leaves, tree = jax.tree.flatten((target, drafter))
  tally = engine.empty_tally(state)
  if run is not None:
    tally = fetch(tally)
  before, finish = fetch((state.rows.length, state.rows.finish))
  B = int(np.sum(finish != UNUSED))
  while (finish == RUNNING).any():
    if run is None:
      state, tally = _some(
          leaves, rounds, state=state, tally=tally, tree=tree, rule=rule,
          mask=mask,
      )
    else:
      state, more = run(state, rounds=rounds)
      tally = jax.tree.map(np.add, tally, more)
    tokens, now, finish = fetch(
        (state.rows.tokens, state.rows.length, state.rows.finish)
    )
    new = [t[a:b].tolist() for t, a, b in zip(tokens, before, now)]
    yield Event(new[:B], finish[:B], state, tally)
    before = now


@jax.jit(static_argnames=("tree", "rule", "mask"), donate_argnames="state")
def _some(leaves, rounds, *, state, tally, tree, rule, mask):
  pair = jax.tree.unflatten(tree, leaves)

  def body(_, carry):
    state, info = engine.step(*pair, carry[0], rule=rule, mask=mask)
    return state, engine.add(carry[1], info)

  return jax.lax.fori_loop(0, rounds, body, (state, tally))


class Visible:
  """Text that may be shown: no part of what may yet become a stop string."""

  def __init__(self, stops: Sequence[str]):
    self._stops, self._held = tuple(stops), ""

  def push(self, text: str) -> str:
    """Takes new text; returns what can be shown for certain."""
    self._held += text
    if any(s in self._held for s in self._stops):
      return ""  # `close` will tell whether that stopped the row
    most = min(len(self._held), max(map(len, self._stops), default=1) - 1)
    hold = next(
        (
            n for n in range(most, 0, -1)
            if any(s.startswith(self._held[-n:]) for s in self._stops)
        ),
        0,
    )
    shown = self._held[: len(self._held) - hold]
    self._held = self._held[len(shown) :]
    return shown

  def close(self, stopped: bool) -> str:
    """The rest, cut before the stop string if that ended the row."""
    held, self._held = self._held, ""
    return cut_at_stop(held, self._stops) if stopped else held
