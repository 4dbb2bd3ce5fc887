"""Block verification (Sun et al., arXiv 2403.10444; ICLR 2025).

Accepts the largest index whose coin passes: never fewer drafts in the mean
than token by token (p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 11/9 for 10/9).
"""

import jax.numpy as jnp

from specjax.rules.base import Terms, last_pass, laws, pick


def terms(draft, p) -> Terms:
  """The rule's arithmetic for one row, in the dtype of p [K+1 V].

  Weight w_i = min(w_{i-1} p_i(x_i) / q_i(x_i), 1); residual row i is
  max(w_i p_{i+1} - q_{i+1}, 0); coin i passes with probability
  Z_i / (Z_i + 1 - w_i), where Z_i is the sum of row i. Past `count` q is
  zero, so there Z = w and the same line gives the last coin.
  """
  q, real = laws(draft, p)

  top, bottom = pick(p, draft.tokens), pick(q, draft.tokens)
  # A one of the row's own, since a constant has no layout to stack with.
  weights = [(draft.count >= 0).astype(p.dtype)]
  for i in range(len(draft.tokens)):
    rise = weights[-1] * top[i]
    # Divides only where the result is below 1, so 0/0 cannot arise.
    full = rise >= bottom[i]
    weights.append(jnp.where(full, 1, rise / jnp.where(full, 1, bottom[i])))
  weight = jnp.stack(weights)
  residual = jnp.maximum(weight[:, None] * p - q, 0)
  left = jnp.sum(residual, -1)[1:]
  num = jnp.where(real, left, 0)
  return Terms(num, left + 1 - weight[1:], residual)


count = last_pass
