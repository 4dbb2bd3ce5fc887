"""Targets with an encoder in the engine: rows begun, begun anew, copied, cut.

The reference is a naive decoder that reads source and text again for every
token.
"""

import jax
import numpy as np
import pytest

from specjax import engine, requests, serve, sharding, states
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.states import outputs_of, prefill, refill, resume, rewind, texts_of
from specjax.testing.pair import Bytes, decoder, encoder_decoder
from specjax.types import RUNNING

pytestmark = pytest.mark.usefixtures("quick_compiles")
V, K, NEW = 32, 3, 12
PROMPTS = [[7], [3, 9, 4], list(range(1, 10)), [5, 6] * 8 + [1]]
GREEDY = dict(temperature=0.0)
ROOM = dict(capacity=32, source_capacity=32, chunks=(8,))
DRAFTERS = {
    "encoder-decoder": lambda: Autoregressive(
        encoder_decoder(V, boost=5.0), K
    ),
    "decoder": lambda: Autoregressive(decoder(V), K),
    "ngram": lambda: NGram(K, 1),
    "nothing": lambda: Nothing(),
}


class Pair:
  """A target with the naive reading of it, and a drafter that often agrees."""

  def __init__(self):
    self.target = encoder_decoder(V)
    self.drafter = DRAFTERS["encoder-decoder"]()

  def begin(self, prompts=PROMPTS, new=NEW, *, drafter=None, **options):
    drafter = drafter or self.drafter
    return prefill(
        self.target, drafter, prompts, max_new_tokens=new, **ROOM | options
    )

  def outputs(self, state, drafter=None):
    state, self.tally = engine.generate(
        self.target, drafter or self.drafter, state
    )
    return outputs_of(state)

  def greedy(self, prompt, new=NEW):
    text = [0]
    for _ in range(new):
      tokens = np.zeros((1, 16), np.int32)
      tokens[0, : len(text)] = text
      logits = naive(self.target, np.array([prompt]), tokens)
      text.append(int(logits[0, len(text) - 1].argmax()))
    return text[1:]


@jax.jit
def naive(target, source, tokens):
  cache, _ = target.start(source, np.full(1, source.shape[1]), 16)
  hidden = target(tokens, np.zeros(1, np.int32), cache)[0]
  return target.head(target.norm(hidden))


@pytest.fixture(scope="module")
def pair():
  return Pair()


@pytest.fixture(scope="module")
def wanted(pair):
  return [pair.greedy(p) for p in PROMPTS]


def copy(state):
  return jax.tree.map(lambda x: x.copy(), state)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_texts_are_those_of_the_naive_decoder(pair, wanted, drafter):
  drafter = DRAFTERS[drafter]()
  state = pair.begin(sampling=GREEDY, drafter=drafter)
  assert texts_of(state) == [[0]] * 4 and (state.rows.prompt == 1).all()
  assert pair.outputs(state, drafter) == wanted


def test_the_drafter_reads_the_source(pair, wanted):
  pair.outputs(pair.begin(sampling=GREEDY))
  accepted = np.asarray(pair.tally.info.accepted).sum()
  drafter = DRAFTERS["decoder"]()
  pair.outputs(pair.begin(sampling=GREEDY, drafter=drafter), drafter)
  assert accepted > 2 * np.asarray(pair.tally.info.accepted).sum()


def test_a_row_begun_anew_is_as_if_fresh_and_others_go_on(pair):
  sampling = dict(temperature=[1.0, 0.7, 0.0, 1.3])
  want = pair.outputs(pair.begin(sampling=sampling, seed=5))
  state = pair.begin(sampling=sampling, seed=5)
  state, _ = engine.generate(pair.target, pair.drafter, state, rounds=2)
  assert (np.asarray(state.rows.finish) == RUNNING).all()
  new, each = [9, 2, 2, 8, 1], dict(seed=70, sampling=dict(temperature=0.8))
  state = refill(
      pair.target, pair.drafter, state, [None, new, None, None],
      max_new_tokens=9, chunks=(8,), **each,
  )
  fresh = pair.begin([[1], new, [1], [1]], 9, **each)
  for part in ("cache", "draft"):
    for a, b in zip(*(
        jax.tree.leaves(getattr(s, part).cross) for s in (state, fresh)
    )):
      np.testing.assert_allclose(a[1, :, :5], b[1, :, :5], atol=1e-5)
  fresh = pair.outputs(fresh)
  assert pair.outputs(state) == [want[0], fresh[1], want[2], want[3]]


@pytest.mark.parametrize("cut", [[1, 1, 1, 1], [1, 2, 6, 13]])
def test_rows_that_are_cut_write_the_same_again(pair, wanted, cut):
  state, _ = engine.generate(
      pair.target, pair.drafter, pair.begin(sampling=GREEDY)
  )
  state = rewind(pair.target, pair.drafter, state, cut, chunks=(8,))
  kept = [([0] + text)[:n] for text, n in zip(wanted, cut)]
  assert texts_of(state) == kept
  assert pair.outputs(state) == wanted


def test_copies_keep_their_source(pair, wanted):
  state = states.fork(pair.begin(sampling=GREEDY), [3, 3, 0, 2], 0)
  assert pair.outputs(state) == [wanted[i] for i in (3, 3, 0, 2)]


def test_penalties_count_what_is_written_only(pair):
  state = pair.begin(sampling=dict(repetition=1.5))
  prompt, output = np.asarray(state.rows.counts).swapaxes(0, 1)
  np.testing.assert_array_equal(prompt, np.eye(V, dtype=int)[[0] * 4])
  assert not output.any()


def test_rooms_of_sources_are_few(pair):
  sizes = [1, 15, 16, 17, 32, 33, 1000]
  got = [states.source_bucket(n) for n in sizes]
  assert got == [16, 16, 16, 32, 32, 64, 1024]
  state = pair.begin(source_capacity=None)
  assert state.rows.source.tokens.shape == (4, 32)
  assert state.cache.cross[0].k.shape[2] == 32


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(source_capacity=16), "source_capacity = 16 .* has 17 tokens"),
        (dict(source_capacity=0), "source_capacity = 0 .* lie in 1"),
        (dict(prompts=[[1], [], [1], [1]]), "prompt of row 1: it is empty"),
        (dict(prompts=[[1], [V], [1], [1]]), "row 1: token 32 is outside"),
        (dict(capacity=12), "capacity = 12 is too small"),
    ],
    ids=str,
)
def test_what_prefill_refuses(pair, options, text):
  with pytest.raises(ValueError, match=text):
    pair.begin(**options)


class TestRefusals:

  @pytest.fixture(scope="class")
  @classmethod
  def state(cls, pair):
    return pair.begin()

  def test_a_source_beyond_its_room(self, pair, state):
    with pytest.raises(ValueError, match="source_capacity = 32 .* 33 tokens"):
      refill(pair.target, pair.drafter, state, [None, [1] * 33, None, None],
             max_new_tokens=2, chunks=(8,))

  def test_another_turn(self, pair, state):
    with pytest.raises(ValueError, match="^resume: this target reads a prompt"):
      resume(pair.target, pair.drafter, state, [[1]] * 4, max_new_tokens=2)

  def test_a_source_for_a_decoder(self):
    with pytest.raises(ValueError, match="source_capacity is for targets with"):
      prefill(decoder(V), Nothing(), [[1]], max_new_tokens=1,
              source_capacity=16)

  def test_a_drafter_that_would_read_a_source_that_is_not_there(self, pair):
    with pytest.raises(ValueError, match="its model has an encoder"):
      prefill(decoder(V), pair.drafter, [[1]], max_new_tokens=1)


class TestServing:
  TOKENS = Bytes()
  OPTIONS = requests.Options(
      max_new_tokens=8, num_speculative_tokens=2, apart=True, logprobs=1,
      sampling=GREEDY, max_prompt_tokens=30,
  )

  def requested(self, prompt, line, options=OPTIONS):
    return requests.request(prompt, line, options, self.TOKENS)

  def test_a_prompt_for_an_encoder_ends_with_the_end_token(self):
    assert self.requested("hé", 1).tokens == [256, *"hé".encode(), 257]
    cut = requests.Options(max_prompt_tokens=4, truncate=True, apart=True)
    r = self.requested("abcdef", 1, cut)
    assert (r.tokens, r.truncated) == ([256, *b"ef", 257], 4)

  def test_a_text_depends_on_its_line_alone(self):
    target = encoder_decoder(self.TOKENS.size, boost=3.0)
    found = [
        self.requested(p, i) for i, p in enumerate(
            ["hello", "", "abcabcabc", "a longer prompt than those"]
        )
    ]
    out = serve.serve(
        target, NGram(2), self.TOKENS, found, options=self.OPTIONS, batch=2,
        longest=40,
    )
    out = dict(sum(out, []))
    for r in found:
      state = prefill(
          target, Nothing(), [r.tokens], max_new_tokens=8, sampling=GREEDY,
          eos=self.TOKENS.eos,
      )
      state, _ = engine.generate(target, Nothing(), state)
      tokens = outputs_of(state)[0]
      assert [e["token"] for e in out[r.line]["logprobs"]] == tokens
      assert all(e["raw"] < 0 for e in out[r.line]["logprobs"])


@pytest.mark.parametrize(
    "shape", [(2, 4), pytest.param((4, 2), marks=pytest.mark.slow)]
)
def test_the_mesh_shape_changes_no_text(shape):
  prompts, sampling = PROMPTS * 2, dict(temperature=[0.0, 1.0] * 4)

  def texts(*shape):
    with jax.set_mesh(sharding.mesh(*shape)):
      target = encoder_decoder(V, heads=4, dim=4, layers=2)
      drafter = Autoregressive(
          encoder_decoder(V, heads=4, dim=4, layers=2, boost=5.0), K
      )
      state = prefill(
          target, drafter, prompts, max_new_tokens=8, sampling=sampling,
          seed=3, **ROOM,
      )
      for x in jax.tree.leaves(state.cache.cross):
        assert jax.typeof(x).sharding.spec[:2] == ("data", "model")
      state, _ = engine.generate(target, drafter, state)
      first = outputs_of(state)
      state = refill(
          target, drafter, state, [None, [4, 4, 2], *[None] * 6],
          max_new_tokens=5, chunks=(8,),
      )
      state, _ = engine.generate(target, drafter, state)
      return first + outputs_of(state)

  assert texts(*shape) == texts(1, 1)
