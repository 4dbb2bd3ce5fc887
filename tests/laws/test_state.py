"""Memory, neighbours, stops: the checks of the kit on every drafter."""

import pytest

from specjax import testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing

pytestmark = pytest.mark.usefixtures("quick_compiles")

PROMPTS = [[0, 1, 2, 3, 4, 0], [1, 2, 3], [4, 0, 1, 2, 3, 0, 2], [2]]
DRAFTERS = {
    "autoregressive": lambda: Autoregressive(testing.decoder(seed=1), 2),
    "ngram": lambda: NGram(2),
    "nothing": lambda: Nothing(),
}


@pytest.fixture(params=DRAFTERS, scope="module")
def pair(request):
  return testing.decoder(), DRAFTERS[request.param]()


def test_memory_equals_a_fresh_prefill_after_every_round(pair):
  seen = testing.check_state(*pair, PROMPTS)
  assert seen == set(range(pair[1].K + 1))


def test_rubbish_above_the_final_slots_is_never_seen(pair):
  testing.check_poison(*pair, PROMPTS)


def test_no_window_is_written_past_the_last_slot(pair):
  testing.check_capacity(*pair)


def test_a_row_does_not_hang_on_its_neighbours(pair):
  testing.check_batch_invariance(*pair, PROMPTS)


def test_stops_cut_and_change_nothing_before(pair):
  testing.check_stops(*pair, PROMPTS)
