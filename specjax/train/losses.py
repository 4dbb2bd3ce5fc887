"""What training lowers, and the two numbers that say what a drafter is worth.

Every loss is a pure function of (model, ..., tokens [B T+1]); the model comes
first, so `jax.grad` differentiates it and nothing else.
"""

import jax
import jax.numpy as jnp


def logits(model, tokens: jax.Array) -> jax.Array:
  """[B T] -> float32 [B T V]: the law of what follows each position."""
  start = jnp.zeros_like(tokens[:, 0])
  hidden, _, _ = model(tokens, start)
  return model.head(model.norm(hidden)).astype(jnp.float32)


def next_token(model, tokens: jax.Array) -> jax.Array:
  """Mean cross entropy in nats of tokens [B T+1], each given those before."""
  return cross_entropy(logits(model, tokens[:, :-1]), tokens[:, 1:])


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """Mean of -log softmax(scores [B T V])[labels [B T]], in nats."""
  # Picked by a mask, not a gather, so that no vocabulary shard is moved.
  here = jnp.arange(scores.shape[-1]) == labels[..., None]
  picked = jnp.sum(jnp.where(here, scores, 0), -1)
  return jnp.mean(jax.nn.logsumexp(scores, -1) - picked)


def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
  """Mean KL(p || q) in nats between the laws of two logits [B T V]."""
  p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
  return jnp.mean(jnp.sum(jnp.exp(p) * (p - q), -1))


def distill(drafter, target, tokens: jax.Array, *, mix: float = 0.0):
  """Mean KL(target || drafter) in nats at every position of tokens [B T+1].

  Half its root bounds the lost overlap (Pinsker), so it raises acceptance.
  `mix` of the loss, 0 to 1, is cross entropy with the text instead.
  """
  p = jax.lax.stop_gradient(logits(target, tokens[:, :-1]))
  q = logits(drafter, tokens[:, :-1])
  kl = divergence(p, q)
  if not mix:
    return kl
  return (1 - mix) * kl + mix * cross_entropy(q, tokens[:, 1:])


def overlap(drafter, target, tokens: jax.Array) -> dict[str, jax.Array]:
  """Means over the positions of tokens [B T+1] of two chances of acceptance.

  `overlap` is sum_v min(p, q), the chance at temperature 1 (Leviathan et al.,
  2023); `agreement` that both have the same most likely token, the chance
  when greedy.
  """
  p, q = (logits(m, tokens[:, :-1]) for m in (target, drafter))
  common = jnp.minimum(jax.nn.softmax(p), jax.nn.softmax(q))
  same = jnp.argmax(p, -1) == jnp.argmax(q, -1)
  return {
      "overlap": jnp.mean(jnp.sum(common, -1)),
      "agreement": jnp.mean(same.astype(jnp.float32)),
  }
