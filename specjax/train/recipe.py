"""How long and how fast to train: schedule and optimiser."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How long, on what and how fast to train.

  The rates rise over `warmup` steps, stay, and fall to zero over the last
  `decay` steps. Raises ValueError when these do not fit in `steps`.
  """

  steps: int
  batch: int
  length: int
  matrix_rate: float  # muon: the blocks' matrices
  other_rate: float  # adam: embedding, head, norms
  warmup: int
  decay: int
  weight_decay: float = 0.1  # of the blocks' matrices
  clip: float = 1.0  # of the gradient's global norm
  seed: int = 0
  save_every: int = 100
  eval_every: int = 100
  eval_batches: int = 16

  def __post_init__(self):
    for name in ("steps", "batch", "length", "save_every", "eval_every"):
      if getattr(self, name) < 1:
        raise ValueError(
            f"recipe: {name} = {getattr(self, name)} must be at least 1."
        )
    if min(self.warmup, self.decay) < 0 or (
        self.warmup + self.decay > self.steps
    ):
      raise ValueError(
          f"recipe: warmup {self.warmup} and decay {self.decay} must be at"
          f" least 0 and their sum at most steps = {self.steps}."
      )


def schedule(r: Recipe) -> Callable:
  """Share of the full rate by steps done: warm-up, stable, decay (WSD)."""

  def share(step):
    up = (step + 1) / max(r.warmup, 1)
    down = (r.steps - step) / max(r.decay, 1)
    return jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

  return share


def optimiser(
    r: Recipe, params: dict[str, jax.Array]
) -> optax.GradientTransformation:
  """Muon (Jordan, 2024) for the blocks' matrices, Adam for all else.

  Works on parameters by dotted name, as `loop.named` gives them.
  """
  share = schedule(r)
  form = MuonDimensionNumbers(reduction_axis=1, output_axis=0)  # [out, in]
  matrix = lambda name, x: x.ndim == 2 and name.startswith("blocks.")
  return optax.chain(
      optax.clip_by_global_norm(r.clip),
      muon(
          lambda step: r.matrix_rate * share(step),
          adam_learning_rate=lambda step: r.other_rate * share(step),
          weight_decay=r.weight_decay,
          adam_b2=0.95,
          muon_weight_dimension_numbers={
              name: form if matrix(name, x) else None
              for name, x in params.items()
          },
      ),
  )
