"""K chosen while it runs: the text stays, the law stays, the choice is good."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import auto, engine, rules
from specjax.auto import PATIENCE, Auto, Track
from specjax.sharding import spec
from specjax.states import fork, outputs_of, prefill
from specjax.testing import Bigram, chi_square, decoder, joint_law
from specjax.testing.law import count
from specjax.types import RUNNING

pytestmark = pytest.mark.usefixtures("quick_compiles")
FREE = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}  # the widest is best
DEAR = {0: 1.0, 1: 3.0, 2: 4.0, 3: 5.0}  # none pays, whatever passes
EVEN = {0: 1.0, 1: 1.6, 2: 2.0, 3: 2.3}  # it hangs on what passes


@pytest.mark.parametrize("seconds", [FREE, DEAR, EVEN])
@pytest.mark.parametrize("rounds", [1, 5, 2**30])
def test_greedy_text_is_that_of_the_naive_decoder(
    tiny, monkeypatch, seconds, rounds
):
  monkeypatch.setattr(auto, "PATIENCE", (3, 4))
  run = Auto(tiny.target, tiny.drafter, seconds=seconds)
  run._patience = 3
  state = tiny.prefill(new=24, sampling=dict(temperature=0.0), capacity=128)
  emitted = 0
  for _ in range(99):
    state, tally = run(state, rounds=rounds)
    emitted += int(tally.info.emitted.sum())
    assert tally.info.reached.shape == (tiny.B, tiny.K)
    if not (np.asarray(state.rows.finish) == RUNNING).any():
      break
  texts = outputs_of(state)
  assert texts == [tiny.greedy(p, 24) for p in tiny.PROMPTS]
  assert emitted == 24 * tiny.B
  used = {K for K, n in run.rounds.items() if n}
  assert used == ({3} if seconds is FREE else used)
  if seconds is DEAR:
    assert used == {0, 1}


def test_a_drafter_that_rested_misses_nothing(tiny):
  """What it drafts next is what it drafts after reading the text anew."""
  run = Auto(tiny.target, tiny.drafter, seconds=DEAR)
  greedy = dict(temperature=0.0)
  state = tiny.prefill(new=30, sampling=greedy, capacity=128)
  for rounds in (2, 7, 9):
    state, _ = run(state, rounds=rounds)
    texts = outputs_of(state)
    whole = [[*p, *t] for p, t in zip(tiny.PROMPTS, texts)]
    fresh = tiny.prefill(whole, 12, sampling=greedy, capacity=128)
    want, _ = jax.jit(engine.propose)(tiny.target, tiny.drafter, fresh)
    got, _ = jax.jit(engine.propose)(tiny.target, tiny.drafter, state)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)
  assert run.rounds[0] == 18


def test_off_where_drafts_do_not_pay_and_tried_again(tiny, caplog):
  run = Auto(tiny.target, tiny.drafter, seconds=DEAR)
  state = tiny.prefill(new=110, capacity=256)
  with caplog.at_level(logging.WARNING, "specjax"):
    run(state)
  assert run.rounds[0] > PATIENCE[0] and run.rounds[1] == auto.BURST
  assert run.rounds[2] == run.rounds[3] == 0
  assert len(caplog.records) == 1
  assert "do not pay for a batch of 4" in caplog.text


def test_the_choice_follows_what_passes_row_by_row():
  seen = Track(np.zeros(2), np.zeros(2))
  for _ in range(20):
    seen = auto.learn(seen, np.array([7.0, 0]), np.array([8.0, 1]), 1)
  high, low = auto.acceptance(seen)
  assert high > 0.8 and low < 0.3
  rate = auto.rates(auto.acceptance(seen), EVEN)
  best = [max(rate, key=lambda K: rate[K][row]) for row in (0, 1)]
  assert best == [3, 0]
  # Fresh rows are believed to be like the others.
  fresh = auto.acceptance(Track(np.array([70.0, 0]), np.array([80.0, 0])))
  assert fresh[1] == pytest.approx(fresh[0], abs=0.02)


def test_what_was_long_ago_is_forgotten():
  seen = auto.learn(auto.track(1), np.array([50.0]), np.array([50.0]), 1)
  for _ in range(60):
    seen = auto.learn(seen, np.array([0.0]), np.array([1.0]), 1)
  assert auto.acceptance(seen)[0] < 0.4


def test_rows_that_came_anew_have_no_past(tiny):
  run = Auto(tiny.target, tiny.drafter, seconds=FREE)
  state, _ = run(tiny.prefill(new=20), rounds=3)
  assert (run._seen.judged > 0).all()
  lengths = np.array(state.rows.length)
  run._welcome(lengths)
  assert (run._seen.judged > 0).all()
  lengths = np.where(np.arange(4) == 1, 3, lengths)
  run._welcome(lengths)
  assert (run._seen.judged > 0).tolist() == [True, False, True, True]


def test_calibration_measures_every_width_and_leaves_the_state(tiny):
  run = Auto(tiny.target, tiny.drafter)
  state = tiny.prefill(new=40, capacity=128)
  run(fork(state, range(tiny.B), 0), rounds=0)
  assert run.calibrating > 0
  assert set(run.seconds) == {0, 1, 2, 3}
  assert min(run.seconds.values()) > 0
  run(state)  # not donated by the calibration


# -- the law -----------------------------------------------------------------

ROWS, HORIZON = 65_536, 4
PAIR = decoder(), Bigram(5, K=2)
PROMPT = [0, 1, 2, 3, 4, 0]


def chosen(seen, draft):
  """Each row's width by the shipped policy, from what was judged before."""
  rate = auto.rates(auto.acceptance(seen), {0: 1.0, 1: 1.32, 2: 1.5})
  return jnp.argmax(jnp.stack([rate[K] for K in (0, 1, 2)]), 0)


def peeking(seen, draft):
  """Planted: no draft where the one just drawn is unlikely to pass."""
  return jnp.where(draft.tokens[:, 0] == 1, 0, 2)


def texts(policy):
  """Rows whose widths differ from round to round, each by its own past."""
  start = prefill(
      *PAIR, [PROMPT], max_new_tokens=HORIZON + 2, chunks=(4,), capacity=16,
  )
  state = fork(start, np.zeros(ROWS, int), 0)

  @jax.jit
  def run(target, drafter, state):
    def body(_, carry):
      state, seen = carry
      keys = engine.round_keys(state.rows, engine.DRAFT)
      draft, _ = drafter.propose(target, state, keys)
      width = policy(seen, draft).astype(jnp.int32)
      state = state._replace(rows=state.rows._replace(width=width))
      state, info = engine.step(target, drafter, state)
      # Sharper than the policy, so that a single draft moves the choice.
      seen = auto.learn(
          seen, 30 * info.passed.sum(1), 30 * info.reached.sum(1), info.rounds
      )
      return state, seen

    zero = jnp.zeros(ROWS, out_sharding=spec("batch"))
    return jax.lax.fori_loop(
        0, HORIZON, body, (state, Track(zero, zero))
    )

  state, seen = run(*PAIR, state)
  out = np.array([t[:HORIZON] for t in outputs_of(state)])
  return out, np.asarray(state.rows.width)


def p_value(observed):
  law = joint_law(PAIR[0], PROMPT, HORIZON, {})
  counts, impossible = count(law, observed)
  assert not impossible
  return chi_square(counts, law.mass)


def test_a_width_chosen_by_the_past_keeps_the_law():
  observed, widths = texts(chosen)
  assert set(np.unique(widths)) == {0, 1, 2}  # rows differ, or it says nothing
  assert p_value(observed) > 1e-9


def test_planted_a_width_chosen_by_the_draft_it_cuts_is_caught():
  observed, _ = texts(peeking)
  assert p_value(observed) < 1e-9


def test_block_rule_is_taken_as_given(tiny):
  run = Auto(tiny.target, tiny.drafter, rule=rules.block, seconds=FREE)
  state = tiny.prefill(new=12, sampling=dict(temperature=0.0))
  state, _ = run(state)
  assert outputs_of(state) == [tiny.greedy(p, 12) for p in tiny.PROMPTS]
