"""Tally -> numbers, by definitions that are pooled sums, never means of means.

rounds: target passes a row took part in; drafted, accepted: tokens judged and
kept before stops cut the block; emitted: tokens after it; bonus: rounds whose
drafts all stood; dropped: tokens that stops and budgets cut off.
"""

import time
from collections.abc import Callable

import jax
import numpy as np

from specjax.types import Tally


def summary(tally: Tally) -> dict[str, float | list[float]]:
  """Pooled metrics of all rows of a Tally (arrays on host or device).

  acceptance_length = emitted / rounds; acceptance_rate = accepted / drafted;
  conditional[i] = drafts passed / judged at position i; reached_rate =
  accepted / reached, which overlap = mean of sum_v min(p, q) over judged
  positions must equal for drawn drafts under the token rule: a self-check.
  """
  info = jax.tree.map(np.asarray, tally.info)
  total = {
      name: int(getattr(info, name).sum())
      for name in (
          "rounds", "drafted", "accepted", "emitted", "bonus", "dropped"
      )
  }
  reached, passed = info.reached.sum(0), info.passed.sum(0)
  share = lambda a, b: float(a) / float(b) if b else 0.0
  return {
      **total,
      "steps": int(tally.steps),
      "acceptance_length": share(total["emitted"], total["rounds"]),
      "acceptance_rate": share(total["accepted"], total["drafted"]),
      "conditional": [share(a, b) for a, b in zip(passed, reached)],
      "reached_rate": share(passed.sum(), reached.sum()),
      "overlap": share(info.overlap.sum(), reached.sum()),
  }


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
