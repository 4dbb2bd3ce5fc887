"""launch/bench.py: flags are checked first; runs are resumed and reported."""

import importlib
import json

import pytest
from ml_collections import ConfigDict

from specjax.bench import costs


@pytest.fixture(scope="module")
def files(files, tmp_path_factory):
  prompts = tmp_path_factory.mktemp("prompts") / "p.jsonl"
  prompts.write_text(
      '{"prompt": "def", "category": "a"}\n{"prompt": "class A", "category":'
      ' "b"}\n'
  )
  return files | dict(prompts=str(prompts))


def settings(**changes):
  shell, bench = (importlib.import_module(n) for n in ("shell", "bench"))
  return bench, shell.settings(bench.FLAGS, ConfigDict(), changes)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (dict(k=("0",)), "must lie in 1..64, or auto"),
        (dict(k=("auto",)), "name the largest K too"),
        (dict(k=("x",)), "--k=x: give a number"),
        (dict(batch=("0",)), "must lie in 1..4096"),
        (dict(temperatures=("-1",)), "temperature = -1"),
        (dict(new_tokens=0), "must be at least 1"),
        (dict(drafter=("nothing",)), "is the baseline"),
        (dict(drafter=("eagle",)), "choose one of autoregressive, ngram"),
        (dict(peer=("vllm",)), "choose one of transformers"),
        (dict(synthetic_acceptance=1.5), "must lie in 0..1"),
    ],
    ids=str,
)
def test_a_wrong_flag_ends_it_before_anything_is_written(
    files, tmp_path, wrong, says
):
  out = tmp_path / "out"
  bench, c = settings(out=str(out), **files | wrong)
  with pytest.raises(ValueError, match=says):
    bench.main(c)
  assert not out.exists()


@pytest.mark.usefixtures("quick_compiles")
def test_a_run_goes_on_where_it_was_and_is_reported(
    files, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(costs, "LOOP", 3)
  monkeypatch.setattr(costs, "TURNS", 1)
  options = dict(
      drafter=("autoregressive", "ngram"), k=("2", "auto"), new_tokens=6,
      temperatures=("1",), repeats=1, out=str(tmp_path / "out"), **files,
  )
  bench, c = settings(**options)
  bench.main(c)
  path = tmp_path / "out/results.jsonl"
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  kinds = [x["kind"] for x in lines]
  assert kinds[0] == "about" and kinds.count("turn") == 2 * 2 * 2
  assert kinds.count("cost") == 2  # of the fixed K of either drafter
  assert kinds.count("baseline") == 1  # of the one batch, for all runs
  runs = [x["run"] for x in lines[1:] if x["kind"] != "baseline"]
  assert {x["k"] for x in runs} == {2, "auto"}
  page = (tmp_path / "out/README.md").read_text()
  assert page in capsys.readouterr().out
  assert "| ngram | 2 | 1 | 1 |" in page
  assert (tmp_path / "out/index.html").stat().st_size > 2000
  # As if it had been killed in the middle.
  path.write_text("".join(json.dumps(x) + "\n" for x in lines[:-2]))
  bench, c = settings(**options)
  bench.main(c)
  again = [json.loads(x) for x in path.read_text().splitlines()]
  assert again[: len(lines) - 2] == lines[:-2]
  assert [x["kind"] for x in again].count("turn") == 8
  bench, c = settings(**options | dict(new_tokens=7))
  with pytest.raises(ValueError, match="measured with new_tokens = 6"):
    bench.main(c)


@pytest.mark.usefixtures("quick_compiles")
def test_what_is_synthetic_says_so_everywhere(files, tmp_path, capsys):
  bench, c = settings(
      k=("2",), new_tokens=6, temperatures=("1",), repeats=1, costs=False,
      synthetic_acceptance=0.9, out=str(tmp_path / "out"), **files,
  )
  bench.main(c)
  lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
  for line in map(json.loads, lines):
    assert (line.get("run") or line)["synthetic_acceptance"] == 0.9
  for name in ("README.md", "index.html"):
    assert "not real output" in (tmp_path / "out" / name).read_text()
  assert "laws promise" not in capsys.readouterr().err  # no alarm
