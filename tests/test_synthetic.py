"""Synthetic acceptance passes by its coin, and its name says that it lies."""

import jax
import numpy as np
import pytest

from specjax import engine, metrics
from specjax.rules.lossy_synthetic import lossy_synthetic
from specjax.testing import Bigram, check_law, check_rule, decoder

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("chance", [0.0, 0.8, 1.0])
def test_drafts_pass_as_often_as_asked(tiny, chance):
  state = tiny.prefill([[7]] * 64, 40, capacity=128)
  _, tally = engine.generate(
      tiny.target, tiny.drafter, state, rule=lossy_synthetic(chance)
  )
  total = metrics.pool(metrics.counts(tally))
  n, passed = sum(total["reached"]), sum(total["passed"])
  assert n > 500
  deviation = np.sqrt(chance * (1 - chance) / n)
  assert abs(passed / n - chance) <= 5 * deviation


def test_the_conformance_kit_refuses_it():
  pair = decoder(), Bigram(5, K=2)
  for check in (
      lambda: check_law(*pair, [[0, 1]], rule=lossy_synthetic(0.8)),
      lambda: check_rule(lossy_synthetic(0.8)),
  ):
    with pytest.raises(ValueError, match="lossy by its own name"):
      check()


def test_one_rule_a_chance_and_no_chance_outside_0_to_1():
  one, same = lossy_synthetic(0.8), lossy_synthetic(0.8)
  assert one == same and hash(one) == hash(same)  # compiled once
  for chance in (-0.1, 1.1, float("nan")):
    with pytest.raises(ValueError, match="synthetic_acceptance = "):
      lossy_synthetic(chance)


def test_a_row_of_no_drafts_gets_its_one_token(tiny):
  state = tiny.prefill(width=0, new=5)
  state, tally = engine.generate(
      tiny.target, tiny.drafter, state, rule=lossy_synthetic(1.0)
  )
  assert (jax.device_get(tally.info.rounds) == 5).all()
