"""Memory, neighbours, stops: the checks of the kit on every drafter."""

import pytest

from specjax import testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing

pytestmark = pytest.mark.usefixtures("quick_compiles")

PROMPTS = [[0, 1, 2, 3, 4, 0], [1, 2, 3], [4, 0, 1, 2, 3, 0, 2], [2]]
SOURCES = [[3, 1, 2, 4], [1, 1, 4, 2, 3, 3, 2], [4],
           [2, 3, 1, 4, 1, 2, 3, 4, 2]]
small = lambda make: Autoregressive(make(seed=1), 2)
CASES = {
    "autoregressive": (testing.decoder, small, PROMPTS),
    "ngram": (testing.decoder, lambda make: NGram(2, 1), PROMPTS),
    "nothing": (testing.decoder, lambda make: Nothing(), PROMPTS),
    "encoders": (testing.encoder_decoder, small, SOURCES),
    "ngram in a source": (
        testing.encoder_decoder, lambda make: NGram(2, 1), SOURCES
    ),
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
  """(target, drafter, prompts)."""
  make, drafter, prompts = CASES[request.param]
  return make(), drafter(make), prompts


def test_memory_equals_a_fresh_prefill_after_every_round(case):
  seen = testing.check_state(*case)
  assert seen == set(range(case[1].K + 1))


def test_rubbish_above_the_final_slots_is_never_seen(case):
  testing.check_poison(*case)


def test_no_window_is_written_past_the_last_slot(case):
  testing.check_capacity(*case[:2])


def test_a_row_does_not_hang_on_its_neighbours(case):
  testing.check_batch_invariance(*case)


def test_stops_cut_and_change_nothing_before(case):
  testing.check_stops(*case)
