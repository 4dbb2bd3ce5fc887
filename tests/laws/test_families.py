"""The law of pairs whose layers have short windows, or mixtures of experts."""

import jax.numpy as jnp
import pytest

from specjax import attention, rules, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.models import parts

pytestmark = pytest.mark.usefixtures("quick_compiles")

PROMPTS = [
    [0, 1, 2, 3, 4, 0], [3, 1, 2, 0, 4, 1], [4, 0, 1, 2, 3, 2],
    [2, 3, 1, 4, 0, 1],
]
K = 2
KINDS = {
    "windows": dict(layers=2, windows=(3, 2)),  # shorter than any text here
    "mixture": dict(experts=4, chosen=2, expert_mlp=12),
}


def pair(kind):
  target = testing.decoder(**KINDS[kind])
  return target, Autoregressive(testing.decoder(seed=1, **KINDS[kind]), K)


@pytest.mark.parametrize(
    "rule", ["token", pytest.param("block", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_is_kept(kind, rule):
  testing.check_law(*pair(kind), PROMPTS, rule=getattr(rules, rule))


def test_memory_is_what_a_fresh_pass_writes():
  for kind in KINDS:
    testing.check_state(*pair(kind), PROMPTS)


def test_a_window_that_a_verifying_pass_forgets_is_found(monkeypatch):
  sound = attention.visible

  def visible(pos, slots, window):
    return sound(pos, slots, 0 if pos.shape[1] == K + 1 else window)

  monkeypatch.setattr(attention, "visible", visible)
  with pytest.raises(AssertionError, match="law"):
    testing.check_law(*pair("windows"), PROMPTS, rule=rule_of_its_own)


def test_an_expert_that_a_verifying_pass_mistakes_is_found(monkeypatch):
  sound = parts.Experts._many

  def many(self, x, weight, index):
    wrong = x.shape[1] == K + 1
    index = jnp.where(wrong, (index + 1) % self.c.experts, index)
    return sound(self, x, weight, index)

  monkeypatch.setattr(parts.Experts, "_many", many)
  with pytest.raises(AssertionError, match="law"):
    testing.check_law(*pair("mixture"), PROMPTS, rule=rule_of_its_own)


def rule_of_its_own(*arguments):
  """Nothing that was traced with the sound program is used again."""
  return rules.token(*arguments)
