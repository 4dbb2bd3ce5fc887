"""Pairs whose target has an encoder: the law, and bugs of its own.

The checks of their memory are in test_state.py.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from specjax import rules, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.models.encoder_decoder import EncoderDecoder

pytestmark = pytest.mark.usefixtures("quick_compiles")
K = 2
PROMPTS = [
    [3, 1, 2, 4],
    [1, 1, 4, 2, 3, 3, 2],
    [4],
    [2, 3, 1, 4, 1, 2, 3, 4, 2],
]
DRAFTERS = {
    "autoregressive": lambda: Autoregressive(
        testing.encoder_decoder(seed=1), K
    ),
    "decoder": lambda: Autoregressive(testing.decoder(seed=1), K),
    "ngram": lambda: NGram(K, 1),
}
RULES = {"token": rules.token, "block": rules.block}


def law(target, drafter="autoregressive", rule="token", **options):
  testing.check_law(
      target, DRAFTERS[drafter](), PROMPTS, rule=RULES[rule],
      **dict(rows=32_768) | options,
  )


@pytest.mark.parametrize(
    "drafter, rule",
    [
        ("autoregressive", "token"),
        ("autoregressive", "block"),
        ("ngram", "token"),
        pytest.param("decoder", "token", marks=pytest.mark.slow),
        pytest.param("ngram", "block", marks=pytest.mark.slow),
    ],
)
def test_next_four_tokens_have_the_law_of_the_target(drafter, rule):
  law(testing.encoder_decoder(), drafter, rule)


@pytest.mark.slow
def test_penalties_and_ends_keep_the_law():
  settings = [
      dict(repetition=1.5, presence=0.4, frequency=0.3),
      dict(min_p=0.2, bias={2: 1.0}, min_new=2),
      dict(banned=[3], top_k=3, temperature=1.4),
      dict(repetition=0.7),
  ]
  law(testing.encoder_decoder(), settings=settings, eos=(1,))


def spoilt(kind):
  """The sound target's numbers in a class with a bug of its own."""
  sound = testing.encoder_decoder()
  shape = jax.eval_shape(lambda: kind(sound.c, rngs=nnx.Rngs(0)))
  return jax.tree.unflatten(jax.tree.structure(shape), jax.tree.leaves(sound))


class OtherRow(EncoderDecoder):
  """Looks at the source of the row above."""

  def start(self, source, length, capacity):
    cache, first = super().start(source, length, capacity)
    turn = lambda x: jnp.roll(x, 1, 0)
    return cache._replace(
        cross=jax.tree.map(turn, cache.cross), length=turn(cache.length)
    ), first


class EncodesPadding(EncoderDecoder):
  """Its encoder reads the padding too."""

  def encode(self, source, length):
    return super().encode(source, jnp.full_like(length, source.shape[1]))


class SeesPadding(EncoderDecoder):
  """Its decoder looks at the padding too."""

  def start(self, source, length, capacity):
    cache, first = super().start(source, length, capacity)
    return cache._replace(length=jnp.full_like(length, source.shape[1])), first


@pytest.mark.parametrize("kind", [OtherRow, EncodesPadding, SeesPadding])
def test_a_bug_of_the_source_fails_check_law(kind):
  with pytest.raises(AssertionError, match="law"):
    law(spoilt(kind), rows=8192)


def test_memory_of_another_row_fails_check_state():
  class Shifts(Autoregressive):
    """Its drafter's keys of the source move on to the next row."""

    def propose(self, target, state, keys):
      draft, state = super().propose(target, state, keys)
      moved = jax.tree.map(lambda x: jnp.roll(x, 1, 0), state.draft.cross)
      return draft, state._replace(draft=state.draft._replace(cross=moved))

  drafter = Shifts(testing.encoder_decoder(seed=1), K)
  with pytest.raises(AssertionError, match="drafter's memory.*cross"):
    testing.check_state(testing.encoder_decoder(), drafter, PROMPTS)
