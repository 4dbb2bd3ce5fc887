"""Tally -> numbers, by definitions that are pooled sums, never means of means.

rounds: target passes a row took part in; drafted, accepted: tokens judged and
kept before stops cut the block; emitted: tokens after it; bonus: rounds whose
drafts all stood; dropped: tokens that stops and budgets cut off.
"""

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
