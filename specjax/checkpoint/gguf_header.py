"""The header of a GGUF file, read from hostile bytes: bounded and exact.

Every count is checked against the bytes that are left before anything of that
size is made, so memory and time follow the header's size, which is bounded.
"""

import mmap
import os
import pathlib
import struct
from typing import Any, NamedTuple

import numpy as np

from specjax.checkpoint.source import short

LIMIT = 64 * 2**20  # bytes; 262,144 tokens with their merges take about 20 MB
DIMENSIONS = 4
STRING, ARRAY = 8, 9
LETTERS = {n: c for n, c in enumerate("BbHhIif?__Qqd") if c != "_"}


class Tensor(NamedTuple):
  """Where a tensor says it lies; nothing about its data is checked yet."""

  kind: int  # GGML's number of its type
  shape: tuple[int, ...]  # outermost axis first
  offset: int  # bytes after `Header.start`


class Header(NamedTuple):
  metadata: dict[str, Any]  # numbers, bools, str, list[str], numeric arrays
  tensors: dict[str, Tensor]
  start: int  # of the data, in bytes


def opened(path: str | pathlib.Path) -> mmap.mmap:
  """The file, mapped for reading; ValueError where there is none."""
  try:
    with open(path, "rb", opener=_plain) as file:
      return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  except (OSError, ValueError) as error:  # an empty file cannot be mapped
    what = getattr(error, "strerror", None) or "it is empty"
    raise ValueError(f"{path}: not a readable GGUF file ({what}).") from None


def read(path: str | pathlib.Path, data: mmap.mmap) -> Header:
  """Reads what stands before the tensors' data.

  Raises ValueError in one sentence for a file that is cut short, of the wrong
  endian or version, or says anything twice.
  """
  at = _Cursor(path, data)
  if at.take(4) != b"GGUF":
    at.refuse("it does not begin with GGUF")
  version = at.number("I")
  if version not in (2, 3):
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    at.refuse(
        "it is big-endian; convert it to little-endian first"
        if swapped in (1, 2, 3) else f"version {version} is neither 2 nor 3"
    )
  count, keys = at.number("Q"), at.number("Q")
  metadata: dict[str, Any] = {}
  for _ in at.upto(keys, 12):
    at.key(metadata, "metadata", lambda: at.value(at.number("I")))
  tensors: dict[str, Tensor] = {}
  for _ in at.upto(count, 24):
    at.key(tensors, "tensor", at.tensor)
  step = metadata.get("general.alignment", 32)
  if type(step) is not int or not 0 < step <= 2**20 or step & (step - 1):
    at.refuse(f"general.alignment = {str(step)[:40]} is no power of two")
  return Header(metadata, tensors, -(-at.at // step) * step)


class _Cursor:

  def __init__(self, path, data):
    self.path, self.data, self.at = path, data, 0
    self.end = min(len(data), LIMIT)

  def refuse(self, what: str):
    raise ValueError(f"{self.path}: not a readable GGUF file: {what}.")

  def need(self, count: int) -> None:
    if count > self.end - self.at:
      self.refuse(
          f"at byte {self.at} its header goes on for {count} bytes, past its"
          f" end or {LIMIT} bytes"
      )

  def upto(self, count: int, size: int) -> range:
    """range(count), when so many things of at least `size` bytes can be."""
    self.need(count * size)
    return range(count)

  def take(self, count: int) -> bytes:
    self.need(count)
    self.at += count
    return self.data[self.at - count : self.at]

  def number(self, letter: str):
    (value,) = struct.unpack("<" + letter, self.take(struct.calcsize(letter)))
    if letter == "f":  # the shortest decimal that means the same float32
      return float(str(np.float32(value)))
    return value

  def text(self) -> str:
    at, data = self.at, self.take(self.number("Q"))
    try:
      return data.decode()
    except UnicodeDecodeError:
      self.refuse(f"the text at byte {at} is not UTF-8")

  def key(self, found: dict, what: str, value) -> None:
    """Reads a name, then its value into `found`."""
    name = self.text()
    if name in found:
      self.refuse(f"{what} {short(name)} is there twice")
    found[name] = value()

  def value(self, kind: int):
    if kind == STRING:
      return self.text()
    if kind != ARRAY:
      return self.number(self.letter(kind))
    kind, count = self.number("I"), self.number("Q")
    if kind == STRING:
      return [self.text() for _ in self.upto(count, 8)]
    form = np.dtype(self.letter(kind)).newbyteorder("<")
    self.need(count * form.itemsize)
    return np.frombuffer(self.take(count * form.itemsize), form)

  def letter(self, kind: int) -> str:
    if kind not in LETTERS:
      self.refuse(f"at byte {self.at} a value has the unknown type {kind}")
    return LETTERS[kind]

  def tensor(self) -> Tensor:
    count = self.number("I")
    if not 0 < count <= DIMENSIONS:
      self.refuse(
          f"at byte {self.at} a tensor has {count} dimensions, not 1 to"
          f" {DIMENSIONS}"
      )
    shape = tuple(self.number("Q") for _ in range(count))[::-1]
    return Tensor(self.number("I"), shape, self.number("Q"))


def _plain(path, flags) -> int:
  """Opens without waiting for a pipe's writer; a pipe cannot be mapped."""
  return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
