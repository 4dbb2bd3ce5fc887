"""Attention over static prefixes against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.attention import attend, visible
from specjax.types import KV

pytestmark = pytest.mark.usefixtures("quick_compiles")
B, H, K, D, S = 2, 4, 2, 8, 256


def reference(q, kv, pos, window, scale, cap):
  q, k, v = (np.asarray(x, np.float64) for x in (q, *kv))
  out = np.zeros(q.shape)
  for b, t, h in np.ndindex(*q.shape[:3]):
    p = pos[b, t]
    first = max(0, p - window + 1) if window else 0
    keys, values = (x[b, h // (H // K), first : p + 1] for x in (k, v))
    score = keys @ q[b, t, h] * scale
    score = cap * np.tanh(score / cap) if cap else score
    weight = np.exp(score - score.max())
    out[b, t, h] = weight / weight.sum() @ values
  return out


def arrays(T, slots=S, seed=0):
  rng = np.random.default_rng(seed)
  make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  q, kv = make(B, T, H, D), KV(make(B, K, slots, D), make(B, K, slots, D))
  return q, kv


@pytest.mark.parametrize("window, cap", [(0, 0.0), (5, 0.0), (0, 2.0)])
def test_attention_is_that_of_numpy_at_every_prefix_border(window, cap):
  run = jax.jit(
      lambda q, kv, pos: attend(
          q, kv, pos, window=window, scale=0.4, cap=cap
      )
  )
  q, kv = arrays(3)
  for start in ([0, 0], [61, 3], [62, 10], [125, 0], [126, 70], [253, 128]):
    pos = np.array(start)[:, None] + np.arange(3)
    want = reference(q, kv, pos, window, 0.4, cap)
    np.testing.assert_allclose(run(q, kv, pos), want, atol=1e-5)


@pytest.mark.parametrize("window, cap", [(0, 0.0), (300, 0.0), (0, 2.0)])
def test_attention_is_that_of_numpy_at_every_block_border(window, cap):
  """1,024 slots, several queries: a CPU reads them by blocks."""
  run = jax.jit(
      lambda q, kv, pos: attend(
          q, kv, pos, window=window, scale=0.4, cap=cap
      )
  )
  q, kv = arrays(3, 1024)
  for start in ([0, 0], [253, 3], [254, 600], [510, 1021], [1021, 0]):
    pos = np.array(start)[:, None] + np.arange(3)
    want = reference(q, kv, pos, window, 0.4, cap)
    np.testing.assert_allclose(run(q, kv, pos), want, atol=1e-5)
  assert "scan" in str(jax.make_jaxpr(run)(q, kv, pos))
  # One query of one row is read by prefixes, and has the same gradient.
  loss = lambda q, pos: jnp.sum(run(q, KV(kv.k[:1], kv.v[:1]), pos)[:, -1] ** 2)
  slope = jax.jit(jax.grad(loss))
  several = jnp.repeat(q[:1, -1:], 4, 1), jnp.repeat(pos[:1, -1:], 4, 1)
  alone = slope(q[:1, -1:], pos[:1, -1:])
  np.testing.assert_allclose(slope(*several)[:, -1:], alone, atol=1e-4)


@pytest.mark.parametrize("T", [1, 3])
def test_a_short_window_reads_what_its_row_may_see(T):
  """Of 1,024 slots 128 are read, wherever each row stands."""
  run = jax.jit(
      lambda q, kv, pos: attend(q, kv, pos, window=100, scale=0.4)
  )
  q, kv = arrays(T, 1024)
  for start in ([0, 1024 - T], [98, 99], [100, 640], [127, 511], [900, 924]):
    pos = np.array(start)[:, None] + np.arange(T)
    want = reference(q, kv, pos, 100, 0.4, 0.0)
    np.testing.assert_allclose(run(q, kv, pos), want, atol=1e-5)
  text = run.lower(q, kv, pos).compile().as_text()
  assert "1024]" not in text  # no scores of all slots


def test_a_bias_is_added_to_the_scores_at_every_prefix_border():
  """Known by what it undoes: a bias of minus the scores leaves a mean."""
  run = jax.jit(
      lambda q, kv, pos, bias: attend(q, kv, pos, scale=0.4, bias=bias)
  )
  q, kv = arrays(3)
  score = 0.4 * np.einsum(
      "btkgd,bksd->bktgs", q.reshape(B, 3, K, H // K, D), kv.k
  )
  for start in ([0, 0], [61, 3], [126, 70], [253, 128]):
    pos = np.array(start)[:, None] + np.arange(3)
    got = run(q, kv, pos, -score)
    for b, t in np.ndindex(B, 3):
      mean = kv.v[b, :, : pos[b, t] + 1].mean(1)
      want = np.repeat(mean, H // K, 0)
      np.testing.assert_allclose(got[b, t], want, atol=1e-5)
  none = run(q, kv, pos, np.zeros((1, 1, 1, 1, S), np.float32))
  np.testing.assert_allclose(
      none, reference(q, kv, pos, 0, 0.4, 0.0), atol=1e-5
  )


@pytest.mark.parametrize("slots", [S, 1024])
@pytest.mark.parametrize("rubbish", [np.nan, np.inf, 1e30])
def test_slots_above_the_window_may_hold_anything(rubbish, slots):
  run = jax.jit(lambda q, kv, pos: attend(q, kv, pos, scale=1.0))
  q, kv = arrays(3, slots)
  pos = np.array([[4, 5, 6], [61, 62, 63]])
  above = np.arange(slots) > pos[:, -1:]
  spoil = lambda x, by: np.where(above[:, None, :, None], by, x)
  dirty = KV(spoil(kv.k, rubbish), spoil(kv.v, np.float32(3e38)))
  np.testing.assert_array_equal(run(q, dirty, pos), run(q, kv, pos))


def test_few_slots_need_no_switch_and_many_have_a_few_prefixes():
  text = {}
  for slots in (128, 129, 640, 2048):
    q, kv = arrays(1, slots)
    pos = np.zeros((B, 1), np.int32)
    text[slots] = str(
        jax.make_jaxpr(lambda *a: attend(*a, scale=1.0))(q, kv, pos)
    )
  assert "cond" not in text[128]
  assert "cond" in text[129]
  for slots, prefixes in ((640, (128, 640)), (2048, (128, 256, 512, 2048))):
    for n in prefixes:
      assert f"f32[{B},{K},{n},{D}]" in text[slots]
    assert f"f32[{B},{K},1024,{D}]" not in text[slots]


def test_one_token_sees_itself():
  q, kv = arrays(1, 64)
  q, kv = jax.tree.map(jnp.asarray, (q, kv))
  out = attend(q, kv, jnp.zeros((B, 1), jnp.int32), scale=1.0)
  want = np.repeat(np.asarray(kv.v)[:, :, 0], H // K, 1)
  np.testing.assert_allclose(out[:, 0], want, rtol=1e-6)


def test_visible_counts_the_query_in_its_window():
  pos = jnp.array([[3, 4]])
  np.testing.assert_array_equal(
      visible(pos, 6, 0)[0, 0, 0].astype(int),
      [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]],
  )
  np.testing.assert_array_equal(
      visible(pos, 6, 2)[0, 0, 0].astype(int),
      [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0]],
  )
