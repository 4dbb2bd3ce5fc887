"""K tokens at once == one by one == without a cache, for every field."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax.models.decoder import Config, Decoder
from specjax.models.parts import ACTIVATIONS, NORMED
from specjax.models.rope import Rope

pytestmark = pytest.mark.usefixtures("quick_compiles")
SHAPE = dict(
    vocab=16, width=16, layers=2, heads=4, kv_heads=2, dim=8, mlp=16
)
LENGTH, SLOTS = 9, 160  # slots enough for a switch over prefixes
CONFIGS = {
    "llama": dict(rope=Rope(scaling="llama3", factor=4.0, original=16)),
    "qwen": dict(qkv_bias=True, qk_norm=True, tied=True, kv_heads=1),
    "gemma": dict(
        norm_offset=1.0, post_norm=True, windows=(3, 0), score_cap=2.0,
        logit_cap=5.0, embed_scale=4.0, tied=True, act="gelu_tanh", scale=0.2,
        rope=Rope(scaling="linear", factor=8.0), local_rope=Rope(theta=100.0),
    ),
    "gpt2": dict(
        norm="layer", positions="learned", max_positions=32, gated=False,
        act="gelu", qkv_bias=True, out_bias=True, mlp_bias=True, kv_heads=4,
    ),
    "partial": dict(rope=Rope(fraction=0.5), mlp_bias=True, act="relu"),
    "yarn": dict(
        rope=Rope(scaling="yarn", factor=4.0, original=16), windows=(1, 4),
        heads=2, dim=16,
    ),
    "none": dict(positions="none", norm="layer", qk_norm=True, gated=False),
}


def build(name, **more):
  model = Decoder(Config(**SHAPE | CONFIGS[name] | more), rngs=nnx.Rngs(0))
  # Biases and norms begin as zeros and ones, which would hide a mistake.
  keys = iter(jax.random.split(jax.random.key(1), 99))
  noisy = lambda x: (x + 0.3 * jax.random.normal(next(keys), x.shape)).astype(
      x.dtype
  )
  return jax.tree.map(noisy, model)


@jax.jit
def three_ways(model, tokens):
  """Logits and taps of a text: uncached, in one cached window, one by one.

  The caches hold rubbish wherever nothing was written yet.
  """
  B, T = tokens.shape
  taps = (0, 1, 2, NORMED)
  start = jnp.zeros(B, jnp.int32)
  out = lambda x: model.head(model.norm(x))
  hidden, features, _ = model(tokens, start, None, taps)
  rubbish = jax.tree.map(
      lambda x: jnp.full_like(x, jnp.finfo(x.dtype).max),
      model.start(tokens, start, SLOTS)[0]
  )
  whole, again, _ = model(tokens, start, rubbish, taps)

  def one(cache, i):
    token = jax.lax.dynamic_slice_in_dim(tokens, i, 1, 1)
    hidden, features, cache = model(token, start + i, cache, taps)
    return cache, (out(hidden)[:, 0], features[:, 0])

  _, (logits, each) = jax.lax.scan(one, rubbish, jnp.arange(T))
  each, logits = jnp.swapaxes(each, 0, 1), jnp.swapaxes(logits, 0, 1)
  return (out(hidden), out(whole), logits), (features, again, each)


@pytest.mark.parametrize("name", CONFIGS)
def test_window_cache_and_plain_pass_agree(name):
  model = build(name)
  tokens = jax.random.randint(jax.random.key(2), (2, LENGTH), 0, 16)
  (plain, whole, single), features = three_ways(model, tokens)
  assert plain.dtype == jnp.float32 and np.isfinite(plain).all()
  np.testing.assert_allclose(whole, plain, atol=2e-4, rtol=2e-4)
  np.testing.assert_allclose(single, plain, atol=2e-4, rtol=2e-4)
  for other in features[1:]:
    np.testing.assert_allclose(other, features[0], atol=2e-4, rtol=2e-4)


def test_rows_may_start_anywhere():
  """A window that goes on a text, at another place in each row."""
  model = build("llama")
  tokens = jax.random.randint(jax.random.key(2), (2, LENGTH), 0, 16)
  (plain, _, _), _ = three_ways(model, tokens)
  start = jnp.array([3, 5])

  @jax.jit
  def split(model):
    cache = model.start(tokens, start, SLOTS)[0]
    _, _, cache = model(tokens[:, :6], start * 0, cache)
    window = jax.vmap(
        lambda t, s: jax.lax.dynamic_slice_in_dim(t, s, 4)
    )(tokens, start)
    return model.head(model.norm(model(window, start, cache)[0]))

  got = split(model)
  for i, s in enumerate((3, 5)):
    np.testing.assert_allclose(got[i], plain[i, s : s + 4], atol=2e-4)


def test_taps_are_the_residual_stream():
  model = build("llama")
  tokens = jnp.arange(LENGTH)[None]

  @jax.jit
  def run(model):
    zero = jnp.zeros(1, jnp.int32)
    hidden, seen, _ = model(tokens, zero, None, (2, NORMED, 0))
    empty = model(tokens, zero)[1]
    return hidden, jnp.split(seen, 3, -1), model.embed(tokens), empty, (
        model.norm(hidden)
    )

  hidden, (last, normed, first), embedded, empty, want = run(model)
  np.testing.assert_array_equal(last, hidden)
  np.testing.assert_array_equal(first, embedded)
  np.testing.assert_allclose(normed, want, rtol=1e-5)
  assert empty.shape == (1, LENGTH, 0)


def test_a_window_forgets_what_is_older():
  """One layer of window 3: token 0 cannot matter to position 3."""
  config = Config(**SHAPE | dict(layers=1, windows=(3,)))
  model = Decoder(config, rngs=nnx.Rngs(0))
  run = jax.jit(lambda m, t: m(t, jnp.zeros(1, jnp.int32))[0][0])
  a, b = (run(model, jnp.array([[t, 2, 3, 4, 5]])) for t in (0, 1))
  np.testing.assert_array_equal(a[3:], b[3:])
  assert np.all(np.any(a[:3] != b[:3], -1))


def test_caps_bound_scores_and_logits():
  model = build("gemma")
  tokens = jnp.arange(LENGTH)[None]
  (logits, _, _), _ = three_ways(model, jnp.concatenate([tokens] * 2))
  assert np.abs(logits).max() <= 5.0


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations_are_the_published_ones(act):
  from math import erf, sqrt

  x = np.linspace(-3, 3, 13)
  want = {
      "silu": x / (1 + np.exp(-x)),
      "gelu": [v * (1 + erf(v / sqrt(2))) / 2 for v in x],
      "gelu_tanh": x / 2 * (
          1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))
      ),
      "relu": np.maximum(x, 0),
  }[act]
  np.testing.assert_allclose(ACTIVATIONS[act](x), want, atol=1e-5)


def test_ids_outside_the_vocabulary_make_no_nan():
  model = build("gpt2")
  out = model.embed(jnp.array([[-5, 2**31 - 1]]))
  assert np.isfinite(out).all()


def test_parameters_start_at_a_scale_that_depth_does_not_change():
  zero, tokens = jnp.zeros(1, jnp.int32), jnp.arange(32)[None]
  run = jax.jit(lambda m: m.head(m.norm(m(tokens, zero)[0])))
  for layers in (1, 6):
    config = Config(**SHAPE | dict(width=64, layers=layers, vocab=256))
    model = Decoder(config, rngs=nnx.Rngs(0))
    logits = run(model)
    assert 0.5 < np.std(logits) < 2.5


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"vocab": 0}, "vocab = 0 must be positive"),
        ({"layers": -1}, "layers = -1"),
        ({"heads": 3}, "heads = 3 is not a multiple of kv_heads = 2"),
        ({"norm": "batch"}, "norm 'batch': rms or layer"),
        ({"act": "tanh"}, "act 'tanh' is not one of silu"),
        ({"positions": "alibi"}, "positions 'alibi'"),
        ({"positions": "learned"}, "need max_positions > 0"),
        ({"windows": (1,)}, "windows has 1 entries for 2 layers"),
        ({"windows": (0, -1)}, "windows"),
        ({"dtype": "float16"}, "dtype 'float16'"),
        ({"dim": 7}, "rope turns 7 of dim = 7"),
        ({"rope": Rope(fraction=0.4)}, "rope turns 3 of dim = 8"),
        ({"local_rope": Rope(fraction=2.0)}, "rope turns 16 of dim = 8"),
    ],
    ids=str,
)
def test_configs_that_contradict_themselves_are_refused(changes, text):
  with pytest.raises(ValueError, match=f"^decoder config: .*{text}"):
    Config(**SHAPE | changes)


def test_configs_are_static():
  assert hash(Config(**SHAPE)) == hash(Config(**SHAPE))
  assert Config(**SHAPE) != Config(**SHAPE | {"tied": True})
