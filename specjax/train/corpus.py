"""The corpus: Python source of the running interpreter's standard library.

It is on every machine that can run specjax, so training needs no download.
`stdlib.json` names the files, their hashes and the split; a rebuild of the list
and of all that follows from it is, in this order:

  python -m specjax.train.corpus list tokenizer prompts
"""

import hashlib
import json
import pathlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from absl import logging
from tokenizers import decoders, models, pre_tokenizers, trainers

SPLITS = ("train", "heldout")
END = "<|endoftext|>"
HELDOUT = 0.03  # of the bytes outside tests
SAMPLE = 12_000_000  # characters that the tokenizer is trained on
LIST = pathlib.Path(__file__).with_name("stdlib.json")
TOKENIZER = pathlib.Path(__file__).parents[1] / "embedded" / "tokenizer.json"
PROMPTS = pathlib.Path("configs/prompts/heldout.jsonl")

_FOREIGN = {
  "site-packages",
  "dist-packages",
  "__pycache__",
  "data",
  "topics.py",
  "encodings",  # tables, and stubs that are copies of each other
}
_TESTS = {"test", "tests", "idle_test"}
# Newlines go with the indent after them; a word may take one mark before it, so
# that " word", ".word" and "_word" are single pieces; digits go by threes.
_PIECES = (
  r"(?:\r?\n)+[ \t]*|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


def _root() -> pathlib.Path:
  return pathlib.Path(sysconfig.get_paths()["stdlib"])


def _is_code(path: pathlib.PurePath, data: bytes) -> bool:
  """Tells source that people wrote from tables, fixtures and build output."""
  if _FOREIGN & set(path.parts) or not 200 <= len(data) <= 400_000:
    return False
  if re.match(r"_sysconfigdata|config-", path.as_posix()):
    return False  # written when Python was built, with paths of that machine
  if re.search(r"test/.*data|badsyntax|cjkencodings", path.as_posix()):
    return False
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError:
    return False
  letters = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text)
  return letters > 0.68 * len(text)  # tables of numbers and escapes fall below


def build_list(out: pathlib.Path = LIST) -> dict:
  """Writes the list of files, their hashes and their split; returns it.

  Modules outside tests are taken in the order of their path's hash until 3 % of
  such bytes are held out, so the split depends on paths and sizes alone.
  """
  root, found = _root(), []
  for file in sorted(root.rglob("*.py")):
    path = file.relative_to(root)
    data = file.read_bytes()
    if _is_code(path, data):
      found.append((path, _digest(data), len(data)))
  modules = [f for f in found if not _TESTS & set(f[0].parts)]
  left = HELDOUT * sum(size for _, _, size in modules)
  heldout = set()
  for path, _, size in sorted(
    modules, key=lambda f: _digest(f[0].as_posix().encode())
  ):
    if size <= left:
      heldout.add(path)
      left -= size
  listing = {
    "python": platform.python_version(),
    "files": [
      [path.as_posix(), digest, size, SPLITS[path in heldout]]
      for path, digest, size in found
    ],
  }
  rows = ",\n".join("    " + json.dumps(f) for f in listing["files"])
  head = json.dumps(listing["python"])
  out.write_text(f'{{\n  "python": {head},\n  "files": [\n{rows}\n  ]\n}}\n')
  return listing


def load(split: str, *, allow_changed: bool = False) -> list[str]:
  """Returns the texts of one split, in the order of the list.

  Raises ValueError where files are missing or differ from the list, as they do
  under another Python; with `allow_changed` those are left out and counted in
  the log.
  """
  if split not in SPLITS:
    raise ValueError(f"split is {split!r}; it is one of {', '.join(SPLITS)}.")
  listing = json.loads(LIST.read_text())
  texts, changed = [], []
  for path, digest, _, where in listing["files"]:
    if where != split:
      continue
    file = _root() / path
    data = file.read_bytes() if file.is_file() else b""
    if _digest(data) == digest:
      texts.append(data.decode("utf-8"))
    else:
      changed.append(path)
  if changed and not allow_changed:
    raise ValueError(
      f"{len(changed)} standard library files of the {split} split are "
      f"missing or differ from {LIST.name}, the first is {changed[0]}; the "
      f"list was made with Python {listing['python']}, and this is "
      f"{platform.python_version()}."
    )
  if changed:
    logging.warning("%s: %d files left out as changed.", split, len(changed))
  return texts


def train_tokenizer(
  texts: Iterable[str], path: pathlib.Path = TOKENIZER, size: int = 4096
) -> tokenizers.Tokenizer:
  """Trains and saves a byte-level BPE of `size` entries; id 0 ends a document.

  Raises ValueError where the texts are too few to fill the vocabulary.
  """
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=[END],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    max_token_length=40,  # longer ones are rulers of dashes in comments
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  if tokenizer.get_vocab_size() != size:
    raise ValueError(
      f"The texts fill only {tokenizer.get_vocab_size()} of {size} entries of "
      "the vocabulary; give more text or a smaller size."
    )
  tokenizer.save(str(path))
  return tokenizer


def sample(texts: Sequence[str], characters: int = SAMPLE) -> Iterator[str]:
  """Yields every n-th text, n chosen to give about so many characters."""
  step = max(1, round(sum(map(len, texts)) / characters))
  yield from texts[::step]


def tokens(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> np.ndarray:
  """Returns one uint16 array: every text's tokens, each text after an id 0."""
  parts = []
  for i in range(0, len(texts), 64):  # encodings are large: a few at a time
    for encoded in tokenizer.encode_batch_fast(list(texts[i : i + 64])):
      parts.append(np.array([0, *encoded.ids], np.uint16))
  return np.concatenate(parts) if parts else np.zeros(0, np.uint16)


def cached(
  split: str, folder: str | pathlib.Path, *, allow_changed: bool = False
) -> np.ndarray:
  """Returns the tokens of a split, from a file in `folder` once written there.

  The file's name holds a hash of the list and the tokenizer, so that a change
  of either never meets old tokens.
  """
  spec = LIST.read_bytes() + TOKENIZER.read_bytes() + bytes([allow_changed])
  file = pathlib.Path(folder) / f"{split}-{_digest(spec)}.npy"
  if not file.exists():
    texts = load(split, allow_changed=allow_changed)
    out = tokens(tokenizers.Tokenizer.from_file(str(TOKENIZER)), texts)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part.npy")
    np.save(part, out)
    part.replace(file)  # a killed run leaves no half-written array behind
  return np.load(file)


def prompts(texts: Iterable[str], count: int = 20) -> list[str]:
  """Returns the first lines of a function or class from each of `count` texts.

  A prompt is 100 to 200 characters, so that 200 tokens after it stay near the
  trained length of 256, and stops before a newline, not after it: the
  newline and the next line's indent are one token, the model's to choose.
  Raises ValueError where too few texts have such a place.
  """
  out = []
  for text in texts:
    for match in re.finditer(r"^(?:class|def) ", text, re.M):
      region = text[match.start() : match.start() + 200]
      ends = [m.end() for m in re.finditer(r"[^\s\"'][^\n]*(?=\n +\w)", region)]
      ends = [e for e in ends if e >= 100]
      if ends and region.count('"""') % 2 == 0:
        out.append(region[: ends[len(ends) // 2]])
        break
    if len(out) == count:
      return out
  raise ValueError(f"Only {len(out)} of {count} prompts found in the texts.")


def _digest(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()[:16]


def main(argv: Sequence[str]) -> None:
  """Writes what the arguments name: list, tokenizer, prompts."""
  if "list" in argv:
    build_list()
  if "tokenizer" in argv:
    train_tokenizer(sample(load("train")))
  if "prompts" in argv:
    PROMPTS.parent.mkdir(parents=True, exist_ok=True)
    lines = enumerate(prompts(load("heldout")))
    PROMPTS.write_text(
      "".join(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in lines)
    )


if __name__ == "__main__":
  main(sys.argv[1:])
