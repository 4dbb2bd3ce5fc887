"""The one table of command-line words, and what stands behind each."""

import contextlib
import importlib.resources
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import (
    auto,
    embedded,
    pretrained,
    rules,
    sharding,
    vocabularies,
)
from specjax.checkpoint import safetensors
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.models import int8
from specjax.models.narrow import Narrow
from specjax.models.translated import Translated
from specjax.rules.lossy_synthetic import lossy_synthetic
from specjax.states import check_pair
from specjax.text import Tokenizer

# The flags of every script that writes text, name -> (default, help).
FLAGS = dict(
    target=(
        "embedded",
        "embedded, a folder in the Hugging Face layout or of convert.py, a hub"
        f" id (org/name), a .gguf file, {', '.join(pretrained.WORDS)}, or a"
        " .safetensors file of train.py.",
    ),
    drafter=("autoregressive", "autoregressive, ngram, or nothing (off)."),
    drafter_model=("embedded", "The autoregressive drafter, as --target."),
    cross_vocabulary=(
        False, "The drafter has another tokenizer: draft what both can say.",
    ),
    prompt_lookup_min=(2, "ngram: fewest tokens that must match."),
    prompt_lookup_max=(3, "ngram: most tokens that are compared."),
    rule=("token", "Acceptance rule: token or block."),
    dtype=("float32", "float32 or bfloat16."),
    quantize=(
        "", "int8: the target's weights in 8 bits; the text has the law of that"
        " model.",
    ),
    drafter_quantize=(
        "", "int8: the --drafter_model's weights in 8 bits; the law stays.",
    ),
    mesh=("1x1", "Data x model shards."),
    drafter_shards=(
        0, "Model shards of the drafter model: 1 repeats it on every device,"
        " 0 is as many as the target's.",
    ),
    seed=(0, "Sample, line or turn i has this seed plus i."),
)
# Of scripts that several processes may run together.
PODS = dict(
    multihost=(
        False, "This is one of several processes, each with devices of its"
        " own, in all of which the same command runs; the first one writes.",
    ),
    coordinator=(
        "", "host:port of the first process, where nothing else says it (on a"
        " TPU pod it is known, and so are the next two).",
    ),
    processes=(0, "How many processes there are."),
    process=(-1, "Which of them this is, from 0."),
)
OFF = -1.0
# Of scripts whose output need not be text that anybody reads.
SYNTHETIC = dict(
    synthetic_acceptance=(
        OFF, "LOSSY, for planning: drafts pass by a coin of this chance, the"
        " text is not real output; -1 off.",
    ),
)
RULES = {"token": rules.token, "block": rules.block}
QUANTISED = {"int8": int8.quantised}
# Each makes (a drafter, prints of its files) from settings and the target.
DRAFTERS = {
    "autoregressive": lambda c, target: autoregressive(c, target),
    "ngram": lambda c, target: (
        NGram(drafts(c)[0], c.prompt_lookup_min, c.prompt_lookup_max), {}
    ),
    "nothing": lambda c, target: (Nothing(), {}),
}


class Models(NamedTuple):
  """All that a run needs. `prints` tells files apart by their content."""

  target: Any
  drafter: Any
  rule: Callable
  tokenizer: Any
  prints: dict[str, Callable[[], str]]
  run: Any = None  # an `auto.Auto`, where K is chosen while it runs


def look(flag: str, word: str, table: dict):
  """The entry of a table; ValueError with the words that are in it."""
  if word not in table:
    raise ValueError(f"--{flag}={word}: choose one of {', '.join(table)}.")
  return table[word]


def mesh(word: str, narrow: int = 0, fsdp: bool = False):
  """"2x1" -> a mesh of 2 data shards and 1 model shard.

  `narrow` as --drafter_shards. With `fsdp` there may be three numbers: data,
  fsdp and model shards.
  """
  found = re.fullmatch(r"(\d{1,6})x(\d{1,6})(?:x(\d{1,6}))?", word)
  if not found or found[3] and not fsdp:
    more = ", or data x fsdp x model" if fsdp else ""
    raise ValueError(
        f"--mesh={word}: give data x model shards, such as 1x1 or 2x4{more}."
    )
  data, *middle, model = (int(n) for n in found.groups() if n)
  return sharding.mesh(
      data, model, fsdp=middle[0] if middle else 1, narrow=narrow or None
  )


def own(word: str, name: str) -> pathlib.Path | None:
  """The file of a model of ours: of the embedded pair, or of train.py."""
  if word == "embedded":
    return importlib.resources.files(embedded) / f"{name}.safetensors"
  return pathlib.Path(word) if word.endswith(".safetensors") else None


class Model(NamedTuple):
  """A model of the command line, its tokenizer, a print of its content.

  Printing reads the files, so it waits until a job asks.
  """

  module: Any
  tokenizer: Any
  digest: Callable[[], str]


def quantised(flag: str, word: str) -> Callable:
  """What --quantize or --drafter_quantize does to a model."""
  return look(flag, word, QUANTISED) if word else lambda module: module


def model(flag: str, word: str, name: str, dtype: str) -> Model:
  """Loads what --target or --drafter_model says; `name` is its role."""
  file = own(word, name)
  if file is None:
    found = find(flag, word)
    words, module = found.tokenizer(), found.load(dtype)  # the quick one first
    return Model(module, fitting(flag, word, words, module), found.digest)
  module = safetensors.load(file, dtype)
  beside = file.with_name("tokenizer.json")
  alone = word == "embedded" or not beside.is_file()
  words = embedded.tokenizer() if alone else Tokenizer(beside)
  if alone and words.size != module.vocab:
    raise ValueError(
        f"--{flag}={word}: it has {module.vocab} tokens, the embedded tokenizer"
        f" has {words.size}; put its tokenizer.json beside it."
    )
  words = fitting(flag, word, words, module)
  return Model(module, words, lambda: pretrained.digest([file]))


def find(flag: str, word: str) -> pretrained.Found:
  """The published checkpoint that a flag names."""
  try:
    return pretrained.find(word)
  except ValueError as error:
    reason = str(error).removeprefix(f"{word}: ")
    raise ValueError(f"--{flag}={word}: {reason}") from None


def fitting(flag: str, word: str, tokenizer, module):
  """The tokenizer, when the model has all its ids (it may have more)."""
  if tokenizer.size > module.vocab:
    raise ValueError(
        f"--{flag}={word}: its tokenizer has {tokenizer.size} tokens, the model"
        f" only {module.vocab}."
    )
  return tokenizer


def autoregressive(c, target: Model):
  """A smaller model that drafts; with another vocabulary only when asked."""
  narrow = sharding.narrowed if c.drafter_shards else contextlib.nullcontext
  with narrow():
    found = model("drafter_model", c.drafter_model, "drafter", c.dtype)
  (K, _), prints = drafts(c), {"drafter_model": found.digest}
  drafter = quantised("drafter_quantize", c.drafter_quantize)(found.module)
  ours, theirs = (m.tokenizer.token_bytes() for m in (target, found))
  if ours != theirs and not c.cross_vocabulary:
    raise ValueError(
        f"--drafter_model={c.drafter_model}: its tokenizer is not that of"
        f" --target={c.target}; choose one that shares it, --drafter=ngram"
        " which needs none, or --cross_vocabulary to draft what both can say."
    )
  if c.drafter_shards:
    drafter = Narrow(drafter)
  if c.cross_vocabulary:
    tables = vocabularies.compare(
        target.tokenizer, found.tokenizer, target.module.vocab, drafter.vocab
    )
    drafter = Translated(drafter, tables)
  return Autoregressive(drafter, K), prints


def models(c) -> Models:
  """Everything that the settings name, loaded and checked to fit."""
  if c.dtype not in ("float32", "bfloat16"):
    raise ValueError(f"--dtype={c.dtype}: choose float32 or bfloat16.")
  for flag in ("quantize", "drafter_quantize"):
    quantised(flag, c[flag])
  _, by_itself = drafts(c)
  rule = look("rule", c.rule, RULES)
  if c.get("synthetic_acceptance", OFF) != OFF:
    if c.rule != "token":
      raise ValueError(
          "--synthetic_acceptance has a rule of its own; leave --rule out."
      )
    rule = lossy_synthetic(c.synthetic_acceptance)
  look("drafter", c.drafter, DRAFTERS)  # before a large target is read
  target = model("target", c.target, "target", c.dtype)
  quantised("quantize", c.quantize)(target.module)
  found, prints = drafter(c, target)
  prints = {"target": target.digest} | prints
  run = None
  if by_itself and found.K:
    run = auto.Auto(target.module, found, rule=rule)
  return Models(target.module, found, rule, target.tokenizer, prints, run)


def drafts(c) -> tuple[int, bool]:
  """(K, whether a smaller one may be chosen while it runs) as c says."""
  word = str(c.num_speculative_tokens)
  if word == "auto":
    return max(auto.WIDTHS), True
  if not re.fullmatch(r"[0-9]{1,3}", word) or not 1 <= int(word) <= 64:
    raise ValueError(
        f"--num_speculative_tokens={word}: it must lie in 1..64, or be auto;"
        " --drafter=nothing turns speculation off."
    )
  return int(word), False


def drafter(c, target: Model):
  """(the drafter that the settings name, prints of its files)."""
  if c.cross_vocabulary and c.drafter != "autoregressive":
    raise ValueError(
        f"--cross_vocabulary is for a --drafter_model; --drafter={c.drafter}"
        " has none."
    )
  found, prints = look("drafter", c.drafter, DRAFTERS)(c, target)
  check_pair(target.module, found)
  return found, prints


def sampling(c) -> dict[str, float]:
  """The fields of `sampling.params` that the settings give."""
  return dict(
      temperature=c.temperature, top_k=c.top_k, top_p=c.top_p, min_p=c.min_p,
      repetition=c.repetition_penalty, presence=c.presence_penalty,
      frequency=c.frequency_penalty,
  )
