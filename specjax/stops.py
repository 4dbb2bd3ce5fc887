"""Stop strings: an automaton over the bytes that tokens stand for."""

from collections.abc import Sequence

import numpy as np

STOP_STRINGS = 31  # they are the bits of an int32
STOP_BYTES = 1000  # the table has a row of the vocabulary's width for each


def stop_table(
    strings: Sequence[str | bytes], token_bytes: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
  """Lifts the Aho-Corasick automaton of the strings from bytes to token ids.

  Returns `next` int16 [S, V], the state after token t from state s (0 is the
  start), and `hit` int32 [S, V], whose bit i tells that strings[i] ends inside
  that token. S is padded to a power of two, 32 or more, so that few shapes are
  compiled. Raises ValueError for empty, too many or too long strings.
  """
  delta, ends = _automaton(_patterns(strings))
  count, size = len(ends), len(token_bytes)
  lengths = np.array([len(b) for b in token_bytes], np.int64)
  order = np.argsort(-lengths, kind="stable")  # those still running are first
  data = np.frombuffer(b"".join(token_bytes), np.uint8)
  first = (np.cumsum(lengths) - lengths)[order]
  running = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)))
  columns = [
      data[first[:n] + j].astype(np.int32) for j, n in enumerate(running)
  ]
  rows = max(32, 1 << (count - 1).bit_length())
  following = np.zeros((rows, size), np.int16)
  hit = np.zeros((rows, size), np.int32)
  flat = delta.ravel()
  for state in range(count):
    at = np.full(size, state, np.int32)
    seen = np.zeros(size, np.int32)
    for n, column in zip(running, columns):
      at[:n] = flat[at[:n] * 256 + column]
      seen[:n] |= ends[at[:n]]
    following[state, order] = at
    hit[state, order] = seen
  return following, hit


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
  """Returns the text before the stop string that is complete first.

  Where two end together the longer one counts. It is the order in which a
  reader of the bytes meets them, so tokens do not matter.
  """
  _patterns(strings)
  found = [(text.find(s) + len(s), text.find(s)) for s in strings if s in text]
  return text[: min(found)[1]] if found else text


def _patterns(strings: Sequence[str | bytes]) -> list[bytes]:
  if isinstance(strings, str | bytes):
    raise ValueError(f"Stop strings are {strings!r}; give a list of them.")
  if len(strings) > STOP_STRINGS:
    raise ValueError(
        f"There are {len(strings)} stop strings; at most {STOP_STRINGS} fit."
    )
  out = [s.encode("utf-8") if isinstance(s, str) else s for s in strings]
  if b"" in out:
    raise ValueError(
        f"Stop string {out.index(b'')} is empty; each needs at least one byte."
    )
  if sum(map(len, out)) > STOP_BYTES:
    raise ValueError(
        f"The stop strings have {sum(map(len, out))} bytes together; at most "
        f"{STOP_BYTES} fit."
    )
  return out


def _automaton(patterns: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
  """Aho-Corasick: next state int32 [S, 256] and strings that end in it [S]."""
  children: list[dict[int, int]] = [{}]
  ends = [0]
  for bit, pattern in enumerate(patterns):
    state = 0
    for byte in pattern:
      if byte not in children[state]:
        children[state][byte] = len(children)
        children.append({})
        ends.append(0)
      state = children[state][byte]
    ends[state] |= 1 << bit
  delta = np.zeros((len(children), 256), np.int32)
  queue = [(0, 0)]  # (state, the state of its longest proper suffix)
  for state, back in queue:  # breadth first: `back` is nearer the root, so done
    ends[state] |= ends[back]
    delta[state] = delta[back]
    for byte, child in children[state].items():
      queue.append((child, delta[back, byte] if state else 0))
      delta[state, byte] = child
  return delta, np.array(ends, np.int32)
