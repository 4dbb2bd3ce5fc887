"""Races: drafts and no drafts in turn over the same prompts, line by line.

Timings drift from minute to minute, so what is compared takes turns within
one run, A B, B A, and each pair is one line of the results.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from specjax import metrics, states
from specjax.bench.machine import timed
from specjax.types import Tally

CHUNKS = (64, 256)  # tokens of a prompt read at once


class Group(NamedTuple):
  """Prompts that are generated together, as token ids."""

  ids: list[str]
  categories: list[str]
  tokens: list[list[int]]


class Side(NamedTuple):
  """A way to generate: what is prefilled for, and rounds of it.

  run(state, rounds=, idle=) -> (state, Tally); the state is donated.
  """

  target: Any
  drafter: Any
  run: Callable[..., tuple[Any, Tally]]


def groups(prompts, tokens: list[list[int]], batch: int) -> list[Group]:
  """Batches of `batch` prompts in their order; the last one is filled up with
  the first prompts, so that all programs have one shape."""
  if not 1 <= batch:
    raise ValueError(f"batch = {batch} must be at least 1.")
  order = [i % len(prompts) for i in range(-(-len(prompts) // batch) * batch)]
  return [
      Group(
          [prompts[i].id for i in part], [prompts[i].category for i in part],
          [tokens[i] for i in part],
      )
      for part in (order[n : n + batch] for n in range(0, len(order), batch))
  ]


def distinct(tokens: list[int], n: int = 4) -> float:
  """The share of a text's n-grams that are different ones; a loop has few. A
  text too short for any repeats nothing: 1."""
  grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
  return len(set(grams)) / len(grams) if grams else 1.0


class Task(NamedTuple):
  """What both sides are asked for; texts end by `eos`, if there is any."""

  new_tokens: int
  sampling: dict
  seed: int = 0
  eos: tuple[int, ...] = ()
  capacity: int | None = None  # slots of a row; None = what a group needs


def once(side: Side, group: Group, task: Task, turn: int = 0):
  """One generation from the bare prompts -> (its line's part, texts).

  `first`: seconds until every row has tokens; `seconds`: from then on, for
  `later` tokens.
  """
  start = time.perf_counter()
  state = states.prefill(
      side.target, side.drafter, group.tokens,
      max_new_tokens=task.new_tokens, eos=task.eos,
      seed=task.seed + turn * len(group.tokens),
      sampling=task.sampling, chunks=CHUNKS, capacity=task.capacity,
  )
  state, tally = jax.block_until_ready(side.run(state, rounds=1))
  first = time.perf_counter() - start
  early = metrics.counts(tally)
  spent, (state, tally) = timed(lambda: side.run(state))
  late = metrics.counts(tally)
  texts = states.outputs_of(state)
  part = dict(
      first=first, seconds=spent, later=sum(x["emitted"] for x in late),
      rows=[metrics.pool(pair) for pair in zip(early, late)],
      distinct=[distinct(text) for text in texts],
  )
  return part, texts


def race(
    sides: tuple[Side, Side], found: list[Group], task: Task, repeats: int,
    done: Callable[[int, int], bool] = lambda group, turn: False,
) -> Iterator[tuple[str, dict]]:
  """Yields ("compile", its seconds), then ("turn", line) for each group and
  turn that is not `done`; `sides` are drafts and no drafts.

  A shape of state that has not run yet is run once before, apart.
  """
  warm = set()
  for n, group in enumerate(found):
    if all(done(n, i) for i in range(repeats)):
      continue
    reads = max(map(len, group.tokens))
    # What decides on programs: slots, an encoder's too, and widths of reading.
    shape = (
        task.capacity or room(group, task.new_tokens, sides[0].drafter.K),
        states.source_bucket(reads), reads > CHUNKS[-1],
    )
    if shape not in warm:
      warm.add(shape)
      start = time.perf_counter()
      for side in sides:
        once(side, group, task)
      yield "compile", dict(seconds=time.perf_counter() - start)
    for i in range(repeats):
      if done(n, i):
        continue
      parts = [None, None]
      for j in (0, 1) if (i + n) % 2 else (1, 0):
        # Seeds of its own: rows of one seed share noise at equal lengths.
        parts[j], _ = once(sides[j], group, task, i * len(found) + n)
      yield "turn", dict(
          group=n, turn=i, prompts=group.ids, categories=group.categories,
          drafts=parts[0], plain=parts[1],
      )


def room(group: Group, new_tokens: int, K: int) -> int:
  """Slots of the state that `once` makes: what decides whether it compiles."""
  longest = max(map(len, group.tokens)) + new_tokens
  return states.bucket(longest, max(K + 1, *CHUNKS))
