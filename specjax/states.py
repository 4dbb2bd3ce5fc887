"""Host side of the engine: prompts in, states out.

`prefill` allocates everything a loop will need and feeds the prompts;
`refill` hands rows new prompts, `resume` gives them another turn, `rewind`
shortens them, `fork` copies them. Each checks its input and answers with one
sentence. All reduce to `engine.extend` in chunks of a few fixed widths, so
one priming pass compiles everything. Where the target has an encoder, that
reads the prompts whole and the texts begin with the opening token alone.
A mesh is filled up with unused rows, which none of these shows.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine
from specjax import sampling as samplings
from specjax.intake import (
    host_rows,
    nonempty,
    occurrences,
    place,
    row_keys,
    seeds,
    sources,
    stop_tables,
    token_ids,
    whole,
    wishes,
)
from specjax.processes import fetch
from specjax.sharding import put, size, spec
from specjax.types import (
    BUDGET,
    RUNNING,
    UNUSED,
    Commit,
    Rows,
    Sampling,
    Source,
    State,
    Stop,
)

CHUNKS = (16, 64, 256)  # widths in which prompts are read
ALIGN = 128  # 2,049 slots compiled with 20 cache copies on a TPU, 2,048 none
READ = 16  # the fewest slots of an encoder's source

_extend = jax.jit(engine.extend, donate_argnames="state")
# Jitted though never run: then its trace is kept, a second for 30 layers.
_features = jax.jit(
    lambda target, drafter, *window: target(*window, drafter.taps)[1]
)
_catch_up = jax.jit(engine.catch_up, donate_argnames="state")
_ingest = jax.jit(lambda target, drafter, *rest: drafter.ingest(target, *rest))
Prompts = Sequence[Sequence[int] | None]


@jax.jit(static_argnames="capacity")
def _start(target, drafter, source: Source, capacity: int):
  cache, _ = target.start(*source, capacity)
  return cache, drafter.init(target, source, capacity)


@jax.jit(donate_argnames="memory")
def _restart(target, drafter, memory, rows: Rows, taken):
  """Target's and drafter's memory in which the rows `taken` [B] begin anew."""
  fresh = _start(target, drafter, rows.source, rows.tokens.shape[1])
  return engine.choose(taken, fresh, memory)


def bucket(limit: int, reach: int) -> int:
  """Slots for rows of `limit` tokens and windows of `reach`: 128 * 2^n.

  A window that starts at limit - 1 must fit whole, since a clamped write
  would destroy good slots.
  """
  slots = ALIGN
  while slots < limit + reach:
    slots *= 2
  return slots


def source_bucket(longest: int) -> int:
  """Slots for an encoder's source of so many tokens: 16 * 2^n."""
  return READ << ((longest - 1) // READ).bit_length()


def parted(target, prompts):
  """(what an encoder reads, or None; how the texts begin) of these prompts."""
  if target.opening is None:
    return None, prompts
  return prompts, [p if p is None else [target.opening] for p in prompts]


def source_of(rows: Rows) -> Source:
  """What target and drafter begin from."""
  text = Source(rows.tokens, rows.length)
  return text if rows.source is None else rows.source


def check_pair(target, drafter) -> None:
  """Raises ValueError when the drafter speaks another vocabulary."""
  if drafter.vocab not in (None, target.vocab):
    raise ValueError(
        f"drafter: its vocabulary has {drafter.vocab} tokens, the target's"
        f" {target.vocab}; choose a drafter that shares the target's tokens, or"
        " ask for cross_vocabulary drafting (models.translated)."
    )


def _within_positions(target, drafter, most: int) -> None:
  for model in (target, drafter):
    if model.max_length is not None and most > model.max_length:
      raise ValueError(
          f"prefill: a row may grow to {most} tokens, but learned positions"
          f" end at {model.max_length}; ask for fewer new tokens."
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
    penalties: bool = False,
    capacity: int | None = None,
    source_capacity: int | None = None,
    chunks: Sequence[int] = CHUNKS,
) -> State:
  """Reads ragged prompts (lists of token ids) -> State, ready to generate.

  One value serves all rows, or one a row: `max_new_tokens`, `seed` (an int
  gives row i seed + i), `width` (this row's K, 0 = off), `stop_mask` (bit i:
  string i of the `stops.stop_table` given as `stop`). `sampling`: fields of
  `sampling.params`. `logprobs`: keep those of emitted tokens and of the n
  likeliest. `penalties`: keep counts that only a later `refill` needs.
  `capacity`: slots a row, by default the bucket that fits. A target with an
  encoder reads the prompts there, in `source_capacity` slots (by default the
  power of two that fits); they are no part of the rows' tokens, so neither
  penalties nor `capacity` count them. Prompts that do not spread evenly over
  the mesh get unused rows after them. Raises ValueError in one sentence.
  """
  check_pair(target, drafter)
  chunks = _chunks(chunks)
  if not hasattr(prompts, "__len__"):
    raise ValueError(f"prompts = {prompts!r}: give a list of token id lists.")
  prompts = list(prompts)
  B, spare = len(prompts), _spare(len(prompts))
  if not B:
    raise ValueError("prefill: no prompts; give at least one.")
  if any(p is None for p in prompts):
    raise ValueError("prefill: a prompt is None; every row needs a prompt.")
  wish = wishes(
      B, target.vocab, drafter.K, max_new_tokens=max_new_tokens,
      sampling=sampling, seed=seed, eos=eos, width=width, stop_mask=stop_mask,
  )
  texts = [token_ids(p, i, target.vocab) for i, p in enumerate(prompts)]
  nonempty(texts)
  wish, texts = _filled(wish, spare), texts + [texts[0][:1]] * spare
  read, texts = parted(target, texts)
  source = None if read is None else sources(read, _room(read, source_capacity))
  if read is None and source_capacity is not None:
    raise ValueError(
        "prefill: source_capacity is for targets with an encoder; this one"
        " has none, leave it out."
    )
  limits = np.array([len(t) for t in texts]) + wish["new"]
  _within_positions(target, drafter, int(limits.max()))
  reach = max(drafter.K + 1, *chunks)
  need = int(limits.max()) + reach
  if capacity is None:
    capacity = bucket(int(limits.max()), reach)
  capacity = int(whole("capacity", capacity, 1, 1, 2**30)[0])
  if capacity < need:
    raise ValueError(
        f"prefill: capacity = {capacity} is too small; the longest row and the"
        f" widest window after it need {need} slots."
    )
  penalties = bool(penalties) or samplings.penalised(wish["sampling"])
  if logprobs is not None:
    logprobs = int(whole("logprobs", logprobs, 1, 0, target.vocab)[0])
  ones = np.ones(B + spare, np.int32)
  rows = host_rows(wish, texts, ones, target.vocab, capacity, penalties,
               logprobs, source)
  rows.finish[B:] = UNUSED
  if stop is not None:
    if not isinstance(stop, tuple | list) or len(stop) != 2:
      raise ValueError("stop: give the two tables that stops.stop_table made.")
    stop = stop_tables(*stop, target.vocab)
  rows = place(rows, stop, wish["stop_mask"])
  cache, dstate = _start(target, drafter, source_of(rows), capacity)
  shape = _features.eval_shape(
      target, drafter, rows.tokens[:, :1], rows.length, cache
  )
  features = jnp.zeros(
      (B + spare, drafter.K + 1, shape.shape[-1]),
      shape.dtype,
      out_sharding=spec("batch", None, None),
  )
  last = _first(rows, features)
  state = State(rows, cache, dstate, last)
  return _feed(target, drafter, state, [t[1:] for t in texts], chunks)


def refill(
    target, drafter, state: State, prompts: Prompts, *,
    chunks: Sequence[int] = CHUNKS, **options,
) -> State:
  """Starts rows anew: prompts[i] replaces row i, None leaves it alone.

  `options` are the per-row ones of `prefill`. Nothing is moved or cleared:
  a row's length says what is true of it. An encoder reads again, within the
  room that `prefill` gave it. Donates `state`.
  """
  wish, texts = _checked(target, drafter, state, prompts, options)
  nonempty([t for t in texts if t is not None])
  begin = np.ones(len(texts), np.int32)
  chunks = _chunks(chunks)
  read, texts = parted(target, texts)
  state, rest = _admit(target, drafter, state, wish, texts, begin, chunks, read)
  taken = put(np.array([t is not None for t in texts]), "batch")
  if read is not None:
    memory = (state.cache, state.draft)
    cache, draft = _restart(target, drafter, memory, state.rows, taken)
    state = state._replace(cache=cache, draft=draft)
  blank = _first(state.rows, state.last.features)
  state = state._replace(last=engine.choose(taken, blank, state.last))
  return _feed(target, drafter, state, rest, chunks)


def resume(
    target, drafter, state: State, prompts: Prompts, *,
    chunks: Sequence[int] = CHUNKS, **options,
) -> State:
  """Another turn: appends prompts[i] to row i (None leaves it alone).

  Only the new tokens are read. Repetition then sees all text so far,
  presence and frequency the new output only. Refused for a target with an
  encoder, which reads a prompt once. Donates `state`.
  """
  if target.opening is not None:
    raise ValueError(
        "resume: this target reads a prompt once, with its encoder; give rows"
        " their next prompt by refill."
    )
  wish, texts = _checked(target, drafter, state, prompts, options)
  old = _texts(state)
  begin = np.array([len(o) for o in old], np.int32)
  joined = [None if t is None else o + t for o, t in zip(old, texts)]
  chunks = _chunks(chunks)
  state, rest = _admit(target, drafter, state, wish, joined, begin, chunks)
  state = caught_up(target, drafter, state)
  return _feed(target, drafter, state, rest, chunks)


def rewind(target, drafter, state: State, lengths, *, chunks=CHUNKS) -> State:
  """Shortens rows to `lengths` [B] and sets them running again.

  Re-runs the target from length - 2, since the feature that predicted the
  new last token was not kept. Stop strings are forgotten: they match in new
  text only. Raises ValueError for lengths outside 1..length. Donates `state`.
  """
  rows, texts = state.rows, _texts(state)
  chunks, L = _chunks(chunks)[:1], rows.tokens.shape[1]
  lengths, B = np.asarray(lengths), used(state)
  if lengths.dtype.kind not in "iu" or lengths.shape != (B,):
    raise ValueError(f"rewind: give {B} lengths, a whole number for each row.")
  lengths = np.append(lengths, np.ones(len(texts) - B, int))
  if max(map(len, texts)) + chunks[0] > L:
    raise ValueError(
        f"rewind: a window of {chunks[0]} after the longest row does not fit"
        f" its {L} slots; give smaller chunks."
    )
  for i, (n, text) in enumerate(zip(lengths, texts)):
    if not 1 <= n <= len(text):
      raise ValueError(
          f"rewind: length {n} of row {i} must lie in 1..{len(text)}."
      )
  lengths = lengths.astype(np.int32)  # after the check, so nothing wraps
  state = caught_up(target, drafter, state)
  rows = state.rows
  kept = [t[:n] for t, n in zip(texts, lengths)]
  short = np.maximum(lengths - 1, 1)
  dstate = _ingest(target, drafter, state.draft, state.last)
  zero = jnp.zeros_like(rows.length)
  prompt = np.minimum(fetch(rows.prompt), lengths)
  # A row that has no budget left would write one token too many.
  finish = jnp.where(put(lengths, "batch") >= rows.limit, BUDGET, RUNNING)
  fresh = dict(
      length=put(short, "batch"),
      prompt=put(prompt, "batch"),
      finish=jnp.where(rows.finish == UNUSED, UNUSED, finish),
  )
  if rows.stop is not None:
    fresh["stop"] = rows.stop._replace(state=zero)
  if rows.counts is not None:
    pairs = [(t[:p], t[p:]) for t, p in zip(kept, prompt)]
    counts = occurrences(pairs, target.vocab)
    fresh["counts"] = put(counts, "batch", None, "vocab")
  rows = rows._replace(**fresh)
  last = state.last
  nothing = jnp.zeros_like(last.features)  # what was there may be NaN
  blank = Commit(last.tokens, nothing, zero, rows.length)
  first = _first(rows, last.features)
  last = engine.choose(put(lengths == 1, "batch"), first, blank)
  state = State(rows, state.cache, dstate, last)
  rest = [t[n:] for t, n in zip(kept, short)]
  return _feed(target, drafter, state, rest, chunks)


def fork(state: State, index: Sequence[int], seed) -> State:
  """Row i of the result is a copy of row index[i] with its own seed.

  Several samples of one prompt from one prefill. The state given stays
  usable. `seed` is as in `prefill`.
  """
  index, B = np.asarray(index), used(state)
  whole = index.ndim == 1 and len(index) and index.dtype.kind in "iu"
  if not whole or index.min() < 0 or index.max() >= B:
    raise ValueError(f"fork: index must list rows from 0 to {B - 1}.")
  wish, many = dict(key=seeds(seed, len(index))), len(index)
  index = np.append(index, np.full(_spare(many), index[0]))
  wish = _filled(wish, len(index) - many)
  stop = state.rows.stop
  # Copied, since the loop will donate them.
  tables = None if stop is None else (stop.next.copy(), stop.hit.copy())
  bare = state._replace(rows=_bare(state.rows))
  take = lambda x: x.at[index].get(out_sharding=_layout(x))
  out = jax.tree.map(take, bare)
  rows = _with_tables(out.rows, tables)
  real = put(np.arange(len(index)) < many, "batch")
  finish = jnp.where(real, rows.finish, UNUSED)
  rows = rows._replace(key=row_keys(wish["key"]), finish=finish)
  return out._replace(rows=rows)


def caught_up(target, drafter, state: State) -> State:
  """The state with a drafter that has read all but what `last` has room for,
  as it may not have while nothing was drafted. Donates `state` if need be."""
  if (fetch(state.last.count) <= state.last.tokens.shape[1]).all():
    return state
  return _catch_up(target, drafter, state=state)


def used(state: State) -> int:
  """How many rows have a text; the others, after them, fill up a mesh."""
  return int(np.sum(fetch(state.rows.finish) != UNUSED))


def texts_of(state: State) -> list[list[int]]:
  """The committed tokens of every row in use, prompt included."""
  return _texts(state)[: used(state)]


def _texts(state: State) -> list[list[int]]:
  tokens, lengths = fetch((state.rows.tokens, state.rows.length))
  return [tokens[i, :n].tolist() for i, n in enumerate(lengths)]


def outputs_of(state: State) -> list[list[int]]:
  """The tokens that this turn emitted, a list a row in use."""
  return [t[p:] for t, p in zip(texts_of(state), fetch(state.rows.prompt))]


def _spare(many: int) -> int:
  """Rows after so many that make them spread evenly over the mesh."""
  return -many % size("batch")


def _filled(wish: dict, spare: int) -> dict:
  """Wishes of some rows, and of unused ones like the first after them."""
  more = lambda x: np.concatenate([x, np.repeat(x[:1], spare, 0)])
  return jax.tree.map(more, wish)


def _checked(target, drafter, state, prompts, options):
  """(wishes, texts) of a batch in which None leaves a row alone."""
  B = used(state)
  if not hasattr(prompts, "__len__") or len(prompts) != B:
    raise ValueError(
        f"prompts: give a list of {B}, one a row, with None for a row to leave"
        " alone."
    )
  wish = wishes(B, target.vocab, drafter.K, **options)
  texts = [
      None if p is None else token_ids(p, i, target.vocab)
      for i, p in enumerate(prompts)
  ]
  spare = state.rows.length.shape[0] - B
  return _filled(wish, spare), texts + [None] * spare


def _room(read, slots: int | None) -> int:
  """Slots for what an encoder reads, checked or chosen."""
  longest = max(map(len, read))
  if slots is None:
    return source_bucket(longest)
  slots = int(whole("source_capacity", slots, 1, 1, 2**30)[0])
  if longest > slots:
    raise ValueError(
        f"source_capacity = {slots} is too small; the longest prompt has"
        f" {longest} tokens."
    )
  return slots


def _admit(target, drafter, state, wish, texts, begin, chunks, read=None):
  """Rows whose text is given start with `begin` of its tokens -> (state,
  tokens still to feed). `read`: prompts for the encoder, if there is one."""
  old = state.rows
  L = old.tokens.shape[1]
  reach = max(state.last.tokens.shape[1], *chunks)
  held = fetch(old.length)  # a chunk is written above every row
  most = [
      int(n) if text is None else len(text) + int(new)
      for n, text, new in zip(held, texts, wish["new"])
  ]
  for i, n in enumerate(most):
    if n + reach > L:
      raise ValueError(
          f"row {i}: {n} tokens and a window of {reach} after them do not fit"
          f" its {L} slots; prefill with a larger capacity, or read in"
          " smaller chunks."
      )
  _within_positions(target, drafter, max(most))
  logprobs = old.logprobs and old.logprobs.top.shape[-1]
  filled = [[0] if t is None else t for t in texts]
  source = None
  if read is not None:
    read = [r or [] for r in read]
    source = sources(read, _room(read, old.source.tokens.shape[1]))
  rows = host_rows(wish, filled, begin, target.vocab, L, old.counts is not None,
               logprobs, source)
  _same_room(rows, old, wish)
  stop = None if old.stop is None else (old.stop.next, old.stop.hit)
  rows = place(rows, stop, wish["stop_mask"], old.eos.shape[1], old)
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
  given = [chunks] if np.ndim(chunks) == 0 else list(chunks)
  if not given:
    raise ValueError("chunks = (): give positive widths.")
  return tuple(sorted(whole("chunks", given, len(given), 1, 2**20).tolist()))
