"""Programs of a few layers, from which lines lead to those of all layers."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Config
from specjax.plan import memory, programs, roofline
from specjax.plan.counts import Cost
from specjax.plan.programs import Exhausted, Facts, Shape
from specjax.plan.roofline import Batch

THREADS = 2  # the compiler itself uses little more than one core
# A program of the plan: "prefill", "draft", "plain", "loop", or K to verify.
Name = Any


class Depth(NamedTuple):
  target: int
  drafter: int


class Job(NamedTuple):
  name: Name
  batch: int
  depth: Depth


class Slices:
  """The programs of a pair at two depths, two batches and two K.

  Costs are linear in layers, rows and K, but for choices of the compiler; so
  what lies between is read off lines.
  """

  def __init__(
      self, target: Config, drafter: Config, slots: int, ks: Iterable[int],
      batches: Iterable[int], narrow: int,
  ):
    self.configs, self.slots, self.narrow = (target, drafter), slots, narrow
    ends = lambda x: sorted({min(x), max(x)})
    self.ks, self.batches = ends(ks), ends(batches)
    ours, theirs = programs.depths(target), programs.depths(drafter)
    at = lambda few, i: few[min(i, len(few) - 1)]
    self.depths = [
        Depth(at(ours, i), at(theirs, i))
        for i in range(max(len(ours), len(theirs)))
    ]
    self.facts: dict[Job, Facts] = {}

  def pair(self, depth: Depth | None = None) -> tuple:
    """The models, whole or cut to a depth."""
    target, drafter = self.configs
    if depth:
      target = programs.cut(target, depth.target)
      drafter = programs.cut(drafter, depth.drafter)
    return programs.model(target), programs.drafting(drafter, self.narrow)

  def held(self, pair: tuple, batch: int) -> int:
    """Bytes of the loop's state on a chip."""
    drafter = Autoregressive(pair[1], self.ks[-1])
    shape = Shape(batch, self.slots)
    return programs.held(programs.state(pair[0], drafter, shape))

  def lower(self, name: Name, pair: tuple, batch: int):
    """A program of a pair of models, traced."""
    target, drafter = pair
    shape = Shape(batch, self.slots)
    if name == "prefill":
      return programs.prefill(target, shape)
    if name == "draft":
      return programs.drafts(target, drafter, shape)
    if name == "plain":
      return programs.plain(target, shape)
    if name == "loop":
      return programs.loop(target, drafter, shape, self.ks[-1])
    return programs.verify(target, shape, name)

  def jobs(self) -> list[Job]:
    """All K at the first batch, the widest at the last; the loop, whose state
    is what grows, and a prompt's reading, whose temporaries do, at one."""
    first, last = self.batches[0], self.batches[-1]
    names = {
        ("prefill", last), ("loop", first), *((K, first) for K in self.ks),
        *((n, b) for n in ("plain", "draft", self.ks[-1])
          for b in self.batches),
    }
    jobs = [Job(*each, depth) for each in names for depth in self.depths]
    # What takes long, first.
    return sorted(jobs, key=lambda j: (j.name == "loop", j[1:]), reverse=True)

  def compile(
      self, mesh: jax.sharding.Mesh, batch: int, tick: Callable[[], None]
  ) -> Facts | Exhausted:
    """Compiles all jobs, and all layers of the loop for a batch -> facts of
    that, or why it does not fit. Raises ValueError when a slice does not."""

    def one(work):
      with jax.set_mesh(mesh):
        return work()

    def slice_of(job):
      lowered = self.lower(job.name, pairs[job.depth], job.batch)
      try:
        self.facts[job] = programs.compiled(lowered)
      except Exhausted as error:
        raise ValueError(
            f"batch {job.batch} at {self.slots} slots does not fit, even with"
            f" {job.depth.target} layers: {error}."
        ) from None
      tick()

    def whole():
      lowered = self.lower("loop", self.pair(), batch)
      return programs.compiled(lowered, cost=False)

    pairs = one(lambda: {depth: self.pair(depth) for depth in self.depths})
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
      full = pool.submit(one, whole)
      works = [functools.partial(slice_of, job) for job in self.jobs()]
      list(pool.map(one, works))
      try:
        return full.result()
      except Exhausted as error:
        return error

  def points(self, name: Name, batch: int) -> dict[int, Facts]:
    """By the number of layers of the model that the program runs."""
    role = name == "draft"
    return {d[role]: self.facts[name, batch, d] for d in self.depths}

  def cost(self, name: Name, batch: int) -> Cost:
    """Of the program with all layers."""
    points = {n: f.cost for n, f in self.points(name, batch).items()}
    return roofline.along(points, self.configs[name == "draft"].layers)

  def batch(self, size: int) -> Batch:
    """What was compiled for one of `batches`."""
    there = {job.name for job in self.facts if job.batch == size}
    passes = {K: self.cost(K, size) for K in self.ks if K in there}
    return Batch(
        {0: self.cost("plain", size)} | passes, self.cost("draft", size)
    )

  def layer(self, name: Name, batch: int) -> tuple[Cost, Cost]:
    """(the cost of one layer, of all that is no layer)."""
    points = {n: f.cost for n, f in self.points(name, batch).items()}
    one = roofline.along(points, 1)
    if len(points) == 1:
      return Cost(), one
    layer = roofline.along(points, 2).plus(one, -1)
    return layer, one.plus(layer, -1)

  def loop(self, states: dict[Depth, int], whole: float) -> float:
    """Bytes that the loop needs beside its arguments, where its state has
    `whole` bytes: they grow with it. `states`: what it has at each depth."""
    first = self.batches[0]
    return memory.line({
        n: self.facts["loop", first, d].beside for d, n in states.items()
    }, whole)

  def beside(
      self, states: dict[Depth, int], whole: float, size: int
  ) -> float:
    """What the neediest program wants for `size` rows; the reading of a
    prompt wants more with layers and rows."""
    last = self.batches[-1]
    reads = {n: f.beside for n, f in self.points("prefill", last).items()}
    read = memory.line(reads, self.configs[0].layers) * size / last
    return max(self.loop(states, whole), read, 0.0)
