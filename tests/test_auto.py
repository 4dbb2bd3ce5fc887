"""K chosen while it runs: the text stays, the law stays, the choice is good."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import auto, engine, rules, sharding, states
from specjax.auto import PATIENCE, Auto, Track
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.sharding import spec
from specjax.states import fork, outputs_of, prefill
from specjax.testing import Bigram, chi_square, decoder, joint_law
from specjax.testing.law import count
from specjax.types import RUNNING, Draft

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
  if seconds is not EVEN:
    assert used == ({3} if seconds is FREE else {0, 1})


def drafts_of(tiny, drafter, state, texts):
  """(what is drafted after reading the texts anew, what `state` drafts)."""
  fresh = tiny.prefill(
      texts, 12, drafter=drafter, sampling=dict(temperature=0.0), capacity=128
  )
  propose = jax.jit(engine.propose)
  return (propose(tiny.target, drafter, s)[0] for s in (fresh, state))


def test_a_drafter_that_rested_misses_nothing(tiny):
  """What it drafts next is what it drafts after reading the text anew."""
  run = Auto(tiny.target, tiny.drafter, seconds=DEAR)
  greedy = dict(temperature=0.0)
  state = tiny.prefill(new=30, sampling=greedy, capacity=128)
  for rounds in (2, 7, 9):
    state, _ = run(state, rounds=rounds)
    state = states.caught_up(tiny.target, tiny.drafter, state)
    texts = outputs_of(state)
    whole = [[*p, *t] for p, t in zip(tiny.PROMPTS, texts)]
    want, got = drafts_of(tiny, tiny.drafter, state, whole)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)
  assert run.rounds[0] == 18


@pytest.mark.parametrize("how", [states.resume, states.rewind])
def test_a_text_that_changes_hands_is_read_first(tiny, how):
  """After rounds without drafts, resumed or shortened, nothing is missing."""
  run = Auto(tiny.target, tiny.drafter, seconds=DEAR)
  greedy = dict(temperature=0.0)
  state, _ = run(tiny.prefill(new=30, sampling=greedy, capacity=128), rounds=17)
  assert (np.asarray(state.last.count) > tiny.K + 1).all()
  texts = states.texts_of(state)
  if how is states.resume:
    texts = [[*t, 3, 1] for t in texts]
    state = states.resume(
        tiny.target, tiny.drafter, state, [[3, 1]] * tiny.B,
        max_new_tokens=12, sampling=greedy, chunks=(8,),
    )
  else:
    texts = [t[:-3] for t in texts]
    state = states.rewind(
        tiny.target, tiny.drafter, state, [len(t) for t in texts]
    )
  want, got = drafts_of(tiny, tiny.drafter, state, texts)
  np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)


def test_off_where_drafts_do_not_pay_and_tried_again(tiny, caplog):
  run = Auto(tiny.target, tiny.drafter, seconds=DEAR)
  state = tiny.prefill(new=110, capacity=256)
  with caplog.at_level(logging.WARNING, "specjax"):
    run(state)
  assert run.rounds[0] > PATIENCE[0]
  assert run.rounds[1] in (auto.TRIAL, 2 * auto.TRIAL)
  assert run.rounds[2] == run.rounds[3] == 0
  assert len(caplog.records) == 1
  assert "do not pay at batch 4; off" in caplog.text


def test_the_choice_follows_what_passes_row_by_row():
  seen = Track(np.zeros(2), np.zeros(2))
  for _ in range(20):
    seen = auto.learn(seen, np.array([7.0, 0]), np.array([8.0, 1]), 1)
  none = Track(0.0, 0.0)
  high, low = auto.acceptance(seen, none)
  assert high > 0.8 and low < 0.3
  rate = auto.rates(auto.acceptance(seen, none), EVEN)
  best = [max(rate, key=lambda K: rate[K][row]) for row in (0, 1)]
  assert best == [3, 0]
  # Fresh rows are believed to be like those before them.
  fresh = auto.acceptance(auto.track(1), Track(70.0, 80.0))
  assert fresh[0] == pytest.approx(70 / 80, abs=0.02)


def test_what_was_long_ago_is_forgotten():
  seen = auto.learn(auto.track(1), np.array([50.0]), np.array([50.0]), 1)
  for _ in range(60):
    seen = auto.learn(seen, np.array([0.0]), np.array([1.0]), 1)
  assert auto.acceptance(seen, Track(0.0, 0.0))[0] < 0.4


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
  seconds, window = run.costs(state)
  assert set(seconds) == {0, 1, 2, 3} and window in (1, 2)
  assert min(seconds.values()) > 0
  run(state)  # not donated by the calibration


# -- the law -----------------------------------------------------------------

ROWS, HORIZON = 65_536, 4
PAIR = decoder(), Bigram(5, K=2)
PROMPT = [0, 1, 2, 3, 4, 0]


def chosen(seen, draft):
  """Each row's width by the shipped policy, from what was judged before."""
  alpha = auto.acceptance(seen, Track(0.0, 0.0))
  rate = auto.rates(alpha, {0: 1.0, 1: 1.32, 2: 1.5})
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


@pytest.mark.parametrize("rule", [rules.token, rules.block])
def test_its_own_rounds_keep_the_law(monkeypatch, rule):
  """Rests, trials and drafts in turn, round by round, at temperature 1."""
  monkeypatch.setattr(auto, "PATIENCE", (1, 1))
  monkeypatch.setattr(auto, "TRIAL", 1)
  run = Auto(*PAIR, rule=rule, seconds={0: 1.0, 1: 3.0, 2: 4.0})
  run._patience = 1
  start = prefill(
      *PAIR, [PROMPT], max_new_tokens=HORIZON + 2, chunks=(4,), capacity=16,
  )
  state = fork(start, np.zeros(ROWS, int), 0)
  while int(state.rows.length.min()) < len(PROMPT) + HORIZON:
    state, _ = run(state, rounds=1)
  assert run.rounds[0] and run.rounds[1]
  observed = np.array([t[:HORIZON] for t in outputs_of(state)])
  assert p_value(observed) > 1e-9


class Tapped(nnx.Module):
  """Drafts by all features that it was ever handed, place by place."""

  taps, vocab, max_length = (1,), None, None

  def __init__(self, K):
    self.K = K

  def init(self, target, source, capacity):
    B, F = source.tokens.shape[0], 16
    return jnp.zeros((B, capacity, F), out_sharding=spec("batch", None, None))

  def ingest(self, target, dstate, commit):
    return engine._write(dstate, commit.features, commit.start)

  def propose(self, target, state, keys):
    dstate = self.ingest(target, state.draft, state.last)
    real = jnp.arange(dstate.shape[1]) < state.rows.length[:, None]
    total = jnp.where(real[..., None], dstate, 0).sum(1)
    tokens = jnp.argsort(total, -1)[:, : self.K].astype(jnp.int32)
    full = jnp.full_like(state.rows.length, self.K)
    return Draft(tokens, None, full), state._replace(draft=dstate)


def test_features_of_rounds_without_drafts_reach_the_drafter(tiny):
  drafter, greedy = Tapped(3), dict(temperature=0.0)
  run = Auto(tiny.target, drafter, seconds=DEAR)
  state = tiny.prefill(
      new=30, drafter=drafter, sampling=greedy, capacity=128
  )
  for rounds in (3, 6):
    state, _ = run(state, rounds=rounds)
    whole = [[*p, *t] for p, t in zip(tiny.PROMPTS, outputs_of(state))]
    want, got = drafts_of(tiny, drafter, state, whole)
    np.testing.assert_array_equal(got.tokens, want.tokens)
  assert run.rounds == {0: 9, 1: 0, 2: 0, 3: 0}


def test_features_of_a_row_that_ended_while_others_rested(tiny):
  drafter, greedy = Tapped(3), dict(temperature=0.0)
  run = Auto(tiny.target, drafter, seconds=DEAR)
  state, _ = run(tiny.prefill(
      new=[6, 30, 30, 30], drafter=drafter, sampling=greedy, capacity=128
  ), rounds=15)
  texts = [[*t, 3, 1] for t in states.texts_of(state)]
  state = states.resume(
      tiny.target, drafter, state, [[3, 1]] * tiny.B, max_new_tokens=12,
      sampling=greedy, chunks=(8,),
  )
  want, got = drafts_of(tiny, drafter, state, texts)
  np.testing.assert_array_equal(got.tokens, want.tokens)


def test_a_rare_drafter_is_not_taken_for_a_good_one(tiny):
  """Rounds in which it had nothing to say are rounds that gained nothing."""
  run = Auto(tiny.target, NGram(3), seconds={0: 1.0, 1: 1.3, 2: 1.5, 3: 1.7})
  state = tiny.prefill(new=40, drafter=NGram(3), capacity=128)
  run(state)
  assert run.rounds[0] > sum(run.rounds[K] for K in (1, 2, 3))


def test_nothing_is_compiled_after_a_calibration(tiny):
  run = Auto(tiny.target, tiny.drafter, widths=(1,))
  state = tiny.prefill(new=60, capacity=128)
  run(fork(state, range(tiny.B), 0), rounds=1)
  sizes = lambda: [
      f._cache_size() for f in (engine.generate, auto.rest, states._catch_up)
  ]
  programs = sizes()
  run(fork(state, range(tiny.B), 1))
  dear = run._costs[state.rows.tokens.shape][0] | {1: 9.0, 3: 9.0}
  run._given = dear
  behind, _ = run(fork(state, range(tiny.B), 2), rounds=12)
  assert run.rounds[0] > 9
  assert (np.asarray(behind.last.count) > tiny.K + 1).all()
  run._given = dear | {1: 0.1}
  run(fork(behind, range(tiny.B), 3))  # reads what it missed
  assert sizes() == programs


def test_seconds_of_other_widths_are_refused(tiny):
  with pytest.raises(ValueError, match=r"give them for \[0, 1, 2, 3\]"):
    Auto(tiny.target, tiny.drafter, seconds={0: 1.0, 5: 2.0})


@pytest.mark.parametrize("wrong", [dict(widths=(0, 2)), dict(widths=(-1,))])
def test_widths_without_drafts_are_refused(tiny, wrong):
  with pytest.raises(ValueError, match="widths of at least 1"):
    Auto(tiny.target, tiny.drafter, **wrong)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2)])
def test_on_a_mesh(shape):
  with jax.set_mesh(sharding.mesh(*shape)):
    target = decoder(32, kv_heads=2)
    drafter = Autoregressive(decoder(32, kv_heads=2, boost=4.0), 2)
    state = prefill(
        target, drafter, [[7], [3, 9]], max_new_tokens=20, capacity=256,
        sampling=dict(temperature=0.0), chunks=(8,),
    )
    want = outputs_of(engine.generate(
        target, drafter, fork(state, [0, 1], 0)
    )[0])
    run = Auto(target, drafter, widths=())
    state, _ = run(state)
    assert outputs_of(state) == want
