"""Mixtures: each token's answer is the weighted sum that the papers write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import sharding
from specjax.models.decoder import Config
from specjax.models.parts import Experts

SHAPE = dict(vocab=8, width=8, layers=1, heads=8, kv_heads=8, dim=2, mlp=8)


def mixture(experts=6, chosen=2, **fields):
  c = Config(**SHAPE, experts=experts, chosen=chosen, expert_mlp=16, **fields)
  return Experts(c, rngs=nnx.Rngs(0))


def by_hand(m, x):
  """[N E], in float64, token by token."""
  read = lambda p: np.asarray(p[...], np.float64)
  router, gate, up, down = map(read, (m.router, m.gate, m.up, m.down))
  out = []
  for token in np.asarray(x, np.float64):
    share = np.exp(router @ token)
    share /= share.sum()
    chosen = np.argsort(-share)[: m.c.chosen]
    total = share[chosen].sum() if m.c.renormalise else 1.0
    answers = []
    for e in chosen:
      g = gate[e] @ token
      hidden = g / (1 + np.exp(-g)) * (up[e] @ token)
      answers.append(share[e] / total * (down[e] @ hidden))
    out.append(sum(answers))
  return np.array(out)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("tokens", [(1, 1), (2, 1), (1, 2), (2, 5)])
def test_few_and_many_tokens(tokens, renormalise):
  m = mixture(renormalise=renormalise)
  x = jax.random.normal(jax.random.key(1), (*tokens, 8))
  found = np.asarray(jax.jit(lambda m, x: m(x))(m, x)).reshape(-1, 8)
  np.testing.assert_allclose(found, by_hand(m, x.reshape(-1, 8)), atol=1e-5)


def test_few_tokens_read_only_what_they_chose():
  m = mixture(experts=64)
  x = jnp.ones((1, 1, 8))
  flops = jax.jit(lambda m, x: m(x)).lower(m, x).compile().cost_analysis()
  every = 2 * 64 * 3 * 8 * 16
  assert flops["flops"] < every / 4


@pytest.mark.parametrize("tokens", [(2, 1), (2, 5)])
def test_on_a_mesh(tokens):
  x = jax.random.normal(jax.random.key(1), (*tokens, 8))
  plain = mixture()(x)
  with jax.set_mesh(sharding.mesh(2, 4)):
    m = mixture()
    shared = jax.jit(lambda m, x: m(x))(m, sharding.put(x, "batch", None, None))
    assert m.gate[...].sharding.spec == jax.P(None, "model", None)
  np.testing.assert_allclose(shared, plain, atol=1e-5)


def test_bfloat16_stays_so():
  m = mixture(dtype="bfloat16")
  assert m(jnp.ones((1, 3, 8), jnp.bfloat16)).dtype == jnp.bfloat16
