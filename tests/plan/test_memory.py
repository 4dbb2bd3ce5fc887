"""Sums of memory, and the largest batch that fits."""

import pytest

from specjax.plan import memory
from specjax.plan.chips import CHIPS
from specjax.plan.memory import GIB, Memory

V4 = CHIPS["v4"]
ROOM = V4.usable * GIB


def test_the_largest_batch_by_sums_alone():
  row = 0.5 * GIB
  weights = ROOM - 10.2 * row
  none = lambda rows: 0.0
  assert memory.largest(weights, row, none, V4) == 10
  assert memory.largest(weights, row, none, V4, step=4) == 8
  assert memory.largest(ROOM, row, none, V4) == 0
  assert memory.largest(0, 1, none, V4) == int(ROOM)


def test_what_programs_need_beside_counts_too():
  row = 0.5 * GIB
  beside = lambda rows: 0.1 * GIB * rows
  assert memory.largest(ROOM - 60 * row, row, beside, V4) == 50


def test_a_line():
  points = {2: 10.0, 6: 18.0}
  assert [memory.line(points, x) for x in (2, 4, 80)] == [10, 14, 166]
  assert memory.line({3: 5.0}, 9) == 5.0


def test_what_does_not_fit_is_one_sentence():
  weights, cache = int(ROOM) - GIB, 3 * GIB
  said = memory.unfit(64, 2048, Memory(weights, cache, 0.5 * GIB), V4, 20)
  assert "batch 64 at 2048 slots" in said and "2.50 GiB more than" in said
  assert said.endswith("the largest batch that fits is 20.")
  assert said.count(".") == said.count("GiB") + 1 + ("30.75" in said) - 1
  none = memory.unfit(1, 2048, Memory(weights, cache, 0), V4, 0)
  assert "no batch fits" in none


@pytest.mark.parametrize("beside", [0.0, GIB - 1])
def test_what_fits_is_not_spoken_of(beside):
  assert memory.unfit(8, 128, Memory(int(ROOM) - GIB, 0, beside), V4, 8) is None
