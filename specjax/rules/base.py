"""What the rules share: padded laws, coins, and the one extra draw."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specjax.sampling import draw_one
from specjax.types import Draft


class Terms(NamedTuple):
  """Coin i passes iff u * den < num; the extra token is drawn by residual."""

  num: Float[Array, "K"]
  den: Float[Array, "K"]
  residual: Float[Array, "K+1 V"]  # unnormalised, a row for each count


def laws(draft: Draft, p) -> tuple[Float[Array, "K+1 V"], Bool[Array, "K"]]:
  """q of one row, zero past `count` and for the bonus; which drafts are real.

  A draft without logits is a point mass on its tokens.
  """
  K, V = p.shape[0] - 1, p.shape[1]
  if draft.logits is None:
    q = (draft.tokens[:, None] == jnp.arange(V)).astype(p.dtype)
  else:
    q = jnp.exp(draft.logits.astype(p.dtype))
  real = jnp.arange(K) < draft.count
  return jnp.pad(jnp.where(real[:, None], q, 0), ((0, 1), (0, 0))), real


def pick(law, tokens):
  """law[i, tokens[i]] for i < K, contracted: V may be sharded."""
  chosen = tokens[:, None] == jnp.arange(law.shape[1])
  return jnp.sum(jnp.where(chosen, law[: len(tokens)], 0), -1)


def first_failure(passed):
  """How many drafts stand when the first failed coin ends the block."""
  return jnp.sum(jnp.cumprod(passed.astype(jnp.int32)))


def last_pass(passed):
  """How many drafts stand when the last passed coin counts."""
  index = jnp.arange(1, passed.shape[0] + 1)
  return jnp.max(jnp.where(passed, index, 0), initial=0)


def coins(key, K: int):
  """Uniform [K] in [0, 1) that is fine near zero.

  One float32 uniform has steps of 2^-23, so that a token of probability
  1e-12 would pass as often as one of 1e-7.
  """
  high, low = (
      jax.random.uniform(jax.random.fold_in(key, i), (K,)) for i in range(2)
  )
  return jnp.minimum(high + low * 2.0**-23, 1 - 2.0**-24)


def judge(terms: Callable, count: Callable, key, draft: Draft, logp):
  """One row: (key, draft, log p [K+1 V]) -> (tokens [K+1], count).

  `count` tokens are to be emitted, 1..K+1: the accepted drafts and one draw
  from the residual of that count (from p itself should it sum to zero).
  """
  K = logp.shape[0] - 1
  p = jnp.exp(logp.astype(jnp.float32))
  num, den, residual = terms(draft, p)
  coin, extra = (jax.random.fold_in(key, i) for i in range(2))
  passed = coins(coin, K) * den < num
  n = count(passed)
  here = jnp.arange(K + 1) == n
  row = lambda m: jnp.sum(jnp.where(here[:, None], m, 0), 0)
  left = row(residual)
  left = jnp.where(jnp.sum(left) > 0, left, row(p))
  token = draw_one(extra, jnp.log(left))
  tokens = jnp.where(here, token, jnp.pad(draft.tokens, (0, 1)))
  return tokens, n + 1
