"""Logits -> log-probs: per-row parameters, one order, used by everybody.

The order: logit bias and bans, minimum new tokens, logits mask, repetition,
frequency and presence penalties, temperature, top-k, top-p, min-p, normalise.
Repetition sees prompt and output; frequency and presence the output only;
all three also see the draft prefix, so they stay exact inside a block.
Ties at a top-k or top-p threshold are kept.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.sharding import size, spec
from specjax.types import Rows, Sampling

TINY = np.finfo(np.float32).tiny  # what lies below is flushed to zero
COLDEST = 1e-4  # smaller positive temperatures overflow float32 logits

DEFAULTS = dict(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition=1.0,
    presence=0.0,
    frequency=0.0,
    min_new=0,
)

VALID = dict(
    temperature=(
        lambda x: (x == 0) | (x >= COLDEST),
        f"0 for greedy, or at least {COLDEST}",
    ),
    top_k=(lambda x: x >= 0, "0 for off, or positive"),
    top_p=(lambda x: (x > 0) & (x <= 1), "above 0 and at most 1"),
    min_p=(lambda x: (x >= 0) & (x <= 1), "between 0 and 1"),
    repetition=(lambda x: x > 0, "positive; 1 is off"),
    presence=(lambda x: x == x, "a finite number; 0 is off"),
    frequency=(lambda x: x == x, "a finite number; 0 is off"),
    min_new=(lambda x: x >= 0, "0 or positive"),
)


def params(
    batch: int,
    *,
    vocab: int | None = None,
    bias: dict[int, float] | Sequence[dict[int, float] | None] | None = None,
    banned: Sequence[int] | Sequence[Sequence[int]] = (),
    **values,
) -> Sampling:
  """Checked per-row parameters as host arrays; scalars serve every row.

  `bias` maps token -> added logit and `banned` lists forbidden tokens, either
  once for all rows or once a row; both need `vocab`. Raises ValueError naming
  the field, the row and what would be right.
  """
  unknown = sorted(set(values) - set(DEFAULTS))
  if unknown:
    raise ValueError(
        f"sampling: {unknown[0]!r} is unknown; the fields are"
        f" {', '.join(DEFAULTS)}, bias, banned."
    )
  out = {}
  for name, default in DEFAULTS.items():
    try:
      given = np.asarray(values.get(name, default))
    except ValueError:  # rows of different lengths
      given = np.asarray(None)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != batch):
      raise ValueError(
          f"sampling: {name} has shape {given.shape}; give one number, or one"
          f" for each of the {batch} rows."
      )
    if given.dtype.kind not in "iuf":
      wrong = values[name]
      raise ValueError(f"sampling: {name} = {wrong!r} is not a number.")
    x = np.broadcast_to(given, (batch,)).astype(np.float64)
    test, right = VALID[name]
    with np.errstate(over="ignore", under="ignore"):
      single = x.astype(np.float32)  # what the device will see
    single = np.where(np.abs(single) < TINY, 0, single)
    ok = np.isfinite(single) & test(single) & test(x)
    if isinstance(default, int):
      ok &= (x == np.floor(x)) & (x < 2**31)
      right += ", a whole number"
    if not ok.all():
      row = int(np.argmin(ok))
      raise ValueError(
          f"sampling: {name} = {x[row]:g} in row {row}; it must be {right}."
      )
    kind = np.int32 if isinstance(default, int) else np.float32
    out[name] = x.astype(kind)
  return Sampling(**out, bias=_bias(batch, vocab, bias, banned))


def _bias(batch, vocab, bias, banned):
  maps = bias if isinstance(bias, list | tuple) else [bias]
  if not all(isinstance(m, dict | None) for m in maps):
    raise ValueError(
        "sampling: bias maps tokens to numbers, once or once for each row."
    )
  if not hasattr(banned, "__len__"):
    raise ValueError(f"sampling: banned = {banned!r}; give a list of tokens.")
  banned = list(banned)
  if not bias and not banned:
    return None
  if vocab is None:
    raise ValueError("sampling: bias and banned need the vocabulary's size.")
  once = not bias or not isinstance(bias, list | tuple)
  rows = [bias or {}] * batch if once else bias
  nested = bool(banned) and all(hasattr(b, "__len__") for b in banned)
  bans = banned if nested else [banned] * batch
  if len(rows) != batch or len(bans) != batch:
    raise ValueError(
        f"sampling: bias and banned are given once, or once for each of the"
        f" {batch} rows."
    )
  out = np.zeros((batch, vocab), np.float32)
  for i, (row, ban) in enumerate(zip(rows, bans)):
    for token, value in [*(row or {}).items(), *((t, -np.inf) for t in ban)]:
      whole = isinstance(token, int | np.integer)
      if not whole or not 0 <= token < vocab:
        raise ValueError(
            f"sampling: bias or ban of token {token!r} in row {i}; tokens are"
            f" whole numbers from 0 to {vocab - 1}."
        )
      if not isinstance(value, int | float | np.number):
        raise ValueError(f"sampling: bias {value!r} in row {i} is no number.")
      with np.errstate(over="ignore"):
        # What the device will see; a huge whole number becomes inf.
        value = np.float32(max(min(value, 1e300), -1e300))
      if np.isnan(value) or value == np.inf:
        raise ValueError(
            f"sampling: bias {value} of token {token} in row {i} is not a"
            " finite number or -inf."
        )
      out[i, token] += value
  if np.isneginf(out).all(1).any():
    row = int(np.argmax(np.isneginf(out).all(1)))
    raise ValueError(f"sampling: row {row} bans every token; leave one.")
  return out


def penalised(s: Sampling) -> bool:
  """Whether any row of host arrays uses a penalty, which needs counts."""
  return bool(
      (np.asarray(s.repetition) != 1).any()
      or (np.asarray(s.presence) != 0).any()
      or (np.asarray(s.frequency) != 0).any()
  )


def draw_one(key: jax.Array, logp: jax.Array) -> jax.Array:
  """A token of the law logp [V]. Nothing else in the package draws.

  float32 and mode "high": the default mode drew a token of probability 2e-8
  0 times of 50 expected (`tests/laws/test_planted.py` shows it).
  """
  token = jax.random.categorical(key, logp.astype(jnp.float32), mode="high")
  return token.astype(jnp.int32)


def draw(keys: jax.Array, logp: jax.Array) -> jax.Array:
  """keys [B], logp [B V] -> tokens [B], each as `draw_one` draws it."""
  # A single possible token needs no noise, half of a small drafter's time.
  drawn = jnp.any(jnp.sum(logp > -jnp.inf, -1) > 1)
  likeliest = lambda keys, logp: jnp.argmax(logp, -1).astype(jnp.int32)
  return jax.lax.cond(drawn, jax.vmap(draw_one), likeliest, keys, logp)


def log_probs(logits, rows: Rows, ahead, drafted=None, mask=None):
  """The sampling law of every position of a window, float32 [B T V].

  logits [B T V] of any float dtype; `ahead` [B T] or [T] = how many draft
  tokens stand between the committed text and each position; `drafted`
  [B T V] = how often each token occurs among those (needed only while
  `rows.counts` is kept); `mask` [B T V] = allowed tokens, or None.
  """
  s = rows.sampling
  x = logits.astype(jnp.float32)
  if s.bias is not None:
    x = x + s.bias[:, None]
  ahead = jnp.broadcast_to(ahead, x.shape[:2])
  x = _any_row(s.min_new, lambda x: _no_end(x, rows, ahead), x)
  if mask is not None:
    x = jnp.where(mask, x, -jnp.inf)
  if rows.counts is not None:
    x = _penalise(x, s, rows.counts, 0 if drafted is None else drafted)
  return _law(x, s)


def _any_row(asked, then, x):
  """Applies `then` when any row asks; rows that do not ask are unaffected."""
  return jax.lax.cond(jnp.any(asked != 0), then, lambda x: x, x)


def _no_end(x, rows, ahead):
  vocab = jnp.arange(x.shape[-1])
  ends = jnp.any(rows.eos[:, :, None] == vocab, 1)
  young = (rows.length - rows.prompt)[:, None] + ahead
  young = young < rows.sampling.min_new[:, None]
  return jnp.where(ends[:, None] & young[..., None], -jnp.inf, x)


def _penalise(x, s, counts, drafted):
  row = lambda v: v[:, None, None]
  output = counts[:, None, 1] + drafted
  seen = (counts[:, None, 0] + output) > 0
  scaled = jnp.where(x > 0, x / row(s.repetition), x * row(s.repetition))
  x = jnp.where(seen, scaled, x)
  x = x - row(s.frequency) * output
  return x - row(s.presence) * (output > 0)


def _law(x, s):
  row = lambda v: v[:, None, None]
  greedy = row(s.temperature == 0)
  best = jnp.max(x, -1, keepdims=True)
  # Divided after subtracting the maximum, so a low temperature cannot
  # overflow; -inf stays -inf. NaN stays NaN and fails every comparison.
  x = (x - best) / jnp.where(greedy, 1.0, row(s.temperature))
  cut = (s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0)
  cut = cut & (s.temperature > 0)
  # Rows that do not ask keep tokens whose probability float32 calls zero.
  x = _any_row(cut, lambda x: jnp.where(row(cut), _truncate(x, s), x), x)
  sampled = jax.nn.log_softmax(x, -1)
  first = jnp.argmax(x, -1, keepdims=True)
  peak = jnp.arange(x.shape[-1]) == first
  spiked = jnp.where(peak & jnp.isfinite(best), 0.0, -jnp.inf)
  return jnp.where(greedy, spiked, sampled)


def _truncate(x, s):
  """Top-k, top-p over what top-k left, min-p, without a sort."""
  p = jax.nn.softmax(x, -1)
  vocab = x.shape[-1]
  k = jnp.where((s.top_k > 0) & (s.top_k < vocab), s.top_k, vocab)
  p = _any_row(k < vocab, lambda p: _keep(p, k, lambda kept: kept > 0), p)
  # top_p = 1 keeps everything: a rounded sum must not cut the far tail.
  share = jnp.where(s.top_p < 1, s.top_p, jnp.inf)[:, None]
  mass = share * jnp.sum(p, -1)  # of what top-k left
  p = _any_row(s.top_p < 1, lambda p: _keep(p, mass, lambda kept: kept), p)
  floor = s.min_p[:, None, None] * jnp.max(p, -1, keepdims=True)
  return jnp.where((p > 0) & (p >= floor), x, -jnp.inf)


def _keep(p, enough, weigh):
  """Zeroes what lies below the largest threshold that still keeps `enough`.

  Search by halves on the bits of float32 probabilities (non-negative floats
  order as integers): exact, ties kept, works on a sharded axis. There each sum
  is one over chips, so that 15 thresholds are tried at once.
  """
  enough = enough if enough.ndim == 2 else enough[:, None]
  bits = jax.lax.bitcast_convert_type(p, jnp.int32)
  parts = 16 if size("vocab") > 1 else 2
  some = jnp.arange(1, parts)

  def narrow(_, bounds):
    low, high = bounds  # `low` keeps enough, `high` does not
    step = (high - low + parts - 1) // parts
    tried = low[..., None] + some * step[..., None]
    kept = jnp.where(
        bits[..., None, :] >= tried[..., None], p[..., None, :], 0.0
    )
    total = jnp.sum(weigh(kept), -1, dtype=jnp.float32)
    ok = (total >= enough[..., None]) & (tried < high[..., None])
    low = low + step * jnp.sum(ok, -1, dtype=jnp.int32)
    return low, jnp.minimum(low + step, high)

  zero = jnp.zeros(p.shape[:-1], jnp.int32, out_sharding=spec("batch", None))
  one = zero + 0x3F800001  # the float above 1
  times = 31 if parts == 2 else 8
  low, _ = jax.lax.fori_loop(0, times, narrow, (zero, one))
  return jnp.where(bits >= low[..., None], p, 0.0)
