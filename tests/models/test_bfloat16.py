"""bfloat16 agrees loosely with itself; its products need all CPU passes."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.testing import decoder


def test_a_window_agrees_with_one_token_at_a_time():
  model = decoder(16, layers=2, dtype="bfloat16")
  tokens = jax.random.randint(jax.random.key(2), (2, 9), 0, 16)

  @jax.jit
  def whole(model):
    return model.head(model.norm(model(tokens, jnp.zeros(2, int))[0]))

  @jax.jit
  def single(model):
    cache, out = model.start(tokens, None, 16)[0], []
    for i in range(9):
      at = jnp.full(2, i)
      hidden, _, cache = model(tokens[:, i : i + 1], at, cache)
      out.append(model.head(model.norm(hidden)))
    return jnp.concatenate(out, 1)

  assert whole(model).dtype == jnp.float32
  np.testing.assert_allclose(single(model), whole(model), atol=0.3)
