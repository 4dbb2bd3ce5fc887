"""Prompt lookup against a search in plain Python."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.testing.pair import decoder
from specjax.types import Rows, Source, State

pytestmark = pytest.mark.usefixtures("quick_compiles")
L, N, K = 24, 12, 4
quick = settings(max_examples=150, deadline=None, database=None)
look = jax.jit(NGram.look)


def padded(text, older, rubbish=0):
  """(text [L], its length, the older text [N])."""
  long = lambda ids, n: jnp.array(ids + [rubbish] * (n - len(ids)), jnp.int32)
  return long(text, L), len(text), Source(long(older, N), len(older))


def search(text, older, shortest, longest):
  """The longest earlier match of the text's end, the latest of equals."""
  for n in range(min(longest, len(text)), shortest - 1, -1):
    for at in range(len(text) - 1, n - 1, -1):
      if text[at - n : at] == text[-n:]:
        out = list(text)
        for i in range(K):  # a match near the end copies its own copy
          out.append(out[at + i])
        return out[len(text) :]
    for at in range(len(older) - 1, n - 1, -1):
      if older[at - n : at] == text[-n:]:
        return older[at : at + K]
  return []


@quick
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=L - 1),
    st.lists(st.integers(0, 2), max_size=N),
    st.sampled_from([(1, 3), (2, 3), (2, 2), (1, 1)]),
    st.integers(0, 2),
)
def test_it_proposes_what_followed_the_longest_latest_match(
    text, older, n, rubbish
):
  got, count = look(NGram(K, *n), *padded(text, older, rubbish))
  assert got.tolist()[:count] == search(text, older, *n)


@pytest.mark.parametrize(
    "text, older, want",
    [
        ([1], [], []),
        ([1, 2, 3], [4, 5], []),
        ([0, 7], [5, 7, 8, 1], [8, 1]),  # up to the end that closes a source
        ([0, 1], [5, 7, 8, 1], []),  # nothing follows it
        ([7, 9, 7], [7, 8], [9, 7, 9, 7]),  # the source is older
        ([6, 7, 9, 7, 5, 6, 7], [5, 6, 7, 8], [8]),  # but longer matches win
    ],
    ids=str,
)
def test_by_hand(text, older, want):
  got, count = look(NGram(K, 1), *padded(text, older))
  assert got.tolist()[:count] == want


def test_without_a_source_there_is_no_older_text():
  text, length, _ = padded([1, 2, 3, 1, 2], [])
  rows = Rows(**dict.fromkeys(Rows._fields))._replace(
      tokens=text[None], length=jnp.array([length])
  )
  draft, _ = NGram(K, 1).propose(None, State(rows, (), (), None), None)
  assert draft.tokens.tolist() == [[3, 1, 2, 3]] and draft.count == K


@pytest.mark.parametrize(
    "K, shortest, longest", [(0, 1, 3), (3, 0, 3), (3, 4, 3)]
)
def test_settings_without_meaning_are_refused(K, shortest, longest):
  with pytest.raises(ValueError, match="^ngram: K = "):
    NGram(K, shortest, longest)


def test_the_others_refuse_too():
  with pytest.raises(ValueError, match="window = 3 must be 1 or 2"):
    Nothing(3)
  with pytest.raises(ValueError, match="K = 0 must be at least 1"):
    Autoregressive(decoder(5), 0)
