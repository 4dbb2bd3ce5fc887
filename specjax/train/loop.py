"""The training loop: one compiled step, checkpoints, a log, a bar.

A run is a pure function of (model, recipe, tokens): whatever ends it, the same
call goes on from the last checkpoint and writes the same losses.
"""

import collections
import contextlib
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from orbax.checkpoint import v1 as ocp
from rich import console, progress

from specjax.checkpoint.safetensors import named
from specjax.processes import anywhere, leads
from specjax.sharding import put, size
from specjax.train import data
from specjax.train.recipe import Recipe, optimiser, schedule


class TrainState(NamedTuple):
  """All that a step reads and writes; what a checkpoint holds."""

  step: jax.Array  # int32: steps done
  model: Any
  opt_state: Any


class Stopped(Exception):
  """The run was asked to end (SIGTERM) and has saved a checkpoint."""


def like(tree, arrays: dict[str, jax.Array]):
  """The inverse of `named`: `arrays` in the form of `tree`."""
  # By name, since jax returns a dict sorted: not the order of a module.
  leaves = [arrays[name] for name in named(tree)]
  return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def update(state: TrainState, others, tokens, *, loss, tx):
  """One step on tokens [B T+1] -> (state, loss). Pure; `run` compiles it."""
  value, grads = jax.value_and_grad(loss)(state.model, *others, tokens)
  params = named(state.model)
  change, opt_state = tx.update(
      _whole(named(grads)), _whole(state.opt_state), _whole(params)
  )
  opt_state = _kept(opt_state, params)
  step = lambda x, d: x + _laid(d, jax.typeof(x).sharding.spec).astype(x.dtype)
  params = {name: step(x, change[name]) for name, x in params.items()}
  return TrainState(state.step + 1, like(state.model, params), opt_state), value


def run(
    model,
    loss: Callable,
    recipe: Recipe,
    train: np.ndarray,
    heldout: np.ndarray,
    folder: str | pathlib.Path,
    others: tuple = (),
    label: str = "train",
):
  """Trains `model` by `loss(model, *others, tokens)`; returns it trained.

  `folder` gets `log.jsonl`, one line a step, and checkpoints; when it has some
  the run goes on from the last. Deletes the caller's `model` (donation).
  Raises Stopped after SIGTERM, FloatingPointError when a loss is not finite,
  ValueError when the folder's checkpoint is of another model.
  """
  _check(model, recipe)
  folder = pathlib.Path(folder).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  r, tx, share = recipe, optimiser(recipe, named(model)), schedule(recipe)
  advance = jax.jit(
      lambda *arguments: update(*arguments, loss=loss, tx=tx), donate_argnums=0
  )
  start = lambda model: _kept(tx.init(_whole(named(model))), named(model))
  opt_state = jax.jit(start)(model)
  state = TrainState(jnp.int32(0), model, opt_state)
  with contextlib.ExitStack() as stack:
    saver = ocp.training.Checkpointer(
        folder / "checkpoints",
        preservation_policy=ocp.training.preservation_policies.LatestN(2),
        cleanup_tmp_directories=True,
    )
    stack.enter_context(contextlib.closing(saver))
    state = _restore(saver, state)
    first = int(state.step)
    log, before = _log(folder / "log.jsonl", first)
    stack.enter_context(log)
    stop = stack.enter_context(_sigterm())
    show = stack.enter_context(_bar(label, r.steps, first))
    began = time.monotonic()
    for step in range(first + 1, r.steps + 1):
      rows = data.batch(train, step - 1, r.seed, r.batch, r.length)
      state, value = advance(state, others, put(rows, "batch", None))
      # A loss that is no number ends the run before it is kept.
      line = {"step": step, "loss": float(value)}
      if not np.isfinite(line["loss"]):
        raise FloatingPointError(
            f"{label}: the loss of step {step} is {line['loss']}; lower"
            f" matrix_rate = {r.matrix_rate} or other_rate = {r.other_rate} and"
            " run again, which goes on from the last checkpoint."
        )
      line["lr"] = r.matrix_rate * float(share(step - 1))
      line["tokens"] = step * rows[:, 1:].size
      if step % r.eval_every == 0 or step == r.steps:
        line["heldout"] = evaluate(state.model, loss, r, heldout, others)
      line["seconds"] = round(before + time.monotonic() - began, 3)
      log.write(json.dumps(line) + "\n")
      log.flush()
      show(line)
      # After its line: a kill between the two repeats a step, loses no line.
      asked = anywhere(stop())
      if step % r.save_every == 0 or step == r.steps or asked:
        saver.save(step, named(state), force=True)
      if asked:
        raise Stopped(
            f"{label}: stopped by SIGTERM after step {step} of {r.steps}; the"
            " checkpoint is saved, the same command goes on from it."
        )
  return state.model


def evaluate(
    model, measure: Callable, r: Recipe, tokens: np.ndarray, others: tuple = ()
):
  """Mean of `measure(model, *others, tokens)` over fixed held-out batches."""
  measure = jax.jit(measure)  # jax keeps its programs by the function inside
  found = [
      measure(model, *others, put(rows, "batch", None))
      for rows in data.fixed(tokens, r.eval_batches, r.batch, r.length)
  ]
  return jax.tree.map(lambda *x: float(np.mean(x)), *found)


def _check(model, recipe: Recipe) -> None:
  parts = size("batch")
  if recipe.batch % parts:
    raise ValueError(
        f"batch = {recipe.batch} rows do not spread over the {parts} data and"
        " fsdp parts of the mesh; give a multiple."
    )
  if getattr(model.c, "kv_copies", 1) > 1:
    raise ValueError(
        f"mesh: its model axis has more parts than the {model.c.kv_heads} KV"
        " heads, whose copies would be trained apart; give more data or fsdp"
        " parts instead."
    )


def _whole(tree):
  # Muon multiplies whole matrices, so every chip takes the step on all of them.
  return jax.tree.map(lambda x: _laid(x, jax.P()), tree)


def _kept(opt_state, params):
  """The optimiser's state, moments laid out like their parameters: between
  steps a chip keeps its parts only."""

  def lay(path, x):
    like = params.get(getattr(path[-1], "key", None)) if path else None
    if like is None or like.shape != x.shape:
      return x
    return _laid(x, jax.typeof(like).sharding.spec)

  return jax.tree_util.tree_map_with_path(lay, opt_state)


def _laid(x, spec):
  empty = jax.sharding.get_abstract_mesh().empty
  return x if empty else jax.reshard(x, spec)


def _restore(saver, state: TrainState) -> TrainState:
  """The last checkpoint in the place of `state`, or `state` if there is none.

  Raises ValueError when it does not hold the arrays of `state`.
  """
  if saver.latest is None:
    return state
  want, have = named(state), saver.metadata(None).metadata
  for name in sorted(want.keys() | have.keys()):
    a, b = (getattr(t.get(name), "shape", "no array") for t in (want, have))
    if a != b:
      raise ValueError(
          f"{saver.directory}: the checkpoint is of another model ({name}:"
          f" {b} there, {a} wanted); give its configuration or a new folder."
      )
  abstract = {
      name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
      for name, x in want.items()
  }
  logging.info("Going on after step %d.", saver.latest.step)
  return like(state, saver.load(None, abstract))


def _log(path: pathlib.Path, step: int):
  """(the log open for more, seconds so far), cut after the line of `step`."""
  lines = path.read_text().splitlines() if path.exists() else []
  kept = lines[:step]  # line n is step n; a killed run may have gone further
  seconds = json.loads(kept[-1])["seconds"] if kept else 0.0
  if not leads():
    return open(os.devnull, "w"), seconds
  part = path.with_suffix(".part")
  part.write_text("".join(line + "\n" for line in kept))
  part.replace(path)
  return path.open("a"), seconds


@contextlib.contextmanager
def _sigterm() -> Iterator[Callable[[], bool]]:
  """Turns SIGTERM into a question that the loop asks between steps."""
  asked = []
  old = signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
  try:
    yield lambda: bool(asked)
  finally:
    signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def _bar(label: str, total: int, first: int) -> Iterator[Callable]:
  """Shows log lines: a bar on a terminal, otherwise a sentence now and then."""
  recent = collections.deque(maxlen=20)

  def rate(line):  # tokens a second over the last steps; the first compiles
    recent.append((line["tokens"], line["seconds"]))
    (a, s), (b, t) = recent[0], recent[-1]
    return (b - a) / (t - s) if t > s else 0.0

  if not leads():
    yield lambda line: None
    return
  if not sys.stderr.isatty():
    yield lambda line: _say(label, total, line, rate(line))
    return
  columns = (
      progress.TextColumn("{task.description}"),
      progress.BarColumn(),
      progress.MofNCompleteColumn(),
      progress.TextColumn("loss {task.fields[loss]:.3f}"),
      progress.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
      progress.TimeRemainingColumn(),
  )
  with progress.Progress(
      *columns, console=console.Console(stderr=True)
  ) as bar:
    task = bar.add_task(label, total=total, completed=first, loss=0.0, rate=0.0)
    yield lambda line: bar.update(
        task, completed=line["step"], loss=line["loss"], rate=rate(line)
    )


def _say(label, total, line, rate):
  step = line["step"]
  if step % 20 and step != total and "heldout" not in line:
    return
  left = (total - step) * line["tokens"] / step / max(rate, 1e-9)
  heldout = f", held out {line['heldout']:.3f}" if "heldout" in line else ""
  logging.info(
      "%s: step %d of %d, loss %.3f%s, %.0f tokens/s, %.0f min left",
      *(label, step, total, line["loss"], heldout, rate, left / 60),
  )
