"""The programs of the engine, compiled for chips that are not here.

Models and states are shapes only. Every function that makes some wants the
mesh of `mesh` to be set (`jax.set_mesh`).
"""

import dataclasses
import importlib.util
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies

from specjax import engine, sharding, states
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.nothing import Nothing
from specjax.models.decoder import Config, Decoder
from specjax.models.narrow import Narrow
from specjax.plan import counts
from specjax.plan.chips import Slice
from specjax.sharding import spec
from specjax.types import RUNNING, Commit, Draft, Rows, Sampling, State

CHUNK = states.CHUNKS[-1]  # tokens of a prompt that are read at once


class Given(NamedTuple):
  """A drafter that has its draft already, so that a step only judges."""

  draft: Draft

  taps = ()
  vocab = max_length = None

  @property
  def K(self) -> int:
    return self.draft.tokens.shape[1]

  def init(self, target, source, capacity):
    return ()

  def ingest(self, target, dstate, commit):
    return ()

  def propose(self, target, state, keys):
    return self.draft, state


class Shape(NamedTuple):
  """What a program is compiled for; `narrow` as --drafter_shards."""

  batch: int
  slots: int
  narrow: int = 0


class Exhausted(ValueError):
  """A program that the chip's memory cannot hold."""


def mesh(place: Slice, data: int = 1, narrow: int = 0) -> jax.sharding.Mesh:
  """All chips of a slice as `data` x model parts.

  Raises ValueError where libtpu is missing or knows no such slice.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise ValueError(
        "plan: the TPU compiler, libtpu, is not installed; pip install"
        " '.[plan]' brings it (Linux, x86-64)."
    )
  try:
    found = topologies.get_topology_desc(
        topology_name=place.word, platform="tpu", **dict(place.chip.settings)
    ).devices
  except (RuntimeError, ValueError) as error:
    said = " ".join(str(error).split())[:160].rstrip(".")
    raise ValueError(
        f"topology = {place.word!r}: libtpu cannot compile for it ({said});"
        " give a slice that exists, and what_if for larger ones."
    ) from None
  if len(found) % data:
    raise ValueError(
        f"mesh: {data} data parts do not divide the {len(found)} chips of"
        f" {place.word}."
    )
  return sharding.mesh(
      data, len(found) // data, narrow=narrow or None, devices=found
  )


def cut(c: Config, layers: int) -> Config:
  """The first so many layers of a decoder."""
  dense = tuple(i for i in c.dense if i < layers)
  return dataclasses.replace(
      c, layers=layers, windows=c.windows[:layers], dense=dense
  )


def depths(c: Config) -> tuple[int, ...]:
  """Depths from which the whole is foreseen: two that hold whole periods of
  its kinds of layers, or its own where it is not much deeper."""
  windows = c.windows or (0,) * c.layers
  kinds = [(w, i in c.dense) for i, w in enumerate(windows)]
  period = next(
      p for p in range(1, c.layers + 1)
      if all(k == kinds[i % p] for i, k in enumerate(kinds))
  )
  few = (2, 6) if period == 1 else (period, 2 * period)
  return few if few[-1] < c.layers else (c.layers,)


def model(c: Config) -> Decoder:
  return jax.eval_shape(lambda: Decoder(c, rngs=nnx.Rngs(0)))


def drafting(c: Config, narrow: int) -> nnx.Module:
  """The drafter's model, on its own number of model parts if it has one."""
  if not narrow:
    return model(c)
  with sharding.narrowed():
    return Narrow(model(c))


def state(target, drafter, shape: Shape) -> State:
  """The state that `prefill` makes of prompts, with no optional buffers."""
  B, L = shape.batch, shape.slots

  def zeros(*dims, kind="int32"):
    layout = spec("batch", *[None] * (len(dims) - 1))
    return jnp.zeros(dims, kind, out_sharding=layout)

  def made(target, drafter):
    real, whole = (zeros(B, kind=kind) for kind in ("float32", "int32"))
    fields = dict.fromkeys(Sampling._fields, real) | dict(
        top_k=whole, min_new=whole, bias=None
    )
    rows = Rows(
        tokens=zeros(B, L), length=whole, prompt=whole, limit=whole,
        finish=whole + RUNNING,
        key=jax.random.wrap_key_data(
            zeros(B, 2, kind="uint32"), impl="threefry2x32"
        ),
        sampling=Sampling(**fields), width=whole, eos=zeros(B, 1), stop=None,
        counts=None, logprobs=None,
    )
    source = states.source_of(rows)
    cache, _ = target.start(*source, L)
    dstate = drafter.init(target, source, L)
    W, kind = drafter.K + 1, target.c.dtype
    last = Commit(zeros(B, W), zeros(B, W, 0, kind=kind), whole, whole)
    return State(rows, cache, dstate, last)

  return jax.eval_shape(made, target, drafter)


def draft(vocab: int, batch: int, K: int) -> Draft:
  """K drafts of every row and the laws that they were drawn from."""
  law = spec("batch", None, "vocab", shape=(batch, K, vocab))
  return jax.eval_shape(lambda: Draft(
      jnp.zeros((batch, K), jnp.int32, out_sharding=spec("batch", None)),
      jnp.zeros((batch, K, vocab), jnp.float32, out_sharding=law),
      jnp.zeros(batch, jnp.int32, out_sharding=spec("batch")),
  ))


_step = jax.jit(
    engine.step, static_argnames=("rule", "mask"), donate_argnames="state"
)
_propose = jax.jit(engine.propose, donate_argnames="state")
_extend = jax.jit(engine.extend, donate_argnames="state")


def plain(target, shape: Shape):
  """A step without drafts: one token of every row."""
  drafter = Nothing()
  return _step.lower(target, drafter, state(target, drafter, shape))


def verify(target, shape: Shape, K: int):
  """A step whose K drafts are there: the pass, the rule, the commit."""
  drafter = Given(draft(target.vocab, shape.batch, K))
  return _step.lower(target, drafter, state(target, drafter, shape))


def drafts(target, drafter, shape: Shape):
  """The drafter's one step: what was committed is read, a token drawn."""
  drafter = Autoregressive(drafter, 1)
  return _propose.lower(target, drafter, state(target, drafter, shape))


def prefill(target, shape: Shape):
  """The target reads a chunk of every row's prompt."""
  drafter, B = Nothing(), shape.batch
  chunk, count = jax.eval_shape(lambda: (
      jnp.zeros((B, CHUNK), jnp.int32, out_sharding=spec("batch", None)),
      jnp.zeros(B, jnp.int32, out_sharding=spec("batch")),
  ))
  made = state(target, drafter, shape)
  return _extend.lower(target, drafter, made, chunk, count)


def loop(target, drafter, shape: Shape, K: int):
  """All of `generate`: rounds until every row has finished."""
  drafter = Autoregressive(drafter, K)
  return engine.generate.lower(target, drafter, state(target, drafter, shape))


class Facts(NamedTuple):
  """Of one program; bytes are those of a chip."""

  cost: counts.Cost
  arguments: int
  aliased: int  # of the arguments, those whose memory results take
  temporaries: int
  beside: int  # all but arguments: temporaries, results, the code itself


def compiled(lowered, cost: bool = True) -> Facts:
  """Compiles a program; without its `cost`, which takes reading. Raises
  `Exhausted`."""
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise Exhausted(exhausted(str(error))) from None
  m = program.memory_analysis()
  return Facts(
      counts.cost(program.as_text()) if cost else counts.Cost(),
      m.argument_size_in_bytes, m.alias_size_in_bytes, m.temp_size_in_bytes,
      m.temp_size_in_bytes + m.generated_code_size_in_bytes
      + m.output_size_in_bytes - m.alias_size_in_bytes,
  )


def exhausted(message: str) -> str:
  """A compiler's page about memory in one clause."""
  found = re.search(r"\(([\d.]+)G\) exceeds available HBM \(([\d.]+)G", message)
  if not found:
    return "the compiler found no room in a chip's memory"
  need, there = map(float, found.groups())
  return (
      f"the compiler needs {need:.2f} GiB, {need - there:.2f} GiB more than the"
      f" {there:g} GiB that a program may use"
  )


def held(tree) -> int:
  """Bytes of arrays, or their shapes, on one chip."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(tree)
  )


def parameters(c: Config) -> int:
  """How many numbers a model has; with no mesh set, each KV head once."""
  return sum(x.size for x in jax.tree.leaves(model(c)))
