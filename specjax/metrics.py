"""Tally -> numbers, by definitions that are pooled sums, never means of means.

rounds: target passes a row took part in; drafted, accepted: drafts made, and
kept before stops cut the block; emitted: tokens after it; bonus: rounds whose
drafts all stood; dropped: tokens that stops and budgets cut off.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specjax.processes import fetch
from specjax.types import Tally

log = logging.getLogger("specjax")
COUNTS = ("rounds", "drafted", "accepted", "emitted", "bonus", "dropped")
BY_POSITION = ("reached", "passed", "overlap")


def counts(tally: Tally) -> list[dict]:
  """Each row's counts as JSON has them: ints, and lists by position."""
  info = fetch(tally.info)
  return [
      {name: int(getattr(info, name)[b]) for name in COUNTS}
      | {name: getattr(info, name)[b].tolist() for name in BY_POSITION}
      for b in range(len(info.rounds))
  ]


def pool(some: Sequence[dict]) -> dict:
  """The sum of some rows' `counts`; lists of other lengths are filled up."""
  K = max((len(x["reached"]) for x in some), default=0)
  out = {name: sum(x[name] for x in some) for name in COUNTS}
  for name in BY_POSITION:
    total = np.zeros(K)
    for x in some:
      total[: len(x[name])] += x[name]
    out[name] = total.tolist()
  return out


def rates(counts: dict) -> dict[str, float | list[float]]:
  """acceptance_length = emitted / rounds; acceptance_rate = accepted /
  drafted; conditional[i] = drafts passed / judged at position i; reached_rate
  = passed / judged; overlap = the mean of sum_v min(p, q) over judged
  positions, which it must equal (`gap`)."""
  share = lambda a, b: float(a) / float(b) if b else 0.0
  judged = sum(counts["reached"])
  return dict(
      acceptance_length=share(counts["emitted"], counts["rounds"]),
      acceptance_rate=share(counts["accepted"], counts["drafted"]),
      conditional=[
          share(a, b) for a, b in zip(counts["passed"], counts["reached"])
      ],
      reached_rate=share(sum(counts["passed"]), judged),
      overlap=share(sum(counts["overlap"]), judged),
  )


def summary(tally: Tally) -> dict[str, float | list[float]]:
  """Sums and `rates` of all rows of a Tally (arrays on host or device), and
  whether there is an `alarm`."""
  total = pool(counts(tally))
  sums = {name: total[name] for name in COUNTS}
  sums |= {"steps": int(tally.steps), "alarm": alarm(total) is not None}
  return sums | rates(total)


def gap(counts: dict, deviations: float = 3.0) -> tuple[float, float]:
  """(accepted / judged - mean overlap, how far it may lie from 0).

  Each judged draft passes with the chance that its overlap tells, given all
  before it, so the sum of differences is a martingale whose variance is at
  most n m (1 - m), m the mean. For the token rule, before ends cut blocks;
  the block rule accepts more.
  """
  n = sum(counts["reached"])
  if not n:
    return 0.0, 0.0
  found = rates(counts)
  mean = min(max(found["overlap"], 0.0), 1.0)
  # One draft more or less is no news where the overlaps are all 0 or 1.
  width = deviations * math.sqrt(mean * (1 - mean) / n) + 1 / n
  return found["reached_rate"] - found["overlap"], width


def alarm(counts: dict) -> str | None:
  """One sentence if drafts pass less often than their laws promise, by six
  deviations: then a drafter draws from another law than it tells."""
  difference, width = gap(counts, 6.0)
  if difference >= -width:
    return None
  found = rates(counts)
  return (
      f"acceptance: {found['reached_rate']:.3f} of"
      f" {sum(counts['reached']):.0f} judged drafts passed, where their laws"
      f" promise {found['overlap']:.3f}; the drafter does not draw from the law"
      " that it tells."
  )


def warn(tally: Tally) -> bool:
  """Whether there is an `alarm`, which is then one line of the log."""
  said = alarm(pool(counts(tally)))
  if said:
    log.warning(said)
  return bool(said)


def bootstrap(
    items: Sequence[Any], statistic: Callable[[Sequence[Any]], float], *,
    draws: int = 2000, level: float = 0.95, seed: int = 0,
) -> tuple[float, float]:
  """(low, high) of a statistic of some prompts' results, if other prompts of
  their kind had been asked: percentiles over draws with replacement."""
  if not len(items):
    raise ValueError("bootstrap: there is nothing to draw from.")
  rng = np.random.default_rng(seed)
  found = [
      statistic([items[i] for i in rng.integers(len(items), size=len(items))])
      for _ in range(draws)
  ]
  out = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
  return float(out[0]), float(out[1])


def words(summary: dict) -> dict[str, str]:
  """A summary to be read; drafts' measures only where there were any."""
  out = {
      "tokens": f"{summary['emitted']}",
      "target passes": f"{summary['rounds']}",
      "acceptance length": f"{summary['acceptance_length']:.2f}",
  }
  if summary["drafted"]:
    by = " ".join(f"{x:.2f}" for x in summary["conditional"])
    out |= {
        "acceptance by position": by,
        "accepted / judged": f"{summary['reached_rate']:.3f}",
        "mean sum min(p, q)": f"{summary['overlap']:.3f}",
    }
  return out


class Pace:
  """Time to the first tokens, and the rate of those that come after them.

  The two are apart because the first wait is mostly the prompt's.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock, self._began = clock, clock()
    self._first = self._last = None
    self._later = 0

  def saw(self, tokens: int) -> None:
    """Tells that so many new tokens have just come."""
    self._last = self._clock()
    if self._first is None:
      self._first = self._last
    else:
      self._later += tokens

  @property
  def wait(self) -> float:
    """Seconds to the first tokens."""
    return self._first - self._began

  @property
  def rate(self) -> float:
    """Tokens a second after the first; 0 if they were all."""
    return self._later / (self._last - self._first) if self._later else 0.0
