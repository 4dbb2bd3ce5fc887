"""For planning only: drafts pass by a coin of fixed chance, whatever they are.

LOSSY: the text is not the target's and is good for nothing. It tells what a
deployment would gain if a drafter had this acceptance, at real costs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.rules.base import coins, first_failure
from specjax.sampling import draw_one


class LossySynthetic(NamedTuple):
  """A rule; equal ones are one program."""

  chance: float

  def __call__(self, key, draft, logp):
    K = logp.shape[0] - 1
    coin, extra = (jax.random.fold_in(key, i) for i in range(2))
    real = jnp.arange(K) < draft.count
    n = first_failure((coins(coin, K) < self.chance) & real)
    here = jnp.arange(K + 1) == n
    law = jnp.max(jnp.where(here[:, None], logp, -jnp.inf), 0)
    token = draw_one(extra, law)
    tokens = jnp.where(here, token, jnp.pad(draft.tokens, (0, 1)))
    return tokens, n + 1


def lossy_synthetic(chance: float) -> LossySynthetic:
  """The rule whose drafts pass with `chance`, token by token.

  Raises ValueError unless 0 <= chance <= 1.
  """
  if not 0 <= chance <= 1:
    raise ValueError(f"synthetic_acceptance = {chance} must lie in 0..1.")
  return LossySynthetic(chance)
