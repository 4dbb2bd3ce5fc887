"""The file that a bench writes: a line as soon as it is measured, resumable."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from specjax import jobs
from specjax.bench import results
from specjax.processes import led, told

# Of a first line, what another day or machine may have otherwise.
FREE = {"kind", "command", "date"}


class Journal:
  """Lines that are there, and new ones behind them; see `open_journal`."""

  def __init__(self, file, lines: list[dict]):
    self._file, self.lines = file, lines
    self._by_key = {self._key(x): x for x in lines}

  @staticmethod
  def _key(line: dict) -> str:
    names = ("kind", "run", "batch", "group", "turn", "peer", "mode",
             "temperature", "prompt")
    return json.dumps([line.get(n) for n in names], sort_keys=True)

  def first(self, **line) -> dict | None:
    """The line with these names, if it is there."""
    return self._by_key.get(self._key(line))

  def has(self, **line) -> bool:
    """Whether a measurement with these names is there."""
    return self.first(**line) is not None

  def add(self, **line) -> dict:
    """Writes a line, as the leading process has it; on disk when this
    returns."""
    data = told(json.dumps(line).encode())
    if self._file:
      self._file.write(data + b"\n")
      self._file.flush()
      os.fsync(self._file.fileno())
    line = json.loads(data)
    self.lines.append(line)
    self._by_key[self._key(line)] = line
    return line


@contextlib.contextmanager
def open_journal(path: str | pathlib.Path, about: dict) -> Iterator[Journal]:
  """The journal of `path`, begun with `about` or gone on with.

  Raises ValueError when another run writes it, or when what is there was
  measured with other settings, on another machine or with other versions.
  """
  path = pathlib.Path(path)
  with contextlib.ExitStack() as stack:
    file = None

    def there():
      nonlocal file
      file = stack.enter_context(_opened(path))
      lines = list(results.read(path))
      if lines:
        _same(path, lines[0], about)
      return lines

    lines = led(path, there)
    journal = Journal(file, lines)
    if not lines:
      journal.add(**about)
    yield journal


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[BinaryIO]:
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, "a+b") as file:
    jobs.lock(file, f"{path}: another run is writing it; give another --out.")
    _own(file, path)
    _cut(file)  # first: what a kill left may be a whole line but for its end
    yield file


def _own(file, path) -> None:
  """Raises ValueError for what no run has written, before any of it is cut."""
  file.seek(0)
  head, own = file.read(len(b'{"kind"')), b'{"kind"'
  if not own.startswith(head):
    raise ValueError(
        f"{path}: it is no run's results; give another --out, it is left as it"
        " is."
    )


def _cut(file) -> None:
  """Takes away a last line that a kill has left without its end."""
  file.seek(0)
  whole = 0
  for raw in file:
    whole += len(raw) if raw.endswith(b"\n") else 0
  file.truncate(whole)
  file.seek(0, os.SEEK_END)


def _same(path, found: dict, about: dict) -> None:
  about = json.loads(json.dumps(about))  # as it would be read back
  for name in sorted({*found, *about} - FREE):
    if found.get(name) != about.get(name):
      raise ValueError(
          f"{path}: it was measured with {name} = {found.get(name)!r}, this run"
          f" has {about.get(name)!r}; give another --out, or the same settings."
      )
