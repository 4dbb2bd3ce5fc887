"""A GGUF file as a `Source`: Hugging Face names, fields and orientation.

What the converter to GGUF did is undone here: names, the order of Llama's
query and key rows, Gemma's 1 + weight, GPT-2's transposed weights. Data stay
on disk; `read` decodes the rows that are asked for.
"""

import pathlib
import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from specjax.checkpoint import gguf_header
from specjax.checkpoint.gguf_config import ARCHITECTURES, config
from specjax.checkpoint.source import short

KINDS = """
  F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
""".split()
PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
CHUNK = 2**22  # entries decoded at a time: decoding takes several copies
FACTORS = re.compile(r"rope_(freqs|factors_short|factors_long)\.weight")


class Held(NamedTuple):
  """A tensor's place in the file, and how it was changed on the way there."""

  kind: str
  shape: tuple[int, ...]  # as stored
  data: np.ndarray  # uint8 [rows, bytes a row], mapped
  change: str  # of none, pairs, offset, turned


class File:
  """A `Source` over one .gguf file; `metadata` is all that its header says.

  Raises ValueError in one sentence for a file that is none or cut short, a
  type or an architecture that is not known, a tensor that has no Hugging Face
  name, or when the package gguf is not there.
  """

  def __init__(self, path: str | pathlib.Path):
    self.path = str(path)
    self._quants = _package()
    data = gguf_header.opened(path)
    header = gguf_header.read(path, data)
    self.metadata: dict[str, Any] = header.metadata
    held = self._placed(data, header)
    parts = self.metadata.get("split.count", 1)
    if parts not in (0, 1):
      self._refuse(f"it is one of {str(parts)[:20]} parts; join them first")
    kind = self.metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
      self._refuse(
          f"architecture {short(str(kind))!r} is none of"
          f" {', '.join(ARCHITECTURES)}"
      )
    self.shapes: dict[str, tuple[int, ...]] = {}
    self._held: dict[str, Held] = {}
    factors = {}
    for name, tensor in held.items():
      if FACTORS.fullmatch(name):
        factors[name] = self._decoded(tensor).reshape(-1)
      else:
        self._name(ARCHITECTURES[kind], name, tensor)
    self.config = config(self.path, kind, self.metadata, self.shapes, factors)
    kinds = {h.kind for h in self._held.values()}
    self.dtype = "bfloat16" if kinds == {"BF16"} else "float32"

  def read(self, name: str, rows: slice | None = None) -> np.ndarray:
    """One tensor, or these entries of its first axis; float32 if quantised."""
    held, rows = self._held[name], slice(None) if rows is None else rows
    if held.change == "turned":
      return self._decoded(held).T[rows]
    if held.change == "pairs":
      rows = self._pairs(name, np.arange(held.shape[0]))[rows]
    if len(held.shape) == 1:  # all of it lies in one row of blocks
      out = self._decoded(held)[0, rows]
    else:
      out = self._decoded(held._replace(data=held.data[rows]))
    if held.change == "offset":
      out = out.astype(np.float32) - np.float32(1)
    return out

  def _placed(self, data, header) -> dict[str, Held]:
    """Every tensor with its bytes: typed, inside the file, apart."""
    every = np.frombuffer(data, np.uint8)
    numbers = {int(self._quants.Kind[k]): k for k in KINDS}
    spans, out = [], {}
    for name, tensor in header.tensors.items():
      where = f"tensor {short(name)}"
      if tensor.kind not in numbers:
        other = _name_of(self._quants.Kind, tensor.kind)
        self._refuse(f"{where} has type {other}, none of {', '.join(KINDS)}")
      kind = numbers[tensor.kind]
      block, size = self._quants.sizes[self._quants.Kind[kind]]
      *outer, inner = tensor.shape
      rows = int(np.prod(outer, dtype=object)) if outer else 1
      if not rows * inner or inner % block:
        self._refuse(
            f"{where} has shape {tensor.shape}, which {kind} cannot hold in"
            f" blocks of {block}"
        )
      start, width = header.start + tensor.offset, inner // block * size
      if start + rows * width > len(every):
        self._refuse(
            f"{where} ends at byte {start + rows * width} of {len(every)}"
        )
      spans.append((start, start + rows * width, where))
      own = every[start : start + rows * width].reshape(rows, width)
      out[name] = Held(kind, tensor.shape, own, "none")
    spans.sort()
    for (_, end, one), (start, _, other) in zip(spans, spans[1:]):
      if start < end:
        self._refuse(f"{one} and {other} lie in the same bytes")
    return out

  def _name(self, family, name: str, held: Held) -> None:
    theirs, change = family.named(name)
    if theirs is None:
      self._refuse(f"tensor {short(name)} has no name in its architecture")
    if not (change == "turned") < len(held.shape) < 3:
      self._refuse(
          f"tensor {short(name)} has {len(held.shape)} dimensions"
      )
    self._held[theirs] = held._replace(change=change)
    turned = change == "turned"
    self.shapes[theirs] = held.shape[::-1] if turned else held.shape

  def _pairs(self, name: str, order: np.ndarray) -> np.ndarray:
    """Where our rows stand: a head's halves were put together in pairs."""
    query = ".q_proj." in name
    count = "num_attention_heads" if query else "num_key_value_heads"
    heads = self.config[count]
    if len(order) % (2 * heads):
      self._refuse(
          f"{short(name)} has {len(order)} rows, which are no {heads} heads"
      )
    return order.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

  def _decoded(self, held: Held) -> np.ndarray:
    """The values of whole rows of blocks; the first axis as many as given."""
    rows = len(held.data)
    block, size = self._quants.sizes[self._quants.Kind[held.kind]]
    if held.kind in PLAIN:
      out = held.data.view(PLAIN[held.kind])
    else:
      inner = held.shape[-1]
      out = np.empty((rows, inner), np.float32)
      step = max(1, CHUNK // inner)
      with np.errstate(all="ignore"):  # what is not finite shows later
        for i in range(0, rows, step):
          out[i : i + step] = self._quants.decode(
              held.data[i : i + step], self._quants.Kind[held.kind]
          )
    return out

  def _refuse(self, what: str):
    raise ValueError(f"{self.path}: this GGUF file cannot be used: {what}.")


class _Quants(NamedTuple):
  Kind: Any  # an enum: GGML's types by name and number
  sizes: dict  # Kind -> (entries, bytes) of a block
  decode: Any


def _package() -> _Quants:
  try:
    import gguf
  except ImportError:
    raise ValueError(
        "GGUF files need the package gguf; run pip install 'specjax[gguf]'."
    ) from None
  return _Quants(
      gguf.GGMLQuantizationType, gguf.GGML_QUANT_SIZES, gguf.quants.dequantize
  )


def _name_of(kinds, number: int) -> str:
  return next((k.name for k in kinds if k == number), f"number {number}")
