"""Tokens and the bytes they stand for: what all tokenizers share.

Decoding joins the bytes of the ids, streaming decodes them as they come. What
the files beside a tokenizer say is read here, within bounds.
"""

import codecs
import contextlib
import functools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

FILE_LIMIT = 64 * 2**20  # bytes; the largest published ones have about 35 MB
SIZE_LIMIT = 2**22  # ids; one stray id of 2**31 would make a table of 17 GB


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
    with only_value_errors(what):
      for part, special in parts:
        if not part.isascii() and any("\ud800" <= c <= "\udfff" for c in part):
          raise ValueError("it holds bytes that are no UTF-8; take them out.")
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
    first = [bos or content(named.get("bos_token"))]
    last = list(eos) or [content(named.get("eos_token"))]
    first = [self._ids[t] for t in first if t in self._ids]
    last = [self._ids[t] for t in last if t in self._ids]
    if not eos:  # chat models end turns by more tokens than the tokenizer names
      more = model.get("eos_token_id")
      more = more if isinstance(more, list) else [more]
      last += [i for i in more if is_id(i) and i < self.size]
    self.bos = first[0] if first else None
    self.eos = tuple(dict.fromkeys(last))


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


def unmarked(piece: str) -> bytes:
  return piece.replace("\u2581", " ").encode("utf-8")


def is_id(value: object) -> bool:
  return type(value) is int and value >= 0


def specials(named: dict) -> set[str]:
  """The tokens that a tokenizer_config.json calls special."""
  out = [value for key, value in named.items() if key.endswith("_token")]
  for key in ("additional_special_tokens", "extra_special_tokens"):
    listed = named.get(key) or []
    listed = listed.values() if isinstance(listed, dict) else listed
    out += listed if isinstance(listed, Iterable) else []
  return {name for name in map(content, out) if name}


def content(token: object) -> str | None:
  """Returns the text of a token in tokenizer_config.json: a str or a dict."""
  token = token.get("content") if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


def template(path: pathlib.Path, named: dict) -> str | None:
  """The chat template beside a tokenizer: the newer files hold it alone."""
  alone = path.with_name("chat_template.jinja")
  if alone.is_file():
    return read(alone)
  found = named.get("chat_template")
  if isinstance(found, list):  # of {"name": ..., "template": ...}
    found = [x for x in found if isinstance(x, dict)]
    found = {x.get("name"): x.get("template") for x in found}.get("default")
  return found if isinstance(found, str) else None


def beside(path: pathlib.Path) -> tuple[dict, dict]:
  """tokenizer_config.json and generation_config.json, empty where missing."""
  return (
      config(path.with_name("tokenizer_config.json")),
      config(path.with_name("generation_config.json")),
  )


def config(path: pathlib.Path) -> dict:
  if not path.is_file():
    return {}
  data = read(path)
  with only_value_errors(f"{path} is not JSON"):
    config = json.loads(data)
  if not isinstance(config, dict):
    raise ValueError(f"{path} holds a {type(config).__name__}, not an object.")
  return config


def read(path: pathlib.Path) -> str:
  data = read_bytes(path)
  with only_value_errors(f"{path} is not UTF-8"):
    return data.decode("utf-8")


def read_bytes(path: pathlib.Path) -> bytes:
  with open(path, "rb") as file:  # not by its stated size: it may be a pipe
    data = file.read(FILE_LIMIT + 1)
  if len(data) > FILE_LIMIT:
    raise ValueError(f"{path} is longer than {FILE_LIMIT} bytes.")
  return data


@contextlib.contextmanager
def only_value_errors(what: str) -> Iterator[None]:
  """Turns what foreign parsers raise, Rust panics included, into ValueError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit, MemoryError):
    raise
  except BaseException as error:  # a panic is no Exception
    line = str(error).partition("\n")[0][:200]
    raise ValueError(f"{what}: {line}") from error
