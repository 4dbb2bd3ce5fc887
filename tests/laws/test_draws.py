"""Draws and coins of the shipped rules and drafters at their borders."""

import pytest

from specjax import rules, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing

RULES = {"token": rules.token, "block": rules.block}
PROMPTS = [[i, j, 4 - i] for i in range(5) for j in range(5)]


def test_a_flat_tail_is_drawn():
  assert testing.check_tail() > 0


@pytest.mark.slow
def test_a_flatter_tail_is_drawn():
  testing.check_tail(each=1e-8, draws=32_000, seed=1)


@pytest.mark.parametrize("rule", RULES)
def test_coins_at_their_borders(rule):
  testing.check_coin(RULES[rule])


@pytest.mark.parametrize("rule", RULES)
def test_a_residual_of_one_token_in_a_large_vocabulary(rule):
  testing.check_residual(RULES[rule])


@pytest.mark.parametrize("vocab, drafts", [(5, 2), (64, 4)])
def test_drafts_are_judged_by_the_array_they_were_drawn_from(vocab, drafts):
  drafter = Autoregressive(testing.decoder(vocab, seed=1), drafts)
  target = testing.decoder(vocab)
  found = testing.check_arrays(target, drafter, PROMPTS)
  assert found == len(PROMPTS) * drafts


@pytest.mark.parametrize("drafter", [NGram(2, 1), Nothing()])
def test_point_masses_have_no_array(drafter):
  assert testing.check_arrays(testing.decoder(), drafter, PROMPTS) == 0
