"""The one table of command-line words, and what stands behind each."""

import hashlib
import importlib.resources
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import embedded, rules, sharding
from specjax.checkpoint import safetensors
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.states import check_pair
from specjax.text import Tokenizer

# The flags of every script that writes text, name -> (default, help).
FLAGS = dict(
    target=("embedded", "embedded, or a .safetensors file of train.py."),
    drafter=("autoregressive", "autoregressive, ngram, or nothing (off)."),
    drafter_model=("embedded", "The autoregressive drafter, as --target."),
    rule=("token", "Acceptance rule: token or block."),
    dtype=("float32", "float32 or bfloat16."),
    mesh=("1x1", "Data x model shards."),
    seed=(0, "Sample, line or turn i has this seed plus i."),
)
RULES = {"token": rules.token, "block": rules.block}
DRAFTERS = {
    "autoregressive": lambda c: Autoregressive(
        model("drafter_model", c.drafter_model, "drafter", c.dtype),
        c.num_speculative_tokens,
    ),
    "ngram": lambda c: NGram(c.num_speculative_tokens),
    "nothing": lambda c: Nothing(),
}


class Models(NamedTuple):
  """All that a run needs. `prints` tells files apart by their content."""

  target: Any
  drafter: Any
  rule: Callable
  tokenizer: Any
  prints: dict[str, str]


def look(flag: str, word: str, table: dict):
  """The entry of a table; ValueError with the words that are in it."""
  if word not in table:
    raise ValueError(f"--{flag}={word}: choose one of {', '.join(table)}.")
  return table[word]


def mesh(word: str):
  """"2x1" -> a mesh of 2 data shards and 1 model shard."""
  match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", word)
  if not match:
    raise ValueError(
        f"--mesh={word}: give data x model shards, such as 1x1 or 2x4."
    )
  return sharding.mesh(int(match[1]), int(match[2]))


def path(flag: str, word: str, name: str) -> pathlib.Path:
  """The file of a model: the word embedded, or the file's own path."""
  if word == "embedded":
    return importlib.resources.files(embedded) / f"{name}.safetensors"
  if not word.endswith(".safetensors"):
    raise ValueError(
        f"--{flag}={word}: give embedded, or a .safetensors file that"
        " launch/train.py wrote."
    )
  return pathlib.Path(word)


def model(flag: str, word: str, name: str, dtype: str):
  return safetensors.load(path(flag, word, name), dtype)


def tokenizer(word: str, vocab: int):
  """The tokenizer.json beside a target, else the embedded one if it fits."""
  beside = pathlib.Path(word).with_name("tokenizer.json")
  own = word != "embedded" and beside.is_file()
  found = Tokenizer(beside) if own else embedded.tokenizer()
  if found.size > vocab or not own and found.size != vocab:
    name = beside if own else "the embedded tokenizer"
    raise ValueError(
        f"--target={word}: it has {vocab} tokens, {name} has {found.size};"
        " put its tokenizer.json beside it."
    )
  return found


def models(c) -> Models:
  """Everything that the settings name, loaded and checked to fit."""
  if c.dtype not in ("float32", "bfloat16"):
    raise ValueError(f"--dtype={c.dtype}: choose float32 or bfloat16.")
  if not 1 <= c.num_speculative_tokens <= 64:
    raise ValueError(
        f"--num_speculative_tokens={c.num_speculative_tokens}: it must lie in"
        " 1..64; --drafter=nothing turns speculation off."
    )
  rule = look("rule", c.rule, RULES)
  make = look("drafter", c.drafter, DRAFTERS)
  target = model("target", c.target, "target", c.dtype)
  words = tokenizer(c.target, target.vocab)
  drafter = make(c)
  check_pair(target, drafter)
  files = {"target": path("target", c.target, "target")}
  if c.drafter == "autoregressive":
    files["drafter_model"] = path("drafter_model", c.drafter_model, "drafter")
  prints = {name: digest(file) for name, file in files.items()}
  return Models(target, drafter, rule, words, prints)


def digest(file: pathlib.Path) -> str:
  with open(file, "rb") as data:
    return hashlib.file_digest(data, "sha256").hexdigest()[:16]
