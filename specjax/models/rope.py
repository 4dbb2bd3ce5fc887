"""Rotary positions: plain, partial; linear, llama3, yarn, longrope scaling."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Rope:
  """Rotary settings of one kind of layer, as published configs name them."""

  theta: float = 10000.0
  fraction: float = 1.0  # of the head that is rotated
  scaling: str = "none"  # none, linear, llama3, yarn, longrope
  factor: float = 1.0
  original: int = 8192  # positions seen in training, before scaling
  low: float = 1.0  # llama3: low_freq_factor
  high: float = 4.0  # llama3: high_freq_factor
  fast: float = 32.0  # yarn: beta_fast
  slow: float = 1.0  # yarn: beta_slow
  attention: float | None = None  # yarn: None = 0.1 ln(factor) + 1
  factors: tuple[float, ...] = ()  # longrope: one a pair, for short texts

  def __post_init__(self):
    kinds = ("none", "linear", "llama3", "yarn", "longrope")
    if self.scaling not in kinds:
      raise ValueError(
          f"Rope: scaling {self.scaling!r} is not one of {', '.join(kinds)}."
      )
    for name, least in dict(theta=1, factor=0, original=0).items():
      if getattr(self, name) <= least:
        raise ValueError(
            f"Rope: {name} = {getattr(self, name)} must be above {least}."
        )

  def sound(self, dim: int) -> bool:
    """Whether all angles of heads of `dim` are finite, in float32 too."""
    try:
      with np.errstate(all="ignore"):
        turns = np.array([*self.frequencies(dim), self.amplitude()])
    except (ArithmeticError, ValueError):
      return False
    return bool(np.all(np.abs(turns) < 1e30))

  def frequencies(self, dim: int) -> np.ndarray:
    """Radians a position, one for each rotated pair, in float64."""
    rotated = int(dim * self.fraction)
    base = self.theta ** (-np.arange(0, rotated, 2) / rotated)
    if self.scaling == "linear":
      return base / self.factor
    if self.scaling == "llama3":
      turns = self.original * base / (2 * math.pi)
      keep = (turns - self.low) / (self.high - self.low)
      keep = np.clip(keep, 0.0, 1.0)
      return keep * base + (1 - keep) * base / self.factor
    if self.scaling == "yarn":
      at = lambda turns: (
          rotated
          * math.log(self.original / (turns * 2 * math.pi))
          / (2 * math.log(self.theta))
      )
      low = max(math.floor(at(self.fast)), 0)
      high = min(math.ceil(at(self.slow)), rotated - 1)
      ramp = (np.arange(rotated // 2) - low) / max(high - low, 1e-3)
      keep = 1 - np.clip(ramp, 0.0, 1.0)
      return keep * base + (1 - keep) * base / self.factor
    if self.scaling == "longrope":
      return base / np.array(self.factors)
    return base

  def amplitude(self) -> float:
    """What yarn and longrope multiply sine and cosine by; 1 otherwise."""
    if self.scaling not in ("yarn", "longrope"):
      return 1.0
    if self.attention is not None:
      return self.attention
    return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def angles(rope: Rope, pos: jax.Array, dim: int):
  """Positions [B T] -> (cosine, sine), each [B T 1 rotated/2], float32."""
  turn = jnp.asarray(rope.frequencies(dim), jnp.float32)
  angle = pos.astype(jnp.float32)[..., None, None] * turn
  return rope.amplitude() * jnp.cos(angle), rope.amplitude() * jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Turns the first 2 * cos.shape[-1] entries of each head; x [B T H D]."""
  half = cos.shape[-1]
  wide = x.astype(jnp.float32)
  a, b, rest = jnp.split(wide, (half, 2 * half), -1)
  turned = [a * cos - b * sin, b * cos + a * sin, rest]
  return jnp.concatenate(turned, -1).astype(x.dtype)
