"""Folders in the Hugging Face layout: what is read, and what is refused."""

import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from specjax.checkpoint import published
from specjax.checkpoint.folder import INDEX, Folder

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "goldens"


def folder(path, tensors=None, config=None):
  path.mkdir(exist_ok=True)
  (path / "config.json").write_text(json.dumps(config or {}))
  if tensors is not None:
    save_file(tensors, path / "model.safetensors")
  return path


def sharded(path, weight_map):
  folder(path)
  (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
  return path


def test_reads_rows_in_the_stored_type(tmp_path):
  x = np.arange(12).reshape(4, 3)
  source = Folder(folder(tmp_path / "x", {
      "a": x.astype(np.float32), "b": x.astype(ml_dtypes.bfloat16),
  }))
  assert source.shapes == {"a": (4, 3), "b": (4, 3)}
  assert source.dtype == "float32"
  assert source.read("b").dtype == ml_dtypes.bfloat16
  np.testing.assert_array_equal(source.read("a", slice(1, 3)), x[1:3])


def test_shards_by_their_index(tmp_path):
  files = {"a": "one.safetensors", "b": "two.safetensors"}
  path = sharded(tmp_path / "x", files)
  for name, file in files.items():
    save_file({name: np.full(2, 3.0, ml_dtypes.bfloat16)}, path / file)
  source = Folder(path)
  assert set(source.shapes) == {"a", "b"} and source.dtype == "bfloat16"
  save_file({"a": np.zeros(2), "b": np.zeros(2)}, path / "two.safetensors")
  with pytest.raises(ValueError, match="a lies in another shard too"):
    Folder(path)


@pytest.mark.parametrize("file", [
    "../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "x.bin",
    "..", "a\\b.safetensors", "", ".safetensors/../x", "\ud800.safetensors",
])
def test_an_index_cannot_point_elsewhere(tmp_path, file):
  path = sharded(tmp_path / "x", {"a": file})
  with pytest.raises(ValueError, match="only .safetensors files of the same"):
    Folder(path)


def test_no_name_of_a_file_reaches_the_terminal_raw(tmp_path):
  path = folder(tmp_path / "x")
  header = json.dumps({"a\nb\x1b[31m": {
      "dtype": "F32", "shape": [9], "data_offsets": [0, 4],
  }}).encode()
  data = len(header).to_bytes(8, "little") + header + bytes(4)
  (path / "model.safetensors").write_bytes(data)
  with pytest.raises(ValueError) as error:
    Folder(path)
  assert str(error.value).isprintable()


def test_a_config_that_says_a_thing_twice_is_refused(tmp_path):
  path = folder(tmp_path / "x", {"a": np.zeros(3)})
  (path / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}')
  with pytest.raises(ValueError, match="'vocab_size' twice"):
    Folder(path)


def test_pickles_are_never_opened(tmp_path):
  path = folder(tmp_path / "x")
  (path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
  with pytest.raises(ValueError, match="pickled .bin files"):
    Folder(path)


def test_a_tensor_of_whole_numbers_is_refused(tmp_path):
  path = folder(tmp_path / "x", {"a": np.zeros(3, np.int8)})
  with pytest.raises(ValueError, match="a has dtype I8, none of BF16"):
    Folder(path).read("a")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
  path = tmp_path_factory.mktemp("fuzz") / "llama"
  shutil.copytree(GOLDENS / "llama", path)
  return path


def mutated(data: bytes, draw) -> bytes:
  """The bytes cut short, with some flipped, or with digits blown up."""
  data = bytearray(data)
  kind = draw(st.sampled_from(["cut", "flip", "head", "digits"]))
  if kind == "cut":
    return bytes(data[: draw(st.integers(0, len(data) - 1))])
  if kind == "digits":
    at = [i for i, b in enumerate(data[:4000]) if chr(b).isdigit()]
    i = draw(st.sampled_from(at))
    more = draw(st.sampled_from([b"99", b"9" * 30, b"-", b"e99", b"."]))
    return bytes(data[:i] + more + data[i:])
  end = 8 if kind == "head" else min(len(data), 4000)
  for _ in range(draw(st.integers(1, 4))):
    data[draw(st.integers(0, end - 1))] = draw(st.integers(0, 255))
  return bytes(data)


def survives(path, file, data):
  """Loads alike or ends in one sentence."""
  before = (path / file).read_bytes()
  try:
    (path / file).write_bytes(data)
    source = Folder(path)
    published.check(source)
    for name in source.shapes:
      source.read(name)
  except ValueError as error:
    assert str(path) in str(error) and "\n" not in str(error)
    assert len(str(error)) < 20_000
  finally:
    (path / file).write_bytes(before)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@settings(
    max_examples=500, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_mutations_end_in_a_sentence(good, file, data):
  survives(good, file, mutated((good / file).read_bytes(), data.draw))


@settings(
    max_examples=500, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_mutated_index_ends_in_a_sentence(tmp_path, data):
  path = sharded(tmp_path / "x", {"a": "1.safetensors", "b": "1.safetensors"})
  save_file({"a": np.zeros(2), "b": np.zeros(2)}, path / "1.safetensors")
  index = mutated((path / INDEX).read_bytes(), data.draw)
  survives(path, INDEX, index)
