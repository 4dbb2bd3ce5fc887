"""--quantize and --drafter_quantize: they act, are checked, make other jobs."""

import importlib
import json

import jax
import pytest
from ml_collections import ConfigDict

from specjax.models.int8 import Int8


def settings(name, **changes):
  shell, script = map(importlib.import_module, ("shell", name))
  return script, shell.settings(script.FLAGS, ConfigDict(), changes)


def quantised(module):
  return any(isinstance(x, Int8) for x in jax.tree.leaves(
      module, is_leaf=lambda x: isinstance(x, Int8)
  ))


@pytest.mark.parametrize("target, drafter", [("int8", ""), ("", "int8")])
def test_each_flag_quantises_its_own_model(files, target, drafter):
  words = importlib.import_module("words")
  _, c = settings(
      "generate", quantize=target, drafter_quantize=drafter, **files
  )
  found = words.models(c)
  assert quantised(found.target) == bool(target)
  assert quantised(found.drafter) == bool(drafter)


@pytest.mark.parametrize("flag", ["quantize", "drafter_quantize"])
@pytest.mark.parametrize("name", ["generate", "chat"])
def test_another_word_is_refused_before_a_model_is_read(name, flag):
  script, c = settings(name, target="no/such", **{flag: "int4"})
  if name == "generate":
    c.prompt = "x"
  with pytest.raises(ValueError, match=rf"^--{flag}=int4: choose .*int8\.$"):
    script.main(c)


def test_a_peer_that_has_no_int8_is_refused(files):
  bench, c = settings(
      "bench", quantize="int8", peer=("transformers",), **files
  )
  with pytest.raises(ValueError, match="--peer has no int8 weights"):
    bench.main(c)


def test_greedy_text_is_that_of_the_int8_model_alone(
    files, capsys, quick_compiles
):
  generate, c = settings(
      "generate", prompt="def main(", max_new_tokens=12, temperature=0.0,
      num_speculative_tokens=2, compare=True, quantize="int8",
      drafter_quantize="int8", **files,
  )
  generate.main(c)
  shown = capsys.readouterr().err
  assert "yes" in next(x for x in shown.splitlines() if "same text" in x)


def test_a_job_is_another_one_with_int8(files, tmp_path, quick_compiles):
  source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_text('{"prompt": "def"}\n')
  job = dict(
      input=str(source), output=str(output), batch=1, max_new_tokens=3,
      num_speculative_tokens=2, stats=False, **files,
  )
  generate, c = settings("generate", quantize="int8", **job)
  generate.main(c)
  header = json.loads((tmp_path / "out.jsonl.job").read_text())
  assert (header["quantize"], header["drafter_quantize"]) == ("int8", "")
  with pytest.raises(ValueError, match="begun with quantize = 'int8' and not"):
    generate.main(settings("generate", **job)[1])
