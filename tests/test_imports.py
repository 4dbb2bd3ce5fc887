"""Imports flow one way (docs and design: types <- ... <- launch)."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specjax"
FILES = sorted(PACKAGE.rglob("*.py"))

# What a room may import of specjax; a room that is missing may import all
# but what stands in NEVER.
MAY = {
    "types": set(),
    "sharding": set(),
    "tokens": set(),
    "pieces": {"tokens"},
    "text": {"tokens", "pieces"},
    "stops": set(),
    "chat": set(),
    "vocabularies": set(),
    "conversation": {"types", "chat", "states", "stream"},
    "sampling": {"types", "sharding"},
    "rules": {"types", "sampling", "rules"},
    "cache": {"types", "sharding"},
    "attention": {"types", "sharding"},
    "processes": set(),
    "metrics": {"types", "processes"},
    "models": {
        "types", "sharding", "cache", "attention", "models",
    },
    "drafters": {
        "types", "sampling", "sharding", "models", "attention", "cache",
    },
    "engine": {"types", "sampling", "rules", "sharding"},
}
NEVER = {"bench", "launch"}


def room(file):
  return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(file):
  """Modules of specjax that a file imports, anywhere in it, dotted."""
  found = set()
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{file}: relative import"
      found.add(node.module)
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return {m for m in found if m.split(".")[0] in ("specjax", "launch")}


def rooms(modules):
  return {m.split(".")[1] for m in modules if m.startswith("specjax.")}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.name))
def test_imports_flow_one_way(file):
  own, modules = room(file), imported(file)
  assert "launch" not in {m.split(".")[0] for m in modules}
  if own not in ("bench", "plan"):
    assert not rooms(modules) & NEVER
  if own in MAY:
    wrong = rooms(modules) - MAY[own]
    assert not wrong, f"{own} may not import {wrong}"
  if own != "testing":
    assert own == "embedded" or "testing" not in rooms(modules)


@pytest.mark.parametrize("room_name", ["drafters", "rules"])
def test_plugins_do_not_import_each_other(room_name):
  shared = {"drafters": set(), "rules": {"base"}}[room_name]
  for file in (PACKAGE / room_name).glob("*.py"):
    if file.name == "__init__.py":
      continue
    prefix = f"specjax.{room_name}."
    others = {
        m.removeprefix(prefix).split(".")[0]
        for m in imported(file) if m.startswith(prefix)
    }
    assert others <= shared, f"{file.name} imports {others - shared}"


def drafter_words():
  """Module and class names of the drafters."""
  for file in (PACKAGE / "drafters").glob("*.py"):
    if file.name == "__init__.py":
      continue
    yield file.stem
    for node in ast.parse(file.read_text()).body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield node.name


# "nothing" and the like are English words too: names count, prose does not.
FREE = {"drafters", "embedded", "testing", "bench", "plan", "train"}


def test_no_drafter_is_known_by_name():
  words = set(drafter_words())
  for file in FILES:
    if room(file) in FREE:
      continue
    modules = imported(file)
    assert not any(m.startswith("specjax.drafters.") for m in modules), file
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
      if isinstance(node, ast.Attribute):
        names.add(node.attr)
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names.add(node.value)
      elif isinstance(node, ast.Name):
        names.add(node.id)
    known = {w for w in words if w[0].isupper()} & names
    kinds = {w for w in words if f"drafters.{w}" in names}
    assert not known | kinds, f"{file} names {known | kinds}"


# What writes text; training and benchmarks may take their time to import.
WRITES = {*MAY, "__init__", "prefill", "stream", "checkpoint"}


def test_importing_specjax_pulls_in_no_other_framework():
  names = [
      ".".join(f.relative_to(ROOT).with_suffix("").parts)
      .removesuffix(".__init__")
      for f in FILES if room(f) in WRITES
  ]
  code = "\n".join(f"import {n}" for n in names) + "\n" + (
      "import sys\n"
      "bad = {'torch', 'transformers', 'tensorflow'} & set(sys.modules)\n"
      "assert not bad, bad\n"
  )
  done = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert not done.returncode, done.stderr
