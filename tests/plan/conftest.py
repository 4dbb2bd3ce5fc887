"""What tests of the planner share: whether a TPU's compiler is here."""

import importlib.util

import pytest


@pytest.fixture
def libtpu(monkeypatch):
  """Skips where no TPU compiler is installed; else lets it load beside."""
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu has no wheel for this platform, or is not installed")
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
