"""K tokens at once == one by one; padding and other rows are never read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax.models.encoder_decoder import (
    Config,
    EncoderDecoder,
    bucket_numbers,
)
from specjax.models.parts import NORMED
from specjax.testing.pair import encoder_decoder

pytestmark = pytest.mark.usefixtures("quick_compiles")
SHAPE = dict(
    vocab=16, width=16, encoder_layers=2, layers=2, heads=2, dim=8, mlp=16
)
V, SLOTS = 16, 160  # slots enough for a switch over prefixes
SOURCES = [[3, 1, 4, 1, 5, 9], [2, 7]]
TEXT = jnp.array([[0, 5, 6, 7, 8, 9, 1, 2], [0, 3, 3, 2, 1, 15, 14, 13]])


def padded(slots, rubbish=0):
  tokens = np.full((len(SOURCES), slots), rubbish, np.int32)
  for i, source in enumerate(SOURCES):
    tokens[i, : len(source)] = source
  return tokens, np.array([len(s) for s in SOURCES], np.int32)


@jax.jit
def logits(model, source, length, tokens):
  """Logits [B T V] of a text in one window, its caches just fitting."""
  cache, _ = model.start(source, length, tokens.shape[1])
  hidden = model(tokens, jnp.zeros(len(tokens), jnp.int32), cache)[0]
  return model.head(model.norm(hidden))


@pytest.fixture(scope="module")
def model():
  return encoder_decoder(V, layers=2)


@pytest.fixture(scope="module")
def whole(model):
  return np.asarray(logits(model, *padded(6), TEXT))


def test_one_by_one_over_rubbish_is_the_whole_window(model, whole):
  @jax.jit
  def single(model, source, length):
    cache, first = model.start(source, length, SLOTS)
    largest = lambda x: jnp.full_like(x, jnp.finfo(x.dtype).max)
    cache = cache._replace(own=jax.tree.map(largest, cache.own))

    def one(cache, i):
      token = jax.lax.dynamic_slice_in_dim(TEXT, i, 1, 1)
      hidden, _, cache = model(token, jnp.full(2, i), cache)
      return cache, model.head(model.norm(hidden))[:, 0]

    _, each = jax.lax.scan(one, cache, jnp.arange(TEXT.shape[1]))
    return jnp.swapaxes(each, 0, 1), first

  each, first = single(model, *padded(6))
  assert whole.dtype == np.float32
  np.testing.assert_allclose(each, whole, atol=2e-4, rtol=2e-4)
  np.testing.assert_array_equal(first, [[0], [0]])


@pytest.mark.parametrize("slots, rubbish", [(16, 0), (16, 9), (300, 2**31 - 1)])
def test_what_pads_a_source_is_never_read(model, whole, slots, rubbish):
  got = logits(model, *padded(slots, rubbish), TEXT)
  np.testing.assert_allclose(got, whole, atol=1e-4, rtol=1e-4)


def test_a_row_alone_is_a_row_among_others(model, whole):
  for i, source in enumerate(SOURCES):
    alone = logits(
        model, np.array([source]), np.array([len(source)]), TEXT[i : i + 1]
    )
    np.testing.assert_allclose(alone[0], whole[i], atol=1e-4, rtol=1e-4)


def test_every_token_of_the_source_and_its_order_matter(model, whole):
  source, length = padded(6)
  for other in (np.where(np.arange(6) == 5, 10, source), source[:, ::-1]):
    got = np.asarray(logits(model, other, length, TEXT))
    assert (abs(got[0] - whole[0]).max(-1) > 1e-3).all()


def test_the_text_is_read_in_order_and_never_ahead(model, whole):
  other = TEXT.at[:, 4].set(11)
  got = np.asarray(logits(model, *padded(6), other))
  np.testing.assert_allclose(got[:, :4], whole[:, :4], atol=1e-5)
  assert (abs(got[:, 4:] - whole[:, 4:]).max(-1) > 1e-3).all()


def test_taps_are_the_decoders_stream(model):
  @jax.jit
  def run(model, source, length):
    cache, _ = model.start(source, length, 8)
    zero = jnp.zeros(2, jnp.int32)
    hidden, seen, _ = model(TEXT, zero, cache, (2, NORMED, 0))
    none = model(TEXT, zero, cache)[1]
    return hidden, jnp.split(seen, 3, -1), model.norm(hidden), none

  hidden, (last, normed, first), want, none = run(model, *padded(6))
  np.testing.assert_array_equal(last, hidden)
  np.testing.assert_allclose(normed, want, rtol=1e-5)
  np.testing.assert_array_equal(first, model.embed(TEXT))
  assert none.shape == (2, 8, 0)


def by_definition(away, buckets, most, ahead):
  """The bucket of one relative position, key - query, in whole numbers."""
  side = buckets // 2 if ahead else buckets
  near = side // 2
  distance = abs(away) if ahead else max(-away, 0)
  found = distance
  if distance >= near:
    # The largest n with near * (most / near) ** (n / rest) <= distance.
    rest = side - near
    found = near + max(
        n for n in range(rest)
        if near**rest * most**n <= distance**rest * near**n
    )
  return found + side * (ahead and away > 0)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "buckets, most", [(32, 128), (8, 16), (10, 20), (4, 3)]
)
def test_buckets_are_exact_near_by_and_grow_by_a_factor(buckets, most, ahead):
  got = bucket_numbers(buckets, most, ahead)
  want = [
      by_definition(d, buckets, most, ahead) for d in range(-most, most + 1)
  ]
  assert got.tolist() == want
  assert got[0] == (buckets // 2 if ahead else buckets) - 1
  assert len(set(want)) == buckets - ahead  # none is ahead by nothing


def test_what_is_farther_than_the_last_bucket_is_in_it(model):
  relative = model.decoder.relative
  near, far = (relative(jnp.array([[n]]), n + 1)[..., :1] for n in (16, 150))
  np.testing.assert_array_equal(near, far)
  assert near.shape == (1, 2, 1, 1, 1)


def test_a_tied_head_scales_what_it_reads():
  config = Config(**SHAPE, tied=True)
  model = EncoderDecoder(config, rngs=nnx.Rngs(0))
  assert model.free_head is None
  x = jax.random.normal(jax.random.key(0), (1, 2, 16))
  want = x @ model.embedding[...].T / 4  # width ** -0.5
  np.testing.assert_allclose(model.head(x), want, atol=1e-5)


def test_parameters_start_at_a_scale_that_depth_does_not_change():
  for layers in (1, 6):
    config = Config(
        **SHAPE | dict(encoder_layers=layers, layers=layers, width=64)
    )
    got = logits(
        EncoderDecoder(config, rngs=nnx.Rngs(0)), *padded(6), TEXT
    )
    assert 0.5 < np.std(got) < 2.5


def test_gradients_reach_every_parameter():
  model = EncoderDecoder(Config(**SHAPE), rngs=nnx.Rngs(0))
  source, length = padded(8)
  grads = jax.jit(jax.grad(
      lambda m: jax.nn.log_softmax(logits(m, source, length, TEXT)).mean()
  ))(model)
  for path, x in jax.tree_util.tree_leaves_with_path(grads):
    assert np.isfinite(x).all() and np.any(x), jax.tree_util.keystr(path)


def test_bfloat16_is_near_float32(model, whole):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)
  config = Config(**vars(model.c) | dict(dtype="bfloat16"))
  shape = jax.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
  half = jax.tree.unflatten(jax.tree.structure(shape), jax.tree.leaves(half))
  got = logits(half, *padded(6), TEXT)
  assert got.dtype == jnp.float32
  assert abs(got - whole).max() < 0.2 * np.std(whole) + 0.2


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(vocab=0), "vocab = 0 must be positive"),
        (dict(encoder_layers=0), "encoder_layers = 0"),
        (dict(encoder_layers=2000), "2000 layers are more than 1024"),
        (dict(act="tanh"), "act 'tanh' is not one of silu"),
        (dict(buckets=3), "buckets = 3 must be at least 4"),
        (dict(max_distance=16), "max_distance = 16 must lie above"),
        (dict(max_distance=2**20), "max_distance = 1048576"),
        (dict(opening=16), "opening = 16 is outside the vocabulary, 0 to 15"),
        (dict(dtype="float16"), "dtype 'float16'"),
    ],
    ids=str,
)
def test_configs_that_contradict_themselves_are_refused(changes, text):
  with pytest.raises(ValueError, match=f"^encoder-decoder config: .*{text}"):
    Config(**SHAPE | changes)


def test_configs_are_static():
  assert hash(Config(**SHAPE)) == hash(Config(**SHAPE))
  assert Config(**SHAPE) != Config(**SHAPE | {"tied": True})
