"""A batch job of JSONL lines that can be killed and started again.

Line n of the output answers line n of the input, in order, once. What is
written is never touched again, so the output itself tells how far the job
came; a header beside it tells whether it is the same job.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from specjax.processes import anywhere, led, told
from specjax.requests import Options, Request, lines, parse, survey
from specjax.serve import Answers


class Stopped(Exception):
  """The job was asked to end; what it has finished is written."""


class Done(NamedTuple):
  """A finished job's lines: written now, refused with an error, in all."""

  new: int
  wrong: int
  total: int


def run(
    source: str | pathlib.Path,
    output: str | pathlib.Path,
    settings: dict[str, Any],
    answers: Callable[[Iterator[Request], int], Iterator[Answers]],
    *,
    options: Options,
    tokenizer,
    tick: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Done:
  """Answers the lines of `source` that `output` lacks, and counts them.

  `answers(requests, longest)` is `serve` with its models. `settings` is what
  the text depends on: an output made with others, or from another input, is
  refused. `tick(done, total)` follows what is safely on disk. Raises
  ValueError in one sentence, Stopped once `stopped()` and all is written.
  """
  source, output = pathlib.Path(source), pathlib.Path(output)
  if anywhere(not source.is_file()):
    raise ValueError(f"{source}: no such input file; give a JSONL file.")
  if output.exists() and output.samefile(source):
    raise ValueError(f"{output}: the output is the input; choose another name.")
  with open(source, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  if anywhere(told(digest.encode()) != digest.encode()):
    raise ValueError(f"{source}: the processes have files of other content.")
  with _shared(output, {"input": digest, **settings}) as (file, done, wrong):
    total, longest = survey(source, options, tokenizer)
    if done > total:
      raise ValueError(
          f"{output}: it has {done} lines for {total} of the input; choose"
          " another output."
      )
    tick(done, total)
    if done == total:
      return Done(0, wrong, total)
    rest = (
        parse(raw, line, options, tokenizer)
        for line, raw in lines(source)
        if line > done
    )
    first = done
    for out in _in_order(answers(rest, longest), done + 1):
      if out:
        if file:
          file.write(b"".join(map(_encode, out)))
          file.flush()
          os.fsync(file.fileno())
        done += len(out)
        wrong += sum("error" in record for record in out)
        tick(done, total)
      if anywhere(stopped()) and done < total:
        raise Stopped(
            f"{output}: stopped with {done} of {total} lines written; the same"
            " command goes on from there."
        )
  return Done(done - first, wrong, total)


def _in_order(answers: Iterable[Answers], line: int) -> Iterator[list[dict]]:
  """Holds answers back until all before them are there."""
  waiting = {}
  for some in answers:
    waiting.update(some)
    out = []
    while line in waiting:
      out.append(waiting.pop(line))
      line += 1
    yield out


def _encode(record: dict) -> bytes:
  try:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    text = text.encode("utf-8")
  except UnicodeEncodeError:  # JSON may hold half of a surrogate pair
    text = json.dumps(record, allow_nan=False).encode("ascii")
  return text + b"\n"


def lock(file: BinaryIO, taken: str) -> None:
  """Keeps others from a file while it is open; ValueError(`taken`) when
  another process does so already."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    raise ValueError(taken) from None


@contextlib.contextmanager
def _shared(
    output: pathlib.Path, header: dict
) -> Iterator[tuple[BinaryIO | None, int, int]]:
  """As `_opened` in the leading process; the others write nothing."""
  with contextlib.ExitStack() as stack:
    file = None

    def there():
      nonlocal file
      file, *counts = stack.enter_context(_opened(output, header))
      return counts

    done, wrong = led(output, there)
    yield file, done, wrong


@contextlib.contextmanager
def _opened(
    output: pathlib.Path, header: dict
) -> Iterator[tuple[BinaryIO, int, int]]:
  """The output, locked and at its end; how many lines it has, and refusals.

  Its header goes to `<output>.job` before the first line is written.
  """
  if output.exists() and not output.is_file():
    raise ValueError(f"{output}: it is not a regular file; name another.")
  if not output.parent.is_dir():
    raise ValueError(f"{output}: its folder does not exist; create it first.")
  with open(output, "a+b") as file:
    lock(
        file, f"{output}: another process is writing it; wait for that, or"
        " choose another output.",
    )
    beside = output.with_name(output.name + ".job")
    if file.seek(0, os.SEEK_END):
      _same_job(output, beside, header)
    elif beside.is_dir():
      raise ValueError(f"{beside}: it is a folder; name another output.")
    else:
      _write_header(beside, header)
    yield file, *_finished(output, file)


def _write_header(path: pathlib.Path, header: dict) -> None:
  """Whole or not at all: written aside, then moved."""
  aside = path.with_name(path.name + ".new")
  with open(aside, "w", encoding="utf-8") as file:
    json.dump(header, file, indent=2)
    file.flush()
    os.fsync(file.fileno())
  aside.replace(path)
  folder = os.open(path.parent, os.O_RDONLY)
  os.fsync(folder)
  os.close(folder)


def _same_job(output: pathlib.Path, beside: pathlib.Path, header: dict) -> None:
  try:
    old = json.loads(beside.read_text("utf-8"))
    old.keys()
  except (OSError, ValueError, AttributeError):
    raise ValueError(
        f"{output}: it is not empty and no job's output ({beside.name} is not"
        " readable); choose another output."
    ) from None
  header = json.loads(json.dumps(header))  # as it would be read back
  for name in sorted(header.keys() | old.keys()):
    was, now = old.get(name), header.get(name)
    if was == now:
      continue
    if name == "input":
      raise ValueError(
          f"{output}: it answers an input of other content; choose another"
          " output, or remove it to begin anew."
      )
    raise ValueError(
        f"{output}: it was begun with {name} = {was!r} and not {now!r}; repeat"
        " that, or choose another output."
    )


def _finished(output: pathlib.Path, file: BinaryIO) -> tuple[int, int]:
  """Cuts off a torn last line and counts the others, and the refusals."""
  count = end = wrong = 0
  file.seek(0)
  for raw in file:
    if not raw.endswith(b"\n"):
      break
    count, end = count + 1, end + len(raw)
    if not raw.startswith(b'{"line": %d,' % count):
      raise ValueError(
          f"{output}: its line {count} was not written by this job; choose"
          " another output, or remove it to begin anew."
      )
    wrong += b'"error": ' in raw and "error" in json.loads(raw)
  file.truncate(end)
  return count, wrong


@contextlib.contextmanager
def interruptible(
    tell: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[], bool]]:
  """Turns SIGTERM and ctrl-C into a question; a second one ends at once.

  `tell()` is called by another thread as soon as the first one comes, though
  the answer may wait: Python's own handlers run between calls, and compiling
  is one long call.
  """
  asked, came, old = [], [], {}

  def ask(number, frame):
    asked.append(number)
    for each, handler in old.items():
      signal.signal(each, handler)

  def heard(number):
    if number not in old:
      return
    came.append(number)
    if len(came) == 1:
      tell()
    elif not asked:  # `ask` still waits; what is finished is on disk
      os._exit(130)

  for number in (signal.SIGTERM, signal.SIGINT):
    old[number] = signal.signal(number, ask)
  try:
    with _listening(heard):
      yield lambda: bool(asked)
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def _listening(heard: Callable[[int], None]) -> Iterator[None]:
  """A thread calls `heard(number)` for each handled signal when it comes."""
  reader, writer = os.pipe()
  os.set_blocking(writer, False)

  def listen():
    while raw := os.read(reader, 1):
      heard(raw[0])

  thread = threading.Thread(target=listen, daemon=True)
  thread.start()
  before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    os.close(writer)
    thread.join()
    os.close(reader)
