"""Chat templates: a conversation -> token ids, which no user can forge.

A template is a program that came with a model, so it runs elsewhere: this
file, as a script, renders it in a sandbox in a process of its own, with bounds
on time, memory and output.

What a user typed must not become a special token. So the template is rendered
twice: as it is, and with a mark before every visible character of the
contents. Marks survive what templates do (strip, join, cut at white space),
no name of a token matches across them, and every character that has none is
the template's own. Where the template looks into the contents, so that the
marks change the text itself, the plain text is taken if its special tokens
are the same ones, and refused if they are not.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

ROLES = ("system", "user", "assistant", "tool")
MARK = "\ufdd0"  # no character, by the standard
SECONDS = 5  # of the processor; a render takes a few milliseconds
WAIT = 30  # seconds on the clock, on a busy machine
MEMORY = 2**30
OUTPUT = 2**26  # bytes
CONTENT = 2**22  # characters of all messages


def encode(
    tokenizer, messages: Sequence[dict], *, generate: bool = True
) -> list[int]:
  """Token ids of [{"role": ..., "content": ...}] by the tokenizer's template.

  With `generate`, the beginning of an answer follows. The template itself
  writes what begins a text (bos). Raises ValueError in one sentence: no
  template, one that fails, hangs or refuses, contents that it cannot hold.
  """
  if tokenizer.chat_template is None:
    raise ValueError(
        "The tokenizer has no chat template; use a chat model, or give one."
    )
  first = lambda ids: tokenizer.name(ids[0]) if ids else ""
  begin = () if tokenizer.bos is None else (tokenizer.bos,)
  plain, marked = render(
      tokenizer.chat_template, messages, generate=generate,
      bos_token=first(begin), eos_token=first(tokenizer.eos),
  )
  parts = list(_parts(marked or ""))
  ids = tokenizer.encode_parts(parts)
  if "".join(text for text, _ in parts) == plain:
    return ids
  special = {token.id for token in tokenizer.added.values()}
  own = [i for i in ids if i in special]
  ids = tokenizer.encode(plain, special=True)
  if [i for i in ids if i in special] != own:
    raise ValueError(
        "The chat template reads the messages and these change its special"
        " tokens; take what looks like a special token out of them."
    )
  return ids


def ends(tokenizer) -> tuple[int, ...]:
  """The tokenizer's eos, and the token that ends an answer in its template.

  Some files name only one of them. Found by rendering an answer: what
  special token comes first after it.
  """
  talk = [dict(role="user", content="x"), dict(role="assistant", content="x")]
  try:
    before = encode(tokenizer, talk[:1])
    after = encode(tokenizer, talk, generate=False)
  except ValueError:  # a template may want other roles
    return tokenizer.eos
  if after[: len(before)] != before:
    return tokenizer.eos
  special = {token.id for token in tokenizer.added.values()}
  last = [i for i in after[len(before) :] if i in special][:1]
  return tuple(dict.fromkeys([*tokenizer.eos, *last]))


def render(
    template: str, messages: Sequence[dict], *, generate: bool = True,
    **variables: str,
) -> tuple[str, str | None]:
  """The text, and the text with a mark before what came from contents.

  The second is None where only the marks made the template fail. `variables`
  are further names in it. Raises ValueError as `encode` does.
  """
  for n, message in enumerate(messages):
    good = isinstance(message, dict) and message.get("role") in ROLES
    if not good or not isinstance(message.get("content"), str):
      raise ValueError(
          f"messages[{n}]: give a role ({', '.join(ROLES)}) and a content, both"
          " strings."
      )
  length = sum(len(m["content"]) for m in messages)
  if length > CONTENT:
    raise ValueError(
        f"messages: {length} characters are more than {CONTENT}; shorten them."
    )
  marked = [
      {**m, "content": re.sub(r"(\S)", MARK + r"\1", m["content"])}
      for m in messages
  ]
  shared = dict(
      variables, add_generation_prompt=generate, tools=None, documents=None
  )
  job = dict(template=template, runs=[
      dict(shared, messages=m) for m in (list(messages), marked)
  ])
  answer = _elsewhere(json.dumps(job))
  if "error" in answer:
    raise ValueError(answer["error"])
  return tuple(answer["texts"])


def _parts(marked: str) -> Iterator[tuple[str, bool]]:
  """(text, whether it is the template's own), the marks taken out."""
  for theirs, own in re.findall(
      f"((?:{MARK}.)+)|([^{MARK}]+)", marked, re.DOTALL
  ):
    yield (own, True) if own else (theirs[1::2], False)


def _elsewhere(job: str) -> dict:
  """Runs this file on a job -> its answer. No fork: threads may hold locks."""
  bounds = SECONDS, MEMORY, OUTPUT
  with tempfile.TemporaryFile() as out:
    try:
      done = subprocess.run(
          [sys.executable, "-P", __file__, *map(str, bounds)],
          input=job.encode(), stdout=out, stderr=subprocess.DEVNULL,
          timeout=WAIT,
      )
      code = done.returncode
    except subprocess.TimeoutExpired:
      code = None
    out.seek(0)
    data = out.read(OUTPUT)
  with contextlib.suppress(ValueError):
    if code == 0:
      return json.loads(data)
  return {"error": (
      "The chat template could not be rendered within"
      f" {SECONDS} s, {MEMORY >> 20} MiB and {OUTPUT >> 20} MiB of text; use"
      " another."
  )}


def _answer(job: dict) -> dict:
  """In the other process: the texts of a job's runs, or what went wrong."""
  try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
  except ImportError:
    return {"error": (
        "Chat templates need the package jinja2; run pip install jinja2."
    )}

  class Refusal(jinja2.TemplateError):
    pass

  class Generation(jinja2.ext.Extension):
    """{% generation %}, which marks answers for training: only its body."""

    tags = {"generation"}

    def parse(self, parser):
      next(parser.stream)
      return parser.parse_statements(
          ("name:endgeneration",), drop_needle=True
      )

  def refuse(text):
    raise Refusal(text)

  def as_json(value, indent=None, separators=None, sort_keys=False, **_):
    return json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators,
        sort_keys=sort_keys,
    )

  def now(form):
    import datetime
    return datetime.datetime.now().strftime(form)

  def sentence(error):
    line = " ".join(str(error).split())[:300].rstrip(".")
    if isinstance(error, Refusal):
      return f"The chat template refuses the conversation: {line}."
    line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return f"The chat template cannot be rendered: {line}."

  try:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
    )
    env.filters["tojson"] = as_json
    env.globals |= dict(raise_exception=refuse, strftime_now=now)
    template = env.from_string(job["template"])
    texts = [template.render(**job["runs"][0])]
  except Exception as error:
    return {"error": sentence(error)}
  try:
    return {"texts": [*texts, template.render(**job["runs"][1])]}
  except Exception:
    return {"texts": [*texts, None]}


def _bound(seconds: int, memory: int, output: int) -> None:
  with contextlib.suppress(ImportError):  # no such module on Windows
    import resource
    for name, most in (
        ("CORE", 0), ("CPU", seconds), ("AS", memory), ("FSIZE", output)
    ):
      with contextlib.suppress(ValueError, OSError):  # not all, on a Mac
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


if __name__ == "__main__":
  _bound(*map(int, sys.argv[1:]))
  print(json.dumps(_answer(json.load(sys.stdin))))
