"""Draws and coins: faults too rare for a law test of any affordable size.

Each is made certain instead: a tail that carries the mass, a law that leaves
its fingerprint in the token drawn from it, a coin forced to its border, a
residual of one token among 262,144.
"""

import math
from collections.abc import Callable, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine, rules, sampling
from specjax.states import prefill
from specjax.testing.law import ALARM, highest, refuse_lossy
from specjax.types import Draft


def check_tail(
    draw: Callable = sampling.draw, *, tokens: int = 100_000,
    each: float = 2e-8, draws: int = 12_800, seed: int = 0,
    alarm: float = ALARM,
) -> int:
  """A flat tail of very unlikely tokens is drawn as often as it should be.

  draw(keys [B], logp [B V]) -> [B]. Coarse uniforms or bfloat16 logits lose
  or inflate such a tail (0 and 47,602 draws of 50 expected). Raises
  AssertionError; returns the number of draws from the tail.
  """
  tail = tokens * each
  logp = np.full(tokens + 1, np.log(each), np.float32)
  logp[0] = np.log1p(-tail)
  block = 64
  keys = jax.random.split(
      jax.random.key(seed, impl="threefry2x32"), (-(-draws // block), block)
  )
  many = jnp.broadcast_to(logp, (block, tokens + 1))
  found = jax.jit(
      lambda keys, many: jax.lax.map(lambda k: draw(k, many) > 0, keys)
  )(keys, many)
  hits, expected = int(jnp.sum(found)), keys.size * tail
  # Chernoff's bound for a Poisson count, both sides.
  far = hits * math.log(hits / expected) if hits else 0.0
  chance = 2 * math.exp(hits - expected - far)
  assert chance >= alarm, (
      f"tail: {hits} draws of {keys.size} fell on {tokens} tokens of"
      f" probability {each:g}, {expected:.0f} expected."
  )
  return hits


def _fingerprint(key, logits, axis=-1, shape=None, **_):
  """In place of jax.random.categorical: a token that tells the array."""
  del key, axis, shape
  V = logits.shape[-1]
  bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.uint32)
  odd = (2 * np.arange(V, dtype=np.uint32) + 1) * np.uint32(2654435761)
  mixed = jnp.sum(bits * odd, -1, dtype=jnp.uint32)
  return ((mixed ^ (mixed >> 15)) % V).astype(jnp.int32)


@highest
def check_arrays(
    target, drafter, prompts: Sequence[Sequence[int]], *,
    temperature: float = 0.7,
) -> int:
  """The array a draft was drawn from is the array it will be judged by.

  For one proposal `jax.random.categorical` is replaced by a fingerprint of
  its logits, so every bit of a difference shows, such as a bfloat16 draw
  judged in float32. The drafter must draw by `sampling.draw`, over all V
  tokens. Raises AssertionError; returns how many drafts were compared.
  """
  state = prefill(
      target, drafter, list(prompts), max_new_tokens=4 * (drafter.K + 1),
      sampling=dict(temperature=temperature), chunks=(4,),
  )
  with mock.patch("jax.random.categorical", _fingerprint):
    # A lambda of its own: nothing traced before may serve.
    run = jax.jit(lambda t, d, s: engine.propose(t, d, s)[0])
    draft = run(target, drafter, state)
  if draft.logits is None:
    return 0
  wanted = _fingerprint(None, draft.logits)
  real = np.arange(drafter.K) < np.asarray(draft.count)[:, None]
  wrong = real & np.asarray(draft.tokens != wanted)
  assert not wrong.any(), (
      f"arrays: {wrong.sum()} of {real.sum()} drafts were not drawn, by"
      " sampling.draw, from the very array that is recorded as their law."
  )
  return int(real.sum())


def check_coin(rule: Callable = rules.token) -> None:
  """The coin at its two borders: u = 0 and the largest u below 1.

  At 0 a token of probability zero must still be refused, near 1 a draft from
  p itself must still pass. Raises AssertionError.
  """
  refuse_lossy(rule)
  K, V = 2, 4
  even = np.full((K + 1, V), -np.log(V), np.float32)
  tokens = jnp.array([1, 2])
  draft = Draft(tokens, jnp.array(even[:K]), jnp.int32(K))
  with np.errstate(divide="ignore"):
    without = np.log(np.full((K + 1, V), 1 / (V - 1)) * [1, 0, 0, 1] * 1.5)
  for u, logp, wanted in (
      (0.0, without.astype(np.float32), 1),
      (1 - 2**-24, even, K + 1),
  ):
    coin = mock.Mock(side_effect=lambda key, shape, u=u: jnp.full(shape, u))
    with mock.patch("jax.random.uniform", coin):
      out, count = rule(jax.random.key(0), draft, jnp.array(logp))
    assert coin.called, "coin: the rule does not use jax.random.uniform."
    assert count == wanted, (
        f"coin: with u = {u:.8f} the rule kept {int(count) - 1} drafts of"
        f" probability {np.exp(logp[0, 1]):g}; {wanted - 1} is right."
    )
    assert logp[count - 1, out[count - 1]] > -np.inf, (
        "coin: the extra token has probability zero."
    )


def check_residual(
    rule: Callable = rules.token, *, vocab: int = 262_144, draws: int = 16
) -> None:
  """A residual of a millionth, on one token, is all that may be drawn.

  An epsilon added to every entry of the residual, even 1e-12, hands that
  draw to the other tokens of a large vocabulary. Raises AssertionError.
  """
  refuse_lossy(rule)
  g, small = np.random.default_rng(0), 1e-6
  q = g.random(vocab)
  lost, gained = g.choice(vocab, 2, replace=False)
  q[lost] = 0
  q *= (1 - small) / q.sum()
  q[lost] = small
  p = q.copy()
  p[lost], p[gained] = 0, q[gained] + small
  with np.errstate(divide="ignore"):
    logq, logp = (np.log(x).astype(np.float32) for x in (q, p))
  draft = Draft(jnp.array([lost]), jnp.array(logq[None]), jnp.int32(1))
  both = jnp.array(np.stack([logp, logp]))
  keys = jax.random.split(jax.random.key(0), draws)
  tokens, count = jax.jit(
      lambda keys, draft, logp: jax.lax.map(
          lambda key: rule(key, draft, logp), keys
      )
  )(keys, draft, both)
  wrong = int(np.sum((np.asarray(tokens)[:, 0] != gained) | (count != 1)))
  assert not wrong, (
      f"residual: {wrong} of {draws} extra tokens are not the one token of"
      f" {vocab} that p gives more than q."
  )
