"""What speculation should gain: closed forms beside which runs are measured.

Throughout, a *pass* is the time of one target pass over one token of every
row, and costs are in passes: `c` a draft step, `verify` the target's pass
over all that was drafted (1 where width is free). `acceptance` is a
conditional acceptance by position, P(draft i passes | all before it did);
`even(alpha, K)` is Leviathan's assumption that it is the same everywhere.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Acceptance = Sequence[float]


def even(alpha: float, K: int) -> list[float]:
  """The same acceptance at K positions. Raises ValueError outside 0..1."""
  if not 0 <= alpha <= 1 or K < 0:
    raise ValueError(f"alpha = {alpha}, K = {K}: give 0 <= alpha <= 1, K >= 0.")
  return [float(alpha)] * K


def overlap(p, q) -> np.ndarray:
  """sum_v min(p, q) over the last axis: the chance that a draft from q passes.

  alpha is its mean over contexts (Leviathan et al., arXiv:2211.17192, 3.5).
  """
  return np.minimum(p, q).sum(-1)


def expected_tokens(acceptance: Acceptance) -> float:
  """Tokens a round: 1 + a1 + a1 a2 + ...; (1 - alpha^(K+1)) / (1 - alpha) for
  an even one. The acceptance length that a run without ends should have."""
  return 1.0 + float(np.cumprod(np.asarray(acceptance, float)).sum())


def speedup(acceptance: Acceptance, c: float, verify: float = 1.0) -> float:
  """Over no drafts, K drafts one after another (Leviathan, theorem 3.8)."""
  return expected_tokens(acceptance) / (len(acceptance) * c + verify)


def parallel(acceptance: Acceptance, block: float, verify: float = 1.0):
  """As `speedup`, where all K drafts come of one pass that costs `block`."""
  return expected_tokens(acceptance) / (block + verify)


def operations(alpha: float, K: int, c: float) -> float:
  """Arithmetic over that of no drafts; `c` in operations (theorem 3.11)."""
  return (K * c + K + 1) / expected_tokens(even(alpha, K))


def best_k(
    alpha: float, c: float, verify: Callable[[int], float] = lambda K: 1.0,
    most: int = 64,
) -> tuple[int, float]:
  """(K, speed-up) of the K in 0..most that gains the most; 0 = do not draft.

  `verify(K)` is the cost of a target pass over K + 1 tokens.
  """
  gains = [1.0] + [
      speedup(even(alpha, K), c, verify(K)) for K in range(1, most + 1)
  ]
  best = int(np.argmax(gains))
  return best, gains[best]


def best_tree(
    expected: Mapping[tuple[int, int], float], verify: Callable[[int], float],
    c: float,
) -> tuple[tuple[int, int], float]:
  """((nodes, depth), speed-up) of the best of some trees.

  `expected` [nodes, depth] tokens a round, the root's own included;
  `verify(n)` the measured cost of a target pass over n nodes and the anchor
  (Sequoia, arXiv:2402.12374, section 4).
  """
  gain = lambda n, d: expected[n, d] / (verify(n) + d * c)
  best = max(expected, key=lambda at: gain(*at))
  return best, gain(*best)


def asynchronous(
    on_hit: float, on_miss: float, hit: float, prepare: float, draft: float,
    verify: float = 1.0,
) -> float:
  """Over no drafts, with the next block prepared while this one is verified.

  Tokens a round after a hit and after a miss, the share of hits, the costs of
  preparing and of drafting anew (SSD, arXiv:2603.03251, theorem 7).
  """
  tokens = hit * on_hit + (1 - hit) * on_miss
  time = hit * max(verify, prepare) + (1 - hit) * (verify + draft)
  return tokens / time


def goodput(
    rows: Sequence[Acceptance], seconds: Mapping[int, float]
) -> dict[int, float]:
  """Tokens a second of a batch for each K of `seconds`, a round's duration.

  `rows` is each row's acceptance, at least as long as the largest K; K = 0
  is no drafts (TurboSpec, arXiv:2406.14066).
  """
  return {
      K: sum(expected_tokens(row[:K]) for row in rows) / spent
      for K, spent in seconds.items()
  }
