"""launch/convert.py: to Orbax and back, as a user runs it."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from specjax.checkpoint import published
from specjax.checkpoint.folder import Folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/goldens/phi3"


def convert(*flags):
  return subprocess.run(
      [sys.executable, str(ROOT / "launch/convert.py"), *flags],
      capture_output=True, text=True, cwd=ROOT,
  )


def test_to_orbax_and_back_keeps_every_bit(tmp_path):
  there, back = tmp_path / "orbax", tmp_path / "back"
  for flags in (
      (f"--source={GOLDEN}", f"--out={there}"),
      (f"--source={there}", f"--out={back}", "--format=safetensors"),
  ):
    done = convert(*flags)
    assert done.returncode == 0, done.stderr
  ours, theirs = Folder(back), Folder(GOLDEN)
  assert set(ours.shapes) == set(theirs.shapes)
  for name in theirs.shapes:
    a, b = ours.read(name), theirs.read(name)
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  published.check(ours)
  done = convert(f"--source={GOLDEN}", f"--out={back}")
  assert done.returncode == 1 and "not empty" in done.stderr


@pytest.mark.parametrize("flags, says", [
    ((), "give --source and --out"),
    (("--source=x", "--out=y", "--format=npz"), "choose one of orbax"),
    (("--source=x", "--out=y", "--dtype=int8"), "choose auto, float32"),
    (("--source=nowhere", "--out=y"), "--source=nowhere: no such folder"),
])
def test_what_is_wrong_is_said(flags, says):
  done = convert(*flags)
  assert done.returncode == 1
  assert says in done.stderr and len(done.stderr.splitlines()) == 1
