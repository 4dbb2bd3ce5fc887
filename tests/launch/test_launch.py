"""The scripts: settings, words, sentences; runs with a pair of 4,096 words."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from specjax import embedded, requests

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script(name):
  return importlib.import_module(name)


def settings(**changes):
  shell, generate = script("shell"), script("generate")
  return shell.settings(generate.FLAGS, ConfigDict(), changes)


def test_flags_win_over_config_and_config_over_defaults():
  shell = script("shell")
  names = dict(a=(1, ""), b=(1.0, ""), c=((), ""), d=("x", ""))
  c = shell.settings(names, ConfigDict(dict(a=2, b=3)), dict(a=4, c=["y"]))
  assert c.to_dict() == dict(a=4, b=3.0, c=("y",), d="x")
  with pytest.raises(ValueError, match="'e' is unknown"):
    shell.settings(names, ConfigDict(dict(e=1)), {})
  for wrong in (dict(a="2"), dict(a=2.5), dict(a=True), dict(c="y")):
    with pytest.raises(ValueError, match="is no"):
      shell.settings(names, ConfigDict(wrong), {})


def test_the_default_config_holds_names_of_flags():
  config = {}
  exec((ROOT / "configs/embedded.py").read_text(), config)
  shell, generate = script("shell"), script("generate")
  c = shell.settings(generate.FLAGS, config["get_config"](), {})
  assert (c.target, c.drafter) == ("embedded", "autoregressive")


@pytest.mark.parametrize(
    "wrong, says",
    [
        (dict(drafter="eagle"), "choose one of autoregressive, ngram, nothing"),
        (dict(rule="lossy"), "choose one of token, block"),
        (dict(dtype="int8"), "float32 or bfloat16"),
        (dict(mesh="2by2"), "such as 1x1"),
        (dict(mesh="9x9"), "needs 81 devices"),
        (dict(target="llama"), "--target=llama: no such folder or .gguf"),
        (dict(target="no.safetensors"), "no.safetensors"),
        (dict(num_speculative_tokens=0), "must lie in 1..64"),
        (dict(temperature=-1.0), "temperature = -1;"),
        (dict(top_p=0.0), "top_p = 0;"),
        (dict(max_new_tokens=0), "max_new_tokens = 0;"),
        (dict(stop=("",)), "is empty"),
        (dict(samples=0), "1..4096"),
        (dict(input="x"), "give a --prompt"),
        (dict(prompt=""), "give a --prompt"),
        (dict(prompt="", input="x", output="y", samples=2), "--samples"),
        (dict(prompt="x " * 50, max_prompt_tokens=9), "max_prompt_tokens = 9"),
        (dict(logprobs=5000), "logprobs = 5000"),
    ],
)
def test_a_mistake_is_one_sentence(files, wrong, says):
  known = dict(prompt="x", drafter="ngram", **files)
  with pytest.raises(ValueError, match=r"\.$") as caught:
    script("generate").main(settings(**known | wrong))
  assert says in str(caught.value)


def test_a_prompt_is_written_and_measured(files, capsys, quick_compiles):
  script("generate").main(settings(
      prompt="def main(", max_new_tokens=6, num_speculative_tokens=2,
      logprobs=1, compare=True, seed=1, **files,
  ))
  out, err = capsys.readouterr()
  lines = out.splitlines()
  entries = [json.loads(x) for x in lines if x.startswith('{"token"')]
  assert len(entries) == 6
  text = embedded.tokenizer().decode(e["token"] for e in entries)
  assert out.startswith(text)
  for measure in ("tokens/s", "time to first token", "acceptance length",
                  "acceptance by position", "mean sum min(p, q)", "speed-up",
                  "no drafts"):
    assert measure in err


def test_a_job_and_samples_run(files, tmp_path, capsys, quick_compiles):
  source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_text('{"prompt": "def"}\nwrong\n{"id": 9, "prompt": "class"}')
  job = settings(
      input=str(source), output=str(output), batch=2, max_new_tokens=5,
      num_speculative_tokens=2, **files,
  )
  generate = script("generate")
  generate.main(job)
  found = [json.loads(x) for x in output.read_text().splitlines()]
  assert [r.get("tokens") for r in found] == [5, None, 5]
  assert (found[2]["id"], found[0]["prompt"]) == (9, "def")
  header = json.loads((tmp_path / "out.jsonl.job").read_text())
  assert str(tmp_path) not in json.dumps(header)
  for again in ("", "all lines are there"):
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert "1 of 3 lines could not be answered" in last
    assert str(output) in last and again in err
    generate.main(job)
  capsys.readouterr()
  job.seed = 5
  with pytest.raises(ValueError, match="begun with seed = 0 and not 5"):
    generate.main(job)
  generate.main(settings(
      prompt="def", samples=2, max_new_tokens=5, stats=False,
      num_speculative_tokens=2, **files,
  ))
  out, err = capsys.readouterr()
  assert out.count("--- sample") == 2 and not err


@pytest.mark.parametrize(
    "sentence, flags",
    [
        ("sampling: top_p = 2 in row 0; it must be less.", "--top_p: "),
        ("sampling: repetition = 0; more.", "--repetition_penalty: "),
        ("sampling: temperature = -1 in row 0; more.", "--temperatures: "),
        ("mesh: 9 x 9 needs 81 devices.", "--mesh: "),
        ("out.jsonl: begun with seed = 0 and not 5.", "--seed: "),
        ("[Errno 2] No such file: 'a/b.jsonl'.", "--prompts: "),
        ("--seed=x: give a number; top_p = 2.", ""),
        ("the prompt is empty.", ""),
    ],
)
def test_a_sentence_leads_to_its_flag(sentence, flags):
  shell, bench = script("shell"), script("bench")
  given = dict.fromkeys((*bench.FLAGS, "top_p", "repetition_penalty"))
  given |= dict(prompts="a/b.jsonl", target="the", k=["2"])
  assert shell.with_flags(sentence, given) == flags + sentence


def test_prompts_of_the_repository_are_good():
  options = requests.Options()
  path = ROOT / "configs/prompts/heldout.jsonl"
  found = [requests.parse(raw, n, options, embedded.tokenizer())
           for n, raw in requests.lines(path)]
  assert len(found) == 20 and not any(r.error for r in found)


def run(*flags):
  command = [sys.executable, str(ROOT / "launch/generate.py"), *flags]
  env = os.environ | dict(JAX_PLATFORMS="cpu")
  return subprocess.run(command, capture_output=True, text=True, env=env)


def test_a_mistake_ends_the_script_without_a_traceback(tmp_path):
  config = tmp_path / "mine.py"
  config.write_text(
      "from ml_collections import ConfigDict\n"
      "def get_config():\n  return ConfigDict(dict(temprature=1.0))\n"
  )
  ended = run("--prompt=x", f"--config={config}")
  assert ended.returncode == 1 and not ended.stdout
  assert ended.stderr.startswith("generate.py: --config: 'temprature' is")
  assert ended.stderr.count("\n") == 1
  ended = run("--prompt=x", "--config", "missing.py:small", "--config.seed=1")
  assert ended.returncode == 1 and not ended.stdout
  assert ended.stderr == (
      "generate.py: --config=missing.py:small: there is no such file; give a"
      " Python file with get_config(), such as configs/embedded.py.\n"
  )
  ended = run("--prompt=x", "--top_p=2")
  assert ended.returncode == 1
  assert ended.stderr.startswith("generate.py: --top_p: sampling: top_p = 2;")


def test_help_is_no_failure():
  ended = run("--help")
  assert ended.returncode == 0 and not ended.stderr
  assert "--num_speculative_tokens" in ended.stdout
