"""What two tokenizers have in common, as tables between their token ids.

Tokens are the same when their bytes are; specials stand for no bytes and are
paired by what they are for. Whatever else a target writes is spelt with the
drafter's tokens, so that the drafter can read it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

SPELT = 256  # bytes of a token that are spelt, the last ones


class Tables(NamedTuple):
  """From a target's tokens to a drafter's, as host arrays.

  Token v is drafted as the drafter's token shared[v], or never where that is
  the drafter's vocabulary size; no token serves two. It is read as
  pieces[first[v] : first[v] + count[v]].
  """

  shared: Int[np.ndarray, "V"]
  first: Int[np.ndarray, "V"]
  count: Int[np.ndarray, "V"]
  pieces: Int[np.ndarray, "N"]


def compare(
    target, drafter, vocab: int, draft_vocab: int, special: Sequence[str] = ()
) -> Tables:
  """Tables between two tokenizers whose models have these vocabularies.

  End of text goes with end of text, begin with begin; `special` names further
  special tokens that both have. Raises ValueError when a tokenizer is larger
  than its model, a name is unknown, or fewer than two tokens are shared.
  """
  for who, tokenizer, size in (
      ("target", target, vocab), ("drafter", drafter, draft_vocab)
  ):
    if tokenizer.size > size:
      raise ValueError(
          f"vocabularies: the {who}'s tokenizer has {tokenizer.size} tokens,"
          f" its model {size}; give the tokenizer of this model."
      )
  mine, theirs = _by_bytes(target), _by_bytes(drafter)
  paired = _paired(target, drafter, special)
  spell = _speller(drafter, theirs)
  shared, taken = np.full(vocab, draft_vocab, np.int32), set()
  words = [()] * vocab
  for i, own in paired.items():
    words[i] = (own,)
    if own not in taken:
      shared[i] = own
      taken.add(own)
  for i, data in enumerate(target.token_bytes()):
    if not data or i in paired:
      continue
    own = theirs.get(data)
    words[i] = spell(data) if own is None else (own,)
    if own not in {None, *taken} and mine[data] == i:
      shared[i] = own
  both = int(np.sum(shared < draft_vocab))
  if both < 2:
    raise ValueError(
        f"vocabularies: the drafter's tokenizer shares {both} of the target's"
        f" {target.size} tokens, and two are the least; choose a drafter whose"
        " tokens are more like the target's."
    )
  count = np.array([len(w) for w in words], np.int32)
  pieces = np.array([piece for word in words for piece in word], np.int32)
  return Tables(shared, np.cumsum(count, dtype=np.int32) - count, count, pieces)


def _by_bytes(tokenizer) -> dict[bytes, int]:
  """bytes -> the token that the tokenizer writes for them.

  Where several stand for the same bytes it is one that it writes by itself or
  after a newline (a byte to fall back on has a twin that is never written,
  and some put a space before a text), else the lowest.
  """
  found = {}
  for i, data in enumerate(tokenizer.token_bytes()):
    if data:
      found.setdefault(data, []).append(i)
  for data, ids in found.items():
    written = []
    if len(ids) > 1:
      written = [*_encode(tokenizer, data), *_encode(tokenizer, b"\n" + data)]
    found[data] = next((i for i in ids if i in written), ids[0])
  return found


def _paired(target, drafter, special) -> dict[int, int]:
  """Special tokens of the target -> those of the drafter."""
  pairs = {}
  if drafter.eos:
    pairs = {i: drafter.eos[0] for i in target.eos}
  if target.bos is not None and drafter.bos is not None:
    pairs.setdefault(target.bos, drafter.bos)
  for name in special:
    found = []
    for who, tokenizer in (("target", target), ("drafter", drafter)):
      ids = tokenizer.encode(name, special=True)
      if len(ids) != 1:
        raise ValueError(
            f"vocabularies: {name!r} is no single token of the {who}'s"
            " tokenizer; name special tokens that both have."
        )
      found += ids
    pairs[found[0]] = found[1]
  return pairs


def _speller(tokenizer, ids: dict[bytes, int]):
  """bytes -> tokens that stand for them, as far as there are any.

  As the tokenizer reads them alone, or without the space that it puts in
  front; half a character is spelt by the longest tokens that fit.
  """
  table = tokenizer.token_bytes()
  longest = min(max(map(len, ids), default=0), SPELT)

  def spell(data):
    data = data[-SPELT:]
    for text in (data, data.removeprefix(b" ")):
      read = _encode(tokenizer, text)
      if b"".join(table[i] for i in read) == data:
        return tuple(read)
    out, at = [], 0
    while at < len(data):
      sizes = range(min(longest, len(data) - at), 0, -1)
      n = next((n for n in sizes if data[at : at + n] in ids), 0)
      if n:
        out.append(ids[data[at : at + n]])
      at += n or 1  # a byte that no token stands for is skipped
    return tuple(out)

  return spell


def _encode(tokenizer, data: bytes) -> list[int]:
  """The tokens of these bytes, none when they are no text to read."""
  try:
    return tokenizer.encode(data.decode("utf-8"))
  except ValueError:
    return []
