"""TPU generations: what a chip holds and moves, and how slices are wired.

Peaks and sizes are those of Google Cloud's pages on each generation
(docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e). A link's bandwidth, one
way, is the stated bidirectional one over a chip's ports and by two; v4's page
gives none, so it is the bisection bandwidth of a pod (24 TB/s) over the 512
links that cross it, rounded to the 50 GB/s of arXiv:2304.01433. `usable` is
what the compiler allows a program, as its own out-of-memory message says.
"""

import dataclasses
import math
import re
from typing import NamedTuple

HOP = 1e-6  # seconds to a neighbour (jax-ml.github.io/scaling-book)


@dataclasses.dataclass(frozen=True)
class Chip:
  name: str
  memory: float  # GiB of HBM, as the vendor rounds it
  usable: float  # GiB that a program may use
  bandwidth: float  # of HBM, bytes a second
  flops: float  # bfloat16, a second
  link: float  # bytes a second, one way
  axes: int  # of the torus
  ring: int  # sides that are multiples of it close to a ring
  settings: tuple[tuple[str, object], ...] = ()  # of its topology description


CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            "v4", 32, 30.75, 1200e9, 275e12, 50e9, 3, 4,
            (("chip_config_name", "megacore"),),
        ),
        Chip("v5e", 16, 15.75, 819e9, 197e12, 50e9, 2, 16),
        Chip("v5p", 95, 95.73, 2765e9, 459e12, 100e9, 3, 4),
        Chip("v6e", 32, 31.24, 1638e9, 918e12, 100e9, 2, 16),
    )
}


class Slice(NamedTuple):
  """Some chips of a pod, side by side: v4:2x2x4."""

  chip: Chip
  sides: tuple[int, ...]

  @property
  def word(self) -> str:
    return f"{self.chip.name}:{'x'.join(map(str, self.sides))}"

  @property
  def chips(self) -> int:
    return math.prod(self.sides)

  def hops(self, group: int) -> int:
    """Neighbours that a sweep over a group of chips passes, one way.

    Along side after side, both ways round where the slice is a torus; a part
    of the slice is taken for a line.
    """
    if group != self.chips:
      return group - 1
    return sum(n // 2 if self.torus else n - 1 for n in self.sides)

  @property
  def torus(self) -> bool:
    return all(n % self.chip.ring == 0 for n in self.sides)

  def links(self, group: int) -> int:
    """Those of the chip of a group that has the fewest, at a corner."""
    if group != self.chips:
      return 1
    return sum((2 if self.torus else 1) for n in self.sides if n > 1)


def slice_of(word: str, name: str = "topology") -> Slice:
  """"v4:2x2x4" -> Slice. Raises ValueError with what would be right of the
  setting `name`."""
  kind, _, sides = word.partition(":")
  if kind not in CHIPS:
    raise ValueError(
        f"{name} = {word!r}: its generation is none of {', '.join(CHIPS)};"
        " give one and its sides, such as v4:2x2x4."
    )
  chip = CHIPS[kind]
  if not re.fullmatch(r"[1-9]\d{0,2}(x[1-9]\d{0,2})*", sides) or (
      sides.count("x") != chip.axes - 1
  ):
    shape = "x".join("224"[-chip.axes :])
    raise ValueError(
        f"{name} = {word!r}: give {chip.axes} sides, such as {kind}:{shape}."
    )
  return Slice(chip, tuple(map(int, sides.split("x"))))
