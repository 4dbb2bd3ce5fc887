"""Cutting blocks, greedy equality, bad numbers, masks, log-probs, books."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import engine, rules
from specjax import sampling as samplings
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.states import outputs_of, refill, texts_of
from specjax.stops import stop_table
from specjax.testing.law import sampling_law
from specjax.types import (
    BUDGET,
    END,
    NONFINITE,
    RUNNING,
    STOP,
    Rows,
    Stop,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")
W = 4


class TestCut:
  """Against a loop over tokens; 0 is plain, 1 ends, 3 then 2 spell "ab"."""

  BYTES = [b"x", b"", b"b", b"a", b"ab"]
  OLD = 2  # output tokens before the block

  def expected(self, tokens, count, limit, min_new, bad, state):
    text = "a" if state else ""
    for i, token in enumerate(tokens[: count - bad]):
      text += self.BYTES[token].decode()
      new = self.OLD + i + 1
      hit = "ab" in text
      text = text[-1:]
      if token == 1:
        return i + 1, END, text == "a"
      if hit and new >= min_new:
        return i + 1, STOP, text == "a"
      if new >= limit:
        return i + 1, BUDGET, text == "a"
    return count - bad, NONFINITE if bad else RUNNING, text == "a"

  def cases(self):
    """All blocks of four, with every other argument drawn anew for each."""
    rng = np.random.default_rng(0)
    for tokens in itertools.product(range(5), repeat=W):
      for count in range(1, W + 1):
        limit, min_new = rng.integers(self.OLD + 1, 8), rng.integers(0, 7)
        yield tokens, count, limit, min_new, rng.random() < 0.2, rng.integers(2)

  def run(self, cases, frozen=0, mask=1):
    columns = [np.array(x, np.int32) for x in zip(*cases)]
    tokens, count, limit, min_new, bad, state = columns
    N = len(count)
    following, hit = stop_table(["ab"], self.BYTES)
    s = samplings.params(N, min_new=min_new)
    full = lambda n: np.full(N, n, np.int32)
    rows = Rows(**dict.fromkeys(Rows._fields))._replace(
        length=full(10 + self.OLD), prompt=full(10), limit=limit + 10,
        finish=full(frozen), sampling=s, eos=np.full((N, 2), [1, -1]),
        stop=Stop(state, full(mask), jnp.array(following), jnp.array(hit)),
    )
    finite = np.arange(W) != np.where(bad, count - 1, -1)[:, None]
    return map(np.asarray, jax.jit(engine.cut)(rows, tokens, count, finite))

  def test_every_end_at_every_place_and_their_ties(self):
    cases = list(self.cases())
    kept, finish, state = self.run(cases)
    want = [self.expected(*case) for case in cases]
    got = np.stack([kept, finish, state == 1], 1)
    np.testing.assert_array_equal(got, want)
    assert set(finish) == {RUNNING, END, STOP, BUDGET, NONFINITE}

  def test_frozen_rows_keep_nothing(self):
    kept, finish, _ = self.run(list(self.cases()), frozen=STOP)
    assert not kept.any() and (finish == STOP).all()

  def test_a_stop_string_counts_only_for_rows_that_ask(self):
    _, finish, _ = self.run(list(self.cases()), mask=2)
    assert STOP not in finish


@pytest.fixture(scope="module")
def greedy(tiny):
  return [tiny.greedy(p, 16) for p in tiny.PROMPTS]


@pytest.mark.parametrize(
    "drafter", [None, NGram(3), Nothing(1), Nothing(2)],
    ids=["autoregressive", "ngram", "nothing", "two-wide"],
)
def test_greedy_text_is_that_of_the_naive_decoder(tiny, greedy, drafter):
  state = tiny.prefill(drafter=drafter, sampling={"temperature": 0.0})
  assert tiny.outputs(state, drafter=drafter) == greedy


def test_greedy_text_is_the_same_under_the_block_rule(tiny, greedy):
  state = tiny.prefill(sampling={"temperature": 0.0})
  assert tiny.outputs(state, rule=rules.block) == greedy


@pytest.mark.parametrize("budgets", [[1, 2, 3, 4], [5, 6, 1, 5]])
def test_budgets_are_met_exactly(tiny, greedy, budgets):
  state = tiny.prefill(new=budgets, sampling={"temperature": 0.0})
  state, _ = engine.generate(tiny.target, tiny.drafter, state)
  assert outputs_of(state) == [t[:n] for t, n in zip(greedy, budgets)]
  assert (np.asarray(state.rows.finish) == BUDGET).all()


def test_width_is_a_rows_own_and_changes_no_greedy_text(tiny, greedy):
  width = [0, 1, 2, 3]
  state = tiny.prefill(width=width, sampling={"temperature": 0.0})
  state, tally = engine.generate(tiny.target, tiny.drafter, state)
  assert outputs_of(state) == greedy
  drafted, rounds = tally.info.drafted, tally.info.rounds
  assert np.all(np.asarray(drafted) <= np.asarray(rounds) * width)
  assert rounds[0] == 16 and drafted[0] == 0, "width 0 is plain decoding"


def test_the_end_token_stays_and_nothing_follows(tiny, greedy):
  for place in range(1, 6):
    end = greedy[2][place]
    state = tiny.rich(eos=[end], sampling={"temperature": 0.0})
    state, _ = engine.generate(tiny.target, tiny.drafter, state)
    for text, want, why in zip(outputs_of(state), greedy, state.rows.finish):
      if end in want:
        assert text == want[: want.index(end) + 1] and why == END
      else:
        assert text == want and why == BUDGET


def test_stop_strings_end_the_rows_that_ask(tiny):
  """The second and third greedy tokens of row 1 spell the stop string."""
  sampling = {"temperature": 0.0, "banned": [0]}
  free = tiny.outputs(tiny.rich(sampling=sampling))
  a, b = free[1][1:3]
  letters = [bytes([97 + i]) for i in range(26)] + [b"?"] * 6
  names = [b"", *letters[1:]]
  names[a], names[b] = b"<", b">"
  spell = names[a] + names[b] if a != b else names[a] * 2
  table = stop_table([spell], names)
  state = tiny.rich(stop=table, stop_mask=[0, 1, 0, 1], sampling=sampling)
  state, _ = engine.generate(tiny.target, tiny.drafter, state)
  for i, (got, want) in enumerate(zip(outputs_of(state), free)):
    text = b""
    for n, token in enumerate(want, 1):
      text += names[token]
      if i in (1, 3) and spell in text:
        assert got == want[:n] and state.rows.finish[i] == STOP
        break
    else:
      assert got == want and state.rows.finish[i] == BUDGET
  assert state.rows.finish[1] == STOP


class TestBadNumbers:
  """The embedding of one token is NaN: so are all logits after it."""

  BAD = 30

  @pytest.fixture(scope="class")
  @classmethod
  def poisoned(cls, tiny):
    from specjax.testing.pair import decoder

    target = decoder(tiny.V, layers=2)
    table = target.embedding[...]
    target.embedding[...] = table.at[cls.BAD].set(jnp.nan)
    return target

  def start(self, tiny, temperature, wanted):
    """Row 1 writes the bad token at once where `wanted`, others never do."""
    push = {self.BAD: 60.0}
    return tiny.rich(
        sampling={
            "temperature": temperature,
            "bias": [{31: 0.0}, push if wanted else None, None, None],
            "banned": [[self.BAD], [], [self.BAD], [self.BAD]],
        },
    )

  @pytest.mark.parametrize("rule", [rules.token, rules.block])
  def test_a_drafter_without_a_law_changes_no_greedy_text(self, tiny, rule):
    from specjax.drafters.autoregressive import Autoregressive
    from specjax.testing.pair import decoder

    model = decoder(tiny.V, layers=2, boost=4.0)
    table = model.embedding[...]
    model.embedding[...] = table.at[jnp.arange(10)].set(jnp.nan)
    drafter = Autoregressive(model, tiny.K)
    state = tiny.prefill(drafter=drafter, sampling=dict(temperature=0.0))
    texts = tiny.outputs(state, drafter=drafter, rule=rule)
    for prompt, text in zip(tiny.PROMPTS, texts):
      assert text == tiny.greedy(prompt, 16)

  @pytest.mark.parametrize("temperature", [0.0, 1.0])
  @pytest.mark.parametrize("rule", [rules.token, rules.block])
  def test_only_the_row_ends_and_it_can_be_refilled(
      self, tiny, poisoned, temperature, rule
  ):
    healthy = tiny.outputs(self.start(tiny, temperature, True), rule=rule)
    state, tally = engine.generate(
        poisoned, tiny.drafter, self.start(tiny, temperature, True), rule=rule
    )
    texts, finish = outputs_of(state), np.asarray(state.rows.finish)
    assert texts[1] == [self.BAD] and finish[1] == NONFINITE
    others = [0, 2, 3]
    assert [texts[i] for i in others] == [healthy[i] for i in others]
    assert NONFINITE not in finish[others]
    assert all(np.isfinite(x).all() for x in tally.info)
    assert np.isnan(state.cache[0].k[1]).any(), "or the test tests nothing"
    again = dict(
        max_new_tokens=8, seed=5, eos=[0], chunks=(8,),
        sampling=dict(temperature=temperature, banned=[self.BAD]),
    )
    prompt = [4, 5, 6]
    state = refill(
        poisoned, tiny.drafter, state, [None, prompt, None, None], **again
    )
    fresh = tiny.rich(
        [[1], prompt, [1], [1]], 8, seed=5,
        sampling=again["sampling"] | {"bias": None},
    )
    got = outputs_of(engine.generate(poisoned, tiny.drafter, state,
                                     rule=rule)[0])
    assert got[1] == tiny.outputs(fresh, rule=rule)[1]


def alternate(rows, window):
  """After an even token only odd ones, and the other way round."""
  vocab = jnp.arange(32)
  return (window[..., None] + vocab) % 2 == 1


def test_a_mask_is_obeyed_inside_blocks(tiny):
  state = tiny.prefill(sampling={"temperature": [0.0, 1.0, 1.0, 2.0]})
  state, tally = engine.generate(
      tiny.target, tiny.drafter, state, mask=alternate
  )
  for text, n in zip(texts_of(state), state.rows.prompt):
    tail = np.array(text[int(n) - 1 :])
    assert np.all((tail[1:] + tail[:-1]) % 2 == 1)
  assert np.asarray(tally.info.accepted).sum() > 0


SETTINGS = (
    dict(temperature=0.8, top_k=7, presence=0.5),
    dict(temperature=1.3, repetition=1.3, frequency=0.4, min_new=9),
    dict(temperature=0.0, repetition=1.7),
    dict(top_p=0.8, min_p=0.05, bias={3: 2.0, 31: 0.0}, banned=[9]),
)


@pytest.fixture(scope="module")
def written(tiny):
  """A finished batch with every optional buffer: (state, tally)."""
  names = samplings.DEFAULTS
  values = {n: [s.get(n, d) for s in SETTINGS] for n, d in names.items()}
  values["bias"] = [s.get("bias") for s in SETTINGS]
  values["banned"] = [s.get("banned", []) for s in SETTINGS]
  state = tiny.rich(sampling=values, seed=3)
  return engine.generate(tiny.target, tiny.drafter, state)


def each_output(state):
  """(row, slot, text) of every emitted token."""
  for i, (text, n) in enumerate(zip(texts_of(state), state.rows.prompt)):
    for slot in range(int(n), len(text)):
      yield i, slot, text


def test_sampled_logprobs_are_teacher_forced_laws(tiny, written):
  state, _ = written
  sampled, prompt = map(
      np.asarray, (state.rows.logprobs.sampled, state.rows.prompt)
  )
  for i, slot, text in each_output(state):
    n = prompt[i]
    logits = tiny.logits(text)[slot - 1]
    law = sampling_law(logits, SETTINGS[i], text[:n], text[n:slot], [0])
    want = np.log(law[text[slot]])
    assert sampled[i, slot] == pytest.approx(want, abs=2e-3)


def test_raw_and_top_logprobs_are_those_of_an_uncached_pass(tiny, written):
  state, _ = written
  kept = jax.tree.map(np.asarray, state.rows.logprobs)
  for i, slot, text in each_output(state):
    raw = tiny.logits(text)[slot - 1].astype(np.float64)
    raw = raw - np.log(np.exp(raw).sum())
    assert kept.raw[i, slot] == pytest.approx(raw[text[slot]], abs=1e-3)
    best = np.argsort(-raw)[:3]
    np.testing.assert_array_equal(kept.top_tokens[i, slot], best)
    np.testing.assert_allclose(kept.top[i, slot], raw[best], atol=1e-3)


def test_logprobs_of_prompts_are_zero(written):
  state, _ = written
  for row, n in zip(np.asarray(state.rows.logprobs.raw), state.rows.prompt):
    assert not row[: int(n)].any()


def test_counts_are_those_of_the_text(tiny, written):
  state, _ = written
  for i, (text, n) in enumerate(zip(texts_of(state), state.rows.prompt)):
    for part, got in zip(
        (text[: int(n)], text[int(n) :]), np.asarray(state.rows.counts[i])
    ):
      np.testing.assert_array_equal(got, np.bincount(part, minlength=tiny.V))


def test_books_balance(tiny, written):
  state, tally = written
  info = jax.tree.map(np.asarray, tally.info)
  outputs = list(map(len, outputs_of(state)))
  np.testing.assert_array_equal(info.emitted, outputs)
  np.testing.assert_array_equal(
      info.accepted + info.rounds - info.dropped, info.emitted
  )
  assert np.all(info.accepted <= info.drafted)
  assert np.all(info.drafted <= info.rounds * tiny.K)
  assert np.all(info.rounds <= tally.steps)
  np.testing.assert_array_equal(info.passed.sum(1), info.accepted)
  assert np.all(info.passed <= info.reached)
  assert np.all(info.reached.sum(1) <= info.drafted)
  assert np.all((0 <= info.overlap) & (info.overlap <= info.reached + 1e-4))
  assert 0 < info.accepted.sum() < info.drafted.sum()


def test_end_tokens_wait_for_min_new(written):
  state, _ = written
  text = outputs_of(state)[1]
  assert len(text) >= 9 and 0 not in text[:9]


class TestInvariance:
  """A row's text is its own, in float32."""

  SAMPLING = dict(temperature=[1.0, 0.7, 0.0, 1.3], top_p=[1.0, 0.9, 1.0, 0.8])

  @pytest.fixture(scope="class")
  @classmethod
  def texts(cls, tiny):
    return tiny.outputs(tiny.prefill(sampling=cls.SAMPLING, seed=9))

  def test_batch_mates_do_not_matter(self, tiny, texts):
    order = [2, 0, 3, 1]
    prompts = [tiny.PROMPTS[i] for i in order]
    sampling = {k: [v[i] for i in order] for k, v in self.SAMPLING.items()}
    seeds = [9 + i for i in order]
    state = tiny.prefill(prompts, sampling=sampling, seed=seeds)
    assert tiny.outputs(state) == [texts[i] for i in order]
    for alone in range(4):
      prompts = [[30]] * 4
      prompts[alone] = tiny.PROMPTS[alone]
      mixed = {k: [v[alone]] * 4 for k, v in self.SAMPLING.items()}
      mixed["top_k"] = [0 if i == alone else 3 for i in range(4)]
      state = tiny.prefill(
          prompts, [16 if i == alone else 2 for i in range(4)],
          sampling=mixed, seed=[9 + alone] * 4,
      )
      assert tiny.outputs(state)[alone] == texts[alone]

  def test_chunk_widths_do_not_matter(self, tiny, texts):
    state = tiny.prefill(sampling=self.SAMPLING, seed=9, chunks=(3, 5))
    assert tiny.outputs(state) == texts

  @pytest.mark.parametrize("kind", ["autoregressive", "ngram"])
  def test_what_lies_above_a_row_does_not_matter(self, tiny, kind):
    drafter = None if kind == "autoregressive" else NGram(3)
    make = lambda: tiny.prefill(
        drafter=drafter, sampling=self.SAMPLING, seed=9
    )
    state = make()
    rows, last = state.rows, state.last
    slot = jnp.arange(64)
    dirty = lambda x, ends: jnp.where(
        (slot >= ends[:, None])[:, None, :, None], jnp.finfo(x.dtype).max, x
    )
    window = jnp.arange(last.tokens.shape[1]) < last.count[:, None]
    state = state._replace(
        rows=rows._replace(
            tokens=jnp.where(
                slot < rows.length[:, None], rows.tokens, 2**31 - 1
            )
        ),
        cache=jax.tree.map(lambda x: dirty(x, rows.length - 1), state.cache),
        draft=jax.tree.map(lambda x: dirty(x, last.start), state.draft),
        last=last._replace(tokens=jnp.where(window, last.tokens, 2**31 - 1)),
    )
    want = tiny.outputs(make(), drafter=drafter)
    assert tiny.outputs(state, drafter=drafter) == want

  def test_rounds_and_idle_only_pause(self, tiny, texts):
    state = tiny.prefill(sampling=self.SAMPLING, seed=9)
    state, tally = engine.generate(tiny.target, tiny.drafter, state, rounds=2)
    assert tally.steps == 2
    state, _ = engine.generate(tiny.target, tiny.drafter, state, idle=0)
    assert (np.asarray(state.rows.finish) != RUNNING).any()
    assert tiny.outputs(state) == texts


class TestWidths:
  """A drafter with less to say makes narrower passes for a single row."""

  def test_a_silent_round_is_a_pass_of_one_token(self, tiny):
    shapes = []

    class Watched:
      """The target, noting how wide its windows are."""

      def __init__(self, inner):
        self.inner = inner
        self.__dict__.update(vocab=inner.vocab, max_length=None, opening=None)

      def __getattr__(self, name):
        return getattr(self.inner, name)

      def __call__(self, tokens, *rest):
        shapes.append(tokens.shape[1])
        return self.inner(tokens, *rest)

    state = tiny.prefill([[7]], drafter=NGram(3))
    engine.step(Watched(tiny.target), NGram(3), state)
    assert shapes == [1, 4]
    shapes.clear()
    state = tiny.prefill(drafter=NGram(3))
    engine.step(Watched(tiny.target), NGram(3), state)
    assert shapes == [4]

  @pytest.mark.parametrize("prompt", [[7], [5, 6] * 8])
  def test_texts_and_counts_are_those_of_one_width(self, tiny, prompt):
    class Wide(NGram):
      widths = (3,)

    found = []
    for drafter in (NGram(3), Wide(3)):
      state = tiny.prefill([prompt], 40, drafter=drafter, capacity=128,
                           sampling=dict(temperature=0.5), seed=3)
      found.append(engine.generate(tiny.target, drafter, state))
    (a, few), (b, many) = found
    assert outputs_of(a) == outputs_of(b)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), few, many
    )
    assert few.info.drafted.sum() > 0
    assert (np.asarray(few.info.drafted) < 3 * np.asarray(few.steps)).all()
