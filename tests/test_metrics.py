"""Pooled sums, by hand."""

import numpy as np
import pytest

from specjax.metrics import Pace, summary, words
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
