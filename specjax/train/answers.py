"""The target's own continuations: what its drafter will meet.

Distilled on the text it will draft, a drafter is accepted more often than on
other people's text alone (Zhou et al., DistillSpec, 2023).
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
from rich import console, progress

from specjax import engine, states
from specjax.drafters.nothing import Nothing
from specjax.processes import agreed, fetch, leads


@dataclasses.dataclass(frozen=True)
class Plan:
  """How many answers of what kind: `batches` of `batch` rows, each `prompt`
  tokens of the corpus and `new` of the target, at `temperatures` in turn."""

  batches: int
  batch: int
  prompt: int
  new: int
  temperatures: Sequence[float] = (0.0, 1.0)
  seed: int = 0

  def __post_init__(self):
    for name in ("batches", "batch", "prompt", "new"):
      if getattr(self, name) < 1:
        raise ValueError(
            f"answers: {name} = {getattr(self, name)} must be at least 1."
        )


def key(model, tokens: np.ndarray, plan) -> str:
  """What a result depends on, in 16 hex digits: for a folder's name."""
  digest = hashlib.sha256(repr(plan).encode())
  for x in (tokens, *jax.tree.leaves(model)):
    digest.update(np.ascontiguousarray(fetch(x)).tobytes())
  return digest.hexdigest()[:16]


def collect(
    target, tokens: np.ndarray, plan: Plan, folder: str | pathlib.Path
) -> np.ndarray:
  """Answers to places of `tokens` -> uint16 or int32 [N prompt + new].

  `folder` keeps every finished batch, so a killed run goes on; give what
  depends on another `key` a folder of its own. Raises ValueError when
  `tokens` are fewer than a prompt, FloatingPointError when logits fail.
  """
  if len(tokens) < plan.prompt:
    raise ValueError(
        f"answers: {len(tokens)} tokens hold no prompt of {plan.prompt}."
    )
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  parts = []
  for i in progress.track(
      range(plan.batches), "answers", console=console.Console(stderr=True)
  ):
    file = folder / f"{i:05d}.npy"
    if agreed(not file.exists()):
      found = _batch(target, tokens, plan, i).astype(tokens.dtype)
      if leads():
        part = file.with_suffix(".part.npy")
        np.save(part, found)
        part.replace(file)  # a killed run leaves no half-written batch
    else:
      rows = np.load(file) if leads() else np.zeros(
          (plan.batch, plan.prompt + plan.new), tokens.dtype
      )
      found = np.asarray(agreed(rows))
    parts.append(found)
  return np.concatenate(parts)


def _batch(target, tokens, plan, i):
  rng = np.random.default_rng((plan.seed, i))
  begin = rng.integers(len(tokens) - plan.prompt + 1, size=plan.batch)
  prompts = tokens[begin[:, None] + np.arange(plan.prompt)].tolist()
  heats = [plan.temperatures[j % len(plan.temperatures)]
           for j in range(plan.batch)]
  alone = Nothing(1)  # one token a pass: a batch this large gains no more
  chunk = 64
  state = states.prefill(
      target, alone, prompts, max_new_tokens=plan.new, chunks=(chunk,),
      sampling=dict(temperature=heats), seed=int(rng.integers(2**30)),
      capacity=plan.prompt + plan.new + chunk,  # a CPU reads all of them
  )
  state, _ = engine.generate(target, alone, state)
  if (fetch(state.rows.length) < plan.prompt + plan.new).any():
    raise FloatingPointError(
        f"answers: the target's logits are not finite in batch {i}; train it"
        " anew at a lower rate."
    )
  return fetch(state.rows.tokens)[:, : plan.prompt + plan.new]
