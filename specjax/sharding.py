"""Logical names -> mesh axes, given once; mesh axis names occur only here.

Everything else in the package names dimensions by role ("batch", "heads") and
asks `spec` for the layout. Without a mesh every layout is None and the same
code runs on one device.
"""

import contextlib
import contextvars
import functools
import logging
import math

import jax
import numpy as np

MODEL = ("wide", "model")
RULES = {
    "batch": ("data", "fsdp"),
    "heads": MODEL,
    "kv_heads": MODEL,
    "mlp": MODEL,
    "vocab": MODEL,
    "width": ("fsdp",),  # of weights that are kept; `gathered` to be used
}
# A small drafter's: cut over fewer chips than the target, and repeated.
NARROW = RULES | {name: ("model",) for name, x in RULES.items() if x == MODEL}
_rules = contextvars.ContextVar("rules", default=RULES)
log = logging.getLogger("specjax")


def mesh(
    data: int = 1, model: int = 1, *, fsdp: int = 1, narrow: int | None = None,
    devices=None,
) -> jax.sharding.Mesh:
  """A data x fsdp x model mesh, Explicit axes; use as `jax.set_mesh(mesh())`.

  fsdp: parts that share rows like `data` and keep weights and optimiser state
  in parts, for training. narrow: over how many of the `model` parts what is
  laid out by `narrowed` is cut, 1 = none; by default all. Raises ValueError
  for more parts than devices, or a `narrow` that does not divide `model`.
  """
  devices = jax.devices() if devices is None else devices
  shape, need = (data, fsdp, model), data * fsdp * model
  if min(shape) < 1 or need > len(devices):
    parts = f"{data} x {model}" if fsdp == 1 else f"{data} x {fsdp} x {model}"
    raise ValueError(
        f"mesh: {parts} needs {need} devices, of {len(devices)}; choose parts"
        f" of at least 1 and at most {len(devices)} in all, or play a larger"
        " mesh on a CPU:"
        " XLA_FLAGS=--xla_force_host_platform_device_count=8."
    )
  narrow = model if narrow is None else narrow
  if narrow < 1 or model % narrow:
    raise ValueError(
        f"mesh: {narrow} parts of a drafter do not divide the {model} model"
        " parts; choose a divisor, 1 to repeat it on all."
    )
  sizes = dict(data=data, fsdp=fsdp, wide=model // narrow, model=narrow)
  kept = {k: n for k, n in sizes.items() if n > 1 or k in ("data", "model")}
  return jax.make_mesh(
      tuple(kept.values()), tuple(kept), devices=devices[:need]
  )


@contextlib.contextmanager
def narrowed():
  """Within, layouts are those of a drafter on a mesh with `narrow` parts."""
  token = _rules.set(NARROW)
  try:
    yield
  finally:
    _rules.reset(token)


def _axes(name: str | None, here) -> tuple[str, ...]:
  found = _rules.get().get(name, ())
  return tuple(axis for axis in found if axis in here.axis_names)


def _parts(axes: tuple[str, ...], here) -> int:
  return math.prod(here.shape[axis] for axis in axes)


def spec(*names: str | None, shape=None) -> jax.P | None:
  """Layout of an array whose dimensions carry these logical names.

  With its `shape`, what does not divide over its parts is repeated on them;
  but not rows, of which whoever makes an array brings enough.
  """
  here = jax.sharding.get_abstract_mesh()
  if not here.axis_names:
    return None
  cut = []
  for i, name in enumerate(names):
    axes = _axes(name, here)
    if shape is not None and name != "batch" and shape[i] % _parts(axes, here):
      axes = ()
    cut.append(axes[0] if len(axes) == 1 else axes or None)
  return jax.P(*cut)


def size(name: str) -> int:
  """How many parts the dimension `name` is cut into on the current mesh."""
  here = jax.sharding.get_abstract_mesh()
  return _parts(_axes(name, here), here)


def copies(heads: int, kv_heads: int) -> int:
  """How often each KV head is repeated, so that every part holds one: 1
  unless there are too few, and the query heads divide."""
  parts = size("kv_heads")
  even = parts % kv_heads == 0 and heads % parts == 0
  return max(1, parts // kv_heads) if even else 1


def divides(what: str, n: int, name: str) -> bool:
  """Whether `n` can be cut evenly; says with both numbers when it cannot."""
  parts = size(name)
  if n % parts:
    _tell(
        f"sharding: {what} = {n} does not divide over the {parts} parts of the"
        " mesh; each of them holds and computes all of it."
    )
  return n % parts == 0


@functools.cache
def _tell(sentence: str) -> None:
  log.warning(sentence)


def alone(platform: str) -> bool:
  """Whether the program runs on one device, of this platform."""
  here = jax.sharding.get_abstract_mesh()
  if here.empty:
    return jax.default_backend() == platform
  device = here.abstract_device
  kind = device.platform if device else jax.default_backend()
  return here.size == 1 and kind == platform


def put(x, *names: str | None) -> jax.Array:
  """A host array placed on the current mesh; always a copy of its own."""
  x = x if isinstance(x, jax.Array) else np.asarray(x)
  layout = spec(*names, shape=x.shape)
  if layout is None:
    return jax.numpy.array(x, copy=True)
  return _placed(x, jax.NamedSharding(jax.sharding.get_mesh(), layout))


def _placed(x, home) -> jax.Array:
  there = isinstance(x, jax.Array) and not x.is_fully_addressable
  if home.is_fully_addressable or there:
    return jax.device_put(x, home, may_alias=False)
  # Each process brings its parts of what all of them have.
  x = np.asarray(x)
  part = lambda index: np.array(x[index])
  return jax.make_array_from_callback(x.shape, home, part)


def laid(x: jax.Array, *names: str | None) -> jax.Array:
  """An array on the mesh, moved to another layout; itself without a mesh."""
  layout = spec(*names, shape=x.shape)
  return x if layout is None else jax.reshard(x, layout)


def gathered(weight: jax.Array) -> jax.Array:
  """A weight that is kept in parts over `fsdp`, to be used: whole there."""
  layout = jax.typeof(weight).sharding
  if layout.mesh.empty or "fsdp" not in layout.spec:
    return weight
  whole = (None if axis == "fsdp" else axis for axis in layout.spec)
  return jax.reshard(weight, jax.P(*whole))


def home(like) -> jax.sharding.Sharding:
  """Where an array laid out as `like`, or its shape, lives on the mesh."""
  layout = jax.typeof(like).sharding
  if layout.mesh.empty:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.NamedSharding(jax.sharding.get_mesh(), layout.spec)


def put_like(x, like) -> jax.Array:
  """A host array placed as `like`, an array or its shape, is laid out."""
  return _placed(x, home(like))
