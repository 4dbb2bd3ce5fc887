"""A model behind another vocabulary equals itself on the spelt text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import engine, sharding
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Config, Decoder
from specjax.models.translated import PASS, Translated
from specjax.states import fork, outputs_of, prefill, refill, rewind, texts_of
from specjax.testing.pair import decoder
from specjax.vocabularies import Tables

pytestmark = pytest.mark.usefixtures("quick_compiles")

LONG, NONE = 27, 28  # tokens of three pieces, and of none
run = jax.jit(lambda model, *window: model(*window))


def tables(shared, D, seed=0):
  """Shared tokens are read as themselves, LONG as three others."""
  shared = np.array(shared, np.int32)
  pieces = np.random.default_rng(seed).integers(0, D, (len(shared), 3))
  pieces[:, 0] = np.minimum(shared, D - 1)
  count = np.ones(len(shared), np.int32)
  count[LONG], count[NONE] = 3, 0
  first = 3 * np.arange(len(shared))
  shared[[LONG, NONE]] = D
  return Tables(*(
      x.astype(np.int32) for x in (shared, first, count, pieces.reshape(-1))
  ))


REVERSED = tables(np.arange(31, -1, -1), 32)


def spell(t, text):
  return [
      int(p) for v in text for p in t.pieces[t.first[v] :][: t.count[v]]
  ]


@pytest.fixture(scope="module")
def plain():
  return decoder(32, seed=3)


@pytest.fixture(scope="module")
def model(plain):
  return Translated(plain, REVERSED)


def fresh(plain, pieces):
  """(hidden, caches) of one pass over these pieces, padded to 64."""
  padded = np.zeros((1, 64), np.int32)
  padded[0, : len(pieces)] = pieces
  cache, _ = plain.start(padded, None, 64)
  hidden, _, cache = run(plain, padded, np.zeros(1, np.int32), cache)
  return np.asarray(hidden)[0], cache


def same_slots(cache, want, n):
  for got, right in zip(jax.tree.leaves(cache), jax.tree.leaves(want)):
    np.testing.assert_allclose(
        np.asarray(got)[:, :n], np.asarray(right)[0, :, :n], atol=1e-4
    )


def read(model, text, memory, start=0, width=4):
  """Feeds windows of `width`, the last one ragged -> (hidden, memory)."""
  out = []
  for at in range(0, len(text), width):
    part = text[at : at + width]
    window = np.full((1, width), 3, np.int32)
    window[0, : len(part)] = part
    hidden, _, memory = run(model, window, np.array([start + at]), memory)
    out += np.asarray(hidden)[0, : len(part)].tolist()
  return np.array(out), memory


TEXT = [1, LONG, 5, NONE, LONG, LONG, NONE, NONE, 7, 9]


@pytest.mark.parametrize("width", [4, 10])
def test_it_reads_what_is_spelt(plain, model, width):
  memory, _ = model.start(np.zeros((1, 16), np.int32), None, 16)
  hidden, memory = read(model, TEXT, memory, width=width)
  pieces = spell(REVERSED, TEXT)
  want, cache = fresh(plain, pieces)
  ends = np.cumsum(REVERSED.count[TEXT])
  assert memory.before[0, : len(TEXT) + 1].tolist() == [0, *ends]
  same_slots([x[0] for x in jax.tree.leaves(memory.cache)], cache, len(pieces))
  np.testing.assert_allclose(hidden, want[ends - 1], atol=1e-4)


def test_a_window_of_wordless_tokens_has_no_law(model):
  memory, _ = model.start(np.zeros((1, 16), np.int32), None, 16)
  hidden, memory = read(model, [NONE, 1, NONE, 2, NONE, NONE, 4, 5], memory)
  lost = ~np.isfinite(hidden).any(-1)
  assert np.flatnonzero(lost).tolist() == [0, 4, 5]
  assert memory.before[0, :9].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 4]


def test_reading_again_and_other_ways_changes_nothing(plain, model):
  memory, _ = model.start(np.zeros((1, 16), np.int32), None, 16)
  _, once = read(model, TEXT, memory)
  n = len(spell(REVERSED, TEXT[:8]))
  for start in (0, 3, 6):
    _, again = read(model, TEXT[start:8], once, start)
    assert again.before[0, :9].tolist() == once.before[0, :9].tolist()
    for a, b in zip(*map(jax.tree.leaves, (again.cache, once.cache))):
      np.testing.assert_allclose(a[:, :, :n], b[:, :, :n], atol=1e-5)
  # After a rejection another token stands at the same position.
  other = [*TEXT[:5], 2, LONG, 4]
  hidden, back = read(model, other[5:], once, 5)
  want, cache = fresh(plain, spell(REVERSED, other))
  same_slots([x[0] for x in jax.tree.leaves(back.cache)], cache, 13)
  np.testing.assert_allclose(hidden[-1], want[12], atol=1e-4)


def test_beyond_its_slots_it_has_no_law_until_the_text_is_shorter(
    plain, model
):
  memory, _ = model.start(np.zeros((1, 8), np.int32), None, 8)
  assert model.room(8) == 16 and memory.cache[0].k.shape[2] == 16 + PASS
  hidden, memory = read(model, [LONG] * 5 + [1, LONG, 2], memory)
  known = np.isfinite(hidden).all(-1)
  assert known.tolist() == [True] * 6 + [False] * 2  # 16 pieces, then 19
  assert memory.before[0].tolist() == [0, 3, 6, 9, 12, 15, 16, 17, 17]
  text = [LONG] * 5 + [2]
  hidden, memory = read(model, [2], memory, 5, width=1)
  want, cache = fresh(plain, spell(REVERSED, text))
  np.testing.assert_allclose(hidden[0], want[15], atol=1e-4)
  same_slots([x[0] for x in jax.tree.leaves(memory.cache)], cache, 16)


def test_learned_positions_end_the_room():
  learned = decoder(32, positions="learned", max_positions=7)
  model = Translated(learned, REVERSED)
  assert model.max_length is None and model.room(64) == 7
  memory, _ = model.start(np.zeros((1, 16), np.int32), None, 16)
  hidden, _ = read(model, [LONG, LONG, 1, 2], memory)
  assert np.isfinite(hidden).all(-1).tolist() == [True, True, True, False]


def test_its_law_is_the_models_on_shared_tokens(plain, model):
  normed = jax.random.normal(jax.random.key(0), (2, 3, 16))
  whole = np.asarray(jax.nn.softmax(plain.head(normed), -1))
  got = np.asarray(jax.nn.softmax(model.head(normed), -1))
  shared = [v for v in range(32) if v not in (LONG, NONE)]
  part = whole[..., [31 - v for v in shared]]
  assert (got[..., [LONG, NONE]] == 0).all() and model.vocab == 32
  np.testing.assert_allclose(
      got[..., shared], part / part.sum(-1, keepdims=True), rtol=1e-4
  )
  np.testing.assert_allclose(model.kept(normed), part.sum(-1), rtol=1e-4)


def test_an_encoder_cannot_read_another_vocabulary(plain):
  class Reads(type(plain)):
    opening = 0

  with pytest.raises(ValueError, match="^translated: .* has an encoder"):
    Translated(Reads(plain.c, rngs=nnx.Rngs(0)), REVERSED)


def renamed(model, ids, D):
  """The same model in a vocabulary where its token v is ids[v] of D."""
  out = decoder(D, layers=2, boost=4.0)
  for new, old in (
      (out.embedding, model.embedding), (out.free_head, model.free_head)
  ):
    new[...] = new[...].at[np.array(ids)].set(old[...])
  return out


# Every pair has 40 tokens and the same number of pieces: one program for all.
PAIRS = {
    "reversed ids": np.arange(39, 7, -1),
    "half is shared": np.where(np.arange(32) % 2, np.arange(32), 40),
    "two are shared": np.where(np.arange(32) < 2, np.arange(32), 40),
}


@pytest.fixture(scope="module", params=PAIRS)
def drafter(request, tiny):
  ids = PAIRS[request.param]
  model = renamed(
      tiny.drafter.model, np.where(ids < 40, ids, np.arange(32)), 40
  )
  return Autoregressive(Translated(model, tables(ids, 40)), tiny.K)


def check_memory(drafter, state):
  model, rows = drafter.model, state.rows
  t = Tables(*map(np.asarray, (
      model.shared, model.first, model.count, model.pieces
  )))
  for i, text in enumerate(texts_of(state)):
    pieces = spell(t, text[: int(state.last.start[i])])
    assert state.draft.before[i, state.last.start[i]] == len(pieces)
    _, cache = fresh(model.model, pieces)
    same_slots(
        [x[i] for x in jax.tree.leaves(state.draft.cache)], cache, len(pieces)
    )
  assert rows.tokens.shape[1] + 1 == state.draft.before.shape[1]


def test_greedy_texts_are_the_naive_decoders(tiny, drafter):
  prompts = [[7], [3, LONG, 4], [LONG, NONE] * 4, [5, 6, NONE] * 3]
  greedy = dict(temperature=0.0)
  state = tiny.prefill(prompts, drafter=drafter, sampling=greedy)
  state, tally = engine.generate(tiny.target, drafter, state)
  assert outputs_of(state) == [tiny.greedy(p, 16) for p in prompts]
  if (np.asarray(drafter.model.shared) < 40).sum() > 2:
    assert np.asarray(tally.info.accepted).sum() > 0
  check_memory(drafter, state)

  new = [None, [LONG, 9], None, [2]]
  back = [9, 3, 2, 1]
  state = rewind(tiny.target, drafter, state, back, chunks=(8,))
  check_memory(drafter, state)
  state = refill(
      tiny.target, drafter, state, new, max_new_tokens=16, chunks=(8,),
      sampling=greedy,
  )
  state = fork(state, [0, 1, 2, 3], 0)
  state, _ = engine.generate(tiny.target, drafter, state)
  check_memory(drafter, state)
  for i, text in enumerate(texts_of(state)):
    n = len(new[i]) if new[i] else int(back[i])
    assert text[n:] == tiny.greedy(text[:n], len(text) - n)


def test_a_row_that_needs_too_many_pieces_drafts_nothing(tiny):
  model = renamed(tiny.drafter.model, PAIRS["reversed ids"], 40)
  drafter = Autoregressive(
      Translated(model, tables(PAIRS["reversed ids"], 40)), tiny.K
  )
  prompts = [[LONG] * 39, [1, 2, 3], [LONG] * 41, [LONG] * 44]
  state = tiny.prefill(
      prompts, 12, drafter=drafter, sampling=dict(temperature=0.0)
  )
  state, tally = engine.generate(tiny.target, drafter, state)
  assert outputs_of(state) == [tiny.greedy(p, 12) for p in prompts]
  drafted = np.asarray(tally.info.drafted)
  # 117, 3, 123 and 132 pieces before the first round, of 128.
  assert drafted[0] > 0 and drafted[1] > 0 and drafted[3] == 0


CONFIG = Config(
    vocab=64, width=32, layers=1, heads=8, kv_heads=4, dim=8, mlp=64
)


def test_the_mesh_shape_changes_no_text():
  shared = np.where(np.arange(64) % 4, np.arange(63, -1, -1), 64)

  def texts(data, model):
    with jax.set_mesh(sharding.mesh(data, model)):
      target, small = (Decoder(CONFIG, rngs=nnx.Rngs(i)) for i in range(2))
      drafter = Autoregressive(Translated(small, tables(shared, 64)), 2)
      prompts = [[LONG, 2, NONE], [3], [4, 5], [LONG] * 4] * 2
      state = prefill(
          target, drafter, prompts, max_new_tokens=8, seed=3, capacity=32,
          chunks=(4,), sampling=dict(temperature=[0.0, 1.0] * 4),
      )
      assert jnp.shape(state.draft.before) == (8, 33)
      state, _ = engine.generate(target, drafter, state)
      return outputs_of(state)

  assert texts(1, 1) == texts(2, 4)
