"""Models of published checkpoints: read from any `Source`, written back.

Tensors stream one at a time: each of our parameters is put together on the
host, cast, and placed on the mesh before the next one is read.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from specjax.checkpoint.folder import INDEX, ONE
from specjax.checkpoint.safetensors import named
from specjax.checkpoint.source import Source, fit, write_json
from specjax.models import copies, int8
from specjax.models.families import read
from specjax.models.published import Piece
from specjax.processes import fetch
from specjax.sharding import put_like

SHARD = 2 * 2**30  # bytes of a written file, unless one tensor is larger
CHUNK = 2**22  # entries compared at a time
# What some published files carry and no model reads; the last one is T5's.
BUFFERS = re.compile(
    r".*\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias"
    r"|EncDecAttention\.relative_attention_bias\.weight)"
)


def load(source: Source, dtype: str = "float32"):
  """The model of a published checkpoint, cast to `dtype`, on the mesh.

  Host memory never holds more than one parameter beside what is loaded.
  Raises ValueError in one sentence as `check` does.
  """
  shape, found, pieces = check(source, dtype)
  read = lambda n: copies.spread(shape.c, n, _read(source, found, pieces[n]))
  arrays = [
      put_like(read(n).astype(like.dtype), like)
      for n, like in named(shape).items()
  ]
  return jax.tree.unflatten(jax.tree.structure(shape), arrays)


def check(source: Source, dtype: str = "float32"):
  """(the model's shape, tensors by published name, pieces by our name).

  Raises ValueError in one sentence: a config that is not understood, or all
  tensors that are missing, unexpected or misshapen. Reads no values, except
  of tensors that are there twice.
  """
  family, shape = outline(
      source.path, source.config, dtype, len(source.shapes)
  )
  pieces, found = family.pieces(shape.c), _found(source, family)
  wanted = copies.shapes(shape.c, named(shape))
  _check(source, found, wanted, pieces, family.ALIASES)
  return shape, found, pieces


def outline(path, config: dict[str, Any], dtype: str, held: int):
  """(family, shape of its model) of a config.json beside `held` tensors.

  Raises ValueError as `families.read`, or when those are too few, before
  anything as large as the config claims is made.
  """
  family, c = read(str(path), config)
  if c.layers > held:
    raise ValueError(
        f"{path}: its config has {c.layers} layers, and there are only {held}"
        " tensors; give the whole checkpoint."
    )
  c = dataclasses.replace(c, dtype=dtype)
  return family, jax.eval_shape(lambda: family.build(c, rngs=nnx.Rngs(0)))


def tensors(
    model, config: dict[str, Any], path: str = "model"
) -> Iterator[tuple[str, np.ndarray]]:
  """A model's arrays, or its gradients', under their published names.

  One at a time, on the host, bit for bit. `config` is the config.json that
  the model was read with; `path` is for sentences. Raises ValueError for a
  model with int8 weights.
  """
  int8.refuse(model, path)
  family, ours = read(path, config)
  arrays, pieces = named(model), family.pieces(ours)
  parts = collections.defaultdict(list)
  for name in arrays:
    for index, theirs in enumerate(pieces[name].names):
      parts[theirs].append((pieces[name], index, name))
  for theirs, held in parts.items():
    held.sort(key=lambda part: part[0].rows.start if part[0].rows else 0)
    found = []
    for piece, index, name in held:
      x = arrays[name]
      x = fetch(x[index] if len(piece.names) > 1 else x)
      found.append(copies.single(model.c, name, x))
    whole = np.concatenate(found)
    yield theirs, np.ascontiguousarray(whole.T if held[0][0].turned else whole)


def save(
    model, config: dict[str, Any], folder: str | pathlib.Path,
    dtype: str | None = None,
) -> None:
  """Writes a model in its published layout: config.json and safetensors.

  `config` as in `tensors`; `dtype`, by default the model's, is that of the
  files. Over 2 GiB they are sharded, with an index. Files appear when they
  are whole, config.json last.
  """
  dtype = dtype or model.c.dtype
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  shards, held, size = [], {}, 0

  def write():
    part = folder / f".part-{len(shards)}"
    save_file(held, str(part), metadata={"format": "pt"})
    shards.append((part, list(held), size))

  for name, x in tensors(model, config, str(folder)):
    x = x.astype(dtype, copy=False)
    if held and size + x.nbytes > SHARD:
      write()
      held, size = {}, 0
    held[name], size = x, size + x.nbytes
  write()
  where, count = {}, len(shards)
  for i, (part, names, _) in enumerate(shards):
    file = ONE if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"
    part.replace(folder / file)
    where |= dict.fromkeys(names, file)
  if count > 1:
    total = sum(size for _, _, size in shards)
    index = dict(metadata=dict(total_size=total), weight_map=where)
    write_json(folder / INDEX, index)
  write_json(folder / "config.json", with_dtype(config, dtype))


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
  """The config of files that hold this dtype."""
  kept = {"torch_dtype", "dtype"} & set(config) or {"torch_dtype"}
  return config | dict.fromkeys(kept, dtype)


def _found(source: Source, family) -> dict[str, str]:
  """Published name -> the name in this file, which may have a prefix."""
  prefix = getattr(family, "PREFIX", "")
  cut = lambda n: n.removeprefix(prefix) if prefix else n
  return {cut(n): n for n in source.shapes if not BUFFERS.fullmatch(n)}


def _read(source, found, piece: Piece) -> np.ndarray:
  """One parameter of ours, put together on the host."""
  if len(piece.names) > 1:
    first = source.read(found[piece.names[0]])
    whole = np.empty((len(piece.names), *first.shape), first.dtype)
    whole[0] = first
    for i, name in enumerate(piece.names[1:], 1):
      whole[i] = source.read(found[name])
    return whole
  name = found[piece.names[0]]
  if not piece.turned:
    return source.read(name, piece.rows)
  whole = source.read(name).T
  return whole if piece.rows is None else whole[piece.rows]


def _check(source, found, wanted, pieces, aliases) -> None:
  """One error that lists all tensors missing, unexpected or misshapen."""
  shapes = {n: source.shapes[theirs] for n, theirs in found.items()}
  expected = _expected(wanted, pieces)
  # What is shared may be written twice, but not with two values.
  again = {n for n in shapes if n in aliases and n not in expected}
  wrong = [
      f"{n} differs from {aliases[n]}, which it repeats"
      for n in sorted(again) if not _same(source, found, n, aliases[n])
  ]
  once = {n: shape for n, shape in shapes.items() if n not in again}
  fit(source.path, once, expected, wrong)


def _expected(wanted, pieces) -> dict[str, tuple[int, ...]]:
  """The shape of every published tensor that the model is made of."""
  out = {}
  for ours, shape in wanted.items():
    piece = pieces[ours]
    if len(piece.names) > 1:
      shape = shape[1:]
    for name in piece.names:
      if piece.rows is not None:  # the last part's end is the whole's
        before = out.get(name, (0,))[-1 if piece.turned else 0]
        shape = (max(piece.rows.stop, before), *shape[1:])
      out[name] = shape[::-1] if piece.turned else shape
  return out


def _same(source, found, name, other) -> bool:
  if other not in found:
    return True  # reported as missing
  a, b = found[name], found[other]
  shape = source.shapes[a]
  if shape != source.shapes[b]:
    return False
  step = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
  return all(
      np.array_equal(source.read(a, rows), source.read(b, rows))
      for rows in (
          slice(i, min(i + step, shape[0])) for i in range(0, shape[0], step)
      )
  )
