"""Round trips, and files that are broken or want to break something."""

import dataclasses
import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.flax import save_file

from specjax.checkpoint import safetensors
from specjax.models.decoder import Config, Decoder
from specjax.models.rope import Rope

CONFIG = Config(
    vocab=16, width=8, layers=2, heads=2, kv_heads=1, dim=4, mlp=8,
    windows=(0, 3), qkv_bias=True, qk_norm=True, scale=0.3,
    rope=Rope(scaling="llama3", factor=8.0), local_rope=Rope(theta=99.0),
)
quick = settings(max_examples=60, deadline=None, database=None)
NAMES = """
blocks.0.attention.k blocks.0.attention.k_bias blocks.0.attention.k_norm.weight
blocks.0.attention.o blocks.0.attention.q blocks.0.attention.q_bias
blocks.0.attention.q_norm.weight blocks.0.attention.v
blocks.0.attention.v_bias blocks.0.attention_norm.weight blocks.0.mlp.down
blocks.0.mlp.gate blocks.0.mlp.up blocks.0.mlp_norm.weight embedding
final_norm.weight free_head
"""


@pytest.fixture(scope="module")
def model():
  return Decoder(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def data(model, folder):
  safetensors.save(model, folder / "whole")
  return (folder / "whole").read_bytes()


def write(folder, model, **changes):
  """A file whose config has these fields changed."""
  config = dataclasses.asdict(CONFIG) | changes
  arrays = {n: jnp.asarray(x) for n, x in safetensors.named(model).items()}
  path = folder / "changed"
  save_file(arrays, str(path), metadata={"config": json.dumps(config)})
  return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_is_bit_equal(model, tmp_path, dtype):
  safetensors.save(model, tmp_path / "x", dtype)
  back = safetensors.load(tmp_path / "x", dtype)
  assert back.c == dataclasses.replace(CONFIG, dtype=dtype)
  old, new = safetensors.named(model), safetensors.named(back)
  assert list(old) == list(new)
  for name, x in old.items():
    assert new[name].dtype == dtype
    np.testing.assert_array_equal(new[name], x.astype(dtype), err_msg=name)


def test_names_on_disk_are_promised(model):
  names = set(safetensors.named(model))
  want = set(NAMES.split())
  want |= {n.replace("blocks.0", "blocks.1") for n in want}
  assert names == want


def test_one_error_lists_everything_that_does_not_fit(model, folder):
  arrays = dict(safetensors.named(model))
  del arrays["embedding"]
  arrays["stranger"] = jnp.zeros(3)
  arrays["free_head"] = jnp.zeros((2, 8))
  arrays["final_norm.weight"] = jnp.ones(8, jnp.int32)
  config = json.dumps(dataclasses.asdict(CONFIG))
  save_file(arrays, str(folder / "odd"), metadata={"config": config})
  with pytest.raises(ValueError) as error:
    safetensors.load(folder / "odd")
  for text in (
      "embedding is missing", "stranger is unexpected",
      "free_head has shape (2, 8) for (16, 8)",
      "final_norm.weight has dtype I32",
  ):
    assert text in str(error.value)


def refused(path):
  """Loading must answer with one sentence, or succeed."""
  try:
    safetensors.load(path)
  except ValueError as error:
    assert str(path) in str(error) and "\n" not in str(error)
    return True
  return False


def test_a_file_that_is_not_there_is_refused(folder):
  assert refused(folder / "nowhere") and refused(folder)


@quick
@given(st.floats(0, 1))
def test_truncated_files_are_refused(folder, data, share):
  path = folder / "short"
  path.write_bytes(data[: int(share * (len(data) - 1))])
  assert refused(path)


@quick
@given(st.data())
def test_flipped_header_bits_load_or_are_refused(folder, data, draw):
  header = 8 + struct.unpack("<Q", data[:8])[0]
  damaged = bytearray(data)
  for _ in range(draw.draw(st.integers(1, 3))):
    damaged[draw.draw(st.integers(0, header - 1))] ^= 1 << draw.draw(
        st.integers(0, 7)
    )
  path = folder / "flipped"
  path.write_bytes(damaged)
  refused(path)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field = st.sampled_from([f.name for f in dataclasses.fields(Config)])


@quick
@given(field, anything)
def test_hostile_config_fields_load_or_are_refused(folder, model, name, value):
  refused(write(folder, model, **{name: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": 2**62}, {"layers": 10**9}, {"mlp": 2**50}, {"width": 10**30},
        {"max_positions": 2**60, "positions": "learned"}, {"dim": 10**12},
        {"heads": 10**12, "kv_heads": 10**12}, {"layers": 9999},
    ],
    ids=str,
)
def test_a_giant_config_allocates_nothing(folder, model, changes):
  assert refused(write(folder, model, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": 16.0}, {"vocab": True}, {"vocab": "16"}, {"tied": 1},
        {"windows": "ab"}, {"windows": [0, 1.5]}, {"windows": [0, -1]},
        {"rope": {"theta": "x"}}, {"rope": {"theta": 0}}, {"rope": 3},
        {"rope": {"what": 1}}, {"rope": None}, {"norm_eps": float("nan")},
        {"scale": "1"}, {"extra": 1}, {"act": "exec"}, {"kv_heads": 0},
    ],
    ids=str,
)
def test_fields_of_a_wrong_kind_are_refused(folder, model, changes):
  assert refused(write(folder, model, **changes))


@pytest.mark.parametrize(
    "config", ["", "[]", "null", "3", "{}", "[" * 100_000, '"x"', "{}}"]
)
def test_metadata_that_are_no_config_are_refused(folder, model, config):
  arrays = dict(safetensors.named(model))
  save_file(arrays, str(folder / "meta"), metadata={"config": config})
  assert refused(folder / "meta")
  save_file(arrays, str(folder / "meta"))
  assert refused(folder / "meta")


def test_a_mesh_gets_its_shards(tmp_path):
  from specjax.sharding import mesh

  model = Decoder(
      dataclasses.replace(CONFIG, heads=4, kv_heads=2), rngs=nnx.Rngs(0)
  )
  safetensors.save(model, tmp_path / "x", "float32")
  with jax.set_mesh(mesh(2, 2)):
    back = safetensors.load(tmp_path / "x")
    assert jax.typeof(back.embedding[...]).sharding.spec[0] == "model"
  for name, x in safetensors.named(model).items():
    np.testing.assert_array_equal(safetensors.named(back)[name], x)
