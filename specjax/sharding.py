"""Logical names -> mesh axes, given once; mesh axis names occur only here.

Everything else in the package names dimensions by role ("batch", "heads") and
asks `spec` for the layout. Without a mesh every layout is None and the same
code runs on one device.
"""

import jax
import numpy as np

RULES = {
    "batch": "data",
    "heads": "model",
    "kv_heads": "model",
    "mlp": "model",
    "vocab": "model",
}


def mesh(data: int = 1, model: int = 1, devices=None) -> jax.sharding.Mesh:
  """A `data` x `model` mesh with Explicit axes; use as `jax.set_mesh(mesh())`.

  Raises ValueError when fewer devices are there than the mesh needs.
  """
  devices = jax.devices() if devices is None else devices
  if data < 1 or model < 1 or data * model > len(devices):
    raise ValueError(
        f"mesh: {data} x {model} needs {data * model} devices, there are"
        f" {len(devices)}; choose data x model between 1 and {len(devices)}."
    )
  return jax.make_mesh(
      (data, model), ("data", "model"), devices=devices[: data * model]
  )


def spec(*names: str | None) -> jax.P | None:
  """Layout of an array whose dimensions carry these logical names."""
  axes = jax.sharding.get_abstract_mesh().axis_names
  if not axes:
    return None
  rule = (RULES.get(n) for n in names)
  return jax.P(*(axis if axis in axes else None for axis in rule))


def size(name: str) -> int:
  """How many parts the dimension `name` is cut into on the current mesh."""
  return jax.sharding.get_abstract_mesh().shape.get(RULES[name], 1)


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
  layout = spec(*names)
  if layout is None:
    return jax.numpy.array(x, copy=True)
  here = jax.sharding.get_mesh()
  return jax.device_put(x, jax.NamedSharding(here, layout), may_alias=False)


def laid(x: jax.Array, *names: str | None) -> jax.Array:
  """An array on the mesh, moved to another layout; itself without a mesh."""
  layout = spec(*names)
  return x if layout is None else jax.reshard(x, layout)


def home(like) -> jax.sharding.Sharding:
  """Where an array laid out as `like`, or its shape, lives on the mesh."""
  layout = jax.typeof(like).sharding
  if layout.mesh.empty:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.NamedSharding(jax.sharding.get_mesh(), layout.spec)


def put_like(x, like) -> jax.Array:
  """A host array placed as `like`, an array or its shape, is laid out."""
  return jax.device_put(x, home(like), may_alias=False)


def check_divides(what: str, n: int, name: str) -> None:
  """Raises ValueError, naming both numbers, when `n` cannot be cut evenly."""
  if n % size(name):
    raise ValueError(
        f"sharding: {what} = {n} does not divide over the {size(name)} parts"
        f" of mesh axis {RULES[name]!r}; choose a mesh whose"
        f" {RULES[name]!r} size divides {n}."
    )
