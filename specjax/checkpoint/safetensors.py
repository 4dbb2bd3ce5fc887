"""Our own models on disk: safetensors by dotted path, config in the metadata.

No pickle, no code: the header is bounded JSON and every tensor's name, shape
and dtype is checked against the model its config describes, before any data
is read.
"""

import dataclasses
import json
import math
import pathlib

import jax
import jax.numpy as jnp
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from specjax.models.decoder import Config, Decoder
from specjax.models.rope import Rope
from specjax.sharding import put, spec

LARGEST = 2**40  # parameters; a config asking for more is a hostile one


def named(tree) -> dict[str, jax.Array]:
  """The arrays of a module by dotted path, as they are named on disk."""
  flat, _ = jax.tree.flatten_with_path(nnx.state(tree))
  return {_name(path): leaf for path, leaf in flat}


def _name(path) -> str:
  keys = (getattr(k, "key", getattr(k, "name", None)) for k in path)
  return ".".join(str(k) for k in keys if k not in (None, "value"))


def save(model: Decoder, path: str | pathlib.Path, dtype="bfloat16") -> None:
  """Writes a decoder's arrays in `dtype`, its Config as JSON beside them."""
  arrays = {n: x.astype(dtype) for n, x in named(model).items()}
  config = json.dumps(dataclasses.asdict(model.c))
  save_file(arrays, str(path), metadata={"config": config})


def load(path: str | pathlib.Path, dtype: str = "float32") -> Decoder:
  """Reads a decoder that `save` wrote, cast to `dtype`, onto the mesh.

  Raises ValueError in one sentence for anything else: a missing, truncated
  or foreign file, or tensors that its config does not describe.
  """
  path = pathlib.Path(path)
  try:
    with safe_open(path, framework="flax") as file:
      config = _config(path, file.metadata() or {}, dtype)
      build = lambda: Decoder(config, rngs=nnx.Rngs(0))
      shape = jax.eval_shape(build)
      wanted = named(shape)
      _check(path, file, wanted)
      take = lambda n, like: _placed(file.get_tensor(n), like)
      arrays = [take(n, like) for n, like in wanted.items()]
  except (SafetensorError, OSError) as error:
    raise ValueError(
        f"{path}: not a readable safetensors file ({error}); give one that"
        " launch/train.py wrote."
    ) from None
  return jax.tree.unflatten(jax.tree.structure(shape), arrays)


def _placed(x, like):
  layout = jax.typeof(like).sharding.spec if spec("batch") else None
  names = {"data": "batch", "model": "mlp"}
  axes = [None] * x.ndim if layout is None else [names.get(a) for a in layout]
  return put(x.astype(like.dtype), *axes)


def _config(path, metadata, dtype) -> Config:
  try:
    fields = json.loads(metadata["config"])
    for rope in ("rope", "local_rope"):
      if fields.get(rope) is not None:
        fields[rope] = Rope(**fields[rope])
    fields["windows"] = tuple(fields.get("windows", ()))
    config = Config(**{**fields, "dtype": dtype})
  except (KeyError, TypeError, ValueError, RecursionError) as error:
    raise ValueError(
        f"{path}: its metadata hold no decoder config ({error}); give a file"
        " that launch/train.py wrote."
    ) from None
  size = config.vocab * config.width + config.layers * config.width * (
      config.mlp + config.heads * config.dim
  )
  if config.layers > 10_000 or size > LARGEST:
    raise ValueError(f"{path}: its config asks for {size} parameters or more.")
  return config


def _check(path, file, wanted) -> None:
  """One error that lists all tensors missing, unexpected or misshapen."""
  there = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}
  wrong = [f"{n} is missing" for n in sorted(set(wanted) - set(there))]
  wrong += [f"{n} is unexpected" for n in sorted(set(there) - set(wanted))]
  wrong += [
      f"{n} has shape {there[n]} for {wanted[n].shape}"
      for n in sorted(set(there) & set(wanted))
      if there[n] != wanted[n].shape
  ]
  if wrong:
    raise ValueError(f"{path}: tensors do not fit: {'; '.join(wrong)}.")
