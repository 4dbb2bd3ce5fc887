"""Times from counts: what the hardware's peaks allow, and what they leave out.

A program takes the longer of its arithmetic at the peak rate and its traffic
at the peak bandwidth of HBM, and then its transfers, none of which overlaps
with it: each costs its bytes over all links of the chip that has the fewest,
and a latency for every neighbour on the way.

Left out: time to start programs and ops, products whose shapes do not fill
the matrix units, element-wise work, padding to tiles, traffic between HBM and
the chip's own memory that the peak does not allow, the host, contention.
So these are the least times, and ratios of them are better than they.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from specjax import theory
from specjax.plan.chips import HOP, Slice
from specjax.plan.counts import Cost, Transfer

LARGEST = 4096  # batch up to which a speed-up is followed


class Seconds(NamedTuple):
  arithmetic: float
  memory: float
  links: float

  @property
  def total(self) -> float:
    return max(self.arithmetic, self.memory) + self.links


class Batch(NamedTuple):
  """Programs of one batch: the target's `passes` by their drafts, 0 for a
  plain one, and the drafter's one step."""

  passes: Mapping[int, Cost]
  draft: Cost


def seconds(cost: Cost, place: Slice) -> Seconds:
  chip = place.chip
  links = sum(
      n * transfer(t, place) for t, n in cost.transfers.items()
  )
  return Seconds(cost.flops / chip.flops, cost.bytes / chip.bandwidth, links)


def transfer(t: Transfer, place: Slice) -> float:
  """Seconds of one collective."""
  if t.group < 2:
    return 0.0
  if t.kind == "collective-permute":
    return t.bytes / place.chip.link + HOP
  sweeps = 2 if t.kind == "all-reduce" else 1  # scatters, then gathers
  sent = t.bytes * (t.group - 1) / t.group
  one = sent / (place.links(t.group) * place.chip.link) + (
      place.hops(t.group) * HOP
  )
  return sweeps * one


def along(points: Mapping[float, Cost], x: float) -> Cost:
  """The cost at x on the lines through known points; beyond them the last
  line goes on. Times are linear in costs, so this loses nothing there."""
  known = sorted(points)
  if x in points or len(known) == 1:
    return points[x] if x in points else points[known[0]]
  above = next((i for i, n in enumerate(known) if n > x), len(known) - 1)
  low, high = known[max(above, 1) - 1], known[max(above, 1)]
  share = (x - low) / (high - low)
  return Cost().plus(points[low], 1 - share).plus(points[high], share)


def speed(batch: Batch, place: Slice, acceptance: float, K: int) -> dict:
  """A token's milliseconds and the gain over no drafts, with K drafts."""
  base = seconds(batch.passes[0], place).total
  draft = seconds(batch.draft, place).total
  check = seconds(along(batch.passes, K), place).total
  even = theory.even(acceptance, K)
  tokens = theory.expected_tokens(even)
  return dict(
      k=K, tokens=tokens, round_ms=1e3 * (check + K * draft),
      verify_ms=1e3 * check, draft_ms=1e3 * draft, plain_ms=1e3 * base,
      token_ms=1e3 * (check + K * draft) / tokens,
      speedup=theory.speedup(even, draft / base, check / base),
      flat=check / base,
  )


def best(batch: Batch, place: Slice, acceptance: float) -> tuple[int, float]:
  """(K, gain) of the best K up to the largest compiled; 0 = do not draft."""
  base = seconds(batch.passes[0], place).total
  draft = seconds(batch.draft, place).total
  check = lambda K: seconds(along(batch.passes, K), place).total / base
  return theory.best_k(acceptance, draft / base, check, max(batch.passes))


def batch_of(known: Mapping[int, Batch], size: float) -> Batch:
  """The programs of any batch, by lines through those compiled."""
  if size in known:
    return known[size]
  pick = lambda one: along({b: one(x) for b, x in known.items()}, size)
  common = set.intersection(*(set(x.passes) for x in known.values()))
  return Batch(
      {K: pick(lambda x: x.passes[K]) for K in sorted(common)},  # noqa: B023
      pick(lambda x: x.draft),
  )


def curve(
    known: Mapping[int, Batch], place: Slice, acceptance: float, step: int = 1
) -> tuple[list[tuple[int, int, float]], int | None]:
  """[(batch, best K, its gain)] and the batch from which nothing is gained.

  In doublings of `step`; None where the gain lasts to the end.
  """
  gain = lambda size: best(batch_of(known, size), place, acceptance)
  out, size = [], step
  while size <= max(LARGEST, step):
    out.append((size, *gain(size)))
    if out[-1][1] == 0:
      break
    size *= 2
  else:
    return out, None
  low, high = size // 2, size  # gains, does not
  while high - low > step:
    middle = low + (high - low) // 2 // step * step
    low, high = (low, middle) if gain(middle)[0] == 0 else (middle, high)
  return out, high


class Held(NamedTuple):
  """What a program reads whole, once: the rest of its bytes are activations."""

  weights: float
  cache: float


def shared(held: Held, parts: tuple[int, int], kv_heads: int) -> Held:
  """What a chip holds when a model axis has parts[1] chips, not parts[0]:
  its part of the weights, and of the KV heads at least one."""
  before, after = parts
  heads = lambda parts: max(kv_heads, parts) / parts  # on each chip
  return Held(
      held.weights * before / after, held.cache * heads(after) / heads(before)
  )


def scaled(cost: Cost, before: Held, after: Held, parts: tuple[int, int]):
  """A program on more chips by formula, not compiled: arithmetic is shared,
  and what is held; activations and transfers stay, but more take part."""
  moved = Counter()
  for t, n in cost.transfers.items():
    moved[t._replace(group=parts[1] if t.group == parts[0] else t.group)] += n
  other = max(cost.bytes - before.weights - before.cache, 0.0)
  return Cost(
      cost.flops * parts[0] / parts[1], after.weights + after.cache + other,
      moved,
  )
