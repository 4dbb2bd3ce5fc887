"""Text and tokens: tokenizer files, incremental decoding, stop strings.

Everything here rests on one table, the bytes that each token id stands for:
decoding joins them, streaming decodes them as they come, and stop strings are
an automaton over them.
"""

import codecs
import contextlib
import functools
import importlib.resources
import json
import pathlib
import re
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers

FILE_LIMIT = 64 * 2**20  # bytes; the largest published ones have about 35 MB
SIZE_LIMIT = 2**22  # ids; one stray id of 2**31 would make a table of 17 GB
STOP_STRINGS = 31  # they are the bits of an int32
STOP_BYTES = 1000  # the table has a row of the vocabulary's width for each


class Tokenizer:
  """A `tokenizer.json` with its bytes: byte-level BPE or SentencePiece style.

  `bos` and `eos` are token texts; where not given, they are looked up in the
  `tokenizer_config.json` and `generation_config.json` beside the file. `size`
  is the highest id + 1. Raises ValueError for a file that is no such tokenizer.
  """

  bos: int | None
  eos: tuple[int, ...]
  size: int

  def __init__(
    self,
    path: str | pathlib.Path,
    *,
    bos: str | None = None,
    eos: Sequence[str] = (),
  ):
    path = pathlib.Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    data = _read(path)
    with _only_value_errors(f"{path} is not a readable tokenizer.json"):
      self._inner = tokenizers.Tokenizer.from_str(data)
      parts = _parts(json.loads(data).get("decoder"))
    self._inner.no_truncation()  # some files carry a limit of 512 tokens
    self._inner.no_padding()
    self._lock = threading.Lock()
    self._ids = self._inner.get_vocab(with_added_tokens=True)
    added = self._inner.get_added_tokens_decoder()
    self._specials = {i for i, token in added.items() if token.special}
    self.size = max(self._ids.values(), default=-1) + 1
    if not 0 < self.size <= SIZE_LIMIT:
      raise ValueError(
        f"{path} has ids up to {self.size - 1}; a tokenizer has 1 to "
        f"{SIZE_LIMIT} entries."
      )
    self._decoders = {str(p.get("type")) for p in parts}
    if not self._decoders & {"ByteLevel", "Metaspace", "ByteFallback"}:
      raise ValueError(
        f"{path} decodes by {sorted(self._decoders)}; only byte-level and "
        "SentencePiece-style tokenizers (ByteLevel, Metaspace, ByteFallback) "
        "can be used."
      )
    self._prepends = any(_takes_space_off(p) for p in parts)
    self.bos, self.eos = self._ends(path, bos, eos)

  @classmethod
  def embedded(cls) -> "Tokenizer":
    """Returns the packaged one: 4,096 entries, trained on Python code."""
    file = importlib.resources.files("specjax") / "embedded" / "tokenizer.json"
    with importlib.resources.as_file(file) as path:
      return cls(path, bos="<|endoftext|>", eos=("<|endoftext|>",))

  def encode(self, text: str, *, special: bool = False) -> list[int]:
    """Returns the ids of `text`, without `bos`; callers put that in front.

    With `special`, names of special tokens in the text become their ids, as
    chat templates need; without, they stay text, so that a user cannot forge
    them. Raises ValueError for a text that the tokenizer cannot read.
    """
    what = "The text cannot be encoded by this tokenizer"
    with self._lock, _only_value_errors(what):  # the switch is the object's
      self._inner.encode_special_tokens = not special
      return self._inner.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int], *, start: bool = True) -> str:
    """Returns the text of `ids`; bytes that are no UTF-8 become U+FFFD.

    Special tokens and ids outside the vocabulary stand for nothing. `start`
    tells that the ids begin a text, so that the space which SentencePiece puts
    there is dropped.
    """
    stream = self.stream(start=start)
    return stream.push(ids) + stream.flush()

  def stream(self, *, start: bool = False) -> "Increment":
    """Returns a decoder for ids that come a few at a time; see `decode`."""
    return Increment(self.token_bytes(), start and self._prepends)

  def token_bytes(self) -> list[bytes]:
    """Returns the bytes of each id, `size` of them; do not change the list."""
    return self._bytes

  @functools.cached_property
  def _bytes(self) -> list[bytes]:
    level = "ByteLevel" in self._decoders
    out = [b""] * self.size
    for token, i in self._ids.items():
      if i not in self._specials:
        out[i] = (_level_bytes if level else self._piece_bytes)(token)
    return out

  def _piece_bytes(self, token: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    if byte and "ByteFallback" in self._decoders:
      return bytes.fromhex(byte[1])
    return token.replace("\u2581", " ").encode("utf-8")

  def _ends(
    self, path: pathlib.Path, bos: str | None, eos: Sequence[str]
  ) -> tuple[int | None, tuple[int, ...]]:
    """Finds the ids of `bos` and `eos`; what is not given comes from disk."""
    named = _config(path.with_name("tokenizer_config.json"))
    model = _config(path.with_name("generation_config.json"))
    first = [bos or _name(named.get("bos_token"))]
    last = list(eos) or [_name(named.get("eos_token"))]
    for token in (bos, *eos):
      if token is not None and token not in self._ids:
        raise ValueError(
          f"{path} has no token {token!r} to begin or end a text."
        )
    first = [self._ids[t] for t in first if t in self._ids]
    last = [self._ids[t] for t in last if t in self._ids]
    if not eos:  # chat models end turns by more tokens than the tokenizer names
      more = model.get("eos_token_id")
      more = more if isinstance(more, list) else [more]
      last += [i for i in more if isinstance(i, int) and 0 <= i < self.size]
    return first[0] if first else None, tuple(dict.fromkeys(last))


class Increment:
  """Text that grows by ids; never emits half a character.

  The cost of a push depends on the ids pushed, not on the text so far.
  """

  def __init__(self, table: list[bytes], drop: bool):
    self._table = table
    self._drop = drop  # still to drop: the space before the first word
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

  def push(self, ids: Iterable[int]) -> str:
    """Returns the characters that `ids` complete."""
    size = len(self._table)
    data = b"".join(self._table[i] for i in ids if 0 <= i < size)
    if self._drop and data:
      self._drop = False
      data = data.removeprefix(b" ")
    return self._decoder.decode(data)

  def flush(self) -> str:
    """Returns U+FFFD for bytes that still wait for others, else nothing."""
    return self._decoder.decode(b"", final=True)


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


def _level_alphabet() -> dict[int, str]:
  """For str.translate: byte-level BPE's letters to chr(byte), others to none.

  Printable Latin-1 stands for itself, the other bytes in order for U+0100
  onwards (GPT-2, `bytes_to_unicode`).
  """
  own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  rest = [b for b in range(256) if b not in own]
  table = {b: "\uffff" for b in rest}  # no letter of the alphabet
  table |= {256 + n: chr(b) for n, b in enumerate(rest)}
  return table


_LEVEL = _level_alphabet()


def _level_bytes(token: str) -> bytes:
  mapped = token.translate(_LEVEL)
  try:
    return mapped.encode("latin-1")
  except UnicodeEncodeError:  # an added token, written as itself
    return token.encode("utf-8")


def _parts(spec: object) -> list[dict]:
  """Returns a decoder's description and those of the parts of a sequence."""
  if not isinstance(spec, dict):
    return []
  below = spec.get("decoders")
  below = below if isinstance(below, list) else []
  return [spec, *(part for inner in below for part in _parts(inner))]


def _takes_space_off(part: dict) -> bool:
  """Whether a decoder drops the space that its tokenizer put before a text."""
  if part.get("type") == "Metaspace":
    never = part.get("prepend_scheme") == "never"
    return not never and part.get("add_prefix_space") is not False
  return part.get("type") == "Strip" and part.get("start") == 1


def _name(token: object) -> str | None:
  """Returns the text of a token in tokenizer_config.json: a str or a dict."""
  token = token.get("content") if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


def _config(path: pathlib.Path) -> dict:
  if not path.is_file():
    return {}
  data = _read(path)
  with _only_value_errors(f"{path} is not JSON"):
    config = json.loads(data)
  if not isinstance(config, dict):
    raise ValueError(f"{path} holds a {type(config).__name__}, not an object.")
  return config


def _read(path: pathlib.Path) -> str:
  with open(path, "rb") as file:  # not by its stated size: it may be a pipe
    data = file.read(FILE_LIMIT + 1)
  if len(data) > FILE_LIMIT:
    raise ValueError(f"{path} is longer than {FILE_LIMIT} bytes.")
  with _only_value_errors(f"{path} is not UTF-8"):
    return data.decode("utf-8")


@contextlib.contextmanager
def _only_value_errors(what: str) -> Iterator[None]:
  """Turns what foreign parsers raise, Rust panics included, into ValueError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit, MemoryError):
    raise
  except BaseException as error:  # a panic is no Exception
    line = str(error).partition("\n")[0][:200]
    raise ValueError(f"{what}: {line}") from error
