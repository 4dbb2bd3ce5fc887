"""The law of the next tokens: listed from the target alone, then observed.

The reference shares no code with `specjax.sampling`: plain passes over whole
texts and a float64 implementation of the sampling order in numpy. What is
judged is the shipped jit, over many rows that differ by their seed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine, rules
from specjax.processes import fetch
from specjax.sampling import DEFAULTS
from specjax.sharding import put
from specjax.states import fork, parted, prefill
from specjax.types import Source

ALARM = 1e-9  # how often a check may fail though all is well
CELLS = 20_000  # more continuations than this are not listed
MERGED = 10  # cells of fewer expected rows are counted together
SETTINGS = (
    dict(),
    dict(temperature=0.6, top_p=0.9),
    dict(top_k=2),
    dict(temperature=0.0),
)


class Law(NamedTuple):
  """Continuations of one prompt and their probabilities.

  texts [N H] (-1 after an end token), mass [N] in float64, all above zero;
  what is not listed has probability zero.
  """

  texts: np.ndarray
  mass: np.ndarray


def highest(check):
  """Products in float32 for real, also where the hardware prefers less."""

  @functools.wraps(check)
  def wrapped(*args, **options):
    with jax.default_matmul_precision("highest"):
      return check(*args, **options)

  return wrapped


def refuse_lossy(rule: Callable) -> None:
  """Raises ValueError when any part of the rule is named lossy.

  A rule that changes the law says so in its name; there is nothing for an
  exactness check to find out about it.
  """
  parts = [rule]
  for part in parts:
    if isinstance(part, functools.partial):
      parts += [part.func, *filter(callable, part.args)]
      continue
    name = f"{part.__module__}.{getattr(part, '__qualname__', part)}"
    if "lossy" in name.lower():
      raise ValueError(
          f"The rule {name} is lossy by its own name; the conformance kit"
          " judges exact rules only."
      )


def sampling_law(logits, setting: dict, prompt, output, eos=()) -> np.ndarray:
  """The sampling law of one position, float64 [V], by its definition.

  logits [V] after the tokens prompt + output; `setting` has the fields of
  `sampling.params` and may have `bias` and `banned`. Sorts, unlike the
  product; ties at a threshold are kept.
  """
  s = DEFAULTS | setting
  x = np.array(logits, np.float64)
  V = len(x)
  for token, value in (s.get("bias") or {}).items():
    x[token] += value
  x[list(s.get("banned", ()))] = -np.inf
  if len(output) < s["min_new"]:
    x[list(eos)] = -np.inf
  seen = np.isin(np.arange(V), [*prompt, *output])
  scaled = np.where(x > 0, x / s["repetition"], x * s["repetition"])
  x = np.where(seen, scaled, x)
  count = np.bincount(np.array(output, int), minlength=V)
  x = x - s["frequency"] * count - s["presence"] * (count > 0)
  if s["temperature"] == 0:
    return np.eye(V)[np.argmax(x)]
  p = _normal(np.exp((x - x.max()) / s["temperature"]))
  order = np.sort(p)[::-1]
  if 0 < s["top_k"] < V:
    p = _normal(np.where(p >= order[s["top_k"] - 1], p, 0))
  if s["top_p"] < 1:
    order = np.sort(p)[::-1]
    last = np.searchsorted(np.cumsum(order), s["top_p"])
    p = _normal(np.where(p >= order[min(last, V - 1)], p, 0))
  return _normal(np.where(p >= s["min_p"] * p.max(), p, 0))


def _normal(p):
  return p / p.sum()


@highest
def joint_law(
    target, prompt: Sequence[int], horizon: int, setting: dict, eos=()
) -> Law:
  """Lists every continuation of `horizon` tokens that the target can write.

  Whole texts are read from the start, no cache is reused; a prompt that an
  encoder reads is no part of them, and stands there unpadded. Raises ValueError
  when there are more than CELLS of them: shorten the horizon or truncate the
  law (top_k = 2 leaves 2 ** horizon for any vocabulary).
  """
  texts, mass = [()], np.ones(1)
  read, (prompt,) = parted(target, [list(prompt)])
  for _ in range(horizon):
    logits = _next_logits(target, read, prompt, texts, horizon)
    grown, masses = [], []
    for text, m, x in zip(texts, mass, logits):
      if text and (text[-1] in eos or text[-1] < 0):
        grown.append((*text, -1))
        masses.append(m)
        continue
      law = sampling_law(x, setting, prompt, text, eos)
      for token in np.flatnonzero(law):
        grown.append((*text, int(token)))
        masses.append(m * law[token])
    texts, mass = grown, np.array(masses)
    if len(texts) > CELLS:
      raise ValueError(
          f"The law of {horizon} tokens has over {CELLS} continuations;"
          " shorten the horizon or give a setting with top_k."
      )
  return Law(np.array(texts, np.int64).reshape(len(texts), horizon), mass)


def _next_logits(target, read, prompt, texts, horizon, batch=128):
  """Logits [N V] after prompt + text, in passes of one shape."""
  width, out = len(prompt) + horizon, []
  at = len(prompt) + len(texts[0]) - 1
  for begin in range(0, len(texts), batch):
    part = texts[begin : begin + batch]
    tokens = np.zeros((batch, width), np.int32)
    for i, text in enumerate(part):
      tokens[i, : at + 1] = [*prompt, *(max(t, 0) for t in text)]
    begun = tokens if read is None else np.array(read * batch, np.int32)
    length = np.full(batch, begun.shape[1], np.int32)
    source = Source(put(begun, "batch", None), put(length, "batch"))
    logits = _logits_at(target, source, put(tokens, "batch", None), at)
    out.append(fetch(logits)[: len(part)])
  return np.concatenate(out)


@jax.jit
def _logits_at(target, source, tokens, at):
  L = tokens.shape[1]
  cache, _ = target.start(*source, L)
  hidden = target(tokens, jnp.zeros_like(source.length), cache, ())[0]
  one = jax.lax.dynamic_slice_in_dim(hidden, at, 1, 1)
  return target.head(target.norm(one))[:, 0]


@highest
def sample(
    target,
    drafter,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[dict],
    horizon: int,
    *,
    rule: Callable = rules.token,
    rows: int = 8192,
    batch: int = 8192,
    seed: int = 0,
    eos: Sequence[int] = (),
    budget: int | None = None,
    **options,
) -> tuple[np.ndarray, engine.Tally]:
  """`rows` continuations of each prompt under its setting, by the engine.

  All settings are rows of one batch; `batch` rows of each run at a time, so
  4 x 8,192 rows are one call of the compiled program. Returns (tokens
  [S rows H], -1 after an end; the Tally summed over everything). The rows
  may write `budget` tokens, by default K more than the horizon, so that no
  draft inside it is cut short. `options` go to `prefill`.
  """
  budget = horizon + drafter.K if budget is None else budget
  S = len(settings)
  params = {
      name: np.array([s.get(name, default) for s in settings])
      for name, default in DEFAULTS.items()
  }
  params["bias"] = [s.get("bias") for s in settings]
  params["banned"] = [list(s.get("banned", ())) for s in settings]
  if not any(params["bias"]):
    del params["bias"]
  if not any(params["banned"]):
    del params["banned"]
  reach = max(4, drafter.K + 1)
  start = prefill(
      target, drafter, list(prompts), max_new_tokens=budget,
      sampling=params, eos=eos, chunks=(4,),
      **dict(capacity=begun(target, prompts) + budget + reach) | options,
  )
  batch = min(batch, rows)
  out, total = [], None
  for i in range(-(-rows // batch)):
    index = np.repeat(np.arange(S), batch)
    state = fork(start, index, seed + i * S * batch)
    state, tally = engine.generate(
        target, drafter, state, rule=rule, rounds=horizon
    )
    out.append(_emitted(state, horizon).reshape(S, batch, horizon))
    sums = jax.tree.map(lambda x: x.sum(0, dtype=float), fetch(tally))
    total = sums if total is None else jax.tree.map(np.add, total, sums)
  return np.concatenate(out, 1)[:, :rows], total


def begun(target, prompts) -> int:
  """Tokens of the longest text as prompts begin it."""
  return max(map(len, parted(target, prompts)[1]))


def _emitted(state, horizon):
  rows = state.rows
  tokens, length, prompt = fetch((rows.tokens, rows.length, rows.prompt))
  slot = prompt[:, None] + np.arange(horizon)
  text = np.take_along_axis(tokens, slot, 1)
  return np.where(slot < length[:, None], text, -1)


def count(law: Law, observed: np.ndarray) -> tuple[np.ndarray, int]:
  """How many rows of `observed` [R H] fell in each cell, and in none."""
  N = len(law.texts)
  both = np.concatenate([law.texts, observed])
  _, cell = np.unique(both, axis=0, return_inverse=True)
  cell = cell.reshape(-1)
  counts = np.bincount(cell[N:], minlength=cell.max() + 1)[cell[:N]]
  return counts, len(observed) - counts.sum()


def chi_square(counts, mass) -> float:
  """Pearson's test: the probability of counts [N] this far from mass [N].

  Cells of fewer than MERGED expected rows are put together. The statistic's
  exact mean and variance under the multinomial law are matched, since small
  cells give it a longer tail than the textbook's.
  """
  counts, mass = np.asarray(counts, float), np.asarray(mass, float)
  n = counts.sum()
  order = np.argsort(mass)
  counts, mass = counts[order], mass[order]
  small = int(np.sum(n * mass < MERGED))
  while 0 < small < len(mass) and n * mass[:small].sum() < MERGED:
    small += 1
  if small:
    together = lambda x: np.append(x[small:], x[:small].sum())
    counts, mass = together(counts), together(mass)
  k = len(mass)
  if k < 2:
    return 1.0
  expected = n * mass
  statistic = np.sum((counts - expected) ** 2 / expected)
  mean = k - 1
  variance = 2 * mean + (np.sum(1 / mass) - k * k - 2 * k + 2) / n
  scale = variance / (2 * mean)
  with jax.enable_x64(True):
    tail = jax.scipy.special.gammaincc(
        np.float64(mean / scale / 2), np.float64(statistic / scale / 2)
    )
  return float(tail)


@highest
def check_law(
    target,
    drafter,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[dict] = SETTINGS,
    *,
    rule: Callable = rules.token,
    horizon: int = 4,
    rows: int = 65_536,
    alarm: float = ALARM,
    **options,
) -> dict[str, float]:
  """The joint law of the next tokens is the target's, setting by setting.

  `prompts`: one for all settings, or one each. Raises AssertionError when a
  row wrote what has probability zero (for greedy: anything else than the
  one text) or the chi-square test fails; a sound pair does so in one of
  1 / `alarm` runs. Raises ValueError for a rule that is lossy by name.
  `options` go to `sample`. Returns the p-value of each setting.
  """
  refuse_lossy(rule)
  if horizon < drafter.K + 2:
    raise ValueError(
        f"check_law: horizon = {horizon} leaves room for one round of K ="
        f" {drafter.K}; give at least {drafter.K + 2} or a smaller K."
    )
  if len(prompts) == 1:
    prompts = list(prompts) * len(settings)
  eos = options.get("eos", ())
  observed, _ = sample(
      target, drafter, prompts, settings, horizon, rule=rule, rows=rows,
      **options,
  )
  values = {}
  for setting, prompt, texts in zip(settings, prompts, observed):
    name = ", ".join(f"{k} {v}" for k, v in setting.items()) or "plain"
    law = joint_law(target, prompt, horizon, setting, eos)
    counts, impossible = count(law, texts)
    assert not impossible, (
        f"law ({name}): {impossible} of {rows} rows hold a text of"
        " probability zero."
    )
    p = chi_square(counts, law.mass)
    worst = np.argmax(abs(counts - rows * law.mass) / np.sqrt(law.mass))
    assert p >= alarm / len(settings), (
        f"law ({name}): p-value {p:.1e} over {rows} rows; the text"
        f" {law.texts[worst].tolist()} came {counts[worst]} times,"
        f" {rows * law.mass[worst]:.1f} expected."
    )
    values[name] = p
  return values


@highest
def check_acceptance(
    target,
    drafter,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[dict] = SETTINGS,
    *,
    horizon: int = 4,
    rows: int = 8192,
    alarm: float = ALARM,
    **options,
) -> dict[str, float]:
  """Under the token rule, drafts pass as often as sum_v min(p, q) says.

  And the books balance: a round emits what it accepted and one token more,
  less what stops dropped. Raises AssertionError. Returns the sums.
  """
  if len(prompts) == 1:
    prompts = list(prompts) * len(settings)
  observed, tally = sample(
      target, drafter, prompts, settings, horizon, rows=rows, budget=horizon,
      **options,
  )
  info = tally.info
  emitted = int((observed >= 0).sum())
  assert info.emitted == emitted, (
      f"acceptance: the tally says {info.emitted:.0f} emitted tokens, the rows"
      f" hold {emitted}."
  )
  booked = info.accepted + info.rounds - info.dropped
  assert booked == emitted, (
      f"acceptance: {info.accepted:.0f} accepted + {info.rounds:.0f} rounds -"
      f" {info.dropped:.0f} dropped are not {emitted} emitted tokens."
  )
  for i, (reached, passed, overlap) in enumerate(
      zip(info.reached, info.passed, info.overlap)
  ):
    # Freedman's martingale bound; the drafts of a row are not independent.
    log, room = np.log(2 * drafter.K / alarm), overlap * (reached - overlap)
    bound = np.sqrt(2 * log * room / max(reached, 1)) + log
    assert abs(passed - overlap) <= bound, (
        f"acceptance: draft {i} passed {passed:.0f} times of {reached:.0f},"
        f" the overlap of p and q says {overlap:.1f} +- {bound:.1f}."
    )
  return {name: np.sum(x) for name, x in info._asdict().items()}
