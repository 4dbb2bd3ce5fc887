"""GGUF files: what the converter did is undone, bit for bit; hostile bytes."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.checkpoint.gguf import KINDS, PLAIN, File
from specjax.checkpoint.published import load
from specjax.models.rope import Rope

gguf = pytest.importorskip("gguf")
Kind = gguf.GGMLQuantizationType
HEADS, KV, DIM, WIDTH, MLP, VOCAB = 4, 2, 8, 32, 48, 50


def write(path, arch, fields, tensors, tokens=()):
  """A GGUF file: fields by their short keys, tensors as they are stored."""
  out = gguf.GGUFWriter(path, arch)
  for key, value in fields.items():
    key = key if "." in key and key.split(".")[0] in (
        "general", "split", "tokenizer") else f"{arch}.{key}"
    add = {bool: out.add_bool, int: out.add_uint32, float: out.add_float32,
           str: out.add_string, list: out.add_array}[type(value)]
    add(key, value)
  if tokens:
    out.add_token_list(list(tokens))
  for name, x in tensors.items():
    data, kind = x if isinstance(x, tuple) else (x, None)
    out.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
  out.write_header_to_file()
  out.write_kv_data_to_file()
  out.write_tensors_to_file()
  out.close()
  return path


def fields(**more):
  return {
      "block_count": 1, "context_length": 64, "embedding_length": WIDTH,
      "feed_forward_length": MLP, "attention.head_count": HEADS,
      "attention.head_count_kv": KV, "attention.key_length": DIM,
      "attention.value_length": DIM,
      "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5e4,
  } | more


def layer(rng, norms=("attn_norm", "ffn_norm"), more=()):
  """Tensors of one layer of a relative of Llama, [out, in], by GGUF name."""
  shapes = {
      "attn_q.weight": (HEADS * DIM, WIDTH), "attn_k.weight": (KV * DIM, WIDTH),
      "attn_v.weight": (KV * DIM, WIDTH),
      "attn_output.weight": (WIDTH, HEADS * DIM),
      "ffn_gate.weight": (MLP, WIDTH), "ffn_up.weight": (MLP, WIDTH),
      "ffn_down.weight": (WIDTH, MLP),
  } | {f"{n}.weight": (WIDTH,) for n in norms} | dict(more)
  shapes = {f"blk.0.{n}": s for n, s in shapes.items()}
  shapes["token_embd.weight"] = VOCAB, WIDTH
  shapes["output_norm.weight"] = (WIDTH,)
  return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def paired(x, heads):
  """What the converter does to Llama's q and k: halves become pairs."""
  out, half = np.empty_like(x), len(x) // heads // 2
  for h in range(heads):
    for j in range(half):
      for s in range(2):
        out[2 * half * h + 2 * j + s] = x[2 * half * h + half * s + j]
  return out


NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
QK = {"attn_q_norm.weight": (DIM,), "attn_k_norm.weight": (DIM,)}
BIASED = {"attn_q.bias": (HEADS * DIM,), "attn_k.bias": (KV * DIM,),
          "attn_v.bias": (KV * DIM,)}


def test_llama_is_itself_again(tmp_path):
  theirs = layer(np.random.default_rng(0))
  stored = dict(theirs)
  for part, heads in (("q", HEADS), ("k", KV)):
    name = f"blk.0.attn_{part}.weight"
    stored[name] = paired(theirs[name], heads)
  file = File(write(tmp_path / "m.gguf", "llama", fields(), stored))
  assert file.config == dict(
      model_type="llama", vocab_size=VOCAB, tie_word_embeddings=True,
      bos_token_id=None, eos_token_id=None, hidden_size=WIDTH,
      num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV,
      head_dim=DIM, intermediate_size=MLP, rms_norm_eps=1e-5,
      max_position_embeddings=64, rope_theta=5e4, hidden_act="silu",
  )
  names = {
      "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
      "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
      "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
      "model.embed_tokens.weight": "token_embd.weight",
      "model.norm.weight": "output_norm.weight",
      "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
  }
  for name, other in names.items():
    assert file.shapes[name] == theirs[other].shape
    np.testing.assert_array_equal(file.read(name), theirs[other])
    for rows in (slice(3, 9), slice(0, 0), slice(5, None, 2)):
      np.testing.assert_array_equal(file.read(name, rows), theirs[other][rows])
  assert len(file.shapes) == len(theirs)
  model = load(file)
  np.testing.assert_array_equal(
      model.blocks[0].attention.q[...], theirs["blk.0.attn_q.weight"]
  )


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_relatives_load(tmp_path, arch):
  """All tensors have names that the family of the config expects."""
  gemma = arch.startswith("gemma")
  more = dict(qwen2=BIASED, qwen3=QK, gemma3=QK).get(arch, {})
  norms = NORMS if gemma else NORMS[:2]
  tensors = layer(np.random.default_rng(1), norms, more)
  if arch == "phi3":
    for old in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
      del tensors[f"blk.0.{old}.weight"]
    tensors["blk.0.attn_qkv.weight"] = np.ones(
        ((HEADS + 2 * KV) * DIM, WIDTH), np.float32
    )
    tensors["blk.0.ffn_up.weight"] = np.ones((2 * MLP, WIDTH), np.float32)
  given = fields() | ({"attention.sliding_window": 7} if gemma else {})
  file = File(write(tmp_path / "m.gguf", arch, given, tensors))
  model = load(file)
  stored = tensors["blk.0.attn_norm.weight"]
  wanted = stored - np.float32(1) if gemma else stored
  np.testing.assert_array_equal(model.blocks[0].attention_norm.weight, wanted)
  if gemma:
    c = file.config
    assert c["sliding_window"] == 7 and c["query_pre_attn_scalar"] == DIM
    assert c["final_logit_softcapping"] == (30.0 if arch == "gemma2" else None)
    name = "model.layers.0.post_feedforward_layernorm.weight"
    np.testing.assert_array_equal(
        file.read(name), tensors["blk.0.post_ffw_norm.weight"] - np.float32(1)
    )
    np.testing.assert_array_equal(file.read(name, slice(2, 4)),
                                  file.read(name)[2:4])


def test_gpt2_is_turned_back(tmp_path):
  rng = np.random.default_rng(2)
  shapes = {
      "attn_qkv": (3 * WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH),
      "ffn_up": (MLP, WIDTH), "ffn_down": (WIDTH, MLP),
  }
  tensors = {}
  for n, shape in shapes.items():
    tensors[f"blk.0.{n}.weight"] = rng.normal(size=shape)
    tensors[f"blk.0.{n}.bias"] = rng.normal(size=shape[0])
  for n in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    tensors |= {f"{n}.weight": np.ones(WIDTH), f"{n}.bias": np.ones(WIDTH)}
  tensors["token_embd.weight"] = rng.normal(size=(VOCAB, WIDTH))
  tensors["position_embd.weight"] = rng.normal(size=(64, WIDTH))
  tensors = {n: x.astype(np.float32) for n, x in tensors.items()}
  own = {
      "block_count": 1, "context_length": 64, "embedding_length": WIDTH,
      "feed_forward_length": MLP, "attention.head_count": HEADS,
      "attention.layer_norm_epsilon": 1e-5,
  }
  file = File(write(tmp_path / "m.gguf", "gpt2", own, tensors))
  load(file)
  whole = tensors["blk.0.ffn_up.weight"].T
  assert file.shapes["h.0.mlp.c_fc.weight"] == whole.shape
  np.testing.assert_array_equal(file.read("h.0.mlp.c_fc.weight"), whole)
  np.testing.assert_array_equal(
      file.read("h.0.mlp.c_fc.weight", slice(4, 9)), whole[4:9]
  )
  np.testing.assert_array_equal(
      file.read("h.0.mlp.c_fc.bias"), tensors["blk.0.ffn_up.bias"]
  )


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_row_by_row(tmp_path, kind, monkeypatch):
  """As the package decodes it; any rows alone as in the whole."""
  monkeypatch.setattr("specjax.checkpoint.gguf.CHUNK", 700)  # pieces of rows
  rng, rows, inner = np.random.default_rng(3), 6, 512
  block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
  x = rng.normal(size=(rows, inner)).astype(np.float32)
  try:
    data = gguf.quants.quantize(x, Kind[kind])
  except NotImplementedError:  # K types: any bytes are blocks
    data = rng.integers(0, 256, (rows, inner // block * size), dtype=np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
              "Q6_K": (208,)}[kind]
    blocks = data.reshape(-1, size)
    for at in scales:  # finite float16
      blocks[:, at : at + 2] = np.float16(0.01).reshape(1).view(np.uint8)
  tensors = layer(rng) | {"token_embd.weight": (data, Kind[kind])}
  given = fields(embedding_length=inner)
  file = File(write(tmp_path / "m.gguf", "llama", given, tensors))
  name = "model.embed_tokens.weight"
  assert file.shapes[name] == (rows, inner)
  whole = file.read(name)
  wanted = gguf.quants.dequantize(data, Kind[kind])
  np.testing.assert_array_equal(whole.astype(np.float32), wanted)
  assert np.ptp(wanted) > 0 and (kind in PLAIN or whole.dtype == np.float32)
  for i in range(rows):
    np.testing.assert_array_equal(file.read(name, slice(i, i + 1))[0], whole[i])


@pytest.mark.parametrize("factor, original", [(8.0, 8192), (32.0, 4096)])
def test_llama3_scaling_is_found_again(tmp_path, factor, original):
  rope = Rope(5e4, scaling="llama3", factor=factor, original=original)
  freqs = (Rope(5e4).frequencies(64) / rope.frequencies(64)).astype(np.float32)
  tensors = layer(np.random.default_rng(4)) | {"rope_freqs.weight": freqs}
  given = fields() | {"attention.key_length": 64, "attention.value_length": 64}
  file = File(write(tmp_path / "m.gguf", "llama", given, tensors))
  assert file.config["rope_scaling"] == dict(
      rope_type="llama3", factor=factor, low_freq_factor=1.0,
      high_freq_factor=4.0, original_max_position_embeddings=original,
  )
  tensors["rope_freqs.weight"] = freqs[::-1]
  with pytest.raises(ValueError, match="rope_freqs"):
    File(write(tmp_path / "n.gguf", "llama", given, tensors))


@pytest.mark.parametrize("arch, own, more, match", [
    ("bloom", {}, {}, "architecture 'bloom'"),
    ("llama", {"logit_scale": 2.0}, {}, "llama.logit_scale"),
    ("llama", {"expert_count": 8}, {}, "llama.expert_count"),
    ("llama", {"attention.head_count": [4, 2]}, {}, "attention.head_count"),
    ("llama", {"split.count": 3}, {}, "3 parts"),
    ("qwen2", {"attention.sliding_window": 9}, {}, "sliding_window"),
    ("llama", {"rope.scaling.type": "odd", "rope.scaling.factor": 2.0}, {},
     "rope.scaling.type 'odd'"),
    ("llama", {}, {"blk.0.attn_sinks.weight": np.ones(4)}, "attn_sinks"),
    ("llama", {}, {"v.blk.0.weight": np.ones(4)}, "v.blk.0.weight"),
    ("llama", {}, {"output.weight": (np.zeros((2, 18), np.uint8), Kind.IQ4_NL)},
     "output.weight has type IQ4_NL, none of F32"),
])
def test_what_is_not_understood_is_named(tmp_path, arch, own, more, match):
  tensors = layer(np.random.default_rng(5)) | {
      n: x if isinstance(x, tuple) else x.astype(np.float32)
      for n, x in more.items()
  }
  with pytest.raises(ValueError, match=match):
    File(write(tmp_path / "m.gguf", arch, fields() | own, tensors))


def test_no_file_and_no_package(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match="nothing.gguf"):
    File(tmp_path / "nothing.gguf")
  (tmp_path / "empty.gguf").touch()
  with pytest.raises(ValueError, match="empty"):
    File(tmp_path / "empty.gguf")
  path = write(tmp_path / "m.gguf", "llama", fields(), {})
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(ValueError, match=r"pip install 'specjax\[gguf\]'"):
    File(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
  folder = tmp_path_factory.mktemp("gguf")
  tensors = layer(np.random.default_rng(6))
  path = write(folder / "m.gguf", "llama", fields(), tensors, ["a", "b", "\n"])
  return File(path).shapes, path.read_bytes(), folder / "broken.gguf"


HUGE = st.sampled_from(
    [0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]
)
CHANGES = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("bit"), st.floats(0, 1), st.integers(0, 7)),
    st.tuples(st.just("long"), st.floats(0, 1), HUGE),
    st.tuples(st.just("word"), st.floats(0, 1), HUGE),
    st.tuples(st.just("swap"), st.integers(1, 3), st.just(0)),
)


def changed(data, head, how, where, value):
  """The file with one thing wrong, most often in its header."""
  if how == "cut":
    return data[: int(where * len(data))]
  out = bytearray(data)
  if how == "swap":
    out[4:8] = int(where).to_bytes(4, "big")
  else:
    at = int(where * (head - 8))
    if how == "bit":
      out[at] ^= 1 << value
    else:
      size = 8 if how == "long" else 4
      out[at : at + size] = value.to_bytes(8, "little")[:size]
  return bytes(out)


@settings(max_examples=600, deadline=None, database=None)
@given(st.lists(CHANGES, min_size=1, max_size=2))
def test_hostile_bytes(small, changes):
  """The same model, or a sentence; never more memory than the file asks."""
  shapes, data, broken = small
  head = len(data) - sum(4 * int(np.prod(s)) for s in shapes.values())
  for change in changes:
    if len(data) > 16:
      data = changed(data, min(head, len(data)), *change)
  broken.write_bytes(data)
  tracemalloc.start()
  try:
    file = File(broken)
    for name, shape in file.shapes.items():
      assert file.read(name).shape == shape
  except ValueError as error:
    assert "\n" not in str(error) and str(broken) in str(error)
  finally:
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
  assert peak < 4 * 2**20


@pytest.mark.parametrize("version, match", [
    ((3).to_bytes(4, "big"), "big-endian"), (b"\1\0\0\0", "version 1"),
])
def test_other_versions_are_named(small, version, match):
  _, data, broken = small
  broken.write_bytes(data[:4] + version + data[8:])
  with pytest.raises(ValueError, match=match):
    File(broken)


def test_tensors_may_not_share_bytes(small):
  """Two tensors on one place: a small file that reads as a large one."""
  _, data, broken = small
  name = b"blk.0.ffn_up.weight"
  at = data.index(name) + len(name) + 4 + 16 + 4  # past its dimensions, type
  broken.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
  with pytest.raises(ValueError, match="same bytes"):
    File(broken)
