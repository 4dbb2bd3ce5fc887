"""Writes land where they are told and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache, sharding
from specjax.attention import attend
from specjax.states import bucket
from specjax.types import KV


def test_every_row_is_written_at_its_own_slot():
  kv = KV(jnp.full((3, 2, 8, 4), -1.0), jnp.full((3, 2, 8, 4), -2.0))
  new = KV(jnp.ones((3, 2, 2, 4)), 2 * jnp.ones((3, 2, 2, 4)))
  got = cache.write(kv, new, jnp.array([0, 3, 6]))
  for row, start in enumerate((0, 3, 6)):
    for x, old, value in zip(got, (-1, -2), (1, 2)):
      want = np.full((2, 8, 4), float(old))
      want[:, start : start + 2] = value
      np.testing.assert_array_equal(x[row], want)


def test_a_cache_is_two_arrays_of_its_own_type():
  with jax.set_mesh(sharding.mesh(1, 2)):
    kv = cache.empty(2, 2, 8, 4, "bfloat16")
  assert kv.k.dtype == kv.v.dtype == jnp.bfloat16
  kv = cache.empty(2, 2, 8, 4, "bfloat16")
  assert kv.k.shape == kv.v.shape == (2, 2, 8, 4)
  assert kv.k.dtype == jnp.float32  # on a lone CPU, which would widen it all
  jax.jit(lambda kv: kv, donate_argnums=0)(kv)  # one array twice would raise


def test_values_are_cast_to_the_type_of_the_cache():
  kv = KV(*[jnp.zeros((1, 1, 4, 2), jnp.bfloat16)] * 2)
  new = KV(*[jnp.ones((1, 1, 1, 2), jnp.float32)] * 2)
  assert cache.write(kv, new, jnp.array([1])).k.dtype == jnp.bfloat16


def test_buckets_are_powers_of_two_times_128_and_fit():
  seen = set()
  for limit in range(1, 3000, 7):
    slots = bucket(limit, 256)
    assert slots >= limit + 256
    assert slots == 128 or slots // 2 < limit + 256
    seen.add(slots)
  assert seen == {512, 1024, 2048, 4096}


def test_a_bad_value_is_moved_to_its_key():
  new = KV(jnp.ones((1, 1, 3, 4)), jnp.ones((1, 1, 3, 4)))
  bad = new._replace(v=new.v.at[0, 0, 1, 2].set(jnp.inf))
  got = cache.sound(bad)
  assert jnp.isnan(got.k[0, 0, 1]).all() and (got.v[0, 0, 1] == 0).all()
  for i in (0, 2):
    np.testing.assert_array_equal(got.k[0, 0, i], new.k[0, 0, i])
    np.testing.assert_array_equal(got.v[0, 0, i], new.v[0, 0, i])
  run = lambda kv: attend(
      jnp.ones((1, 3, 1, 4)), kv, jnp.arange(3)[None], scale=1.0
  )
  out, clean = run(got), run(cache.sound(new))
  np.testing.assert_array_equal(out[:, 0], clean[:, 0])  # does not see it
  assert jnp.isnan(out[:, 1:]).all()  # sees it
