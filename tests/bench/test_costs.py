"""Costs: every part is there; of seconds only that there are some."""

import pytest

from specjax import rules
from specjax.bench import costs, results
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing

pytestmark = pytest.mark.usefixtures("quick_compiles")
TEXTS = [[7, 3], [3, 9]]


@pytest.fixture(autouse=True)
def short(monkeypatch):
  monkeypatch.setattr(costs, "LOOP", 4)
  monkeypatch.setattr(costs, "TURNS", 1)


@pytest.mark.parametrize("kind", ["autoregressive", "ngram"])
def test_costs_have_every_part(tiny, kind):
  drafter = tiny.drafter if kind == "autoregressive" else NGram(3)
  law = dict(temperature=1.0)
  got = costs.costs(tiny.target, drafter, rules.token, TEXTS, law)
  assert set(got) == set(results.PARTS)
  assert min(got.values()) > 0


def test_the_baseline_is_the_faster_window(tiny):
  drafter, ratio = costs.baseline(tiny.target, TEXTS)
  assert isinstance(drafter, Nothing)
  assert (drafter.K == 1) == (ratio < 1)
