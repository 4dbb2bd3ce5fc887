"""A folder in the Hugging Face layout: config.json and safetensors, sharded.

The index names files of the folder and nothing else; a file's header is
checked by the safetensors library before any data is read.
"""

import contextlib
import pathlib

import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.checkpoint.source import read_json, said, short

KINDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Folder:
  """A `Source` over `model.safetensors`, or the shards that an index names.

  Raises ValueError in one sentence for a folder that is none, an index that
  points outside it, a file that is truncated or no safetensors file, a tensor
  that lies in two files; reading one raises it when its type is no float.
  """

  def __init__(self, path: str | pathlib.Path):
    self._root = pathlib.Path(path)
    self.path = str(path)
    if not (self._root / "config.json").is_file():
      raise ValueError(f"{path}: there is no config.json in this folder.")
    self.config = read_json(self._root / "config.json")
    self._files, self._where = contextlib.ExitStack(), {}
    self.shapes: dict[str, tuple[int, ...]] = {}
    for name in self._shards():
      self._open(name)
    kinds = {view.get_dtype() for view in self._where.values()}
    one = KINDS.get(kinds.pop()) if len(kinds) == 1 else None
    self.dtype = one or "float32"

  def _shards(self) -> list[str]:
    if (self._root / ONE).is_file():
      return [ONE]
    index = self._root / INDEX
    if not index.is_file():
      raise ValueError(
          f"{self.path}: there is neither {ONE} nor {INDEX}; other formats,"
          " such as pickled .bin files, are never opened."
      )
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
      raise ValueError(f"{index}: it has no weight_map.")
    names = sorted(set(map(str, where.values())))
    for name in names:
      # A plain file name; a hub cache's own links out of the folder are fine.
      plain = pathlib.PurePath(name).name == name and "\\" not in name
      plain = plain and name.isprintable()
      if not plain or not name.endswith(".safetensors"):
        raise ValueError(
            f"{index}: it points to {short(name)!r}; only .safetensors files"
            " of the same folder are opened."
        )
    return names

  def _open(self, name: str) -> None:
    path = self._root / name
    try:
      file = self._files.enter_context(safe_open(path, framework="np"))
      views = {n: file.get_slice(n) for n in file.keys()}
    except (SafetensorError, OSError) as error:
      raise ValueError(
          f"{path}: not a readable safetensors file ({said(error)})."
      ) from None
    for n, view in views.items():
      if n in self._where:
        raise ValueError(f"{path}: {short(n)} lies in another shard too.")
      self.shapes[n] = tuple(view.get_shape())
      self._where[n] = view

  def read(self, name: str, rows: slice | None = None) -> np.ndarray:
    """One tensor, or these entries of its first axis; as it is stored."""
    view = self._where[name]
    if view.get_dtype() not in KINDS:
      raise ValueError(
          f"{self.path}: {short(name)} has dtype {view.get_dtype()}, none of"
          f" {', '.join(KINDS)}."
      )
    try:
      return view[slice(None) if rows is None else rows]
    except (SafetensorError, OSError) as error:
      raise ValueError(
          f"{self.path}: {short(name)} cannot be read ({said(error)})."
      ) from None
