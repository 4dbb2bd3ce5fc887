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
from specjax.sharding import home
from specjax.tokens import FILE_LIMIT

ARRAYS = "arrays"


def save(
    model, config: dict[str, Any], folder: str | pathlib.Path,
    dtype: str | None = None,
) -> None:
  """Writes a model beside the config.json that it was read with.

  Arrays keep the model's type; `dtype` is what config.json says, for the way
  back. It is written last: without it the folder is no checkpoint.
  """
  folder = pathlib.Path(folder).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").unlink(missing_ok=True)
  ocp.save(folder / ARRAYS, named(model), overwrite=True)
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
  wanted = named(shape)
  fit(
      folder, {n: tuple(x.shape) for n, x in there.items()},
      {n: x.shape for n, x in wanted.items()},
  )
  likes = {
      n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=home(x))
      for n, x in wanted.items()
  }
  arrays = _orbax(folder, lambda path: ocp.load(path, likes))
  found = [arrays[n] for n in wanted]
  return jax.tree.unflatten(jax.tree.structure(shape), found)


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
