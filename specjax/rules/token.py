"""Token-wise acceptance (Leviathan et al. 2023; Chen et al. 2023).

Accept while u q(x) < p(x), strictly; the extra token comes from
max(p - q, 0). q is zero past `count`, so rejection, bonus, short drafts,
K = 0 and point masses are one line.
"""

import jax.numpy as jnp

from specjax.rules.base import Terms, first_failure, laws, pick


def terms(draft, p) -> Terms:
  """The rule's arithmetic for one row, in the dtype of p [K+1 V]."""
  q, real = laws(draft, p)
  num = jnp.where(real, pick(p, draft.tokens), 0)
  return Terms(num, pick(q, draft.tokens), jnp.maximum(p - q, 0))


count = first_failure
