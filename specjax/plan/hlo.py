"""What a compiled program holds, read in the text of its optimised HLO.

Plain functions on `compiled.as_text()`: copies by size, collectives, aliases,
loops. `specjax.plan.counts` adds up what a run of it costs.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

BITS = dict(
    pred=8, s2=2, u2=2, s4=4, u4=4, s8=8, u8=8, s16=16, u16=16, s32=32, u32=32,
    s64=64, u64=64, bf16=16, f16=16, f32=32, f64=64, c64=64, c128=128,
)
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEAD = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
    "ragged-all-to-all", "collective-permute", "collective-broadcast",
)


class Array(NamedTuple):
  kind: str  # bf16, f32, ...
  dims: tuple[int, ...]
  space: int  # of memory: 0 = HBM, others are on the chip

  @property
  def elements(self) -> int:
    return math.prod(self.dims)

  @property
  def bytes(self) -> int:
    bits = 8 if self.kind.startswith("f8") else BITS.get(self.kind, 0)
    return -(-self.elements * bits // 8)


class Op(NamedTuple):
  name: str
  code: str  # fusion, while, all-reduce, ...
  shape: str
  inside: str  # of its parentheses
  operands: tuple[str, ...]
  rest: str  # attributes
  root: bool

  @property
  def arrays(self) -> list[Array]:
    return arrays(self.shape)

  def called(self, *attributes: str) -> list[str]:
    """Computations that it names by these attributes, in order."""
    found = []
    for attribute in attributes:
      match = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.rest)
      found += re.findall(r"[\w.\-]+", match[1]) if match else []
    return found


class Program(NamedTuple):
  header: str
  entry: str
  computations: dict[str, dict[str, Op]]


class Copy(NamedTuple):
  array: Array
  computation: str


class Collective(NamedTuple):
  """`bytes` of the whole array: what is gathered, reduced or scattered."""

  kind: str
  bytes: int
  group: int  # chips that take part
  computation: str


@functools.lru_cache(8)  # of texts of megabytes, which several readers share
def parse(text: str) -> Program:
  """The computations of an HLO module, each its ops by name."""
  lines = text.splitlines()
  program, current = Program(lines[0] if lines else "", "", {}), {}
  for line in lines[1:]:
    if line.startswith(" "):
      op = _op(line)
      if op:
        current[op.name] = op
      continue
    match = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
    if match:
      current = program.computations[match[2]] = {}
      if match[1]:
        program = program._replace(entry=match[2])
  if not program.entry:
    raise ValueError("HLO text: it has no ENTRY computation.")
  return program


def arrays(shape: str) -> list[Array]:
  """The arrays of a shape as printed; of a tuple, one after another."""
  out = []
  for kind, dims, layout in ARRAY.findall(shape):
    space = re.search(r"S\((\d+)\)", layout)
    dims = tuple(int(n) for n in dims.split(",") if n)
    out.append(Array(kind, dims, int(space[1]) if space else 0))
  return out


def ops(text: str) -> Iterator[tuple[str, Op]]:
  """(computation, op) of all ops, fused ones too."""
  for name, inside in parse(text).computations.items():
    for op in inside.values():
      yield name, op


def copies(text: str, least: int = 0) -> list[Copy]:
  """Copies of at least so many bytes within a memory; those on their way to
  the chip's own memory, or into a product, are reads done anyway."""
  fused, out = {}, []
  for name, op in ops(text):
    if op.code == "fusion":
      fused |= dict.fromkeys(op.called("calls"), name)
  for name, op in ops(text):
    # In a fusion inside a fusion: an operand that is turned as it is read.
    if op.code not in ("copy", "copy-start") or fused.get(name) in fused:
      continue
    inside = parse(text).computations[name]
    made, given = op.arrays[0], inside[op.operands[0]].arrays[0]
    if made.space == given.space and made.bytes >= least:
      out.append(Copy(made, name))
  return out


def collectives(text: str) -> list[Collective]:
  """Every collective as it stands in the text, loops counted once."""
  program = parse(text)
  return [
      collective(program, name, op) for name, op in ops(text)
      if kind_of(op) is not None
  ]


def kind_of(op: Op) -> str | None:
  """Which collective an op is; the end of one in two halves is none."""
  kind = op.code.removesuffix("-start")
  return kind if kind in COLLECTIVES else None


def collective(program: Program, computation: str, op: Op) -> Collective:
  inside = program.computations[computation]
  given = [a for n in op.operands if n in inside for a in inside[n].arrays]
  most = lambda found: sum(a.bytes for a in found)
  made = most(op.arrays)
  if op.code.endswith("-start") and op.code != "all-reduce-start":
    made -= most(given)  # its shape has the operands too
  whole = max(made, most(given))
  return Collective(
      kind_of(op), whole, group(op, partitions(program)), computation
  )


def group(op: Op, everyone: int) -> int:
  """How many chips a collective joins."""
  if op.code.startswith("collective-permute"):
    return 2
  listed = re.search(r"replica_groups=\{\{([\d,]*)\}", op.rest)
  if listed:
    return len(listed[1].split(","))
  tiled = re.search(r"replica_groups=\[\d+,(\d+)\]<=", op.rest)
  return int(tiled[1]) if tiled else everyone


def partitions(program: Program) -> int:
  found = re.search(r"num_partitions=(\d+)", program.header)
  return int(found[1]) if found else 1


def aliases(text: str) -> dict[str, int]:
  """Output index -> the parameter whose memory it takes."""
  header = parse(text).header
  found = re.search(r"input_output_alias=\{(.*?\)) ?\}", header)
  pairs = re.findall(r"\{([\d, ]*)\}: \((\d+),", found[1]) if found else []
  return {index: int(parameter) for index, parameter in pairs}


def trips(program: Program, computation: str, op: Op) -> int | None:
  """How often a loop runs, where the text tells: by the compiler's word, or
  by a condition `counter < constant`."""
  found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', op.rest)
  if found:
    return int(found[1])
  condition = program.computations[op.called("condition")[0]]
  (root,) = (o for o in condition.values() if o.root)
  if root.code != "compare" or "direction=LT" not in root.rest:
    return None
  counter, end = (condition[n] for n in root.operands)
  index = re.search(r"index=(\d+)", counter.rest)
  if end.code != "constant" or not index:
    return None
  inside = program.computations[computation]
  begun = inside[op.operands[0]]
  if begun.code == "tuple":
    begun = inside[begun.operands[int(index[1])]]
  start = int(begun.inside) if begun.code == "constant" else 0
  return max(int(end.inside) - start, 0)


def _op(line: str) -> Op | None:
  match = HEAD.match(line)
  if not match:
    return None
  at = match.end()
  end = _closing(line, at) if line[at] == "(" else line.index(" ", at)
  opening = line.index("(", end)
  close = _closing(line, opening)
  inside = line[opening + 1 : close - 1]
  return Op(
      match[2], line[end:opening].strip(), line[at:end], inside,
      tuple(re.findall(r"%([\w.\-]+)", inside)), line[close:], bool(match[1]),
  )


def _closing(line: str, at: int) -> int:
  """Behind the parenthesis that closes the one at `at`."""
  depth = 0
  for match in re.compile(r"[()]").finditer(line, at):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      return match.end()
  return len(line)
