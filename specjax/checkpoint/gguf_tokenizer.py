"""The tokenizer that a GGUF file carries, as a tokenizer.json.

Byte-level BPE lists its merges and names the splitting of text before them;
SentencePiece BPE lists pieces with scores, and its merges follow from them.
"""

import json
import pathlib
from typing import Any

import numpy as np

from specjax.checkpoint import gguf_header
from specjax.checkpoint.source import short
from specjax.text import Tokenizer

NORMAL, UNKNOWN, CONTROL, OWN, UNUSED = 1, 2, 3, 4, 5  # of token_type
PIECE = 512  # characters; published pieces have up to 48
MERGES = 2**22  # Gemma's 262,144 pieces have 600,000
SPACE = "\u2581"
# What splits a text before its merges: words, numbers, signs, white space.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = WORDS % "{1,3}", WORDS % ""
SPLITS = {  # tokenizer.ggml.pre -> a regex, or ByteLevel's own after digits
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}


def load(path: str | pathlib.Path) -> Tokenizer:
  """The tokenizer of a GGUF file; ValueError as `tokenizer` raises it."""
  data = gguf_header.opened(path)
  return tokenizer(str(path), gguf_header.read(path, data).metadata)


def tokenizer(path: str, metadata: dict[str, Any]) -> Tokenizer:
  """The tokenizer in a GGUF file's metadata; `path` is for sentences.

  `bos` is None where the file says that nothing is put before a text. Raises
  ValueError for a kind of tokenizer or of splitting that is not known, and
  for lists that do not fit each other.
  """
  return _Reader(path, metadata).made()


class _Reader:

  def __init__(self, path, metadata):
    self.path, self._metadata = path, metadata
    self.kind = self.get("ggml.model", str, "")
    self.pre = self.get("ggml.pre", str, "default")
    self.tokens = self.get("ggml.tokens", list)
    self.ids = {token: i for i, token in enumerate(self.tokens)}
    if len(self.ids) < len(self.tokens):
      twice = next(t for i, t in enumerate(self.tokens) if self.ids[t] != i)
      self.refuse(f"ggml.tokens has {short(twice)!r} twice")
    kinds = self.numbers("ggml.token_type", NORMAL)
    ends = ("bos", "eos", "eot", "eom", "unknown", "padding")
    self.named = {end: self.token(end) for end in ends}
    self.special = {
        t for t, k in zip(self.tokens, kinds) if k in (CONTROL, UNKNOWN)
    }
    self.special |= set(self.named.values()) - {None}
    self.own = {t for t, k in zip(self.tokens, kinds) if k == OWN}
    self.plain = [t for t, k in zip(self.tokens, kinds) if k == NORMAL]
    self.unused = {t for t, k in zip(self.tokens, kinds) if k == UNUSED}

  def made(self) -> Tokenizer:
    makers = {"gpt2": self.bytewise, "llama": self.pieces}
    if self.kind not in makers:
      self.refuse(
          f"ggml.model {short(self.kind)!r} is none of {', '.join(makers)}"
      )
    spec = makers[self.kind]() | dict(
        version="1.0", truncation=None, padding=None, post_processor=None,
        added_tokens=[
            dict(
                id=i, content=t, special=t in self.special, single_word=False,
                lstrip=False, rstrip=False, normalized=False,
            )
            for i, t in enumerate(self.tokens)
            if t in self.special or t in self.own
        ],
    )
    begins = self.kind == "llama" or self.pre == "llama-bpe"
    begins = self.get("ggml.add_bos_token", bool, begins)
    last = [self.named[end] for end in ("eos", "eot", "eom")]
    return Tokenizer.from_json(
        json.dumps(spec, ensure_ascii=False), self.path,
        bos=self.named["bos"] if begins else None,
        eos=[t for t in last if t is not None],
        chat_template=self.get("chat_template", str, "") or None,
    )

  def bytewise(self) -> dict:
    """Byte-level BPE, as GPT-2 and Llama 3 have it."""
    if self.pre not in SPLITS:
      self.refuse(
          f"ggml.pre {short(self.pre)!r} is none of {', '.join(SPLITS)}"
      )
    split = SPLITS[self.pre]
    level = dict(
        type="ByteLevel", add_prefix_space=False, trim_offsets=True,
        use_regex=split is None,
    )
    first = []
    if split:
      first = [dict(
          type="Split", pattern={"Regex": split}, behavior="Isolated",
          invert=False,
      )]
    elif self.pre == "smollm":
      first = [dict(type="Digits", individual_digits=True)]
    merges = [m.partition(" ")[::2] for m in self.get("ggml.merges", list)]
    return dict(
        normalizer=dict(type="NFC") if split == QWEN2 else None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[*first, level]),
        decoder=level,
        model=dict(
            type="BPE", merges=merges, ignore_merges=split == LLAMA3,
            vocab={t: i for t, i in self.ids.items() if t not in self.unused},
        ),
    )

  def pieces(self) -> dict:
    """SentencePiece BPE with byte fallback, as Llama 2 and Gemma have it."""
    spaced = self.get("ggml.add_space_prefix", bool, True)
    mark = dict(type="Replace", pattern={"String": " "}, content=SPACE)
    back = dict(type="Replace", pattern={"String": SPACE}, content=" ")
    before = [dict(type="Prepend", prepend=SPACE)] if spaced else []
    after = [dict(type="Strip", content=" ", start=1, stop=0)] if spaced else []
    return dict(
        normalizer=dict(type="Sequence", normalizers=[*before, mark]),
        pre_tokenizer=None,
        decoder=dict(type="Sequence", decoders=[
            back, dict(type="ByteFallback"), dict(type="Fuse"), *after,
        ]),
        model=dict(
            type="BPE", vocab=self.ids, merges=self.merges(), fuse_unk=True,
            byte_fallback=True, unk_token=self.named["unknown"] or "<unk>",
        ),
    )

  def merges(self) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, the best piece first.

    Gemma's pieces stand in their order; their scores only follow it in part.
    """
    scores = -np.arange(len(self.tokens), dtype=np.float32)
    if not self.get("general.architecture", str, "").startswith("gemma"):
      scores = self.numbers("ggml.scores", None)
    found = []
    for piece in self.plain:
      if len(piece) > PIECE:
        self.refuse(f"ggml.tokens has a piece of {len(piece)} characters")
      score = -float(scores[self.ids[piece]])
      for cut in range(1, len(piece)):
        left, right = piece[:cut], piece[cut:]
        if left in self.ids and right in self.ids:
          found.append((score, -cut, left, right))
      if len(found) > MERGES:
        self.refuse(f"its pieces follow from more than {MERGES} merges")
    found.sort()
    return [pair[2:] for pair in found]

  def get(self, name: str, kind: type, default=None):
    """One entry; a name without room is of the tokenizer."""
    name = name if name.startswith("general.") else f"tokenizer.{name}"
    value = self._metadata.get(name, default)
    if type(value) is not kind:
      self.refuse(f"{name} is missing or no {kind.__name__}")
    return value

  def numbers(self, name: str, default) -> np.ndarray:
    """One number a token."""
    value = self._metadata.get(f"tokenizer.{name}")
    if value is None and default is not None:
      return np.full(len(self.tokens), default)
    if not isinstance(value, np.ndarray) or len(value) != len(self.tokens):
      self.refuse(f"{name} must have a number for each of ggml.tokens")
    return value

  def token(self, end: str) -> str | None:
    """The token that an id of the metadata names."""
    name = f"tokenizer.ggml.{end}_token_id"
    i = self._metadata.get(name)
    if i is None:
      return None
    if type(i) is not int or not 0 <= i < len(self.tokens):
      self.refuse(f"{name} = {str(i)[:40]} is no token")
    return self.tokens[i]

  def refuse(self, what: str):
    raise ValueError(f"{self.path}: its tokenizer cannot be used: {what}.")
