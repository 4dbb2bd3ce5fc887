"""The joint law of the next tokens, of the shipped program."""

import pytest

from specjax import rules, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing

# Every token occurs before the end, so that a match is always found.
PROMPTS = [
    [0, 1, 2, 3, 4, 0],
    [3, 1, 2, 0, 4, 1],
    [4, 0, 1, 2, 3, 2, 2],
    [2, 3, 1, 4, 0, 1, 0],
]
DRAFTERS = {
    "autoregressive": lambda K: Autoregressive(testing.decoder(seed=1), K),
    "ngram": lambda K: NGram(K, 1),
    "nothing": lambda K: Nothing(),
}
RULES = {"token": rules.token, "block": rules.block}
everyone = pytest.mark.parametrize("drafter", DRAFTERS)
both = pytest.mark.parametrize("rule", RULES)


@both
@everyone
def test_next_four_tokens_have_the_law_of_the_target(drafter, rule):
  testing.check_law(
      testing.decoder(), DRAFTERS[drafter](2), PROMPTS, rule=RULES[rule]
  )


@everyone
def test_drafts_pass_as_often_as_the_overlap_says(drafter):
  sums = testing.check_acceptance(
      testing.decoder(), DRAFTERS[drafter](2), PROMPTS
  )
  assert drafter == "nothing" or 0 < sums["passed"] < sums["reached"]


def test_penalties_bias_bans_and_ends_keep_the_law():
  settings = [
      dict(repetition=1.5, presence=0.4, frequency=0.3),
      dict(min_p=0.2, bias={2: 1.0}, min_new=2),
      dict(banned=[3], top_k=3, temperature=1.4),
  ]
  testing.check_law(
      testing.decoder(), Autoregressive(testing.decoder(seed=1), 2),
      PROMPTS[:3], settings, rows=16_384, eos=(1,),
  )


@pytest.mark.slow
@both
@everyone
@pytest.mark.parametrize("seed", [10**7, 2 * 10**7])
def test_longer_texts_of_a_larger_vocabulary(drafter, rule, seed):
  model = testing.decoder(7, layers=2)
  drafters = DRAFTERS | {
      "autoregressive": lambda K: Autoregressive(
          testing.decoder(7, seed=1, boost=3.0), K
      )
  }
  settings = [
      dict(top_k=3), dict(temperature=0.4, top_p=0.7), dict(top_k=2),
      dict(temperature=0.0),
  ]
  testing.check_law(
      model, drafters[drafter](4), PROMPTS, settings, rule=RULES[rule],
      horizon=6, rows=131_072, seed=seed,
  )


def test_a_horizon_inside_one_round_is_refused():
  with pytest.raises(ValueError, match="horizon"):
    testing.check_law(
        testing.Table(5), testing.Bigram(5, 3), PROMPTS[:1], horizon=4
    )


def test_a_law_of_too_many_texts_is_refused():
  with pytest.raises(ValueError, match="shorten the horizon"):
    testing.joint_law(testing.Table(50), [0], 4, dict())
