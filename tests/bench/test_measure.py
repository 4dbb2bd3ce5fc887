"""Races: what is timed is told line by line; texts are the engine's own."""

import pytest

from specjax import engine
from specjax.bench import measure
from specjax.bench.measure import Group, Side, Task
from specjax.bench.prompts import Prompt
from specjax.drafters.nothing import Nothing

pytestmark = pytest.mark.usefixtures("quick_compiles")
TOKENS = [[7], [3, 9, 4], [5, 6] * 8]
FOUND = [Prompt(str(i), "ab"[i % 2], "x") for i in range(3)]


def side(tiny, drafter):
  run = lambda state, **options: engine.generate(
      tiny.target, drafter, state, **options
  )
  return Side(tiny.target, drafter, run)


@pytest.fixture
def sides(tiny):
  return side(tiny, tiny.drafter), side(tiny, Nothing())


def test_groups_are_whole_batches():
  got = measure.groups(FOUND, TOKENS, 2)
  assert [g.ids for g in got] == [["0", "1"], ["2", "0"]]
  assert got[1].categories == ["a", "a"] and got[1].tokens[1] == [7]
  assert len(measure.groups(FOUND, TOKENS, 1)) == 3
  with pytest.raises(ValueError, match="batch = 0"):
    measure.groups(FOUND, TOKENS, 0)


def test_a_loop_has_few_different_4_grams():
  assert measure.distinct(list(range(9))) == 1.0
  assert measure.distinct([1, 2] * 50) == 2 / 97
  assert measure.distinct([1, 2]) == 1.0


def test_one_generation_writes_what_the_naive_decoder_does(tiny, sides):
  group = Group(["0", "1"], ["a", "b"], TOKENS[:2])
  for one in sides:
    part, texts = measure.once(one, group, Task(9, dict(temperature=0.0)))
    assert texts == [tiny.greedy(t, 9) for t in TOKENS[:2]]
    rows = part["rows"]
    assert [r["emitted"] for r in rows] == [9, 9]
    # What the first round wrote is not among what `seconds` were spent on.
    assert 18 - 2 * (one.drafter.K + 1) <= part["later"] <= 16
    assert part["first"] > 0 and part["seconds"] > 0
    assert len(part["distinct"]) == 2


def test_texts_end_where_the_task_says(tiny, sides):
  text = tiny.greedy(TOKENS[0], 9)
  group = Group(["0"], ["a"], TOKENS[:1])
  task = Task(9, dict(temperature=0.0), eos=(text[4],))
  _, (got,) = measure.once(sides[0], group, task)
  assert got == text[: text.index(text[4]) + 1]


def test_a_race_goes_on_where_it_was(sides):
  groups = measure.groups(FOUND, TOKENS, 1)
  task = Task(5, dict(temperature=0.0))
  lines = list(measure.race(sides, groups, task, 2))
  turns = [line for kind, line in lines if kind == "turn"]
  assert [(t["group"], t["turn"]) for t in turns] == [
      (g, t) for g in range(3) for t in range(2)
  ]
  assert [k for k, _ in lines].count("compile") == 1  # one shape of state
  assert turns[2]["prompts"] == ["1"] and turns[2]["categories"] == ["b"]
  assert turns[0]["drafts"]["rows"][0]["drafted"] > 0
  assert turns[0]["plain"]["rows"][0]["drafted"] == 0
  some = {(0, 0), (0, 1), (1, 0)}
  rest = measure.race(sides, groups, task, 2, lambda g, t: (g, t) in some)
  left = [(x["group"], x["turn"]) for kind, x in rest if kind == "turn"]
  assert left == [(1, 1), (2, 0), (2, 1)]


def test_sides_take_turns_at_being_first(tiny):
  order = []

  def noting(name, drafter):
    def run(state, **options):
      order.append(name)
      return engine.generate(tiny.target, drafter, state, **options)

    return Side(tiny.target, drafter, run)

  sides = noting("d", tiny.drafter), noting("p", Nothing())
  groups = measure.groups(FOUND[:1], TOKENS[:1], 1)
  list(measure.race(sides, groups, Task(5, {}), 2))
  pairs = [order[i] for i in range(0, len(order), 2)]  # two calls a text
  assert pairs == ["d", "p", "p", "d", "d", "p"]  # warm-up first
