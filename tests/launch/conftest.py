"""What tests of the scripts share: their folder on the path, a pair."""

import pathlib

import pytest

from specjax.checkpoint import safetensors
from specjax.testing import pair

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def beside(monkeypatch):
  """Scripts find each other as they do when run: in their own folder."""
  monkeypatch.syspath_prepend(str(ROOT / "launch"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Flags of a target and a drafter of 4,096 words."""
  folder = tmp_path_factory.mktemp("pair")
  for seed, name in enumerate(("target", "drafter")):
    model = pair.decoder(4096, seed=seed, boost=1.0, tied=True)
    safetensors.save(model, folder / f"{name}.safetensors")
  return dict(
      target=str(folder / "target.safetensors"),
      drafter_model=str(folder / "drafter.safetensors"),
  )
