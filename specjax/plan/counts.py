"""What a run of a compiled program costs a chip: operations, bytes, transfers.

Unlike XLA's own analysis a loop counts as often as it runs (one of unknown
length once) and only what passes through HBM counts as bytes. Operations are
those of products, be they told as sums of products, as a TPU does for a single
row. Of several branches the dearest is taken.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

from specjax.plan import hlo
from specjax.plan.hlo import Op, Program

FREE = frozenset("""
  parameter constant tuple get-tuple-element bitcast after-all partition-id
  replica-id opt-barrier optimization-barrier domain iota
""".split())
PARTS = ("dynamic-slice", "slice", "gather")  # read a part of operand 0


class Transfer(NamedTuple):
  kind: str
  bytes: float  # of the whole array
  group: int


class Cost(NamedTuple):
  flops: float = 0.0
  bytes: float = 0.0  # read from or written to HBM
  transfers: Counter = Counter()  # Transfer -> how often

  def plus(self, other: "Cost", times: float = 1.0) -> "Cost":
    """This and `times` the other (which may be negative)."""
    transfers = Counter(self.transfers)
    for transfer, n in other.transfers.items():
      transfers[transfer] += n * times
    return Cost(
        self.flops + times * other.flops, self.bytes + times * other.bytes,
        Counter({t: n for t, n in transfers.items() if n}),
    )


def cost(text: str) -> Cost:
  """Of one run of the program with this text, on one chip."""
  program = hlo.parse(text)
  return _computation(program, program.entry, {})


def _computation(program: Program, name: str, known: dict) -> Cost:
  if name not in known:
    total = Cost()
    for op in program.computations[name].values():
      total = _add(total, _op(program, name, op, known))
    known[name] = total
  return known[name]


def _add(total: Cost, one: Cost) -> Cost:
  return total.plus(one) if one != Cost() else total


def _op(program: Program, name: str, op: Op, known: dict) -> Cost:
  inner = lambda *attributes: [
      _computation(program, c, known) for c in op.called(*attributes)
  ]
  if op.code == "while":
    (body,) = inner("body")
    times = hlo.trips(program, name, op)
    return Cost().plus(body, 1 if times is None else times)
  if op.code == "conditional":
    branches = inner(
        "branch_computations", "true_computation", "false_computation"
    )
    return max(branches, key=lambda c: (c.bytes, c.flops))
  if op.code == "call":
    return inner("to_apply")[0]
  if op.code in FREE or op.code.endswith(("-done", "-update")):
    return Cost()
  if op.code == "async-start":
    return inner("calls")[0]
  transfers = Counter()
  if hlo.kind_of(op):
    found = hlo.collective(program, name, op)
    transfers[Transfer(*found[:3])] = 1
  flops = products(program, name, op)
  if op.code == "fusion":
    (fused,) = inner("calls")
    flops, transfers = fused.flops, fused.transfers
  return Cost(flops, traffic(program, name, op), transfers)


def products(program: Program, name: str, op: Op) -> float:
  """Operations of a dot, a convolution, a sum of products; else none."""
  if op.code == "reduce":
    return 2.0 * sum(
        _array(program, name, n).elements for n in op.operands
        if _multiplies(program.computations[name], n)
    )
  if op.code not in ("dot", "convolution"):
    return 0.0
  first, second = (_array(program, name, n) for n in op.operands[:2])
  out = op.arrays[0].elements
  if op.code == "dot":
    summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", op.rest)
    axes = [int(i) for i in summed[1].split(",") if i] if summed else []
    return 2.0 * out * math.prod(first.dims[i] for i in axes)
  labels = re.search(r"dim_labels=\w+_(\w+)->", op.rest)[1]
  window = re.search(r"window=\{([^}]*)\}", op.rest)
  window = window[1] if window else ""
  taps = 1.0
  for axis, label in enumerate(labels):
    if label == "i":
      taps *= second.dims[axis]
    elif label.isdigit():
      # A batch of products is told as a window that is mostly holes.
      size = _window(window, "size", int(label), second.dims[axis])
      taps *= -(-size // _window(window, "lhs_dilate", int(label), 1))
  return 2.0 * out * taps


def _multiplies(inside: dict[str, Op], name: str) -> bool:
  op = inside[name]
  if op.code in ("convert", "bitcast", "copy"):
    return _multiplies(inside, op.operands[0])
  return op.code == "multiply"


def _window(window: str, field: str, axis: int, default: int) -> int:
  found = re.search(rf"\b{field}=([\dx]+)", window)
  return int(found[1].split("x")[axis]) if found else default


def _array(program: Program, name: str, operand: str) -> hlo.Array:
  return program.computations[name][operand].arrays[0]


def traffic(program: Program, name: str, op: Op) -> float:
  """HBM bytes that an op reads and writes; slices read what they take, and
  updates in place write what is new."""
  inside = program.computations[name]
  if op.code.endswith("-start") and not hlo.kind_of(op):
    ends = op.arrays[:2]  # a copy on its way: where it comes from, goes to
    return min(a.bytes for a in ends) * float(sum(not a.space for a in ends))
  if op.code == "fusion":
    (fused,) = op.called("calls")
    read = [_read(program, fused, i) for i in range(len(op.operands))]
    wrote = _written(program, fused)
  else:
    read, wrote = [None] * len(op.operands), None
    if op.code in PARTS:
      read[0] = sum(a.bytes for a in op.arrays)
    elif op.code == "dynamic-update-slice":
      read[0], wrote = 0, [_size(inside, op.operands[1])]
  total = 0.0
  for operand, part in zip(op.operands, read):
    given = inside[operand].arrays if operand in inside else []
    whole = sum(a.bytes for a in given if not a.space)
    total += whole if part is None else min(whole, part)
  for i, made in enumerate(op.arrays):
    if not made.space:
      total += made.bytes if wrote is None else wrote[i]
  return total


def _size(inside: dict[str, Op], name: str) -> int:
  return sum(a.bytes for a in inside[name].arrays)


def _read(program: Program, fused: str, number: int) -> float | None:
  """Bytes that a fused computation reads of a parameter; None = all."""
  inside = program.computations[fused]
  for op in inside.values():
    if op.code == "parameter" and op.inside == str(number):
      return _used(program, inside, op.name)
  return None


def _used(program: Program, inside: dict[str, Op], name: str) -> float | None:
  if inside[name].root:
    return None  # it leaves the computation whole
  total = 0.0
  for op in inside.values():
    if name not in op.operands:
      continue
    first = op.operands[0] == name and name not in op.operands[1:]
    if op.code in PARTS and first:
      part = _size(inside, op.name)
    elif op.code == "dynamic-update-slice" and first:
      part = 0.0
    elif op.code == "bitcast":
      part = _used(program, inside, op.name)
    elif op.code == "fusion":
      (fused,) = op.called("calls")
      part = _read(program, fused, op.operands.index(name))
    else:
      part = None
    if part is None:
      return None
    total += part
  return total


def _written(program: Program, fused: str) -> list[float]:
  """Bytes that each output of a fused computation writes."""
  inside = program.computations[fused]
  (root,) = (op for op in inside.values() if op.root)
  if root.code != "tuple" and len(root.arrays) > 1:
    return [a.bytes for a in root.arrays]
  names = root.operands if root.code == "tuple" else [root.name]
  return [_new(program, inside, name) for name in names]


def _new(program: Program, inside: dict[str, Op], name: str) -> float:
  op = inside[name]
  if op.code == "dynamic-update-slice":
    return _size(inside, op.operands[1])
  if op.code == "bitcast":
    return _new(program, inside, op.operands[0])
  if op.code == "fusion":
    return sum(_written(program, op.called("calls")[0]))
  return _size(inside, name)
