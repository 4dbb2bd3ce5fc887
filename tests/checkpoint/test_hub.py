"""Hub ids, by a cache on this machine as huggingface-hub lays it out."""

import pathlib
import shutil

import pytest

from specjax.checkpoint import hub

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "goldens"


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A cache that holds org/tiny at main and at v1, and no network."""
  import huggingface_hub.constants as constants

  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
  repo = tmp_path / "models--org--tiny"
  commit = "0123456789" * 4
  (repo / "refs").mkdir(parents=True)
  for name in ("main", "v1"):
    (repo / "refs" / name).write_text(commit)
  (repo / "blobs").mkdir()
  snapshot = repo / "snapshots" / commit
  snapshot.mkdir(parents=True)
  for i, file in enumerate(sorted((GOLDENS / "llama").glob("*"))):
    blob = repo / "blobs" / str(i)
    shutil.copy(file, blob)
    (snapshot / file.name).symlink_to(blob)
  return snapshot


@pytest.mark.parametrize("word", ["org/tiny", "org/tiny@v1"])
def test_a_cached_model_is_found_offline(cache, word):
  from specjax import pretrained

  assert hub.folder(word) == cache
  found = pretrained.find(word)
  assert found.config["model_type"] == "llama"
  assert found.load("float32").vocab == found.config["vocab_size"]


@pytest.mark.parametrize("word", ["org/other", "org/tiny@v2", "org/--x..y"])
def test_what_is_not_there_ends_in_a_sentence(cache, word):
  with pytest.raises(ValueError, match="neither in the hub's cache") as error:
    hub.folder(word)
  assert "\n" not in str(error.value) and word in str(error.value)
