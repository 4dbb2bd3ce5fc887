"""Stop strings, across tokens, against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import stops

quick = settings(max_examples=100, deadline=None, database=None)


def brute(strings, table, ids):
  """The strings that end inside each token, by looking at all of the text."""
  out, so_far = [], b""
  for i in ids:
    bits = 0
    for byte in table[i]:
      so_far += bytes([byte])
      for bit, string in enumerate(strings):
        bits |= so_far.endswith(string) << bit
    out.append(bits)
  return out


def follow(following, hit, ids):
  """What the engine does: one look-up a token."""
  state, out = 0, []
  for i in ids:
    out.append(int(hit[state, i]))
    state = following[state, i]
  return out


@quick
@given(st.data())
def test_against_brute_force(data):
  some = st.text("ab", min_size=1, max_size=5).map(str.encode)
  strings = data.draw(st.lists(some, min_size=1, max_size=31))
  table = data.draw(
      st.lists(st.text("abc", max_size=5).map(str.encode), min_size=1)
  )
  ids = st.integers(0, len(table) - 1)
  ids = data.draw(st.lists(ids, max_size=20))
  following, hit = stops.stop_table(strings, table)
  assert follow(following, hit, ids) == brute(strings, table, ids)


@quick
@given(st.text("ab\u00e9\n "), st.text("ab\u00e9\n ", min_size=1, max_size=4))
def test_words_across_tokens(embedded, before, stop):
  words = before + stop + "ab"
  following, hit = stops.stop_table([stop], embedded.token_bytes())
  ids = embedded.encode(words)
  hits = follow(following, hit, ids)
  kept = embedded.decode(ids[: hits.index(1) + 1])
  assert stops.cut_at_stop(kept, [stop]) == words[: words.index(stop)]


def test_shapes():
  for count, rows in ((0, 32), (31, 32), (32, 64), (127, 128), (128, 256)):
    strings = ["x" * count] if count else []
    following, hit = stops.stop_table(strings, [b"x", b"", b"xx"])
    assert following.shape == hit.shape == (rows, 3)
    assert (following.dtype, hit.dtype) == (np.int16, np.int32)
    assert (following[: count + 1, 1] == np.arange(count + 1)).all()
    assert not following[count + 1 :].any() and not hit[count + 1 :].any()
  assert stops.stop_table(["a"], [])[0].shape == (32, 0)


def test_highest_bit():
  strings = [f"{i:02d}" for i in range(31)]
  _, hit = stops.stop_table(strings, [b"30", b"0"])
  assert hit[0, 0] == 1 << 30 and hit.min() >= 0


@pytest.mark.parametrize(
    "strings, match",
    [
        (["a", ""], "Stop string 1 is empty"),
        ([b""], "Stop string 0 is empty"),
        (["a"] * 32, "32 stop strings"),
        (["a" * 600, "b" * 401], "1001 bytes"),
        ("stop", "give a list"),
    ],
)
def test_refusals(strings, match):
  with pytest.raises(ValueError, match=match):
    stops.stop_table(strings, [b"a"])
  with pytest.raises(ValueError, match=match):
    stops.cut_at_stop("a", strings)


def test_cut():
  assert stops.cut_at_stop("one two", []) == "one two"
  assert stops.cut_at_stop("one two", ["x"]) == "one two"
  assert stops.cut_at_stop("one two", ["two", "e t"]) == "on"
  assert stops.cut_at_stop("abcd", ["abcd", "bc"]) == "a"
  assert stops.cut_at_stop("abc", ["bc", "abc"]) == ""
