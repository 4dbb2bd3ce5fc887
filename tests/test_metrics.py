"""Pooled sums, by hand."""

import json
import logging

import numpy as np
import pytest

from specjax.metrics import (
    Pace,
    bootstrap,
    counts,
    gap,
    pool,
    rates,
    summary,
    warn,
    words,
)
from specjax.types import Info, Tally


def tally(**changes):
  info = dict(
      rounds=[2, 1], drafted=[6, 3], accepted=[4, 0], emitted=[5, 1],
      bonus=[1, 0], dropped=[1, 0], reached=[[2, 2, 1], [1, 0, 0]],
      passed=[[2, 1, 1], [0, 0, 0]],
      overlap=[[1.5, 1.0, 0.5], [0.25, 0.0, 0.0]],
  )
  info = {k: np.array(v) for k, v in (info | changes).items()}
  return Tally(Info(**info), np.int32(2))


def test_numbers_are_pooled_sums():
  got = summary(tally())
  assert got["steps"] == 2 and got["rounds"] == 3
  assert got["emitted"] == got["accepted"] + got["rounds"] - got["dropped"]
  assert got["acceptance_length"] == 6 / 3  # the mean of means would be 1.75
  assert got["acceptance_rate"] == 4 / 9
  assert got["conditional"] == [2 / 3, 1 / 2, 1.0]
  assert got["reached_rate"] == pytest.approx(4 / 6)
  assert got["overlap"] == pytest.approx(3.25 / 6)


def test_nothing_divided_by_nothing_is_zero():
  zeros = {
      name: np.zeros_like(x) for name, x in tally().info._asdict().items()
  }
  got = summary(tally(**zeros))
  assert got["acceptance_length"] == got["acceptance_rate"] == 0.0
  assert got["conditional"] == [0.0] * 3


def test_zero_drafts_have_no_positions():
  empty = np.zeros((2, 0), int)
  got = summary(tally(reached=empty, passed=empty, overlap=empty))
  assert got["conditional"] == [] and got["reached_rate"] == 0.0


def test_words_tell_of_drafts_only_where_there_were_any():
  shown = words(summary(tally()))
  assert shown["acceptance length"] == "2.00"
  assert shown["acceptance by position"] == "0.67 0.50 1.00"
  assert shown["accepted / judged"] == "0.667"
  plain = words(summary(tally(drafted=[0, 0])))
  assert list(plain) == ["tokens", "target passes", "acceptance length"]


def test_pace_parts_the_first_wait_from_the_rate():
  times = iter([1.0, 3.0, 4.0, 7.0])
  pace = Pace(lambda: next(times))
  pace.saw(9)
  assert (pace.wait, pace.rate) == (2.0, 0.0)
  pace.saw(3)
  pace.saw(5)
  assert (pace.wait, pace.rate) == (2.0, 2.0)


def test_rows_are_pooled_from_json():
  rows = counts(tally())
  assert rows[0]["emitted"] == 5 and rows[1]["passed"] == [0, 0, 0]
  assert json.loads(json.dumps(rows)) == rows
  got = rates(pool(rows))
  assert got == {k: v for k, v in summary(tally()).items() if k in got}
  short = dict(rows[0], reached=[4], passed=[1], overlap=[0.5])
  assert pool([rows[0], short])["reached"] == [6, 2, 1]


def test_acceptance_may_stray_from_its_overlaps_by_chance_alone():
  rng, n = np.random.default_rng(0), 4000
  outside = 0
  for _ in range(300):
    chance = rng.random(n)
    passed = int((rng.random(n) < chance).sum())
    one = dict(reached=[n], passed=[passed], overlap=[float(chance.sum())])
    difference, width = gap(pool([counts(tally())[0] | one]))
    outside += abs(difference) > width
  assert outside <= 3  # three deviations, of a bound on the variance
  less = counts(tally())[0] | dict(
      reached=[n], passed=[int(0.4 * n)], overlap=[0.5 * n]
  )
  difference, width = gap(less)
  assert difference == pytest.approx(-0.1) and width < 0.03
  none = counts(tally())[0] | dict(reached=[], passed=[], overlap=[])
  assert gap(none) == (0.0, 0.0)


def test_bootstrap_covers_the_mean():
  rng, hits = np.random.default_rng(1), 0
  for seed in range(100):
    low, high = bootstrap(
        rng.normal(2, 1, 40), np.mean, draws=200, seed=seed
    )
    hits += low < 2 < high
  assert 85 <= hits <= 99
  with pytest.raises(ValueError, match="nothing to draw"):
    bootstrap([], np.mean)


def test_an_alarm_where_drafts_pass_less_than_promised(caplog):
  n, one = 4000, counts(tally())[0]
  dense = lambda passed: tally(
      reached=[[n], [0]], passed=[[passed], [0]], overlap=[[0.6 * n], [0.0]]
  )
  assert one["rounds"] == 2
  for passed, rings in ((2400, False), (2350, False), (2900, False),
                        (2000, True)):
    assert summary(dense(passed))["alarm"] == rings
    with caplog.at_level(logging.WARNING, "specjax"):
      caplog.clear()
      assert warn(dense(passed)) == rings
    assert len(caplog.records) == rings
  assert "0.500 of 4000 judged drafts passed" in caplog.text
