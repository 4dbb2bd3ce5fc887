"""Text to tokens: the tokenizer of a folder, and tokenizer.json files."""

import functools
import importlib.resources
import json
import pathlib
import re
import threading
from collections.abc import Sequence

import tokenizers
from tokenizers import pre_tokenizers

from specjax import tokens
from specjax.pieces import Pieces
from specjax.tokens import Added, Words


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
    named, model = tokens.beside(path)
    self._load(tokens.read(path), path, tokens.specials(named))
    self._ends(path, named, model, bos, eos)
    self.chat_template = tokens.template(path, named)

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

  def save(self, folder: str | pathlib.Path) -> None:
    """Writes it as files that `tokenizer` reads again, template included."""
    folder, name = pathlib.Path(folder), self.name
    named = dict(
        bos_token=None if self.bos is None else name(self.bos),
        eos_token=name(self.eos[0]) if self.eos else None,
        chat_template=self.chat_template,
    )
    files = {
        "tokenizer.json": self._inner.to_str(),
        "tokenizer_config.json": json.dumps(named, indent=2),
        "generation_config.json": json.dumps(dict(eos_token_id=self.eos)),
    }
    for file, data in files.items():
      (folder / file).write_text(data, encoding="utf-8")

  def _load(self, data: str, path: pathlib.Path | str, more: set[str]) -> None:
    """Reads the file; tokens named in `more` are special whatever it says."""
    with tokens.only_value_errors(f"{path} is not a readable tokenizer.json"):
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
    return tokens.unmarked(token)


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
