"""Times from counts, lines between them, the formula for larger slices."""

import math
from collections import Counter

import pytest

from specjax import theory
from specjax.plan import roofline
from specjax.plan.chips import HOP, slice_of
from specjax.plan.counts import Cost, Transfer
from specjax.plan.roofline import Batch, Held

PLACE = slice_of("v4:2x2x4")


def sums(kind, size, times, group=16):
  return Counter({Transfer(kind, size, group): times})


def test_the_longer_of_arithmetic_and_memory():
  slow = roofline.seconds(Cost(275e12, 1.2e12 / 2), PLACE)
  assert slow == (1.0, 0.5, 0.0) and slow.total == 1.0
  assert roofline.seconds(Cost(0, 2.4e12), PLACE).total == 2.0


def test_transfers_come_on_top():
  cost = Cost(0, 1.2e12, sums("all-reduce", 16e9, 3))
  ring = 2 * (16e9 * 15 / 16 / 150e9 + 5 * HOP)  # a corner has three links
  assert math.isclose(roofline.seconds(cost, PLACE).total, 1 + 3 * ring)
  gather = roofline.transfer(Transfer("all-gather", 16e9, 16), PLACE)
  assert math.isclose(gather, ring / 2)
  pair = roofline.transfer(Transfer("collective-permute", 50e9, 2), PLACE)
  assert math.isclose(pair, 1 + HOP)
  assert roofline.transfer(Transfer("all-reduce", 8, 1), PLACE) == 0


def test_lines_between_costs_and_beyond_them():
  cost = lambda n: Cost(10.0 + n, 5.0 * n, sums("all-reduce", 8 * n, 2))
  known = {n: cost(n) for n in (2, 6, 8)}
  for x in (2, 4, 7, 80):
    found = roofline.along(known, x)
    assert math.isclose(found.flops, 10 + x)
    assert math.isclose(found.bytes, 5 * x)
    moved = sum(t.bytes * n for t, n in found.transfers.items())
    assert math.isclose(moved, 2 * 8 * x)
    assert math.isclose(sum(found.transfers.values()), 2)
  assert roofline.along({3: cost(3)}, 9) == cost(3)


def batch(size, k_flops=0.0, ks=(0, 2, 4)):
  """Weights of a second; a row takes a twentieth of it, a draft a tenth."""
  read = lambda n: 1.2e12 * n
  cost = lambda K: Cost(k_flops * size * (K + 1), read(1 + size / 20))
  return Batch({K: cost(K) for K in ks}, Cost(0, read(0.1)))


def test_a_speed_is_that_of_theory():
  found = roofline.speed(batch(0), PLACE, 0.7, 4)
  assert math.isclose(found["speedup"], theory.speedup([0.7] * 4, 0.1))
  assert math.isclose(
      found["token_ms"], 1400 / theory.expected_tokens([0.7] * 4)
  )
  assert found["flat"] == 1
  best = roofline.best(batch(0), PLACE, 0.7)
  assert best == theory.best_k(0.7, 0.1, most=4)


def test_a_batch_between_others_has_what_they_share():
  known = {1: batch(1), 9: batch(9, ks=(0, 4))}
  assert roofline.batch_of(known, 1) is known[1]
  found = roofline.batch_of(known, 5)
  assert [*found.passes] == [0, 4]
  assert math.isclose(found.passes[4].bytes, 1.2e12 * 1.25)


def test_the_batch_at_which_nothing_is_gained():
  flops = 275e12 / 20  # of a token, so that 20 rows take a second
  known = {n: batch(n, flops) for n in (1, 8)}
  points, end = roofline.curve(known, PLACE, 0.7)
  gain = lambda n: roofline.best(
      roofline.batch_of(known, n), PLACE, 0.7
  )[0]
  assert gain(end) == 0 < gain(end - 1)
  assert [p[0] for p in points] == [2**i for i in range(len(points))]
  assert points[-1][1] == 0 and points[0][1] > 0


def test_a_gain_that_lasts_is_told_so():
  points, end = roofline.curve({n: batch(n) for n in (2, 8)}, PLACE, 0.9, 2)
  assert end is None
  assert points[0][0] == 2 and points[-1][0] == roofline.LARGEST


@pytest.mark.parametrize(
    "kv_heads, parts, cache",
    [
        (64, (16, 64), 25), (8, (16, 32), 100), (8, (4, 16), 50),
        (64, (16, 8), 200),
    ],
)
def test_more_chips_share_what_they_can(kv_heads, parts, cache):
  held = Held(1000, 100)
  share = parts[0] / parts[1]
  after = roofline.shared(held, parts, kv_heads)
  assert after == (1000 * share, cache)
  cost = Cost(80.0, 1000 + 100 + 7, sums("all-reduce", 8, 3, parts[0]))
  found = roofline.scaled(cost, held, after, parts)
  assert found.flops == 80 * share
  assert math.isclose(found.bytes, 1000 * share + cache + 7)
  assert found.transfers == sums("all-reduce", 8, 3, parts[1])


def test_the_same_slice_is_the_same():
  cost, held = Cost(80.0, 1107, sums("all-reduce", 8, 3)), Held(1000, 100)
  assert roofline.shared(held, (16, 16), 8) == held
  assert roofline.scaled(cost, held, held, (16, 16)) == cost
