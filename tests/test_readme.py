"""README's claims about names are executed, so they cannot drift."""

import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_library_example_runs(capsys):
  example, *_ = re.findall(r"```python\n(.*?)```", README, re.S)
  assert len(example.splitlines()) <= 14
  exec(compile(example, "README.md", "exec"), {})
  text, length = capsys.readouterr().out.rsplit("\n", 2)[:2]
  assert text.strip() and 1 <= float(length) <= 5


def test_its_published_model_loads(tmp_path, monkeypatch):
  """With a tiny one in place of the package's."""
  from specjax import pretrained

  _, example = re.findall(r"```python\n(.*?)```", README, re.S)
  folder = shutil.copytree(ROOT / "tests/goldens/llama", tmp_path / "x")
  shutil.copy(ROOT / "specjax/embedded/tokenizer.json", folder)
  tiny = pretrained.find(str(folder))
  monkeypatch.setattr(pretrained, "_packaged", lambda word: tiny)
  names = {}
  exec(compile(example, "README.md", "exec"), names)
  assert names["target"].c.dtype == "bfloat16"
  assert names["words"].encode("def")


def test_every_file_it_names_is_there():
  rooms = "specjax|launch|tests|configs|docs"
  names = re.findall(rf"`((?:{rooms})/[\w./]+)`", README)
  assert names
  for name in names:
    assert (ROOT / name).exists(), name


def test_every_flag_it_names_is_a_flag():
  sources = "".join(f.read_text() for f in (ROOT / "launch").glob("*.py"))
  for flag in set(re.findall(r"launch/\S+\.py[^\n`]*", README)):
    for name in re.findall(r"--(\w+)", flag):
      assert re.search(rf'"{name}"|\b{name}=\(', sources), name


def test_ci_runs_its_test_line():
  lines = [line for line in README.splitlines() if "pytest" in line]
  assert len(lines) == 1 and lines[0].startswith("python3 -m venv")
  assert 'grep -m1 "pytest" README.md' in (ROOT / ".ci/run").read_text()
