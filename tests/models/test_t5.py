"""T5 against its reference implementation; published configs; refusals.

Folders as in test_goldens.py, made by tests/goldens/make.py or others.
"""

import dataclasses
import importlib.util
import json
import math
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from safetensors.numpy import save_file

from specjax import engine, states
from specjax.checkpoint import published
from specjax.checkpoint.folder import Folder
from specjax.checkpoint.safetensors import named
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.models import families, t5
from specjax.models.encoder_decoder import bucket_numbers
from specjax.models.parts import NORMED
from specjax.testing.pair import encoder_decoder

pytestmark = pytest.mark.usefixtures("quick_compiles")
HERE = pathlib.Path(__file__).resolve().parents[1]
PLACES = [HERE / "goldens", HERE.parents[1] / "shared" / "goldens"]
PLACES += map(pathlib.Path, os.environ.get("SPECJAX_GOLDENS", "").split())
LOGITS, STATES = 1e-4, 2e-5  # absolute; relative to the largest entry

SMALL = dict(  # google/t5-v1_1-small
    architectures=["T5ForConditionalGeneration"], model_type="t5", d_model=512,
    d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
    relative_attention_num_buckets=32, dropout_rate=0.1, vocab_size=32128,
    layer_norm_epsilon=1e-6, initializer_factor=1.0, is_encoder_decoder=True,
    feed_forward_proj="gated-gelu", use_cache=True, pad_token_id=0,
    eos_token_id=1, decoder_start_token_id=0, tie_word_embeddings=False,
    output_past=True,
)
SHAPE = ("d_model", "d_ff", "num_heads", "num_layers")
SIZES = {  # v1.1: shape, parameters
    "small": ((512, 1024, 6, 8), 76_961_152),
    "base": ((768, 2048, 12, 12), 247_577_856),
    "large": ((1024, 2816, 16, 24), 783_150_080),
    "xxl": ((4096, 10240, 64, 24), 11_135_332_352),
}


def folders():
  for place in PLACES:
    for config in sorted(place.glob("t5*/config.json")):
      if config.with_name("io.safetensors").is_file():
        yield pytest.param(
            config.parent, id=f"{place.parent.name}-{config.parent.name}"
        )


class Golden:
  """A reference checkpoint, its arrays, and what ours makes of them."""

  def __init__(self, folder):
    source = Folder(folder)
    self.model, self.config = published.load(source), source.config
    self.io = io = Arrays(folder)
    self.source = io["enc.ids"], io["enc.mask"].sum(1)
    self.ours = jax.device_get(passes(
        self.model, self.source, io["dec.ids"], int(io["prefill.length"]),
        int(io["rollback.keep"]), io["rollback.ids"],
    ))


class Arrays(dict):

  def __init__(self, folder):
    from safetensors import safe_open

    with safe_open(folder / "io.safetensors", framework="np") as file:
      super().__init__({n: file.get_tensor(n) for n in file.keys()})


@jax.jit(static_argnums=(3, 4))
def passes(model, source, ids, prompt, keep, other):
  """The whole text; then its beginning, 1, 5 and a rolled-back 3 tokens."""
  B, T = ids.shape
  c = model.c
  taps = (*range(c.layers + 1), NORMED)
  head = lambda hidden: model.head(model.norm(hidden))
  at = lambda n: jnp.full(B, n)
  hidden, features, _ = model(ids, at(0), model.start(*source, T)[0], taps)
  out = dict(full=head(hidden), features=features)
  out["encoded"] = model.encoder.norm(model.encode(*source))
  cache, out["first"] = model.start(*source, 128)
  cache = model(ids[:, :prompt], at(0), cache)[2]
  out["prefill"] = cache
  for name, n in (("step1", 1), ("step5", 5)):
    hidden, _, cache = model(ids[:, prompt : prompt + n], at(prompt), cache)
    out[name], prompt = head(hidden), prompt + n
  hidden, _, cache = model(other, at(keep), cache)
  return out | dict(rollback=head(hidden))


@pytest.fixture(scope="module", params=folders())
def golden(request):
  jax.clear_caches()
  return Golden(request.param)


def close(ours, theirs, relative=None):
  tolerance = LOGITS if relative is None else relative * abs(theirs).max()
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_logits(golden):
  close(golden.ours["full"], golden.io["full.logits"])


def test_cached_steps_and_a_rollback(golden):
  for name in ("step1", "step5", "rollback"):
    close(golden.ours[name], golden.io[f"{name}.logits"])


def test_states_of_each_layer(golden):
  c, io = golden.model.c, golden.io
  real = io["enc.mask"][..., None]
  close(golden.ours["encoded"] * real, io["enc.last_hidden"] * real, STATES)
  taps = np.split(golden.ours["features"], c.layers + 2, -1)
  for i in range(c.layers):
    close(taps[i], io[f"dec.hidden_states.{i}"], STATES)
  close(taps[-1], io[f"dec.hidden_states.{c.layers}"], STATES)


def test_keys_and_values_of_text_and_source(golden):
  io, n = golden.io, int(golden.io["prefill.length"])
  cache, real = golden.ours["prefill"], io["enc.mask"][:, None, :, None]
  for i, (own, cross) in enumerate(zip(cache.own, cache.cross)):
    for name, a, b in zip("kv", own, cross):
      close(a[:, :, :n], io[f"prefill.self_{name}.{i}"], STATES)
      close(b * real, io[f"prefill.cross_{name}.{i}"] * real, STATES)
  np.testing.assert_array_equal(golden.ours["first"], io["dec.ids"][:, :1])


def test_bucket_numbers(golden):
  c, away = golden.model.c, golden.io["bucket.relative_position"]
  at = np.clip(away, -c.max_distance, c.max_distance) + c.max_distance
  for name, ahead in (("bidirectional", True), ("causal", False)):
    np.testing.assert_array_equal(
        bucket_numbers(c.buckets, c.max_distance, ahead)[at],
        golden.io[f"bucket.{name}"],
    )


@pytest.mark.parametrize(
    "drafter", ["itself", pytest.param("ngram", marks=pytest.mark.slow)]
)
def test_greedy_text_with_drafts(golden, drafter):
  io, model = golden.io, golden.model
  assert io["greedy.margin"].min() > 10 * LOGITS  # else rounding may decide
  drafter = NGram(3) if drafter == "ngram" else Autoregressive(model, 3)
  prompts = [s[:n].tolist() for s, n in zip(*golden.source)]
  state = states.prefill(
      model, drafter, prompts, max_new_tokens=io["greedy.tokens"].shape[1] - 1,
      sampling=dict(temperature=0.0), chunks=(8,),
  )
  state, tally = engine.generate(model, drafter, state)
  assert states.texts_of(state) == io["greedy.tokens"].tolist()
  assert np.asarray(tally.info.accepted).any()


def test_the_loss_and_its_gradient(golden):
  io, labels = golden.io, golden.io["ce.labels"]
  before = np.where(labels < 0, 0, labels)[:, :-1]  # the reference's filling
  ids = np.pad(before, ((0, 0), (1, 0)))

  def loss(model):
    cache, _ = model.start(*golden.source, ids.shape[1])
    hidden = model(ids, jnp.zeros(len(ids), jnp.int32), cache)[0]
    each = optax.softmax_cross_entropy_with_integer_labels(
        model.head(model.norm(hidden)), np.maximum(labels, 0)
    )
    return jnp.sum(each * (labels >= 0)) / np.sum(labels >= 0)

  value, grads = jax.jit(jax.value_and_grad(loss))(golden.model)
  np.testing.assert_allclose(value, io["ce.loss"], rtol=1e-5)
  ours = dict(published.tensors(grads, golden.config))
  theirs = {
      n.removeprefix("ce.grad_norm."): x
      for n, x in io.items() if n.startswith("ce.grad_norm.")
  }
  assert len(theirs) > 20
  for name, norm in theirs.items():
    np.testing.assert_allclose(
        np.linalg.norm(ours[name]), norm, rtol=1e-3, err_msg=name
    )


def test_goldens_were_found():
  names = {p.values[0].name for p in folders()}
  assert {"t5_v1_1", "t5_original"} <= names


def read(**changes):
  fields = {k: v for k, v in (SMALL | changes).items() if v is not None}
  return families.read("t5", fields)[1]


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes(size):
  shape, parameters = SIZES[size]
  changes = dict(zip(SHAPE, shape), num_decoder_layers=None)
  config = read(**changes)
  model = jax.eval_shape(lambda: t5.build(config, rngs=nnx.Rngs(0)))
  arrays = named(model)
  assert sum(math.prod(x.shape) for x in arrays.values()) == parameters
  assert set(arrays) == set(t5.pieces(config))


def test_the_original_and_its_offspring_are_told_apart():
  old = read(feed_forward_proj=None, tie_word_embeddings=None)
  assert (old.gated, old.act, old.tied) == (False, "relu", True)
  new = read()
  assert (new.gated, new.act, new.tied) == (True, "gelu_tanh", False)
  later = read(
      tie_word_embeddings=True, scale_decoder_outputs=False,
      dense_act_fn="gelu_new", is_gated_act=True,
  )
  assert later == new
  assert read(feed_forward_proj="gated-silu").act == "silu"
  assert read(relative_attention_max_distance=64).max_distance == 64


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(feed_forward_proj="gated-tanh"), "feed_forward_proj = 'gated"),
        (dict(feed_forward_proj=3), "feed_forward_proj = 3 is no str"),
        (dict(dense_act_fn="relu"), "dense_act_fn = 'relu'; only 'gelu_new'"),
        (dict(d_kv=None), "d_kv is missing"),
        (dict(num_layers=-3, num_decoder_layers=2), "encoder_layers = -3"),
        (dict(num_layers=10**6), "1000000 layers are more than 1024"),
        (dict(relative_attention_num_buckets=1), "buckets = 1"),
        (dict(decoder_start_token_id=40000), "opening = 40000"),
        (dict(talking_heads=True), "unknown field talking_heads"),
    ],
    ids=str,
)
def test_configs_that_are_not_understood_are_refused(changes, text):
  with pytest.raises(ValueError, match=f"^t5: .*{text}") as error:
    read(**changes)
  assert "\n" not in str(error.value)


class TestFolders:
  """Files as the hub has them, of a model made here."""

  @pytest.fixture(scope="class")
  @classmethod
  def model(cls):
    return encoder_decoder(16, gated=False, act="relu", tied=True)

  def write(self, folder, model, more):
    c = model.c
    fields = SMALL | dict(
        vocab_size=c.vocab, d_model=c.width, d_kv=c.dim, d_ff=c.mlp,
        num_layers=1, num_decoder_layers=1, num_heads=c.heads,
        relative_attention_num_buckets=c.buckets, tie_word_embeddings=True,
        relative_attention_max_distance=c.max_distance,
        feed_forward_proj="relu",
    )
    (folder / "config.json").write_text(json.dumps(fields))
    arrays = dict(published.tensors(model, fields))
    save_file(arrays | more(arrays), folder / "model.safetensors")
    return Folder(folder)

  def test_what_is_there_again_or_never_read_may_stay(self, tmp_path, model):
    unread = "decoder.block.0.layer.1.EncDecAttention."
    found = published.load(self.write(tmp_path, model, lambda old: {
        name: old["shared.weight"].copy() for name in t5.ALIASES
    } | {unread + "relative_attention_bias.weight": np.ones((8, 2), "f4")}))
    assert found.c == dataclasses.replace(model.c, dtype="float32")
    for name, x in named(found).items():
      np.testing.assert_array_equal(x, named(model)[name], err_msg=name)

  def test_a_copy_that_differs_is_refused(self, tmp_path, model):
    source = self.write(tmp_path, model, lambda old: {
        "lm_head.weight": old["shared.weight"] + 1
    })
    with pytest.raises(ValueError, match="lm_head.weight differs from shared"):
      published.load(source)

  def test_a_missing_tensor_is_named(self, tmp_path, model):
    source = self.write(tmp_path, model, lambda old: {
        "shared.weight": old.pop("encoder.final_layer_norm.weight")
    })
    with pytest.raises(ValueError, match="encoder.final_layer_norm.weight is"):
      published.load(source)


def test_the_papers_config_names_flags_and_its_numbers_of_drafts():
  file = HERE.parent / "configs" / "t5_xxl_small.py"
  spec = importlib.util.spec_from_file_location("t5_xxl_small", file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  assert len(module.DRAFTS) == 12
  for variant, K in module.DRAFTS.items():
    c = module.get_config(variant)
    assert c.num_speculative_tokens == K
    assert c.drafter_model.removeprefix("google/t5-v1_1-") in SIZES
  c = module.get_config()
  assert (c.temperature, c.num_speculative_tokens) == (0.0, 7)
  assert module.get_config("cnndm_small_0").num_speculative_tokens == 5
  with pytest.raises(ValueError, match="variant 'tiny' is none of ende_small"):
    module.get_config("tiny")
