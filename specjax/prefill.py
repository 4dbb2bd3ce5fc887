"""Host side of the engine: requests in, states out.

`prefill` allocates everything a loop will need and feeds the prompts;
`refill` hands rows new prompts, `resume` gives them another turn, `rewind`
shortens them, `fork` copies them. Each checks its input and answers with one
sentence. All reduce to `engine.extend` in chunks of a few fixed widths, so
one priming pass compiles everything.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine
from specjax import sampling as samplings
from specjax.sharding import put, size, spec
from specjax.types import (
    RUNNING,
    Commit,
    Logprobs,
    Rows,
    Sampling,
    State,
    Stop,
)

CHUNKS = (16, 64, 256)  # widths in which prompts are read
ALIGN = 128  # 2,049 slots compiled with 20 cache copies on a TPU, 2,048 none

_extend = jax.jit(engine.extend, donate_argnames="state")
Prompts = Sequence[Sequence[int] | None]


def bucket(limit: int, reach: int) -> int:
  """Slots for rows of `limit` tokens and windows of `reach`: 128 * 2^n.

  A window that starts at limit - 1 must fit whole, since a clamped write
  would destroy good slots.
  """
  slots = ALIGN
  while slots < limit + reach:
    slots *= 2
  return slots


def check_pair(target, drafter) -> None:
  """Raises ValueError when the drafter speaks another vocabulary."""
  if drafter.vocab not in (None, target.vocab):
    raise ValueError(
        f"drafter: its vocabulary has {drafter.vocab} tokens, the target's"
        f" {target.vocab}; choose a drafter that shares the target's tokens."
    )


def prefill(
    target,
    drafter,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    sampling: Sampling | dict | None = None,
    seed: int | Sequence[int] = 0,
    eos: Sequence[int] = (),
    width: int | Sequence[int] | None = None,
    stop: tuple[np.ndarray, np.ndarray] | None = None,
    stop_mask: int | Sequence[int] = -1,
    logprobs: int | None = None,
    penalties: bool | None = None,
    capacity: int | None = None,
    chunks: Sequence[int] = CHUNKS,
) -> State:
  """Reads ragged prompts (lists of token ids) -> State, ready to generate.

  One value serves all rows, or one a row: `max_new_tokens`, `seed` (an int
  gives row i seed + i), `width` (this row's K, 0 = off), `stop_mask` (bit i:
  string i of the `text.stop_table` given as `stop`). `sampling`: fields of
  `sampling.params`. `logprobs`: keep those of emitted tokens and of the n
  likeliest. `penalties`: keep counts for a later `refill`. `capacity`: slots
  a row, by default the bucket that fits. Raises ValueError in one sentence.
  """
  check_pair(target, drafter)
  chunks = _chunks(chunks)
  prompts = list(prompts)
  B, parts = len(prompts), size("batch")
  if not B or B % parts:
    raise ValueError(
        f"prefill: {B} prompts do not spread over {parts} data shards; give a"
        f" positive multiple of {parts}."
    )
  if any(p is None for p in prompts):
    raise ValueError("prefill: a prompt is None; every row needs a prompt.")
  wish = _wishes(
      B, target.vocab, drafter.K, max_new_tokens=max_new_tokens,
      sampling=sampling, seed=seed, eos=eos, width=width, stop_mask=stop_mask,
  )
  texts = [_ids(p, i, target.vocab) for i, p in enumerate(prompts)]
  _nonempty(texts)
  limits = np.array([len(t) for t in texts]) + wish["new"]
  reach = max(drafter.K + 1, *chunks)
  need = int(limits.max()) + reach
  if capacity is None:
    capacity = bucket(int(limits.max()), reach)
  if capacity < need:
    raise ValueError(
        f"prefill: capacity = {capacity} is too small; the longest row and the"
        f" widest window after it need {need} slots."
    )
  if penalties is None:
    penalties = samplings.penalised(wish["sampling"])
  if logprobs is not None and not 0 <= logprobs <= target.vocab:
    raise ValueError(
        f"prefill: logprobs = {logprobs} must lie in 0..{target.vocab}."
    )
  rows = _rows(wish, texts, np.ones(B, np.int32), target.vocab, capacity,
               penalties, logprobs)
  rows = _place(rows, stop, wish["stop_mask"])
  cache, first = target.start(rows.tokens, rows.length, capacity)
  shape = jax.eval_shape(target, first, rows.length, cache, drafter.taps)[1]
  features = jnp.zeros(
      (B, drafter.K + 1, shape.shape[-1]),
      shape.dtype,
      out_sharding=spec("batch", None, None),
  )
  dstate = drafter.init(target, rows.tokens, capacity)
  last = _first(rows, features)
  state = State(rows, cache, dstate, last)
  return _feed(target, drafter, state, [t[1:] for t in texts], chunks)


def refill(
    target, drafter, state: State, prompts: Prompts, *,
    chunks: Sequence[int] = CHUNKS, **options,
) -> State:
  """Starts rows anew: prompts[i] replaces row i, None leaves it alone.

  `options` are the per-row ones of `prefill`. Nothing is moved or cleared:
  a row's length says what is true of it. Donates `state`.
  """
  wish, texts = _checked(target, drafter, state, prompts, options)
  _nonempty([t for t in texts if t is not None])
  begin = np.ones(len(texts), np.int32)
  state, rest = _admit(target, state, wish, texts, begin)
  taken = put(np.array([t is not None for t in texts]), "batch")
  blank = _first(state.rows, state.last.features)
  state = state._replace(last=engine.choose(taken, blank, state.last))
  return _feed(target, drafter, state, rest, _chunks(chunks))


def resume(
    target, drafter, state: State, prompts: Prompts, *,
    chunks: Sequence[int] = CHUNKS, **options,
) -> State:
  """Another turn: appends prompts[i] to row i (None leaves it alone).

  Only the new tokens are read. Repetition then sees all text so far,
  presence and frequency the new output only. Donates `state`.
  """
  wish, texts = _checked(target, drafter, state, prompts, options)
  old = texts_of(state)
  begin = np.array([len(o) for o in old], np.int32)
  joined = [None if t is None else o + t for o, t in zip(old, texts)]
  state, rest = _admit(target, state, wish, joined, begin)
  return _feed(target, drafter, state, rest, _chunks(chunks))


def rewind(target, drafter, state: State, lengths, *, chunks=CHUNKS) -> State:
  """Shortens rows to `lengths` [B] and sets them running again.

  Re-runs the target from length - 2, since the feature that predicted the
  new last token was not kept. Stop strings are forgotten: they match in new
  text only. Raises ValueError for lengths outside 1..length. Donates `state`.
  """
  rows, texts = state.rows, texts_of(state)
  lengths = np.asarray(lengths, np.int32)
  for i, (n, text) in enumerate(zip(lengths, texts)):
    if not 1 <= n <= len(text):
      raise ValueError(
          f"rewind: length {n} of row {i} must lie in 1..{len(text)}."
      )
  kept = [t[:n] for t, n in zip(texts, lengths)]
  short = np.maximum(lengths - 1, 1)
  dstate = jax.jit(drafter.ingest)(target, state.draft, state.last)
  zero = jnp.zeros_like(rows.length)
  prompt = np.minimum(np.asarray(rows.prompt), lengths)
  fresh = dict(
      length=put(short, "batch"),
      prompt=put(prompt, "batch"),
      finish=zero,
  )
  if rows.stop is not None:
    fresh["stop"] = rows.stop._replace(state=zero)
  if rows.counts is not None:
    pairs = [(t[:p], t[p:]) for t, p in zip(kept, prompt)]
    counts = _counts(pairs, target.vocab)
    fresh["counts"] = put(counts, "batch", None, "vocab")
  rows = rows._replace(**fresh)
  last = state.last
  blank = Commit(last.tokens, last.features * 0, zero, rows.length)
  first = _first(rows, last.features)
  last = engine.choose(put(lengths == 1, "batch"), first, blank)
  state = State(rows, state.cache, dstate, last)
  rest = [t[n:] for t, n in zip(kept, short)]
  return _feed(target, drafter, state, rest, _chunks(chunks))


def fork(state: State, index: Sequence[int], seed) -> State:
  """Row i of the result is a copy of row index[i] with its own seed.

  Several samples of one prompt from one prefill. The state given stays
  usable. `seed` is as in `prefill`.
  """
  index = np.asarray(index, np.int32)
  B = state.rows.length.shape[0]
  if index.ndim != 1 or not len(index) or index.min() < 0 or index.max() >= B:
    raise ValueError(f"fork: index must list rows from 0 to {B - 1}.")
  stop = state.rows.stop
  tables = None if stop is None else (stop.next, stop.hit)
  bare = state._replace(rows=_bare(state.rows))
  take = lambda x: x.at[index].get(out_sharding=_layout(x))
  out = jax.tree.map(take, bare)
  rows = _with_tables(out.rows, tables)
  return out._replace(rows=rows._replace(key=_keys(seed, len(index))))


def texts_of(state: State) -> list[list[int]]:
  """The committed tokens of every row, prompt included."""
  tokens = np.asarray(state.rows.tokens)
  lengths = np.asarray(state.rows.length)
  return [tokens[i, :n].tolist() for i, n in enumerate(lengths)]


def outputs_of(state: State) -> list[list[int]]:
  """The tokens that this turn emitted, a list a row."""
  prompt = np.asarray(state.rows.prompt)
  return [t[p:] for t, p in zip(texts_of(state), prompt)]


def _checked(target, drafter, state, prompts, options):
  """(wishes, texts) of a batch in which None leaves a row alone."""
  B = state.rows.length.shape[0]
  if len(prompts) != B:
    raise ValueError(
        f"prompts: there are {len(prompts)} for {B} rows; give one a row, None"
        " for a row to leave alone."
    )
  wish = _wishes(B, target.vocab, drafter.K, **options)
  texts = [
      None if p is None else _ids(p, i, target.vocab)
      for i, p in enumerate(prompts)
  ]
  return wish, texts


def _admit(target, state, wish, texts, begin):
  """Rows whose text is given start with `begin` of its tokens -> (state,
  tokens still to feed)."""
  old = state.rows
  L = old.tokens.shape[1]
  reach = max(state.last.tokens.shape[1], *CHUNKS)
  for i, (text, new) in enumerate(zip(texts, wish["new"])):
    if text is not None and len(text) + new + reach > L:
      raise ValueError(
          f"row {i}: {len(text)} tokens, {new} new ones and a window of"
          f" {reach} do not fit its {L} slots; prefill with a larger capacity."
      )
  logprobs = old.logprobs and old.logprobs.top.shape[-1]
  filled = [[0] if t is None else t for t in texts]
  rows = _rows(wish, filled, begin, target.vocab, L, old.counts is not None,
               logprobs)
  _same_room(rows, old, wish)
  stop = None if old.stop is None else (old.stop.next, old.stop.hit)
  rows = _place(rows, stop, wish["stop_mask"], old.eos.shape[1], old)
  taken = put(np.array([t is not None for t in texts]), "batch")
  merged = engine.choose(taken, _bare(rows), _bare(old))
  state = state._replace(rows=_with_tables(merged, stop))
  rest = [[] if t is None else t[n:] for t, n in zip(texts, begin)]
  return state, rest


def _same_room(rows, old, wish):
  if rows.sampling.bias is not None and old.sampling.bias is None:
    raise ValueError(
        "sampling: bias or bans were not foreseen; give them to prefill too."
    )
  if old.counts is None and samplings.penalised(wish["sampling"]):
    raise ValueError(
        "sampling: penalties were not foreseen; call prefill with"
        " penalties=True."
    )
  if rows.eos.shape[1] > old.eos.shape[1]:
    raise ValueError(
        f"eos: {rows.eos.shape[1]} end tokens, but prefill was given"
        f" {old.eos.shape[1]}."
    )


def _bare(rows: Rows) -> Rows:
  """Rows without what has no batch axis: the stop strings' tables."""
  stop = rows.stop
  return rows._replace(stop=None if stop is None else stop[:2])


def _with_tables(rows: Rows, tables) -> Rows:
  return rows if tables is None else rows._replace(
      stop=Stop(*rows.stop, *tables)
  )


def _layout(x):
  layout = jax.typeof(x).sharding
  return None if layout.mesh.empty else layout.spec


def _first(rows: Rows, features) -> Commit:
  """The window that holds a fresh row's first token, at position 0."""
  one = jnp.ones_like(rows.length)
  tokens = rows.tokens[:, : features.shape[1]]
  return Commit(tokens, jnp.zeros_like(features), one, one - 1)


def _feed(target, drafter, state, rest, chunks) -> State:
  """Commits rest[i] to row i, all rows side by side, chunk by chunk."""
  done, longest = 0, max(map(len, rest))
  while done < longest:
    fits = [c for c in chunks if c <= longest - done]
    width = fits[-1] if fits else chunks[0]
    chunk = np.zeros((len(rest), width), np.int32)
    count = np.zeros(len(rest), np.int32)
    for i, tokens in enumerate(rest):
      part = tokens[done : done + width]
      chunk[i, : len(part)], count[i] = part, len(part)
    done += width
    state = _extend(
        target, drafter, state=state,
        chunk=put(chunk, "batch", None), count=put(count, "batch"),
    )
  return state


def _chunks(chunks) -> tuple[int, ...]:
  chunks = tuple(sorted(chunks))
  if not chunks or chunks[0] < 1:
    raise ValueError(f"chunks = {chunks}: give positive widths.")
  return chunks


def _ids(prompt, row: int, vocab: int) -> list[int]:
  ids = np.asarray(prompt)
  if ids.size == 0:
    return []
  if ids.ndim != 1 or ids.dtype.kind not in "iu":
    raise ValueError(
        f"prompt of row {row}: give a list of token ids (whole numbers), as"
        " the tokenizer makes them."
    )
  if ids.min() < 0 or ids.max() >= vocab:
    wrong = int(ids[(ids < 0) | (ids >= vocab)][0])
    raise ValueError(
        f"prompt of row {row}: token {wrong} is outside the vocabulary, 0 to"
        f" {vocab - 1}."
    )
  return ids.tolist()


def _nonempty(texts) -> None:
  for i, text in enumerate(texts):
    if not text:
      raise ValueError(
          f"prompt of row {i}: it is empty; give at least one token, such as"
          " the beginning-of-text token."
      )


def _whole(name: str, given, B: int, least: int, most: int) -> np.ndarray:
  """One whole number for all rows, or one a row, within bounds."""
  x = np.asarray(given)
  if x.dtype.kind not in "iu" or x.ndim > 1 or (x.ndim and len(x) != B):
    raise ValueError(
        f"{name} = {given!r}: give one whole number, or one for each of {B}"
        " rows."
    )
  x = np.broadcast_to(x, (B,))
  bad = (x < least) | (x > most)
  if bad.any():
    row = int(np.argmax(bad))
    raise ValueError(
        f"{name} = {x[row]} in row {row}; it must lie in {least}..{most}."
    )
  return x


def _wishes(
    B, vocab, K, *, max_new_tokens, sampling=None, seed=0, eos=(), width=None,
    stop_mask=-1,
) -> dict:
  """The per-row options of `prefill`, checked, as host arrays."""
  if not isinstance(sampling, Sampling):
    sampling = samplings.params(B, vocab=vocab, **(sampling or {}))
  ends = np.asarray(list(eos), np.int64)
  if ends.ndim != 1 or ((ends < 0) | (ends >= vocab)).any():
    raise ValueError(
        f"eos = {list(eos)}: give token ids between 0 and {vocab - 1}."
    )
  return dict(
      new=_whole("max_new_tokens", max_new_tokens, B, 1, 2**30),
      sampling=sampling,
      key=_seeds(seed, B),
      eos=np.broadcast_to(ends, (B, len(ends))),
      width=_whole("width", K if width is None else width, B, 0, K),
      stop_mask=_whole("stop_mask", stop_mask, B, -(2**31), 2**31 - 1),
  )


def _seeds(seed, B: int) -> np.ndarray:
  """Threefry key data [B 2]; an int gives row i the seed plus i."""
  seeds = (
      [(int(seed) + i) % 2**64 for i in range(B)]
      if np.ndim(seed) == 0
      else [int(s) for s in seed]
  )
  if len(seeds) != B:
    raise ValueError(f"seed: {len(seeds)} seeds for {B} rows.")
  if min(seeds) < 0 or max(seeds) >= 2**64 or (np.ndim(seed) == 0 and seed < 0):
    raise ValueError(f"seed = {seed}: seeds lie between 0 and 2^64 - 1.")
  return np.array([(s >> 32, s & 0xFFFFFFFF) for s in seeds], np.uint32)


def _keys(seed, B: int) -> jax.Array:
  # Named, since rbg keys are not batch-invariant.
  return jax.random.wrap_key_data(
      put(_seeds(seed, B), "batch", None), impl="threefry2x32"
  )


def _counts(pairs, vocab: int) -> np.ndarray:
  count = lambda ids: np.bincount(np.asarray(ids, np.int64), minlength=vocab)
  return np.stack([[count(a), count(b)] for a, b in pairs]).astype(np.int32)


def _rows(wish, texts, begin, vocab, L, penalties, logprobs) -> Rows:
  """Host-side Rows: texts[i] is row i's whole prompt, of which `begin` [B]
  tokens count as committed already."""
  B = len(texts)
  tokens = np.zeros((B, L), np.int32)
  for i, (text, n) in enumerate(zip(texts, begin)):
    tokens[i, : min(n, len(text))] = text[:n]
  length = np.array([len(t) for t in texts], np.int32)
  zeros = lambda *shape, dtype=np.float32: np.zeros((B, L, *shape), dtype)
  kept = None
  if logprobs is not None:
    kept = Logprobs(
        zeros(), zeros(), zeros(logprobs), zeros(logprobs, dtype=np.int32)
    )
  return Rows(
      tokens=tokens,
      length=begin.astype(np.int32),
      prompt=length,
      limit=(length + wish["new"]).astype(np.int32),
      finish=np.full(B, RUNNING, np.int32),
      key=wish["key"],
      sampling=wish["sampling"],
      width=wish["width"].astype(np.int32),
      eos=wish["eos"].astype(np.int32),
      stop=None,
      counts=_counts([(t, []) for t in texts], vocab) if penalties else None,
      logprobs=kept,
  )


def _place(rows: Rows, stop, stop_mask, ends=None, old=None) -> Rows:
  """Host Rows onto the mesh, in the shape that `old` rows already have."""
  B = len(rows.length)
  row = lambda x: put(x, "batch")
  s = rows.sampling
  bias = s.bias
  if bias is None and old is not None and old.sampling.bias is not None:
    bias = np.zeros(old.sampling.bias.shape, np.float32)
  eos = np.asarray(rows.eos)
  if ends is not None:
    pad = ((0, 0), (0, ends - eos.shape[1]))
    eos = np.pad(eos, pad, constant_values=-1)
  tables = None
  if stop is not None:
    next_state, hit = (put(x, None, None) for x in stop)
    zero = np.zeros(B, np.int32)
    tables = Stop(row(zero), row(stop_mask.astype(np.int32)), next_state, hit)
  return rows._replace(
      tokens=put(rows.tokens, "batch", None),
      length=row(rows.length),
      prompt=row(rows.prompt),
      limit=row(rows.limit),
      finish=row(rows.finish),
      key=jax.random.wrap_key_data(
          put(rows.key, "batch", None), impl="threefry2x32"
      ),
      sampling=Sampling(
          *map(row, s[:-1]),
          None if bias is None else put(bias, "batch", "vocab"),
      ),
      width=row(rows.width),
      eos=put(eos, "batch", None),
      stop=tables,
      counts=None
      if rows.counts is None
      else put(rows.counts, "batch", None, "vocab"),
      logprobs=None
      if rows.logprobs is None
      else Logprobs(
          *(
              put(x, "batch", *[None] * (x.ndim - 1))
              for x in rows.logprobs
          )
      ),
  )
