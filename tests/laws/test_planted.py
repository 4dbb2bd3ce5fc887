"""Tests of the tests: each planted bug makes one named check of the kit fail.

The sound version passes the same check with the same settings. Bugs in the
core are planted by patching one name; a rule of its own then makes sure that
nothing traced before is used.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import engine, rules, states, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.rules.base import first_failure, judge, last_pass
from specjax.rules.block import terms as block_terms
from specjax.rules.token import terms as token_terms
from specjax.sampling import draw, log_probs
from specjax.testing import Bigram, Table
from specjax.types import Draft

pytestmark = pytest.mark.usefixtures("quick_compiles")

V, K = 5, 2
PROMPT = [[0, 1, 2, 3, 4, 0]]
PLAIN, COOL, NUCLEUS = (
    dict(),
    dict(temperature=0.6),
    dict(temperature=0.6, top_p=0.9),
)
ROWS = 16_384  # enough for all but noise keyed by position


def law(drafter=None, setting=PLAIN, rule=rules.token, rows=ROWS):
  """All bugs of the law meet this check: one setting, K = 2, four tokens."""
  settings = [PLAIN, COOL, NUCLEUS]
  index = settings.index(setting)
  # One compiled program for every sound and every drafter's bug.
  testing.check_law(
      Table(V), drafter or Bigram(V, K), PROMPT, settings[index : index + 1],
      rule=rule, rows=rows, batch=16_384,
  )


@pytest.mark.parametrize("setting", [PLAIN, COOL, NUCLEUS], ids=str)
def test_sound_pair_has_the_law(setting):
  law(setting=setting)


def test_sound_pair_has_the_law_under_the_block_rule():
  law(rule=rules.block, rows=131_072)


def test_extra_token_drawn_from_p_fails_check_rule():
  def terms(draft, p):
    return token_terms(draft, p)._replace(residual=p)

  testing.check_rule(rules.token, testing.cases(3, 2))
  with pytest.raises(AssertionError, match="rule"):
    testing.check_rule(
        partial(judge, terms, first_failure), testing.cases(3, 2)
    )


class UntemperedQ(Bigram):
  """Records its law before the temperature."""

  def law(self, logits, rows, i):
    return jax.nn.log_softmax(logits)

  def pick(self, keys, logp):
    return draw(keys, jax.nn.log_softmax(logp / COOL["temperature"]))


def test_q_before_the_temperature_fails_check_law():
  with pytest.raises(AssertionError, match="law"):
    law(UntemperedQ(V, K), COOL)


def test_temperature_on_one_side_fails_check_law(monkeypatch):
  def hot(logits, rows, *rest):
    warm = jnp.where(rows.sampling.temperature > 0, 1.0, 0.0)
    sampling = rows.sampling._replace(temperature=warm)
    return log_probs(logits, rows._replace(sampling=sampling), *rest)

  monkeypatch.setattr(engine, "log_probs", hot)
  with pytest.raises(AssertionError, match="law"):
    law(setting=COOL, rule=partial(rules.token))


class ArgmaxDraft(Bigram):
  """Proposes its favourite and records the whole law."""

  def pick(self, keys, logp):
    return jnp.argmax(logp, -1).astype(jnp.int32)


def test_argmax_draft_judged_by_its_softmax_fails_check_law():
  with pytest.raises(AssertionError, match="law"):
    law(ArgmaxDraft(V, K))


def test_top_p_before_the_temperature_fails_check_law(monkeypatch):
  def swapped(logits, rows, *rest):
    T = rows.sampling.temperature
    sampling = rows.sampling._replace(temperature=jnp.ones_like(T))
    kept = log_probs(logits, rows._replace(sampling=sampling), *rest)
    return jax.nn.log_softmax(kept / T[:, None, None], -1)

  monkeypatch.setattr(engine, "log_probs", swapped)
  with pytest.raises(AssertionError, match="law"):
    law(setting=NUCLEUS, rule=partial(rules.token))


def test_one_key_for_draft_and_coin_fails_check_law(monkeypatch):
  one = engine.round_keys
  monkeypatch.setattr(engine, "round_keys", lambda rows, purpose: one(rows, 0))
  with pytest.raises(AssertionError, match="law"):
    law(rule=partial(rules.token))


every = jax.vmap(jax.random.fold_in, (0, None))  # keys [B], one purpose


def positions(rows, purpose):
  """Keys [B K+1] by absolute position, whatever round reads it."""
  at = [every(engine.fold(rows.key, rows.length + i), purpose)
        for i in range(K + 1)]
  return jnp.stack(at, 1)


class KeysByPosition(Bigram):

  def propose(self, target, state, keys):
    rows = state.rows
    token = jax.vmap(lambda t, n: t[n - 1])(rows.tokens, rows.length)
    tokens, logps = [], []
    for i in range(self.K):
      logps.append(self.law(self.table[...][token], rows, jnp.int32(i)))
      token = self.pick(keys[:, i], logps[-1])
      tokens.append(token)
    count = jnp.full_like(rows.length, self.K)
    return Draft(jnp.stack(tokens, 1), jnp.stack(logps, 1), count), state


def judge_by_position(terms, decide, keys, draft, logp):
  num, den, residual = terms(draft, jnp.exp(logp))
  coin, extra = every(keys, 0), every(keys, 1)
  u = jax.vmap(jax.random.uniform)(coin)[:-1]
  n = decide(u * den < num)
  left = residual[n]
  left = jnp.where(left.sum() > 0, left, jnp.exp(logp[n]))
  last = draw(extra[n][None], jnp.log(left)[None])[0]
  here = jnp.arange(len(logp)) == n
  return jnp.where(here, last, jnp.pad(draft.tokens, (0, 1))), n + 1


def test_keys_by_position_under_the_block_rule_fail_check_law(monkeypatch):
  monkeypatch.setattr(engine, "round_keys", positions)
  with pytest.raises(AssertionError, match="law"):
    law(
        KeysByPosition(V, K),
        rule=partial(judge_by_position, block_terms, last_pass),
        rows=131_072,
    )


class ThrowsWeakAway(Bigram):
  """Drops a token, after it was drawn, for being unlikely."""

  def propose(self, target, state, keys):
    draft, state = super().propose(target, state, keys)
    hot = jax.nn.one_hot(draft.tokens, V)
    weak = jnp.sum(hot * jnp.exp(draft.logits), -1) < 0.2
    strong = jnp.cumprod((~weak).astype(jnp.int32), 1)
    return draft._replace(count=jnp.sum(strong, 1)), state


def test_weak_token_thrown_away_after_the_draw_fails_check_law():
  with pytest.raises(AssertionError, match="law"):
    law(ThrowsWeakAway(V, K))


def test_shortest_row_leading_the_batch_fails_check_batch_invariance(
    monkeypatch,
):
  prompts = [[0, 1, 2], [3, 4, 0, 1]]
  testing.check_batch_invariance(Table(V), Bigram(V, K), prompts)
  commit = engine.commit
  monkeypatch.setattr(
      engine, "commit", lambda state, draft, scores, tokens, count: commit(
          state, draft, scores, tokens, jnp.full_like(count, jnp.min(count))
      )
  )
  with pytest.raises(AssertionError, match="batch"):
    testing.check_batch_invariance(
        Table(V), Bigram(V, K), prompts, rule=partial(rules.token)
    )


def test_dropped_bonus_fails_check_acceptance():
  def dropped(key, draft, logp):
    tokens, count = rules.token(key, draft, logp)
    return tokens, jnp.minimum(count, jnp.maximum(draft.count, 1))

  check = partial(
      testing.check_acceptance, Table(V), Bigram(V, K), PROMPT, [PLAIN]
  )
  check()
  with pytest.raises(AssertionError, match="acceptance"):
    check(rule=dropped)


def test_default_categorical_fails_check_tail():
  def coarse(keys, logp):
    return jax.vmap(jax.random.categorical)(keys, logp)

  with pytest.raises(AssertionError, match="tail"):
    testing.check_tail(coarse)


class Bfloat16Draw(Bigram):

  def pick(self, keys, logp):
    return draw(keys, logp.astype(jnp.bfloat16))


def test_bfloat16_draw_fails_check_arrays():
  prompts = [[i, j] for i in range(V) for j in range(V)]
  found = testing.check_arrays(Table(V), Bigram(V, K), prompts)
  assert found == len(prompts) * K
  with pytest.raises(AssertionError, match="arrays"):
    testing.check_arrays(Table(V), Bfloat16Draw(V, K), prompts)


def test_zero_coin_taking_an_impossible_token_fails_check_coin():
  def terms(draft, p):  # u <= p / q, where u is zero
    out = token_terms(draft, p)
    return out._replace(num=out.num + 1e-30)

  testing.check_coin(rules.token)
  with pytest.raises(AssertionError, match="coin"):
    testing.check_coin(partial(judge, terms, first_failure))


def test_epsilon_in_the_residual_fails_check_residual():
  def terms(draft, p):
    out = token_terms(draft, p)
    return out._replace(residual=out.residual + 1e-10)

  testing.check_residual(rules.token)
  with pytest.raises(AssertionError, match="residual"):
    testing.check_residual(partial(judge, terms, first_failure))


def test_chunk_wider_than_the_reach_fails_check_capacity(monkeypatch):
  target = testing.decoder(V)
  testing.check_capacity(target, Bigram(V, K))
  # `reach` forgets the chunks and takes the drafter's K + 1 alone.
  short = lambda *x: x[0] if len(x) > 1 else max(x[0])
  monkeypatch.setattr(states, "max", short, raising=False)
  with pytest.raises(AssertionError, match="state: after a prompt"):
    testing.check_capacity(target, Bigram(V, K))


class Hole(Autoregressive):
  """Forgets the bonus: the last of K + 1 tokens is never ingested."""

  def propose(self, target, state, keys):
    last = state.last
    tokens = last.tokens.at[:, self.K].set(0)
    state = state._replace(last=last._replace(tokens=tokens))
    return super().propose(target, state, keys)


def test_hole_in_the_drafter_cache_fails_check_state():
  drafter = Hole(testing.decoder(V, seed=1), K)
  with pytest.raises(AssertionError, match="drafter's memory"):
    testing.check_state(testing.decoder(V), drafter, PROMPT)


class ReadsAhead(NGram):
  """Looks one token too far into the buffer."""

  def look(self, tokens, length, older):
    return super().look(tokens, length + 1, older)


def test_reading_above_the_length_fails_check_poison():
  with pytest.raises(AssertionError, match="poison"):
    testing.check_poison(Table(V), ReadsAhead(K), PROMPT)


def test_end_seen_only_at_the_end_of_a_block_fails_check_stops(monkeypatch):
  cut = engine.cut

  def late(rows, tokens, count, finite):
    index = jnp.arange(tokens.shape[1])
    inside = index < count[:, None] - 1
    blind = jnp.where(inside, -2, tokens)  # an id that ends nothing
    return cut(rows, blind, count, finite)

  monkeypatch.setattr(engine, "cut", late)
  with pytest.raises(AssertionError, match="stops"):
    testing.check_stops(Table(V), Bigram(V, K), [[0, 1], [2, 3, 4]])


def lossy_typical(key, draft, logp):
  return rules.token(key, draft, logp)


@pytest.mark.parametrize(
    "rule",
    [
        lossy_typical,
        testing.any_count,
        partial(judge, lossy_typical, first_failure),
    ],
)
def test_rules_that_are_lossy_by_name_are_refused(rule):
  for check in (
      partial(law, rule=rule),
      partial(testing.check_rule, rule),
      partial(testing.check_coin, rule),
      partial(testing.check_residual, rule),
  ):
    with pytest.raises(ValueError, match="lossy"):
      check()


def test_chi_square_keeps_its_budget():
  """Simulated under the null, cells of a few expected rows included."""
  g = np.random.default_rng(0)
  mass = g.dirichlet(np.full(60, 0.4))
  values = np.array([
      testing.chi_square(g.multinomial(2000, mass), mass) for _ in range(2000)
  ])
  for level in (0.5, 0.1, 0.01):
    share = np.mean(values < level)
    assert abs(share - level) < 5 * np.sqrt(level * (1 - level) / len(values))
