"""Lines of JSONL -> requests, each checked; a bad one carries its reason."""

import codecs
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from specjax import chat
from specjax import sampling as samplings
from specjax.stops import cut_at_stop

LINE_LIMIT = 2**22  # bytes of an input line
NEW_LIMIT = 2**14  # tokens a line may ask for: one line sizes every row

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
FIELDS = ("prompt", "id", *SAMPLING, "max_new_tokens", "seed", "stop",
          "num_speculative_tokens")


class TooLong(ValueError):
  """A prompt of more tokens than may be read."""


@dataclasses.dataclass(frozen=True)
class Options:
  """What every line gets unless it says otherwise, and what bounds it.

  `sampling` holds fields of `sampling.params`; a line's seed is `seed` plus
  its number; `logprobs` = how many likely tokens to report beside each.
  `apart`: an encoder reads the prompts, which then end with the tokenizer's
  end token, and each answer begins a text of its own. `chat`: a prompt is a
  user's turn, put into the model's own template.
  """

  max_new_tokens: int = 128
  num_speculative_tokens: int = 0
  sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
  seed: int = 0
  stop: tuple[str, ...] = ()
  logprobs: int | None = None
  max_prompt_tokens: int = 2048
  truncate: bool = False
  apart: bool = False
  chat: bool = False

  def __post_init__(self):
    _check_law(self.sampling)
    cut_at_stop("", self.stop)
    _within("max_new_tokens", self.max_new_tokens, 1, NEW_LIMIT)
    _within("max_prompt_tokens", self.max_prompt_tokens, 1, 2**24)
    _within("seed", self.seed, 0, 2**63)
    if self.chat and self.truncate:
      raise ValueError(
          "truncate = True would cut the template of a chat; shorten prompts."
      )


class Request(NamedTuple):
  """One line, read and checked; or `error`, why it cannot be answered."""

  line: int
  echo: dict  # the id or the prompt, to be found again by
  tokens: list[int] = []
  new: int = 1
  width: int = 0
  seed: int = 0
  sampling: dict = {}
  stop: tuple[str, ...] = ()
  truncated: int = 0  # prompt tokens left out
  error: str | None = None


def request(
    prompt: str, line: int, options: Options, tokenizer, fields=None
) -> Request:
  """A prompt with its own `fields` over the options -> Request.

  Raises ValueError in one sentence: a wrong field, an over-long prompt.
  """
  fields = fields or {}
  tokens = [] if tokenizer.bos is None else [tokenizer.bos]
  begin = len(tokens)
  if options.chat:
    tokens = chat.encode(tokenizer, [{"role": "user", "content": prompt}])
  else:
    tokens += tokenizer.encode(prompt)
  if options.apart:
    tokens += tokenizer.eos[:1]
  if not tokens:
    raise ValueError("the prompt is empty; give at least one character.")
  over = len(tokens) - options.max_prompt_tokens
  if over > 0 and not options.truncate:
    raise TooLong(
        f"the prompt has {len(tokens)} tokens, max_prompt_tokens ="
        f" {options.max_prompt_tokens}; shorten it, or allow truncation, which"
        " keeps its end."
    )
  if over > 0:
    begin = min(begin, options.max_prompt_tokens - 1)
    tokens = tokens[:begin] + tokens[begin + over :]
  own = {k: _number(k, fields[k]) for k in SAMPLING if k in fields}
  sampling = {**samplings.DEFAULTS, **options.sampling, **own}
  _check_law(sampling)
  whole = lambda name, default, least, most: _within(
      name, fields.get(name, default), least, most
  )
  K = options.num_speculative_tokens
  stop = fields.get("stop", options.stop)
  if not isinstance(stop, (list, tuple)) or any(
      s not in options.stop for s in stop
  ):
    raise ValueError(
        f"stop = {stop!r} is no list of the job's stop strings,"
        f" {list(options.stop)}."
    )
  echo = {"id": fields["id"]} if "id" in fields else {"prompt": prompt}
  return Request(
      line,
      echo,
      tokens,
      whole("max_new_tokens", options.max_new_tokens, 1, NEW_LIMIT),
      whole("num_speculative_tokens", K, 0, K),
      whole("seed", options.seed + line, 0, 2**64 - 1),
      sampling,
      tuple(stop),
      max(over, 0),
  )


def parse(raw: bytes | None, line: int, options: Options, tokenizer) -> Request:
  """One input line -> Request; what is wrong with it becomes its `error`."""
  echo = {}
  try:
    fields = _object(raw, line)
    echo = {"id": fields["id"]} if "id" in fields else {}
    for name in fields:
      if name not in FIELDS:
        raise ValueError(
            f"field {name!r} is unknown; the fields are {', '.join(FIELDS)}."
        )
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
      wrong = "is missing" if prompt is None else f"is {_kind(prompt)}"
      raise ValueError(f"'prompt' {wrong}; give a string.")
    return request(prompt, line, options, tokenizer, fields)
  except (ValueError, RecursionError) as error:
    return Request(line, echo, error=f"line {line}: {error}")


def _object(raw: bytes | None, line: int) -> dict:
  if raw is None:
    raise ValueError(f"it is longer than {LINE_LIMIT} bytes; split it.")
  if line == 1:
    raw = raw.removeprefix(codecs.BOM_UTF8)
  if not raw.strip():
    raise ValueError("it is blank; give a JSON object with a 'prompt'.")
  example = '{"prompt": "text"}'
  try:
    value = json.loads(
        raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer,
        parse_float=_finite,
    )
  except UnicodeDecodeError as error:
    raise ValueError(
        f"byte {error.start + 1} is not UTF-8; save the file as UTF-8."
    ) from None
  except json.JSONDecodeError as error:
    raise ValueError(
        f"it is not JSON ({error.msg} at column {error.colno}); give an"
        f" object such as {example}."
    ) from None
  except RecursionError:
    raise ValueError(
        f"its JSON is nested too deep; give an object such as {example}."
    ) from None
  if not isinstance(value, dict):
    raise ValueError(f"it is {_kind(value)}; give an object such as {example}.")
  return value


def _finite(digits: str) -> float:
  return float(digits) if math.isfinite(float(digits)) else _no_constant(digits)


def _no_constant(name: str):
  raise ValueError(f"it is not JSON ({name} is no number); give a number.")


def _check_law(sampling: dict) -> None:
  try:
    samplings.params(1, **sampling)
  except ValueError as error:
    raise ValueError(str(error).replace(" in row 0", "")) from None


def _integer(digits: str) -> int:
  if len(digits) > 40:  # Python reads no more than 4,300
    raise ValueError(f"a number has {len(digits)} digits; give a smaller one.")
  return int(digits)


def _kind(value) -> str:
  kinds = {list: "a list", dict: "an object", str: "a string", bool: "a truth"
           " value", type(None): "null"}
  return kinds.get(type(value), "a number")


def _number(name: str, value):
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f"{name} is {_kind(value)}; give a number.")
  return value


def _within(name: str, value, least: int, most: int) -> int:
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f"{name} = {value!r}; give a whole number.")
  if not least <= value <= most:
    raise ValueError(f"{name} = {value}; it must lie in {least}..{most}.")
  return value


def lines(path: pathlib.Path) -> Iterator[tuple[int, bytes | None]]:
  """The lines of a file, counted from 1; None for one over LINE_LIMIT."""
  with open(path, "rb") as file:
    line = 0
    while raw := file.readline(LINE_LIMIT):
      line, whole = line + 1, raw
      while raw and not raw.endswith(b"\n") and len(raw) == LINE_LIMIT:
        raw, whole = file.readline(LINE_LIMIT), None
      yield line, whole


def survey(
    path: pathlib.Path, options: Options, tokenizer
) -> tuple[int, int]:
  """(lines of a file, tokens of its longest request, 0 if all are wrong)."""
  line = longest = 0
  for line, raw in lines(path):
    r = parse(raw, line, options, tokenizer)
    longest = longest if r.error else max(longest, len(r.tokens) + r.new)
  return line, longest
