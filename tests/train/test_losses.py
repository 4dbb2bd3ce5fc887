"""Losses on a model that is a table: logits[t] = table[tokens[t]]."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from specjax.train import losses

V = 7


class Table(NamedTuple):
  logits: jax.Array  # V V

  def __call__(self, tokens, start):
    return self.logits[tokens], None, ()

  def norm(self, hidden):
    return hidden

  def head(self, normed):
    return normed


def _table(seed: int) -> Table:
  return Table(2 * jax.random.normal(jax.random.key(seed), (V, V)))


@pytest.fixture
def tokens():
  return jax.random.randint(jax.random.key(9), (3, 11), 0, V)


def _laws(table: Table, tokens) -> np.ndarray:
  x = np.exp(np.asarray(table.logits, np.float64))
  return (x / x.sum(-1, keepdims=True))[np.asarray(tokens)[:, :-1]]


def test_next_token_is_the_surprise_at_the_following_token(tokens):
  p = _laws(_table(0), tokens)
  chosen = np.take_along_axis(p, np.asarray(tokens)[:, 1:, None], -1)
  found = losses.next_token(_table(0), tokens)
  np.testing.assert_allclose(found, -np.log(chosen).mean(), rtol=1e-5)


def test_distill_is_target_to_drafter_and_not_the_reverse(tokens):
  drafter, target = _table(0), _table(1)
  q, p = _laws(drafter, tokens), _laws(target, tokens)
  kl = lambda a, b: (a * np.log(a / b)).sum(-1).mean()
  found = losses.distill(drafter, target, tokens)
  np.testing.assert_allclose(found, kl(p, q), rtol=1e-5)
  # The planted bug, p and q swapped, is far outside that tolerance.
  assert abs(kl(q, p) / kl(p, q) - 1) > 1e-2


def test_distill_moves_the_drafter_until_it_is_the_target(tokens):
  gradient = jax.grad(losses.distill)
  at_target = gradient(_table(1), _table(1), tokens).logits
  np.testing.assert_allclose(at_target, 0, atol=1e-6)
  assert np.abs(gradient(_table(0), _table(1), tokens).logits).max() > 1e-2
  # Nothing flows into the target, though it is differentiated here.
  of_target = jax.grad(losses.distill, argnums=1)
  np.testing.assert_array_equal(
      of_target(_table(0), _table(1), tokens).logits, 0
  )


def test_a_mix_adds_the_text(tokens):
  drafter, target = _table(0), _table(1)
  found = losses.distill(drafter, target, tokens, mix=0.25)
  kl = losses.distill(drafter, target, tokens)
  text = losses.next_token(drafter, tokens)
  np.testing.assert_allclose(found, 0.75 * kl + 0.25 * text, rtol=1e-5)


def test_overlap_is_one_minus_the_total_variation(tokens):
  drafter, target = _table(0), _table(1)
  found = losses.overlap(drafter, target, tokens)
  q, p = _laws(drafter, tokens), _laws(target, tokens)
  expected = 1 - 0.5 * np.abs(p - q).sum(-1).mean()
  np.testing.assert_allclose(found["overlap"], expected, rtol=1e-5)
  assert 0 < found["overlap"] < 1
  same = (p.argmax(-1) == q.argmax(-1)).mean()
  np.testing.assert_allclose(found["agreement"], same, rtol=1e-6)


def test_a_model_overlaps_itself_fully(tokens):
  found = losses.overlap(_table(0), _table(0), tokens)
  np.testing.assert_allclose(found["overlap"], 1, rtol=1e-6)
  assert found["agreement"] == 1


def test_less_divergence_means_more_overlap(tokens):
  target, drafter = _table(1), _table(0)
  before = losses.overlap(drafter, target, tokens)["overlap"]
  for _ in range(50):
    slope = jax.grad(losses.distill)(drafter, target, tokens)
    drafter = jax.tree.map(lambda x, g: x - 5 * g, drafter, slope)
  assert losses.overlap(drafter, target, tokens)["overlap"] > before + 0.1
