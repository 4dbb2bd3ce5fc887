"""New prompts, further turns, shorter texts, copies; and what is refused."""

import jax
import numpy as np
import pytest

from specjax import engine
from specjax.drafters.autoregressive import Autoregressive
from specjax.states import (
    fork,
    outputs_of,
    prefill,
    refill,
    resume,
    rewind,
    texts_of,
)
from specjax.stops import stop_table
from specjax.testing.pair import decoder
from specjax.types import BUDGET, RUNNING

pytestmark = pytest.mark.usefixtures("quick_compiles")
SAMPLING = dict(temperature=[1.0, 0.7, 0.0, 1.3])
GREEDY = dict(temperature=0.0)
CHUNKS = dict(chunks=(8,))


@pytest.fixture
def run(tiny):
  def run(change, state, *args, **options):
    return change(tiny.target, tiny.drafter, state, *args, **CHUNKS | options)

  return run


def copy(state):
  return jax.tree.map(lambda x: x.copy(), state)


def same_cache(state, other):
  """Keys and values that are final are equal, in target and drafter."""
  ends = np.asarray(state.rows.length) - 1
  np.testing.assert_array_equal(ends, np.asarray(other.rows.length) - 1)
  below = np.minimum(state.last.start, other.last.start)
  for part, final in (("cache", ends), ("draft", below)):
    pairs = zip(*(jax.tree.leaves(getattr(s, part)) for s in (state, other)))
    for a, b in pairs:
      for i, n in enumerate(final):
        np.testing.assert_allclose(a[i, :, :n], b[i, :, :n], atol=1e-4)


class TestRefill:
  NEW = dict(max_new_tokens=9, seed=70, sampling=dict(temperature=0.8))

  def test_other_rows_go_on_and_the_new_one_is_as_if_alone(self, tiny, run):
    start = lambda: tiny.prefill(sampling=SAMPLING, seed=5)
    want = tiny.outputs(start())
    state, _ = engine.generate(tiny.target, tiny.drafter, start(), rounds=2)
    prompt = list(range(20, 3, -1))
    state = run(refill, state, [None, prompt, None, None], **self.NEW)
    assert (np.asarray(state.rows.finish) == RUNNING).any()
    got = tiny.outputs(state)
    fresh = tiny.prefill(
        [[1], prompt, [1], [1]], 9, seed=70, sampling=dict(temperature=0.8)
    )
    assert got == [want[0], tiny.outputs(fresh)[1], want[2], want[3]]

  def test_a_one_token_prompt_after_a_long_text(self, tiny, run):
    state, _ = engine.generate(
        tiny.target, tiny.drafter, tiny.prefill(sampling=SAMPLING)
    )
    state = run(refill, state, [[11]] * 4, max_new_tokens=9, sampling=GREEDY)
    assert tiny.outputs(state) == [tiny.greedy([11], 9)] * 4

  def test_buffers_start_anew(self, tiny, run):
    state, _ = engine.generate(tiny.target, tiny.drafter, tiny.rich())
    state = run(
        refill, state, [None, [3, 3, 4], None, None], max_new_tokens=4,
        eos=[0],
    )
    counts = np.zeros((2, tiny.V))
    counts[0, 3:5] = 2, 1
    np.testing.assert_array_equal(state.rows.counts[1], counts)
    assert not np.asarray(state.rows.logprobs.raw[1]).any()
    assert np.asarray(state.rows.logprobs.raw[0]).any()
    assert state.rows.stop.state[1] == 0


class TestResume:
  @pytest.fixture(scope="class")
  @classmethod
  def turn(cls, tiny):
    """A finished turn and what the user says next."""
    state, _ = engine.generate(
        tiny.target, tiny.drafter,
        tiny.prefill(new=[2, 9, 4, 6], sampling=SAMPLING),
    )
    return state, [[8], [1, 2, 3], [4] * 11, [9, 9]]

  def test_it_is_one_prefill_of_the_joined_text(self, tiny, run, turn):
    old, new = turn
    joined = [a + b for a, b in zip(texts_of(old), new)]
    state = run(
        resume, copy(old), new, max_new_tokens=7, sampling=GREEDY
    )
    fresh = tiny.prefill(joined, 7, sampling=GREEDY)
    np.testing.assert_array_equal(state.rows.prompt, fresh.rows.prompt)
    same_cache(state, fresh)
    assert tiny.outputs(state) == tiny.outputs(fresh)

  def test_rows_left_alone_keep_their_text(self, tiny, run, turn):
    old, _ = turn
    before = texts_of(old)
    state = run(
        resume, copy(old), [None, [5], None, None], max_new_tokens=3,
        sampling=GREEDY,
    )
    state, _ = engine.generate(tiny.target, tiny.drafter, state)
    after = texts_of(state)
    assert [after[i] for i in (0, 2, 3)] == [before[i] for i in (0, 2, 3)]
    assert after[1] == before[1] + [5] + tiny.greedy(before[1] + [5], 3)

  def test_nothing_new_goes_on_with_another_budget(self, tiny, run, turn):
    old, _ = turn
    state = run(resume, copy(old), [[]] * 4, max_new_tokens=3, sampling=GREEDY)
    want = [tiny.greedy(t, 3) for t in texts_of(old)]
    assert tiny.outputs(state) == want


class TestRewind:
  @pytest.mark.parametrize("cut", [[1, 1, 1, 1], [2, 4, 12, 20], [1, 3, 5, 16]])
  def test_it_is_a_fresh_prefill_of_the_shorter_text(self, tiny, run, cut):
    state, _ = engine.generate(
        tiny.target, tiny.drafter, tiny.prefill(sampling=GREEDY)
    )
    short = [t[:n] for t, n in zip(texts_of(state), cut)]
    limit = np.asarray(state.rows.limit)
    state = run(rewind, state, cut)
    left = [int(m - n) for m, n in zip(limit, cut)]
    fresh = tiny.prefill(short, left, sampling=GREEDY)
    same_cache(state, fresh)
    final, _ = engine.generate(tiny.target, tiny.drafter, state)
    want, _ = engine.generate(tiny.target, tiny.drafter, fresh)
    assert texts_of(final) == texts_of(want)

  def test_a_row_without_budget_does_not_run_again(self, tiny, run):
    state, _ = engine.generate(tiny.target, tiny.drafter, tiny.prefill())
    before = texts_of(state)
    state = run(rewind, state, [len(t) for t in before])
    assert (np.asarray(state.rows.finish) == BUDGET).all()
    state, _ = engine.generate(tiny.target, tiny.drafter, state)
    assert texts_of(state) == before

  def test_buffers_follow(self, tiny, run):
    state, _ = engine.generate(tiny.target, tiny.drafter, tiny.rich())
    texts = texts_of(state)
    cut = [len(t) - 1 for t in texts]
    prompt = [len(p) for p in tiny.PROMPTS]
    state = run(rewind, state, cut)
    for i, (text, n) in enumerate(zip(texts, cut)):
      np.testing.assert_array_equal(
          state.rows.counts[i],
          [
              np.bincount(text[: prompt[i]], minlength=tiny.V),
              np.bincount(text[prompt[i] : n], minlength=tiny.V),
          ],
      )
    tiny.outputs(state)


class TestFork:
  def test_equal_seeds_write_equal_texts_and_others_do_not(self, tiny):
    state = tiny.rich(sampling=dict(temperature=1.5))
    index, seed = [3, 3, 3, 1], [8, 8, 9, 8]
    copies = tiny.outputs(fork(state, index, seed))
    assert copies[0] == copies[1] != copies[2]
    again = tiny.outputs(fork(state, [3, 1, 0, 2], [8, 8, 8, 8]))
    assert [again[0], again[1]] == [copies[0], copies[3]]
    tiny.outputs(state)  # the original was not donated with its copies

  def test_a_fork_with_the_old_seeds_is_the_original(self, tiny):
    state = tiny.prefill(sampling=SAMPLING, seed=4)
    copies = tiny.outputs(fork(state, [0, 1, 2, 3], 4))
    assert copies == tiny.outputs(state)

  def test_a_batch_may_grow(self, tiny):
    state = fork(tiny.prefill(), [2] * 6, 0)
    assert texts_of(state) == [list(tiny.PROMPTS[2])] * 6


class TestRefusals:
  """Every mistake gets one sentence that names it."""

  @pytest.mark.parametrize(
      "options, text",
      [
          (dict(prompts=[[1], [], [1], [1]]), "prompt of row 1: it is empty"),
          (dict(prompts=[]), "no prompts; give at least one"),
          (dict(prompts=[[1], None, [1], [1]]), "a prompt is None"),
          (dict(prompts=[[1], [32], [1], [1]]), "token 32 .* 0 to 31"),
          (dict(prompts=[[1], [1, -1], [1], [1]]), "row 1: token -1"),
          (dict(prompts=[[1.0]] * 4), "row 0: give a list of token ids"),
          (dict(prompts=[["a"]] * 4), "row 0: give a list of token ids"),
          (dict(prompts=[[[1]]] * 4), "row 0: give a list of token ids"),
          (dict(prompts=[[True]] * 4), "row 0: give a list of token ids"),
          (dict(prompts=[[[1], [2, 3]]] * 4), "row 0: give a list"),
          (dict(prompts=["text"] * 4), "row 0: give a list of token ids"),
          (dict(new=0), "max_new_tokens = 0 in row 0; it must lie in 1"),
          (dict(new=[1, 1, 1, -1]), "max_new_tokens = -1 in row 3"),
          (dict(new=[1, 1]), "max_new_tokens.*each of 4 rows"),
          (dict(new=2.5), "max_new_tokens = 2.5: give one whole number"),
          (dict(new=[1, 2, [3], 4]), "max_new_tokens.*whole number"),
          (dict(new=True), "max_new_tokens = True"),
          (dict(new=60), "capacity = 64 is too small; .* need 84 slots"),
          (dict(capacity=10), "capacity = 10"),
          (dict(width=4), "width = 4 in row 0; it must lie in 0..3"),
          (dict(width=[0, -1, 0, 0]), "width = -1 in row 1"),
          (dict(seed=-1), "seed = -1: seeds are whole numbers"),
          (dict(seed=2**64), "seeds are whole numbers between"),
          (dict(seed=1.5), "seed = 1.5"),
          (dict(seed=[1, 2]), "2 seeds for 4 rows"),
          (dict(seed=["a"] * 4), "whole numbers"),
          (dict(eos=[32]), "eos = .32.: give token ids between 0 and 31"),
          (dict(eos=[1.5]), "eos"),
          (dict(eos=[-1]), "eos"),
          (dict(logprobs=-1), "logprobs = -1 in row 0; it must lie in 0..32"),
          (dict(logprobs=33), "logprobs = 33"),
          (dict(chunks=()), "chunks"),
          (dict(chunks=(0, 8)), "chunks"),
          (dict(stop_mask=2**31), "stop_mask"),
          (dict(sampling=dict(top_p=0)), "top_p = 0 in row 0"),
          (dict(sampling=dict(heat=1)), "'heat' is unknown"),
      ],
      ids=lambda x: str(x)[:40],
  )
  def test_of_prefill(self, tiny, options, text):
    with pytest.raises(ValueError, match=text) as error:
      tiny.prefill(**options)
    assert "\n" not in str(error.value)

  def test_a_foreign_vocabulary_is_refused_with_both_numbers(self, tiny):
    stranger = Autoregressive(decoder(5), 2)
    with pytest.raises(ValueError, match="5 tokens, the target's 32"):
      prefill(tiny.target, stranger, [[1]], max_new_tokens=1)

  def test_a_stop_table_of_a_larger_vocabulary_is_refused(self, tiny):
    with pytest.raises(ValueError, match="33 tokens.*vocabulary 32"):
      tiny.prefill(stop=stop_table(["a"], [b"a"] * 33))

  def test_ids_that_the_tokenizer_lacks_stop_nothing(self, tiny):
    """A model's table is often padded beyond the tokenizer's ids."""
    start = lambda n: tiny.rich(
        stop=stop_table([b"?"], tiny.BYTES[:n]), seed=1,
        sampling=dict(temperature=2.0),
    )
    want = tiny.outputs(start(32))
    assert any(t >= 10 for text in want for t in text)
    assert tiny.outputs(start(10)) == want

  @pytest.fixture(scope="class")
  @classmethod
  def state(cls, tiny):
    return tiny.prefill()

  @pytest.mark.parametrize("change", [refill, resume])
  @pytest.mark.parametrize(
      "prompts, options, text",
      [
          ([[1]], {}, "give a list of 4"),
          ([[99], None, None, None], {}, "row 0: token 99"),
          ([[1] * 60, None, None, None], {}, "row 0: .* do not fit its 64"),
          ([[1], None, None, None], dict(eos=[1, 2]), "eos: 2 end tokens"),
          ([[1], None, None, None], dict(width=9), "width = 9"),
          (
              [[1], None, None, None],
              dict(sampling=dict(presence=1.0)),
              "penalties were not foreseen",
          ),
          (
              [[1], None, None, None],
              dict(sampling=dict(bias={1: 1.0})),
              "bias or bans were not foreseen",
          ),
      ],
      ids=lambda x: str(x)[:30],
  )
  def test_of_new_prompts(self, run, state, change, prompts, options, text):
    with pytest.raises(ValueError, match=text):
      run(change, state, prompts, **dict(max_new_tokens=1) | options)

  def test_of_refill_with_an_empty_prompt(self, run, state):
    with pytest.raises(ValueError, match="it is empty"):
      run(refill, state, [None, [], None, None], max_new_tokens=1)

  @pytest.mark.parametrize(
      "lengths, text",
      [
          ([1, 1, 1], "give 4 lengths"),
          ([1.0, 1, 1, 1], "whole number"),
          ([0, 1, 1, 1], "length 0 of row 0 must lie in 1..1"),
          ([1, 1, 10, 1], "length 10 of row 2 must lie in 1..9"),
      ],
  )
  def test_of_rewind(self, run, state, lengths, text):
    with pytest.raises(ValueError, match=text):
      run(rewind, state, lengths)

  def test_of_rewind_into_a_window_that_does_not_fit(self, run, state):
    with pytest.raises(ValueError, match="does not fit its 64 slots"):
      run(rewind, state, [1] * 4, chunks=(60,))

  @pytest.mark.parametrize("index", [[], [4], [-1], [[0]], [0.5]])
  def test_of_fork(self, state, index):
    with pytest.raises(ValueError, match="rows from 0 to 3"):
      fork(state, index, 0)

  def test_of_fork_with_too_few_seeds(self, state):
    with pytest.raises(ValueError, match="1 seeds for 2 rows"):
      fork(state, [0, 1], [1])

  def test_what_was_refused_changed_nothing(self, tiny, state):
    assert texts_of(state) == [list(p) for p in tiny.PROMPTS]
    assert len(tiny.outputs(copy(state))[0]) == 16


def test_numpy_prompts_and_scalars_are_welcome(tiny):
  prompts = [np.array(p, np.int64) for p in tiny.PROMPTS]
  state = tiny.prefill(prompts, np.int64(16), seed=np.uint32(3))
  assert texts_of(state) == [list(p) for p in tiny.PROMPTS]
  assert outputs_of(state) == [[]] * 4


def test_an_int_seed_gives_row_i_that_seed_plus_i(tiny):
  one, each = (tiny.prefill(seed=s).rows.key for s in (7, [7, 8, 9, 10]))
  np.testing.assert_array_equal(
      jax.random.key_data(one), jax.random.key_data(each)
  )
