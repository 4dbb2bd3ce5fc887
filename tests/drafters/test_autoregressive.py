"""What is recorded as q is what was drawn from; the cache has no holes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import engine
from specjax import sampling as samplings
from specjax.states import texts_of
from specjax.testing.law import sampling_law

pytestmark = pytest.mark.usefixtures("quick_compiles")
SETTING = dict(temperature=0.9, top_k=9, repetition=1.3, presence=0.4)


@pytest.fixture(scope="module")
def drafted(tiny):
  """A state in the middle of its text and what is drafted there."""
  state = tiny.rich(sampling=SETTING, seed=1)
  state, _ = engine.generate(tiny.target, tiny.drafter, state, rounds=3)
  propose = jax.jit(lambda d, s: engine.propose(None, d, s))
  return state, *propose(tiny.drafter, state)


def test_q_is_the_drafters_own_law_with_the_draft_prefix(tiny, drafted):
  state, draft, _ = drafted
  whole = np.zeros((tiny.B, 64), np.int32)
  texts = texts_of(state)
  for i, (text, more) in enumerate(zip(texts, draft.tokens.tolist())):
    whole[i, : len(text) + tiny.K] = text + more
  model = tiny.drafter.model
  run = jax.jit(lambda m, t: m.head(m.norm(m(t, jnp.zeros(4, int))[0])))
  logits = np.asarray(run(model, whole))
  for i, text in enumerate(texts):
    n = int(state.rows.prompt[i])
    for j in range(tiny.K):
      output = text[n:] + draft.tokens[i, :j].tolist()
      law = sampling_law(
          logits[i, len(text) + j - 1], SETTING, text[:n], output
      )
      np.testing.assert_allclose(
          np.exp(draft.logits[i, j]), law, atol=1e-4
      )
      assert law[draft.tokens[i, j]] > 0


def test_counts_keep_to_width_and_budget(tiny, drafted):
  state, draft, _ = drafted
  room = np.asarray(state.rows.limit - state.rows.length) - 1
  running = np.asarray(state.rows.finish) == 0
  want = np.where(running, np.minimum(tiny.K, room), 0)
  np.testing.assert_array_equal(draft.count, np.maximum(want, 0))


def test_its_cache_is_that_of_the_committed_text(tiny, drafted):
  _, _, state = drafted
  texts = texts_of(state)
  model = tiny.drafter.model
  whole = np.zeros((tiny.B, 64), np.int32)
  for i, text in enumerate(texts):
    whole[i, : len(text)] = text

  @jax.jit
  def fresh(model, whole):
    zero = jnp.zeros(tiny.B, jnp.int32)
    return model(whole, zero, model.start(whole, zero, 64)[0])[2]

  right = jax.tree.leaves(fresh(model, whole))
  for got, want in zip(jax.tree.leaves(state.draft), right):
    for i, text in enumerate(texts):
      np.testing.assert_allclose(
          got[i, :, : len(text)], want[i, :, : len(text)], atol=1e-4
      )


def test_greedy_rows_draft_the_drafters_argmax(tiny):
  state = tiny.rich(sampling=dict(temperature=0.0))
  state, _ = engine.generate(tiny.target, tiny.drafter, state, rounds=0)
  propose = jax.jit(lambda d, s: engine.propose(None, d, s))
  draft, _ = propose(tiny.drafter, state)
  assert np.all(np.sum(np.asarray(draft.logits) == 0, -1) == 1)
  np.testing.assert_array_equal(
      np.argmax(draft.logits, -1), draft.tokens
  )
  assert not samplings.penalised(state.rows.sampling)
