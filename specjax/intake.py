"""Prompts and options, checked, as arrays in the shape of a state.

Whatever is wrong is answered with one sentence that names the field, the row
and what would be right; nothing past this room needs to check again.
"""


import jax
import numpy as np

from specjax import sampling as samplings
from specjax.sharding import put
from specjax.types import RUNNING, Logprobs, Rows, Sampling, Source, Stop


def token_ids(prompt, row: int, vocab: int) -> list[int]:
  ids = _array(prompt)
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


def _array(given) -> np.ndarray:
  """As an array, or one that is of no number kind where numpy refuses."""
  try:
    return np.asarray(given)
  except ValueError:  # lists of different lengths
    return np.asarray(None)


def nonempty(texts) -> None:
  for i, text in enumerate(texts):
    if not text:
      raise ValueError(
          f"prompt of row {i}: it is empty; give at least one token, such as"
          " the beginning-of-text token."
      )


def whole(name: str, given, B: int, least: int, most: int) -> np.ndarray:
  """One whole number for all rows, or one a row, within bounds."""
  x = _array(given)
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


def wishes(
    B, vocab, K, *, max_new_tokens, sampling=None, seed=0, eos=(), width=None,
    stop_mask=-1,
) -> dict:
  """The per-row options of `prefill`, checked, as host arrays."""
  if sampling is not None and not isinstance(sampling, Sampling | dict):
    raise ValueError(
        f"sampling = {sampling!r}: give a dict of fields, or what"
        " specjax.sampling.params made."
    )
  if not isinstance(sampling, Sampling):
    sampling = samplings.params(B, vocab=vocab, **(sampling or {}))
  elif len(sampling.temperature) != B:
    raise ValueError(
        f"sampling: it has {len(sampling.temperature)} rows for {B} prompts;"
        " make it with specjax.sampling.params."
    )
  bias = sampling.bias
  if bias is not None and bias.shape != (B, vocab):
    raise ValueError(
        f"sampling: its bias has shape {bias.shape}; it must be {(B, vocab)}."
    )
  if not hasattr(eos, "__len__"):
    eos = [eos]
  ends = _array(list(eos) or np.zeros(0, int))
  if (
      ends.ndim != 1
      or ends.dtype.kind not in "iu"
      or ((ends < 0) | (ends >= vocab)).any()
  ):
    raise ValueError(
        f"eos = {list(eos)}: give token ids between 0 and {vocab - 1}."
    )
  return dict(
      new=whole("max_new_tokens", max_new_tokens, B, 1, 2**30),
      sampling=sampling,
      key=seeds(seed, B),
      eos=np.broadcast_to(ends, (B, len(ends))),
      width=whole("width", K if width is None else width, B, 0, K),
      stop_mask=whole("stop_mask", stop_mask, B, -(2**31), 2**31 - 1),
  )


def stop_tables(following, hit, vocab: int):
  """A `stops.stop_table` for all of the model's tokens.

  Ids that the tokenizer lacks stand for no bytes: the automaton stands still.
  """
  following, hit = np.asarray(following), np.asarray(hit)
  if following.ndim != 2 or following.shape != hit.shape:
    raise ValueError("stop: give the two tables that stops.stop_table made.")
  more = vocab - hit.shape[1]
  if more < 0:
    raise ValueError(
        f"stop: its table has {hit.shape[1]} tokens, the target's vocabulary"
        f" {vocab}; make it with the target's tokenizer."
    )
  still = np.arange(len(hit), dtype=following.dtype)[:, None]
  return (
      np.concatenate([following, np.repeat(still, more, 1)], 1),
      np.pad(hit, ((0, 0), (0, more))),
  )


def seeds(seed, B: int) -> np.ndarray:
  """Threefry key data [B 2]; an int gives row i the seed plus i."""
  given = [seed] if np.ndim(seed) == 0 else list(seed)
  fits = lambda s: isinstance(s, int | np.integer) and 0 <= s < 2**64
  if not all(map(fits, given)):
    raise ValueError(
        f"seed = {seed}: seeds are whole numbers between 0 and 2^64 - 1."
    )
  numbers = [int(s) for s in given]
  if np.ndim(seed) == 0:
    numbers = [(numbers[0] + i) % 2**64 for i in range(B)]
  if len(numbers) != B:
    raise ValueError(f"seed: {len(numbers)} seeds for {B} rows.")
  return np.array([(s >> 32, s & 0xFFFFFFFF) for s in numbers], np.uint32)


def row_keys(data: np.ndarray) -> jax.Array:
  """Key data [B 2] of `seeds` as keys [B] on the mesh."""
  # Named, since rbg keys are not batch-invariant.
  return jax.random.wrap_key_data(
      put(data, "batch", None), impl="threefry2x32"
  )


def occurrences(pairs, vocab: int) -> np.ndarray:
  count = lambda ids: np.bincount(np.asarray(ids, np.int64), minlength=vocab)
  return np.stack([[count(a), count(b)] for a, b in pairs]).astype(np.int32)


def padded(texts, slots: int) -> np.ndarray:
  """Lists of token ids -> [B slots], zeros after each."""
  tokens = np.zeros((len(texts), slots), np.int32)
  for i, text in enumerate(texts):
    tokens[i, : len(text)] = text
  return tokens


def sources(texts, slots: int) -> Source:
  """What an encoder reads, host-side."""
  return Source(padded(texts, slots), _lengths(texts))


def _lengths(texts) -> np.ndarray:
  return np.array([len(t) for t in texts], np.int32)


def host_rows(
    wish, texts, begin, vocab, L, penalties, logprobs, source=None
) -> Rows:
  """Host-side Rows: texts[i] is row i's whole prompt, of which `begin` [B]
  tokens count as committed already."""
  B = len(texts)
  tokens = padded([t[:n] for t, n in zip(texts, begin)], L)
  length = _lengths(texts)
  zeros = lambda *shape, dtype=np.float32: np.zeros((B, L, *shape), dtype)
  counts = kept = None
  if penalties:
    counts = occurrences([(t, []) for t in texts], vocab)
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
      counts=counts,
      logprobs=kept,
      source=source,
  )


def place(rows: Rows, stop, stop_mask, ends=None, old=None) -> Rows:
  """Host Rows onto the mesh, in the shape that `old` rows already have."""
  B = len(rows.length)
  row = lambda x: put(x, "batch")
  s, source = rows.sampling, rows.source
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
      key=row_keys(rows.key),
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
      source=None
      if source is None
      else Source(put(source.tokens, "batch", None), row(source.length)),
  )
