"""A pair of models, a slice of a pod -> what it will hold and how fast it is.

Few programs are compiled: each at two depths, from which lines lead to the
whole, and one whole `generate` as proof that it fits.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.nothing import Nothing
from specjax.models.decoder import Config
from specjax.plan import memory, programs, roofline
from specjax.plan.chips import Slice
from specjax.plan.counts import Cost
from specjax.plan.memory import GIB, Memory
from specjax.plan.programs import Exhausted, Shape
from specjax.plan.roofline import Batch, Held
from specjax.plan.slices import Slices
from specjax.states import ALIGN

SECOND = 8  # times the first batch is compiled for too: lines need two


class Asked(NamedTuple):
  place: Slice
  target: Config
  drafter: Config
  batches: tuple[int, ...]
  context: int  # slots a row: its text and the widest window after it
  ks: tuple[int, ...]
  acceptance: float
  data: int = 1  # parts of the mesh that share rows
  narrow: int = 0  # model parts of the drafter; 0 = as many as the target's
  what_if: Slice | None = None


class Sums(NamedTuple):
  """Bytes a chip that are known without compiling."""

  weights: int  # of both models
  row: float  # of one row's state
  target: Held  # what a pass of the target reads; the cache of one row
  drafter: Held


def check(a: Asked) -> None:
  """Raises ValueError, in one sentence, for what no plan can be made of."""
  if not a.ks or not all(1 <= k <= 64 for k in a.ks):
    raise ValueError(f"k = {list(a.ks)}: each must lie in 1..64.")
  for batch in a.batches:
    if not 1 <= batch <= 4096 or batch % a.data:
      raise ValueError(
          f"batch = {batch}: it must lie in 1..4096 and be a multiple of the"
          f" mesh's {a.data} data parts."
      )
  if not 2 * ALIGN <= a.context <= 2**20 or a.context % ALIGN:
    raise ValueError(
        f"context = {a.context}: give a multiple of {ALIGN} slots from"
        f" {2 * ALIGN} to {2**20}."
    )
  if not 0 <= a.acceptance <= 1:
    raise ValueError(f"acceptance = {a.acceptance}: it must lie in 0..1.")
  if a.target.vocab != a.drafter.vocab:
    raise ValueError(
        f"drafter_model: its vocabulary has {a.drafter.vocab} tokens, the"
        f" target's {a.target.vocab}; choose a pair that shares one."
    )
  if a.what_if:
    parts = a.what_if.chips // a.data
    if a.what_if.chips % a.data or a.target.heads % parts:
      raise ValueError(
          f"what_if = {a.what_if.word!r}: the target's {a.target.heads} heads"
          f" do not spread over {a.what_if.chips} chips in {a.data} data parts;"
          " give a slice whose model parts divide them."
      )


def foresee(a: Asked, tick: Callable[[int, int], None]) -> dict:
  """The plan as numbers and words, fit for JSON; `tick(done, total)`.

  Raises ValueError for what `check` refuses, for a slice that libtpu does not
  know, and, with the missing bytes, when no batch that was asked for fits.
  """
  check(a)
  start = time.monotonic()
  numbers = dict(
      topology=a.place.word, chips=a.place.chips,
      mesh=f"{a.data}x{a.place.chips // a.data}", context=a.context,
      acceptance=a.acceptance, k=list(a.ks), batches=list(a.batches),
      target=dict(parameters=programs.parameters(a.target)),
      drafter=dict(parameters=programs.parameters(a.drafter)),
  )
  first = min(a.batches)
  some = lambda batches: Slices(
      a.target, a.drafter, a.context, a.ks, batches, a.narrow
  )
  mesh = programs.mesh(a.place, a.data, a.narrow)
  with jax.set_mesh(mesh):
    sums = add(a, some((first,)))
    rooms = _rooms(a, sums, lambda rows: 0.0)
    refuse(rooms)
    slices = some((first, _second(a, rooms[0]["largest"])))
    states = {
        depth: slices.held(slices.pair(depth), slices.batches[0])
        for depth in slices.depths
    }
  total = len(slices.jobs()) + 1
  steps = iter(range(1, total + 1))
  one = lambda: tick(next(steps), total)
  fitting = next(r["batch"] for r in rooms if not r["unfit"])
  found = slices.compile(mesh, fitting, one)
  one()
  beside = lambda rows: slices.beside(states, sums.row * rows, rows)
  rooms = _rooms(a, sums, beside)
  room = next(r for r in rooms if r["batch"] == fitting)
  fit = dict(batch=fitting, k=slices.ks[-1], refused=None)
  if isinstance(found, Exhausted):
    fit["refused"] = (
        f"batch {fitting} at {a.context} slots does not fit: {found}."
    )
    for room in rooms:
      room["largest"] = min(room["largest"], fitting - a.data)
      room["unfit"] = room["unfit"] or fit["refused"]
  else:
    held = room["weights"] + room["cache"]
    foretold = held + slices.loop(states, room["cache"])
    needs = found.arguments + found.beside
    fit |= dict(
        foretold=foretold, compiled=needs, off=foretold / needs - 1,
        temporaries=found.temporaries, aliased=found.aliased,
    )
  refuse(rooms)
  known = {batch: slices.batch(batch) for batch in slices.batches}
  read = slices.cost("prefill", slices.batches[-1])
  return numbers | dict(
      memory=rooms, usable=a.place.chip.usable * GIB, fit=fit,
      compiled=dict(batches=slices.batches, k=slices.ks),
      collectives=_collectives(slices), loop=_loop(slices),
      prefill=dict(
          batch=slices.batches[-1], tokens=programs.CHUNK, flops=read.flops,
          bytes=read.bytes, **_times(read, a.place),
      ),
      **_speeds(a, known, sums, a.place),
      what_if=_elsewhere(a, known, sums) if a.what_if else None,
      compiling_seconds=time.monotonic() - start,
  )


def _second(a: Asked, most: int) -> int:
  """Another batch than the first, which fits too, to draw lines through."""
  first, last = min(a.batches), max(a.batches)
  second = SECOND * first if first == last else min(last, SECOND * first)
  if min(second, most) > first:
    return min(second, most)
  # Of so few rows no fewer can be asked for; a few layers may hold more.
  return second if first == a.data else first // 2 // a.data * a.data


def add(a: Asked, slices: Slices) -> Sums:
  """What the shapes alone tell."""
  target, drafter = pair = slices.pair()
  shape = Shape(a.data, a.context)
  ours = programs.state(target, Nothing(), shape).cache
  drafting = Autoregressive(drafter, 1)
  theirs = programs.state(target, drafting, shape).draft
  row = lambda held: held / a.data
  return Sums(
      programs.held(pair), row(slices.held(pair, a.data)),
      Held(_read(target, a.target), row(programs.held(ours))),
      Held(_read(drafter, a.drafter), row(programs.held(theirs))),
  )


def _read(model, c: Config) -> int:
  """Bytes of weights that a pass reads: of a table of its own for tokens, a
  row each."""
  model = getattr(model, "model", model)
  table = 0 if c.tied else programs.held(model.embedding)
  return programs.held(model) - table


def _rooms(a: Asked, sums: Sums, beside: Callable[[int], float]) -> list[dict]:
  """What each batch takes, and a sentence about each that does not fit."""
  chip, out = a.place.chip, []
  most = memory.largest(sums.weights, sums.row, beside, chip, a.data)
  for batch in a.batches:
    found = Memory(sums.weights, sums.row * batch, beside(batch))
    out.append(dict(
        batch=batch, **found._asdict(), total=found.total, largest=most,
        unfit=memory.unfit(batch, a.context, found, chip, most),
    ))
  return out


def refuse(rooms: list[dict]) -> None:
  """Raises ValueError when none of the batches fits."""
  if all(room["unfit"] for room in rooms):
    raise ValueError(rooms[0]["unfit"])


def _collectives(slices: Slices) -> list[dict]:
  """Those of a plain pass and of the widest, by layer and beside layers."""
  out = []
  for name in ("plain", slices.ks[-1]):
    layer, rest = slices.layer(name, slices.batches[0])
    for place, cost in (("a layer", layer), ("beside layers", rest)):
      out += [
          dict(program=name, where=place, times=n, **t._asdict())
          for t, n in sorted(cost.transfers.items()) if abs(n) > 1e-6
      ]
  return out


def _loop(slices: Slices) -> dict:
  """A round of the compiled loop at its larger depth, over its parts'."""
  K, batch, depth = slices.ks[-1], slices.batches[0], slices.depths[-1]
  one = lambda name: slices.facts[name, batch, depth].cost
  parts, whole = one(K).plus(one("draft"), K), one("loop")
  return dict(
      k=K, flops=whole.flops / parts.flops, bytes=whole.bytes / parts.bytes
  )


def _times(cost: Cost, place: Slice) -> dict:
  found = roofline.seconds(cost, place)
  return found._asdict() | dict(total=found.total)


def _speeds(a: Asked, known: dict, sums: Sums, place: Slice) -> dict:
  """Times on a slice, of costs that belong to it."""
  table, speeds, best = [], [], []
  for batch in a.batches:
    costs = roofline.batch_of(known, batch)
    named = dict(plain=costs.passes[0], draft=costs.draft) | {
        f"verify {K}": roofline.along(costs.passes, K) for K in a.ks
    }
    for name, cost in named.items():
      held = sums.drafter if name == "draft" else sums.target
      table.append(dict(
          batch=batch, program=name, flops=cost.flops, bytes=cost.bytes,
          once=held.weights + held.cache * batch, **_times(cost, place),
      ))
    speeds += [
        dict(batch=batch, **roofline.speed(costs, place, a.acceptance, K))
        for K in a.ks
    ]
    K, gain = roofline.best(costs, place, a.acceptance)
    best.append(dict(batch=batch, k=K, speedup=gain))
  points, vanishes = roofline.curve(known, place, a.acceptance, a.data)
  return dict(
      programs=table, speed=speeds, best=best, vanishes=vanishes,
      curve=[dict(batch=b, k=K, speedup=gain) for b, K, gain in points],
  )


def _elsewhere(a: Asked, known: dict, sums: Sums) -> dict:
  """The same on a slice that was not compiled for, by formula."""
  there = a.what_if
  parts = (a.place.chips // a.data, there.chips // a.data)
  # A drafter that cannot be cut so far stays as narrow as it was.
  cut = not a.narrow and a.drafter.heads % parts[1] == 0
  ours = lambda held: roofline.shared(held, parts, a.target.kv_heads)
  theirs = lambda held: (
      roofline.shared(held, parts, a.drafter.kv_heads) if cut else held
  )
  moved = {}
  for batch, x in known.items():
    rows = lambda held: held._replace(cache=held.cache * batch)  # noqa: B023
    one = rows(sums.target)
    go = lambda cost: roofline.scaled(cost, one, ours(one), parts)  # noqa: B023
    draft, held = x.draft, rows(sums.drafter)
    if cut:
      draft = roofline.scaled(draft, held, theirs(held), parts)
    moved[batch] = Batch({K: go(cost) for K, cost in x.passes.items()}, draft)
  there_sums = sums._replace(
      target=ours(sums.target), drafter=theirs(sums.drafter)
  )
  return dict(
      topology=there.word, chips=there.chips, drafter_cut=cut,
      **_speeds(a, moved, there_sums, there),
  )
