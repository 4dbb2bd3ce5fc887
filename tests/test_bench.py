"""A bench's records and page; of its seconds only that there are some."""

import json

import numpy as np
import pytest

from specjax import bench, rules
from specjax.testing import pair

COST = dict(drafter_step_over_target_pass=0.1, verify_k1_over_1=1.25,
            rounds_over_both=1.05, rounds_over_parts=1.15)
SPEED = dict(kind="speed", k=4, temperature=0.0, speedup=1.75,
             conditional=[0.5], quartiles=[1.5, 2.0], acceptance_length=2.5,
             reached_rate=0.625, overlap=0.62, by_prompt=[1.5, 2.0],
             looping=1, speedup_not_looping=1.5)


def records():
  about = dict(baseline_window=2, window_2_over_1=0.9)
  return [
      dict(kind="machine", **bench.machine("python x.py"), **about),
      dict(kind="cost", k=4, **{law: COST for law in bench.LAWS}),
      SPEED,
  ]


@pytest.fixture(scope="module")
def setup(tiny):
  return bench.Setup(tiny.target, rules.token, [[7], [3, 9, 4]], 6, 2)


def test_ratios_are_formed_within_a_turn():
  drifting = np.array([[1, 2], [10, 20], [100, 400.0]])
  even = np.array([[2, 2.0]])
  got = bench.speedups([drifting, even], 100, [0.4, 0.9])
  assert got["looping"] == 1 and got["speedup_not_looping"] == 1.0
  assert got["by_prompt"] == [2.0, 1.0]  # of sums it would be 3.8
  assert got["speedup"] == 1.5 and got["quartiles"] == [1.25, 1.75]
  assert got["tokens_per_second"] == [(10 + 50) / 2, (5 + 50) / 2]


def test_a_loop_has_few_different_4_grams():
  assert bench.distinct(list(range(9))) == 1.0
  assert bench.distinct([1, 2] * 50) == 2 / 97
  assert bench.distinct([1, 2]) == 0.0


def test_costs_are_shares_of_a_turn():
  turns = lambda *x: np.array(x, float)
  got = bench.shares(
      dict(propose=turns(2, 20), verify=turns(4, 40), one=turns(2, 20),
           both=turns(7.2, 72), rounds=turns(9, 90)), 4
  )
  assert got.pop("milliseconds")["one"] == 11e3 / bench.LOOP
  assert got == dict(rounds_over_parts=1.5, rounds_over_both=1.25,
                     verify_k1_over_1=2.0,
                     drafter_step_over_target_pass=0.25)


def test_a_race_has_every_prompt_and_what_drafts_were_worth(
    tiny, setup, quick_compiles
):
  plain, about = bench.baseline(setup)
  assert about["baseline_window"] == plain.K + 1
  assert about["window_2_over_1"] > 0
  got = bench.race(setup, tiny.drafter, plain, 0.0)
  assert (got["kind"], got["k"], got["temperature"]) == ("speed", tiny.K, 0)
  assert len(got["by_prompt"]) == 2 and min(got["by_prompt"]) > 0
  assert 1 <= got["acceptance_length"] <= tiny.K + 1
  assert len(got["conditional"]) == tiny.K
  assert SPEED.keys() <= json.loads(json.dumps(got)).keys()


def test_costs_have_every_part(tiny, setup, monkeypatch, quick_compiles):
  monkeypatch.setattr(bench, "LOOP", 4)
  monkeypatch.setattr(bench, "TURNS", 1)
  got = bench.costs(setup, tiny.drafter, bench.LAWS["T 1"])
  assert COST.keys() <= json.loads(json.dumps(got)).keys()
  assert min(got["milliseconds"].values()) > 0


def test_records_are_written_as_lines_and_as_a_page(tmp_path):
  page = bench.write(tmp_path / "new/x", records())
  lines = (tmp_path / "new/x.jsonl").read_text().splitlines()
  assert [*map(json.loads, lines)] == records()
  assert (tmp_path / "new/x.md").read_text() == page
  rows = page.splitlines()
  assert (
      "| 4 | 0 | 1.75 (1.50 to 2.00) | 1.50 | 1 of 2 | 2.50 | 0.50 | 0.625"
      " | 0.620 |" in rows
  )
  for law in bench.LAWS:
    assert f"| 4 | {law} | 0.100 | 1.25 | 1.05 | 1.15 |" in rows
  assert "    python x.py" in rows and "2 wide (2 against 1" in page


def test_a_bad_prompt_ends_a_bench(tmp_path):
  path, words = tmp_path / "p.jsonl", pair.Bytes()
  path.write_text('{"prompt": "ab"}\n{"prompt": ""}\n')
  found = bench.prompts(path, 5, words)
  assert found == [[words.bos, *b"ab"], [words.bos]]
  for text, says in (("", "is empty"), ('{"prompt": 3}', "line 1: 'prompt'")):
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
      bench.prompts(path, 5, words)
    assert str(caught.value).startswith(str(path))
