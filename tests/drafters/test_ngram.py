"""Prompt lookup against a search in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.testing.pair import decoder

pytestmark = pytest.mark.usefixtures("quick_compiles")
L, K = 24, 4
quick = settings(max_examples=150, deadline=None, database=None)
look = jax.jit(NGram.look)


def search(text, shortest, longest):
  """The longest earlier match of the text's end, the latest of equals."""
  for n in range(min(longest, len(text) - 1), shortest - 1, -1):
    for at in range(len(text) - 1, n - 1, -1):
      if text[at - n : at] == text[-n:]:
        out = list(text)
        for i in range(K):  # a match near the end copies its own copy
          out.append(out[at + i])
        return out[len(text) :]
  return None


@quick
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=L - 1),
    st.sampled_from([(1, 3), (2, 3), (2, 2), (1, 1)]),
    st.integers(0, 2),
)
def test_it_proposes_what_followed_the_longest_latest_match(text, n, rubbish):
  tokens = np.full(L, rubbish, np.int32)
  tokens[: len(text)] = text
  got, count = look(NGram(K, *n), jnp.array(tokens), len(text))
  want = search(text, *n)
  assert count == (0 if want is None else K)
  if want is not None:
    assert got.tolist() == want


@pytest.mark.parametrize("text", [[1], [1, 2, 3]])
def test_no_match_proposes_nothing(text):
  tokens = np.zeros(L, np.int32)
  tokens[: len(text)] = text
  assert look(NGram(K), jnp.array(tokens), len(text))[1] == 0


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
