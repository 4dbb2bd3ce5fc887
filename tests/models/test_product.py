"""Every way a product is written gives the same numbers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.product import FEW, FEW_WIDENED, product, unlifted
from specjax.sharding import mesh


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (2, 1), (2, 2), (1, 5), (3, 3), (1, FEW), (2, 40)]
)
@pytest.mark.parametrize("size", [20, 21])
@pytest.mark.parametrize("here", [None, mesh])
def test_a_product_is_that_of_numpy(shape, size, dtype, here):
  rng = np.random.default_rng(0)
  x, w = (
      jnp.asarray(rng.standard_normal(s), dtype)
      for s in ((*shape, 24), (size, 24))
  )
  with jax.set_mesh(here()) if here else contextlib.nullcontext():
    got = jax.jit(product, static_argnums=2)(x, w, "vocab")
  assert got.dtype == jnp.float32 and got.shape == (*shape, size)
  want = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
  np.testing.assert_allclose(got, want, atol=1e-5 if dtype == "float32" else .1)


def test_a_row_does_not_change_with_its_neighbours():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.standard_normal((1, 4, 24)), jnp.float32)
  w = jnp.asarray(rng.standard_normal((20, 24)), jnp.float32)
  other = x.at[:, 1:].set(7.0)
  np.testing.assert_array_equal(
      product(x, w, None)[:, 0], product(other, w, None)[:, 0]
  )


@pytest.mark.parametrize("rows", [1, 4, FEW_WIDENED])
def test_a_loop_holds_no_wide_copy_of_a_bfloat16_weight(rows):
  weight = jnp.zeros((512, 256), jnp.bfloat16)

  @jax.jit
  def loop(x, weight, n):

    def body(_, x):
      x, table = unlifted(x, weight)
      return x + table[jnp.argmax(product(x, weight, None), -1)]

    return jax.lax.fori_loop(0, n, body, x)

  x = jnp.zeros((1, rows, 256), jnp.bfloat16)
  program = loop.lower(x, weight, 3).compile()
  assert program.memory_analysis().temp_size_in_bytes < weight.nbytes
