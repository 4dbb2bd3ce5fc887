"""int8 weights: the nearest ones, products of them, the law, what is refused.

`spelled_out` is the same model in float32 numbers, which must say the same.
"""

import contextlib
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import testing
from specjax.bench import peers
from specjax.checkpoint import orbax, published, safetensors
from specjax.drafters.autoregressive import Autoregressive
from specjax.models import encoder_decoder as encoders
from specjax.models import int8
from specjax.models.decoder import Config, Decoder
from specjax.models.int8 import Int8, quantised
from specjax.models.product import Quantised, dequantised, product
from specjax.sharding import mesh, put

pytestmark = pytest.mark.usefixtures("quick_compiles")
SHAPE = dict(
    vocab=48, width=32, layers=1, heads=8, kv_heads=8, dim=8, mlp=64
)
MODELS = {
    "untied": lambda **more: Decoder(Config(**SHAPE | more), rngs=nnx.Rngs(0)),
    "tied": lambda **more: MODELS["untied"](
        tied=True, qk_norm=True, qkv_bias=True, embed_scale=4.0, **more
    ),
    "learned": lambda **more: MODELS["untied"](
        norm="layer", positions="learned", max_positions=32, gated=False,
        act="gelu", out_bias=True, mlp_bias=True, **more
    ),
    "mixture": lambda **more: MODELS["untied"](
        experts=6, chosen=2, expert_mlp=16, **more
    ),
}
STAYS = {"router", "positions", "table"}  # matrices that no product scales


def t5(tied=False):
  c = encoders.Config(
      vocab=48, width=32, encoder_layers=1, layers=1, heads=4, dim=8, mlp=64,
      tied=tied,
  )
  return encoders.EncoderDecoder(c, rngs=nnx.Rngs(0))


def spelled_out(model):
  """A copy whose int8 weights are plain float32 parameters."""
  model = jax.tree.map(lambda x: x, model)
  for _, module in list(nnx.iter_modules(model)):
    for name, held in list(vars(module).items()):
      if isinstance(held, Int8):
        setattr(module, name, nnx.Param(dequantised(held[...])))
  return model


def noise(shape, dtype="float32", seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.standard_normal(shape), dtype)


@jax.jit
def logits(model, tokens):
  start = tokens[:, 0] * 0
  cache, _ = model.start(tokens, start + tokens.shape[1], 32)
  return model.head(model.norm(model(tokens, start, cache)[0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_weight_is_the_nearest_multiple_of_its_rows_scale(dtype):
  weight = noise((3, 5, 64), dtype).at[1, 2].set(0).at[0, 0].multiply(1e-30)
  values, scale = Int8(weight)[...]
  assert (values.dtype, scale.dtype) == (jnp.int8, jnp.float32)
  w, q, s = (np.asarray(x, np.float64) for x in (weight, values, scale))
  assert (abs(w - q * s[..., None]) <= s[..., None] / 2 * (1 + 1e-6)).all()
  largest = abs(q).max(-1)
  assert largest[1, 2] == 0 and (np.delete(largest, 7) == 127).all()


def test_a_weight_that_is_no_number_is_still_none():
  weight = jnp.ones((2, 8)).at[0, 3].set(jnp.nan)
  found = dequantised(Int8(weight)[...])
  assert not np.isfinite(found[0]).any() and (found[1] == 1).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 5), (1, 16), (2, 40)])
@pytest.mark.parametrize("here", [None, mesh, lambda: mesh(1, 8)])
def test_a_product_is_that_of_the_numbers(shape, dtype, here):
  x = noise((*shape, 64), dtype)
  with jax.set_mesh(here()) if here else contextlib.nullcontext():
    weight = Int8(noise((24, 64), seed=1))[...]
    got = jax.jit(product, static_argnums=2)(x, weight, None)
  want = np.asarray(x, np.float64) @ np.asarray(
      dequantised(weight), np.float64
  ).T
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, want, atol=2e-5)  # also in bfloat16


@pytest.mark.parametrize("rows", [1, 8])
def test_a_loop_holds_no_wide_copy_of_a_weight(rows):
  weight = Int8(noise((512, 256)))[...]

  @jax.jit
  def loop(x, weight, n):
    body = lambda _, x: x + product(x, weight, None)[..., :256]
    return jax.lax.fori_loop(0, n, body, x)

  program = loop.lower(jnp.zeros((1, rows, 256)), weight, 3).compile()
  temporary = program.memory_analysis().temp_size_in_bytes
  assert temporary < weight.values.nbytes


@pytest.mark.parametrize("tokens", [(1, 1), (3, 9)])
@pytest.mark.parametrize("make", [*MODELS.values(), t5], ids=[*MODELS, "t5"])
def test_a_model_says_what_its_numbers_say(make, tokens):
  model = quantised(make())
  tokens = jnp.arange(np.prod(tokens)).reshape(tokens)
  found, wanted = logits(model, tokens), logits(spelled_out(model), tokens)
  np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
  before = logits(make(), tokens)
  assert 1e-4 < np.abs(found - before).max() < 0.3 * np.std(before)


def test_a_model_with_tied_tables_and_an_encoder():
  model = quantised(t5(tied=True))
  tokens = jnp.arange(6).reshape(2, 3)
  found, wanted = logits(model, tokens), logits(spelled_out(model), tokens)
  np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [*MODELS.values(), t5], ids=[*MODELS, "t5"])
def test_all_matrices_but_the_router_and_positions_are_int8(make):
  model = quantised(make())
  arrays = safetensors.named(model)
  for name, x in arrays.items():
    last = name.rpartition(".")[2]
    matrix = x.ndim > 1 and last not in {"scale", *STAYS}
    assert (x.dtype == jnp.int8) == (last == "values") == matrix, name
  assert type(model) is type(make()) and model.vocab == 48


def test_parameters_take_half_of_bfloat16():
  shape = dict(width=256, mlp=512, vocab=512, dim=32, dtype="bfloat16")

  def count(make):
    leaves = jax.tree.leaves(jax.eval_shape(make))
    return sum(x.size * x.dtype.itemsize for x in leaves)

  for make in (MODELS["untied"], MODELS["mixture"]):
    make = functools.partial(make, **shape)
    less = count(lambda: quantised(make()))  # noqa: B023
    assert 0.5 < less / count(make) < 0.53


def test_one_weight_at_a_time_is_there_twice(monkeypatch):
  model, held = MODELS["untied"](width=64), []
  rounded = int8._rounded

  def counted(weight):
    held.append(sum(x.nbytes for x in jax.live_arrays()))
    return rounded(weight)

  monkeypatch.setattr(int8, "_rounded", counted)
  quantised(model)
  assert (np.diff(held) < 0).all() and len(held) == 9


def test_it_can_be_planned_without_arrays():
  shape = jax.eval_shape(lambda: quantised(MODELS["mixture"]()))
  like = quantised(MODELS["mixture"]())
  of = lambda m: [(x.shape, x.dtype) for x in jax.tree.leaves(m)]
  assert of(shape) == of(like)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_gathered_on_a_wide_mesh(name):
  with jax.set_mesh(mesh(1, 8)):
    tokens = put(np.zeros((1, 1), np.int32), "batch", None)
    before = MODELS[name]()
    layouts = {n: x.sharding.spec for n, x in safetensors.named(before).items()}
    plain = logits.lower(before, tokens).compile().as_text()
    rounding = [
        int8._rounded.lower(x).compile().as_text()
        for n, x in safetensors.named(before).items() if x.ndim > 1
    ]
    model = quantised(before)
    whole = logits.lower(model, tokens).compile().as_text()
    found = np.asarray(logits(model, tokens))
  for n, x in safetensors.named(model).items():
    was = layouts[n.removesuffix(".values").removesuffix(".scale")]
    assert tuple(x.sharding.spec) == tuple(was[: x.ndim]), n
  assert any("all-reduce" in text for text in rounding)
  assert not any("all-gather" in text for text in rounding)
  gathers = lambda text: re.findall(r"= \(?(\w+\[[\d,]*\]).* all-gather", text)
  assert sorted(gathers(whole)) == sorted(gathers(plain))
  alone = logits(quantised(MODELS[name]()), np.zeros((1, 1), np.int32))
  np.testing.assert_allclose(found, alone, atol=1e-5, rtol=1e-5)


K = 2
LAW = dict(
    prompts=[[0, 1, 2, 3, 4, 0]], settings=[dict()], rows=16_384, batch=16_384
)


def coarse(seed=0):
  """A decoder of which int8 keeps little: the largest weight of each row that
  writes to the stream meets a zero."""
  model = testing.decoder(seed=seed)
  for block in model.blocks:
    for source, p in ((block.attention.v, block.attention.o),
                      (block.mlp.up, block.mlp.down)):
      source[...] = source[...].at[0].set(0)
      p[...] = p[...].at[:, 0].set(200.0)
  return model


class Judge(nnx.Module):
  """An int8 target whose rounds are judged by the weights as they were."""

  vocab, max_length, opening = 5, None, None

  def __init__(self):
    self.model, self.before = quantised(coarse()), coarse()

  def start(self, *source):
    return self.model.start(*source)

  def embed(self, tokens):
    return self.model.embed(tokens)

  def norm(self, hidden):
    return self.model.norm(hidden)

  def head(self, normed):
    return self.model.head(normed)

  def __call__(self, tokens, *rest):
    model = self.before if tokens.shape[1] == K + 1 else self.model
    return model(tokens, *rest)


def test_the_law_is_that_of_the_int8_target():
  drafter = Autoregressive(quantised(coarse(1)), K)
  testing.check_law(quantised(coarse()), drafter, **LAW)


def test_judging_by_the_weights_as_they_were_fails_check_law():
  drafter = Autoregressive(quantised(coarse(1)), K)
  with pytest.raises(AssertionError, match="law"):
    testing.check_law(Judge(), drafter, **LAW)


def test_nothing_is_written_of_a_quantised_model(tmp_path):
  model = quantised(MODELS["untied"]())
  described = peers.described(dataclasses.replace(model.c, kv_copies=1))
  for write in (
      lambda path: safetensors.save(model, path),
      lambda path: published.save(model, described, path),
      lambda path: orbax.save(model, described, path),
      lambda path: list(published.tensors(model, described, str(path))),
  ):
    with pytest.raises(ValueError, match="int8 weights is not written.*\\.$"):
      write(tmp_path / "out")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_what_is_read_is_values_and_a_scale():
  held = Int8(noise((4, 8)))
  assert isinstance(held[...], Quantised) and len(jax.tree.leaves(held)) == 2
