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
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

FILE_LIMIT = 64 * 2**20  # bytes; the largest published ones have about 35 MB
SIZE_LIMIT = 2**22  # ids; one stray id of 2**31 would make a table of 17 GB
STOP_STRINGS = 31  # they are the bits of an int32
STOP_BYTES = 1000  # the table has a row of the vocabulary's width for each


class Added(NamedTuple):
  """A token that stands outside the vocabulary's own splitting of text.

  `lstrip` and `rstrip`: it swallows the white space before or after it.
  """

  id: int
  lstrip: bool = False
  rstrip: bool = False


class Words:
  """What all tokenizers can do; a kind fills `added`, `_ids`, `_bytes`.

  `size` is the highest id + 1. `chat_template` is the model's own, if its
  files have one.
  """

  bos: int | None
  eos: tuple[int, ...]
  size: int
  chat_template: str | None
  _ids: dict[str, int]  # every token
  added: dict[str, Added]  # by name: tokens that only trusted text may name
  _bytes: list[bytes]
  _prepends: bool  # whether a text begins with a space that decoding drops

  def encode(self, text: str, *, special: bool = False) -> list[int]:
    """Returns the ids of `text`, without `bos`; callers put that in front.

    With `special`, names of special tokens in the text become their ids, as
    chat templates need; without, they stay text, so that a user cannot forge
    them. Raises ValueError for a text that the tokenizer cannot read.
    """
    return self.encode_parts([(text, special)])

  def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
    """Returns the ids of a text made of (part, special) as in `encode`.

    A special token must lie in one part with `special`; what is between two
    of them is encoded as one, so borders of parts leave no trace.
    """
    ids: list[int] = []
    text, swallow, start = "", False, True
    what = "The text cannot be encoded by this tokenizer"
    with _only_value_errors(what):
      for part, special in parts:
        pieces = self._names.split(part) if special else [part]
        for n, piece in enumerate(pieces):  # every second one is a name
          if n % 2:
            token = self.added[piece]
            text = text.rstrip() if token.lstrip else text
            ids += [*self._encode(text, start), token.id]
            text, swallow, start = "", token.rstrip, False
          else:
            piece = piece.lstrip() if swallow else piece
            swallow = swallow and not piece
            text += piece
      return ids + self._encode(text, start)

  def _encode(self, text: str, start: bool) -> list[int]:
    """The ids of plain text; `start` if nothing is before it."""
    raise NotImplementedError

  @functools.cached_property
  def _names(self) -> re.Pattern:
    longest = sorted(self.added, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest)) or '(?!)'})")

  def name(self, i: int) -> str | None:
    """Returns how a text names token i: its own form in the vocabulary."""
    return self._texts.get(i)

  @functools.cached_property
  def _texts(self) -> dict[int, str]:
    return {i: token for token, i in self._ids.items()}

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

  def _sized(self, path: pathlib.Path | str) -> None:
    self.size = max(self._ids.values(), default=-1) + 1
    if not 0 < self.size <= SIZE_LIMIT:
      raise ValueError(
        f"{path} has ids up to {self.size - 1}; a tokenizer has 1 to "
        f"{SIZE_LIMIT} entries."
      )

  def _ends(
    self,
    path: pathlib.Path | str,
    named: dict,
    model: dict,
    bos: str | None,
    eos: Sequence[str],
  ) -> None:
    """Finds `bos` and `eos`: as given, else as the configs beside name them."""
    for token in (bos, *eos):
      if token is not None and token not in self._ids:
        raise ValueError(
          f"{path} has no token {token!r} to begin or end a text."
        )
    first = [bos or _name(named.get("bos_token"))]
    last = list(eos) or [_name(named.get("eos_token"))]
    first = [self._ids[t] for t in first if t in self._ids]
    last = [self._ids[t] for t in last if t in self._ids]
    if not eos:  # chat models end turns by more tokens than the tokenizer names
      more = model.get("eos_token_id")
      more = more if isinstance(more, list) else [more]
      last += [i for i in more if _is_id(i) and i < self.size]
    self.bos = first[0] if first else None
    self.eos = tuple(dict.fromkeys(last))


def tokenizer(folder: str | pathlib.Path) -> Words:
  """The tokenizer of a model's folder: tokenizer.json, else SentencePiece.

  Raises ValueError where there is neither, or for a file that is broken.
  """
  folder = pathlib.Path(folder)
  if (folder / "tokenizer.json").is_file():
    return Tokenizer(folder)
  return Pieces(folder)


class Tokenizer(Words):
  """A `tokenizer.json` with its bytes: byte-level BPE or SentencePiece style.

  `bos` and `eos` are token texts; where not given, they are looked up in the
  `tokenizer_config.json` and `generation_config.json` beside the file. Raises
  ValueError for a file that is no such tokenizer.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    *,
    bos: str | None = None,
    eos: Sequence[str] = (),
  ):
    path = pathlib.Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    named, model = _beside(path)
    self._load(_read(path), path, _specials(named))
    self._ends(path, named, model, bos, eos)
    self.chat_template = _template(path, named)

  @classmethod
  def from_json(
    cls,
    data: str,
    name: str,
    *,
    bos: str | None = None,
    eos: Sequence[str] = (),
    chat_template: str | None = None,
  ) -> "Tokenizer":
    """Like a file of these contents; errors call it `name`."""
    self = cls.__new__(cls)
    self._load(data, name, set())
    self._ends(name, {}, {}, bos, eos)
    self.chat_template = chat_template
    return self

  @classmethod
  def embedded(cls) -> "Tokenizer":
    """Returns the packaged one: 4,096 entries, trained on Python code."""
    file = importlib.resources.files("specjax") / "embedded" / "tokenizer.json"
    with importlib.resources.as_file(file) as path:
      return cls(path, bos="<|endoftext|>", eos=("<|endoftext|>",))

  def _load(self, data: str, path: pathlib.Path | str, more: set[str]) -> None:
    """Reads the file; tokens named in `more` are special whatever it says."""
    with _only_value_errors(f"{path} is not a readable tokenizer.json"):
      spec = json.loads(data)
      parts = _parts(spec.get("decoder"))
      mild = [
        t
        for t in spec.get("added_tokens") or ()
        if t["content"] in more and not t["special"]
      ]
      for token in mild:
        token["special"] = True
      self._inner = tokenizers.Tokenizer.from_str(
        json.dumps(spec) if mild else data
      )
      self._inner.no_truncation()  # some files carry a limit of 512 tokens
      self._inner.no_padding()
      self._inner.encode_special_tokens = True  # as text: they are ours to find
      self._ids = self._inner.get_vocab(with_added_tokens=True)
      added = self._inner.get_added_tokens_decoder()
    self.added = {
      token.content: Added(i, token.lstrip, token.rstrip)
      for i, token in added.items()
      if token.special and token.content
    }
    unknown = [spec["model"].get(key) for key in ("unk_id", "unk_token")]
    self._never = {
      token.id
      for name, token in self.added.items()
      if name not in unknown and token.id not in unknown
    }
    self._sized(path)
    self._decoders = {str(p.get("type")) for p in parts}
    if not self._decoders & {"ByteLevel", "Metaspace", "ByteFallback"}:
      raise ValueError(
        f"{path} decodes by {sorted(self._decoders)}; only byte-level and "
        "SentencePiece-style tokenizers (ByteLevel, Metaspace, ByteFallback) "
        "can be used."
      )
    self._prepends = any(_takes_space_off(p) for p in parts)
    self._lock = threading.Lock()
    self._first = _first_only(self._inner.pre_tokenizer)

  def _encode(self, text: str, start: bool) -> list[int]:
    with self._lock:  # the scheme is the object's
      for part in self._first:
        part.prepend_scheme = "first" if start else "never"
      ids = self._inner.encode(text, add_special_tokens=False).ids
    if self._never.isdisjoint(ids):
      return ids
    # T5's unigrams find special tokens in any text; not in halves of a name.
    middle = len(text) // 2
    if not middle:
      raise ValueError(f"{text!r} alone is a special token")
    halves = (text[:middle], start), (text[middle:], False)
    return [i for half in halves for i in self._encode(*half)]

  @functools.cached_property
  def _bytes(self) -> list[bytes]:
    level = "ByteLevel" in self._decoders
    out = [b""] * self.size
    for token, i in self._ids.items():
      if token not in self.added:
        out[i] = (_level_bytes if level else self._piece_bytes)(token)
    return out

  def _piece_bytes(self, token: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    if byte and "ByteFallback" in self._decoders:
      return bytes.fromhex(byte[1])
    return _unmarked(token)


class Pieces(Words):
  """A SentencePiece model: tokenizer.model, spiece.model or any other *.model.

  Further tokens come from the tokenizer_config.json and added_tokens.json
  beside it, `extra_ids` of T5 included. Special are control pieces, the unknown
  piece and what those files call so. Arguments and errors are `Tokenizer`'s;
  needs the package sentencepiece.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    *,
    bos: str | None = None,
    eos: Sequence[str] = (),
  ):
    path = _model_file(pathlib.Path(path))
    named, model = _beside(path)
    data = _read_bytes(path)
    what = f"{path} is not a readable SentencePiece model"
    with _only_value_errors(what):
      spans, self._prepends = _survey(data)
    inner = _processor(data, what)
    with _only_value_errors(what):
      every = list(range(inner.get_piece_size()))
      pieces = inner.id_to_piece(every)
      hidden = {i for i in every if inner.is_control(i) or inner.is_unknown(i)}
      plain = [_piece(p, inner.is_byte(i)) for i, p in zip(every, pieces)]
    self._ids = {piece: i for i, piece in enumerate(pieces)}
    more = _specials(named)
    hidden |= {self._ids[t] for t in more if t in self._ids}
    self.added = {pieces[i]: Added(i) for i in hidden}
    for token, entry, special in _more_tokens(path, named, len(pieces)):
      special = special or token in more
      hidden |= {entry.id} if special else set()
      if special or entry.id >= len(pieces):
        self._ids[token], self.added[token] = entry.id, entry
    self._sized(path)
    plain += [b""] * (self.size - len(plain))
    for token, entry in self.added.items():
      plain[entry.id] = b"" if entry.id in hidden else token.encode("utf-8")
    self._bytes = plain
    with _only_value_errors(what):  # what is special is no more to be found
      self._data = _as_control(
        data, [spans[i] for i in sorted(hidden) if i < len(pieces)
               and not inner.is_unknown(i)]
      )
    self._what = what
    own = {
      f"{kind}_token": pieces[i]
      for kind, i in (("bos", inner.bos_id()), ("eos", inner.eos_id()))
      if 0 <= i < len(pieces)
    }
    self._ends(path, own | named, model, bos, eos)
    self.chat_template = _template(path, named)

  def _encode(self, text: str, start: bool) -> list[int]:
    return (self._begin if start else self._go_on).encode(text)

  @functools.cached_property
  def _begin(self):
    return _processor(self._data, self._what)

  @functools.cached_property
  def _go_on(self):
    """The same without the space before a text: fields given again count."""
    return _processor(self._data + b"\x1a\x02\x18\x00", self._what)


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


def _first_only(part: object) -> list:
  """The parts of a pre-tokenizer that put a space before a text's start."""
  if isinstance(part, pre_tokenizers.Sequence):
    return [found for inner in part for found in _first_only(inner)]
  space = isinstance(part, pre_tokenizers.Metaspace)
  return [part] if space and part.prepend_scheme == "first" else []


def _unmarked(piece: str) -> bytes:
  return piece.replace("\u2581", " ").encode("utf-8")


def _piece(piece: str, byte: bool) -> bytes:
  return bytes.fromhex(piece[3:5]) if byte else _unmarked(piece)


def _model_file(path: pathlib.Path) -> pathlib.Path:
  """The SentencePiece model in a folder, or the file itself."""
  if path.is_file():
    return path
  # A sentencepiece.bpe.model is left out: its ids aren't those of its weights.
  found = sorted(
    p for p in path.glob("*.model") if p.name != "sentencepiece.bpe.model"
  )
  known = [p for p in found if p.name in ("tokenizer.model", "spiece.model")]
  found = known or found
  if len(found) != 1:
    raise ValueError(
      f"{path} has {len(found)} SentencePiece models; a tokenizer is a "
      "tokenizer.json, or one of tokenizer.model, spiece.model, *.model."
    )
  return found[0]


def _processor(data: bytes, what: str):
  try:
    import sentencepiece
  except ImportError:
    raise ValueError(
      "SentencePiece models need the package sentencepiece; run "
      "pip install 'specjax[sentencepiece]'."
    ) from None
  sentencepiece.set_min_log_level(3)  # errors are raised too
  out = sentencepiece.SentencePieceProcessor()
  with _only_value_errors(what):
    out.LoadFromSerializedProto(data)
  return out


def _survey(data: bytes) -> tuple[list[tuple[int, int]], bool]:
  """Where a model's pieces lie, and whether decoding drops a first space.

  Bounds what the package would allocate, and refuses what streaming cannot
  undo. Field numbers are those of sentencepiece_model.proto.
  """
  pieces, dummy, squeezes = [], True, True
  for number, start, value in _fields(data, 0, len(data)):
    if number == 1:
      pieces.append((start, value))
      if len(pieces) > SIZE_LIMIT:
        raise ValueError(f"it has more than {SIZE_LIMIT} pieces")
    elif number == 2:
      for field, _, suffix in _fields(data, start, value):
        if field == 24 and suffix:
          raise ValueError("it marks spaces at the end of words")
    elif number == 3:
      for field, _, flag in _fields(data, start, value):
        dummy = bool(flag) if field == 3 else dummy
        squeezes = bool(flag) if field == 4 else squeezes
    elif number == 5:
      for field, at, end in _fields(data, start, value):
        if field == 2 and end > at:
          raise ValueError("it rewrites text after decoding")
  return pieces, dummy or squeezes


def _fields(
  data: bytes, at: int, end: int
) -> Iterator[tuple[int, int, int]]:
  """Reads a protobuf message: (number, start, stop), or (number, _, value)."""
  while at < end:
    key, at = _varint(data, at, end)
    kind = key & 7
    if kind == 0:
      value, at = _varint(data, at, end)
      yield key >> 3, at, value
      continue
    if kind not in (1, 2, 5):
      raise ValueError(f"a field at byte {at} is of unknown kind {kind}")
    length = {1: 8, 5: 4}.get(kind)
    if kind == 2:
      length, at = _varint(data, at, end)
    if at + length > end:
      raise ValueError(f"a field of {length} bytes ends after byte {end}")
    if kind == 2:
      yield key >> 3, at, at + length
    at += length


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
  value = 0
  for shift in range(0, 70, 7):
    if at >= end:
      break
    byte = data[at]
    at += 1
    value |= (byte & 127) << shift
    if byte < 128:
      return value, at
  raise ValueError(f"a number is cut off at byte {at}")


def _as_control(data: bytes, spans: list[tuple[int, int]]) -> bytes:
  """Makes control pieces, which no text can name, of those at `spans`."""
  out, done = [], 0
  for start, stop in spans:
    size = stop - start
    before = start - len(_as_varint(size))
    kind = b"\x18\x03"  # the last value of a field counts
    out += [data[done:before], _as_varint(size + 2), data[start:stop], kind]
    done = stop
  return b"".join([*out, data[done:]])


def _as_varint(value: int) -> bytes:
  out = bytearray()
  while value > 127:
    out.append(value & 127 | 128)
    value >>= 7
  return bytes([*out, value])


def _more_tokens(
  path: pathlib.Path, named: dict, pieces: int
) -> Iterator[tuple[str, Added, bool]]:
  """Tokens that stand in the files beside a model: (name, token, special)."""
  beside = path.with_name("added_tokens.json")
  found = {}
  for token, i in _config(beside).items():
    found[token] = (_checked_id(i, token, beside), {})
  beside = path.with_name("tokenizer_config.json")
  listed = named.get("added_tokens_decoder") or {}
  if not isinstance(listed, dict):
    raise ValueError(f"{beside}: added_tokens_decoder is no object.")
  for i, entry in listed.items():
    if not isinstance(entry, dict) or not isinstance(_name(entry), str):
      raise ValueError(f"{beside}: added token {i!r} has no content.")
    i = int(i) if i.isdecimal() else i
    found[_name(entry)] = (_checked_id(i, _name(entry), beside), entry)
  extra = named.get("extra_ids", 0)
  if not _is_id(extra) or extra > SIZE_LIMIT:
    raise ValueError(f"{beside}: extra_ids = {extra!r} is no small number.")
  for n in range(extra):  # T5's sentinels, counted from the end
    entry = (pieces + extra - 1 - n, {"special": True})
    found.setdefault(f"<extra_id_{n}>", entry)
  for token, (i, entry) in found.items():
    flag = lambda key, entry=entry: entry.get(key) is True
    if token:
      yield token, Added(i, flag("lstrip"), flag("rstrip")), flag("special")


def _is_id(value: object) -> bool:
  return type(value) is int and value >= 0


def _checked_id(i: object, token: str, path: pathlib.Path) -> int:
  if not _is_id(i) or i >= SIZE_LIMIT:
    raise ValueError(
      f"{path}: token {token!r} has id {i!r}; ids are 0 to {SIZE_LIMIT - 1}."
    )
  return i


def _specials(named: dict) -> set[str]:
  """The tokens that a tokenizer_config.json calls special."""
  out = [value for key, value in named.items() if key.endswith("_token")]
  for key in ("additional_special_tokens", "extra_special_tokens"):
    listed = named.get(key) or []
    listed = listed.values() if isinstance(listed, dict) else listed
    out += listed if isinstance(listed, Iterable) else []
  return {name for name in map(_name, out) if name}


def _name(token: object) -> str | None:
  """Returns the text of a token in tokenizer_config.json: a str or a dict."""
  token = token.get("content") if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


def _template(path: pathlib.Path, named: dict) -> str | None:
  """The chat template beside a tokenizer: the newer files hold it alone."""
  alone = path.with_name("chat_template.jinja")
  if alone.is_file():
    return _read(alone)
  found = named.get("chat_template")
  if isinstance(found, list):  # of {"name": ..., "template": ...}
    found = [x for x in found if isinstance(x, dict)]
    found = {x.get("name"): x.get("template") for x in found}.get("default")
  return found if isinstance(found, str) else None


def _beside(path: pathlib.Path) -> tuple[dict, dict]:
  """tokenizer_config.json and generation_config.json, empty where missing."""
  return (
    _config(path.with_name("tokenizer_config.json")),
    _config(path.with_name("generation_config.json")),
  )


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
  data = _read_bytes(path)
  with _only_value_errors(f"{path} is not UTF-8"):
    return data.decode("utf-8")


def _read_bytes(path: pathlib.Path) -> bytes:
  with open(path, "rb") as file:  # not by its stated size: it may be a pipe
    data = file.read(FILE_LIMIT + 1)
  if len(data) > FILE_LIMIT:
    raise ValueError(f"{path} is longer than {FILE_LIMIT} bytes.")
  return data


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
