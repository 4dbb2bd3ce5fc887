"""A published checkpoint of any format: its config and its tensors by name."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from specjax.tokens import read_bytes

LISTED = 100  # wrong tensors in one error


class Source(Protocol):
  """Tensors under their Hugging Face names, read one at a time.

  `shapes` are those of `read`: [out, in] for linear layers (GPT-2's are
  published the other way round). `config` has the fields of config.json.
  `dtype` is that of all of them, or float32.
  """

  path: str  # for sentences
  config: dict[str, Any]
  dtype: str
  shapes: dict[str, tuple[int, ...]]

  def read(self, name: str, rows: slice | None = None) -> np.ndarray:
    """One tensor, or these entries of its first axis, in a floating type."""
    ...


def read_json(path: pathlib.Path) -> dict:
  """A JSON object from a file of bounded size; ValueError for anything else."""
  try:
    data = read_bytes(path)
  except OSError as error:
    raise ValueError(f"{path}: cannot be read ({error.strerror}).") from None
  try:
    found = json.loads(data, object_pairs_hook=_once)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path}: not JSON ({said(error)}).") from None
  if not isinstance(found, dict):
    raise ValueError(f"{path}: it holds no JSON object.")
  return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(n for n in names if names.count(n) > 1)
    raise ValueError(f"it says {short(twice)!r} twice")
  return found


def said(error: Exception) -> str:
  """What a foreign library says, as a part of one printable sentence."""
  line = " ".join(str(error).split())[:200]
  return "".join(c if c.isprintable() else "?" for c in line).rstrip(".")


def write_json(path: pathlib.Path, value: dict) -> None:
  """Writes a JSON object; the file appears when it is whole."""
  part = path.with_name(f".{path.name}.part")
  part.write_text(json.dumps(value, indent=2) + "\n")
  part.replace(path)


def short(name: str) -> str:
  """A foreign file's name for a thing: bounded, without control characters."""
  plain = name if name.isprintable() else repr(name)
  return plain if len(plain) <= 60 else plain[:57] + "..."


def fit(path, there: dict, wanted: dict, wrong: Sequence[str] = ()) -> None:
  """Raises one ValueError for all tensors whose name or shape is not wanted.

  `wrong` are further complaints for the same error.
  """
  found = [f"{short(n)} is missing" for n in sorted(set(wanted) - set(there))]
  found += [
      f"{short(n)} is unexpected" for n in sorted(set(there) - set(wanted))
  ]
  found += [
      f"{n} has shape {there[n]} for {wanted[n]}"
      for n in sorted(set(there) & set(wanted))
      if there[n] != wanted[n]
  ]
  found += wrong
  if found:
    more = len(found) - LISTED
    rest = f"; and {more} more" if more > 0 else ""
    raise ValueError(
        f"{path}: tensors do not fit: {'; '.join(found[:LISTED])}{rest}."
    )
