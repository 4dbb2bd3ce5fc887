"""Files of published benchmarks -> prompts, told by the names of their fields.

One table says what each benchmark calls its prompt; where a file holds bare
documents, it has the instruction that goes in front.
"""

import codecs
import collections
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specjax import requests
from specjax.checkpoint.source import said, short
from specjax.tokens import FILE_LIMIT, read_bytes

IDS = ("question_id", "task_id", "unique_id", "id", "ID")
SORTS, LONGEST = 1000, 100  # categories of a file, characters of one


class Prompt(NamedTuple):
  """What a model is asked; `category` is the benchmark where it has none."""

  id: str
  category: str
  text: str


class Kind(NamedTuple):
  """How a benchmark's entries look; without a name it is the file's.

  `text` is the field of the prompt, `beside` are others that it is known by,
  `ask` is what goes in front.
  """

  name: str
  text: str
  beside: tuple[str, ...] = ()
  category: str = ""
  ask: str = ""


SUMMARIZE = "Summarize: "
TRANSLATE, PAIR = "Translate English to German: ", "en-de"
KINDS = (
    Kind("Spec-Bench", "turns", ("category", "question_id"), "category"),
    Kind("LiveCodeBench", "question_content", ("question_title",)),
    Kind("HumanEval", "prompt", ("task_id",)),
    Kind("MBPP", "prompt", ("task_id", "test_list")),
    Kind("MBPP", "text", ("task_id",)),
    Kind("MATH-500", "problem", ("subject", "unique_id"), "subject"),
    Kind("AIME", "problem", ("id",)),
    Kind("AIME", "Problem", ("ID",)),
    Kind("GSM8K", "question"),
    Kind("XSum", "document", ("id",), ask=SUMMARIZE),
    Kind("CNN/DM", "article", ("id",), ask=SUMMARIZE),
    Kind("WMT", "translation", ask=TRANSLATE),
    # A lone "source" mostly says where an entry is from.
    Kind("WMT", "source", ("target",), ask=TRANSLATE),
    Kind("WMT", "src", ("ref",), ask=TRANSLATE),
    Kind("WMT", "src", ("tgt",), ask=TRANSLATE),
    Kind("", "prompt", category="category"),
)


def read(
    path: str | pathlib.Path, *, field: str = "",
    categories: Sequence[str] = (), each: int = 0, limit: int = 0,
) -> list[Prompt]:
  """The prompts of a JSONL file, or of a JSON array, in its order.

  `field` names the one that holds them, where `KINDS` does not tell. Only
  these `categories`, the first `each` of a category, the first `limit` in all;
  () and 0 = every one. Raises ValueError in one sentence that names the line.
  """
  if min(each, limit) < 0:
    raise ValueError(f"each = {each}, limit = {limit}: none may be negative.")
  path = pathlib.Path(path)
  found, counts, seen, size = [], collections.Counter(), {}, 0
  for where, value in _values(path):
    try:
      prompt = _prompt(value, where, path.stem, field)
      counts[prompt.category] += 1
      if len(counts) > SORTS:
        raise ValueError(f"it begins one more than {SORTS} categories.")
      if (
          (not categories or prompt.category in categories)
          and (not each or counts[prompt.category] <= each)
          and (not limit or len(found) < limit)
      ):
        if prompt.id in seen:
          raise ValueError(
              f"its id {short(prompt.id)!r} is that of {seen[prompt.id]}; give"
              " each its own."
          )
        found.append(prompt)
        seen[prompt.id], size = where, size + sum(map(len, prompt))
      if size > FILE_LIMIT:
        raise ValueError(
            f"prompts up to here have over {FILE_LIMIT} characters; take fewer."
        )
    except ValueError as error:
      raise ValueError(f"{path}: {where}: {error}") from None
    if len(found) == limit > 0 and counts.keys() >= set(categories):
      break
  if not counts:
    raise ValueError(f"{path}: it is empty; give JSONL lines with a prompt.")
  unknown = [short(c) for c in categories if c not in counts]
  if unknown:
    raise ValueError(
        f"{path}: no prompt is of category {', '.join(unknown)}; it has"
        f" {', '.join(map(short, counts))}."
    )
  return found


def _values(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """("line 3", its JSON) of a file, without blank lines, or ("entry 3", it)
  of an array.
  """
  if path.exists() and not path.is_file():
    raise ValueError(f"{path}: it is no plain file; give one of JSONL lines.")
  try:
    with open(path, "rb") as file:
      start = file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
      entries = _json(read_bytes(path), f"{path}")
      yield from ((f"entry {n}", x) for n, x in enumerate(entries, 1))
      return
    for n, raw in requests.lines(path):
      if raw is None:
        raise ValueError(
            f"{path}: line {n} is longer than {requests.LINE_LIMIT} bytes;"
            " leave out what is not the prompt."
        )
      if raw.strip():
        yield f"line {n}", _json(raw, f"{path}: line {n}")
  except OSError as error:
    raise ValueError(f"{path}: cannot be read ({error.strerror}).") from None


def _json(raw: bytes, where: str) -> Any:
  try:
    return json.loads(raw.decode("utf-8-sig"))
  except UnicodeDecodeError as error:
    raise ValueError(
        f"{where}: byte {error.start + 1} is not UTF-8; save it as UTF-8."
    ) from None
  except (ValueError, RecursionError) as error:
    raise ValueError(
        f"{where}: not JSON ({said(error)}); give an object on each line, or"
        " one array of them."
    ) from None


def _prompt(entry: Any, where: str, stem: str, field: str) -> Prompt:
  if not isinstance(entry, dict):
    raise ValueError("it is no object with a prompt.")
  kind = _kind(entry, field)
  text = entry[kind.text]
  if isinstance(text, list):  # turns of a chat; the first needs no answers
    text = text[0] if text else ""
  if isinstance(text, dict) and "de" in text:
    text = text.get("en")
  if not isinstance(text, str) or not text.strip():
    raise ValueError(
        f"{short(kind.text)!r} holds no text: neither a string, nor a list that"
        " begins with one, nor an object with 'en' and 'de'."
    )
  if kind.ask == TRANSLATE and not str(entry.get("lp", PAIR)).startswith(PAIR):
    raise ValueError(
        f"its languages are {short(str(entry['lp']))}; only {PAIR} is asked"
        " for, so select those lines."
    )
  category = entry.get(kind.category, kind.name or stem)
  name = next((entry[n] for n in IDS if n in entry), where.split()[-1])
  for what, value in (("category", category), ("id", name)):
    if type(value) not in (str, int) or len(str(value)) > LONGEST:
      raise ValueError(
          f"its {what} is no string of at most {LONGEST} characters."
      )
  return Prompt(str(name), str(category), kind.ask + text)


def _kind(entry: dict, field: str) -> Kind:
  """The kind whose fields an entry has, or that of a `field` by name."""
  fields = ", ".join(map(short, list(entry)[:20])) or "none"
  if field:
    if field not in entry:
      raise ValueError(
          f"it has no field {short(field)!r} as --field says; its fields are"
          f" {fields}."
      )
    return Kind("", field, category="category")
  fit = [k for k in KINDS if entry.keys() >= _needs(k)]
  # Of a kind and another that asks for more, the latter.
  fit = [k for k in fit if not any(_needs(k) < _needs(x) for x in fit)]
  if len({k.text for k in fit}) != 1:
    what = "are no known benchmark's"
    if fit:
      what = "fit " + " and ".join(k.name or "a plain prompt" for k in fit)
    raise ValueError(
        f"its fields ({fields}) {what}; say which holds the prompt with"
        " --field."
    )
  return fit[0]


def _needs(kind: Kind) -> set[str]:
  return {kind.text, *kind.beside}
