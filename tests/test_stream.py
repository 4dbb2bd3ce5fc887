"""The host loop writes what the compiled loop writes."""

import jax
import numpy as np
import pytest

from specjax import engine
from specjax.states import outputs_of
from specjax.stream import stream
from specjax.types import RUNNING

pytestmark = pytest.mark.usefixtures("quick_compiles")
SAMPLING = dict(temperature=[1.0, 0.7, 0.0, 1.3])


def start(tiny):
  return tiny.prefill(new=[16, 3, 12, 7], sampling=SAMPLING, seed=2)


@pytest.fixture(scope="module")
def whole(tiny):
  return engine.generate(tiny.target, tiny.drafter, start(tiny))


@pytest.mark.parametrize("rounds", [1, 3])
def test_stream_is_generate_token_for_token(tiny, whole, rounds):
  state, tally = whole
  texts, events = [[], [], [], []], 0
  for event in stream(tiny.target, tiny.drafter, start(tiny), rounds=rounds):
    assert any(event.tokens), "an event without news"
    texts = [old + new for old, new in zip(texts, event.tokens)]
    assert outputs_of(event.state) == texts
    events += 1
  assert texts == outputs_of(state)
  np.testing.assert_array_equal(event.finish, state.rows.finish)
  assert events == -(-int(tally.steps) // rounds)
  jax.tree.map(np.testing.assert_array_equal, event.tally.info, tally.info)


def test_a_stream_can_be_left_and_taken_up_again(tiny, whole):
  events = stream(tiny.target, tiny.drafter, start(tiny))
  next(events)
  state = next(events).state
  events.close()
  assert (np.asarray(state.rows.finish) == RUNNING).any()
  assert tiny.outputs(state) == outputs_of(whole[0])


def test_a_finished_state_streams_nothing(tiny, whole):
  state = jax.tree.map(lambda x: x.copy(), whole[0])
  assert list(stream(tiny.target, tiny.drafter, state)) == []


def test_rounds_may_be_made_by_another(tiny):
  from specjax.auto import Auto

  run = Auto(tiny.target, tiny.drafter, seconds={0: 1.0, 1: 1.5, 2: 2, 3: 9})
  state = tiny.prefill(new=9, sampling=dict(temperature=0.0))
  events = list(stream(tiny.target, tiny.drafter, state, run=run, rounds=2))
  texts = [sum(parts, []) for parts in zip(*(e.tokens for e in events))]
  assert texts == [tiny.greedy(p, 9) for p in tiny.PROMPTS]
  assert events[-1].tally.info.emitted.tolist() == [9] * tiny.B
