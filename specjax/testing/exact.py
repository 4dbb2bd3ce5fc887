"""Rules judged without chance: every draft path and every coin, in float64.

A case is two trees of laws over V tokens: p[i] [V**i V] is the target's law
after each path of i tokens (i = 0..K), q[i] likewise the drafter's (i < K).
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import rules
from specjax.testing.law import refuse_lossy
from specjax.types import Draft


class Case(NamedTuple):
  """One pair of trees; `count` tells how many drafts of a path are real."""

  name: str
  p: list[np.ndarray]
  q: list[np.ndarray]
  count: Callable | None = None  # path [K] -> 0..K; None = all K
  point: bool = False  # every q is one-hot and handed over as no logits


class Outcome(NamedTuple):
  law: np.ndarray  # of the next K+1 tokens, [V ** (K+1)]
  target: np.ndarray  # what it has to be
  accepted: float  # drafts a round, in the mean
  reached: np.ndarray  # [K] how often draft i was judged, token by token
  passed: np.ndarray  # [K] how often it stood


def enumerate_rule(rule: Callable, case: Case) -> Outcome:
  """The law of K+1 tokens when one round is followed by the target's own.

  Walks all V**K drafts and 2**K coins with the rule's `terms` in float64.
  Raises ValueError for a rule that was not made by `rules.judge`.
  """
  if getattr(rule, "func", None) is not rules.judge:
    raise ValueError(
        "This rule was not made as partial(judge, terms, count), so its terms"
        " cannot be listed; see specjax/rules."
    )
  terms, decide = rule.args
  K, V = len(case.q), case.p[0].shape[1]
  paths = np.array([*itertools.product(range(V), repeat=K)], np.int32)
  prefix = np.zeros((len(paths), K + 1), int)
  for i in range(K):
    prefix[:, i + 1] = prefix[:, i] * V + paths[:, i]
  p = np.stack([law[prefix[:, i]] for i, law in enumerate(case.p)], 1)
  q = np.zeros((len(paths), K, V))
  for i, law in enumerate(case.q):
    q[:, i] = law[prefix[:, i]]
  weight = np.prod(np.take_along_axis(q, paths[..., None], 2)[..., 0], 1)
  count = np.array([case.count(x) if case.count else K for x in paths], "i4")
  num, den, residual = _terms(terms, paths, q, count, p, case.point)
  with np.errstate(divide="ignore", invalid="ignore"):
    passes = np.where(num > 0, np.minimum(num / den, 1), 0)
  left = residual.sum(-1, keepdims=True)
  extra = np.where(left > 0, residual / np.where(left > 0, left, 1), p)
  # mass[n]: rounds that emitted exactly n drafts and one token more.
  mass = [np.zeros((V**n, V)) for n in range(K + 1)]
  accepted, reached, passed = 0.0, np.zeros(K), np.zeros(K)
  for coins in itertools.product((False, True), repeat=K):
    n = int(decide(jnp.array(coins, bool)))
    chance = weight * np.prod(np.where(coins, passes, 1 - passes), 1)
    chance = np.where(weight > 0, chance, 0)
    accepted += n * chance.sum()
    for i in range(K):
      real = chance[count > i].sum()
      reached[i] += real * (i <= n)
      passed[i] += real * (i < n)
    np.add.at(mass[n], prefix[:, n], chance[:, None] * extra[:, n])
  law, target = np.zeros(1), np.ones(1)
  for after, ended in zip(case.p, mass):
    law = (law[:, None] * after + ended).ravel()
    target = (target[:, None] * after).ravel()
  return Outcome(law, target, accepted, reached, passed)


def _terms(terms, paths, q, count, p, point):
  with jax.enable_x64(True), np.errstate(divide="ignore"):
    logits = None if point else np.log(q)
    out = _vmapped(terms, Draft(paths, logits, count), p)
    return jax.tree.map(np.asarray, out)


@functools.partial(jax.jit, static_argnums=0)
def _vmapped(terms, draft, p):
  return jax.vmap(terms)(draft, p)


def tree(vocab: int, depth: int, make: Callable) -> list[np.ndarray]:
  """[make([V**i V]) normalised for i < depth], a law after every path."""
  laws = []
  for i in range(depth):
    law = np.asarray(make((vocab**i, vocab)), float)
    laws.append(law / law.sum(-1, keepdims=True))
  return laws


def cases(vocab: int, K: int, seed: int = 0) -> Iterator[Case]:
  """The corners of (p, q): zeros, p == q, disjoint, one-hot, padded, tiny.

  And every way of knowing a count beforehand: fixed, or set by the text.
  """
  g = np.random.default_rng(seed)
  V = vocab
  plain = lambda shape: g.random(shape) + 1e-3
  hot = lambda shape: np.eye(V)[g.integers(0, V, shape[0])]
  holes = lambda shape: g.random(shape) * (g.random(shape) < 0.6) + hot(shape)
  tiny = lambda shape: np.exp(-60 * g.random(shape))
  half = lambda low: lambda shape: g.random(shape) * (
      (np.arange(V) < -(-V // 2)) == low
  ) + 1e-300 * (V == 1)
  padded = lambda shape: g.random(shape) * (np.arange(V) < max(1, V - 1))
  pairs = {
      "plain": (plain, plain),
      "zeros": (holes, holes),
      "one-hot target": (hot, plain),
      "one-hot draft": (plain, hot),
      "both one-hot": (hot, hot),
      "disjoint": (half(True), half(False)),
      "padded": (padded, padded),
      "padded target only": (padded, plain),
      "tiny": (tiny, tiny),
  }
  for name, (make_p, make_q) in pairs.items():
    p, q = tree(V, K + 1, make_p), tree(V, K, make_q)
    yield Case(name, p, q)
    if name == "one-hot draft":
      yield Case("point mass", p, q, point=True)
  p = tree(V, K + 1, plain)
  yield Case("equal", p, p[:K])
  q = tree(V, K, plain)
  for n in range(K):
    yield Case(f"count {n}", p, q, lambda path, n=n: n)
  # Stops after a token it did draw, and keeps it: allowed.
  stop = lambda path: next((i + 1 for i, x in enumerate(path) if x == 0), K)
  yield Case("stops after token 0", p, q, stop)


def check_rule(
    rule: Callable, given: Iterator[Case] | None = None, tolerance=1e-12
) -> None:
  """The rule leaves the target's law as it is, exactly, for every case.

  Without cases: all corners for V = 1..4 and K = 0..3 with V**K <= 27.
  Raises AssertionError naming the case and the error, ValueError for a rule
  that is lossy by name.
  """
  refuse_lossy(rule)
  if given is None:
    sizes = [(V, K) for V in range(1, 5) for K in range(4) if V**K <= 27]
    given = (case for V, K in sizes for case in cases(V, K))
  for case in given:
    out = enumerate_rule(rule, case)
    error = abs(out.law - out.target).max()
    assert error <= tolerance, (
        f"rule ({case.name}, V = {case.p[0].shape[1]}, K = {len(case.q)}): the"
        f" law of the next tokens is off by {error:.1e}."
    )
