"""SentencePiece models: their pieces, and the files beside them.

The package that encodes with them is given a model only after its fields are
read here: what it would allocate is bounded, and special pieces are hidden
from it, so that no text can name them.
"""

import functools
import pathlib
from collections.abc import Iterator, Sequence

from specjax import tokens
from specjax.tokens import SIZE_LIMIT, Added, Words


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
    named, model = tokens.beside(path)
    data = tokens.read_bytes(path)
    what = f"{path} is not a readable SentencePiece model"
    with tokens.only_value_errors(what):
      spans, self._prepends = _survey(data)
    inner = _processor(data, what)
    with tokens.only_value_errors(what):
      every = list(range(inner.get_piece_size()))
      pieces = inner.id_to_piece(every)
      hidden = {i for i in every if inner.is_control(i) or inner.is_unknown(i)}
      plain = [_piece(p, inner.is_byte(i)) for i, p in zip(every, pieces)]
    self._ids = {piece: i for i, piece in enumerate(pieces)}
    more = tokens.specials(named)
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
    with tokens.only_value_errors(what):  # special ones can't be found then
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
    self.chat_template = tokens.template(path, named)

  def _encode(self, text: str, start: bool) -> list[int]:
    return (self._begin if start else self._go_on).encode(text)

  @functools.cached_property
  def _begin(self):
    return _processor(self._data, self._what)

  @functools.cached_property
  def _go_on(self):
    """The same without the space before a text: fields given again count."""
    return _processor(self._data + b"\x1a\x02\x18\x00", self._what)


def _piece(piece: str, byte: bool) -> bytes:
  return bytes.fromhex(piece[3:5]) if byte else tokens.unmarked(piece)


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
  with tokens.only_value_errors(what):
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


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
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
  for token, i in tokens.config(beside).items():
    found[token] = (_checked_id(i, token, beside), {})
  beside = path.with_name("tokenizer_config.json")
  listed = named.get("added_tokens_decoder") or {}
  if not isinstance(listed, dict):
    raise ValueError(f"{beside}: added_tokens_decoder is no object.")
  for i, entry in listed.items():
    token = tokens.content(entry) if isinstance(entry, dict) else None
    if token is None:
      raise ValueError(f"{beside}: added token {i!r} has no content.")
    i = int(i) if i.isdecimal() else i
    found[token] = (_checked_id(i, token, beside), entry)
  extra = named.get("extra_ids", 0)
  if not tokens.is_id(extra) or extra > SIZE_LIMIT:
    raise ValueError(f"{beside}: extra_ids = {extra!r} is no small number.")
  for n in range(extra):  # T5's sentinels, counted from the end
    entry = (pieces + extra - 1 - n, {"special": True})
    found.setdefault(f"<extra_id_{n}>", entry)
  for token, (i, entry) in found.items():
    flag = lambda key, entry=entry: entry.get(key) is True
    if token:
      yield token, Added(i, flag("lstrip"), flag("rstrip")), flag("special")


def _checked_id(i: object, token: str, path: pathlib.Path) -> int:
  if not tokens.is_id(i) or i >= SIZE_LIMIT:
    raise ValueError(
        f"{path}: token {token!r} has id {i!r}; ids are 0 to {SIZE_LIMIT - 1}."
    )
  return i
