"""Our own models on disk: safetensors by dotted path, config in the metadata.

No pickle, no code: the header is bounded JSON and every tensor's name, shape
and dtype is checked against the model its config describes, before any data
is read.
"""

import dataclasses
import json
import pathlib
import typing

import jax
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specjax.checkpoint.source import fit, short
from specjax.models import copies, int8
from specjax.models.decoder import Config, Decoder
from specjax.models.rope import Rope
from specjax.processes import fetch, leads
from specjax.sharding import put_like

KINDS = ("BF16", "F16", "F32")
LARGEST = 2**40  # parameters; a config asking for more is a hostile one


def named(tree) -> dict[str, jax.Array]:
  """A tree's arrays by dotted path: `blocks.0.attention.q`."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
  return {name(path).removesuffix(".value"): leaf for path, leaf in leaves}


def save(model: Decoder, path: str | pathlib.Path, dtype="bfloat16") -> None:
  """Writes a decoder's arrays in `dtype`, its Config as JSON beside them.

  Raises ValueError for a model with int8 weights.
  """
  int8.refuse(model, path)
  arrays = {
      n: copies.single(model.c, n, fetch(x)).astype(dtype)
      for n, x in named(model).items()
  }
  c = dataclasses.replace(model.c, kv_copies=1)
  config = json.dumps(dataclasses.asdict(c))
  if leads():
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
      if config.layers > len(file.keys()):
        raise ValueError(
            f"{path}: {len(file.keys())} tensors cannot be the"
            f" {config.layers} layers of its config."
        )
      build = lambda: Decoder(config, rngs=nnx.Rngs(0))
      shape = jax.eval_shape(build)
      wanted = named(shape)
      _check(path, file, copies.shapes(shape.c, wanted))
      take = lambda n, like: put_like(
          copies.spread(shape.c, n, file.get_tensor(n)).astype(like.dtype),
          like,
      )
      arrays = [take(n, like) for n, like in wanted.items()]
  except (SafetensorError, OSError) as error:
    raise ValueError(
        f"{path}: not a readable safetensors file ({error}); give one that"
        " launch/train.py wrote."
    ) from None
  return jax.tree.unflatten(jax.tree.structure(shape), arrays)


def _config(path, metadata, dtype) -> Config:
  try:
    fields = json.loads(metadata["config"])
    fields = _typed(Config, fields, {"rope", "local_rope"})
    for rope in ("rope", "local_rope"):
      if fields.get(rope) is not None:
        fields[rope] = Rope(**_typed(Rope, fields[rope]))
    config = Config(**_typed(Config, fields) | {"dtype": dtype})
  except (
      ArithmeticError, KeyError, RecursionError, TypeError, ValueError
  ) as error:
    raise ValueError(
        f"{path}: its metadata hold no decoder config ({error}); give a file"
        " that launch/train.py wrote."
    ) from None
  tables = config.vocab + config.max_positions
  mixture = config.experts * config.expert_mlp
  size = config.width * tables + config.layers * config.width * (
      config.mlp + mixture + config.heads * config.dim
  )
  if size > LARGEST:
    raise ValueError(f"{path}: its config asks for {size} parameters or more.")
  return config


def _typed(kind, fields: dict, but=frozenset()) -> dict:
  """The fields as they are, when each has the type that `kind` declares."""
  if not isinstance(fields, dict):
    raise TypeError(f"{kind.__name__} is no object")
  hints = typing.get_type_hints(kind)
  lists = lambda x: tuple(x) if isinstance(x, list) else x  # JSON's tuples
  fields = {name: lists(value) for name, value in fields.items()}
  for name, value in fields.items():
    if name in but:
      continue
    hint = hints.get(name, object)
    good = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    good = good or (typing.get_origin(hint) or hint,)
    if float in good:
      good += (int,)
    if isinstance(value, bool) != (bool in good) and object not in good:
      raise TypeError(f"{name} = {str(value)[:40]!r}")
    numbers = {int, float} & {int, *typing.get_args(hint)}
    other = isinstance(value, tuple) and {type(n) for n in value} - numbers
    if not isinstance(value, good) or other:
      raise TypeError(f"{name} = {str(value)[:40]!r}")
    for n in value if isinstance(value, tuple) else (value,):
      # Whole numbers must fit the device's, real ones float32.
      most = 3e38 if isinstance(n, float) else 2**31
      if isinstance(n, int | float) and not abs(n) < most:
        raise ValueError(f"{name} = {str(n)[:40]}")
  return fields


def _check(path, file, wanted) -> None:
  """One error that lists all tensors missing, unexpected or misshapen."""
  slices = {n: file.get_slice(n) for n in file.keys()}
  there = {n: tuple(x.get_shape()) for n, x in slices.items()}
  kinds = {n: x.get_dtype() for n, x in slices.items()}
  wrong = [
      f"{short(n)} has dtype {kind}, none of {', '.join(KINDS)}"
      for n, kind in sorted(kinds.items())
      if kind not in KINDS
  ]
  fit(path, there, wanted, wrong)
