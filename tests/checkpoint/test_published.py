"""Published checkpoints: read onto a mesh, written back bit for bit."""

import json
import pathlib
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from specjax import sharding
from specjax.checkpoint import orbax, published
from specjax.checkpoint.folder import INDEX, Folder
from specjax.checkpoint.safetensors import named
from specjax.models import families

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "goldens"
WHOLE = ["llama", "gpt2", "phi3", "mixtral", "gemma3", "t5_original"]


def tensors(path):
  source = Folder(path)
  held = [n for n in source.shapes if not published.BUFFERS.fullmatch(n)]
  return {n: source.read(n) for n in held}


def same(ours, theirs):
  assert set(ours) == set(theirs)
  for name in ours:
    assert ours[name].dtype == theirs[name].dtype, name
    np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def copy(name, to):
  shutil.copytree(GOLDENS / name, to)
  return to


@pytest.mark.parametrize("name", WHOLE)
def test_there_and_back_is_bit_equal(name, tmp_path):
  source = Folder(GOLDENS / name)
  model = published.load(source)
  published.save(model, source.config, tmp_path / "x", source.dtype)
  again = families.FAMILIES[source.config["model_type"]].ALIASES
  theirs = tensors(GOLDENS / name)
  ours = tensors(tmp_path / "x")
  same(ours, {n: theirs[n] for n in theirs if n in ours or n not in again})
  assert Folder(tmp_path / "x").config == source.config | {
      n: x for n, x in Folder(tmp_path / "x").config.items() if "dtype" in n
  }


def test_bfloat16_stays_bfloat16(tmp_path):
  path = copy("llama", tmp_path / "a")
  halves = {n: x.astype(ml_dtypes.bfloat16) for n, x in tensors(path).items()}
  for file in path.glob("*.safetensors*"):
    file.unlink()
  save_file(halves, path / "model.safetensors")
  source = Folder(path)
  assert source.dtype == "bfloat16"
  published.save(
      published.load(source, "bfloat16"), source.config, tmp_path / "b"
  )
  same(tensors(tmp_path / "b"), halves)


def test_long_files_are_sharded(tmp_path, monkeypatch):
  source = Folder(GOLDENS / "llama")
  model = published.load(source)
  monkeypatch.setattr(published, "SHARD", 4000)
  published.save(model, source.config, tmp_path / "x", "float16")
  same(tensors(tmp_path / "x"), tensors(GOLDENS / "llama"))
  index = json.loads((tmp_path / "x" / INDEX).read_text())
  files = set(index["weight_map"].values())
  assert len(files) > 2
  for file in files:
    with safe_open(tmp_path / "x" / file, framework="np") as shard:
      large = [np.prod(shard.get_slice(n).get_shape()) for n in shard.keys()]
      assert len(large) == 1 or 2 * sum(large) <= 4000


MIXTRAL = dict(
    model_type="mixtral", vocab_size=32, hidden_size=16, intermediate_size=8,
    num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4,
    head_dim=4, num_local_experts=4,
)


@pytest.fixture(scope="module")
def divisible(tmp_path_factory):
  path = tmp_path_factory.mktemp("mixtral")
  family, config = families.read("x", MIXTRAL)
  model = family.build(config, rngs=nnx.Rngs(0))
  published.save(model, MIXTRAL, path / "x")
  with jax.set_mesh(sharding.mesh(1, 2)):
    model = published.load(Folder(path / "x"))
    orbax.save(model, MIXTRAL, path / "orbax")
  return path


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (8, 1)])
def test_orbax_restores_onto_any_mesh(shape, divisible, tmp_path):
  with jax.set_mesh(sharding.mesh(*shape)):
    model = orbax.load(divisible / "orbax")
    q = model.blocks[0].attention.q[...]
    assert len(q.sharding.device_set) == shape[0] * shape[1]
    assert q.addressable_shards[0].data.shape == (32 // shape[1], 16)
    published.save(model, MIXTRAL, tmp_path)
  same(tensors(tmp_path), tensors(divisible / "x"))


def test_orbax_reads_plain_files_of_bounded_metadata_alone(tmp_path):
  source = Folder(GOLDENS / "llama")
  orbax.save(published.load(source), source.config, tmp_path)
  metadata = next((tmp_path / orbax.ARRAYS).rglob("_METADATA"))
  metadata.unlink()
  metadata.symlink_to("/dev/zero")
  with pytest.raises(ValueError, match="_METADATA: neither a file"):
    orbax.load(tmp_path)
  metadata.unlink()
  with open(metadata, "wb") as file:
    file.truncate(2**30)
  with pytest.raises(ValueError, match="_METADATA: longer than"):
    orbax.load(tmp_path)


def test_orbax_folders_that_are_none(tmp_path):
  with pytest.raises(ValueError, match="cannot be read"):
    orbax.load(tmp_path)
  shutil.copy(GOLDENS / "llama" / "config.json", tmp_path)
  with pytest.raises(ValueError, match="no readable Orbax checkpoint"):
    orbax.load(tmp_path)
  source = Folder(GOLDENS / "llama")
  orbax.save(published.load(source), source.config, tmp_path / "x")
  config = tmp_path / "x" / "config.json"
  fields = json.loads(config.read_text())
  config.write_text(json.dumps(fields | {"intermediate_size": 7}))
  with pytest.raises(ValueError, match="tensors do not fit: .* has shape"):
    orbax.load(tmp_path / "x")
  for file in (tmp_path / "x" / orbax.ARRAYS).rglob("*"):
    if file.is_file():
      file.write_bytes(file.read_bytes()[:5])
  with pytest.raises(ValueError, match="no readable Orbax checkpoint"):
    orbax.load(tmp_path / "x")


def change(path, **tensors_):
  found = tensors(path) | tensors_
  for file in path.glob("*.safetensors*"):
    file.unlink()
  found = {n: x for n, x in found.items() if x is not None}
  save_file(found, path / "model.safetensors")
  return Folder(path)


def test_one_error_lists_all_that_does_not_fit(tmp_path):
  source = change(copy("llama", tmp_path / "x"), **{
      "model.norm.weight": None, "stranger": np.zeros(3, np.float32),
      "lm_head.weight": np.zeros((2, 2), np.float32),
  })
  with pytest.raises(ValueError) as error:
    published.load(source)
  for text in (
      "model.norm.weight is missing", "stranger is unexpected",
      "lm_head.weight has shape (2, 2) for",
  ):
    assert text in str(error.value)


def test_a_tied_head_may_be_written_twice_but_not_differ(tmp_path):
  table = tensors(GOLDENS / "gpt2")["wte.weight"]
  again = {"lm_head.weight": table, "h.0.attn.bias": np.ones((1, 1, 4, 4))}
  source = change(copy("gpt2", tmp_path / "x"), **again)
  published.load(source)
  source = change(tmp_path / "x", **{"lm_head.weight": table + 1})
  with pytest.raises(ValueError, match="lm_head.weight differs from wte"):
    published.load(source)


def test_a_prefix_of_later_files_is_cut(tmp_path):
  path = copy("gpt2", tmp_path / "x")
  found = {f"transformer.{n}": x for n, x in tensors(path).items()}
  save_file(found, path / "model.safetensors")
  plain = named(published.load(Folder(GOLDENS / "gpt2")))
  for name, x in named(published.load(Folder(path))).items():
    np.testing.assert_array_equal(x, plain[name])


@pytest.mark.parametrize("name, fields, message", [
    ("llama", dict(model_type="t9"), "model_type 't9' is none of llama"),
    ("llama", dict(model_type=None), "model_type is missing"),
    ("llama", dict(hidden_size="48"), "hidden_size = '48' is no int"),
    ("llama", dict(hidden_size=True), "hidden_size = True is no int"),
    ("llama", dict(hidden_size=2**40), "1099511627776 is not within 1.6"),
    ("llama", dict(rms_norm_eps=-1.0), "norm_eps = -1.0 must not be negative"),
    ("llama", dict(use_rope=False), "field use_rope"),
    ("llama", dict(rope_parameters=dict(rope_type="default"),
                   rope_scaling=dict(rope_type="linear", factor=2.0)),
     "both rope_parameters and rope_scaling"),
    ("llama", dict(rope_scaling=dict(
        rope_type="yarn", factor=2.0, original_max_position_embeddings=32,
        beta_fast=0)), "rotary settings give no angles"),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=1e-320)),
     "rotary settings give no angles"),
    ("llama", dict(rope_scaling=dict(
        rope_type="longrope", short_factor=[10**400])),
     "short_factor must list positive numbers"),
    ("llama", dict(rope_scaling=dict(rope_type="yarn", factor=2.0),
                   max_position_embeddings=None),
     "original_max_position_embeddings is missing"),
    ("gemma3", dict(query_pre_attn_scalar=1e-300), "scale = "),
    ("gemma3", dict(final_logit_softcapping=-1.0), "logit_cap = -1.0 must"),
    ("t5_original", dict(layer_norm_epsilon=-1.0), "norm_eps = -1.0 must"),
    ("qwen3_moe", dict(use_sliding_window=True), "use_sliding_window"),
    ("llama", dict(hidden_act="tan"), "hidden_act = 'tan' is none of"),
    ("llama", dict(residual_multiplier=2.0), "field residual_multiplier"),
    ("llama", dict(quantization_config={"bits": 4}), "quantization_config"),
    ("llama", dict(num_hidden_layers=10**6), "config has 1000000 layers"),
    ("llama", dict(rope_parameters=None, rope_scaling=dict(type="dynamic")),
     "rope_type 'dynamic'"),
    ("llama", dict(num_key_value_heads=5), "is not a multiple"),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by"),
    ("gemma3", dict(use_bidirectional_attention=True), "use_bidirectional"),
    ("gemma3", dict(layer_types=["full_attention"]), "layer_types must name"),
    ("mixtral", dict(num_experts_per_tok=50), "within 1.."),
    ("phi3", dict(attention_bias=True), "attention_bias"),
])
def test_what_a_config_may_not_say(name, fields, message, tmp_path):
  path = copy(name, tmp_path / "x")
  config = json.loads((path / "config.json").read_text())
  (path / "config.json").write_text(json.dumps(config | fields))
  with pytest.raises(ValueError) as error:
    published.load(Folder(path))
  assert message in str(error.value) and str(path) in str(error.value)


def test_fields_that_change_nothing_are_let_be(tmp_path):
  path = copy("llama", tmp_path / "x")
  config = json.loads((path / "config.json").read_text())
  config |= dict(torch_dtype="bfloat16", use_cache=True, unheard_of=None)
  (path / "config.json").write_text(json.dumps(config))
  published.load(Folder(path))


def test_files_as_safetensors_reads_them(tmp_path):
  source = Folder(GOLDENS / "llama")
  published.save(published.load(source), source.config, tmp_path / "x")
  assert load_file(tmp_path / "x" / "model.safetensors")
