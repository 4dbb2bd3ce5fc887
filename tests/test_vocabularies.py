"""Tables between two vocabularies: what is shared, what is spelt, how."""

import numpy as np
import pytest

from specjax import vocabularies
from specjax.testing.pair import Bytes
from specjax.text import Tokenizer


class Words:
  """A tokenizer over given byte strings; always the longest that fits.

  `space` puts one before every text, as SentencePiece does; `names` are its
  special tokens.
  """

  def __init__(self, table, bos=None, eos=(), *, space=False, names=None):
    self.table, self.bos, self.eos, self.size = table, bos, eos, len(table)
    self.space, self.names = space, names or {}

  def token_bytes(self):
    return self.table

  def encode(self, text, *, special=False):
    if special and text in self.names:
      return [self.names[text]]
    data, out = (" " * self.space + text).encode(), []
    while data:
      fits = [b for b in self.table if b and data.startswith(b)]
      if not fits:
        raise ValueError("unknown")
      word = max(fits, key=len)
      # The last of equals, as where bytes to fall back on come first.
      out.append(len(self.table) - 1 - self.table[::-1].index(word))
      data = data[len(word) :]
    return out


MERGES = Words([*(bytes([i]) for i in range(256)), b"the", b"", b" a"],
               eos=(257,))


def compare(target, drafter, *sizes, **options):
  sizes = sizes or (target.size, drafter.size)
  return vocabularies.compare(target, drafter, *sizes, **options)


def word(tables, i):
  first = tables.first[i]
  return tables.pieces[first : first + tables.count[i]].tolist()


def spelt(tables, drafter):
  """The bytes of each target token, as the drafter reads it."""
  table = drafter.token_bytes()
  return [
      b"".join(table[p] for p in word(tables, i))
      for i in range(len(tables.first))
  ]


def test_equal_bytes_map_both_ways_and_others_are_spelt():
  got = compare(MERGES, Bytes())
  assert got.shared[:256].tolist() == list(range(256))
  assert got.shared[256:].tolist() == [258, 257, 258]
  assert word(got, 256) == [*b"the"] and word(got, 257) == [257]
  assert spelt(got, Bytes()) == MERGES.table
  back = compare(Bytes(), MERGES)
  assert back.shared[257] == 257 and back.shared[256] == MERGES.size
  assert word(back, 256) == []  # it has no token to begin a text


def test_ids_in_any_order_and_tokens_of_one_side():
  other = Words(MERGES.table[::-1] + [b"more"], eos=(1,))
  got = compare(MERGES, other)
  assert got.shared.tolist() == list(range(258, -1, -1))
  assert (got.count == 1).all()
  np.testing.assert_array_equal(got.pieces[got.first], got.shared)


def test_rows_above_a_tokenizer_are_read_as_nothing():
  got = compare(MERGES, Bytes(), 300, 320)
  assert (got.shared[259:] == 320).all() and (got.count[259:] == 0).all()
  assert len(got.first) == len(got.count) == 300


def test_no_token_serves_two():
  target = Words([b"a", b"a", b"b", b"", b""], eos=(3, 4))
  got = compare(target, Words([b"b", b"", b"a"], eos=(1,)))
  assert got.shared.tolist() == [3, 2, 0, 1, 3]
  assert [word(got, i) for i in range(5)] == [[2], [2], [0], [1], [1]]


@pytest.mark.parametrize("space", [False, True])
def test_of_equal_bytes_the_token_counts_that_is_written(space):
  pieces = Words([b"a", b"\n", b" ", b"b", b" a", b"a"], space=space)
  got = compare(Words([b"a", b"b"]), pieces)
  assert got.shared.tolist() == [5, 3]


def test_a_space_put_before_a_text_is_spelt_only_where_it_is():
  pieces = Words([b" ", b"t", b"th", b"e", b" t", b" th"], space=True)
  got = compare(Words([b"the", b" the", b"t", b"e"]), pieces)
  assert word(got, 0) == [2, 3] and word(got, 1) == [5, 3]


def test_half_characters_and_unknown_bytes():
  target = Words([b"\xc3", b"\xc3\xa9!", b"a\xff", b"a", b"!"])
  got = compare(target, Words([b"\xc3", b"!", b"a", b"\xa9"]))
  assert [word(got, i) for i in range(3)] == [[0], [0, 3, 1], [2]]


def test_a_huge_token_is_spelt_by_its_end():
  target = Words([b"ab" * 10**6 + b"c", b"a", b"b", b"c"])
  got = compare(target, Words([b"a", b"b", b"c"]))
  assert got.count.tolist() == [vocabularies.SPELT, 1, 1, 1]
  assert word(got, 0)[-4:] == [1, 0, 1, 2]


def test_special_tokens_go_by_what_they_are_for_or_by_name():
  target = Words([b"a", b"b", b"", b"", b""], 2, (3,), names={"<user>": 4})
  drafter = Words([b"", b"", b"", b"a", b"b"], 1, (2,), names={"<user>": 0})
  assert compare(target, drafter).shared.tolist() == [3, 4, 1, 2, 5]
  got = compare(target, drafter, special=["<user>"])
  assert got.shared.tolist() == [3, 4, 1, 2, 0]
  with pytest.raises(ValueError, match="'ab' is no single token of the tar"):
    compare(target, drafter, special=["ab"])


def test_the_embedded_tokenizer_against_bytes():
  own = Tokenizer.embedded()
  got = compare(own, Bytes())
  assert (got.shared < 258).sum() == 257  # every byte, and the end of text
  joined = spelt(got, Bytes())
  ends = set(own.eos)
  assert all(
      joined[i] == b for i, b in enumerate(own.token_bytes()) if i not in ends
  )


@pytest.mark.parametrize(
    "drafter, sizes, words",
    [
        (Words([b"x", b"y"]), (259, 2), "shares 0 of the target's 259"),
        (Words([b"a", b"xyz"]), (259, 2), "shares 1 of the target's 259"),
        (Bytes(), (100, 258), "the target's tokenizer has 259 tokens, its"),
        (Bytes(), (259, 257), "the drafter's tokenizer has 258 tokens, its"),
    ],
)
def test_what_cannot_work_is_refused(drafter, sizes, words):
  target = Words([*MERGES.table[:257], b"", b" a"])
  if words.startswith("shares 0"):
    target = Words([*map(str.encode, map(str, range(259)))])
  with pytest.raises(ValueError, match=f"^vocabularies: .*{words}"):
    compare(target, drafter, *sizes)
