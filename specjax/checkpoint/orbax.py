"""A published model as an Orbax checkpoint, which restores onto any mesh.

The folder has config.json and the tokenizer's files as published, and the
arrays under our names in `arrays/`.
"""

import pathlib
import stat
from collections.abc import Callable
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from specjax.checkpoint.published import outline, with_dtype
from specjax.checkpoint.safetensors import named
from specjax.checkpoint.source import fit, read_json, said, write_json
from specjax.models import copies, int8
from specjax.sharding import home, put_like
from specjax.tokens import FILE_LIMIT

ARRAYS = "arrays"


def save(
    model, config: dict[str, Any], folder: str | pathlib.Path,
    dtype: str | None = None,
) -> None:
  """Writes a model beside the config.json that it was read with.

  Arrays keep the model's type; `dtype` is what config.json says, for the way
  back. It is written last: without it the folder is no checkpoint. Raises
  ValueError for a model with int8 weights.
  """
  int8.refuse(model, folder)
  folder = pathlib.Path(folder).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").unlink(missing_ok=True)
  arrays = {n: copies.single(model.c, n, x) for n, x in named(model).items()}
  ocp.save(folder / ARRAYS, arrays, overwrite=True)
  config = with_dtype(config, dtype or model.c.dtype)
  write_json(folder / "config.json", config)


def load(folder: str | pathlib.Path, dtype: str = "float32"):
  """The model that `save` wrote, cast to `dtype`, on the current mesh.

  Raises ValueError for a folder that holds no such checkpoint, or arrays that
  its config does not describe.
  """
  folder = pathlib.Path(folder).absolute()
  config = read_json(folder / "config.json")
  _plain(folder)
  there = _orbax(folder, lambda path: dict(ocp.metadata(path).metadata))
  _, shape = outline(folder, config, dtype, len(there))
  wanted, c = named(shape), shape.c
  once = copies.shapes(c, wanted)
  fit(folder, {n: tuple(x.shape) for n, x in there.items()}, once)
  likes = {
      n: jax.ShapeDtypeStruct(once[n], x.dtype, sharding=_kept(c, n, x))
      for n, x in wanted.items()
  }
  arrays = _orbax(folder, lambda path: ocp.load(path, likes))
  found = [
      put_like(copies.spread(c, n, arrays[n]), x)
      if copies.times(c, n) > 1 else arrays[n]
      for n, x in wanted.items()
  ]
  return jax.tree.unflatten(jax.tree.structure(shape), found)


def _kept(c, name: str, like) -> jax.sharding.Sharding:
  """Where an array is read to; whole on each chip, if heads will be repeated
  there."""
  found = home(like)
  if copies.times(c, name) == 1:
    return found
  return jax.NamedSharding(found.mesh, jax.P())


def _orbax(folder, act: Callable):
  try:
    return act(folder / ARRAYS)
  except Exception as error:  # whatever its many layers raise
    raise ValueError(
        f"{folder}: {ARRAYS} is no readable Orbax checkpoint ({said(error)})."
    ) from None


def _plain(folder: pathlib.Path) -> None:
  """Refuses links, devices, and metadata without bounds, which Orbax reads."""
  for path in sorted((folder / ARRAYS).rglob("*")):
    kind = path.lstat()
    if not stat.S_ISREG(kind.st_mode) and not stat.S_ISDIR(kind.st_mode):
      raise ValueError(f"{path}: neither a file nor a folder; remove it.")
    if "METADATA" in path.name.upper() and kind.st_size > FILE_LIMIT:
      raise ValueError(f"{path}: longer than {FILE_LIMIT} bytes.")
