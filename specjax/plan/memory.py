"""What a chip must hold, and the largest batch for which it can."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from specjax.plan.chips import Chip

GIB = 2**30


class Memory(NamedTuple):
  """Bytes a chip: models, the state of all rows, what programs need beside."""

  weights: float
  cache: float
  beside: float

  @property
  def total(self) -> float:
    return self.weights + self.cache + self.beside


def line(points: Mapping[float, float], x: float) -> float:
  """On the line through the first and the last of known points."""
  (low, a), *_, (high, b) = [*sorted(points.items())] * 2
  return a if low == high else a + (b - a) * (x - low) / (high - low)


def largest(
    weights: int, row: float, beside: Callable[[int], float], chip: Chip,
    step: int = 1,
) -> int:
  """The largest multiple of `step` rows that fit, 0 for none.

  `row` bytes of cache each; `beside(rows)` is what programs need besides.
  """
  room = chip.usable * GIB - weights
  fits = lambda n: row * n + beside(n) <= room
  low, high = 0, step
  while fits(high):
    low, high = high, 2 * high
  while high - low > step:
    middle = low + (high - low) // 2 // step * step
    low, high = (middle, high) if fits(middle) else (low, middle)
  return low


def unfit(
    batch: int, slots: int, memory: Memory, chip: Chip, most: int
) -> str | None:
  """One sentence about a batch that does not fit; None for one that does."""
  over = memory.total / GIB - chip.usable
  if over <= 0:
    return None
  help = (
      f"the largest batch that fits is {most}" if most else
      "no batch fits; give a larger slice, or a smaller context"
  )
  return (
      f"batch {batch} at {slots} slots does not fit: a {chip.name} chip would"
      f" hold {memory.total / GIB:.2f} GiB, {over:.2f} GiB more than the"
      f" {chip.usable:g} GiB that a program may use; {help}."
  )
